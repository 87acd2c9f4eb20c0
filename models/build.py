"""Build a model from a config's model section, and check the section."""

import math
from collections.abc import Iterator, Mapping
from types import SimpleNamespace

from flax import linen as nn

from models.attention import BACKENDS
from models.attention.patterns import Split, parse_pattern, per_head
from models.bert import Encoder
from models.electra import HEADS, Electra, generator_sizes
from models.errors import ModelError
from models.gpt import Decoder
from models.layers.adaptive_softmax import SHARING
from models.layers.backward import REMAT
from models.layers.embedding import POSITIONS
from models.layers.init import INIT_SCHEMES, INITIALIZERS
from models.layers.norm import NORMS
from models.t5 import POSITIONS as SEQUENCE_POSITIONS
from models.t5 import EncoderDecoder
from models.transformer.adapters import TARGETS
from models.transformer.block import PLACEMENTS
from models.transformer.mlp import ACTIVATIONS, FEED_FORWARD, GATED
from models.transformer.task_head import MIXES, STEPS, Task
from models.transformer_xl import POSITIONS as RECURRENT_POSITIONS
from models.transformer_xl import TransformerXL
from models.xlnet import XLNet

KINDS = {
    "decoder": Decoder,
    "recurrent": TransformerXL,
    "two_stream": XLNet,
    "encoder": Encoder,
    "replaced_tokens": Electra,
    "encoder_decoder": EncoderDecoder,
}

# Fields with a fixed set of values, by kind of model; those of `""` are common to all.
CHOICES = {
    # float16 is not offered: without loss scaling its gradients would underflow below 6e-8.
    "": {"attention_path": ("auto", *BACKENDS), "remat": REMAT}
    | dict.fromkeys(("dtype", "param_dtype"), ("float32", "bfloat16")),
    "decoder": {"activation": FEED_FORWARD, "norm": NORMS, "placement": PLACEMENTS, "positions": POSITIONS},
    "recurrent": {"positions": RECURRENT_POSITIONS, "shared_projections": SHARING, "activation": ACTIVATIONS},
    "two_stream": {"activation": ACTIVATIONS},
    "encoder": {"activation": ACTIVATIONS, "initialiser": INITIALIZERS},
    "replaced_tokens": {"activation": ACTIVATIONS, "initialiser": INITIALIZERS, "head": HEADS},
    "encoder_decoder": {"activation": FEED_FORWARD, "norm": NORMS, "placement": PLACEMENTS}
    | {"positions": SEQUENCE_POSITIONS, "initialiser": INIT_SCHEMES},
}

# (kind, field) -> why a field that users look for does not exist.
ABSENT = {
    ("decoder", "memory"): "its positions restart in every row. Use kind 'recurrent', which has a memory.",
    ("two_stream", "positions"): "XLNet's positions are always relative. Leave it out.",
}


def build(section: Mapping, task: Task | None = None) -> nn.Module:
    """The model of kind `section["kind"]`, with the rest as its fields, and the head of a task instead of its own.

    Raises ModelError for impossible values.
    """
    # JSON has no tuples; Flax needs hashable fields.
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in section.items()}
    if fields.get("mix", "none") != "none" and task is None:
        raise ModelError(f"config.model.mix={fields['mix']}: the head of a task reads it. Set it to none.")
    for name, problem in _mistakes(SimpleNamespace(**fields)):
        raise ModelError(f"config.model.{name}={fields[name]}: {problem}")
    return KINDS[fields.pop("kind")](**fields, task=task)


def _mistakes(f: SimpleNamespace) -> Iterator[tuple[str, str]]:
    """Yield (field, problem and remedy) for each mistake in a section; later checks rely on earlier ones."""
    for name, choices in [("kind", KINDS), *CHOICES[""].items(), *CHOICES.get(f.kind, {}).items()]:
        if getattr(f, name) not in choices:
            yield name, f"unknown. Use one of: {', '.join(choices)}."
    if getattr(f, "mix", "none") not in MIXES:
        yield "mix", f"unknown. Use one of: {', '.join(MIXES)}."
    for step in set(getattr(f, "summary", ())) - set(STEPS):
        yield "summary", f"{step} is unknown. Use: {', '.join(STEPS)}."
    # Encoder-decoders always state their head size, which need not be width / heads (T5-11B: 128 heads of 128).
    if not getattr(f, "head_size", 0) and f.width % f.heads:
        yield "heads", f"does not divide width={f.width}. Use a divisor."
    # Sinusoids and rotations pair features: one sine and one cosine, or two coordinates of a plane.
    for name in _paired_features(f):
        if (getattr(f, name) or f.width // f.heads) % 2:
            yield name, "positions pair features. Make it even."
    yield from _pattern_mistakes(f)
    targets = [name for name in TARGETS if name != "gate" or f.activation.startswith(GATED)]
    if f.lora and not (f.lora_targets and {*f.lora_targets} <= {*targets}):
        yield "lora_targets", f"not among the matrices of a layer. Use some of: {', '.join(targets)}."
    match f.kind:
        case "decoder":
            if f.kv_heads and f.heads % f.kv_heads:
                yield "kv_heads", f"does not divide heads={f.heads}. Use a divisor, or 0."
            if f.rope_scaling and (f.positions != "rotary" or len(f.rope_scaling) not in (1, 4)):
                yield "rope_scaling", "needs model.positions=rotary and one number or four. Set it to ()."
            if len(f.rope_scaling) == 4 and f.rope_scaling[1] >= f.rope_scaling[2]:
                yield "rope_scaling", "its second number is not below its third. Swap them."
            if f.positions == "factorised" and math.prod(f.position_axes) != f.context:
                yield "position_axes", f"their product is not model.context={f.context}. Change them."
        case "recurrent":
            edges = [0, *f.cutoffs, f.vocab_size]
            if edges != sorted(set(edges)):
                yield "cutoffs", f"not increasing between 0 and model.vocab_size={f.vocab_size}. Change them."
            if (f.embed or f.width) < f.divisor ** len(f.cutoffs):
                yield "divisor", "leaves a cluster no width. Lower it or drop a cutoff."
        case "two_stream" if f.reuse > f.context:
            yield "reuse", f"longer than a row, model.context={f.context}. Lower it."
        case "replaced_tokens" if f.generator_size:
            own = generator_sizes(f.width, f.heads, f.generator_size)
            if own["width"] % own["heads"]:
                problem = f"{own['heads']} heads do not divide the generator's width {own['width']}"
                yield "generator_size", f"{problem}. Use 1/4 or 1/2."
        # The encoder halves the buckets for keys before and after; half of those are one distance wide.
        case "encoder_decoder" if f.positions == "buckets" and f.max_distance <= f.buckets // 2:
            yield "max_distance", f"not above half of model.buckets={f.buckets}. Raise it."


def _paired_features(f: SimpleNamespace) -> Iterator[str]:
    """Fields that must be even, 0 meaning width / heads."""
    positions = "relative" if f.kind == "two_stream" else getattr(f, "positions", "")
    if positions == "rotary":
        yield "query_size" if getattr(f, "query_size", 0) else "head_size"
    elif positions == "relative" or positions.startswith("sinusoid"):
        yield "width"


def _pattern_mistakes(f: SimpleNamespace) -> Iterator[tuple[str, str]]:
    """The mistakes of models whose layers take attention patterns in turn."""
    words = getattr(f, "attention", ("dense",))
    if not words or f.layers % len(words):
        yield "attention", f"{len(words)} patterns do not divide layers={f.layers}. Use a divisor."
    groups = getattr(f, "groups", 0)
    if groups and (f.layers % groups or f.layers // groups % len(words)):
        yield (
            "groups",
            f"does not split layers={f.layers} into periods of attention patterns. Use a divisor, or 0.",
        )
    for pattern in map(parse_pattern, words):
        if isinstance(pattern, Split) and f.heads % len(pattern.parts):
            yield "attention", f"heads={f.heads} do not split in {len(pattern.parts)} equal parts. Use a multiple."
        for stride in {one.stride for one in per_head(pattern, f.heads)}:
            if f.context % stride:
                yield "context", f"blocks of pattern '{pattern}' do not divide it. Use a multiple of {stride}."

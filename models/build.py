"""Build a model from a config's model section, and check the section."""

import dataclasses
import difflib
import math
from collections.abc import Mapping

from flax import linen as nn

from models.attention import BACKENDS
from models.attention.patterns import parse_pattern, per_head
from models.bert import Encoder
from models.electra import HEADS, Electra, generator_sizes
from models.errors import ModelError
from models.gpt import Decoder
from models.layers.adaptive_softmax import SHARING, check_clusters
from models.layers.embedding import POSITIONS
from models.layers.init import INIT_SCHEMES, INITIALIZERS
from models.layers.norm import NORMS
from models.layers.remat import REMAT
from models.t5 import POSITIONS as SEQUENCE_POSITIONS
from models.t5 import EncoderDecoder
from models.transformer.block import PLACEMENTS
from models.transformer.mlp import ACTIVATIONS, FEED_FORWARD
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


def build(section: Mapping) -> nn.Module:
    """The model of kind `section["kind"]`, with the rest as its fields. Raises ModelError for impossible sections."""
    # JSON has no tuples; Flax needs hashable fields.
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in section.items()}
    kind = fields.pop("kind", None)
    _check_choice("kind", kind, KINDS)
    known = [field.name for field in dataclasses.fields(KINDS[kind]) if field.name not in ("parent", "name")]
    for name in fields:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1, 0)[0]
            why = why_absent(kind, name) or f"no such field. The nearest is {nearest}."
            raise ModelError(f"config.model.{name} of kind '{kind}': {why}")
    if missing := [name for name in known if name not in fields]:
        raise ModelError(f"config.model.{missing[0]} is missing. Start from the section of kind '{kind}'.")
    for name, choices in {**CHOICES[""], **CHOICES[kind]}.items():
        _check_choice(name, fields[name], choices)
    _CHECKS[kind](fields)
    return KINDS[kind](**fields)


def why_absent(kind: str, name: str) -> str:
    """Why a kind of model has no field `name`, and what to use; "" if there is nothing to say."""
    return ABSENT.get((kind, name), "")


def _check_decoder(fields: Mapping):
    heads, kv_heads, positions = fields["heads"], fields["kv_heads"], fields["positions"]
    _check_heads(fields)
    if kv_heads and heads % kv_heads:
        raise ModelError(f"config.model.kv_heads={kv_heads}: does not divide heads={heads}. Use a divisor, or 0.")
    if positions == "rotary":
        name = "query_size" if fields["query_size"] else "head_size"
        _check_even(name, fields[name] or fields["width"] // heads)
    if positions.startswith("sinusoid"):
        _check_even("width", fields["width"])
    axes = tuple(fields["position_axes"])
    # math.prod(()) is 1, so axes without factorised positions are the only other case.
    if (positions == "factorised") != bool(axes) or (axes and math.prod(axes) != fields["context"]):
        raise ModelError(
            f"config.model.position_axes={axes}: factorised positions need axes whose product is "
            f"model.context={fields['context']}, others none. Change them."
        )
    _check_patterns(fields)


def _check_recurrent(fields: Mapping):
    _check_heads(fields)
    if fields["positions"] == "relative":
        _check_even("width", fields["width"])
    else:
        _check_even("head_size", fields["head_size"] or fields["width"] // fields["heads"])
        if fields["clamp"]:
            raise ModelError(f"config.model.clamp={fields['clamp']}: rotary positions have no distances. Set it to 0.")
    check_clusters(**{name: fields[name] for name in ("vocab_size", "cutoffs", "width", "embed", "divisor")})


def _check_two_stream(fields: Mapping):
    _check_heads(fields)
    _check_even("width", fields["width"])
    reuse, context = fields["reuse"], fields["context"]
    if reuse > context:
        raise ModelError(f"config.model.reuse={reuse}: longer than a row, model.context={context}. Lower it.")


def _check_encoder(fields: Mapping):
    _check_bidirectional(fields)
    width, embed = fields["width"], fields["embed"]
    if not fields["head_transform"] and embed not in (0, width):
        raise ModelError(f"config.model.embed={embed}: needs head_transform, as width={width}. Set it to True.")


def _check_bidirectional(fields: Mapping):
    _check_heads(fields)
    _check_patterns(fields)
    groups, layers, period = fields["groups"], fields["layers"], len(fields["attention"])
    if groups and (layers % groups or layers // groups % period):
        raise ModelError(
            f"config.model.groups={groups}: layers={layers} do not split into groups of whole periods of {period} "
            "attention patterns. Use a divisor, or 0."
        )


def _check_replaced_tokens(fields: Mapping):
    _check_bidirectional(fields)
    size, sizes = fields["generator_size"], generator_sizes(fields["width"], fields["heads"], fields["generator_size"])
    if size and sizes["width"] % sizes["heads"]:
        raise ModelError(
            f"config.model.generator_size={size}: {sizes['heads']} heads do not divide the generator's width "
            f"{sizes['width']}. Use 1/4 or 1/2."
        )


def _check_encoder_decoder(fields: Mapping):
    _check_patterns(fields)
    positions, buckets, offset = fields["positions"], fields["buckets"], fields["position_offset"]
    if positions == "buckets":
        # The encoder halves the buckets for keys before and after; half of those are one distance wide.
        if buckets % 4:
            raise ModelError(f"config.model.buckets={buckets}: not a multiple of 4. Change it.")
        if fields["max_distance"] <= buckets // 2:
            raise ModelError(
                f"config.model.max_distance={fields['max_distance']}: within the buckets that are one distance wide. "
                f"Use more than {buckets // 2}."
            )
    if positions == "sinusoid":
        _check_even("width", fields["width"])
    if offset and positions != "learned":
        raise ModelError(f"config.model.position_offset={offset}: only learned positions have rows. Set it to 0.")


_CHECKS = {
    "decoder": _check_decoder,
    "recurrent": _check_recurrent,
    "two_stream": _check_two_stream,
    "encoder": _check_encoder,
    "replaced_tokens": _check_replaced_tokens,
    "encoder_decoder": _check_encoder_decoder,
}


def _check_choice(name: str, value, choices):
    if value not in choices:
        raise ModelError(f"config.model.{name}={value}: unknown. Use one of: {', '.join(choices)}.")


def _check_heads(fields: Mapping):
    width, heads = fields["width"], fields["heads"]
    if width % heads and not fields.get("head_size"):
        remedy = " or set head_size" if "head_size" in fields else ""
        raise ModelError(f"config.model.heads={heads}: does not divide width={width}. Use a divisor{remedy}.")


def _check_even(name: str, size: int):
    # Sinusoids and rotations pair features: one sine and one cosine, or two coordinates of a plane.
    if size % 2:
        raise ModelError(f"config.model.{name}={size}: positions pair features. Make it even.")


def _check_patterns(fields: Mapping):
    patterns, layers = fields["attention"], fields["layers"]
    if isinstance(patterns, str) or not patterns or not all(isinstance(word, str) for word in patterns):
        raise ModelError(f"config.model.attention={patterns!r}: not a tuple of patterns. Use for example ('dense',).")
    if layers % len(patterns):
        raise ModelError(
            f"config.model.attention={patterns}: {len(patterns)} patterns do not divide layers={layers}. Use a divisor."
        )
    for word in patterns:
        for pattern in per_head(parse_pattern(word), fields["heads"]):
            if fields["context"] % pattern.stride:
                raise ModelError(
                    f"config.model.context={fields['context']}: blocks of pattern '{word}' do not divide it. "
                    f"Use a multiple of {pattern.stride}."
                )

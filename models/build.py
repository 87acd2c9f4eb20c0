"""From a config's model section to a model, with every mistake said in one sentence."""

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
from models.layers.embedding import ABSOLUTE, POSITIONS
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


def build(section: Mapping) -> nn.Module:
    """The model of the kind that `section["kind"]` names, with the rest as its fields, checked. Raises ModelError."""
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in section.items()}
    kind = fields.pop("kind", None)
    _choice("kind", kind, KINDS)
    model, check = KINDS[kind]
    known = [field.name for field in dataclasses.fields(model) if field.name not in ("parent", "name")]
    for name in fields:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0)[0]
            listed = f"; the nearest is '{near}'; choose from: {', '.join(known)}"
            raise ModelError(f"a model of kind '{kind}' has no field '{name}'{why_absent(kind, name) or listed}")
    missing = [name for name in known if name not in fields]
    if missing:
        raise ModelError(f"a model of kind '{kind}' needs a value for: {', '.join(missing)}")
    check(fields)
    return model(**fields)


def why_absent(kind: str, name: str) -> str:
    """The end of the sentence that a kind of model has no field `name`: why, and what to use. "" where nobody knows."""
    return ABSENT.get((kind, name), "")


def _check_decoder(fields: Mapping):
    _choice("activation", fields["activation"], FEED_FORWARD)
    _choice("norm", fields["norm"], NORMS)
    _choice("placement", fields["placement"], PLACEMENTS)
    _choice("positions", fields["positions"], POSITIONS)
    _check_running(fields)
    _check_heads(fields)
    _check_axes(fields)
    _check_patterns(fields)


def _check_recurrent(fields: Mapping):
    width, heads, positions = fields["width"], fields["heads"], fields["positions"]
    if not fields["head_size"]:
        _check_division(width, heads, " or set model.head_size")
    if positions in ABSOLUTE:
        raise ModelError(
            f"model.positions is '{positions}', by which places count anew in every row, so that a state remembered of "
            "the row before and a token of this one would have the same place (Dai et al. 2019, section 3.3); choose "
            f"from: {', '.join(RECURRENT_POSITIONS)}, or the kind 'decoder', which remembers nothing"
        )
    _choice("positions", positions, RECURRENT_POSITIONS)
    if positions == "relative":
        _check_distances(width)
    if positions == "rotary":
        _check_turned("head_size", fields["head_size"] or width // heads)
    if positions == "rotary" and fields["clamp"]:
        raise ModelError(
            f"model.clamp is {fields['clamp']}, but model.positions='rotary' turns queries and keys by their places "
            "and has no distances to clamp; set it to 0, in config.evaluate.model too"
        )
    check_clusters(**{name: fields[name] for name in ("vocab_size", "cutoffs", "width", "embed", "divisor")})
    _choice("shared_projections", fields["shared_projections"], SHARING)
    _choice("activation", fields["activation"], ACTIVATIONS)
    _check_running(fields)


def _check_two_stream(fields: Mapping):
    _check_distances(fields["width"])
    if not fields["head_size"]:
        _check_division(fields["width"], fields["heads"], " or set model.head_size")
    if fields["reuse"] > fields["context"]:
        raise ModelError(
            f"model.reuse is {fields['reuse']}, but a row has at most model.context={fields['context']} positions to "
            "remember; lower it"
        )
    _choice("activation", fields["activation"], ACTIVATIONS)
    _check_running(fields)


def _check_encoder(fields: Mapping):
    _check_bidirectional(fields)
    width, embed = fields["width"], fields["embed"]
    if not fields["head_transform"] and embed not in (0, width):
        raise ModelError(
            f"model.head_transform = False has hidden states of width {width} meet the token table, whose width is "
            f"model.embed={embed}; make them the same, or set it to True"
        )


def _check_bidirectional(fields: Mapping):
    _choice("activation", fields["activation"], ACTIVATIONS)
    _choice("initialiser", fields["initialiser"], INITIALIZERS)
    _check_running(fields)
    _check_division(fields["width"], fields["heads"])
    _check_patterns(fields)
    _check_groups(fields)


def _check_replaced_tokens(fields: Mapping):
    _check_bidirectional(fields)
    _choice("head", fields["head"], HEADS)
    size, sizes = fields["generator_size"], generator_sizes(fields["width"], fields["heads"], fields["generator_size"])
    if size and sizes["width"] % sizes["heads"]:
        raise ModelError(
            f"model.generator_size is {size}, which makes a generator of width {sizes['width']} whose {sizes['heads']} "
            "heads do not divide that; give another share, such as 1/4 or 1/2 of a model.width that it divides"
        )


def _check_encoder_decoder(fields: Mapping):
    _choice("activation", fields["activation"], FEED_FORWARD)
    _choice("norm", fields["norm"], NORMS)
    _choice("placement", fields["placement"], PLACEMENTS)
    _choice("positions", fields["positions"], SEQUENCE_POSITIONS)
    _choice("initialiser", fields["initialiser"], INIT_SCHEMES)
    _check_running(fields)
    _check_patterns(fields)
    if fields["positions"] == "buckets":
        _check_buckets(fields["buckets"], fields["max_distance"])
    _check_sinusoid(fields["positions"], fields["width"])
    if fields["position_offset"] and fields["positions"] != "learned":
        raise ModelError(
            f"model.position_offset is {fields['position_offset']}, rows of a table that model.positions="
            f"'{fields['positions']}' has not; set it to 0, or positions to learned"
        )


def _check_buckets(buckets: int, farthest: int):
    if buckets % 4:
        raise ModelError(
            f"model.buckets is {buckets}; the encoder halves them for keys before and after, and half of those are one "
            "distance wide, so give a multiple of 4"
        )
    if farthest <= buckets // 2:
        raise ModelError(
            f"model.max_distance is {farthest}, but half of model.buckets={buckets} are one distance wide and reach as "
            f"far; give more than {buckets // 2}"
        )


def _check_running(fields: Mapping):
    """What says how a model is run, whichever it is."""
    _choice("attention_path", fields["attention_path"], ("auto", *BACKENDS))
    _choice("remat", fields["remat"], REMAT)
    for name in ("dtype", "param_dtype"):
        _choice(name, fields[name], ("float32", "bfloat16"))  # float16 would lose gradients: no loss is scaled here


def _check_division(width: int, heads: int, otherwise: str = ""):
    if width % heads:
        raise ModelError(
            f"model.heads is {heads}, which does not divide model.width={width}; use a divisor of {width}{otherwise}"
        )


def _check_heads(fields: Mapping):
    width, heads, kv_heads, head_size = (fields[name] for name in ("width", "heads", "kv_heads", "head_size"))
    if not head_size:
        _check_division(width, heads, " or set model.head_size")
    if kv_heads and heads % kv_heads:
        raise ModelError(
            f"model.kv_heads is {kv_heads}, which does not divide model.heads={heads}; use a divisor of {heads}, "
            "or 0 for one key/value head per query head"
        )
    turned = "query_size" if fields["query_size"] else "head_size"
    size = fields["query_size"] or head_size or width // heads
    if fields["positions"] == "rotary":
        _check_turned(turned, size)
    _check_sinusoid(fields["positions"], width)


def _check_distances(width: int):
    if width % 2:
        raise ModelError(f"model.width is {width}; distances pair sine and cosine, so make it even")


def _check_sinusoid(positions: str, width: int):
    if positions.startswith("sinusoid") and width % 2:
        raise ModelError(
            f"model.positions='{positions}' pairs sine and cosine, but model.width is {width}; make it even"
        )


def _check_turned(name: str, size: int):
    if size % 2:
        raise ModelError(f"model.positions='rotary' turns pairs of features, but model.{name} is {size}; make it even")


def _check_axes(fields: Mapping):
    axes, context = tuple(fields["position_axes"]), fields["context"]
    factorised = fields["positions"] == "factorised"
    if factorised != bool(axes):
        raise ModelError(
            f"model.position_axes is {axes} and model.positions is '{fields['positions']}'; give sizes, such as "
            "(32, 32, 3) for rows, columns and colours, with 'factorised' and with it alone"
        )
    if factorised and math.prod(axes) != context:
        raise ModelError(
            f"model.position_axes {axes} hold {math.prod(axes)} positions, but model.context is {context}; "
            "make them the same"
        )


def _check_patterns(fields: Mapping):
    patterns, layers = fields["attention"], fields["layers"]
    if isinstance(patterns, str) or not patterns:
        raise ModelError(f"model.attention is {patterns!r}; give a tuple of at least one pattern, such as ('dense',)")
    if layers % len(patterns):
        raise ModelError(
            f"model.attention names {len(patterns)} patterns to repeat over model.layers={layers}, which "
            f"{len(patterns)} does not divide; name one for each layer or a number that divides {layers}"
        )
    for word in patterns:
        if not isinstance(word, str):
            raise ModelError(
                f"model.attention holds {word!r}; name patterns by words, such as 'dense' or 'strided_128'"
            )
        for pattern in per_head(parse_pattern(word), fields["heads"]):
            if fields["context"] % pattern.stride:
                raise ModelError(
                    f"attention pattern '{word}' works on blocks of {pattern.stride}, which do not divide "
                    f"model.context={fields['context']}; use a multiple of {pattern.stride}, or other blocks"
                )


def _check_groups(fields: Mapping):
    groups, layers, period = fields["groups"], fields["layers"], len(fields["attention"])
    if groups and layers % groups:
        raise ModelError(
            f"model.groups is {groups}, which does not divide model.layers={layers}; use a divisor of {layers}, or 0 "
            "for layers that share nothing"
        )
    if groups and layers // groups % period:
        raise ModelError(
            f"model.attention names {period} patterns to repeat over the {layers // groups} layers of each of "
            f"model.groups={groups}, which {period} does not divide; name a number that divides {layers // groups}"
        )


def _choice(name: str, value, choices):
    if value not in choices:
        raise ModelError(f"model.{name} is '{value}', which is unknown; choose from: {', '.join(choices)}")


KINDS = {
    "decoder": (Decoder, _check_decoder),
    "recurrent": (TransformerXL, _check_recurrent),
    "two_stream": (XLNet, _check_two_stream),
    "encoder": (Encoder, _check_encoder),
    "replaced_tokens": (Electra, _check_replaced_tokens),
    "encoder_decoder": (EncoderDecoder, _check_encoder_decoder),
}

# Fields that are looked for where they cannot be: (kind, field) -> the end of the sentence that says so.
ABSENT = {
    ("decoder", "memory"): ": its positions count from the start of a row, whatever model.positions is, so that states "
    "remembered of an earlier row would stand in places where they never were; memory needs relative positions, which "
    "the kind 'recurrent' has (Transformer-XL), by distances or rotary",
    ("two_stream", "positions"): ": XLNet's positions are relative, of text read either way and by segment; leave it "
    "out, or for a memory with rotary ones use the kind 'recurrent'",
}

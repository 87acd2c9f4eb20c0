"""How a model reads while it writes: prompts at once, then a token a row at a time, with a cache or without.

To begin gives the logits of the next token and what is carried on; `advance` takes the one and gives both again.
"""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from models.layers.products import TURNED
from models.transformer.layer_stack import apart


@struct.dataclass
class Recomputing:
    """What decoding without a cache carries: all tokens so far, and the source, read again for each new one."""

    tokens: jax.Array  # [B, S]
    lengths: jax.Array  # [B]
    source: Mapping[str, jax.Array]

    def take(self, rows):
        return jax.tree.map(lambda x: x[rows], self)


def reader(model):
    """The model as it decodes: attention takes the path that serves, and nothing is made again for gradients."""
    return model.clone(attention_path="auto", remat="none")


def empty(model, params, source, rows, room):
    """What a model carries before it has read a token."""
    return model.apply({"params": params}, rows, room, **source, method="start_decoding")


def for_tokens(params, carried):
    """Parameters and caches as `advance` takes them best: on a CPU with an array for each layer, elsewhere as they are.

    A layer's part of an array [L, ...] is a copy there, made for every token: with copies of weights GPT-2 small took
    42 ms of processor time a token, without 24. Kernels lie as `turned_product` wants them. Weights of layers are held
    twice meanwhile.
    """
    if jax.default_backend() != "cpu" or isinstance(carried, Recomputing):
        return params, carried
    return _apart(params, carried)


@jax.jit
def _apart(params, carried):
    return _by_layer(params), {
        name: one.replace(key=apart(one.key), value=apart(one.value)) for name, one in carried.items()
    }


def _by_layer(params):
    if not isinstance(params, Mapping):
        return params
    return {
        name: tuple(map(_turned, apart(one))) if name == "layers" else _by_layer(one) for name, one in params.items()
    }


def _turned(params):
    if not isinstance(params, Mapping):
        return params
    kernel = {TURNED: params["kernel"].T} if "kernel" in params else {}
    return kernel | {name: _turned(one) for name, one in params.items() if name != "kernel"}


@partial(jax.jit, static_argnames=("model", "room"))
def begin_cached(model, params, tokens, lengths, room, source):
    """Reads prompts [B, P] of `lengths` [B] into caches of `room` tokens: (logits [B, V], caches)."""
    there = jnp.arange(tokens.shape[1])[None, :] < lengths[:, None]
    nothing = empty(model, params, source, tokens.shape[0], room)
    output = model.apply({"params": params}, tokens, segments=there.astype(jnp.int32), carried=nothing)
    return _logits_at(model, params, output.hidden, lengths - 1), output.carried


@partial(jax.jit, static_argnames=("model", "room"))
def begin_recomputing(model, params, tokens, lengths, room, source):
    """As `begin_cached`, without caches: the reference."""
    carried = Recomputing(jnp.pad(tokens, ((0, 0), (0, room - tokens.shape[1]))), lengths, source)
    return _reread(model, params, carried), carried


@partial(jax.jit, static_argnames="model", donate_argnames="carried")
def advance(model, params, carried, token):
    """Reads one more token [B] of each row: (logits [B, V] of the next, what is carried on)."""
    if isinstance(carried, Recomputing):
        rows = jnp.arange(len(token))
        tokens = carried.tokens.at[rows, carried.lengths].set(token)
        carried = carried.replace(tokens=tokens, lengths=carried.lengths + 1)
        return _reread(model, params, carried), carried
    output = model.apply({"params": params}, token[:, None], carried=carried)
    return _logits_at(model, params, output.hidden, jnp.zeros_like(token)), output.carried


def take(carried, rows):
    """What is carried for a batch whose rows are `rows` of this one's."""
    if isinstance(carried, Recomputing):
        return carried.take(rows)
    return {name: one.take(rows) for name, one in carried.items()}


def regroup(carried, rows):
    """As `take`, where rows change places among those of one prompt alone: what these share stays where it is."""
    if isinstance(carried, Recomputing):
        return carried.take(rows)
    return {name: one if one.of_prompt else one.take(rows) for name, one in carried.items()}


def known(logits, vocabulary):
    """logits [B, V] with -inf at ids that are no tokens."""
    return jnp.where(jnp.arange(logits.shape[-1])[None] < vocabulary, logits, -jnp.inf)


def lower(model, params, rows: int, length: int, source: Mapping | None = None) -> dict[str, jax.stages.Lowered]:
    """The programs of cached decoding before they are compiled: reading `rows` prompts, and one more token of each.

    Prompts have half of `length` tokens, which is the room of the cache. `params` and `source` may be shapes.
    """
    model, source = reader(model), dict(source or {})
    tokens, lengths = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((rows, length // 2), (rows,)))
    begin = partial(begin_cached, model, room=length)
    _, carried = jax.eval_shape(lambda *arrays: begin(*arrays[:-1], source=arrays[-1]), params, tokens, lengths, source)
    return {
        "prompt": begin_cached.lower(model, params, tokens, lengths, length, source),
        "token": advance.lower(model, params, carried, lengths),
    }


def _reread(model, params, carried):
    there = jnp.arange(carried.tokens.shape[1])[None, :] < carried.lengths[:, None]
    output = model.apply({"params": params}, carried.tokens, segments=there.astype(jnp.int32), **carried.source)
    return _logits_at(model, params, output.hidden, carried.lengths - 1)


def _logits_at(model, params, hidden, index):
    """Logits [B, V] at one position of each row; the others' are never made."""
    return model.apply({"params": params}, hidden[jnp.arange(hidden.shape[0]), index], method="logits")

"""Forward passes of decoding: prefill, then one token per row, with a cache or without.

`prefill` and `prefill_uncached` return (logits of the next token, caches); `decode_step` takes the
chosen token and returns both again.
"""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from models.layers.linear import TRANSPOSED
from models.transformer.layer_stack import unstack_layers


@struct.dataclass
class UncachedState:
    """State of decoding without a cache: all tokens so far and the source."""

    tokens: jax.Array  # [B, S]
    lengths: jax.Array  # [B]
    source: Mapping[str, jax.Array]

    def take(self, rows):
        return jax.tree.map(lambda x: x[rows], self)


def decoding_model(model):
    """The model for decoding: any attention backend, no rematerialization."""
    return model.clone(attention_path="auto", remat="none")


def empty_cache(model, params, source, rows, room):
    """Empty caches for `rows` rows of `room` tokens."""
    return model.apply({"params": params}, rows, room, **source, method="init_cache")


def to_decoding_layout(params, carried):
    """Parameters and caches in the layout that `decode_step` reads fastest: on a CPU one array per layer.

    XLA's CPU backend copies a layer out of an array [L, ...] for every token: GPT-2 small took 42 ms of processor time
    a token with those copies, 24 ms without. Kernels are transposed as well. Layer weights are held twice meanwhile.
    """
    if jax.default_backend() != "cpu" or isinstance(carried, UncachedState):
        return params, carried
    return _unstack_all(params, carried)


@jax.jit
def _unstack_all(params, carried):
    return _by_layer(params), {
        name: one.replace(key=unstack_layers(one.key), value=unstack_layers(one.value)) for name, one in carried.items()
    }


def _by_layer(params):
    if not isinstance(params, Mapping):
        return params
    return {
        name: tuple(map(_transpose_kernels, unstack_layers(one))) if name == "layers" else _by_layer(one)
        for name, one in params.items()
    }


def _transpose_kernels(params):
    if not isinstance(params, Mapping):
        return params
    kernel = {TRANSPOSED: params["kernel"].T} if "kernel" in params else {}
    return kernel | {name: _transpose_kernels(one) for name, one in params.items() if name != "kernel"}


@partial(jax.jit, static_argnames=("model", "room"))
def prefill(model, params, tokens, lengths, room, source):
    """Reads prompts [B, P] of `lengths` [B] into caches of `room` tokens: (logits [B, V], caches)."""
    # Segment 1 marks the prompt, 0 the padding on its right, which no token may attend to.
    is_token = jnp.arange(tokens.shape[1])[None, :] < lengths[:, None]
    cache = empty_cache(model, params, source, tokens.shape[0], room)
    output = model.apply({"params": params}, tokens, segments=is_token.astype(jnp.int32), carried=cache)
    return _logits_at(model, params, output.hidden, lengths - 1), output.carried


@partial(jax.jit, static_argnames=("model", "room"))
def prefill_uncached(model, params, tokens, lengths, room, source):
    """Like `prefill`, without caches: the reference."""
    carried = UncachedState(jnp.pad(tokens, ((0, 0), (0, room - tokens.shape[1]))), lengths, source)
    return _recompute(model, params, carried), carried


@partial(jax.jit, static_argnames="model", donate_argnames="carried")
def decode_step(model, params, carried, token):
    """Reads one more token [B] of each row: (logits [B, V] of the next, caches)."""
    if isinstance(carried, UncachedState):
        rows = jnp.arange(len(token))
        tokens = carried.tokens.at[rows, carried.lengths].set(token)
        carried = carried.replace(tokens=tokens, lengths=carried.lengths + 1)
        return _recompute(model, params, carried), carried
    # The caches count each row's tokens, so positions need no argument.
    output = model.apply({"params": params}, token[:, None], carried=carried)
    return _logits_at(model, params, output.hidden, jnp.zeros_like(token)), output.carried


def take(carried, rows):
    """The caches of the given rows."""
    if isinstance(carried, UncachedState):
        return carried.take(rows)
    return {name: one.take(rows) for name, one in carried.items()}


def reorder_beams(carried, rows):
    """Like `take` for rows that move within one prompt: what they share is not copied."""
    if isinstance(carried, UncachedState):
        return carried.take(rows)
    return {name: one if one.per_prompt else one.take(rows) for name, one in carried.items()}


def mask_unused_ids(logits, vocabulary):
    """Logits [B, V] with -inf at ids without a token."""
    return jnp.where(jnp.arange(logits.shape[-1])[None] < vocabulary, logits, -jnp.inf)


def lower(model, params, rows: int, length: int, source: Mapping | None = None) -> dict[str, jax.stages.Lowered]:
    """Lowers both programs of cached decoding: reading `rows` prompts of length / 2, and one more token of each.

    `length` is the room of the cache. `params` and `source` may be shapes.
    """
    model, source = decoding_model(model), dict(source or {})
    tokens, lengths = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((rows, length // 2), (rows,)))
    begin = partial(prefill, model, room=length)
    _, carried = jax.eval_shape(lambda *arrays: begin(*arrays[:-1], source=arrays[-1]), params, tokens, lengths, source)
    return {
        "prompt": prefill.lower(model, params, tokens, lengths, length, source),
        "token": decode_step.lower(model, params, carried, lengths),
    }


def _recompute(model, params, carried):
    is_token = jnp.arange(carried.tokens.shape[1])[None, :] < carried.lengths[:, None]
    output = model.apply({"params": params}, carried.tokens, segments=is_token.astype(jnp.int32), **carried.source)
    return _logits_at(model, params, output.hidden, carried.lengths - 1)


def _logits_at(model, params, hidden, index):
    """Logits [B, V] at one position of each row; no others are computed."""
    return model.apply({"params": params}, hidden[jnp.arange(hidden.shape[0]), index], method="logits")

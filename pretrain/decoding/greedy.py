"""Greedy decoding of whole batches in one program: for evaluation, which shows no token as it comes."""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn

from pretrain.decoding.beams import NOTHING
from pretrain.decoding.reading import advance, begin_cached, for_tokens, known, reader


@partial(jax.jit, static_argnames=("model", "max_tokens"))
def greedy(
    model,
    params,
    tokens: jax.Array,
    source: Mapping[str, jax.Array],
    there: jax.Array,
    limits: jax.Array,
    *,
    max_tokens: int,
    end_id: int,
    vocabulary: int,
) -> jax.Array:
    """What each row writes, int32 [B, max_tokens]: the likeliest id of those below `vocabulary`, again and again.

    tokens: prompts [B, P], P + max_tokens - 1 of at most the model's context; source: what the model reads besides, by
    name; there: bool [B], rows of padding write nothing. A row ends with `end_id`, where it comes to that, or with its
    last of `limits` [B] tokens; behind it are NOTHING. In the scope of a mesh, rows and parameters may be split over
    it; what is written is whole everywhere.
    """
    rows, begun = tokens.shape
    model = reader(model)
    lengths = jnp.full((rows,), begun, jnp.int32)
    logits, carried = begin_cached(model, params, tokens, lengths, begun + max_tokens - 1, source)
    params, carried = for_tokens(params, carried)

    def unfinished(state):
        step, writing, *_ = state
        return (step < max_tokens) & writing.any()

    def write(state):
        step, writing, written, logits, carried = state
        token = jnp.argmax(known(logits, vocabulary), axis=-1).astype(jnp.int32)
        written = written.at[:, step].set(jnp.where(writing, token, NOTHING))
        writing &= (token != end_id) & (step + 1 < limits)
        return step + 1, writing, written, *advance(model, params, carried, token)

    nothing = jnp.full((rows, max_tokens), NOTHING, jnp.int32)
    _, _, written, _, _ = jax.lax.while_loop(unfinished, write, (0, there, nothing, logits, carried))
    return nn.with_logical_constraint(written, (None, None))

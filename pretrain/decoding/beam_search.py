"""Beam search: the continuation with the best length-normalised log-probability, in one program.

Normalisation: "gnmt" divides by ((5 + length) / 6) ** penalty (Wu et al. 2016, eq. 14; the original Transformer),
"length" by length ** penalty (Hugging Face). Stopping: "never" continues until no unfinished beam could beat a finished
one at any length; "best" until the best unfinished beam, at its present length, beats none; "full" stops as "best", or
once as many are finished as there are beams. "best" and "full" are Hugging Face's early_stopping=False and True, where
only the best `beams` candidates of a step may finish.
"""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from pretrain.decoding.forward import (
    decode_step,
    decoding_model,
    mask_unused_ids,
    prefill,
    reorder_beams,
    take,
    to_decoding_layout,
)

NOTHING = -1  # padding after the end
NORMALISATIONS = {"gnmt": lambda length: (5.0 + length) / 6.0, "length": lambda length: 1.0 * length}


@struct.dataclass
class Beams:
    """K unfinished and K finished continuations of each of B prompts; empty places score -inf."""

    step: jax.Array  # []
    open: jax.Array  # [B] bool: a better one may still be found
    logits: jax.Array  # [B K, V] of the next token
    carried: object  # for B K rows
    tokens: jax.Array  # [B, K, max_tokens]
    nats: jax.Array  # [B, K] log-probability so far
    done_tokens: jax.Array  # [B, K, max_tokens], NOTHING after the end
    done_nats: jax.Array  # [B, K]
    done_scores: jax.Array  # [B, K]

    def best(self) -> tuple[jax.Array, jax.Array]:
        """The best finished continuation of each prompt: ids [B, max_tokens], log-probability [B]."""
        rows, which = jnp.arange(len(self.done_scores)), self.done_scores.argmax(1)
        return self.done_tokens[rows, which], self.done_nats[rows, which]


@partial(jax.jit, static_argnames=("model", "beams", "max_tokens", "normalisation", "stopping"))
def search(
    model,
    params,
    logits: jax.Array,
    carried,
    limits: jax.Array,
    *,
    beams: int,
    max_tokens: int,
    length_penalty: float,
    normalisation: str,
    stopping: str,
    end_id: int,
    vocabulary: int,
) -> tuple[jax.Array, jax.Array]:
    """`Beams.best` of a search from logits [B, V] of the first token and the caches `carried`.

    A continuation ends with `end_id`, or after `limits` [B] tokens, each at most `max_tokens`.
    """
    B, V = logits.shape
    K = beams
    # rows indexes prompts, place indexes positions of the continuation.
    rows, place = jnp.arange(B)[:, None], jnp.arange(max_tokens)[None, None]

    def score(nats, length):
        return nats / NORMALISATIONS[normalisation](length) ** length_penalty

    def can_improve(nats, done_scores, length):
        """Whether a prompt's best unfinished beam, after `length` tokens, may still beat a finished one."""
        if stopping == "never":  # its score at its best possible length
            hope = jnp.maximum(score(nats[:, 0], length + 1), score(nats[:, 0], limits))
        else:
            hope = score(nats[:, 0], length)
        full = (done_scores > -jnp.inf).all(1) & (stopping == "full")
        return (hope > done_scores.min(1)) & ~full

    def step(state):
        log_probabilities = mask_unused_ids(jax.nn.log_softmax(state.logits, axis=-1), vocabulary)
        # A beam can end in one way only, so at least K of 2K candidates continue.
        each, token = jax.lax.top_k(log_probabilities, min(2 * K, V))
        candidates = (state.nats[:, :, None] + each.reshape(B, K, -1)).reshape(B, -1)
        nats, flat = jax.lax.top_k(candidates, min(2 * K, K * V))
        parent, token = flat // each.shape[-1], jnp.take_along_axis(token.reshape(B, -1), flat, axis=1)
        tokens = state.tokens[rows, parent].at[:, :, state.step].set(token)
        length = state.step + 1
        ended = (token == end_id) | (length >= limits[:, None])

        # Hugging Face lets only the best K of the 2K candidates finish.
        counts = ended & state.open[:, None]
        if stopping != "never":
            counts &= (jnp.arange(nats.shape[1]) < K)[None]
        scores = jnp.where(counts, score(nats, length), -jnp.inf)
        done_scores, kept = jax.lax.top_k(jnp.concatenate([state.done_scores, scores], 1), K)

        def keep(old, new):
            return jnp.concatenate([old, new], 1)[rows, kept]

        # The K best unfinished candidates continue; caches follow their parents.
        alive_nats, alive = jax.lax.top_k(jnp.where(ended, -jnp.inf, nats), K)
        reordered = reorder_beams(state.carried, (rows * K + parent[rows, alive]).reshape(-1))
        next_logits, carried = decode_step(model, params, reordered, token[rows, alive].reshape(-1))
        return Beams(
            step=length,
            open=state.open & can_improve(alive_nats, done_scores, length) & (length < limits),
            logits=next_logits,
            carried=carried,
            tokens=tokens[rows, alive],
            nats=alive_nats,
            done_tokens=keep(state.done_tokens, jnp.where(place < length, tokens, NOTHING)),
            done_nats=keep(state.done_nats, nats),
            done_scores=done_scores,
        )

    # Each prompt starts with one live beam, the prompt itself; the other K - 1 score -inf until the first step.
    spread = jnp.repeat(jnp.arange(B), K)
    nothing = jnp.full((B, K), -jnp.inf)
    first = Beams(
        step=jnp.zeros((), jnp.int32),
        open=jnp.ones((B,), bool),
        logits=logits[spread],
        carried=take(carried, spread),
        tokens=jnp.zeros((B, K, max_tokens), jnp.int32),
        nats=nothing.at[:, 0].set(0.0),  # the prompt itself, once
        done_tokens=jnp.full((B, K, max_tokens), NOTHING, jnp.int32),
        done_nats=nothing,
        done_scores=nothing,
    )
    return jax.lax.while_loop(lambda state: state.open.any(), step, first).best()


@partial(jax.jit, static_argnames=("model", "beams", "stopping", "max_tokens"))
def decode(
    model,
    params,
    tokens: jax.Array,
    lengths: jax.Array,
    source: Mapping[str, jax.Array],
    is_example: jax.Array,
    limits: jax.Array,
    *,
    beams: int,
    length_penalty: float,
    stopping: str,
    max_tokens: int,
    end_id: int,
    vocabulary: int,
) -> jax.Array:
    """Decodes every row in one program, greedily or with `beams` beams: int32 [B, max_tokens], NOTHING after the end.

    tokens: prompts [B, P], where P + max_tokens - 1 is at most the context. lengths: of the prompts [B]. source: other
    inputs by name. is_example: bool [B], False for padding rows. A row ends with `end_id` or after `limits` [B] tokens.
    Under a mesh, rows and parameters may be sharded; the result is replicated.
    """
    rows, prompt_length = tokens.shape
    model = decoding_model(model)
    logits, carried = prefill(model, params, tokens, lengths, prompt_length + max_tokens - 1, source)
    params, carried = to_decoding_layout(params, carried)

    def unfinished(state):
        step, writing, *_ = state
        return (step < max_tokens) & writing.any()

    # The loop ends with the longest row; finished rows write NOTHING until then.
    def write(state):
        step, writing, written, logits, carried = state
        token = jnp.argmax(mask_unused_ids(logits, vocabulary), axis=-1).astype(jnp.int32)
        written = written.at[:, step].set(jnp.where(writing, token, NOTHING))
        writing &= (token != end_id) & (step + 1 < limits)
        return step + 1, writing, written, *decode_step(model, params, carried, token)

    if beams > 1:
        limits = jnp.where(is_example, limits, 1)  # padding is done at once
        how = {"beams": beams, "length_penalty": length_penalty, "normalisation": "gnmt", "stopping": stopping}
        ends = {"max_tokens": max_tokens, "end_id": end_id, "vocabulary": vocabulary}
        written, _ = search(model, params, logits, carried, limits, **how, **ends)
        written = jnp.where(is_example[:, None], written, NOTHING)
    else:
        nothing = jnp.full((rows, max_tokens), NOTHING, jnp.int32)
        _, _, written, _, _ = jax.lax.while_loop(unfinished, write, (0, is_example, nothing, logits, carried))
    return nn.with_logical_constraint(written, (None, None))

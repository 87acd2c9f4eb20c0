"""Beam search: the continuation of the best log-probability by length, in one program.

How a length counts: "gnmt" divides by ((5 + length) / 6) ** penalty (Wu et al. 2016, equation 14), as the original
Transformer has it, "length" by length ** penalty, as Hugging Face's library. When a search stops: "never" before no
unfinished beam could beat a finished one at any length; "best" once the best of the unfinished, at the length that it
has, beats none; "full" then, or once there are as many finished as beams. With the last two, which are that library's
early_stopping of False and True, a beam finishes only among the best as many continuations as there are beams.
"""

import math
from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from pretrain.decoding.reading import advance, begin_cached, for_tokens, known, reader, regroup, take
from pretrain.errors import UserError

NOTHING = -1  # in the place of ids that are not written
NORMALISATIONS = {"gnmt": lambda length: (5.0 + length) / 6.0, "length": lambda length: 1.0 * length}


def check_penalty(length_penalty: float, normalisation: str, longest: int) -> None:
    """Raises UserError where the scores of texts of up to `longest` tokens would be beyond float32."""
    if abs(length_penalty) * math.log10(NORMALISATIONS[normalisation](longest)) > 30:  # float32 ends at 1e38
        raise UserError(
            f"length_penalty={length_penalty:g} is beyond what float32 holds of texts of {longest} tokens; give a "
            "number nearer to 0, such as 0.6"
        )


@struct.dataclass
class Beams:
    """K unfinished and K finished continuations of each of B prompts; those that are not there score -inf."""

    step: jax.Array  # []
    open: jax.Array  # [B] bool: whether a better one may still be found
    logits: jax.Array  # [B K, V] of the next token
    carried: object  # for B K rows
    tokens: jax.Array  # [B, K, max_tokens]
    nats: jax.Array  # [B, K] log-probability so far
    done_tokens: jax.Array  # [B, K, max_tokens], NOTHING behind the last
    done_nats: jax.Array  # [B, K]
    done_scores: jax.Array  # [B, K]

    def best(self) -> tuple[jax.Array, jax.Array]:
        """The best finished one of each prompt: ids [B, max_tokens], and its log-probability [B]."""
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
    """`Beams.best` of a search from what was read: logits [B, V] of the first token, and what is carried.

    A continuation ends with `end_id`, or where it has `limits` [B] tokens, of at most `max_tokens`.
    """
    B, V = logits.shape
    K = beams
    rows, place = jnp.arange(B)[:, None], jnp.arange(max_tokens)[None, None]

    def score(nats, length):
        return nats / NORMALISATIONS[normalisation](length) ** length_penalty

    def hopeful(nats, done_scores, length):
        """Whether each prompt's best unfinished beam, after `length` tokens, may still beat a finished one."""
        if stopping == "never":  # its score at its best possible length
            hope = jnp.maximum(score(nats[:, 0], length + 1), score(nats[:, 0], limits))
        else:
            hope = score(nats[:, 0], length)
        full = (done_scores > -jnp.inf).all(1) & (stopping == "full")
        return (hope > done_scores.min(1)) & ~full

    def step(state):
        log_probabilities = known(jax.nn.log_softmax(state.logits, axis=-1), vocabulary)
        # Each beam can end in one way only, so of 2K candidates at least K go on; no beam gives more than those.
        each, token = jax.lax.top_k(log_probabilities, min(2 * K, V))
        candidates = (state.nats[:, :, None] + each.reshape(B, K, -1)).reshape(B, -1)
        nats, flat = jax.lax.top_k(candidates, min(2 * K, K * V))
        parent, token = flat // each.shape[-1], jnp.take_along_axis(token.reshape(B, -1), flat, axis=1)
        tokens = state.tokens[rows, parent].at[:, :, state.step].set(token)
        length = state.step + 1
        ended = (token == end_id) | (length >= limits[:, None])

        counts = ended & state.open[:, None]
        if stopping != "never":
            counts &= (jnp.arange(nats.shape[1]) < K)[None]
        scores = jnp.where(counts, score(nats, length), -jnp.inf)
        done_scores, kept = jax.lax.top_k(jnp.concatenate([state.done_scores, scores], 1), K)

        def keep(old, new):
            return jnp.concatenate([old, new], 1)[rows, kept]

        alive_nats, alive = jax.lax.top_k(jnp.where(ended, -jnp.inf, nats), K)
        reordered = regroup(state.carried, (rows * K + parent[rows, alive]).reshape(-1))
        next_logits, carried = advance(model, params, reordered, token[rows, alive].reshape(-1))
        return Beams(
            step=length,
            open=state.open & hopeful(alive_nats, done_scores, length) & (length < limits),
            logits=next_logits,
            carried=carried,
            tokens=tokens[rows, alive],
            nats=alive_nats,
            done_tokens=keep(state.done_tokens, jnp.where(place < length, tokens, NOTHING)),
            done_nats=keep(state.done_nats, nats),
            done_scores=done_scores,
        )

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
def beam_search(
    model,
    params,
    tokens: jax.Array,
    source: Mapping[str, jax.Array],
    there: jax.Array,
    limits: jax.Array,
    *,
    beams: int,
    length_penalty: float,
    stopping: str,
    max_tokens: int,
    end_id: int,
    vocabulary: int,
) -> jax.Array:
    """What each row writes, int32 [B, max_tokens], as `greedy` has it, by a search with so many beams."""
    rows, begun = tokens.shape
    model = reader(model)
    lengths = jnp.full((rows,), begun, jnp.int32)
    logits, carried = begin_cached(model, params, tokens, lengths, begun + max_tokens - 1, source)
    params, carried = for_tokens(params, carried)
    written, _ = search(
        model,
        params,
        logits,
        carried,
        jnp.where(there, limits, 1),  # padding is done at once
        beams=beams,
        max_tokens=max_tokens,
        length_penalty=length_penalty,
        normalisation="gnmt",
        stopping=stopping,
        end_id=end_id,
        vocabulary=vocabulary,
    )
    return nn.with_logical_constraint(jnp.where(there[:, None], written, NOTHING), (None, None))

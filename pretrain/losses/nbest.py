"""The best spans of rows by the scores of their ends, on the device."""

import jax
import jax.numpy as jnp

from models.transformer.task_head import LOWEST


def best_spans(start: jax.Array, end: jax.Array, begins: jax.Array, ends: jax.Array, width: int, number: int):
    """(scores, first and last tokens), [B, N] each, of the N best spans of a row, best first; N <= `number`.

    start, end: scores [B, T] of a span's first and last token; a span has their sum. begins, ends: bool [B, T], where
    one may begin and end. width: tokens of the longest span. Exact: no best start or end is chosen alone. Where rows
    have fewer spans, the others score below LOWEST / 2.
    """
    T = start.shape[1]
    width, number = min(width, T), min(number, T)
    start = jnp.where(begins, start, LOWEST)
    end = jnp.pad(jnp.where(ends, end, LOWEST), ((0, 0), (0, width - 1)), constant_values=LOWEST)
    # The best end of each start; the N best spans begin at the N starts whose best spans are best.
    reach = jax.lax.reduce_window(end, -jnp.inf, jax.lax.max, (1, width), (1, 1), "VALID")
    _, first = jax.lax.top_k(start + reach, number)
    last = first[:, :, None] + jnp.arange(width)[None, None]
    rows = jnp.arange(len(start))[:, None, None]
    # [B, N, W] instead of [B, T, W]
    pairs = start[rows, first[:, :, None]] + end[rows, last]
    scores, place = jax.lax.top_k(pairs.reshape(len(start), -1), number)
    first = jnp.take_along_axis(first, place // width, axis=1)
    return scores, first, first + place % width


def spans_of_starts(start: jax.Array, starts: jax.Array, end: jax.Array, ends: jax.Array, width: int, number: int):
    """As `best_spans`, of spans that begin at `starts` [B, K] and whose last token is scored given each, end [B, K, T].

    start [B, T], ends bool [B, T], as there. A beam search (Yang et al. 2019): the best start may be none of the K.
    """
    K, T = starts.shape[1], start.shape[1]
    width, number = min(width, T), min(number, K * min(width, T))
    end = jnp.pad(jnp.where(ends[:, None], end, LOWEST), ((0, 0), (0, 0), (0, width - 1)), constant_values=LOWEST)
    last = starts[:, :, None] + jnp.arange(width)[None, None]
    pairs = jnp.take_along_axis(start, starts, axis=1)[:, :, None] + jnp.take_along_axis(end, last, axis=2)
    scores, place = jax.lax.top_k(pairs.reshape(len(start), -1), number)
    first = jnp.take_along_axis(starts, place // width, axis=1)
    return scores, first, first + place % width

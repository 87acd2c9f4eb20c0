"""Hidden states of texts: of tokens, of words, or one vector a text."""

from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from pretrain.errors import UserError, nearest
from pretrain.losses.sentences import mean_pool
from pretrain.scoring.likelihood import put_rows
from pretrain.scoring.reader import Reader, Row, inputs_of

POOLS = ("mean", "first", "last", "word", "none")
BATCH = 32  # rows read at once


def hidden(
    reader: Reader,
    rows: Sequence[Row],
    layers: int | str | Sequence[int] | None,
    pool: str,
    stack: str = "",
    batch_size: int = BATCH,
) -> np.ndarray | list[np.ndarray]:
    """States of rows, float32: an array [N, D] of pooled ones, else a list of [T, D] or [W, D] for each row.

    Arguments as of `Run.hidden`; a sequence or a text as `layers` puts an axis [K] before D or T. None: what the heads
    of tasks read. Errors: UserError.
    """
    stack = reader.stack(stack)
    if pool not in POOLS:
        raise UserError(f"pool={pool}: unknown{nearest(pool, POOLS)}")
    chosen = _layers(reader.model, layers, stack)
    per_token = pool in ("word", "none")
    run = partial(_states, reader.model, layers=chosen, stack=stack, pool="none" if per_token else pool)
    found = [None] * len(rows)
    with reader.layout.scope():
        for numbers, batch in reader.batches(rows, batch_size):
            states = np.asarray(run(reader.variables, put_rows(reader.layout, batch)))
            for slot, number in enumerate(numbers):
                found[number] = states[slot]
                if per_token:
                    found[number] = _tokens(states[slot], rows[number], pool, stack)
    if isinstance(layers, int | None):
        found = [one[0] for one in found]
    return found if per_token else np.stack(found)


def embed(reader: Reader, rows: Sequence[Row], pool: str = "mean", normalize: bool = True, **options) -> np.ndarray:
    """One vector a row, float32 [N, D], of length 1 with `normalize`; options as of `hidden`."""
    if pool in ("word", "none"):
        raise UserError(f"pool={pool}: gives no vector of a text. Choose mean, first or last.")
    found = hidden(reader, rows, options.pop("layer", None), pool, **options)
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12) if normalize else found


@partial(jax.jit, static_argnames=("model", "layers", "stack", "pool"))
def _states(model, variables: Mapping, batch: Mapping, layers: tuple[int, ...] | None, stack: str, pool: str):
    """float32 [B, K, D], or [B, K, T, D] without a pool; `layers` None is the output of the stack."""
    inputs, segments = inputs_of(model, batch), batch["segments"]
    # Without the decoder, whose output nothing reads.
    if layers is None and stack == "encoder":
        states = model.apply(variables, inputs["inputs"], segments, method="encode")[None]
    else:
        # Other layers are kept only where they are asked for.
        output = model.apply(variables, **inputs, layers=layers is not None)
        states = output.source_layers if stack == "encoder" else output.layers
        states = output.hidden[None] if layers is None else jnp.stack([states[layer] for layer in layers])
    if pool == "mean":
        found = jax.vmap(mean_pool, (0, None), 1)(states, segments)
    else:
        found = jnp.swapaxes(states, 0, 1).astype(jnp.float32)
    if pool in ("first", "last"):
        last = jnp.maximum(jnp.sum(segments > 0, axis=1) - 1, 0)
        places = last if pool == "last" else jnp.zeros_like(last)
        found = jnp.take_along_axis(found, places[:, None, None, None], axis=2)[:, :, 0]
    # Replicated, so that every process can read them.
    return jax.lax.with_sharding_constraint(found, PartitionSpec())


def _tokens(states: np.ndarray, row: Row, pool: str, stack: str) -> np.ndarray:
    """States [K, T, D] of a row's tokens without padding, or [K, W, D], means over the tokens of words."""
    states = states[:, : len(row.ids)]
    if pool == "none":
        return states
    # A decoder reads each token a place later, and the last one first.
    states = np.roll(states, -1, axis=1) if stack == "decoder" else states
    words = np.full((len(states), len(row.words), states.shape[2]), np.nan, np.float32)
    for word, places in enumerate(row.tokens_of_words()):
        if len(places):
            words[:, word] = states[:, places].mean(axis=1)
    return words


def _layers(model, layers: int | str | Sequence[int] | None, stack: str) -> tuple[int, ...] | None:
    """Layers as numbers from 0, embeddings. Errors: UserError for those that the stack has not."""
    if layers is None:
        return None
    last = (model.decoder_layers or model.layers) if stack == "decoder" else model.layers
    given = (layers,) if isinstance(layers, int) else layers
    if isinstance(layers, str):
        # A word that is no number names no layer.
        found = [int(one) if one.lstrip("-").isdecimal() else last + 1 for one in layers.split(",")]
        given = range(last + 1) if layers == "all" else found
    if not all(-last - 1 <= layer <= last for layer in given):
        raise UserError(f"layers={layers}: not in the stack. Choose from 0 (embeddings) to {last}, or all.")
    return tuple(layer % (last + 1) for layer in given)

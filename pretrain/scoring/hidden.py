"""Hidden states of texts: of tokens, of words, or one vector a text."""

from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from pretrain.errors import UserError, nearest
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
        for batch in reader.batches(rows, batch_size):
            arrays = put_rows(reader.layout, batch.features | {"owners": batch.owners})
            states = np.asarray(run(reader.variables, arrays, batch.firsts, batch.lasts))
            for place, number in enumerate(batch.numbers):
                if per_token:
                    slot, first = divmod(int(batch.firsts[place]), batch.owners.shape[1])
                    own = states[slot, :, first : first + len(rows[number].ids)]
                    found[number] = _tokens(own, rows[number], pool, stack)
                else:
                    found[number] = states[place]
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
def _states(model, variables: Mapping, batch: Mapping, firsts, lasts, layers: tuple[int, ...] | None, stack, pool):
    """float32 [N, K, D] of the texts, or [B, K, T, D] without a pool; `layers` None is the output of the stack."""
    inputs, segments = inputs_of(model, batch), batch["segments"]
    # Without the decoder, whose output nothing reads.
    if layers is None and stack == "encoder":
        states = model.apply(variables, inputs["inputs"], segments, method="encode")[None]
    else:
        # Other layers are kept only where they are asked for.
        output = model.apply(variables, **inputs, layers=layers is not None)
        states = output.source_layers if stack == "encoder" else output.layers
        states = output.hidden[None] if layers is None else jnp.stack([states[layer] for layer in layers])
    states = states.astype(jnp.float32)
    if pool == "none":
        found = jnp.swapaxes(states, 0, 1)
    else:
        flat = states.reshape(len(states), -1, states.shape[-1])
        if pool == "mean":
            # A mean in bfloat16 would lose digits of long texts.
            own = jax.nn.one_hot(batch["owners"].reshape(-1), len(firsts))
            found = jnp.einsum("tn,ktd->nkd", own, flat, precision=jax.lax.Precision.HIGHEST)
            found /= jnp.maximum(own.sum(axis=0), 1)[:, None, None]
        else:
            found = jnp.swapaxes(flat[:, firsts if pool == "first" else lasts], 0, 1)
    # Replicated, so that every process can read them.
    return jax.lax.with_sharding_constraint(found, PartitionSpec())


def _tokens(states: np.ndarray, row: Row, pool: str, stack: str) -> np.ndarray:
    """States [K, T, D] of a text's tokens, or [K, W, D], means over the tokens of words."""
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

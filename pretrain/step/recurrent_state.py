"""The recurrent state of a model: what each row of a batch carries to the same row of the next batch.

Models declare it with `start`, as boxes that name its axes; {} for models without.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.layers.init import is_box


def start(model, rows: int):
    """The state at the start of a stream."""
    return nn.unbox(model.init_memory(rows))


def shapes(model, rows: int):
    """Shapes of `start`."""
    return jax.eval_shape(partial(start, model, rows))


def boxed(model, rows: int):
    """Shapes of `start`, in boxes that name their axes."""
    return jax.eval_shape(partial(model.init_memory, rows))


def axes(model):
    """The axis of rows of each array."""
    return jax.tree.map(lambda box: box.names.index("batch"), boxed(model, 1), is_leaf=is_box)


def reset_nonfinite(model, carried):
    """`carried` with rows that are not finite emptied, as at the start of an epoch.

    A row then carries the text right before its next tokens, or nothing.
    """
    if not jax.tree.leaves(carried):
        return carried
    row_axes = axes(model)

    def finite_rows(leaf, axis):
        return jnp.isfinite(leaf).all(axis=tuple(i for i in range(leaf.ndim) if i != axis))

    # A row is kept only if all of its arrays are finite: they belong to the same text.
    good = jnp.stack(jax.tree.leaves(jax.tree.map(finite_rows, carried, row_axes))).all(0)

    def keep(leaf, empty, axis):
        return jnp.where(good.reshape([-1 if i == axis else 1 for i in range(leaf.ndim)]), leaf, empty)

    return jax.tree.map(keep, carried, start(model, len(good)), row_axes)


def split(array, axis: int, parts: int):
    """`axis` in `parts`, on a new leading axis: [..., B, ...] -> [parts, ..., B / parts, ...]."""
    # Part k has rows k, k + parts, ...: rows of one device stay on it in every part.
    shape = array.shape
    return jnp.moveaxis(array.reshape(*shape[:axis], -1, parts, *shape[axis + 1 :]), axis + 1, 0)


def join(array, axis: int):
    """The inverse of `split`."""
    array = jnp.moveaxis(array, 0, axis + 1)
    return array.reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])

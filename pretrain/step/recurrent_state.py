"""What lanes of the batch carry from batch to batch, which a model declares by `start`: how it is split and joined."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.layers.parameter import is_box


def start(model, lanes: int):
    """What a model's lanes carry at the start of their streams; {} for models without."""
    return nn.unbox(model.start(lanes))


def shapes(model, lanes: int):
    """Shapes of what `start` gives."""
    return jax.eval_shape(partial(start, model, lanes))


def boxed(model, lanes: int):
    """Its shapes, each in a box that names its axes."""
    return jax.eval_shape(partial(model.start, lanes))


def axes(model):
    """Of each array the axis that lanes are on."""
    return jax.tree.map(lambda box: box.names.index("batch"), boxed(model, 1), is_leaf=is_box)


def finite(model, carried):
    """`carried` with nothing in the lanes where it is not finite: they start afresh, as they would in a new epoch.

    So what a lane remembers is always the text right before its next row, or nothing.
    """
    if not jax.tree.leaves(carried):
        return carried
    along = axes(model)

    def whole(leaf, axis):
        return jnp.isfinite(leaf).all(axis=tuple(i for i in range(leaf.ndim) if i != axis))

    good = jnp.stack(jax.tree.leaves(jax.tree.map(whole, carried, along))).all(0)

    def keep(leaf, empty, axis):
        return jnp.where(good.reshape([-1 if i == axis else 1 for i in range(leaf.ndim)]), leaf, empty)

    return jax.tree.map(keep, carried, start(model, len(good)), along)


def split(array, axis: int, parts: int):
    """`axis` in `parts`: part k has rows k, k + parts, ..., so every device works on its own rows in every part."""
    shape = array.shape
    return jnp.moveaxis(array.reshape(*shape[:axis], -1, parts, *shape[axis + 1 :]), axis + 1, 0)


def join(array, axis: int):
    """The inverse of `split`."""
    array = jnp.moveaxis(array, 0, axis + 1)
    return array.reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])

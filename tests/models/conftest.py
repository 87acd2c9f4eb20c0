"""A small float32 decoder, changed field by field, for the tests of this folder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import models
from configs.common import decoder


@pytest.fixture
def small():
    """`model, params = small(positions="rotary", ...)`: 2 layers, 16 wide, every parameter random.

    Biases and gains are moved too, so that one left out shows; matrices are drawn wide, because at the usual 0.02
    attention is uniform and hides mistakes. Drawn by NumPy: nothing to compile.
    """

    def make(seed=0, **changes):
        fields = decoder()
        fields.update(vocab_size=31, context=24, layers=2, width=16, heads=4, ff=40, dtype="float32")
        fields.update(changes)
        model = models.build(fields.to_dict())
        shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
        rng = np.random.default_rng(seed)

        def draw(path, leaf):
            middle = 1.0 if path[-1].key == "scale" else 0.0
            return jnp.asarray(middle + 0.3 * rng.standard_normal(leaf.shape), leaf.dtype)

        return model, jax.tree_util.tree_map_with_path(draw, shapes)

    return make

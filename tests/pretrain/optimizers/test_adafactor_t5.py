"""Adafactor on T5-small as its recipe builds it, beside Hugging Face's on the same tensors as T5 has them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import t5
from models.layers.init import path_name
from pretrain.step.train_spec import TrainSpec


@pytest.fixture(scope="module")
def spec():
    config = t5.get_config("small")
    config.train.batch_size = 8
    return TrainSpec.build(config, jax.devices()[:1])


def on_paper(name, shape):
    """T5's shape of one layer's tensor: [inputs, outputs] of a matrix; what is too small to factor is a vector."""
    if name.endswith(("_bias", "scale")):
        return (math.prod(shape),)
    return (-1, shape[-1]) if "output" in name else (shape[0], -1)


def test_adafactor_state_size_of_t5(spec):
    sizes = [leaf.size for leaf in jax.tree.leaves(spec.checkpoint_shapes(8).opt_state)]
    attention, feed_forward = 4 * (512 + 512), 2 * (512 + 2048)  # rows and columns of every matrix
    encoder, decoder = attention + feed_forward + 2 * 512, 2 * attention + feed_forward + 3 * 512
    whole = 2 * (8 * 32) + 2 * 512  # tables of distances and last norms
    # Whatever optax keeps of the moments that a tensor does not have is one number a layer, as are the counts.
    assert sum(size for size in sizes if size > 6) == 6 * (encoder + decoder) + whole + (32_128 + 512) == 184_704


@pytest.mark.oracle
@pytest.mark.slow
def test_adafactor_equals_hugging_face(spec):
    torch = pytest.importorskip("torch")
    adafactor = pytest.importorskip("transformers.optimization").Adafactor
    rng, shapes = np.random.default_rng(0), spec.checkpoint_shapes(8).params

    def draw(scale):
        """Rows and columns of very different size, so that what is factored matters."""

        def one(leaf):
            rows = np.exp(rng.normal(size=(*leaf.shape[:-1], 1)))
            return jnp.asarray(rng.standard_normal(leaf.shape, np.float32) * rows * scale, jnp.float32)

        return jax.tree.map(one, shapes)

    begun, gradients = draw(0.05), [draw(scale) for scale in (1e-3, 3e-3)]
    transformation = spec.optimizer
    params, state, update = begun, transformation.init(begun), jax.jit(transformation.update)
    for gradient in gradients:
        change, state = update(gradient, state, params)
        params = jax.tree.map(jnp.add, params, change)

    def theirs(name, param, *gradients):
        shape = on_paper(name, param.shape)
        tensor = torch.nn.Parameter(torch.tensor(np.asarray(param).reshape(shape)))
        optimizer = adafactor([tensor], lr=0.01, relative_step=False, scale_parameter=True)
        for gradient in gradients:
            tensor.grad = torch.tensor(np.asarray(gradient).reshape(shape))
            optimizer.step()
        return tensor.detach().numpy().reshape(param.shape)

    counted = 0
    rows = zip(*map(jax.tree_util.tree_leaves_with_path, (begun, params, *gradients)), strict=True)
    for (path, first), (_, last), *moved in rows:
        name, layers = path_name(path), "layers" in path_name(path)
        tensors = [a if layers else a[None] for a in (first, *(gradient for _, gradient in moved))]
        expected = np.stack([theirs(name, *tensor) for tensor in zip(*tensors, strict=True)]).reshape(first.shape)
        size = float(np.sqrt(np.mean(np.square(first))))
        changed = np.abs(expected - np.asarray(first)).mean()
        assert changed > 5e-3 * size, name  # by a rate of 0.01 of the parameter's own size, twice
        rounding = size * (3e-6 + 1e-11 * tensors[0][0].size)  # means of millions of numbers are summed in float32
        np.testing.assert_allclose(last, expected, rtol=3e-7, atol=rounding, err_msg=name)
        counted += first.size
    assert counted == 60_506_624  # all of T5-small's parameters

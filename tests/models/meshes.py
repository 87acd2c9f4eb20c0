"""A model on a mesh of virtual devices, and what its losses and gradients must be there: those of one device."""

import contextlib

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from configs.common import base


@contextlib.contextmanager
def over(model, sizes):
    """In it a mesh of `sizes` (data, fsdp, sequence, tensor) is set; gives what places parameters and rows on it."""
    mesh = jax.make_mesh(sizes, ("data", "fsdp", "sequence", "tensor"), axis_types=(AxisType.Auto,) * 4)
    rules = base().mesh.rules
    boxed = jax.eval_shape(lambda key: model.init(key, **model.example()), jax.random.key(0))
    shardings = nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, rules)
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), "sequence"))
    with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
        yield lambda params, *arrays: (jax.device_put(params, shardings), *jax.device_put(arrays, rows))


def assert_same(loss, gradient, expected_loss, expected):
    """Sums in another order, and no other difference."""
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    gradient, expected = jax.device_get((gradient, expected))
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6 * scale), gradient, expected)

"""Named axes on a mesh: the same values however parameters, rows and activations are split."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import AxisType, PartitionSpec

from configs.common import base

NAMES = {"vocab", "embed", "heads", "kv_heads", "head_size", "ff", "layers", "positions"}


def test_every_axis_of_every_parameter_is_named(small):
    model, _ = small(tied_head=False, head_bias=True, kv_heads=2, activation="gated_silu")
    boxed = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    specs, shapes = nn.get_partition_spec(boxed), nn.unbox(boxed)
    leaves = jax.tree.leaves(specs, is_leaf=lambda spec: isinstance(spec, PartitionSpec))
    for spec, shape in zip(leaves, jax.tree.leaves(shapes), strict=True):
        assert len(spec) == len(shape.shape) and set(spec) <= NAMES
    query = specs["params"]["layers"]["attention"]["query"]["kernel"]
    assert query == PartitionSpec("layers", "embed", "heads", "head_size")
    assert {name for spec in leaves for name in spec} == NAMES == {name for name, _ in base().mesh.rules[2:]}


def test_initialisation_is_the_same_on_a_mesh(small):
    model, _ = small(vocab_size=32)
    mesh = jax.make_mesh((2, 2, 1, 2), ("data", "fsdp", "sequence", "tensor"), axis_types=(AxisType.Auto,) * 4)
    rules = base().mesh.rules

    def init():
        return nn.unbox(model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))

    boxed = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    shardings = nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, rules)
    expected = jax.jit(init)()
    with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
        split = jax.jit(init, out_shardings=shardings)()
    assert split["params"]["tokens"].addressable_shards[0].data.shape == (16, 16)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), jax.device_get(split), jax.device_get(expected)
    )


def test_without_a_mesh_nothing_is_constrained(small):
    model, params = small()
    with nn.logical_axis_rules(base().mesh.rules):
        text = jax.jit(model.apply).lower(params, jnp.zeros((2, 4), jnp.int32)).as_text()
    assert "sharding_constraint" not in text

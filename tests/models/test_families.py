"""What holds for every family: a mesh changes nothing, and dropout draws by the row of the global batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import models
from configs import common

B, T, V = 8, 8, 32
POST = {"norm": "layer", "placement": "post", "final_norm": False, "ff_bias": True, "scale_scores": True}
POST |= {"scale_head": False}
FAMILIES = {
    "gpt": ("decoder", {}),
    "bert": ("encoder", {}),
    "t5": ("encoder_decoder", {"head_size": 6, "buckets": 8, "max_distance": 12}),
    "bart": ("encoder_decoder", POST | {"head_size": 6, "positions": "learned", "embedding_norm": True}),
    "transformer": ("encoder_decoder", POST | {"head_size": 6, "positions": "sinusoid", "scale_embedding": True}),
    "transformer_xl": ("recurrent", {"memory": 6}),
    "rotary": ("recurrent", {"memory": 16, "positions": "rotary"}),
    "xlnet": ("two_stream", {"memory": 5, "reuse": 4}),
}
SLOW = ("bart", "transformer", "transformer_xl", "xlnet")
each_family = pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in FAMILIES]
)


def build(family, rate=0.0):
    """The family's small model, parameters drawn wide, and a batch with padding."""
    kind, changes = FAMILIES[family]
    fields = getattr(common, kind)().to_dict() | {"vocab_size": V, "context": 16, "layers": 2, "width": 16}
    fields |= {"heads": 4, "ff": 24, "dtype": "float32", **changes}
    fields |= {name: rate for name in fields if name.startswith("dropout")}
    model, rng = models.build(fields), np.random.default_rng(0)
    boxed = jax.eval_shape(lambda key: model.init(key, **model.example()), jax.random.key(0))
    params = jax.tree.map(lambda leaf: jnp.asarray(0.2 * rng.standard_normal(leaf.shape), leaf.dtype), nn.unbox(boxed))
    tokens, inputs = (jnp.asarray(rng.integers(0, V, (B, length))) for length in (T, 12))
    real = jnp.asarray(np.arange(T) < rng.integers(3, T + 1, (B, 1)), jnp.int32)
    batch = {"tokens": tokens, "inputs": inputs, "input_segments": jnp.ones_like(inputs), "segments": real}
    return model, boxed, params, {name: value for name, value in batch.items() if name in model.inputs}


@each_family
@pytest.mark.parametrize("sizes", [pytest.param((8, 1, 1, 1), marks=pytest.mark.slow), (1, 2, 2, 2)], ids=str)
def test_mesh_changes_nothing(family, sizes):
    """Loss, gradients and memory of two rows of each lane."""
    model, boxed, params, batch = build(family)

    def run(params, batch):
        carried = nn.unbox(model.init_memory(B))
        if carried:
            carried = model.apply(params, **batch, carried=carried).carried

        def loss(params):
            output = model.apply(params, **batch, carried=carried)
            return jnp.square(model.apply(params, output.hidden, method="logits")).mean(), output.carried

        return jax.value_and_grad(loss, has_aux=True)(params)

    expected = jax.jit(run)(params, batch)
    mesh = jax.make_mesh(sizes, ("data", "fsdp", "sequence", "tensor"), axis_types=(AxisType.Auto,) * 4)
    rules = common.base().mesh.rules
    shardings = nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, rules)
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), "sequence"))
    with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
        lowered = jax.jit(run).lower(*(placed := (jax.device_put(params, shardings), jax.device_put(batch, rows))))
        assert "sharding_constraint" in lowered.as_text()
        found = lowered.compile()(*placed)
    # The same sums in another order. Some gradients (the key's bias) are 0 but for rounding.
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected[1]))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(jax.device_get(a), b, rtol=1e-4, atol=2e-6 * max(1, scale))


@each_family
def test_dropout_draws_by_row(family):
    """However a batch is cut, and in whatever order its rows come, each row's dropout is the same."""
    model, _, params, batch = build(family, 0.3)
    batch, row = jax.tree.map(lambda x: jnp.tile(x[:1], (6, 1)), batch), jnp.array([4, 0, 5, 1, 3, 2])

    @jax.jit
    def run(batch, row):
        options = {"row": row, "train": True, "rngs": {"dropout": jax.random.key(0)}}
        return model.apply(params, **batch, **options).hidden

    whole = run(batch, row)
    for part in (slice(0, 3), slice(3, 6)):
        found = run(jax.tree.map(lambda x, part=part: x[part], batch), row[part])
        np.testing.assert_allclose(found, whole[part], atol=1e-5)
    np.testing.assert_allclose(whole[jnp.argsort(row)], run(batch, jnp.arange(6)), atol=1e-5)
    quiet = model.apply(params, **batch).hidden
    for i in range(1, 6):  # rows of the same tokens, which draw apart
        assert np.abs(whole[0] - whole[i])[:3].max() > 1e-2 and np.abs(whole[i] - quiet[i]).max() > 1e-2

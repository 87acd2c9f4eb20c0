"""What models declare of their parameters is what their names say."""

import jax
import jax.numpy as jnp
import optax
import pytest
from every_recipe import MOSTLY, config_of
from flax import linen as nn
from named import named

from models.layers.init import path_name
from pretrain.optimizers.transforms import Role, map_roles, roles
from pretrain.step.train_spec import TrainSpec


@pytest.mark.parametrize(("name", "variant"), MOSTLY)
def test_roles_of_every_recipe_and_variant(name, variant):
    spec = TrainSpec.build_abstract(config_of(name, variant))
    found = jax.tree.map(lambda role: (role.stacked, role.inputs), roles(spec.parameters, spec.model))
    known = jax.tree.map(lambda role: (role.stacked, role.inputs), named(nn.unbox(spec.parameters)))
    assert found == known


# Parameters that are not below all layers, of families whose unstacked parameters differ most.
ABOVE = {
    "gpt2": ({"final_norm"}, set()),
    "bert": (set(), {"head_bias", "transform", "transform_norm", "pooler", "pairs"}),
    "electra": (set(), {"generator/head_bias", "generator/transform", "generator/transform_norm", "judge", "verdict"}),
    "t5": ({"encoder_norm", "decoder_norm"}, set()),
    "xlnet": (set(), {"head_bias"}),
    "transformer_xl": (set(), {"vocabulary/word_bias"}),
}


@pytest.mark.parametrize("name", ABOVE)
def test_roles_order_of_layers(name):
    spec = TrainSpec.build_abstract(config_of(name, ""))
    found = {
        path_name(path): role for path, role in jax.tree_util.tree_leaves_with_path(roles(spec.parameters, spec.model))
    }
    depth = spec.model.layers
    for path, role in found.items():
        parts, (norms, heads) = {path, path.rpartition("/")[0]}, ABOVE[name]
        assert role.head == bool(parts & heads), path
        if role.stacked:
            assert role.above == tuple(range(depth - 1, -1, -1)), path
        else:
            assert role.above == ((0,) if parts & (norms | heads) else (depth,)), path


def test_map_roles_keeps_masked_nodes():
    known = {"a": Role(False, 1), "b": Role(True, 0)}
    tree = {"a": jnp.ones(3), "b": optax.MaskedNode()}
    found = map_roles(lambda role, leaf, other: leaf * role.inputs + other, known, tree, tree)
    assert found["b"] == optax.MaskedNode() and (found["a"] == 2).all()

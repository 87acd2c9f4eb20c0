"""What models declare of their parameters is what their names say."""

import jax
import jax.numpy as jnp
import optax
import pytest
from every_recipe import MOSTLY, config_of
from flax import linen as nn
from named import named

import models
from configs import common
from models.build import KINDS
from pretrain.optimizers.transforms import Role, map_roles, roles
from pretrain.step.train_spec import TrainSpec
from pretrain.step.train_step import parameters_of


@pytest.mark.parametrize(("name", "variant"), MOSTLY)
def test_roles_of_every_recipe_and_variant(name, variant):
    parameters = TrainSpec.build_abstract(config_of(name, variant)).parameters
    assert roles(parameters) == named(nn.unbox(parameters))


@pytest.mark.parametrize("kind", KINDS)
def test_roles_of_every_kind_of_model(kind):
    model = models.build(getattr(common, kind)().to_dict())
    parameters = parameters_of(model)
    assert roles(parameters) == named(nn.unbox(parameters))


def test_map_roles_keeps_masked_nodes():
    known = {"a": Role(False, 1), "b": Role(True, 0)}
    tree = {"a": jnp.ones(3), "b": optax.MaskedNode()}
    found = map_roles(lambda role, leaf, other: leaf * role.inputs + other, known, tree, tree)
    assert found["b"] == optax.MaskedNode() and (found["a"] == 2).all()


def test_parameter_without_role():
    """One that was made without `models.layers.init` would never decay, and nobody would know."""
    bare = nn.LogicallyPartitioned(jax.ShapeDtypeStruct((2, 3), jnp.float32), ("vocab", "embed"))
    with pytest.raises(TypeError, match="head"):
        roles({"head": bare})

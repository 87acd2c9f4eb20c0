"""What models declare of their parameters is what their names say."""

import jax.numpy as jnp
import optax
import pytest
from every_recipe import MOSTLY, config_of
from flax import linen as nn
from named import named

from pretrain.optimizers.transforms import Role, map_roles, roles
from pretrain.step.train_spec import TrainSpec


@pytest.mark.parametrize(("name", "variant"), MOSTLY)
def test_roles_of_every_recipe_and_variant(name, variant):
    parameters = TrainSpec.build_abstract(config_of(name, variant)).parameters
    assert roles(parameters) == named(nn.unbox(parameters))


def test_map_roles_keeps_masked_nodes():
    known = {"a": Role(False, 1), "b": Role(True, 0)}
    tree = {"a": jnp.ones(3), "b": optax.MaskedNode()}
    found = map_roles(lambda role, leaf, other: leaf * role.inputs + other, known, tree, tree)
    assert found["b"] == optax.MaskedNode() and (found["a"] == 2).all()

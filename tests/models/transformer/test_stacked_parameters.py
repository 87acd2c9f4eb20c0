"""A stack's parameters: made where a model is initialised, and nowhere traced again; those of another are refused."""

import jax
import jax.numpy as jnp
import pytest
from flax.errors import ScopeParamShapeError

from models.transformer.layer_stack import Stack

TOKENS = jnp.zeros((1, 4), jnp.int32)


def test_a_model_that_is_applied_does_not_make_its_stack_again(small, monkeypatch):
    model, params = small()
    monkeypatch.setattr(Stack, "init", None)
    assert jax.eval_shape(model.apply, params, TOKENS).hidden.shape == (1, 4, 16)


@pytest.mark.parametrize("scan", [True, False])
def test_stacks_of_another_number_of_layers_are_refused(small, scan):
    model, _ = small(scan=scan)
    _, deeper = small(layers=3)
    with pytest.raises((TypeError, ValueError), match=r"reshape|longer"):
        jax.eval_shape(model.apply, deeper, TOKENS)


@pytest.mark.parametrize("scan", [True, False])
def test_stacks_of_another_width_are_refused(small, scan):
    model, _ = small(scan=scan)
    _, wider = small(ff=48)
    with pytest.raises(ScopeParamShapeError):
        jax.eval_shape(model.apply, wider, TOKENS)

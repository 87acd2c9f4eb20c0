"""Parameters stored in 16 bits (`config.model.param_dtype`): what learns from them is the same, and keeps its types."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from updates import BATCH, LENGTH, ragged_batch, small, small_config

from pretrain.step.train_spec import TrainSpec
from pretrain.step.train_step import gradients, init_state, state_shapes, train_step

STORED = {"model__param_dtype": "bfloat16", "model__dtype": "bfloat16"}
CONFIGS = {"causal": small_config(train__accumulate=2, **STORED)}
CONFIGS |= {kind: small(kind, **STORED) for kind in ("masked", "spans", "replaced")}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "causal" else pytest.mark.slow) for name in CONFIGS]
)
def test_step_keeps_dtypes(name):
    """Else the second step would be another program, and no checkpoint of it could be restored."""
    spec = TrainSpec.build_abstract(CONFIGS[name])
    before = state_shapes(spec, BATCH)
    batch = spec.batch_shapes(BATCH, LENGTH)
    after, _ = jax.eval_shape(lambda state, batch: train_step(spec, state, batch), before, batch)
    of = [[(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)] for state in (before, after)]
    assert of[0] == of[1]
    assert {leaf.dtype for leaf in jax.tree.leaves(before.params)} == {jnp.dtype("bfloat16")}


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_gradient_of_bfloat16_parameters(tied):
    kinds = ("bfloat16", "float32")
    stored, wide = (
        TrainSpec.build_abstract(small_config(model__tied_head=tied, model__layers=1, model__param_dtype=kind))
        for kind in kinds
    )
    params, batch = init_state(stored, 0, BATCH).params, ragged_batch()
    counts, key, found = stored.objective.denominators(batch), jax.random.key(0), []
    for spec in (stored, wide):
        same = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), params, spec.param_shapes)
        found.append(jax.jit(lambda own, spec=spec: gradients(spec, own, batch, {}, key, counts)[0])(same))
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(found[1]))
    for ours, theirs in zip(*map(jax.tree.leaves, found), strict=True):
        allowed = 2**-6 * float(jnp.abs(theirs).max()) + 1e-6 * largest  # the bias of keys has none but rounding
        np.testing.assert_allclose(np.asarray(ours, np.float32), theirs, atol=allowed)

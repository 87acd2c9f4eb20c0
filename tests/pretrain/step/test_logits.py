"""One definition of the logits: what training minimises is the cross-entropy of what `generate` samples from."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from configs import common
from pretrain.losses.objective import BoundModel
from pretrain.step.train_spec import TrainSpec
from pretrain.step.train_step import evaluate_step

B, T, V = 2, 12, 23
SMALL = {"vocab_size": V, "context": T, "layers": 1, "width": 16, "heads": 2, "ff": 24, "dtype": "float32"}
SMALL |= {"scan": False}


CLUSTERS = {"cutoffs": (5, 11), "divisor": 2}
CASES = [
    ("decoder", {"tied_head": True, "head_bias": False, "start_row": False}),
    ("decoder", {"tied_head": True, "head_bias": True, "start_row": True}),
    ("decoder", {"tied_head": False, "head_bias": True, "start_row": True}),
    ("decoder", {"placement": "replace", "norm": "rms", "positions": "sinusoid", "start_row": True}),
    ("recurrent", {"cutoffs": (), "embed": 8, "tied_words": False}),
    ("recurrent", CLUSTERS | {"shared_projections": "all", "tied_words": True, "embed": 8}),
    ("recurrent", CLUSTERS | {"shared_projections": "tails", "tied_words": True, "project_always": True}),
    ("recurrent", CLUSTERS | {"shared_projections": "none", "tied_words": False}),
]


def made(kind, evaluated=(), **fields):
    """A spec, and parameters drawn wide so that no part of the model is all but silent."""
    config = common.base()
    config.model = common.MODELS[kind]()
    config.model.update(SMALL | fields)
    config.evaluate.model.update(dict(evaluated))
    if kind == "recurrent":
        config.model.memory, config.data.layout = T, "stream"
    spec = TrainSpec.build_abstract(config)
    shapes = nn.unbox(jax.eval_shape(spec.model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))["params"]
    rng = np.random.default_rng(0)
    return spec, jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, 0.4, leaf.shape), jnp.float32), shapes)


def batch():
    """Every word is read and is a target, so that every parameter of its cluster has a gradient."""
    rng = np.random.default_rng(1)
    tokens, targets = (rng.permutation(np.arange(B * T) % V).reshape(B, T).astype(np.int32) for _ in range(2))
    return {
        "tokens": tokens,
        "targets": targets,
        "weights": rng.integers(1, 4, (B, T)).astype(np.float32),
        "positions": np.tile(np.arange(T, dtype=np.int32), (B, 1)),
        "segments": np.ones((B, T), np.int32),
        "row": np.arange(B, dtype=np.int32),
        "reset": np.zeros(B, bool),
    }


@functools.partial(jax.jit, static_argnums=0)
def both(spec, params):
    """Value and gradient of the loss that training minimises, and of the cross-entropy of the logits."""
    rows = batch()

    def applied(params):
        return BoundModel(spec.model, params, spec.inputs)

    def by_loss(params):
        sums, _ = spec.objective.score(applied(params), rows, {}, None)
        return sums[next(iter(sums))], sums["loss"]

    def by_logits(params):
        hidden, _ = applied(params)(rows, {}, None)
        log_p = jax.nn.log_softmax(spec.model.apply({"params": params}, hidden, method="logits"))
        return -(rows["weights"] * jnp.take_along_axis(log_p, rows["targets"][..., None], -1)[..., 0]).sum()

    return jax.value_and_grad(by_loss, has_aux=True)(params), jax.value_and_grad(by_logits)(params)


@pytest.mark.parametrize(("kind", "fields"), CASES, ids=str)
def test_loss_is_cross_entropy_of_logits(kind, fields):
    ((objective, nll), trained), (expected, sampled) = both(*made(kind, **fields))
    np.testing.assert_allclose([objective, nll], [expected] * 2, rtol=1e-5)
    for (path, ours), theirs in zip(
        jax.tree_util.tree_leaves_with_path(trained), jax.tree.leaves(sampled), strict=True
    ):
        # float32 sums of a few hundred terms, in another order
        np.testing.assert_allclose(ours, theirs, atol=1e-4 * max(1.0, np.abs(theirs).max()), err_msg=str(path))
        assert np.abs(ours).max() > 0, path


def test_evaluation_has_its_own_dtype():
    """A model trained in bfloat16 is scored in float32 where evaluation says so, to the bit."""
    nll = {}
    for trained, evaluated in (("bfloat16", {}), ("bfloat16", {"dtype": "float32"}), ("float32", {})):
        spec, params = made("recurrent", evaluated, dtype=trained)
        carried = nn.unbox(spec.eval_model.init_memory(B))
        sums, _ = jax.jit(evaluate_step, static_argnums=0)(spec, params, batch(), carried)
        nll[trained, bool(evaluated)] = float(sums["sums"]["loss"])
    assert nll["bfloat16", True] == nll["float32", False] != nll["bfloat16", False]

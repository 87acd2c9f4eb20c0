"""One update is one update: on one device or eight, jit or pmap, in one part or several, scanned or not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import common
from pretrain.recipe import make_recipe
from pretrain.engine import make_engine

BATCH, LENGTH = 8, 16


def small_config(**changes):
    config = common.base()
    config.model.update(
        vocab_size=64, context=LENGTH, layers=2, width=32, heads=4, ff=64, dtype="float32", attention_path="xla"
    )
    config.train.update(steps=10, batch_size=BATCH)
    config.optimizer.update(clip=1.0, weight_decay=0.1)
    config.schedule.update(warmup=2, peak=1e-2)
    config.mesh.data = 1
    for key, value in changes.items():
        section, name = key.split("__")
        config[section][name] = value
    return config


def ragged_batch(seed: int = 0):
    """Rows of very different length, so that a mean of means is not the mean."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, LENGTH + 1, BATCH)
    lengths[0] = 1
    real = np.arange(LENGTH)[None] < lengths[:, None]
    tokens = rng.integers(0, 64, (BATCH, LENGTH)).astype(np.int32)
    return {
        "tokens": tokens,
        "targets": np.roll(tokens, -1, 1),
        "weights": real.astype(np.float32),
        "segments": real.astype(np.int32),
        "positions": np.tile(np.arange(LENGTH, dtype=np.int32), (BATCH, 1)),
    }


def run(config, devices: int, updates: int = 3):
    """(losses, gradient norms, final parameters) of a few updates."""
    engine = make_engine(make_recipe(config), config, jax.devices()[:devices])
    state = engine.init(0, BATCH)
    history = []
    for n in range(updates):
        state, metrics = engine.step(state, engine.put(ragged_batch(n), BATCH))
        history.append([float(metrics["nll"] / metrics["tokens"]), float(metrics["grad_norm"])])
    return np.array(history), jax.tree.map(np.asarray, engine.saved(state).params)


@pytest.fixture(scope="module")
def reference():
    return run(small_config(), 1)


def assert_same_run(result, reference):
    history, params = result
    np.testing.assert_allclose(history, reference[0], rtol=2e-5)  # float32, sums in another order
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(reference[1]), strict=True):
        # Adam divides by the root of tiny second moments, which magnifies rounding in near-zero gradients.
        np.testing.assert_allclose(a, b, atol=2e-4)


MESHES = {
    "data": {"mesh__data": 8},
    "fsdp": {"mesh__fsdp": 8},
    "tensor": {"mesh__tensor": 4, "mesh__data": 2},
    "mixed": {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2},
    "sequence": {"mesh__sequence": 2, "mesh__data": 4},
    "pmap": {"train__backend": "pmap"},
    "accumulated on fsdp": {"mesh__fsdp": 4, "mesh__data": 1, "train__accumulate": 2},
}


@pytest.mark.parametrize("name", MESHES)
def test_eight_devices_equal_one(name, reference):
    changes = MESHES[name]
    devices = 4 if "accumulated" in name else 8
    assert_same_run(run(small_config(**changes), devices), reference)


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_accumulation_equals_one_batch(parts, reference):
    assert_same_run(run(small_config(train__accumulate=parts), 1), reference)


@pytest.mark.parametrize("changes", [{"model__scan": False}, {"model__remat": "full"}], ids=["unrolled", "remat"])
def test_compilation_choices_change_nothing(changes, reference):
    assert_same_run(run(small_config(**changes), 1), reference)


def test_every_gradient_is_the_same_on_eight_devices():
    """Gradients themselves, not only what an optimiser makes of them: plain SGD with rate 1 shows them."""
    changes = {"optimizer__name": "sgd", "optimizer__clip": 0.0, "optimizer__b1": 0.0, "optimizer__weight_decay": 0.0}
    changes |= {"schedule__kind": "constant", "schedule__warmup": 0, "schedule__peak": 1.0}
    _, one = run(small_config(**changes), 1, updates=1)
    for mesh in MESHES.values():
        if "train__accumulate" in mesh:
            continue
        _, eight = run(small_config(**changes, **mesh), 8, updates=1)
        for a, b in zip(jax.tree.leaves(eight), jax.tree.leaves(one), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6)


def test_optimizer_state_is_sharded_like_its_parameters():
    config = small_config(mesh__fsdp=4, mesh__tensor=2)
    engine = make_engine(make_recipe(config), config)
    shapes = engine.shapes(0, BATCH)
    moments = shapes.opt_state[1][0]
    for p, m in zip(jax.tree.leaves(shapes.params), jax.tree.leaves(moments.mu), strict=True):
        assert p.sharding == m.sharding
    split = [p for p in jax.tree.leaves(shapes.params) if not p.sharding.is_fully_replicated]
    assert len(split) >= 8


def test_a_bad_update_changes_nothing_but_the_counters():
    config = small_config()
    engine = make_engine(make_recipe(config), config, jax.devices()[:1])
    state = engine.init(0, BATCH)
    state, _ = engine.step(state, engine.put(ragged_batch(), BATCH))
    before = jax.tree.map(np.asarray, {"params": state.params, "opt": state.opt_state})
    poisoned = ragged_batch() | {"weights": np.full((BATCH, LENGTH), np.inf, np.float32)}
    state, metrics = engine.step(state, engine.put(poisoned, BATCH))
    after = jax.tree.map(np.asarray, {"params": state.params, "opt": state.opt_state})
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert (int(state.step), int(state.bad_total), int(metrics["bad_in_row"])) == (2, 1, 1)
    state, metrics = engine.step(state, engine.put(ragged_batch(), BATCH))
    assert (int(state.bad_total), int(metrics["bad_in_row"])) == (1, 0)
    assert jnp.isfinite(metrics["nll"])

"""One update is one update: on one device or eight, jit or pmap, in one part or several, scanned or not."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import ROOT, mostly
from updates import BATCH, GRADIENT, LENGTH, assert_same_run, ragged_batch, small_config

from pretrain.parallel import reduce_scatter
from pretrain.step.checks import batch_sizes
from pretrain.step.train_spec import TrainSpec


@functools.cache
def initial(plain: bool):
    """The state before the first update, on the host; `plain` for gradient descent, else AdamW."""
    config = small_config(**GRADIENT if plain else {})
    return jax.tree.map(np.asarray, TrainSpec.build(config, jax.devices()[:1]).init(0, BATCH))


def run(config, devices: int, updates: int = 2):
    """(losses and gradient norms, final parameters) of a few updates."""
    spec = TrainSpec.build(config, jax.devices()[:devices])
    shapes = spec.checkpoint_shapes(BATCH)
    placed = jax.tree.map(lambda a, s: jax.device_put(a, s.sharding), initial(config.optimizer.name == "sgd"), shapes)
    state = spec.from_checkpoint(placed)
    history = []
    for n in range(updates):
        state, metrics = spec.train_step(state, spec.put(ragged_batch(n), BATCH))
        history.append([float(metrics["sums"]["loss"] / metrics["counts"]["loss"]), float(metrics["grad_norm"])])
    return np.array(history), jax.tree.map(np.asarray, spec.to_checkpoint(state).params)


@pytest.fixture(scope="module")
def reference():
    return run(small_config(**GRADIENT), 1)


MESHES = {
    "data": {"mesh__data": 8},
    "fsdp": {"mesh__data": 1, "mesh__fsdp": 8},
    "tensor": {"mesh__data": 2, "mesh__tensor": 4},
    "mixed": {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2},
    "sequence": {"mesh__data": 4, "mesh__sequence": 2},
    "pmap": {"train__backend": "pmap"},
    "accumulated": {"mesh__data": 1, "mesh__fsdp": 4, "train__accumulate": 2},
}


@pytest.mark.parametrize("name", mostly(MESHES, *MESHES.keys() - {"mixed", "pmap", "accumulated"}))
def test_mesh_equals_one_device(name, reference):
    changes = MESHES[name]
    assert_same_run(run(small_config(**GRADIENT, **changes), 4 if name == "accumulated" else 8), reference)


@pytest.mark.slow
def test_accumulation_equals_one_batch(reference):
    assert_same_run(run(small_config(**GRADIENT, train__accumulate=4), 1), reference)


def test_reduce_scatter_along_two_directions(monkeypatch, reference):
    monkeypatch.setattr(reduce_scatter, "directions", lambda devices: (2, 2) if len(devices) == 4 else (len(devices),))
    assert_same_run(run(small_config(**GRADIENT, mesh__fsdp=4, mesh__tensor=2), 8), reference)


DROPOUT = {f"model__dropout_{site}": 0.2 for site in ("embedding", "attention", "residual", "ff")}


@pytest.fixture(scope="module")
def dropped(reference):
    history, params = run(small_config(**GRADIENT, **DROPOUT), 1)
    assert np.abs(history - reference[0]).max() > 1e-3
    return history, params


@pytest.mark.parametrize("name", mostly(["mixed", "sequence", "pmap", "accumulated"], "mixed", "pmap"))
def test_dropout_is_the_same_on_every_mesh(name, dropped):
    result = run(small_config(**GRADIENT, **DROPOUT, **MESHES[name]), 4 if name == "accumulated" else 8)
    assert_same_run(result, dropped)


GROWING = {"train__batch_size": 3 * BATCH, "train__batch_ramp": (BATCH, 16, 9)}


def grown(devices, **changes):
    """As `run`, of batches of 8, 8 and 24 rows."""
    config = small_config(**GRADIENT, **DROPOUT, **GROWING, **changes)
    spec = TrainSpec.build(config, jax.devices()[:devices])
    shapes = spec.checkpoint_shapes(BATCH)
    placed = jax.tree.map(lambda a, s: jax.device_put(a, s.sharding), initial(True), shapes)
    state, history = spec.from_checkpoint(placed), []
    for n, size in enumerate(batch_sizes(config).size(n) for n in range(3)):
        many = [ragged_batch(10 * n + part) for part in range(size // BATCH)]
        batch = jax.tree.map(lambda *arrays: np.concatenate(arrays), *many) | {"row": np.arange(size, dtype=np.int32)}
        state, metrics = spec.train_step(state, spec.put(batch, size))
        history.append([float(metrics["sums"]["loss"] / metrics["counts"]["loss"]), float(metrics["grad_norm"])])
    return np.array(history), jax.tree.map(np.asarray, spec.to_checkpoint(state).params)


@pytest.mark.slow
def test_growing_batches_on_every_mesh():
    reference = grown(1)
    assert_same_run(grown(1, train__accumulate=6), reference)
    assert_same_run(grown(4, train__accumulate=3, mesh__data=2, mesh__fsdp=2), reference)
    assert_same_run(grown(4, train__accumulate=3, train__backend="pmap"), reference)


def test_parts_of_a_growing_batch():
    """No larger than those of a full batch, and divided by the devices."""

    def parts(devices, sizes, **changes):
        config = small_config(**GROWING | {"train__batch_size": 24} | changes)
        spec = TrainSpec.build(config, jax.devices()[:devices])
        shards = devices if config.train.backend == "pmap" else 1  # where each device sees its own rows
        return [spec.parts(size // shards) for size in sizes]

    assert parts(1, (8, 16, 24)) == [1, 1, 1]
    assert parts(1, (8, 20, 24), train__accumulate=6) == [2, 5, 6]
    assert parts(4, (8, 12, 20, 24), train__accumulate=3, mesh__data=4) == [1, 3, 5, 3]
    assert parts(4, (8, 12, 20, 24), train__accumulate=3, train__backend="pmap") == [1, 3, 5, 3]


def test_adamw_on_a_mixed_mesh_equals_one_device():
    mixed = run(small_config(**MESHES["mixed"]), 8)
    # Adam divides by the root of tiny second moments, which magnifies rounding in near-zero gradients.
    assert_same_run(mixed, run(small_config(), 1), atol=2e-4)


INITIAL = """if True:
    import jax, numpy, test_step

    def initial(devices, **changes):
        config = test_step.small_config(**test_step.ODD, **changes)
        spec = test_step.TrainSpec.build(config, jax.devices()[:devices])
        return jax.tree.leaves(jax.tree.map(numpy.asarray, spec.to_checkpoint(spec.init(0, 1)).params))

    one = initial(1)
    print(sum(leaf.size for leaf in one))
    for devices, mesh in (7, {"mesh__fsdp": 7}), (6, {"mesh__tensor": 2, "mesh__fsdp": 3}):
        same = [numpy.array_equal(a, b) for a, b in zip(one, initial(devices, **mesh), strict=True)]
        assert all(same), (mesh, same)
"""
ODD = {"model__vocab_size": 1001, "model__width": 42, "model__heads": 6, "model__ff": 126, "model__norm_init_std": 0.02}


@pytest.mark.slow
def test_initial_parameters_on_every_mesh():
    """To the last bit, as users compile: without the fusion emitters, as tests are quick, shapes decide on rounding."""
    env = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[:2])),
    }
    done = subprocess.run(
        [sys.executable, "-c", INITIAL], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 70_000


def test_optimizer_state_is_sharded_like_its_parameters():
    config = small_config(mesh__fsdp=4, mesh__tensor=2)
    spec = TrainSpec.build(config)
    shapes = spec.checkpoint_shapes(BATCH)
    moments = shapes.opt_state[1][0]
    for p, m in zip(jax.tree.leaves(shapes.params), jax.tree.leaves(moments.mu), strict=True):
        assert p.sharding == m.sharding
    split = [p for p in jax.tree.leaves(shapes.params) if not p.sharding.is_fully_replicated]
    assert len(split) >= 8


def test_bad_step_changes_only_counters():
    config = small_config()
    spec = TrainSpec.build(config, jax.devices()[:1])
    state = spec.init(0, BATCH)
    state, _ = spec.train_step(state, spec.put(ragged_batch(), BATCH))
    before = jax.tree.map(np.asarray, {"params": state.params, "opt": state.opt_state})
    poisoned = ragged_batch() | {"weights": np.full((BATCH, LENGTH), np.inf, np.float32)}
    state, metrics = spec.train_step(state, spec.put(poisoned, BATCH))
    after = jax.tree.map(np.asarray, {"params": state.params, "opt": state.opt_state})
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert (int(state.step), int(state.bad_total), int(metrics["bad_in_row"])) == (2, 1, 1)
    state, metrics = spec.train_step(state, spec.put(ragged_batch(), BATCH))
    assert (int(state.bad_total), int(metrics["bad_in_row"])) == (1, 0)
    assert jnp.isfinite(metrics["sums"]["loss"])


@pytest.mark.slow
def test_logged_learning_rate_is_applied():
    """Of plain gradient descent: an update is the gradient times it. A skipped update does not move the schedule."""
    config = small_config(**GRADIENT | {"schedule__warmup": 8, "schedule__peak": 8e-3}, mesh__data=2)
    spec = TrainSpec.build(config, jax.devices()[:2])
    state, rates = spec.init(0, BATCH), []
    for update in range(4):
        before = jax.tree.map(np.asarray, spec.to_checkpoint(state).params)
        batch = ragged_batch()
        if update == 1:
            batch["weights"] += np.inf
        state, metrics = spec.train_step(state, spec.put(batch, BATCH))
        moved = jax.tree.map(lambda a, b: np.asarray(a) - b, spec.to_checkpoint(state).params, before)
        size = np.sqrt(sum(np.square(leaf, dtype=np.float64).sum() for leaf in jax.tree.leaves(moved)))
        rates.append(float(metrics["learning_rate"]))
        assert size == pytest.approx(0 if update == 1 else rates[-1] * float(metrics["grad_norm"]), rel=1e-3)
    assert rates == pytest.approx([1e-3, 2e-3, 2e-3, 3e-3])


def test_tokens_read_exclude_padding():
    """Whether or not a loss scores them."""
    config = small_config()
    spec = TrainSpec.build(config, jax.devices()[:1])
    batch = ragged_batch()
    batch["weights"] = batch["weights"] * (np.arange(LENGTH) % 2)
    _, metrics = spec.train_step(spec.init(0, BATCH), spec.put(batch, BATCH))
    assert (
        int(metrics["read"])
        == (batch["segments"] != 0).sum()
        > float(metrics["counts"]["loss"])
        == batch["weights"].sum()
    )

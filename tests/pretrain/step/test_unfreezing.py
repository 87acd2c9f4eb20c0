"""Gradual unfreezing: which layers an update changes, and that each begins as if the optimizer began with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from runs import mostly
from test_frozen import flat
from updates import BATCH, GRADIENT, ragged_batch, small_config

from pretrain.optimizers.transforms import mask_unfrozen, roles, unfreeze_gradually
from pretrain.step.train_spec import TrainSpec

# By update: head and last norm, layer 2 (top), 1, 0, tables; two updates apart, and what is not trained does not move.
TABLE = """
1 0 0 0 0
1 0 0 0 0
1 1 0 0 0
1 1 0 0 0
1 1 1 0 0
1 1 1 0 0
1 1 1 1 0
1 1 1 1 0
1 1 1 1 1
1 1 1 1 1
"""
WAYS = {"jit": (1, {}), "unrolled": (1, {"model__scan": False}), "pmap": (2, {"train__backend": "pmap"})}


def groups(before, after):
    """Whether anything in each group changed."""
    moved = {name: before[name] != after[name] for name in before}
    layers = np.any([np.any(m.reshape(3, -1), 1) for name, m in moved.items() if name.startswith("layers")], 0)
    top = any(m.any() for name, m in moved.items() if name.startswith(("head", "final_norm")))
    below = any(m.any() for name, m in moved.items() if name in ("tokens", "positions"))
    return " ".join(str(int(one)) for one in (top, *layers[::-1], below))


def adam(gradients, rate):
    """The updates of parameters with these gradients."""
    m = v = 0.0
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g**2
        yield -rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8)


def roles_of(spec):
    return flatten_dict(spec.roles, sep="/")


@pytest.mark.parametrize("way", mostly(WAYS, "unrolled", "pmap"))
def test_unfreezing_table(way):
    devices, changes = WAYS[way]
    changes |= {"model__layers": 3, "model__tied_head": False, "optimizer__unfreeze": 2, "optimizer__weight_decay": 0.1}
    spec = TrainSpec.build(small_config(**changes), jax.devices()[:devices])
    state, rows = spec.init(0, BATCH), []
    for n in range(10):
        before = flat(spec.to_checkpoint(state).params)
        state, _ = spec.train_step(state, spec.put(ragged_batch(n), BATCH))
        rows.append(groups(before, flat(spec.to_checkpoint(state).params)))
    assert rows == TABLE.split("\n")[1:-1]


def test_unfreezing_skipped_update_counts_for_nothing():
    """The schedule of layers and the learning rate both count good updates."""
    spec = TrainSpec.build(small_config(optimizer__unfreeze=1, model__layers=3), jax.devices()[:1])
    state, rows = spec.init(0, BATCH), []
    for n in range(4):
        before = flat(spec.to_checkpoint(state).params)
        bad = {"weights": np.full_like(ragged_batch()["weights"], np.inf)} if n == 1 else {}
        state, _ = spec.train_step(state, spec.put(ragged_batch(n) | bad, BATCH))
        rows.append(groups(before, flat(spec.to_checkpoint(state).params)))
    assert rows == ["1 0 0 0 0", "0 0 0 0 0", "1 1 0 0 0", "1 1 1 0 0"]


def test_unfreezing_moments():
    """Adam's bias correction counts a layer's own updates: each begins as in an optimizer of its own."""
    changes = {"schedule__kind": "constant", "schedule__warmup": 0, "schedule__peak": 0.01, "optimizer__b2": 0.95}
    changes |= {"optimizer__weight_decay": 0.0, "optimizer__clip": 0.0, "model__layers": 3, "optimizer__unfreeze": 2}
    spec, draw = TrainSpec.build_abstract(small_config(**changes)), np.random.default_rng(0)
    params = jax.tree.map(lambda s: jnp.zeros(s.shape), spec.param_shapes)
    state, gradients, found = spec.optimizer.init(params), [], []
    for n in range(10):
        gradient = jax.tree.map(lambda s: jnp.float32(draw.normal(size=s.shape)), spec.param_shapes)
        masked = mask_unfrozen(spec.roles, gradient, n)
        updates, state = spec.optimizer.update(masked, state, params)
        gradients.append(flat(gradient))
        found.append(flat(updates))
    begins = {name: role.begin for name, role in roles_of(spec).items()}
    assert begins["layers/attention/query/kernel"] == (6, 4, 2) and begins["tokens"] == (8,)
    for name, several in begins.items():
        for layer, begin in enumerate(several):
            index = layer if len(several) > 1 else ...
            assert not any(one[name][index].any() for one in found[:begin])
            known = list(adam([g[name][index] for g in gradients[begin:]], 0.01))
            np.testing.assert_allclose([one[name][index] for one in found[begin:]], known, atol=1e-6, err_msg=name)


def test_unfreezing_norm_is_of_the_trained_layers():
    """So is clipping: half of the norm of what is trained at first, and not half of all."""
    changes = GRADIENT | {"model__layers": 1}
    plain, spec = (
        TrainSpec.build(small_config(**changes | more), jax.devices()[:1])
        for more in ({}, {"optimizer__unfreeze": 2, "optimizer__clip": 0.01})
    )
    before = flat(plain.init(0, BATCH).params)
    full, _ = plain.train_step(plain.init(0, BATCH), plain.put(ragged_batch(), BATCH))
    gradient = {name: leaf - before[name] for name, leaf in flat(full.params).items() if name.startswith("final_norm")}
    norm = np.sqrt(sum(np.square(g, dtype=np.float64).sum() for g in gradient.values()))
    state, metrics = spec.train_step(spec.init(0, BATCH), spec.put(ragged_batch(), BATCH))
    assert float(metrics["grad_norm"]) == pytest.approx(norm, rel=1e-4) and norm > 0.01
    for name, change in gradient.items():
        np.testing.assert_allclose(flat(state.params)[name] - before[name], change * 0.01 / norm, atol=1e-7)


def test_unfreezing_by_epochs_of_the_data():
    config = small_config(optimizer__unfreeze=-1, model__layers=3)
    spec = TrainSpec.build_abstract(config).with_epoch(config, 62.5)
    begins = {name: role.begin for name, role in roles_of(spec).items()}
    assert begins["layers/attention/query/kernel"] == (188, 125, 63) and begins["tokens"] == (250,)


def test_unfreezing_without_a_head_begins_with_the_top_layer():
    spec = TrainSpec.build_abstract(small_config(model__layers=3, optimizer__frozen=("final_norm",)))
    found = unfreeze_gradually(spec.partition.trained(roles(spec.parameters, spec.model)), 5)
    assert found["layers"]["attention"]["query"]["kernel"].begin == (10, 5, 0) and found["tokens"].begin == (15,)

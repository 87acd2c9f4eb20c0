"""BERT's update is one update too: two terms with unequal denominators, dropout on, split in every way."""

import functools

import jax
import numpy as np
import pytest
from test_step import GRADIENT, MESHES, assert_same_run

from configs import common
from pretrain.errors import UserError
from pretrain.step.engine import make_engine
from pretrain.step.learner import make_learner

BATCH, LENGTH, SLOTS, VOCABULARY = 8, 16, 4, 64


def config_of(**changes):
    config = common.base()
    config.model, config.objective = common.encoder(), common.masked()
    config.model.update(vocab_size=VOCABULARY, context=LENGTH, layers=2, width=32, heads=4, ff=64, dtype="float32")
    config.model.update(attention_path="xla", dropout=0.2, dropout_attention=0.2)
    config.objective.max_predictions = SLOTS
    config.data.update(layout="pairs", length=LENGTH, sentences="lines")
    config.train.update(steps=10, batch_size=BATCH)
    config.mesh.data = 1
    for key, value in (GRADIENT | changes).items():
        section, name = key.split("__")
        config[section][name] = value
    return config


def batch(seed):
    """Pairs of very different length, some of which are no pairs, with from one to SLOTS tokens to predict."""
    rng = np.random.default_rng(seed)
    lengths, known = rng.integers(4, LENGTH + 1, (BATCH, 1)), rng.integers(1, SLOTS + 1, (BATCH, 1))
    place = np.tile(np.arange(LENGTH, dtype=np.int32), (BATCH, 1))
    real = place < lengths
    return {
        "row": np.arange(BATCH, dtype=np.int32),
        "tokens": rng.integers(0, VOCABULARY, (BATCH, LENGTH)).astype(np.int32) * real,
        "types": (real & (place >= lengths // 2)).astype(np.int32),
        "segments": real.astype(np.int32),
        "positions": place,
        "slots": np.sort(rng.permuted(place[:, :4], axis=1), axis=1).astype(np.int32),
        "targets": rng.integers(0, VOCABULARY, (BATCH, SLOTS)).astype(np.int32),
        "weights": (np.arange(SLOTS)[None] < known).astype(np.float32),
        "next": rng.integers(0, 2, BATCH).astype(np.int32),
        "next_weights": (np.arange(BATCH) > 1).astype(np.float32),
    }


@functools.cache
def initial():
    config = config_of()
    return jax.tree.map(np.asarray, make_engine(make_learner(config), config, jax.devices()[:1]).init(0, BATCH))


def run(config, devices):
    """(every term of two updates and the gradient's norm, final parameters)."""
    engine = make_engine(make_learner(config), config, jax.devices()[:devices])
    placed = jax.tree.map(lambda a, s: jax.device_put(a, s.sharding), initial(), engine.shapes(0, BATCH))
    state = engine.restored(placed)
    history = []
    for n in range(2):
        state, metrics = engine.step(state, engine.put(batch(n), BATCH))
        sums, counts = metrics["sums"], metrics["counts"]
        assert set(sums) == {"mlm", "mlm_accuracy", "nsp", "nsp_accuracy"}
        history.append([*(float(sums[name] / counts[name]) for name in sorted(sums)), float(metrics["grad_norm"])])
    return np.array(history), jax.tree.map(np.asarray, engine.saved(state).params)


@pytest.fixture(scope="module")
def reference():
    history, params = run(config_of(), 1)
    quiet, _ = run(config_of(model__dropout=0.0, model__dropout_attention=0.0), 1)
    assert np.abs(quiet - history)[0].max() > 1e-3
    return history, params


@pytest.mark.parametrize("name", ["mixed", "sequence", "pmap", "accumulated"])
def test_many_devices_equal_one(name, reference):
    assert_same_run(run(config_of(**MESHES[name]), 4 if name == "accumulated" else 8), reference)


def test_causal_prediction_is_not_for_a_model_that_sees_both_sides():
    config = config_of()
    config.objective = common.causal()
    with pytest.raises(UserError, match=r"objective\.kind = causal .*model\.kind = encoder .* choose a decoder"):
        make_learner(config)


def test_pairs_need_the_head_that_tells_them_apart():
    with pytest.raises(UserError, match=r"next_sentence = true needs .*model\.pair_head = false"):
        make_learner(config_of(model__pair_head=False))
    assert "nsp" not in make_learner(config_of(model__pair_head=False, objective__next_sentence=False)).objective.terms


def test_pairs_need_a_row_of_the_type_table_for_each_text():
    with pytest.raises(
        UserError, match=r"next_sentence = true .*model\.types = 1 has one row .*--config\.model\.types=2"
    ):
        make_learner(config_of(model__types=1))
    make_learner(config_of(model__types=1, objective__next_sentence=False))

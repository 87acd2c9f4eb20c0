"""What a lane remembers is the text right before its next row, or nothing, whatever became of the update."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from random_batches import random_batch
from runs import leaves, mostly

from configs import common
from input_pipeline import pipeline
from pretrain import config as configs
from pretrain.step.train_spec import TrainSpec
from pretrain.training.trainer import train

LANES, LENGTH, MEMORY = 4, 4, 32  # more memory than all of a test's text
BROKEN = 30  # a token whose vector is not finite


def recurrent(**changes):
    config = common.base()
    config.model = common.recurrent()
    config.model.update(vocab_size=31, context=64, layers=2, width=16, heads=2, ff=32, memory=MEMORY, dtype="float32")
    config.model.update(tied_words=False, init_std=0.3, dropout=0.0)
    config.data.update(layout="stream", length=LENGTH)
    config.train.update(steps=10, batch_size=LANES)
    config.optimizer.update(name="sgd", b1=0.0)
    config.schedule.update(kind="constant", warmup=0, peak=0.0)  # parameters stay: memory can be made anew from text
    for key, value in changes.items():
        section, name = key.split("__")
        config[section][name] = value
    return config


def stream_batch(n: int):
    return random_batch(n, LANES, LENGTH, BROKEN) | {"reset": np.full(LANES, n == 0)}


def unscorable(batch):
    """The model reads it as ever; the loss is infinite."""
    batch["weights"] += np.inf


def unreadable(batch):
    """Lane 1 reads a token that makes all of its hidden states NaN."""
    batch["tokens"][1, 2] = BROKEN


def unscorable_epoch(batch):
    """The first batch of a new epoch."""
    unscorable(batch)
    batch["reset"][:] = True


def remembered(model, params, text):
    """The memory that one lane has of `text`, read at once: [L, M, D] and how many positions."""
    carried = nn.unbox(model.init_memory(1))
    if len(text):
        segments = jnp.ones((1, len(text)), jnp.int32)
        output = model.apply({"params": params}, jnp.asarray(text)[None], segments=segments, carried=carried)
        carried = output.carried
    memory = carried["attention"]
    return np.asarray(memory.hidden)[:, 0], int(memory.held[0])


WAYS = {
    "jit": (1, {"mesh__data": 1}),
    "accumulated": (1, {"mesh__data": 1, "train__accumulate": 2}),
    "pmap": (2, {"train__backend": "pmap"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", mostly(WAYS, "accumulated", "pmap"))
def test_recurrent_state_after_bad_steps(way):
    devices, changes = WAYS[way]
    config = recurrent(**changes)
    spec = TrainSpec.build(config, jax.devices()[:devices])
    state = jax.tree.map(np.asarray, spec.to_checkpoint(spec.init(0, LANES)))
    words = state.params["vocabulary"]["words_0"]
    state.params["vocabulary"]["words_0"] = np.where(np.arange(31)[:, None] == BROKEN, np.float32(np.nan), words)
    shapes = spec.checkpoint_shapes(LANES)
    state = spec.from_checkpoint(jax.tree.map(lambda a, s: jax.device_put(a, s.sharding), state, shapes))
    spoil = {2: unscorable, 4: unreadable, 6: unscorable_epoch}
    text = [np.zeros(0, np.int32)] * LANES
    for n in range(9):
        batch = stream_batch(n)
        spoil.get(n, lambda batch: None)(batch)
        for lane in range(LANES):
            before = [] if batch["reset"][lane] else text[lane]
            text[lane] = np.concatenate([before, batch["tokens"][lane]]).astype(np.int32)
            if BROKEN in text[lane]:
                text[lane] = text[lane][:0]
        state, metrics = spec.train_step(state, spec.put(batch, LANES))
        assert bool(metrics["bad_in_row"]) == (n in spoil)
        saved = jax.tree.map(np.asarray, spec.to_checkpoint(state))
        for lane in range(LANES):
            hidden, held = remembered(spec.model, saved.params, text[lane])
            kept = saved.carried["attention"]
            assert kept.held[lane] == held == len(text[lane])
            np.testing.assert_allclose(kept.hidden[:, lane, MEMORY - held :], hidden[:, MEMORY - held :], atol=1e-5)
    assert [len(row) for row in text] == [12, 12, 12, 12]


@pytest.mark.slow
def test_recurrent_state_is_reset_by_rewind(text, tmp_path, monkeypatch, signals):
    """Back at update 4, on with batch 6: of the text before batch 6 the lanes have read nothing."""
    whole = pipeline.Corpus.batches

    def batches(self, *, start, **options):
        for n, batch in enumerate(whole(self, start=start, **options), start):
            yield batch | {"weights": batch["weights"] * np.float32(np.inf if n == 5 else 1)}

    monkeypatch.setattr(pipeline.Corpus, "batches", batches)
    keys = {
        "data.train": f"text:{text}/*.py",
        "data.length": 16,
        "model.layers": 1,
        "model.width": 16,
        "model.heads": 2,
        "model.ff": 32,
        "model.memory": 16 * 16,
        "train.steps": 10,
        "train.on_bad_step": "rewind",
        "schedule.warmup": 2,
        "checkpoint.every": 4,
        "evaluate.batches": 1,
        "log.tensorboard": "false",
        "mesh.data": 8,
    }
    overrides = [(key, str(value)) for key, value in keys.items()]
    assert train(configs.load("configs/transformer_xl.py:tiny", overrides), str(tmp_path)) == 0
    for step, segments in ((4, 4), (8, 4), (10, 6)):
        held = leaves(tmp_path, step)["['carried']['attention']['held']"]
        assert (held == segments * 16).all(), step

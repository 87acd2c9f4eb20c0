"""run(6) == run(3) + resume(3), bit for bit, through a checkpoint: every kind of state under both backends."""

from functools import partial

import jax
import numpy as np
import pytest
from runs import mostly
from test_memory import LANES, recurrent, stream_batch
from updates import BATCH, ragged, ragged_batch, small, small_config

from pretrain.checkpoints.manager import CheckpointManager
from pretrain.step.train_spec import TrainSpec

two_stream = partial(small, "permutation")


def permuted_batch(n: int):
    return ragged(TrainSpec.build_abstract(two_stream()), n)


DECODER = {"model__dropout_residual": 0.1, "model__dropout_attention": 0.1}
RECURRENT = {"model__dropout": 0.1, "optimizer__name": "adamw", "schedule__peak": 1e-2}
KINDS = {
    "adamw": (8, small_config, {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2, "train__accumulate": 2}),
    "uncorrected": (1, small_config, {"optimizer__bias_correction": False}),
    "frozen": (
        2,
        small_config,
        {"mesh__fsdp": 2, "train__accumulate": 2, "optimizer__frozen": ("tokens", "layers/*_norm")},
    ),
    "unfreezing": (2, small_config, {"train__backend": "pmap", "optimizer__unfreeze": 2}),
    "adafactor": (4, small_config, {"optimizer__name": "adafactor", "mesh__fsdp": 4}),
    "lamb": (1, small_config, {"optimizer__name": "lamb", "train__accumulate": 4}),
    "sgd": (2, small_config, {"optimizer__name": "sgd", "train__backend": "pmap"}),
    "lion": (2, small_config, {"optimizer__name": "lion", "mesh__data": 2}),
    "muon": (2, small_config, {"optimizer__name": "muon", "train__backend": "pmap", "train__accumulate": 2}),
    "recurrent": (4, recurrent, {"mesh__data": 2, "mesh__fsdp": 2}),
    "recurrent, accumulated": (1, recurrent, {"mesh__data": 1, "train__accumulate": 2}),
    "recurrent, pmap": (2, recurrent, {"train__backend": "pmap"}),
    "two streams": (4, two_stream, {"mesh__data": 2, "mesh__fsdp": 2}),
    "two streams, pmap": (2, two_stream, {"train__backend": "pmap", "train__accumulate": 2}),
}
BATCHES = {"recurrent": (stream_batch, LANES), "two_stream": (permuted_batch, BATCH)}
SLOW = (
    "unfreezing",
    "uncorrected",
    "lamb",
    "sgd",
    "lion",
    "recurrent, accumulated",
    "two streams",
    "two streams, pmap",
)
SLOW += ("adafactor", "muon", "recurrent, pmap", "adamw")


@pytest.mark.parametrize("kind", mostly(KINDS, *SLOW))
def test_resume_is_bit_exact_for_every_state(kind, tmp_path):
    devices, config, changes = KINDS[kind]
    config = config(**(DECODER if config is small_config else RECURRENT) | changes)
    make, rows = BATCHES.get(config.model.kind, (ragged_batch, BATCH))

    def batch(n):
        """Batch 1 is one that cannot be learned from, so that the counters have something to count."""
        return make(n) | ({"weights": np.full_like(make(n)["weights"], np.inf)} if n == 1 else {})

    def updates(spec, state, numbers):
        for n in numbers:
            state, _ = spec.train_step(state, spec.put(batch(n), rows))
        return state

    def new_engine():
        return TrainSpec.build(config, jax.devices()[:devices])

    folder = str(tmp_path / "run")
    spec = new_engine()
    first = updates(spec, spec.init(0, rows), range(3))
    checkpoints = CheckpointManager(folder, config.checkpoint)
    checkpoints.save(3, spec.to_checkpoint(first), position=3)
    checkpoints.wait()
    whole = spec.to_checkpoint(updates(spec, first, range(3, 6)))
    checkpoints.close()

    spec = new_engine()
    checkpoints = CheckpointManager(folder, config.checkpoint)
    state, data = checkpoints.restore_newest(spec.checkpoint_shapes(rows), print)
    checkpoints.close()
    assert data == {"step": 3, "position": 3, "before": 0}
    resumed = spec.to_checkpoint(updates(spec, spec.from_checkpoint(state), range(3, 6)))

    ends = [jax.tree_util.tree_leaves_with_path(jax.tree.map(np.asarray, end)) for end in (resumed, whole)]
    for (path, found), (_, expected) in zip(*ends, strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=jax.tree_util.keystr(path))
    assert (int(whole.step), int(whole.bad_total)) == (6, 1)
    assert bool(jax.tree.leaves(whole.carried)) == (config.model.kind in BATCHES)

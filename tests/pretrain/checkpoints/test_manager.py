"""Saving and pruning: which checkpoints are kept, and what a kill or a failed save leaves."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from runs import ROOT, environment, files

from pretrain.checkpoints import integrity, params_only, restore
from pretrain.checkpoints.manager import CheckpointManager
from pretrain.workdir import Workdir


@pytest.fixture
def opened(tmp_path):
    """`opened()`: the checkpoints of one folder as a start finds them; the previous start's are closed."""
    last = []

    def open_again(**changes):
        if last:
            last.pop().close()
        last.append(CheckpointManager(str(tmp_path), {"keep": 2, "keep_best": True} | changes))
        return last[0]

    yield open_again
    if last:
        last.pop().close()


def save(checkpoints, step, loss=None, measure="whole", bad=0):
    metrics = None if loss is None else {"loss": loss, "measure": measure}
    checkpoints.save(step, {"w": jnp.full(3, step)}, step, metrics, bad=bad)
    checkpoints.wait()


def test_keep_newest_and_best(opened):
    checkpoints = opened()
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None)):
        save(checkpoints, step, loss)
    assert (checkpoints.steps(), checkpoints.best()) == ([2, 3, 4], 2)
    checkpoints = opened()
    os.utime(checkpoints.folder / "4", (0, 0))  # steps count, not times
    save(checkpoints, 5, 1.5)
    assert (checkpoints.steps(), checkpoints.best()) == ([2, 4, 5], 2)
    (checkpoints.folder / "2" / "metrics" / "metrics").write_text("")  # no longer known to be best
    checkpoints = opened()
    save(checkpoints, 6, 5.5)
    assert (checkpoints.steps(), checkpoints.best()) == ([5, 6], 5)


def test_keep_best_ignores_infinite_losses(opened):
    checkpoints = opened(keep=1)
    nan, inf = float("nan"), float("inf")
    for step, value in ((1, nan), (2, 2.0), (3, inf), (4, 1.0), (5, -inf), (6, 3.0)):
        save(checkpoints, step, value)
    assert (checkpoints.steps(), checkpoints.best()) == ([4, 6], 4)


@pytest.mark.parametrize("content", [b"", b"[1]"])
def test_best_ignores_damaged_metrics(opened, content):
    checkpoints = opened(keep=3)
    for step, loss in ((1, 1.0), (2, 3.0), (3, 2.0)):
        save(checkpoints, step, loss)
    (checkpoints.folder / "1" / "metrics" / "metrics").write_bytes(content)
    assert (checkpoints.steps(), checkpoints.best(), checkpoints.find("best")) == ([1, 2, 3], 3, 3)


def test_best_compares_losses_measured_alike(opened):
    """A part of the text may be easier than all of it."""
    checkpoints = opened(keep=1)
    save(checkpoints, 1, 1.0, "one window")
    save(checkpoints, 2, 2.0, "one window")
    assert (checkpoints.steps(), checkpoints.best()) == ([1, 2], 1)
    save(checkpoints, 3, 5.0)
    save(checkpoints, 4)
    assert (checkpoints.steps(), checkpoints.best(), checkpoints.find("best")) == ([3, 4], 3, 3)
    assert (checkpoints.loss(3, "whole"), checkpoints.loss(3, "one window")) == (5.0, None)
    checkpoints.add_metrics(4, {"loss": 1.0, "measure": "whole"})
    checkpoints.wait()
    assert (checkpoints.steps(), checkpoints.loss(4, "whole")) == ([4], 1.0)


def test_keep_good_checkpoints_while_updates_are_bad(opened):
    checkpoints = opened(keep=2, keep_best=False)
    for step, bad in ((1, 0), (2, 0), (3, 0), (4, 1), (5, 2)):
        save(checkpoints, step, bad=bad)
    assert checkpoints.steps() == [2, 3, 4, 5]
    assert checkpoints.last_good(3) == 2
    save(checkpoints, 6)
    assert checkpoints.steps() == [5, 6]


def test_keep_imported_weights(opened, tmp_path):
    ones = params_only.LazyArray((3,), np.dtype("float32"), lambda: np.ones(3, np.float32))
    params_only.write(Workdir(tmp_path), {"w": ones}, "some tokenizer")
    checkpoints = opened()
    for step, loss in ((1, 3.0), (2, 4.0), (3, 5.0), (4, None)):
        save(checkpoints, step, loss)
    assert checkpoints.steps() == [0, 1, 3, 4]


def test_save_notes_the_previous_step(opened):
    checkpoints = opened(keep=9)
    for step in (1, 2, 4):
        save(checkpoints, step)
    notes = {step: restore.read_notes(checkpoints.workdir.checkpoint(step)) for step in checkpoints.steps()}
    assert {step: note[restore.BEFORE] for step, note in notes.items()} == {1: 0, 2: 1, 4: 2}


def test_unfinished_checkpoints_are_removed(opened):
    checkpoints = opened()
    save(checkpoints, 1)
    os.rename(checkpoints.folder / "1", checkpoints.folder / "1.deleted")
    (checkpoints.folder / "2.orbax-checkpoint-tmp").mkdir()
    save(checkpoints, 3)
    assert [p.name for p in opened().folder.iterdir()] == ["3"]


def test_failed_save_loses_nothing(opened, tmp_path, monkeypatch):
    def fail(folder):
        raise OSError("No space left on device")

    checkpoints = CheckpointManager(str(tmp_path), {"keep": 2, "keep_best": True})
    save(checkpoints, 1)
    with monkeypatch.context() as patch, pytest.raises(Exception, match="No space left"):
        patch.setattr(integrity, "write_record", fail)
        save(checkpoints, 2)
    assert checkpoints.steps() == [1]
    again = opened()
    save(again, 2)
    assert again.steps() == [1, 2]


SAVE = """
import sys, jax.numpy as jnp
from pretrain.checkpoints.manager import CheckpointManager
checkpoints = CheckpointManager(sys.argv[1], {"keep": 2, "keep_best": False})
print("ready", flush=True)
for step in range(max(checkpoints.steps(), default=0) + 1, 10**6):
    checkpoints.save(step, {"w": jnp.full(1 << 20, step)}, step)
"""


@pytest.mark.slow
def test_kill_9_while_saving(tmp_path):
    for kill in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVE, str(tmp_path)], cwd=ROOT, env=environment(), stdout=subprocess.PIPE
        )
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5 + 0.07 * kill)
        process.kill()
        process.communicate()
        steps = Workdir(tmp_path).steps()
        assert steps
        for step in steps:
            folder = Workdir(tmp_path).checkpoint(step)
            assert integrity.find_faults(folder, integrity.read_record(folder)) == []


@pytest.mark.parametrize("spec", [PartitionSpec(), PartitionSpec("x")])
def test_chunks_are_small_whatever_the_sharding(opened, monkeypatch, spec):
    """So that a host reads little more than its shard."""
    monkeypatch.setattr(params_only, "CHUNK", 1024)
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    array = np.arange(64 * 48, dtype=np.float32).reshape(64, 48)
    checkpoints = opened()
    checkpoints.save(1, {"params": {"w": jax.device_put(array, NamedSharding(mesh, spec))}}, 0)
    checkpoints.wait()
    folder = checkpoints.workdir.checkpoint(1)
    assert np.prod(restore.read_metadata(folder)["params"]["w"].storage.chunk_shape) * 4 <= 1024
    other = NamedSharding(mesh, PartitionSpec(None, "x"))
    wanted = {"params": {"w": jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=other)}}
    np.testing.assert_array_equal(restore.read_state(folder, wanted)["params"]["w"], array)


@pytest.mark.slow
def test_fresh_start(copy, resume):
    workdir = copy(8)
    (workdir / "checkpoints").rename(workdir / ".." / "elsewhere")
    (workdir / "checkpoints").symlink_to("../elsewhere")
    before = files(workdir)
    assert resume(workdir, "--fresh=second", train__steps=4, schedule__peak=0.001)[0] == 2  # warmup is longer
    assert files(workdir) == before
    for steps in (6, 7):  # the second command continues
        code, err = resume(workdir, "--fresh=second", train__steps=steps, schedule__peak=0.001)
        assert code == 0, err
        assert ("restored checkpoint 6" in err) == (steps == 7)
        assert files(workdir / "earlier" / "second") == before
    assert (workdir / "earlier" / "second" / "checkpoints" / "8").is_dir()  # the link still leads there
    assert resume(workdir, "--fresh=a/b", schedule__peak=0.001)[0] == 2


@pytest.mark.slow
def test_fresh_start_is_finished_after_a_kill(copy, resume):
    workdir = copy(8)
    before = files(workdir)
    partial = workdir / "earlier" / "old.partial"
    partial.mkdir(parents=True)
    (workdir / "checkpoints").rename(partial / "checkpoints")
    for flags in ([], ["--fresh=other"]):
        code, err = resume(workdir, *flags)
        assert code == 2 and "--fresh=old" in err
    code, err = resume(workdir, "--fresh=old")
    assert code == 0, err
    assert files(workdir / "earlier" / "old") == before

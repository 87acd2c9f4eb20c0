"""Which checkpoints are kept: the newest, by step, and the best, by validation loss, whatever happens in between."""

import errno
import gc
import json
import os
import re
import shutil
import time

import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.checkpoints import integrity, params_only, restore
from pretrain.checkpoints.manager import CheckpointManager
from pretrain.cli import main
from pretrain.errors import UserError
from pretrain.interop import hf_export
from pretrain.workdir import Workdir


@pytest.fixture
def opened(tmp_path):
    """`opened()`: the checkpoints of one folder as a start finds them; those of the last start are given up."""
    last = []

    def open_again(**changes):
        if last:
            last.pop().close()
        last.append(CheckpointManager(str(tmp_path), {"keep": 2, "keep_best": True} | changes))
        return last[0]

    yield open_again
    last.pop().close()


def save(checkpoints, step, loss=None, measure="whole"):
    metrics = None if loss is None else {"loss": loss, "measure": measure}
    checkpoints.save(step, {"w": jnp.full(3, step)}, step, metrics)
    checkpoints.wait()


def test_best_and_newest_survive_restarts_failed_saves_and_clock_jumps(opened, monkeypatch):
    checkpoints = opened()
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None)):
        save(checkpoints, step, loss)
    assert (checkpoints.steps(), checkpoints.best()) == ([2, 3, 4], 2)

    checkpoints = opened()  # a restart knows as much
    save(checkpoints, 5, 1.5)
    assert (checkpoints.steps(), checkpoints.best()) == ([2, 4, 5], 2)

    written = integrity.write
    no_room = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(integrity, "write", lambda folder: (_ for _ in ()).throw(no_room))
    with pytest.raises(UserError, match=r"step 6 could not be saved .*No space left on device.* kept: 2, 4, 5;"):
        save(checkpoints, 6, 0.5)
    monkeypatch.setattr(integrity, "write", written)
    checkpoints = opened()  # after which nothing of it is left, and the step can be saved
    assert sorted(p.name for p in checkpoints.folder.iterdir()) == ["2", "4", "5"]
    save(checkpoints, 6, 4.0)
    assert (checkpoints.steps(), checkpoints.best()) == ([2, 5, 6], 2)

    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 10 * 365 * 86400)  # the clock goes back ten years
    monkeypatch.setattr(time, "time_ns", lambda: int(time.time() * 1e9))
    save(checkpoints, 7, 5.0)
    os.utime(checkpoints.folder / "7", (0, 0))
    checkpoints = opened()
    save(checkpoints, 8, 6.0)
    assert (checkpoints.steps(), checkpoints.best()) == ([2, 7, 8], 2)

    (checkpoints.folder / "2" / "metrics" / "metrics").write_text("")  # no longer known to be best
    checkpoints = opened()
    save(checkpoints, 9, 5.5)
    assert (checkpoints.steps(), checkpoints.best()) == ([7, 8, 9], 7)


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_is_never_best(opened, loss):
    checkpoints = opened(keep=1)
    for step, value in ((1, loss), (2, 2.0), (3, loss), (4, 1.0), (5, loss), (6, 3.0)):
        save(checkpoints, step, value)
    assert (checkpoints.steps(), checkpoints.best()) == ([4, 6], 4)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 13,
        b'{"loss": "low"}',
        b'{"loss": 0.25}',
        b'{"loss": 0.25, "measure": "whole"}',
        b"[1]",
        b'{"l',
        b"[" * 100_000,
    ],
)
def test_damaged_metrics_cost_the_claim_to_be_best_and_nothing_else(opened, content):
    checkpoints = opened(keep=3)
    for step, loss in ((1, 1.0), (2, 3.0), (3, 2.0)):
        save(checkpoints, step, loss)
    (checkpoints.folder / "1" / "metrics" / "metrics").write_bytes(content)
    checkpoints = opened(keep=3)
    assert (checkpoints.steps(), checkpoints.best(), checkpoints.find("best")) == ([1, 2, 3], 3, 3)


def test_imported_weights_stay_and_take_no_other_checkpoints_place(opened, tmp_path):
    ones = params_only.Promised((3,), np.dtype("float32"), lambda: np.ones(3, np.float32))
    params_only.write(Workdir(tmp_path), {"w": ones}, "of some tokenizer")
    checkpoints = opened()
    for step, loss in ((1, 3.0), (2, 4.0), (3, 5.0), (4, None)):
        save(checkpoints, step, loss)
    assert checkpoints.steps() == [0, 1, 3, 4]
    assert params_only.is_alone(checkpoints.workdir.checkpoint(0))


def test_each_names_the_one_before_it_which_may_be_deleted(opened):
    checkpoints = opened(keep=2)
    for step, loss in ((1, 3.0), (2, None), (4, None), (5, None)):
        save(checkpoints, step, loss)
    noted = {step: restore.noted(checkpoints.workdir.checkpoint(step)) for step in checkpoints.steps()}
    assert {step: found[restore.BEFORE] for step, found in noted.items()} == {1: 0, 4: 2, 5: 4}


def test_a_checkpoint_that_was_being_deleted_or_written_is_cleared_away(opened):
    checkpoints = opened()
    save(checkpoints, 1)
    os.rename(checkpoints.folder / "1", checkpoints.folder / "1.deleted")
    (checkpoints.folder / "2.orbax-checkpoint-tmp").mkdir()
    save(checkpoints, 3)
    assert [p.name for p in opened().folder.iterdir()] == ["3"]


def test_what_cannot_be_deleted_is_left_to_a_later_start(opened, monkeypatch):
    """A network file system keeps a file that another process has open, and the folder around it."""
    remove, busy = shutil.rmtree, OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: (_ for _ in ()).throw(busy))
    checkpoints = opened(keep=1)
    for step in (1, 2, 3):
        save(checkpoints, step)
    checkpoints.wait()
    assert checkpoints.steps() == [3]
    (checkpoints.folder / "4.orbax-checkpoint-tmp").mkdir()
    checkpoints = opened(keep=1)
    save(checkpoints, 4)
    assert checkpoints.steps() == [4]
    monkeypatch.setattr(shutil, "rmtree", remove)
    assert [p.name for p in opened(keep=1).folder.iterdir()] == ["4"]


def test_a_loss_given_later_counts_and_makes_room(opened):
    checkpoints = opened(keep=1)
    save(checkpoints, 1, 2.0)
    save(checkpoints, 2)
    assert (checkpoints.steps(), checkpoints.best()) == ([1, 2], 1)
    checkpoints.score(2, {"loss": 1.0, "measure": "whole"}, print)
    checkpoints.wait()
    assert (checkpoints.steps(), checkpoints.loss(2, "whole")) == ([2], 1.0)
    (checkpoints.folder / "2" / "metrics" / "metrics").write_text('{"loss": 0.5, "measure": "whole"}')
    assert checkpoints.loss(2, "whole") is None


def test_a_checkpoint_that_cannot_take_a_loss_stays_without(opened):
    checkpoints, said = opened(keep=2), []
    save(checkpoints, 1, 2.0)
    save(checkpoints, 2)
    (checkpoints.folder / "2" / "metrics").write_text("")
    checkpoints.score(2, {"loss": 1.0, "measure": "whole"}, said.append)
    (told,) = said
    assert re.fullmatch(r"checkpoint 2 cannot be given its validation loss \(.+\), and does not count as .+", told)
    assert (checkpoints.steps(), checkpoints.best()) == ([1, 2], 1)


def test_only_losses_that_were_measured_alike_are_compared(opened):
    """One window of text may be easier than all of it: a lower loss there once kept a worse checkpoint for ever."""
    checkpoints = opened(keep=1)
    save(checkpoints, 1, 1.0, "one window")
    save(checkpoints, 2, 2.0, "one window")
    assert (checkpoints.steps(), checkpoints.best()) == ([1, 2], 1)
    save(checkpoints, 3, 5.0)
    save(checkpoints, 4)
    assert (checkpoints.steps(), checkpoints.best(), checkpoints.find("best")) == ([3, 4], 3, 3)
    save(checkpoints, 5, 4.0)
    save(checkpoints, 6, 6.0)
    assert (checkpoints.steps(), checkpoints.best()) == ([5, 6], 5)
    assert (checkpoints.loss(5, "whole"), checkpoints.loss(5, "one window")) == (4.0, None)


@pytest.mark.slow
def test_saves_leave_nothing_behind_in_memory(opened):
    """Each once left 24 lists; RSS of real runs, which allocators blur, is in docs/running.md."""
    checkpoints, held = opened(), []
    for step in range(1, 31):
        save(checkpoints, step)
        if step in (10, 30):
            gc.collect()
            held.append(len(gc.get_objects()))
    assert held[1] - held[0] < 20


def test_a_step_that_is_saved_or_being_saved_is_not_saved_again(opened):
    checkpoints = opened()
    checkpoints.save(1, {"w": jnp.zeros(3)}, 10)
    checkpoints.save(1, {"w": jnp.ones(3)}, 11)
    checkpoints.wait()
    noted = {"step": 1, "position": 10, "before": 0}
    assert json.loads((checkpoints.folder / "1" / "data" / "metadata").read_text()) == noted


@pytest.fixture
def training(copy, monkeypatch):
    """A work folder whose training deletes the checkpoint that is restored first, once it has been chosen."""
    workdir, look = copy(16), restore.damage

    def deleted_before(folder):
        monkeypatch.undo()
        shutil.rmtree(folder)
        return look(folder)

    monkeypatch.setattr(restore, "damage", deleted_before)
    return workdir


@pytest.mark.parametrize("command", [["evaluate", "--batches=1"], ["generate", "--prompt=a", "--max_tokens=1"]])
def test_the_newest_checkpoint_is_taken_again_if_a_training_has_deleted_it(training, capsys, command):
    assert main([*command, f"--workdir={training}", "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 12


def test_a_numbered_checkpoint_that_a_training_has_deleted_is_named(training, capsys):
    assert main(["generate", "--prompt=a", f"--workdir={training}", "--step=16"]) == 2
    said = capsys.readouterr().err
    assert "checkpoint 16 was deleted by the training of this folder while this command was reading; choose one" in said
    assert "choose one of: 4, 8, 12, latest" in said


def ends(workdir, steps):
    """Makes a run one of so many updates, that may be exported: the training beside goes on with more."""
    saved = json.loads((workdir / "config.json").read_text())
    saved["train"]["steps"] = steps
    (workdir / "config.json").write_text(json.dumps(saved))


@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_a_mean_is_of_what_is_there_if_a_training_has_deleted_a_part_of_it(copy, monkeypatch, capsys, command):
    """It saves one more meanwhile, for which the oldest goes."""
    workdir = copy(16)
    ends(workdir, 12)
    newest, oldest = (workdir / "checkpoints" / name for name in ("16", "8"))
    newest.rename(workdir / "16")
    look = {"evaluate": (restore, "damage"), "export": (params_only, "reader")}[command]
    own = getattr(*look)

    def trained_before(*arguments):
        monkeypatch.undo()
        (workdir / "16").rename(newest)
        shutil.rmtree(oldest)
        return own(*arguments)

    monkeypatch.setattr(*look, trained_before)
    words = ["--batches=1"] if command == "evaluate" else [f"--folder={workdir}/there"]
    assert main([command, f"--workdir={workdir}", "--average=2", *words]) == 0
    assert "the mean of the checkpoints 12, 16 is read" in capsys.readouterr().err


def test_an_export_begins_again_if_a_training_has_deleted_what_it_reads(copy, monkeypatch, capsys):
    workdir, own = copy(16), hf_export.safetensors_io.write
    ends(workdir, 12)

    def written(folder, sizes, tensors, report):
        monkeypatch.undo()
        shutil.rmtree(workdir / "checkpoints" / "16")
        return own(folder, sizes, tensors, report=report)

    monkeypatch.setattr(hf_export.safetensors_io, "write", written)
    assert main(["export", f"--workdir={workdir}", f"--folder={workdir}/there"]) == 0
    assert f"{workdir}/there holds checkpoint 12 of {workdir}" in capsys.readouterr().err


def test_a_training_that_is_faster_than_a_reader_is_not_run_after_for_ever(copy, monkeypatch, capsys):
    workdir, own = copy(16), params_only.reader
    ends(workdir, 4)

    def deleted_before(folder, shapes):
        shutil.rmtree(folder)
        return own(folder, shapes)

    monkeypatch.setattr(params_only, "reader", deleted_before)
    assert main(["export", f"--workdir={workdir}", f"--folder={workdir}/there"]) == 2
    said = capsys.readouterr().err
    assert "checkpoint 8 was deleted by the training of this folder" in said and "choose one of: 4, latest" in said
    assert not (workdir / "there").exists()


def test_imported_weights_stay_whatever_was_written_beside_them(opened, tmp_path):
    """What a checkpoint says of itself is not as it was written: that is damage, and no leave to delete it."""
    ones = params_only.Promised((3,), np.dtype("float32"), lambda: np.ones(3, np.float32))
    params_only.write(Workdir(tmp_path), {"w": ones}, "of some tokenizer")
    with open(tmp_path / "checkpoints" / "0" / "data" / "metadata", "a") as told:
        told.write("\n")
    checkpoints = opened()
    for step in (1, 2, 3, 4):
        save(checkpoints, step)
    assert checkpoints.steps() == [0, 3, 4]

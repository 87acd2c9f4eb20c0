"""Resuming: damaged checkpoints are set aside, nothing else is touched, and no run starts again by itself."""

import json
import os
import shutil

import pytest
from runs import files

from pretrain.checkpoints import restore
from pretrain.checkpoints.restore import Checkpoints
from pretrain.cli import main


def largest(folder):
    return max((p for p in (folder / "state").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def truncate(folder):
    os.truncate(largest(folder), largest(folder).stat().st_size // 2)


def delete(folder):
    next(p for p in sorted((folder / "state" / "ocdbt.process_0" / "d").iterdir())).unlink()


def flip_bit(folder):
    """Changes one bit in the middle of the largest file, whose size stays."""
    with open(largest(folder), "r+b") as file:
        file.seek(largest(folder).stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("damage", [delete, flip_bit])
def test_damaged_checkpoint_is_set_aside(copy, resume, damage):
    workdir = copy(16)
    damage(workdir / "checkpoints" / "16")
    (workdir / "checkpoints" / "broken" / "16").mkdir(parents=True)
    code, err = resume(workdir)
    assert code == 0, err
    assert "checkpoint 16 is damaged" in err and "restored checkpoint 12" in err
    assert sorted(path.name for path in (workdir / "checkpoints" / "broken").iterdir()) == ["16", "16.1"]


def all_truncated(workdir):
    for step in (4, 8):
        truncate(workdir / "checkpoints" / str(step))


def all_truncated_without_record(workdir):
    """Without checksums nothing proves the damage."""
    all_truncated(workdir)
    for step in (4, 8):
        (workdir / "checkpoints" / str(step) / "files.json").unlink()


def all_gone(workdir):
    for step in (4, 8):
        shutil.rmtree(workdir / "checkpoints" / str(step))


@pytest.mark.parametrize("trouble", [all_truncated, all_truncated_without_record, all_gone])
def test_no_intact_checkpoint_stops_and_touches_nothing(copy, resume, trouble):
    workdir = copy(8)
    trouble(workdir)
    before = files(workdir)
    assert resume(workdir)[0] in (1, 2)
    assert files(workdir) == before


def test_missing_record_is_written_again(copy, resume):
    workdir = copy(16)
    record = workdir / "checkpoints" / "16" / "files.json"
    expected = json.loads(record.read_text())
    assert {name.partition("/")[0] for name in expected} >= {"state", "data"}
    record.write_text("")
    code, err = resume(workdir)
    assert code == 0, err
    assert "restored checkpoint 16" in err
    assert json.loads(record.read_text()) == expected


def test_other_model_is_refused(copy, capsys):
    workdir = copy(8)
    config = workdir / "config.json"
    # Parameters of every shape would fit, and scores would be those of another model.
    config.write_text(config.read_text().replace('"norm_epsilon": 1e-05', '"norm_epsilon": 0.1'))
    assert main(["evaluate", f"--workdir={workdir}"]) == 2
    assert "model.norm_epsilon" in capsys.readouterr().err
    config.write_text(config.read_text().replace('"width": 16', '"width": 32'))
    notes = workdir / "checkpoints" / "8" / "data" / "metadata"
    notes.write_text(json.dumps(json.loads(notes.read_text()) | {"config": None}))  # as in old checkpoints
    (workdir / "checkpoints" / "8" / "files.json").unlink()
    assert main(["evaluate", f"--workdir={workdir}"]) == 2
    assert "belongs to another model" in capsys.readouterr().err


def test_readers_refuse_damaged_checkpoint(copy, capsys):
    workdir = copy(8)
    flip_bit(workdir / "checkpoints" / "4")
    assert main(["generate", "--prompt=a", f"--workdir={workdir}", "--step=4"]) == 2
    assert "checkpoint 4 is damaged: state/" in capsys.readouterr().err


def test_readers_follow_a_training_run(copy):
    """A run that deletes its newest checkpoint while it is read: the next one is."""
    workdir = copy(16)
    checkpoints = Checkpoints(str(workdir))

    def read(step):
        if step == 16:
            shutil.rmtree(checkpoints.workdir.checkpoint(16))
        return restore.read_data(checkpoints.workdir.checkpoint(step))["step"]

    assert checkpoints.read("latest", 16, read) == (12, 12)

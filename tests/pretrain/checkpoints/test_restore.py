"""Resuming: damaged checkpoints are set aside, nothing else is touched, and no run starts again by itself."""

import json
import os
import shutil

import pytest
from runs import assert_same_leaves, files, leaves, train

from pretrain.checkpoints import integrity, restore
from pretrain.cli import main
from pretrain.errors import UserError


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


def empty_position(folder):
    (folder / "data" / "metadata").write_text("")


@pytest.mark.parametrize("damage", [truncate, delete, flip_bit, empty_position])
def test_damaged_checkpoint_is_set_aside(copy, resume, damage):
    workdir = copy(16)
    damage(workdir / "checkpoints" / "16")
    (workdir / "checkpoints" / "broken" / "16").mkdir(parents=True)
    code, err = resume(workdir)
    assert code == 0, err
    assert "checkpoint 16 is damaged" in err and "restored checkpoint 12" in err
    assert sorted(path.name for path in (workdir / "checkpoints" / "broken").iterdir()) == ["16", "16.1"]


def test_resume_from_older_checkpoint_is_exact(whole, copy, text):
    workdir = copy(16)
    truncate(workdir / "checkpoints" / "16")
    done = train(workdir, text)
    assert done.returncode == 0, done.stderr
    assert "restored checkpoint 12" in done.stderr
    assert_same_leaves(leaves(workdir), leaves(whole))


def test_all_damaged_stops_and_touches_nothing(copy, resume):
    workdir = copy(8)
    for step in (4, 8):
        truncate(workdir / "checkpoints" / str(step))
    before = files(workdir)
    assert resume(workdir)[0] == 2
    assert files(workdir) == before


def without_metadata(folder):
    (folder / "state" / "_METADATA").unlink()


def without_position(folder):
    (folder / "data" / "metadata").write_text("{}")


@pytest.mark.parametrize("trouble", [without_metadata, without_position, truncate])
def test_unproven_damage_stops_and_touches_nothing(copy, resume, trouble):
    """Without checksums nothing proves that files are damaged, so none is moved and no run starts again."""
    workdir = copy(8)
    for step in (4, 8):
        (workdir / "checkpoints" / str(step) / "files.json").unlink()
        trouble(workdir / "checkpoints" / str(step))
    before = files(workdir)
    assert resume(workdir)[0] in (1, 2)
    assert files(workdir) == before


def test_missing_record_is_written_again(copy, resume):
    workdir = copy(16)
    record = workdir / "checkpoints" / "16" / "files.json"
    expected = json.loads(record.read_text())
    record.write_text("")
    code, err = resume(workdir)
    assert code == 0, err
    assert "restored checkpoint 16" in err
    assert json.loads(record.read_text()) == expected


@pytest.mark.parametrize("where", ["elsewhere", "nowhere"])
def test_missing_checkpoints_do_not_restart_the_run(copy, resume, tmp_path, where):
    workdir = copy(8)
    for step in (4, 8):
        folder = workdir / "checkpoints" / str(step)
        shutil.rmtree(folder) if where == "nowhere" else folder.rename(tmp_path / str(step))
    before = files(workdir)
    code, err = resume(workdir)
    assert code == 2 and "--fresh" in err
    assert files(workdir) == before


def test_other_model_is_refused(copy, resume, capsys):
    workdir = copy(8)
    config = workdir / "config.json"
    config.write_text(config.read_text().replace('"width": 16', '"width": 32'))
    before = files(workdir)
    code, err = resume(workdir, model__width=32)
    assert code == 2 and "model.width" in err
    for step in (4, 8):  # as before checkpoints had their config
        notes = workdir / "checkpoints" / str(step) / "data" / "metadata"
        notes.write_text(json.dumps(json.loads(notes.read_text()) | {"config": None}))
        (workdir / "checkpoints" / str(step) / "files.json").unlink()
    before = files(workdir)
    assert main(["evaluate", f"--workdir={workdir}"]) == 2
    assert "belongs to another model" in capsys.readouterr().err
    assert files(workdir) == before


def test_edited_config_is_refused(copy, capsys, tmp_path):
    """Parameters of every shape would fit, and scores would be those of another model."""
    workdir = copy(8)
    config = workdir / "config.json"
    config.write_text(config.read_text().replace('"norm_epsilon": 1e-05', '"norm_epsilon": 0.1'))
    commands = [["evaluate"], ["generate", "--prompt=a"], ["export", f"--folder={tmp_path / 'hf'}", "--step=8"]]
    for command in commands:
        assert main([*command, f"--workdir={workdir}"]) == 2
        assert "model.norm_epsilon" in capsys.readouterr().err
    start = ["--config=configs/quickstart.py:tiny", f"--workdir={tmp_path / 'new'}"]
    assert main(["train", *start, f"--config.train.start_from={workdir}"]) == 2
    assert "model.norm_epsilon" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["evaluate"], ["generate", "--prompt=a"]])
def test_readers_refuse_damaged_checkpoint(copy, capsys, command):
    workdir = copy(8)
    flip_bit(workdir / "checkpoints" / "4")
    assert main([*command, f"--workdir={workdir}", "--step=4"]) == 2
    assert "checkpoint 4 is damaged: state/" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["evaluate", "--batches=1"], ["generate", "--prompt=a", "--max_tokens=1"]])
def test_readers_follow_a_training_run(copy, monkeypatch, capsys, command):
    """A run that deletes its newest checkpoint while it is read: the next one is."""
    workdir, find_damage = copy(16), restore.find_damage

    def delete_first(folder):
        monkeypatch.undo()
        shutil.rmtree(folder)
        return find_damage(folder)

    monkeypatch.setattr(restore, "find_damage", delete_first)
    assert main([*command, f"--workdir={workdir}", "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 12


def test_every_checkpoint_has_its_record(whole):
    for folder in (whole / "checkpoints").iterdir():
        record = json.loads((folder / "files.json").read_text())
        assert record == integrity.compute_record(folder)
        assert {name.partition("/")[0] for name in record} >= {"state", "data"}


def test_find_damage_of_deleted_checkpoint(tmp_path):
    with pytest.raises(UserError, match="checkpoint 8"):
        restore.find_damage(tmp_path / "checkpoints" / "8")

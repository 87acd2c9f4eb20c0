"""What a start does with the checkpoints that it finds: nothing is thrown away, and no run silently starts again."""

import errno
import json
import os
import re
import shutil

import jax
import orbax.checkpoint as ocp
import pytest
from runs import assert_same_leaves, files, leaves, train

from pretrain.checkpoints import restore
from pretrain.cli import main
from pretrain.errors import UserError


def largest(folder):
    return max((p for p in (folder / "state").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def truncate(folder):
    os.truncate(largest(folder), largest(folder).stat().st_size // 2)


def delete(folder):
    next(p for p in sorted((folder / "state" / "ocdbt.process_0" / "d").iterdir())).unlink()


def flip(folder):
    """One bit in the middle of the largest file: its size stays."""
    with open(largest(folder), "r+b") as file:
        file.seek(largest(folder).stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def empty_tree(folder):
    (folder / "state" / "_METADATA").write_text("")


def empty_position(folder):
    (folder / "data" / "metadata").write_text("")


def without_record(folder):
    (folder / "files.json").unlink()
    (folder / "state" / "_METADATA").unlink()


def empty_record(folder):
    (folder / "files.json").write_text("")
    (folder / "state" / "_METADATA").write_text("")


def another_tree(folder):
    (folder / "files.json").unlink()
    (folder / "state" / "_METADATA").write_text("[1, 2]")


def without_places(folder):
    (folder / "files.json").unlink()
    (folder / "state" / "manifest.ocdbt").unlink()


@pytest.mark.parametrize("damage", [truncate, delete, flip, empty_tree, empty_position])
def test_a_damaged_checkpoint_is_set_aside_and_the_older_one_used(copy, run, damage):
    workdir = copy(16)
    damage(workdir / "checkpoints" / "16")
    code, said = run(workdir)
    assert code == 0, said
    assert "checkpoint 16 cannot be used (" in said
    assert "restored checkpoint 12" in said
    assert (workdir / "checkpoints" / "broken" / "16").is_dir()


def test_a_damaged_checkpoint_finds_a_name_that_is_free_on_the_disk_that_it_is_on(copy, run, tmp_path, monkeypatch):
    workdir, disk = copy(16), tmp_path / "disk"
    (workdir / "checkpoints").rename(disk)
    (workdir / "checkpoints").symlink_to(disk)
    (disk / "broken" / "16.1").mkdir(parents=True)  # and no 16: a gap
    (disk / "broken" / "12").mkdir()
    for step in ("12", "16"):
        flip(disk / step)
    replace = os.replace

    def within_a_disk(source, to):
        if os.path.realpath(source).startswith(str(disk)) != os.path.realpath(to).startswith(str(disk)):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        replace(source, to)

    monkeypatch.setattr(os, "replace", within_a_disk)
    code, said = run(workdir)
    assert code == 0, said
    assert "restored checkpoint 8" in said
    assert sorted(path.name for path in (disk / "broken").iterdir()) == ["12", "12.1", "16", "16.1"]


def test_going_on_from_the_older_one_ends_with_the_same_bits(whole, copy, text):
    workdir = copy(16)
    truncate(workdir / "checkpoints" / "16")
    done = train(workdir, text)
    assert done.returncode == 0, done.stderr
    assert "restored checkpoint 12" in done.stderr
    assert_same_leaves(leaves(workdir), leaves(whole))


def no_position(folder):
    (folder / "files.json").unlink()
    (folder / "data" / "metadata").write_text("{}")


def position_of_another_kind(folder):
    (folder / "files.json").unlink()
    (folder / "data" / "metadata").write_text("[]")


@pytest.mark.parametrize("trouble", [no_position, position_of_another_kind])
def test_a_position_that_is_none_stops_the_run(copy, run, trouble):
    workdir = copy(8)
    trouble(workdir / "checkpoints" / "8")
    before = files(workdir)
    code, said = run(workdir)
    assert code == 2
    assert "checkpoint 8 cannot be read (data/metadata does not hold the whole numbers" in said
    assert files(workdir) == before


def test_a_checkpoint_by_another_ones_name_stops_the_run(copy, run):
    """Or every start would go on from there, and those that it saves would be the older ones."""
    workdir = copy(8)
    (workdir / "checkpoints" / "8").rename(workdir / "checkpoints" / "40")
    before = files(workdir)
    code, said = run(workdir)
    assert code == 2
    assert "checkpoints/40 holds the checkpoint of update 8 by another name; rename it 8, or move it away" in said
    assert files(workdir) == before


@pytest.mark.parametrize("trouble", [without_record, empty_record, another_tree, without_places])
def test_trouble_that_proves_no_damage_stops_the_run_and_touches_nothing(copy, run, trouble):
    """A lost structure in every checkpoint once started the run again at update 0, and threw its metrics away."""
    workdir = copy(16)
    for step in (4, 8, 12, 16):
        trouble(workdir / "checkpoints" / str(step))
    before = files(workdir)
    code, said = run(workdir)
    assert code == 2
    assert "checkpoint 16 cannot be read (state/_METADATA, which describes its tree, or one of the files beside" in said
    assert files(workdir) == before


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), 2, "cannot be read (Too many open files)"),
        (OSError(errno.EIO, os.strerror(errno.EIO), "/store/8"), 69, "cannot use /store/8: Input/output error; start"),
        (MemoryError(), 2, "cannot be read (MemoryError)"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), 2, "(RESOURCE_EXHAUSTED: Out of memory)"),
        (TypeError("a bug"), 1, "TypeError: a bug"),
    ],
)
def test_whatever_else_goes_wrong_while_restoring_stops_the_run(copy, run, monkeypatch, error, code, words):
    workdir = copy(8)
    before = files(workdir)
    monkeypatch.setattr("input_pipeline.away.PATIENCE", 0.5)  # with a folder that may be away for a while

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "restore", fail)
    got, said = run(workdir)
    assert got == code
    assert words in said
    assert ("Traceback" in said) == (code == 1)
    assert files(workdir) == before


def test_evaluation_and_generation_refuse_what_is_damaged_or_unreadable(copy, capsys):
    workdir = copy(8)
    flip(workdir / "checkpoints" / "4")
    without_record(workdir / "checkpoints" / "8")
    for command in (["evaluate"], ["generate", "--prompt=a"]):
        assert main([*command, f"--workdir={workdir}", "--step=4"]) == 2
        assert "checkpoint 4 is damaged: state/" in capsys.readouterr().err
        assert main([*command, f"--workdir={workdir}"]) == 2
        assert "checkpoint 8 cannot be read (state/_METADATA" in capsys.readouterr().err


def test_a_run_whose_checkpoints_are_all_damaged_stops_each_time(copy, run):
    workdir = copy(8)
    for step in (4, 8):
        truncate(workdir / "checkpoints" / str(step))
    before = files(workdir)
    for _ in range(2):
        code, said = run(workdir)
        assert code == 2
        assert "can be used (8: state/" in said
        assert files(workdir) == before


@pytest.mark.parametrize("lost", ["missing", "empty"])
def test_a_record_that_is_lost_is_made_again_once_its_checkpoint_is_read(copy, run, lost):
    workdir = copy(16)
    record = workdir / "checkpoints" / "16" / "files.json"
    written = json.loads(record.read_text())
    record.unlink() if lost == "missing" else record.write_text("")
    code, said = run(workdir)
    assert code == 0, said
    assert "restored checkpoint 16" in said
    assert json.loads(record.read_text()) == written


def test_a_folder_of_another_model_is_named_and_left_alone(copy, run, capsys):
    workdir = copy(8)
    config = workdir / "config.json"
    config.write_text(config.read_text().replace('"width": 16', '"width": 32'))
    before = files(workdir)
    code, said = run(workdir, model__width=32)
    assert code == 2
    assert "it differs in model.width (16 there, 32 here); undo the change" in said
    assert files(workdir) == before
    for step in (4, 8):  # which do not tell of their config, as those of before
        told = workdir / "checkpoints" / str(step) / "data" / "metadata"
        told.write_text(json.dumps(json.loads(told.read_text()) | {"config": None}))
        (workdir / "checkpoints" / str(step) / "files.json").unlink()
    before = files(workdir)
    for command in (["evaluate"], ["generate", "--prompt=a"]):
        assert main([*command, f"--workdir={workdir}"]) == 2
        said = capsys.readouterr().err
        assert "belongs to another model" in said
        assert re.search(r"params/\S+ is float32\[.*16\] there and float32\[.*32\] here", said)
    assert files(workdir) == before


def test_a_config_that_was_edited_since_is_not_read_with(copy, capsys, tmp_path):
    """Parameters of every shape fit, and figures would be those of another model."""
    workdir = copy(8)
    config = workdir / "config.json"
    written = config.read_text()
    config.write_text(written.replace('"norm_epsilon": 1e-05', '"norm_epsilon": 0.1'))
    assert config.read_text() != written
    begin = ["train", f"--workdir={tmp_path / 'other'}", f"--config.train.start_from={workdir}"]
    for command in (["evaluate"], ["generate", "--prompt=a"], ["export", f"--folder={tmp_path / 'hf'}", "--step=8"]):
        assert main([*command, f"--workdir={workdir}"]) == 2
        assert "it differs in model.norm_epsilon (1e-05 there, 0.1 here); undo the change" in capsys.readouterr().err
    assert main([begin[0], "--config=configs/quickstart.py:tiny", *begin[1:]]) == 2
    assert "it differs in model.norm_epsilon (1e-05 there, 0.1 here); undo the change" in capsys.readouterr().err
    config.write_text(written.replace('"every": 4', '"every": 5'))
    assert main(["generate", "--prompt=a", f"--workdir={workdir}"]) == 0  # how a run is saved it may change


def test_what_a_damaged_checkpoint_says_of_itself_counts_for_nothing(copy, run, capsys):
    """JSON of the same size whose bytes are others than were written: not what the folder's config is held against."""
    workdir = copy(8)
    told = workdir / "checkpoints" / "8" / "data" / "metadata"
    told.write_text(told.read_text().replace('"b2": 0.95', '"b2": 0.85'))
    assert main(["evaluate", f"--workdir={workdir}"]) == 2
    assert "checkpoint 8 is damaged: data/metadata is not as it was written; choose" in capsys.readouterr().err
    code, said = run(workdir)
    assert code == 0, said
    assert "checkpoint 8 cannot be used (data/metadata has other bytes" in said and "restored checkpoint 4" in said


def test_a_start_that_trained_nothing_says_nothing_of_the_schedule(copy, run):
    """The schedule was what the checkpoint's own start had, whatever a refused or interrupted one asked for since."""
    workdir = copy(24)
    config = workdir / "config.json"
    config.write_text(config.read_text().replace('"steps": 24', '"steps": 1200'))
    code, said = run(workdir, train__steps=25)
    assert code == 0, said
    assert "config.train.steps changes the schedule from 24 to 25 steps" in said


@pytest.mark.slow
def test_more_updates_that_move_the_schedule_are_announced_with_the_remedy(copy, run, whole):
    """Cosine over 24 updates is at its end after them; over 48 it would be half way."""
    workdir = copy(24)
    assert (workdir / "metrics" / "train.csv").read_text().splitlines()[-1].startswith("24,")
    code, said = run(workdir, train__steps=25, schedule__decay_steps=24)
    assert code == 0, said
    assert "changes the schedule" not in said
    code, said = run(workdir, train__steps=26, schedule__decay_steps=24, model__dropout_residual=0.5)
    assert code == 0, said
    assert "config.model.dropout_residual is 0.5 and was 0.1, until here" in said
    code, said = run(workdir, train__steps=27, schedule__decay_steps=0, model__dropout_residual=0.5)
    assert code == 0, said
    assert "config.train.steps changes the schedule from 24 to 27 steps" in said

    other = workdir.with_name("other")
    shutil.copytree(whole, other)
    code, said = run(other, train__steps=25)
    assert code == 0, said
    rates = re.search(
        r"update 25 has the learning rate (\S+) instead of (\S+); .*--config.schedule.decay_steps=24", said
    )
    assert float(rates[1]) > float(rates[2])


def test_every_checkpoint_has_its_record(whole):
    for folder in (whole / "checkpoints").iterdir():
        record = json.loads((folder / "files.json").read_text())
        for item in ("state", "data"):
            held = {str(p.relative_to(folder)) for p in (folder / item).rglob("*") if p.is_file()}
            assert held and held <= record.keys()


def test_of_a_checkpoint_that_is_gone_nothing_is_said_but_that(tmp_path, capsys):
    """Its record was once missed, and its bytes said to be taken as they are."""
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match="checkpoint 8 is no longer in"):
        restore.damage(tmp_path / "checkpoints" / "8")
    assert not capsys.readouterr().err

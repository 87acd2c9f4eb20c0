"""What a start does with the checkpoints that it finds: nothing is thrown away, and no run silently starts again."""

import errno
import json
import os
import re
import shutil
from pathlib import Path

import jax
import orbax.checkpoint as ocp
import pytest
from runs import assert_same_leaves, leaves, train, train_here

from pretrain.main import main


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


def files(workdir):
    """Every file of a run but its data, and what it holds."""
    found = (p.relative_to(workdir) for p in workdir.rglob("*") if p.is_file())
    return {str(p): (workdir / p).read_bytes() for p in found if p.parts[0] not in ("data", "tokenizer")}


@pytest.fixture
def run(text, capsys):
    """Goes on with a run for one update; returns the exit code and what was said."""

    def run(workdir, *flags, **overrides):
        code = train_here(workdir, text, *flags, **{"train__steps": 17} | overrides)
        return code, capsys.readouterr().err

    return run


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


@pytest.mark.parametrize("trouble", [without_record, empty_record])
def test_trouble_that_proves_no_damage_stops_the_run_and_touches_nothing(copy, run, trouble):
    """A lost structure in every checkpoint once started the run again at update 0, and threw its metrics away."""
    workdir = copy(16)
    for step in (4, 8, 12, 16):
        trouble(workdir / "checkpoints" / str(step))
    before = files(workdir)
    code, said = run(workdir)
    assert code == 2
    assert "checkpoint 16 cannot be read (state/_METADATA" in said
    assert files(workdir) == before


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), 2, "cannot be read (Too many open files)"),
        (OSError(errno.EIO, os.strerror(errno.EIO), "/store/8"), 2, "cannot be read (/store/8: Input/output error)"),
        (MemoryError(), 2, "cannot be read (MemoryError)"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), 2, "(RESOURCE_EXHAUSTED: Out of memory)"),
        (TypeError("a bug"), 1, "TypeError: a bug"),
    ],
)
def test_whatever_else_goes_wrong_while_restoring_stops_the_run(copy, run, monkeypatch, error, code, words):
    workdir = copy(8)
    before = files(workdir)
    monkeypatch.setattr("input_pipeline.files.PATIENCE", 0.5)  # with a folder that may be away for a while

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
    for command in (["evaluate"], ["generate", "--prompt=a"]):
        assert main([*command, f"--workdir={workdir}"]) == 2
        said = capsys.readouterr().err
        assert "belongs to another model" in said
        assert re.search(r"params/\S+ is float32\[.*16\] there and float32\[.*32\] here", said)
    assert files(workdir) == before


@pytest.mark.slow
def test_a_fresh_start_keeps_the_earlier_run_and_is_made_once(copy, run):
    workdir = copy(8)
    truncate(workdir / "checkpoints" / "4")
    truncate(workdir / "checkpoints" / "8")
    before = files(workdir)
    code, said = run(workdir, "--fresh=second", train__steps=4, schedule__peak=0.001)
    assert code == 2
    assert "config.schedule.warmup = 5 is longer" in said
    assert files(workdir) == before  # a mistake is noticed first
    code, said = run(workdir, "--fresh=second", train__steps=6, schedule__peak=0.001)
    assert code == 0, said
    assert "restored" not in said
    assert f"what was there is kept in {workdir}/earlier/second" in said
    assert files(workdir / "earlier" / "second") == before
    code, said = run(workdir, "--fresh=second", train__steps=7, schedule__peak=0.001)
    assert code == 0, said
    assert "--fresh=second was done before: going on" in said and "restored checkpoint 6" in said
    assert files(workdir / "earlier" / "second") == before
    for name in ("a/b", "..", "a.partial/", "a.partial", "a\udcff"):
        code, said = run(workdir, f"--fresh={name}", schedule__peak=0.001)
        assert code == 2
        assert f"--fresh={ascii(name)[1:-1]} must be the name of a folder" in said


def test_a_fresh_start_where_no_run_is_puts_nothing_aside(tmp_path, run):
    code, said = run(tmp_path / "none", "--fresh=first", train__steps=1, schedule__warmup=0)
    assert code == 0, said
    assert "--fresh=first has put nothing aside" in said and "held no run" in said and "is kept in" not in said


def test_a_fresh_start_says_what_it_keeps_of_a_run_that_lost_its_config(copy, run):
    workdir = copy(8)
    (workdir / "config.json").unlink()
    code, said = run(workdir, "--fresh=first", train__steps=6)
    assert code == 0, said
    assert f"what was there is kept in {workdir}/earlier/first" in said
    assert (workdir / "earlier" / "first" / "checkpoints" / "8").is_dir()


def test_a_fresh_start_that_was_killed_is_finished(copy, run, capsys):
    workdir = copy(8)
    before = files(workdir)
    (workdir / "earlier" / "old.partial").mkdir(parents=True)
    (workdir / "metrics").rename(workdir / "earlier" / "old.partial" / "metrics")
    (workdir / "checkpoints").rename(workdir / "earlier" / "old.partial" / "checkpoints")
    capsys.readouterr()
    for command in (["evaluate"], ["generate", "--prompt=a"]):  # once only: there is no checkpoint
        assert main([*command, f"--workdir={workdir}"]) == 2
        said = capsys.readouterr().err
        assert "there is no checkpoint in" in said and "was being put aside when the process was killed; give" in said
        assert "`pretrain train` with --fresh=old again, which finishes that" in said
    for flags in ([], ["--fresh=other"]):  # once began at update 0, and the move could never be finished
        code, said = run(workdir, *flags, train__steps=6)
        assert code == 2
        assert "give the command with --fresh=old again" in said
    code, said = run(workdir, "--fresh=old", train__steps=6)
    assert code == 0, said
    assert files(workdir / "earlier" / "old") == before


def test_a_fresh_start_that_a_full_disk_cuts_short_loses_nothing(copy, run, monkeypatch):
    """Half a config in earlier/ once passed for the whole, and the work folder's own was overwritten."""
    workdir = copy(8)
    before = files(workdir)

    def half(path, content):
        with open(path, "wb") as file:
            file.write(content[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    for stop in (half, lambda path, content: (path.touch(), 1 / 0)):  # the second as a kill would
        monkeypatch.setattr(Path, "write_bytes", stop)
        code, said = run(workdir, "--fresh=old", train__steps=6)
        assert code == (2 if stop is half else 1), said
        monkeypatch.undo()
        assert {name: text for name, text in files(workdir).items() if not name.startswith("earlier")} == before
    code, said = run(workdir, "--fresh=old", train__steps=6)
    assert code == 0, said
    assert files(workdir / "earlier" / "old") == before


def test_a_fresh_start_that_cannot_move_a_part_moves_none(copy, run, monkeypatch):
    workdir = copy(8)
    before, replace = files(workdir), os.replace

    def busy(source, to):
        if source == workdir / "metrics":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(source))
        replace(source, to)

    monkeypatch.setattr(os, "replace", busy)
    code, said = run(workdir, "--fresh=old", train__steps=6)
    assert code == 2
    assert f"({workdir / 'metrics'}: Device or resource busy), and leaves it as it was" in said
    assert files(workdir) == before
    code, said = run(workdir)  # it goes on as if it had not been asked
    assert code == 0 and "restored checkpoint 8" in said


def test_a_fresh_start_keeps_where_links_lead(copy, run):
    workdir = copy(8)
    before = files(workdir)
    (workdir / "checkpoints").rename(workdir / ".." / "elsewhere")
    (workdir / "checkpoints").symlink_to("../elsewhere")
    (workdir / "metrics").rename(workdir / ".." / "rows")
    (workdir / "metrics").symlink_to((workdir / ".." / "rows").resolve())
    code, said = run(workdir, "--fresh=old", train__steps=6)
    assert code == 0, said
    old = workdir / "earlier" / "old"
    for part in ("checkpoints", "metrics"):
        assert (old / part).is_symlink()
        assert {n: (old / n).read_bytes() for n in before if n.startswith(part)} == {
            n: text for n, text in before.items() if n.startswith(part)
        }


def test_a_fresh_start_is_finished_whatever_was_begun_between_its_halves(copy, run):
    workdir = copy(8)
    (workdir / "earlier" / "old.partial").mkdir(parents=True)
    (workdir / "checkpoints").rename(workdir / "earlier" / "old.partial" / "checkpoints")
    (workdir / "checkpoints" / "2").mkdir(parents=True)
    code, said = run(workdir, "--fresh=old", train__steps=6)
    assert code == 0, said
    assert "restored" not in said
    kept = workdir / "earlier" / "old"
    parts = ["checkpoints", "checkpoints.1", "config.json", "goodput.jsonl", "metrics"]
    assert sorted(path.name for path in kept.iterdir()) == parts
    assert (kept / "checkpoints" / "8" / "files.json").is_file()
    assert (kept / "checkpoints.1" / "2").is_dir()


@pytest.mark.slow
def test_more_updates_that_move_the_schedule_are_announced_with_the_remedy(copy, run, whole):
    """Cosine over 24 updates is at its end after them; over 48 it would be half way."""
    workdir = copy(24)
    assert (workdir / "metrics" / "train.csv").read_text().splitlines()[-1].startswith("24,")
    code, said = run(workdir, train__steps=25, schedule__decay_steps=24)
    assert code == 0, said
    assert "updates long" not in said
    code, said = run(workdir, train__steps=26, schedule__decay_steps=24, model__dropout_residual=0.5)
    assert code == 0, said
    assert "config.model.dropout_residual is 0.5 and was 0.1, until here" in said
    code, said = run(workdir, train__steps=27, schedule__decay_steps=0, model__dropout_residual=0.5)
    assert code == 0, said
    assert "config.train.steps makes the schedule 27 updates long, which was 24" in said

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

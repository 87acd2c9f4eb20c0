"""`train --fresh=NAME` puts a run aside, whole, whatever happens meanwhile."""

import errno
import functools
import os
import tempfile
from pathlib import Path

import pytest
from flickers import each_call_fails
from ml_collections import ConfigDict
from runs import files

from pretrain.checkpoints.fresh import start_fresh
from pretrain.cli import main
from pretrain.distributed.consensus import decided


@pytest.mark.slow
def test_a_fresh_start_keeps_the_earlier_run_and_is_made_once(copy, run):
    workdir = copy(8)
    for step in ("4", "8"):  # whose files are short from now on
        (workdir / "checkpoints" / step / "data" / "metadata").write_text("")
    before = files(workdir)
    code, said = run(workdir, "--fresh=second", train__steps=4, schedule__peak=0.001)
    assert code == 2
    assert "config.schedule.warmup=5" in said
    assert files(workdir) == before  # a mistake is noticed first
    code, said = run(workdir, "--fresh=second", train__steps=6, schedule__peak=0.001)
    assert code == 0, said
    assert "restored" not in said
    assert f"the earlier run is in {workdir}/earlier/second" in said
    assert files(workdir / "earlier" / "second") == before
    code, said = run(workdir, "--fresh=second", train__steps=7, schedule__peak=0.001)
    assert code == 0, said
    assert "--fresh=second was done before" in said and "restored checkpoint 6" in said
    assert files(workdir / "earlier" / "second") == before
    for name in ("a/b", "..", "a.partial/", "a.partial", "a\udcff"):
        code, said = run(workdir, f"--fresh={name}", schedule__peak=0.001)
        assert code == 2
        assert f"--fresh={ascii(name)[1:-1]} must be the name of a folder" in said


def test_a_fresh_start_where_no_run_is_puts_nothing_aside(tmp_path, run):
    code, said = run(tmp_path / "none", "--fresh=first", train__steps=1, schedule__warmup=0)
    assert code == 0, said
    assert "held no run" in said


def test_a_fresh_start_says_what_it_keeps_of_a_run_that_lost_its_config(copy, run):
    workdir = copy(8)
    (workdir / "config.json").unlink()
    code, said = run(workdir, "--fresh=first", train__steps=6)
    assert code == 0, said
    assert f"the earlier run is in {workdir}/earlier/first" in said
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


def test_a_fresh_start_puts_all_aside_though_the_folder_is_away_for_a_moment(tmp_path, monkeypatch):
    """Whichever call of the system fails."""
    monkeypatch.setattr("pretrain.distributed.consensus.gathered", lambda value: [value])
    held = ["checkpoints/8/state/x", "metrics/train.csv", "goodput.jsonl", "config.json"]
    for failing in each_call_fails(monkeypatch, tmp_path):
        workdir = Path(tempfile.mkdtemp(dir=tmp_path))
        for name in held:
            (workdir / name).parent.mkdir(parents=True, exist_ok=True)
            (workdir / name).write_text(name)
        start = functools.partial(start_fresh, str(workdir), "old", ConfigDict({"seed": 7}))
        with failing:
            decided(start, lambda why: why)
        assert {*files(workdir)} == {f"earlier/old/{name}" for name in held} | {"config.json"}
        assert (workdir / "earlier/old/config.json").read_text() == "config.json"

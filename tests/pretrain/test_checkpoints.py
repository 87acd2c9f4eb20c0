"""What a start does with the checkpoints that it finds: nothing is thrown away, and no run silently starts again."""

import json
import os
import re

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
    """Every file of a run's checkpoints, of those set aside, and of its metrics, and what it holds."""
    folders = [workdir / name for name in ("checkpoints", "broken", "metrics")]
    return {p: p.read_bytes() for folder in folders for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def run(text, capsys):
    """Goes on with a run for one update; returns the exit code and what was said."""

    def run(workdir, **overrides):
        code = train_here(workdir, text, **{"train__steps": 17} | overrides)
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
    assert (workdir / "broken" / "16").is_dir()


def test_going_on_from_the_older_one_ends_with_the_same_bits(whole, copy, text):
    workdir = copy(16)
    truncate(workdir / "checkpoints" / "16")
    done = train(workdir, text)
    assert done.returncode == 0, done.stderr
    assert "restored checkpoint 12" in done.stderr
    assert_same_leaves(leaves(workdir), leaves(whole))


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
    assert "belongs to another model" in said
    assert re.search(r"params/\S+ is float32\[.*16\] there and float32\[.*32\] here", said)
    for command in (["evaluate"], ["generate", "--prompt=a"]):
        assert main([*command, f"--workdir={workdir}"]) == 2
        assert "belongs to another model" in capsys.readouterr().err
    assert files(workdir) == before


def test_every_checkpoint_has_its_record(whole):
    for folder in (whole / "checkpoints").iterdir():
        record = json.loads((folder / "files.json").read_text())
        for item in ("state", "data"):
            held = {str(p.relative_to(folder)) for p in (folder / item).rglob("*") if p.is_file()}
            assert held and held <= record.keys()

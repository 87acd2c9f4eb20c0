"""A run whose checkpoints are gone, or of which the only one cannot be read, does not begin again by itself."""

import os
import shutil

import pytest
from runs import files, train_here


@pytest.mark.parametrize("where", ["elsewhere", "broken", "nowhere"])
def test_a_run_whose_checkpoints_are_gone_does_not_begin_again(copy, run, tmp_path, where):
    """It once began at update 0 without a word, and cut its metrics off, where the advice to move one was followed."""
    workdir = copy(8)
    for step in (4, 8):
        folder = workdir / "checkpoints" / str(step)
        if where == "nowhere":
            shutil.rmtree(folder)
        else:
            to = tmp_path if where == "elsewhere" else workdir / "checkpoints" / "broken"
            to.mkdir(exist_ok=True)
            folder.rename(to / str(step))
    before = files(workdir)
    code, said = run(workdir)
    assert code == 2 and f"{workdir} had checkpoint " in said and "or begin at update 0 with train --fresh=NAME" in said
    assert ("damaged ones lie in" in said) == (where == "broken")
    assert files(workdir) == before
    code, said = run(workdir, "--fresh=again")
    assert code == 0, said
    assert files(workdir / "earlier" / "again").keys() == before.keys()


def test_the_only_checkpoint_is_not_advised_to_be_moved_away(copy, run):
    workdir = copy(8)
    for name in ("files.json", "state/_METADATA"):
        (workdir / "checkpoints" / "8" / name).unlink()
    assert "or go on from checkpoint 4 by moving" in run(workdir)[1]
    shutil.rmtree(workdir / "checkpoints" / "4")
    code, said = run(workdir)
    assert code == 2 and "moving" not in said and "or begin at update 0 with train --fresh=NAME" in said


def test_arrays_that_cannot_be_read_stop_the_run(copy, run):
    """What the library says of them has no class of its own."""
    workdir = copy(8)
    folder = workdir / "checkpoints" / "8"
    (folder / "files.json").write_text("{}")
    arrays = max(
        (path for path in (folder / "state").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    arrays.write_bytes(arrays.read_bytes()[: arrays.stat().st_size // 2])
    before = files(workdir)
    code, said = run(workdir)
    assert code == 2, said
    assert "checkpoint 8 has no files.json that can be read, so that its bytes are not compared" in said
    assert "checkpoint 8 cannot be read (" in said and "Traceback" not in said
    assert files(workdir) == before


@pytest.mark.skipif(not os.path.isdir("/sys/kernel"), reason="a folder in which even root makes none: Linux's /sys")
def test_checkpoints_that_cannot_be_made_are_told_of_at_the_start(text, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to("/sys/kernel")
    assert train_here(tmp_path / "run", text) == 2
    said = capsys.readouterr().err
    assert "the work folder cannot be written (" in said and "step 1" not in said

"""The mean of the last checkpoints, as `evaluate`, `generate` and `export` read it."""

import json
import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import pretrain
from pretrain.checkpoints.average import Averaged
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.checkpoints.params_only import MARK
from pretrain.checkpoints.restore import BEFORE
from pretrain.cli import main
from pretrain.commands.arguments import Export
from pretrain.errors import UserError
from pretrain.interop.hf_export import export_folder
from pretrain.run import Run
from pretrain.workdir import Workdir


@pytest.mark.slow
def test_every_reader_takes_the_same_mean(whole, tmp_path, capsys):
    steps = sorted(int(path.name) for path in (whole / "checkpoints").iterdir() if path.name.isdigit())
    found = [jax.tree.map(np.asarray, pretrain.open(whole, step).variables["params"]) for step in steps[-3:]]
    mean = jax.tree.map(lambda a, b, c: (a + b + c) / np.float32(3), *found)
    averaged = Run(str(whole), average=3)
    assert averaged.step == steps[-1]
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, averaged.variables["params"]), mean)

    said = []
    assert export_folder(str(whole), str(tmp_path / "mean"), report=said.append, average=3) == steps[-1]
    assert [line for line in said if "mean of" in line] == ["the mean of the checkpoints 16, 20, 24 is read"]
    assert main(["import", f"--folder={tmp_path / 'mean'}", f"--workdir={tmp_path / 'back'}"]) == 0
    jax.tree.map(np.testing.assert_array_equal, pretrain.open(tmp_path / "back").variables["params"], mean)

    capsys.readouterr()
    losses = []
    for flag in (f"--workdir={whole}", f"--workdir={tmp_path / 'back'}"):
        more = [] if "back" in flag else ["--average=3"]
        text = f"text:{tmp_path}/text.txt"
        (tmp_path / "text.txt").write_text("def of(some, text):\n    return some(text)\n" * 40)
        assert main(["evaluate", flag, f"--data={text}", "--length=32", "--format=json", *more]) == 0
        printed = capsys.readouterr()
        assert ("the mean of the checkpoints 16, 20, 24 is read" in printed.err) == bool(more)
        losses.append(json.loads(printed.out)["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize(
    ("there", "every", "count", "last", "found"),
    [
        ([8, 10, 12], 2, 3, 12, [8, 10, 12]),
        ([4, 10, 12], 2, 2, 12, [10, 12]),
        ([4, 8, 9], 4, 3, 9, [4, 8, 9]),  # whose last update comes early
        ([4, 6, 7, 8], 4, 3, 8, [6, 7, 8]),  # interrupted twice
        ([4, 5, 8, 12], 4, 2, 8, [5, 8]),
        ([7], 4, 1, 7, [7]),
        (
            [4, 10, 12],
            2,
            3,
            12,
            "has 2 (10, 12, and then 4, but not 8); give at most that, or train on with more --config.train.steps and "
            "--config.checkpoint.keep=3",
        ),
        ([4, 10, 11], 2, 3, 11, "has 2 (10, 11, and then 4, but not 8); give"),
        ([4, 12, 16], 4, 3, 16, "checkpoint.keep=3"),
        ([4, 12, 16], 4, 2, 8, "--average=2 checkpoints up to 8, of which runs/x/checkpoints has 1 (4); give at most"),
        ([16], 4, 2, 16, "has 1 (16); give at most that, or train on"),
    ],
)
def test_the_last_ones_are_those_that_the_run_saved_last(there, every, count, last, found):
    """An old one that is still there, being the best, is not taken for one of them; here none tells what was before."""
    here = Workdir("runs/x")
    checkpoints = SimpleNamespace(steps=lambda: there, trained=lambda: there, folder=here.checkpoints, workdir=here)
    averaged = Averaged(checkpoints, {"every": every, "keep": 2}, count)
    if isinstance(found, str):
        with pytest.raises(UserError, match=re.escape(found)):
            averaged.steps(last)
    else:
        assert averaged.steps(last) == found


def test_imported_weights_are_none_that_training_saved(tmp_path):
    """They are checkpoint 0 of the folder that they were imported into, and stay there among those that are kept."""
    for step in (0, 4, 8):
        (tmp_path / "checkpoints" / str(step) / "data").mkdir(parents=True)
        (tmp_path / "checkpoints" / str(step) / "data" / "metadata").write_text(json.dumps({MARK: step == 0}))
    checkpoints, options = Checkpoints(str(tmp_path)), {"every": 4, "keep": 3}
    assert Averaged(checkpoints, options, 2).steps(8) == [4, 8]
    assert Averaged(checkpoints, options, 1).steps(0) == [0]
    with pytest.raises(
        UserError, match=r"--average=3 checkpoints up to 8, of which .* has 2 \(4, 8\); give at most that"
    ):
        Averaged(checkpoints, options, 3).steps(8)


@pytest.fixture
def saved_after(tmp_path):
    """`saved_after({step: before})`: the checkpoints of a run that says so."""

    def make(before):
        for step, last in before.items():
            (tmp_path / "checkpoints" / str(step) / "data").mkdir(parents=True)
            (tmp_path / "checkpoints" / str(step) / "data" / "metadata").write_text(json.dumps({BEFORE: last}))
        return Checkpoints(str(tmp_path))

    return make


@pytest.mark.parametrize("every", [2, 4, 10])
def test_a_run_that_saved_more_rarely_or_more_often_before_lacks_nothing(saved_after, every):
    """As after --config.checkpoint.every=2 of a run that goes on from update 8, and then 10 from update 11."""
    checkpoints = saved_after({4: 0, 8: 4, 10: 8, 11: 10, 20: 11})
    assert Averaged(checkpoints, {"every": every, "keep": 9}, 5).steps(20) == [4, 8, 10, 11, 20]


@pytest.mark.parametrize("every", [2, 10])
def test_an_old_best_is_not_of_the_last_however_often_is_saved(saved_after, every):
    """2 is the best of 2 to 8; a start that saves every 10 updates makes 10 and 20, and 8 is deleted."""
    averaged = Averaged(saved_after({2: 0, 10: 8, 20: 10}), {"every": every, "keep": 2}, 3)
    with pytest.raises(UserError, match=r"has 2 \(10, 20, and then 2, but not 8\)"):
        averaged.steps(20)


def test_old_checkpoints_which_do_not_tell_are_judged_by_how_often_their_own_run_saved(tmp_path):
    """20 is the best of a run that saved every 10 updates up to 50, then every 50, and then every 10 again."""
    for step, every in ((20, 10), (50, 10), (100, 50), (110, 10)):
        (tmp_path / "checkpoints" / str(step) / "data").mkdir(parents=True)
        noted = {"step": step, "config": {"checkpoint": {"every": every}}}
        (tmp_path / "checkpoints" / str(step) / "data" / "metadata").write_text(json.dumps(noted))
    for every in (10, 50):
        averaged = Averaged(Checkpoints(str(tmp_path)), {"every": every, "keep": 9}, 3)
        assert averaged.steps(110) == [50, 100, 110]
        averaged.count = 4
        with pytest.raises(UserError, match=r"has 3 \(50, 100, 110, and then 20, but not 40\)"):
            averaged.steps(110)


def test_more_than_there_are(whole):
    with pytest.raises(UserError, match=r"--average=99 checkpoints up to 24, of which .* has \d+ \(.*\); give at most"):
        Run(str(whole), average=99)
    with pytest.raises(UserError, match="--average=0; it must be at least 1"):
        Export(workdir=str(whole), folder="x", average=0)

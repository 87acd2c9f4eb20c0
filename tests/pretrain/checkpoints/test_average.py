"""The mean of the last checkpoints, as `evaluate`, `generate` and `export` read it."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import pretrain
from pretrain.checkpoints.average import CheckpointAverage
from pretrain.checkpoints.restore import BEFORE, WEIGHTS_ONLY, Checkpoints
from pretrain.cli import main
from pretrain.commands.arguments import Export
from pretrain.errors import UserError
from pretrain.interop.hf_export import export_folder
from pretrain.run import Run
from pretrain.workdir import Workdir


@pytest.mark.slow
def test_average_is_the_same_for_all_readers(whole, tmp_path, capsys):
    steps = sorted(int(path.name) for path in (whole / "checkpoints").iterdir() if path.name.isdigit())
    found = [jax.tree.map(np.asarray, pretrain.open(whole, step).variables["params"]) for step in steps[-3:]]
    mean = jax.tree.map(lambda a, b, c: (a + b + c) / np.float32(3), *found)
    averaged = Run(str(whole), average=3)
    assert averaged.step == steps[-1]
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, averaged.variables["params"]), mean)

    said = []
    assert export_folder(str(whole), str(tmp_path / "mean"), report=said.append, average=3) == steps[-1]
    assert "averaging checkpoints 16, 20, 24" in said
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
        assert ("averaging checkpoints 16, 20, 24" in printed.err) == bool(more)
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
        ([4, 10, 12], 2, 3, 12, None),
        ([4, 12, 16], 4, 3, 16, None),
        ([4, 12, 16], 4, 2, 8, None),
        ([16], 4, 2, 16, None),
    ],
)
def test_average_steps(there, every, count, last, found):
    """The last steps without a gap; here from old checkpoints, which do not note the step before."""
    here = Workdir("runs/x")
    checkpoints = SimpleNamespace(steps=lambda: there, trained=lambda: there, folder=here.checkpoints, workdir=here)
    average = CheckpointAverage(checkpoints, {"every": every, "keep": 2}, count)
    if found:
        assert average.steps(last) == found
    else:
        with pytest.raises(UserError, match=f"--average={count}"):
            average.steps(last)


def test_average_excludes_imported_weights(tmp_path):
    for step in (0, 4, 8):
        (tmp_path / "checkpoints" / str(step) / "data").mkdir(parents=True)
        notes = json.dumps({WEIGHTS_ONLY: step == 0})
        (tmp_path / "checkpoints" / str(step) / "data" / "metadata").write_text(notes)
    checkpoints, options = Checkpoints(str(tmp_path)), {"every": 4, "keep": 3}
    assert CheckpointAverage(checkpoints, options, 2).steps(8) == [4, 8]
    assert CheckpointAverage(checkpoints, options, 1).steps(0) == [0]
    with pytest.raises(UserError, match="--average=3"):
        CheckpointAverage(checkpoints, options, 3).steps(8)


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
def test_average_steps_by_notes(saved_after, every):
    """As after --config.checkpoint.every=2 from update 8 on, and then 10 from update 11 on."""
    checkpoints = saved_after({4: 0, 8: 4, 10: 8, 11: 10, 20: 11})
    assert CheckpointAverage(checkpoints, {"every": every, "keep": 9}, 5).steps(20) == [4, 8, 10, 11, 20]


@pytest.mark.parametrize("every", [2, 10])
def test_average_excludes_an_old_best(saved_after, every):
    average = CheckpointAverage(saved_after({2: 0, 10: 8, 20: 10}), {"every": every, "keep": 2}, 3)
    with pytest.raises(UserError, match="--average=3"):
        average.steps(20)


def test_average_of_more_than_there_are(whole):
    with pytest.raises(UserError, match="--average=99"):
        Run(str(whole), average=99)
    with pytest.raises(UserError, match="--average=0"):
        Export(workdir=str(whole), folder="x", average=0)

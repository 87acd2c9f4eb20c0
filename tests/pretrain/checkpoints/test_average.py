"""The mean of the last checkpoints, as `evaluate`, `generate` and `export` read it."""

import json

import jax
import numpy as np
import pytest

import pretrain
from pretrain.checkpoints.average import CheckpointAverage
from pretrain.checkpoints.restore import BEFORE, WEIGHTS_ONLY, Checkpoints
from pretrain.cli import main
from pretrain.errors import UserError
from pretrain.interop.hf_export import export_folder
from pretrain.run import Run


@pytest.mark.slow
def test_average_is_the_same_for_all_readers(whole, tmp_path, capsys):
    found = [jax.tree.map(np.asarray, pretrain.open(whole, step).variables["params"]) for step in (16, 20, 24)]
    mean = jax.tree.map(lambda a, b, c: (a + b + c) / np.float32(3), *found)
    averaged = Run(str(whole), average=3)
    assert averaged.step == 24
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, averaged.variables["params"]), mean)

    said = []
    assert export_folder(str(whole), str(tmp_path / "mean"), report=said.append, average=3) == 24
    assert "averaging checkpoints 16, 20, 24" in said
    assert main(["import", f"--folder={tmp_path / 'mean'}", f"--workdir={tmp_path / 'back'}"]) == 0
    jax.tree.map(np.testing.assert_array_equal, pretrain.open(tmp_path / "back").variables["params"], mean)

    (tmp_path / "text.txt").write_text("def of(some, text):\n    return some(text)\n" * 40)
    losses = []
    for flags in ([f"--workdir={whole}", "--average=3"], [f"--workdir={tmp_path / 'back'}"]):
        capsys.readouterr()
        assert main(["evaluate", f"--data=text:{tmp_path}/text.txt", "--length=32", "--format=json", *flags]) == 0
        losses.append(json.loads(capsys.readouterr().out)["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def note(folder, notes):
    """Writes the item `data` of a checkpoint for each step."""
    for step, content in notes.items():
        (folder / "checkpoints" / str(step) / "data").mkdir(parents=True)
        (folder / "checkpoints" / str(step) / "data" / "metadata").write_text(json.dumps(content))
    return Checkpoints(str(folder))


@pytest.mark.parametrize(
    ("before", "count", "last", "found"),
    [
        ({4: 0, 8: 4, 10: 8, 11: 10, 20: 11}, 5, 20, [4, 8, 10, 11, 20]),
        ({4: 0, 8: 4, 10: 8, 11: 10, 20: 11}, 2, 10, [8, 10]),
        ({2: 0, 10: 8, 20: 10}, 2, 20, [10, 20]),
        ({2: 0, 10: 8, 20: 10}, 3, 20, None),  # 2 was kept as the best, and 8 is gone
        ({2: 0, 10: 8, 20: 10}, 2, 10, None),
        ({7: 0}, 1, 7, [7]),
        ({7: 0}, 2, 7, None),
    ],
)
def test_average_steps(tmp_path, before, count, last, found):
    average = CheckpointAverage(note(tmp_path, {step: {BEFORE: one} for step, one in before.items()}), count)
    if found:
        assert average.steps(last) == found
    else:
        with pytest.raises(UserError):
            average.steps(last)


def test_average_excludes_imported_weights(tmp_path):
    checkpoints = note(tmp_path, {0: {WEIGHTS_ONLY: True}, 4: {}, 8: {}})  # old ones do not note the step before
    assert CheckpointAverage(checkpoints, 2).steps(8) == [4, 8]
    assert CheckpointAverage(checkpoints, 1).steps(0) == [0]
    with pytest.raises(UserError):
        CheckpointAverage(checkpoints, 3).steps(8)

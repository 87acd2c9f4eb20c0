"""The mean of the last checkpoints, as `evaluate`, `generate` and `export` read it."""

import json

import jax
import numpy as np
import pytest

import pretrain
from pretrain.commands.arguments import Export
from pretrain.errors import UserError
from pretrain.interop.exports import export_folder
from pretrain.main import main
from pretrain.run import Run


def test_every_reader_takes_the_same_mean(whole, tmp_path, capsys):
    steps = sorted(int(path.name) for path in (whole / "checkpoints").iterdir() if path.name.isdigit())
    found = [jax.tree.map(np.asarray, pretrain.open(whole, step).variables["params"]) for step in steps[-3:]]
    mean = jax.tree.map(lambda a, b, c: (a + b + c) / np.float32(3), *found)
    averaged = Run(str(whole), average=3)
    assert averaged.step == steps[-1]
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, averaged.variables["params"]), mean)

    assert export_folder(str(whole), str(tmp_path / "mean"), average=3) == steps[-1]
    assert main(["import", f"--folder={tmp_path / 'mean'}", f"--workdir={tmp_path / 'back'}"]) == 0
    jax.tree.map(np.testing.assert_array_equal, pretrain.open(tmp_path / "back").variables["params"], mean)

    capsys.readouterr()
    losses = []
    for flag in (f"--workdir={whole}", f"--workdir={tmp_path / 'back'}"):
        more = [] if "back" in flag else ["--average=3"]
        text = f"text:{tmp_path}/text.txt"
        (tmp_path / "text.txt").write_text("def of(some, text):\n    return some(text)\n" * 40)
        assert main(["evaluate", flag, f"--data={text}", "--length=32", "--format=json", *more]) == 0
        losses.append(json.loads(capsys.readouterr().out)["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_more_than_there_are(whole):
    with pytest.raises(UserError, match=r"--average=99 checkpoints up to 24, .* has \d+; give at most that, or keep"):
        Run(str(whole), average=99)
    with pytest.raises(UserError, match="--average=0; it must be at least 1"):
        Export(workdir=str(whole), folder="x", average=0)

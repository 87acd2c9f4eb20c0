"""`model.mix`: the head of a task reads a weighted sum of all layers (ELMo)."""

import json
from pathlib import Path

import numpy as np
import pytest
from runs import leaves
from test_runs import recipe

from pretrain import cli

MIX = ["--config.model.mix=plain", "--config.model.layers=2", "--config.schedule.warmup=0", "--config.train.steps=4"]
MIX += ["--config.checkpoint.every=1", "--config.checkpoint.keep=9"]
HEAD = "--config.optimizer.frozen=('*', '!task_head', '!scalar_mix')"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"text": f"{word} {n}", "label": n % 2}) + "\n" for n in range(40) for word in ("a", "the")]
    for name, some in (("train", lines[:60]), ("dev", lines[60:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(some))
    return tmp_path


def moved(before, after):
    """Parameters, and layers of stacked ones, that differ between two checkpoints of the run."""
    one, other = (leaves(Path("run").absolute(), step) for step in (before, after))
    names = [name for name in one if name.startswith("['params']")]
    found = {name.split("'")[3]: one[name] != other[name] for name in names if "layers" not in name}
    changed = {name for name, differs in found.items() if differs.any()}
    stacked = [one[name] != other[name] for name in names if "layers" in name]
    return changed | {layer for layer in range(2) if any(differs[layer].any() for differs in stacked)}


def test_frozen_body_learns_the_mix(folder, capsys):
    assert cli.main([*recipe(folder, "classification"), *MIX, HEAD]) == 0
    assert moved(1, 4) == {"scalar_mix", "task_head"}
    state = leaves(folder / "run", 4)
    moments = {name for name in state if "opt_state" in name and state[name].ndim and "'mu'" in name}
    assert moments and all("task_head" in name or "scalar_mix" in name for name in moments)
    capsys.readouterr()
    assert cli.main(["evaluate", "--workdir=run", "--format=json"]) == 0
    weights = json.loads(capsys.readouterr().out.splitlines()[-1])["mix"]
    raw = np.exp(state["['params']['scalar_mix']['weights']"])
    np.testing.assert_allclose(weights, raw / raw.sum(), atol=1e-6)
    assert len(weights) == 3 and np.ptp(weights) > 0


def test_unfrozen_from_the_top(folder):
    """The mix is trained from the start, as heads are; the tables, which it reads too, at last."""
    assert cli.main([*recipe(folder, "classification"), *MIX, "--config.optimizer.unfreeze=1"]) == 0
    stages = [moved(step, step + 1) for step in (1, 2, 3)]
    assert all({"scalar_mix", "task_head"} <= stage for stage in stages)
    assert [stage & {0, 1, "tokens"} for stage in stages] == [{1}, {0, 1}, {0, 1, "tokens"}]


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (["--config.model.mix=sum"], "model.mix"),
        (["--config.model.mix=plain", "--config.optimizer.frozen=('*', '!task_head')"], "!scalar_mix"),
    ],
)
def test_mistakes(keys, problem, folder, capsys):
    assert cli.main([*recipe(folder, "classification"), *keys]) == 2
    assert problem in capsys.readouterr().err

"""Kill it anywhere, start it again: the run ends with the very bits of one that was never touched."""

import json
import random
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from runs import ROOT, STEPS, assert_same_leaves, command, environment, leaves, rows, train, train_here

from pretrain.checkpoints.manager import CheckpointManager
from pretrain.cli import main
from pretrain.workdir import Workdir


def read_tokens(workdir) -> int:
    """Tokens of the training split, as `prepare` counts them."""
    done = subprocess.run(
        [sys.executable, "-m", "pretrain", "prepare", f"--workdir={workdir}", "--format=json"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
    )
    return next(row["tokens"] for row in map(json.loads, done.stdout.splitlines()) if row["split"] == "train")


def test_resume_is_bit_exact(whole, copy, text):
    workdir = copy(12)
    done = train(workdir, text)
    assert done.returncode == 0, done.stderr
    assert "restored checkpoint 12" in done.stderr
    epochs = re.search(r"devices 1 x cpu .* tokens/step 512  steps 24 \((\S+) epochs\)", done.stderr)[1]
    assert float(epochs) == pytest.approx(24 * 512 / read_tokens(workdir), rel=0.01)
    assert "done: 24 steps (12 in this start) in " in done.stderr
    assert_same_leaves(leaves(workdir), leaves(whole))
    for name in ("train.csv", "train.jsonl", "validation.csv"):
        assert rows(workdir / "metrics" / name) == rows(whole / "metrics" / name)
    found = [json.loads(line) for line in (workdir / "metrics" / "train.jsonl").read_text().splitlines()]
    assert [row["tokens_seen"] for row in found] == [512 * step for step in range(1, 25)]
    seconds = [row["seconds"] for row in found]
    assert seconds == sorted(seconds) and all(row["host_peak_bytes"] > 1e8 for row in found)


@pytest.mark.slow
def test_rows_are_written_before_a_checkpoint(tmp_path, text, signals, monkeypatch):
    """So that a run killed as soon as it is whole lacks none."""
    saving, rows = CheckpointManager.save, tmp_path / "metrics" / "train.jsonl"
    there = {}

    def save(self, step, *told):
        there.setdefault(step, [json.loads(row)["step"] for row in rows.read_text().splitlines()])
        return saving(self, step, *told)

    monkeypatch.setattr(CheckpointManager, "save", save)
    assert train_here(tmp_path, text, train__steps=10) == 0
    assert there == {step: [*range(1, step + 1)] for step in (4, 8, 10)}


def test_allowed_keys_change_from_the_resumed_step_on(whole, copy, text, signals, capsys):
    """Recorded once, shown, and no obstacle to later starts, nor to reading checkpoints made before."""
    workdir = copy(12)
    keys = {"schedule__peak": 1e-4, "optimizer__weight_decay": 0.2, "schedule__kind": "constant", "train__steps": 28}
    assert train_here(workdir, text, **keys) == 2
    assert "--allow=optimizer.weight_decay,schedule.kind,schedule.peak " in capsys.readouterr().err
    assert train_here(workdir, text, "--allow=schedule, optimizer.weight_decay", **keys) == 0
    told = capsys.readouterr().err
    assert "schedule.peak 0.003 -> 0.0001 from step 13" in told and "changes the schedule" not in told
    # As if killed before its first checkpoint, and started again without the keys: the folder has them.
    for step in Workdir(workdir).steps():
        if step > 12:
            shutil.rmtree(workdir / "checkpoints" / str(step))
    assert main(["train", f"--workdir={workdir}"]) == 0
    rates = [json.loads(line) for line in (workdir / "metrics" / "train.jsonl").read_text().splitlines()]
    before = [json.loads(line) for line in (whole / "metrics" / "train.jsonl").read_text().splitlines()]
    assert [row["learning_rate"] for row in rates[:12]] == [row["learning_rate"] for row in before[:12]]
    assert [row["learning_rate"] for row in rates[12:]] == pytest.approx([1e-4] * 16)
    assert main(["describe", f"--workdir={workdir}", "--format=json"]) == 0
    found = json.loads(capsys.readouterr().out)["run"]["changes"]
    assert {(row["key"], row["now"], row["step"]) for row in found} == {
        *(("schedule.peak", 1e-4, 12), ("optimizer.weight_decay", 0.2, 12)),
        *(("schedule.kind", "constant", 12), ("train.steps", 28, 12)),
    }
    assert len(found) == 4 and all(row["date"].endswith(" UTC") for row in found)
    assert main(["evaluate", f"--workdir={workdir}", "--step=12"]) == 0


def test_start_without_steps_deletes_no_checkpoint(whole, tmp_path, text, signals, capsys):
    """Nor the best one, if validations are made otherwise now; and the folder keeps the run's own config."""
    workdir = shutil.copytree(whole, tmp_path / "run")
    assert train_here(workdir, text, evaluate__batches=2, checkpoint__keep=1, schedule__decay_steps=500) == 0
    assert (workdir / "config.json").read_text() == (whole / "config.json").read_text()
    said = capsys.readouterr().err
    assert f"all {STEPS} steps are done" in said and "nothing is evaluated again" in said
    assert Workdir(str(workdir)).steps() == Workdir(str(whole)).steps()


@pytest.mark.slow
def test_kill_9_at_random_moments(whole, tmp_path, text):
    """Real processes killed at random points, some of them inside a save, until one gets to the end."""
    workdir, rng, kills = tmp_path / "run", random.Random(0), 0
    workdir.mkdir()
    for _ in range(12):
        process = subprocess.Popen(
            command(workdir, text, checkpoint__every=1),
            cwd=ROOT,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        lines = rng.randint(1, 8)  # wait for so many updates, then a moment more, then kill
        for line in process.stderr:
            lines -= line.startswith("step ")
            if lines <= 0:
                break
        time.sleep(rng.random() * 0.05)
        process.kill()
        process.stderr.close()
        if process.wait() == 0:
            break
        kills += 1
    assert kills >= 3
    done = train(workdir, text, checkpoint__every=1)
    assert done.returncode == 0, done.stderr
    assert_same_leaves(leaves(workdir), leaves(whole))


@pytest.mark.slow
def test_resume_on_more_devices(whole, copy, text):
    workdir = copy(20)
    done = train(workdir, text, devices=4, mesh__fsdp=2)
    assert done.returncode == 0, done.stderr
    for name, leaf in leaves(workdir).items():
        np.testing.assert_allclose(leaf, leaves(whole)[name], atol=1e-4, err_msg=name)  # sums in another order

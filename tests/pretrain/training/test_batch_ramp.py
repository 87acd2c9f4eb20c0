"""Runs whose batches grow: resumed to the bit across borders, and counted right."""

import json
import re
import shutil

import pytest
from runs import assert_same_leaves, leaves, rows, train_here

from pretrain.cli import main
from pretrain.workdir import Workdir

GROWING = {"train__batch_size": 16, "train__batch_ramp": "(8, 8, 40)", "train__steps": 8, "checkpoint__every": 3}
GROWING |= {"evaluate__every": 0, "evaluate__batches": 1}
ROWS = [8, 8, 8, 8, 8, 16, 16, 16]
LENGTH = 64


def test_run_with_growing_batches(text, tmp_path, signals, capsys):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train_here(whole, text, **GROWING) == 0
    said = capsys.readouterr().err
    epochs = float(re.search(r"tokens/step 512 to 1,024  steps 8 \((\S+) epochs\)", said)[1])
    assert main(["prepare", f"--workdir={whole}", "--format=json"]) == 0
    counted = map(json.loads, capsys.readouterr().out.splitlines())
    tokens = next(row["tokens"] for row in counted if row["split"] == "train")
    assert epochs == pytest.approx(sum(ROWS) * LENGTH / tokens, rel=0.01)
    made = [json.loads(line) for line in (whole / "metrics" / "train.jsonl").read_text().splitlines()]
    assert [row["tokens_seen"] for row in made] == [sum(ROWS[:step]) * LENGTH for step in range(1, 9)]

    shutil.copytree(whole, cut)
    for step in Workdir(str(cut)).steps():
        if step > 3:  # in the middle of the first size
            shutil.rmtree(cut / "checkpoints" / str(step))
    assert train_here(cut, text, **GROWING) == 0
    assert "continuing at step 4/8" in capsys.readouterr().err
    assert_same_leaves(leaves(cut, 8), leaves(whole, 8))
    assert rows(cut / "metrics" / "train.csv") == rows(whole / "metrics" / "train.csv")
    assert train_here(cut, text, **GROWING | {"train__batch_ramp": "(8, 8, 48)", "train__steps": 9}) == 2
    assert "train.batch_ramp" in capsys.readouterr().err

    assert main(["describe", f"--workdir={cut}", "--format=json"]) == 0
    ramp = json.loads(capsys.readouterr().out)["batch_ramp"]
    stages = [(stage["step"], stage["rows"]) for stage in ramp["stages"]]
    assert (stages, ramp["tokens"]) == ([(1, 8), (6, 16)], sum(ROWS) * LENGTH)

"""Several seeds: each run is the run of that seed alone, and the table is of their last validations."""

import json
import shutil
import statistics

import numpy as np
import pytest
from runs import SMALL, leaves, train_here

QUICK = SMALL | {"train.steps": 4, "evaluate.every": 2, "checkpoint.every": 2, "schedule.warmup": 1}


def last(folder):
    return json.loads((folder / "metrics/validation.jsonl").read_text().splitlines()[-1])


@pytest.mark.slow
def test_trials_are_runs_of_their_seeds(text, tmp_path, capsys):
    whole, keys = tmp_path / "whole", QUICK | {"seed": 3, "train.trials": 3}
    assert train_here(whole, text, small=keys) == 0
    output = capsys.readouterr().out
    assert train_here(tmp_path / "alone", text, small=QUICK | {"seed": 4}) == 0
    alone, trial = leaves(tmp_path / "alone", 4), leaves(whole / "seed4", 4)
    for name in alone:
        np.testing.assert_array_equal(alone[name], trial[name], err_msg=name)

    losses = [last(whole / f"seed{seed}")["loss"] for seed in (3, 4, 5)]
    assert len(set(losses)) == 3
    known = statistics.median(losses), np.std(losses, ddof=1), min(losses), max(losses)
    found = json.loads((whole / "trials.json").read_text())
    np.testing.assert_allclose(list(found["measures"]["loss"].values()), known)
    assert "last validations of 3 seeds" in output and f"{known[0]:.4f}" in output
    assert not (whole / "seed4/data").exists()  # tokenised once

    # Interrupted after update 2 of the second: the first is left alone, the others continue to the same end.
    (whole / "trials.json").unlink()
    shutil.rmtree(whole / "seed4/checkpoints/4")
    shutil.rmtree(whole / "seed5")
    before = (whole / "seed3/goodput.jsonl").read_bytes()
    capsys.readouterr()
    assert train_here(whole, text, small=keys) == 0
    log = "".join(capsys.readouterr())
    assert "seed3 is finished" in log and "restored checkpoint 2" in log
    assert (whole / "seed3/goodput.jsonl").read_bytes() == before
    assert json.loads((whole / "trials.json").read_text()) == found

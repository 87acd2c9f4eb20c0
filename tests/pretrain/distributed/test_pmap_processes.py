"""Two processes, under `pmap` and `jit`, train to the same state as one, recurrent memory included."""

import subprocess

import numpy as np
import pytest
from runs import ROOT, SMALL, command, environment, launched, leaves

from pretrain.cli import main

STEPS, CUT = 6, 3
ALL = {
    "schedule.warmup": 2,
    "schedule.decay_steps": STEPS,
    "checkpoint.every": CUT,
    "evaluate.every": CUT,
    "evaluate.batch_size": 8,
    "log.every": 1,
    "log.seconds": 0,
    "log.tensorboard": "false",
}
BASE = {
    "model.layers": 2,
    "model.width": 16,
    "model.heads": 2,
    "model.ff": 32,
    "model.init_std": 0.2,  # at the usual 0.02 attention is uniform and hides mistakes
    "optimizer.name": "sgd",  # Adam magnifies rounding in near-zero gradients
    "schedule.peak": 0.1,
}
RECURRENT = BASE | {
    "model.memory": 32,
    "model.dropout": 0.0,  # each device draws its own
    "data.length": 16,
    "evaluate.length": 16,
    "evaluate.batches": 3,
}
TWO_STREAM = BASE | {
    "model.memory": 24,
    "model.reuse": 16,
    "model.dropout": 0.1,  # drawn by row, whatever device has it
    "model.vocab_size": 402,
    "objective.reuse": 16,
    "objective.perm_size": 16,
    "objective.predictions": 6,
    "data.length": 32,
    "train.batch_size": 8,
    "tokenizer.train_bytes": 100_000,
    "tokenizer.vocab_size": 400,
    "evaluate.batches": 2,
}
DENSE = SMALL | {
    "model.dropout_residual": 0.1,  # each device draws its own: the eight of two processes as the eight of one
    "train.accumulate": 2,
    "train.batch_size": 16,
    "optimizer.name": "muon",
}


def arguments(kind, workdir, text, **changes):
    recipes = (
        (RECURRENT, "transformer_xl.py:tiny"),
        (TWO_STREAM, "xlnet.py:mini_stdlib"),
        (DENSE, "quickstart.py:tiny"),
    )
    recipe = next(recipe for one, recipe in recipes if one is kind)
    return command(workdir, text, f"configs/{recipe}", kind | ALL, **changes)[3:]


def run_two_processes(kind, workdir, text, devices, **changes):
    line = launched(f"{workdir}-logs", *arguments(kind, workdir, text, **changes), devices=devices)
    done = subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def run_here(kind, workdir, text, **changes):
    assert main(arguments(kind, workdir, text, **changes)) == 0


def validation(workdir):
    rows = (workdir / "metrics" / "validation.csv").read_text().splitlines()
    return np.array([[float(value) for value in row.split(",")] for row in rows[1:]])


def assert_same_run(workdir, whole):
    found, expected = leaves(workdir, STEPS), leaves(whole, STEPS)
    assert found.keys() == expected.keys()
    for name, leaf in expected.items():
        np.testing.assert_allclose(found[name], leaf, atol=1e-4, err_msg=name)  # sums in another order
    np.testing.assert_allclose(validation(workdir), validation(whole), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "backend"), [(RECURRENT, "jit"), (TWO_STREAM, "pmap")], ids=["xl", "xlnet"])
def test_recurrent_memory_across_processes(kind, backend, text, tmp_path, signals):
    """Eight lanes over four devices of two processes, or eight devices of one: each resumes the other."""
    whole, there, back = (tmp_path / name for name in ("whole", "there", "back"))
    run_here(kind, whole, text, train__steps=STEPS)
    run_two_processes(kind, there, text, 2, train__backend=backend, train__steps=CUT)
    run_here(kind, there, text, train__steps=STEPS)
    run_here(kind, back, text, train__steps=CUT)
    run_two_processes(kind, back, text, 2, train__backend=backend, train__steps=STEPS)
    expected = leaves(whole, STEPS)
    hidden, held = (expected[f"['carried']['attention']['{name}']"] for name in ("hidden", "held"))
    assert (held == kind["model.memory"]).all()
    assert (np.abs(hidden).max((-1, -2)) > 0).all()  # every layer of every lane remembers
    for workdir in (there, back):
        assert_same_run(workdir, whole)


@pytest.mark.slow
def test_pmap_in_two_processes_equals_one(text, tmp_path, signals):
    whole, there = tmp_path / "whole", tmp_path / "there"
    run_here(DENSE, whole, text, train__backend="pmap", train__steps=STEPS)
    run_two_processes(DENSE, there, text, 4, train__backend="pmap", train__steps=CUT)
    run_here(DENSE, there, text, train__backend="pmap", train__steps=STEPS)
    assert_same_run(there, whole)

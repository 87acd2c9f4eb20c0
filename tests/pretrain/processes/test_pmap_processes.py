"""Two real processes, under `pmap` above all: every kind of state, memory included, is what one makes of it."""

import subprocess

import numpy as np
import pytest
from runs import ROOT, SMALL, command, environment, launched, leaves

from pretrain.main import main

STEPS, CUT = 6, 3
ALL = {
    "schedule.warmup": 2,
    "schedule.decay_steps": STEPS,
    "checkpoint.every": CUT,
    "evaluate.every": CUT,
    "evaluate.batch_size": 8,
    "log.every": 1,
    "log.tensorboard": "false",
}
RECURRENT = {
    "model.layers": 2,
    "model.width": 16,
    "model.heads": 2,
    "model.ff": 32,
    "model.memory": 32,
    "model.dropout": 0.0,  # each device draws its own
    "model.init_std": 0.2,  # at the usual 0.02 attention is uniform and hides mistakes
    "data.length": 16,
    "evaluate.length": 16,
    "optimizer.name": "sgd",  # Adam magnifies rounding in near-zero gradients
    "schedule.peak": 0.1,
    "evaluate.batches": 3,
}
DENSE = SMALL | {
    "model.dropout_residual": 0.1,  # each device draws its own: the eight of two processes as the eight of one
    "train.accumulate": 2,
    "train.batch_size": 16,
    "optimizer.name": "muon",
}


def arguments(kind, workdir, text, **changes):
    recipe = "transformer_xl" if kind is RECURRENT else "quickstart"
    return command(workdir, text, f"configs/{recipe}.py:tiny", kind | ALL, **changes)[3:]


def in_two_processes(kind, workdir, text, devices, **changes):
    line = launched(f"{workdir}-logs", *arguments(kind, workdir, text, **changes), devices=devices)
    done = subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def here(kind, workdir, text, **changes):
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
@pytest.mark.parametrize("backend", ["pmap", pytest.param("jit", marks=pytest.mark.slow)])
def test_memory_in_two_processes_and_under_jit_in_one_go_on_with_each_other(backend, text, tmp_path, signals):
    """Eight lanes over four devices of two processes, or over eight of one: each goes on where the other stopped."""
    whole, there, back = (tmp_path / name for name in ("whole", "there", "back"))
    here(RECURRENT, whole, text, train__steps=STEPS)
    in_two_processes(RECURRENT, there, text, 2, train__backend=backend, train__steps=CUT)
    here(RECURRENT, there, text, train__steps=STEPS)
    here(RECURRENT, back, text, train__steps=CUT)
    in_two_processes(RECURRENT, back, text, 2, train__backend=backend, train__steps=STEPS)
    expected = leaves(whole, STEPS)
    hidden, held = (expected[f"['carried']['attention']['{name}']"] for name in ("hidden", "held"))
    assert (held == 32).all()
    assert (np.abs(hidden).max((-1, -2)) > 0).all()  # every layer of every lane remembers
    for workdir in (there, back):
        assert_same_run(workdir, whole)


@pytest.mark.slow
def test_dropout_accumulation_and_muon_under_pmap_in_two_processes_equal_one(text, tmp_path, signals):
    whole, there = tmp_path / "whole", tmp_path / "there"
    here(DENSE, whole, text, train__backend="pmap", train__steps=STEPS)
    in_two_processes(DENSE, there, text, 4, train__backend="pmap", train__steps=CUT)
    here(DENSE, there, text, train__backend="pmap", train__steps=STEPS)
    assert_same_run(there, whole)

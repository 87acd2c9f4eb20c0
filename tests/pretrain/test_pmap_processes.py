"""`pmap` over two real processes: every kind of state, memory included, is what `jit` in one process makes of it."""

import subprocess
import sys

import numpy as np
from runs import ROOT, environment, leaves

from pretrain.main import main

STEPS, CUT = 6, 3
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
    "schedule.warmup": 2,
    "schedule.decay_steps": STEPS,
    "checkpoint.every": CUT,
    "evaluate.every": CUT,
    "evaluate.batches": 3,
    "evaluate.batch_size": 8,
    "log.every": 1,
    "log.tensorboard": "false",
}


def arguments(workdir, text, **changes):
    keys = RECURRENT | {"data.train": f"text:{text}/*.py"} | {k.replace("__", "."): v for k, v in changes.items()}
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    return ["train", "--config=configs/transformer_xl.py:tiny", f"--workdir={workdir}", *flags]


def in_two_processes(workdir, text, **changes):
    flags = ["--processes=2", "--devices=2", f"--logs={workdir}-logs", "--"]
    line = [sys.executable, "-m", "launch.local", *flags, *arguments(workdir, text, train__backend="pmap", **changes)]
    done = subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def here(workdir, text, **changes):
    assert main(arguments(workdir, text, **changes)) == 0


def validation(workdir):
    rows = (workdir / "metrics" / "validation.csv").read_text().splitlines()
    return np.array([[float(value) for value in row.split(",")] for row in rows[1:]])


def test_memory_under_pmap_in_two_processes_and_under_jit_in_one_go_on_with_each_other(text, tmp_path, signals):
    """Eight lanes over four devices of two processes, or over eight of one: each goes on where the other stopped."""
    whole, there, back = (tmp_path / name for name in ("whole", "there", "back"))
    here(whole, text, train__steps=STEPS)
    in_two_processes(there, text, train__steps=CUT)
    here(there, text, train__steps=STEPS)
    here(back, text, train__steps=CUT)
    in_two_processes(back, text, train__steps=STEPS)
    expected = leaves(whole, STEPS)
    assert (expected["['memory']['held']"] == 32).all()
    assert (np.abs(expected["['memory']['hidden']"]).max((-1, -2)) > 0).all()  # every layer of every lane remembers
    for workdir in (there, back):
        found = leaves(workdir, STEPS)
        assert found.keys() == expected.keys()
        for name, leaf in expected.items():
            np.testing.assert_allclose(found[name], leaf, atol=1e-4, err_msg=name)  # sums in another order
        np.testing.assert_allclose(validation(workdir), validation(whole), rtol=1e-4)

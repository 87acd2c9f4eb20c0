"""Small real runs of the real program, and what they leave behind, for tests of resuming and of several processes."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from launch.local import free_port
from pretrain.cli import main
from pretrain.distributed.shutdown import SIGNALS
from pretrain.metrics.writer import MACHINE

ROOT = Path(__file__).resolve().parents[2]
STEPS = 24
SMALL = {
    "tokenizer.kind": "bytes",
    "model.vocab_size": 257,
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "model.ff": 32,
    "model.dropout_residual": 0.1,  # so that the random state matters too
    "train.steps": STEPS,
    "train.compare_every": 0,  # its program takes longer to compile than all updates take; test_replica_check.py has it
    "checkpoint.every": 4,
    "checkpoint.keep": 100,
    "evaluate.every": 8,
    "evaluate.batches": 1,
    "log.every": 1,
    "log.seconds": 0,
    "log.tensorboard": "false",
}


def mostly(cases, *slow):
    """Parameters of a test: all cases, those named marked as slow because the others show nearly as much."""
    assert {*slow} < {*cases}
    return [pytest.param(case, marks=pytest.mark.slow) if case in slow else case for case in cases]


def command(workdir, text, recipe="configs/quickstart.py:tiny", small=SMALL, **overrides):
    """The command line of a run of a recipe with the keys `small`, on the files of the folder `text`."""
    keys = small | {"data.train": f"text:{text}/*.py"} | {k.replace("__", "."): v for k, v in overrides.items()}
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    return [sys.executable, "-m", "pretrain", "train", f"--config={recipe}", f"--workdir={workdir}", *flags]


def launched(logs, *arguments, processes=2, devices=1):
    """The command line of `pretrain` with these arguments, in several processes of so many devices each."""
    flags = [f"--processes={processes}", f"--devices={devices}", f"--logs={logs}"]
    return [sys.executable, "-m", "launch.local", *flags, "--", *arguments]


def environment(devices=1):
    """Compiles as quickly as the tests' own process does; as users do, `run_pretrain`."""
    flags = re.sub(r"device_count=\d+", f"device_count={devices}", os.environ["XLA_FLAGS"])
    return os.environ | {"XLA_FLAGS": flags, "PYTHONUNBUFFERED": "1"}


def train(workdir, text, devices=1, before=(), **overrides):
    return subprocess.run(
        [*before, *command(workdir, text, **overrides)],
        cwd=ROOT,
        env=environment(devices),
        capture_output=True,
        text=True,
        timeout=300,
    )


def pair(*arguments, own=((), ()), variables=({}, {}), **options):
    """Two processes of one run, joined as a scheduler would, each with pipes; `own` are further arguments of each, and
    `variables` what is another in its environment."""
    meeting = {"LONGHAUL_COORDINATOR": f"127.0.0.1:{free_port()}", "LONGHAUL_PROCESSES": "2"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [
        subprocess.Popen(
            [*arguments, *own[index]],
            cwd=ROOT,
            env=environment() | meeting | {"LONGHAUL_PROCESS": str(index)} | variables[index],
            **(pipes | options),
        )
        for index in range(2)
    ]


def ends(processes, timeout=60):
    """(exit code, standard output, standard error) of each."""
    try:
        ended = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *said) for process, said in zip(processes, ended, strict=True)]


def train_here(workdir, text, *flags, **overrides):
    """The same run in this process, on its eight devices: exit code 0, 2 with a sentence on stderr, or an exception."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        return main([*command(workdir, text, **overrides)[3:], *flags])
    finally:  # the loop takes them over
        for number, handler in handlers.items():
            signal.signal(number, handler)


def files(workdir):
    """Every file of a run but its data and lock, and what it holds."""
    found = (p.relative_to(workdir) for p in workdir.rglob("*") if p.is_file())
    return {str(p): (workdir / p).read_bytes() for p in found if p.parts[0] not in ("data", "tokenizer", "lock")}


def leaves(workdir, step=STEPS):
    """Every leaf of a checkpoint's train state, by path, as written."""
    folder = Path(workdir) / "checkpoints" / str(step) / "state"
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        stored = reader.metadata(folder).item_metadata.tree
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), stored)
        tree = reader.restore(folder, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def assert_same_leaves(a, b, least=31):
    assert a.keys() == b.keys()
    assert len(a) >= least
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def rows(path):
    """Rows of a CSV or JSONL file of metrics, without what measures the machine."""
    with path.open(newline="") as file:
        found = list(csv.DictReader(file) if path.suffix == ".csv" else map(json.loads, file))
    return [{name: value for name, value in row.items() if name not in MACHINE} for row in found]

"""Command lines of benchmarks, and processes that end with their benchmark."""

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import report, xl_training

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("soak", ["--out=/nope/x.json"], "--out"),
        ("faults", ["--only=nonsense"], "nonsense"),
        ("counts", ["--text=text:/nope/*"], "/nope"),
        ("learnt", ["--probe=/no/a,/no/b"], "--probe"),
        ("small_step", ["--text=/nope"], "--text"),
        ("tpu_compile", ["--only=dense;dens"], "dens"),
    ],
)
def test_command_line_mistake(name, options, key, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, *options])
    with pytest.raises(SystemExit, match="2"):
        report.run(importlib.import_module(f"benchmarks.{name}").main)
    assert key in capsys.readouterr().err


def test_xl_training_compares_different_models():
    runs = xl_training.candidates(length=16, lanes=2, layers=1, dtype="float32")
    assert runs.keys() == {"transformer_xl", "dense", "decoder"}
    gradients = {name: [np.asarray(leaf) for leaf in jax.tree.leaves(run())] for name, run in runs.items()}
    assert all(np.isfinite(leaf).all() for leaves in gradients.values() for leaf in leaves)
    assert any((a != b).any() for a, b in zip(gradients["transformer_xl"], gradients["dense"], strict=True))


def reaches(stat, state):
    """Whether a process is soon in a state, or gone."""
    until = time.monotonic() + 30
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != state and time.monotonic() < until:
        time.sleep(0.05)
    return time.monotonic() < until


@pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal")
def test_stopped_program_ends_with_its_benchmark(tmp_path):
    (tmp_path / "idle.py").write_text("def nothing():\n    return {}\n")
    source = "import sys, time; from benchmarks.turns import Program; "
    source += "print(Program('idle:nothing', 'ours', 'kept').process.pid, flush=True); time.sleep(60)"
    variables = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    command = [sys.executable, "-c", source]
    with subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE) as benchmark:
        program = Path(f"/proc/{int(benchmark.stdout.readline())}/stat")
        assert reaches(program, "T")
        benchmark.send_signal(signal.SIGKILL)
    assert reaches(program, "Z")

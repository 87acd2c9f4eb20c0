"""What benchmarks are told wrongly is one sentence before anything is measured, and nothing that they start is left."""

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

from benchmarks import job, learning, report, tpu_compile, xl_training
from pretrain import config as configs
from pretrain.commands.describe import describe
from pretrain.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("soak", ["--jobs=0"], "--jobs: 0 is not a whole number above 0"),
        ("soak", ["--runs=-3"], "--runs: -3 is not a whole number above 0"),
        ("soak", ["--out=/nope/x.json"], "--out: /nope/x.json is no name of a file in a folder that is there"),
        ("faults", ["--trials=-1"], "--trials: -1 is not a whole number above 0"),
        ("faults", ["--only=nonsense"], "--only=nonsense is in the name of no fault; choose from: "),
        ("faults", ["--keep=/tmp"], "--keep=/tmp is there already; name a new folder"),
        ("memory", ["--updates=x"], "--updates: x is not a whole number above 0"),
        ("memory", ["--chart=/tmp"], "--chart: /tmp is no name of a file in a folder that is there"),
        ("counts", ["--text=text:/nope/*"], "text:/nope/*"),
        ("faults", ["--only=SIGTERM", f"--keep={__file__}/x"], "/x cannot be made (Not a directory); name another"),
        ("memory", ["--updates=149"], "--updates=149 are saved less than three times, every 50"),
        ("learnt", ["--probe=/no/a,/no/b"], "--probe=/no/a,/no/b is not 2 gzipped files"),
        ("learnt", [f"--probe={__file__},{__file__}"], " is not 2 gzipped files"),
        ("learnt", ["--tune=/no/a"], "--tune=/no/a is not 3 gzipped files"),
        ("learning", ["x.svg", "/nope"], "/nope is not a work folder"),
        ("small_step", ["--text=/nope"], "--text=/nope is no file"),
        ("small_step", [f"--text={ROOT}/input_pipeline/__init__.py"], "/__init__.py is too short: a tenth of it"),
        ("accelerator_step", ["--remat=foo"], "argument --remat: invalid choice: 'foo'"),
    ],
)
def test_what_cannot_be_is_one_sentence(name, options, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, *options])
    with pytest.raises(SystemExit, match="2"):
        report.run(importlib.import_module(f"benchmarks.{name}").main)
    assert words in capsys.readouterr().err


def test_a_program_that_is_not_compiled_is_named(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tpu_compile", "--only=dense;dens"])
    with pytest.raises(SystemExit, match="2"):
        tpu_compile.main()
    assert "--only=dens is unknown; choose from: dense" in capsys.readouterr().err


def test_runs_of_one_name_are_told_apart(tmp_path, monkeypatch):
    """One of two once took the place of the other."""
    monkeypatch.setattr(learning, "curve", lambda workdir: ([0, 1], [2, 1]))
    runs = [str(tmp_path / part / "run") for part in ("a", "b")]
    monkeypatch.setattr(sys, "argv", ["learning", str(tmp_path / "x.svg"), *runs])
    learning.main()
    drawn = (tmp_path / "x.svg").read_text()
    assert drawn.count("<polyline") == 2 and all(run in drawn for run in runs)


def test_a_curve_is_over_the_tokens_that_a_model_reads(tmp_path):
    """An encoder-decoder reads other rows than data.length has tokens."""
    config = configs.load("configs/t5.py:mini_stdlib")
    configs.save(config, str(tmp_path))
    logged = tmp_path / "metrics" / "train.csv"
    logged.parent.mkdir()
    logged.write_text("step,loss\n")
    with pytest.raises(UserError, match=r"has no row in metrics/train.csv; name runs that have made updates"):
        learning.curve(tmp_path)
    logged.write_text("step,loss\n3,2.0\n")
    tokens = describe(config)["tokens_per_step"]
    assert tokens != config.train.batch_size * config.data.length
    assert learning.curve(tmp_path)[0] == [pytest.approx(3 * tokens / 1e6)]


def test_memory_is_compared_with_no_memory():
    """What stands in for relative attention is called as that is."""
    runs = xl_training.candidates(length=16, lanes=2, layers=1, dtype="float32")
    assert runs.keys() == {"transformer_xl", "dense", "decoder"}
    found = {name: [np.asarray(leaf) for leaf in jax.tree.leaves(run())] for name, run in runs.items()}
    assert all(np.isfinite(leaf).all() for leaves in found.values() for leaf in leaves)
    assert any((a != b).any() for a, b in zip(found["transformer_xl"], found["dense"], strict=True))


def comes_to(stat, state):
    """Whether a process is soon in that state, or gone."""
    until = time.monotonic() + 30
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != state and time.monotonic() < until:
        time.sleep(0.05)
    return time.monotonic() < until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells a stopped process of its parent's end")
def test_a_program_that_is_stopped_ends_with_its_benchmark(number, tmp_path):
    (tmp_path / "idle.py").write_text("def nothing():\n    return {}\n")
    waits = "import sys, time; from benchmarks.turns import Program; "
    waits += "print(Program('idle:nothing', 'ours', 'kept').process.pid, flush=True); time.sleep(60)"
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    with subprocess.Popen(
        [sys.executable, "-c", waits], cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE
    ) as benchmark:
        program = Path(f"/proc/{int(benchmark.stdout.readline())}/stat")
        assert comes_to(program, "T")
        benchmark.send_signal(number)
    assert comes_to(program, "Z")


def test_no_job_outlives_its_benchmark(tmp_path):
    with pytest.raises(KeyboardInterrupt), job.ended():
        started = job.Job(["train", f"--workdir={tmp_path}/run"], tmp_path / "logs")
        raise KeyboardInterrupt
    assert not started.running and not job.STARTED

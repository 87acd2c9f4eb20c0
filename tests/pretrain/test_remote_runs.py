"""A run in an object store equals one on a disk, leaf for leaf, through stops, kills and damage."""

import os
import signal
import subprocess
import time

import numpy as np
import pytest
from runs import ROOT, assert_same_leaves, command, environment, launched, leaves, rows, train, train_here

from input_pipeline.io import files_below, open_path
from pretrain.cli import main
from pretrain.workdir import COMMITTED, Workdir
from tests.object_store import UPLOADS

pytestmark = UPLOADS
STEPS = {"train__steps": 8, "schedule__decay_steps": 8}


@pytest.fixture
def run(bucket):
    """The name of a work folder."""
    return f"{bucket}/run"


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory, text):
    workdir = tmp_path_factory.mktemp("disk") / "run"
    assert train_here(workdir, text, **STEPS) == 0
    return workdir


def download(run: str, folder):
    """A copy of a run's folder on a disk."""
    for path in files_below(open_path(run)):
        to = folder / str(path).removeprefix(f"{run}/")
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(path.read_bytes())
    return folder


def assert_same_run(run, on_disk, tmp_path, splits=("train", "validation")):
    copy = download(run, tmp_path / "copy")
    assert_same_leaves(leaves(copy, 8), leaves(on_disk, 8))
    for name in (f"{split}{suffix}" for split in splits for suffix in (".csv", ".jsonl")):
        assert rows(copy / "metrics" / name) == rows(on_disk / "metrics" / name)


def test_run_stopped_resumes(run, text, on_disk, tmp_path, capsys):
    assert train_here(run, text, train__steps=4, schedule__decay_steps=8) == 0
    assert Workdir(run).steps() == [4]
    assert train_here(run, text, **STEPS) == 0
    assert Workdir(run).steps() == [4, 8]
    assert_same_run(run, on_disk, tmp_path, splits=["train"])  # the first half was also validated at its end
    for arguments in (["evaluate", "--format=json"], ["generate", "--prompt=a", "--max_tokens=2"], ["goodput"]):
        capsys.readouterr()
        assert main([*arguments, f"--workdir={run}"]) == 0
        assert capsys.readouterr().out
    # A copy on a disk is a run too.
    assert main(["evaluate", "--format=json", f"--workdir={tmp_path / 'copy'}"]) == 0


def test_run_damaged_checkpoint(run, text, on_disk, tmp_path):
    """Neither a half-written nor a damaged checkpoint is restored; both are replaced."""
    assert train_here(run, text, **STEPS) == 0
    here = Workdir(run)
    half = here.checkpoint(12)
    (half / "state" / "manifest.ocdbt").write_bytes(b"as a killed process leaves it")
    largest = max(files_below(here.checkpoint(8)), key=lambda path: len(path.read_bytes()))
    largest.write_bytes(largest.read_bytes()[:-1])
    assert here.steps() == [4, 8] and here.unfinished() == [half]
    assert main(["evaluate", f"--workdir={run}"]) == 2
    assert train_here(run, text, **STEPS) == 0
    assert not half.exists() and (here.broken / "8" / COMMITTED).is_file()
    assert here.steps() == [4, 8]
    assert_same_run(run, on_disk, tmp_path)


def test_run_missing_bucket(store, bucket, text):
    assert train_here(f"{store.scheme}://no-such-bucket/run", text) == 2


@pytest.mark.slow
def test_run_killed_resumes(run, text, on_disk, tmp_path):
    """Killed with -9 as soon as the first checkpoint is being written, and again later."""
    for wanted in ("checkpoints/4/state", f"checkpoints/4/{COMMITTED}"):
        process = subprocess.Popen(command(run, text, **STEPS), cwd=ROOT, env=environment(8), stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 200
        while not (open_path(run) / wanted).exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = train(run, text, devices=8, **STEPS)
    assert done.returncode == 0, done.stderr
    assert_same_run(run, on_disk, tmp_path)


@pytest.mark.slow
def test_run_of_several_processes(run, text, tmp_path):
    """Two processes write one checkpoint, each its own arrays; one process reads it into another mesh."""
    settings = {"mesh__data": 1, "mesh__fsdp": 4, **STEPS}
    program = command(run, text, **settings | {"train__steps": 4})[3:]
    done = subprocess.run(
        launched(tmp_path / "logs", *program, devices=2), cwd=ROOT, env=os.environ | environment(2), timeout=300
    )
    assert done.returncode == 0
    alone = tmp_path / "alone"
    assert train(alone, text, devices=4, **settings).returncode == 0
    assert train(run, text, devices=4, **settings).returncode == 0
    there, here = leaves(download(run, tmp_path / "copy"), 8), leaves(alone, 8)
    assert there.keys() == here.keys()
    for name, leaf in here.items():
        np.testing.assert_allclose(there[name], leaf, atol=1e-4, err_msg=name)  # two processes sum in another order

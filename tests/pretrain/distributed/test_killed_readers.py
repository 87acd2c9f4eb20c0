"""Processes that read the data, while the one that started them is asked to stop, or killed."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import ROOT, assert_same_leaves, command, environment, leaves, train

from pretrain.distributed.shutdown import SIGNALS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a process's children are read from Linux's /proc")
OPTIONS = {"data__workers": 2, "checkpoint__every": 4000, "evaluate__every": 0}


def started(workdir, text):
    """A run in a process group of its own, a few updates after its start, and its readers."""
    process = subprocess.Popen(
        command(workdir, text, train__steps=4000, **OPTIONS),
        cwd=ROOT,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in process.stderr:
        if "step 3/" in line:
            break
    threads = Path(f"/proc/{process.pid}/task").iterdir()
    children = [child for thread in threads for child in (thread / "children").read_text().split()]
    readers = [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]
    assert len(readers) == 2
    return process, readers


def blocked(pid):
    """The signals that no thread of a process lets through."""
    masks = [(thread / "status").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
    words = [int(re.search(r"^SigBlk:\s*(\w+)", mask, re.MULTILINE)[1], 16) for mask in masks]
    return {number for number in signal.valid_signals() if all(word >> number - 1 & 1 for word in words)}


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


@pytest.mark.slow
@pytest.mark.usefixtures("hang_ups_are_heard")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_they_outlive_a_signal_to_all_processes_of_a_job(tmp_path, text, number):
    """As SLURM sends it at a job's end, and a shell where its terminal ends: to the run and its readers alike."""
    workdir = tmp_path / "run"
    process, readers = started(workdir, text)
    deaf = [blocked(reader) for reader in readers]
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 75, said
    (saved,) = [path.name for path in (workdir / "checkpoints").iterdir() if path.name.isdigit()]
    assert f"interrupted: saved checkpoint {saved}" in said and "was killed" not in said
    assert "resource_tracker" not in said
    assert all(map(gone, readers)) and all({*SIGNALS} <= signals for signals in deaf)


@pytest.mark.slow
def test_a_run_that_was_stopped_so_is_the_same_as_one_that_was_not(tmp_path, text):
    workdir = tmp_path / "run"
    process, _ = started(workdir, text)
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    (saved,) = [int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit()]
    options = OPTIONS | {"train__steps": saved + 3, "schedule__decay_steps": 4000}
    for folder in (workdir, tmp_path / "whole"):
        done = train(folder, text, **options)
        assert done.returncode == 0, done.stderr
    assert_same_leaves(leaves(workdir, saved + 3), leaves(tmp_path / "whole", saved + 3))


@pytest.mark.slow
def test_they_end_with_a_run_that_is_killed(tmp_path, text):
    process, readers = started(tmp_path / "run", text)
    process.kill()
    process.communicate(timeout=10)
    deadline = time.monotonic() + 20
    while not all(map(gone, readers)):
        assert time.monotonic() < deadline, "a reader goes on without the run that it reads for"
        time.sleep(0.1)

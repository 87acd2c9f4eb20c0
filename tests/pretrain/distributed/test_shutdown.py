"""Signals and exit codes of one process."""

import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import ROOT, assert_same_leaves, command, environment, leaves, mostly, train, train_here

from pretrain.checkpoints.restore import Checkpoints
from pretrain.cli import main
from pretrain.distributed.shutdown import PREEMPTED, SIGNALS, STOPPED, UNREAD, shutdown

PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")


def start(arguments, **options):
    return subprocess.Popen(arguments, cwd=ROOT, **({"env": environment()} | PIPES | options))


def wait_for_step(process, step=5):
    for line in process.stderr:
        if f"step {step}/" in line:
            break


def handles_sigterm(process):
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    return int(caught[1], 16) >> (signal.SIGTERM - 1) & 1


@linux
@pytest.mark.usefixtures("hang_ups_are_heard")
@pytest.mark.parametrize("number", mostly(SIGNALS, signal.SIGINT, signal.SIGHUP))
def test_signal_while_loading(tmp_path, text, number):
    process = start(command(tmp_path / "run", text))
    while not handles_sigterm(process):
        time.sleep(0.001)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == PREEMPTED and err.count("\n") == 1, err


def test_signal_saves_and_resumes(tmp_path, text):
    workdir, options = tmp_path / "run", {"checkpoint__every": 4000, "evaluate__every": 0}
    process = start(command(workdir, text, train__steps=4000, **options), env=environment(8))
    wait_for_step(process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == PREEMPTED, err
    (saved,) = Checkpoints(str(workdir)).steps()
    options |= {"train__steps": saved + 3, "schedule__decay_steps": 4000}
    for folder in (workdir, tmp_path / "whole"):
        assert train_here(folder, text, **options) == 0
    assert_same_leaves(leaves(workdir, saved + 3), leaves(tmp_path / "whole", saved + 3))


HOLDS = """if True:
    import time
    from pretrain.distributed.shutdown import shutdown
    shutdown.listen()
    shutdown.hold()
    print('ready', flush=True)
    time.sleep(60)
"""


def test_second_ctrl_c_exits_at_once():
    process = start([sys.executable, "-c", HOLDS])
    process.stdout.readline()
    for _ in range(3):  # within half a second they count as one
        process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == STOPPED


@pytest.fixture
def stop_at(monkeypatch):
    """`stop_at(turn)`: the next run hears of a signal at that turn, counted from 1."""

    def stop(turn):
        turns = iter(range(1, turn))
        monkeypatch.setattr(shutdown, "reached", lambda: next(turns, None) is None)

    return stop


def test_signal_during_evaluation(signals, tmp_path, text, stop_at):
    """Every update is a turn, and so is each batch scored after updates 8, 16 and 24. What is left is scored later."""
    workdir, options = tmp_path / "run", {"evaluate__batches": 3, "train__steps": 17}
    stop_at(10)
    assert main(command(workdir, text, **options)[3:]) == PREEMPTED
    checkpoints = Checkpoints(str(workdir))
    assert checkpoints.steps()[-1] == 8 and 8 not in checkpoints.losses()
    stop_at(1000)
    assert main(command(workdir, text, **options)[3:]) == 0
    assert 8 in checkpoints.losses()


@pytest.mark.slow
@linux
@pytest.mark.usefixtures("hang_ups_are_heard")
def test_signals_at_random_moments(whole, tmp_path, text):
    workdir, rng = tmp_path / "run", random.Random(0)
    began = time.monotonic()
    assert train(tmp_path / "timed", text).returncode == 0
    life, codes = time.monotonic() - began, []
    for _ in range(12):
        process = start(command(workdir, text, checkpoint__every=1), stdout=subprocess.DEVNULL)
        while not handles_sigterm(process):
            time.sleep(0.001)
        time.sleep(rng.random() * life)
        process.send_signal(rng.choice(SIGNALS))
        _, err = process.communicate(timeout=120)
        codes.append(process.returncode)
        assert process.returncode in (0, PREEMPTED), err
        if process.returncode == 0:
            shutil.rmtree(workdir)
    assert codes.count(PREEMPTED) >= 3
    assert train(workdir, text, checkpoint__every=1).returncode == 0
    assert_same_leaves(leaves(workdir), leaves(whole))


def test_closed_stderr_keeps_exit_code():
    done = subprocess.run(["bash", "-c", '"$@" 2>&-', "closed", sys.executable, "-m", "pretrain", "trian"], cwd=ROOT)
    assert done.returncode == 2


def test_unread_stdout():
    process = start([sys.executable, "-m", "pretrain", "help"])
    process.stdout.close()
    with process.stderr as err:
        assert err.read() == ""
    assert process.wait(timeout=60) == UNREAD

"""Signals and exit codes of one process."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import ROOT, STEPS, assert_same_leaves, command, environment, leaves, train

from pretrain.checkpoints.restore import Checkpoints
from pretrain.cli import main
from pretrain.distributed.shutdown import PREEMPTED, SIGNALS, STOPPED, UNREAD, shutdown

PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")


def start(arguments, **options):
    return subprocess.Popen(arguments, cwd=ROOT, env=environment(), **(PIPES | options))


def wait_for_step(process, step=5):
    for line in process.stderr:
        if f"step {step}/" in line:
            break


def handles_sigterm(process):
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    return int(caught[1], 16) >> (signal.SIGTERM - 1) & 1


@linux
@pytest.mark.usefixtures("hang_ups_are_heard")
@pytest.mark.parametrize("number", SIGNALS)
def test_signal_while_loading(tmp_path, text, number):
    process = start(command(tmp_path / "run", text))
    while not handles_sigterm(process):
        time.sleep(0.001)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == PREEMPTED and err.count("\n") == 1, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_and_resumes(tmp_path, text, number):
    workdir, options = tmp_path / "run", {"checkpoint__every": 4000, "evaluate__every": 0}
    process = start(command(workdir, text, train__steps=4000, **options))
    wait_for_step(process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == PREEMPTED, err
    (saved,) = Checkpoints(str(workdir)).steps()
    options |= {"train__steps": saved + 3, "schedule__decay_steps": 4000}
    for folder in (workdir, tmp_path / "whole"):
        done = train(folder, text, **options)
        assert done.returncode == 0, done.stderr
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


def test_nohup_is_respected():
    code = """if True:
        import os, signal
        from pretrain.distributed.shutdown import shutdown
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        shutdown.listen()
        os.kill(os.getpid(), signal.SIGHUP)
        print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
    """
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "True\n"


@pytest.fixture
def stop_at(monkeypatch):
    """`stop_at(turn)`: the next run hears of a signal at that turn, counted from 1."""

    def stop(turn):
        turns = iter(range(1, turn))
        monkeypatch.setattr(shutdown, "reached", lambda: next(turns, None) is None)

    return stop


@pytest.mark.parametrize(
    ("turn", "step", "scored"), [(10, 8, []), pytest.param(32, STEPS, ["8", "16"], marks=pytest.mark.slow)]
)
def test_signal_during_evaluation(stop_at, tmp_path, text, turn, step, scored):
    """Every update is a turn, and so is each of the three batches scored after updates 8, 16 and 24."""
    workdir, metrics = tmp_path / "run", tmp_path / "run" / "metrics" / "validation.csv"
    stop_at(turn)
    assert main(command(workdir, text, evaluate__batches=3)[3:]) == PREEMPTED
    assert Checkpoints(str(workdir)).steps()[-1] == step
    rows = metrics.read_text().splitlines()[1:] if metrics.exists() else []
    assert [row.split(",")[0] for row in rows] == scored


@pytest.mark.slow
@pytest.mark.parametrize(("step", "before"), [(8, 7), (STEPS, 26)])
def test_interrupted_evaluation_is_repeated(signals, tmp_path, text, stop_at, monkeypatch, step, before):
    undisturbed, workdir = tmp_path / "undisturbed", tmp_path / "run"
    assert main(command(undisturbed, text)[3:]) == 0
    stop_at(before + 1)
    assert main(command(workdir, text)[3:]) == PREEMPTED
    assert step not in Checkpoints(str(workdir)).losses()
    monkeypatch.undo()
    assert main(command(workdir, text)[3:]) == 0
    for name in ("train.csv", "validation.csv", "validation.jsonl"):
        assert (workdir / "metrics" / name).read_text() == (undisturbed / "metrics" / name).read_text()
    assert Checkpoints(str(workdir)).losses() == Checkpoints(str(undisturbed)).losses()


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


@pytest.mark.slow
@linux
def test_killed_run_leaves_no_readers(tmp_path, text):
    """Readers ignore the SIGTERM that a scheduler sends to all processes, and end with the run that started them."""
    options = {"data__workers": 2, "checkpoint__every": 4000, "evaluate__every": 0}
    process = start(command(tmp_path / "run", text, train__steps=4000, **options), start_new_session=True)
    wait_for_step(process, 3)
    children = [(thread / "children").read_text().split() for thread in Path(f"/proc/{process.pid}/task").iterdir()]
    readers = [
        child for some in children for child in some if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()
    ]
    assert len(readers) == 2
    os.killpg(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == PREEMPTED, err
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{reader}").exists() for reader in readers):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_run_outlives_the_reader_of_its_log(whole, tmp_path, text):
    process = start(command(tmp_path / "run", text), stdout=subprocess.DEVNULL)
    process.stderr.readline()
    process.stderr.close()
    assert process.wait(timeout=300) == 0
    assert_same_leaves(leaves(tmp_path / "run"), leaves(whole))


def test_closed_stderr_keeps_exit_code():
    done = subprocess.run(["bash", "-c", '"$@" 2>&-', "closed", sys.executable, "-m", "pretrain", "trian"], cwd=ROOT)
    assert done.returncode == 2


@pytest.mark.parametrize("command", [["help"], ["describe", "--config=configs/quickstart.py:tiny"]], ids="-".join)
def test_unread_stdout(command):
    process = start([sys.executable, "-m", "pretrain", *command])
    process.stdout.close()
    with process.stderr as err:
        assert err.read() == ""
    assert process.wait(timeout=60) == UNREAD

"""However a run is asked to leave, it does so with everything saved, says so in its exit code, and can go on."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from runs import ROOT, STEPS, assert_same_leaves, command, environment, leaves, train

from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.cli import main
from pretrain.distributed.shutdown import PREEMPTED, SIGNALS, UNREAD, UNWANTED, Leaving, leaving
from pretrain.distributed.streams import Unheard

PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def start(arguments, **options):
    return subprocess.Popen(arguments, cwd=ROOT, env=environment(), **(PIPES | options))


def steps(workdir):
    return sorted(int(p.name) for p in (workdir / "checkpoints").iterdir() if p.name.isdigit())


@pytest.fixture
def asked_at(monkeypatch):
    """`asked_at(turn)`: the run that follows is asked to stop so that it hears of it at that turn."""

    def ask(turn):
        turns = iter(range(1, turn))
        monkeypatch.setattr(leaving, "reached", lambda: next(turns, None) is None)

    return ask


@pytest.mark.slow
def test_stopping_after_an_update_that_is_being_saved(asked_at, tmp_path, text):
    asked_at(5)
    assert main(command(tmp_path / "run", text, checkpoint__every=1)[3:]) == PREEMPTED
    assert steps(tmp_path / "run") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("turn", "step", "scored"), [(10, 8, []), pytest.param(32, STEPS, ["8", "16"], marks=pytest.mark.slow)]
)
def test_an_evaluation_that_outlasts_the_notice_is_cut_short(asked_at, tmp_path, text, capsys, turn, step, scored):
    """Every update is a turn and so is each of the three batches scored after updates 8, 16 and 24."""
    workdir, metrics = tmp_path / "run", tmp_path / "run" / "metrics" / "validation.csv"
    asked_at(turn)
    assert main(command(workdir, text, evaluate__batches=3)[3:]) == PREEMPTED
    assert steps(workdir)[-1] == step
    assert "interrupted: saved checkpoint" in capsys.readouterr().err.splitlines()[-1]
    rows = metrics.read_text().splitlines()[1:] if metrics.exists() else []
    assert [row.split(",")[0] for row in rows] == scored


@pytest.mark.slow
@pytest.mark.parametrize(("step", "before"), [(8, 7), (STEPS, 27)])
def test_an_evaluation_that_was_cut_short_is_made_up(signals, tmp_path, text, monkeypatch, step, before):
    """Its row and the checkpoint's claim to be best were once lost. `before`: turns until it begins."""
    undisturbed, workdir = tmp_path / "undisturbed", tmp_path / "run"
    assert main(command(undisturbed, text)[3:]) == 0
    with monkeypatch.context() as patch:
        turns = iter(range(before))
        patch.setattr(leaving, "reached", lambda: next(turns, None) is None)
        assert main(command(workdir, text)[3:]) == PREEMPTED
    assert steps(workdir)[-1] == step
    assert step not in Checkpoints(str(workdir)).losses()
    with monkeypatch.context() as patch:  # and cut short again, it is made up later
        patch.setattr(leaving, "reached", lambda: True)
        assert main(command(workdir, text)[3:]) == PREEMPTED
    assert main(command(workdir, text)[3:]) == 0
    for name in ("train.csv", "validation.csv", "validation.jsonl"):
        assert (workdir / "metrics" / name).read_text() == (undisturbed / "metrics" / name).read_text()
    losses = Checkpoints(str(workdir)).losses()
    assert losses == Checkpoints(str(undisturbed)).losses()
    assert sorted(losses) == [8, 16, STEPS]
    record = json.loads((workdir / "checkpoints" / str(step) / "files.json").read_text())
    assert "metrics/metrics" in record


@pytest.mark.slow
def test_a_loss_that_was_measured_otherwise_is_measured_again(tmp_path, text, capsys):
    """Batches, length, stride and the like may change when a run goes on; losses before and after do not compare."""
    found = []
    for steps, changes in ((8, {}), (8, {"evaluate__every": 4}), (9, {"evaluate__batches": 2})):
        assert main(command(tmp_path, text, train__steps=steps, **changes)[3:]) == 0
        assert ("earlier losses no longer count towards the best" in capsys.readouterr().err) == (len(found) == 2)
        found.append(Checkpoints(str(tmp_path)).losses()[8])
    assert found[0] == found[1]
    assert found[1][0] != found[2][0] and found[1][1] != found[2][1]


def listens(process):
    """Whether the process has taken SIGTERM over."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    return int(caught[1], 16) >> (signal.SIGTERM - 1) & 1


@pytest.mark.skipif(sys.platform != "linux", reason="what a process listens to is read from Linux's /proc")
@pytest.mark.usefixtures("hang_ups_are_heard")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_the_program_is_loaded(tmp_path, text, number):
    process = start(command(tmp_path / "run", text))
    while not listens(process):
        time.sleep(0.001)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == PREEMPTED
    assert err == "pretrain: interrupted: nothing is lost; start the same command again\n"


def test_an_interpreter_without_the_project_is_a_mistake():
    """Which no launcher starts again."""
    command = [sys.executable, "-S", "-m", "pretrain", "train"]  # without site-packages
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        f"pretrain: {sys.executable} has no ml_collections; start it with the interpreter that has the project, or "
        "install it there (pip install -e .)\n"
    )


def test_a_library_that_lacks_a_part_of_its_own_is_a_fault(tmp_path):
    """Such as of another version: its traceback says who asked for what."""
    (tmp_path / "ml_collections").mkdir()
    (tmp_path / "ml_collections" / "__init__.py").write_text("import jax.nosuch\n")
    told = environment() | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-m", "pretrain"], cwd=ROOT, env=told, capture_output=True, text=True)
    assert done.returncode == 1 and "No module named 'jax.nosuch'" in done.stderr and "Traceback" in done.stderr


def test_a_terminal_that_ends_is_not_heard_where_that_is_to_be_ignored():
    """As `nohup` has it."""
    code = """if True:
        import os, signal
        from pretrain.distributed.shutdown import leaving
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        leaving.listen()
        os.kill(os.getpid(), signal.SIGHUP)
        print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
    """
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "True\n"


@pytest.mark.parametrize("command", ["prepare", "train"])
def test_ctrl_c_while_preparing_ends_the_workers_too(tmp_path, command):
    """A terminal sends it to all processes of the command. The folder has the config, to go on with it alone."""
    process = start(
        [sys.executable, "-m", "pretrain", command, "--config=configs/quickstart.py:tiny", f"--workdir={tmp_path}"],
        start_new_session=True,
    )
    shown = ""
    for line in process.stderr:
        shown += line
        if line.startswith("tokenising"):
            break
    time.sleep(0.3)  # the text is tokenised in a second or so
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)  # when no process holds the pipe any more
    assert process.returncode == PREEMPTED, shown + err
    assert err == "pretrain: interrupted: nothing is lost; start the same command again\n"
    assert (tmp_path / "config.json").is_file()


DEAF = """if True:
    import time
    from pretrain.distributed.shutdown import leaving
    leaving.listen()
    leaving.hold()
    print('ready', flush=True)
    time.sleep(60)
"""


def test_a_second_ctrl_c_does_not_wait():
    process = start([sys.executable, "-c", DEAF])
    process.stdout.readline()
    for _ in range(3):  # the same one, as a terminal and `timeout` pass it on
        process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == UNWANTED
    assert "updates since the last checkpoint are not saved" in err


@pytest.mark.slow
def test_a_run_goes_on_without_its_audience(whole, tmp_path, text):
    process = start(command(tmp_path / "run", text), stdout=subprocess.DEVNULL)
    process.stderr.readline()
    process.stderr.close()
    assert process.wait(timeout=300) == 0
    assert_same_leaves(leaves(tmp_path / "run"), leaves(whole))


def test_standard_error_takes_what_nobody_reads():
    read, write = os.pipe()
    os.close(read)
    with Unheard(write, "wb") as file:
        assert file.write(b"words") == 5


def test_a_reader_that_stands_still_is_not_waited_for_once_the_run_is_to_end(monkeypatch):
    monkeypatch.setattr(leaving, "asked", True)
    read, write = os.pipe()
    with Unheard(write, "wb") as file:
        assert file.write(bytes(1 << 20)) == 1 << 20
    assert 0 < len(os.read(read, 1 << 20)) < 1 << 20
    os.close(read)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_whose_reader_stands_still_saves_when_it_is_asked_to_stop(tmp_path, text, number):
    """A pager, or Ctrl-S, from whenever a pipe is full."""
    read, write = os.pipe()
    keys = {"train__steps": 10**6, "log__every": 1, "checkpoint__every": 10**6, "evaluate__every": 0}
    process = start(command(tmp_path / "run", text, **keys), stdout=subprocess.DEVNULL, stderr=write)
    os.close(write)
    rows = tmp_path / "run" / "metrics" / "train.csv"
    while not rows.exists():
        time.sleep(0.5)
    size = 0
    while size != (size := rows.stat().st_size):
        time.sleep(3)
    process.send_signal(number)
    assert process.wait(timeout=60) == PREEMPTED
    assert len(steps(tmp_path / "run")) == 1
    os.close(read)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_output_for_which_there_is_no_room_is_one_sentence():
    with open("/dev/full", "w") as full:
        process = start([sys.executable, "-m", "pretrain", "help"], stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err == (
        "pretrain: cannot write what is printed: No space left on device; make room where standard output goes, or "
        "send it elsewhere\n"
    )


def test_closed_standard_error_does_not_change_the_exit_code():
    done = subprocess.run(["bash", "-c", '"$@" 2>&-', "closed", sys.executable, "-m", "pretrain", "trian"], cwd=ROOT)
    assert done.returncode == 2


@pytest.mark.parametrize("command", [["help"], ["describe", "--config=configs/quickstart.py:tiny"]], ids="-".join)
def test_a_terminal_that_is_gone_is_a_reader_that_is(command):
    ours, theirs = os.openpty()
    os.close(ours)
    process = start([sys.executable, "-m", "pretrain", *command], stdout=theirs)
    os.close(theirs)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (UNREAD, "")


@pytest.mark.parametrize("command", [["help"], ["describe", "--config=configs/quickstart.py:tiny"]], ids="-".join)
def test_output_that_nobody_reads_is_not_success(command):
    process = start([sys.executable, "-m", "pretrain", *command])
    process.stdout.close()
    with process.stderr as err:
        assert err.read() == ""
    assert process.wait(timeout=60) == UNREAD


@pytest.mark.slow
@pytest.mark.usefixtures("hang_ups_are_heard")
def test_signals_at_random_moments(whole, tmp_path, text):
    """From the start to the end of a run, and of another once one gets there; 75 is said, and nothing is lost."""
    workdir, rng = tmp_path / "run", random.Random(0)
    began = time.monotonic()
    assert train(tmp_path / "timed", text).returncode == 0
    life, codes = time.monotonic() - began, []
    for _ in range(12):
        process = start(command(workdir, text, checkpoint__every=1), stdout=subprocess.DEVNULL)
        while not listens(process):
            time.sleep(0.001)
        time.sleep(rng.random() * life)
        asked = time.monotonic()
        process.send_signal(rng.choice(SIGNALS))
        _, err = process.communicate(timeout=120)
        codes.append(process.returncode)
        assert process.returncode == PREEMPTED or (process.returncode == 0 and "done: 24 updates" in err), err
        assert "Traceback" not in err
        assert time.monotonic() - asked < 30
        if process.returncode == 0:
            shutil.rmtree(workdir)
    assert codes.count(PREEMPTED) >= 3
    assert train(workdir, text, checkpoint__every=1).returncode == 0
    assert_same_leaves(leaves(workdir), leaves(whole))


def test_who_fails_where_nobody_reads_holds_up_no_other_end(monkeypatch):
    """A process that failed into a full pipe once kept the door shut behind the run's end."""
    one, printing, read = Leaving(), threading.Event(), threading.Event()

    class Full:
        def write(self, text):
            printing.set()
            read.wait(30)

        def flush(self):
            pass

    monkeypatch.setattr(sys, "stderr", Full())
    failing = threading.Thread(target=one.failed, args=(2, "a mistake"))
    failing.start()
    assert printing.wait(30) and one._door.acquire(timeout=5)
    read.set()
    failing.join()


def test_what_fails_behind_a_thread_that_is_leaving_is_not_told(monkeypatch, capsys):
    one = Leaving()
    one._door.acquire()
    failing = threading.Thread(target=one.failed, args=(2, "what broke meanwhile"), daemon=True)
    failing.start()
    failing.join(0.5)
    assert failing.is_alive() and not capsys.readouterr().err
    one._door.release()
    failing.join()

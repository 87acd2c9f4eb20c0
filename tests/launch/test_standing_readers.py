"""Who reads what a launcher prints may stand still, or leave: no run waits for that, nor ends by it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from standins import wait_for

ROOT = Path(__file__).resolve().parents[2]
LINES = 1 << 20  # bytes, more than a pipe takes


@pytest.fixture
def launched(tmp_path):
    """`launched(code, restarts, full, processes)`: a launcher, and the pipe into which it prints all that it says.

    With `full` there is no room in that to begin with.
    """
    begun = []

    def launch(code, restarts=0, full=False, processes=1):
        reader, writer = os.pipe()
        if full:
            os.set_blocking(writer, False)
            with pytest.raises(BlockingIOError):
                while True:
                    os.write(writer, bytes(4096))
            os.set_blocking(writer, True)
        call = f"launch([sys.executable, '-c', {code!r}], {processes}, None, Path({str(tmp_path)!r}), 30.0, {restarts})"
        source = "import sys; from pathlib import Path; from launch import local; from launch.local import launch; "
        source += f"local.PAUSE = 0.05; sys.exit({call})"
        command = [sys.executable, "-c", source]
        begun.append(subprocess.Popen(command, cwd=ROOT, stdout=writer, stderr=writer))
        os.close(writer)
        return begun[-1], open(reader, "rb")

    yield launch
    for launcher in begun:
        launcher.kill()
        launcher.wait()


def log(tmp_path):
    path = tmp_path / "process-0.log"
    return path.read_text() if path.exists() else ""


SAVES = f"""if True:
    import signal, time
    signal.signal(signal.SIGTERM, lambda *_: exit(print("saved") or 75))
    print("x" * {LINES}, "ready", flush=True)
    time.sleep(60)
"""


def test_a_signal_is_passed_on_and_ends_the_launcher(launched, tmp_path):
    """A pager that is not scrolled, or Ctrl-S."""
    launcher, reader = launched(SAVES)
    with reader:
        wait_for(lambda: "ready" in log(tmp_path))
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(20) == 75
        assert log(tmp_path).endswith("saved\n")


def test_who_reads_on_later_is_shown_all(launched, tmp_path):
    launcher, reader = launched(f"print('x' * {LINES}, 'done')")
    with reader:
        wait_for(lambda: "done" in log(tmp_path))
        time.sleep(3)
        assert launcher.poll() is None
        assert reader.read().endswith(b"x" * LINES + b" done\n")
        assert launcher.wait(20) == 0


def test_another_attempt_waits_for_nobody(launched, tmp_path):
    launcher, reader = launched(f"print('x' * {LINES}, 'failed'); exit(1)", restarts=2)
    with reader:
        wait_for(lambda: log(tmp_path).count("failed") == 3)
        launcher.send_signal(signal.SIGTERM)  # it would show the last one's words
        assert launcher.wait(20) == 1


def test_who_reads_slowly_is_waited_for_no_longer(launched, tmp_path):
    launcher, reader = launched(SAVES)
    with reader:
        wait_for(lambda: "ready" in log(tmp_path))
        launcher.send_signal(signal.SIGTERM)
        until = time.monotonic() + 20
        while launcher.poll() is None and time.monotonic() < until:
            os.read(reader.fileno(), 4096)
            time.sleep(0.3)
        assert launcher.returncode == 75
        assert b"the rest, which was not read in time, is in " in reader.read()


def test_a_log_is_passed_on_no_longer_than_is_wanted(tmp_path):
    """However little a reader takes at a time: as the keeper of a host does it, behind a slow connection."""
    (tmp_path / "log").write_bytes(b"x" * LINES)
    source = "import sys, time; from launch.passing import Passing; until = time.monotonic() + 2; "
    source += "sys.exit(Passing(open(sys.argv[1], 'rb')).some(lambda: time.monotonic() < until))"
    command = [sys.executable, "-c", source, tmp_path / "log"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as passing:
        until = time.monotonic() + 30
        while passing.poll() is None and time.monotonic() < until:
            os.read(passing.stdout.fileno(), 4096)
            time.sleep(0.2)
        assert passing.returncode == 0  # False: there is more


def test_what_was_said_before_another_ones_mistake_is_shown(launched, tmp_path):
    code = f"""if True:
        import os, pathlib, signal, time
        there = pathlib.Path({str(tmp_path)!r}, "there")
        if os.environ["LONGHAUL_PROCESS"] == "1":
            while not there.exists():
                time.sleep(0.05)
            time.sleep(0.5)
            exit(2)
        signal.signal(signal.SIGTERM, lambda *_: exit(print("interrupted") or 75))
        print("x" * {LINES}, "ready", flush=True)
        there.touch()
        time.sleep(60)
    """
    launcher, reader = launched(code, processes=2)
    with reader:
        wait_for(lambda: "interrupted" in log(tmp_path))
        said = reader.read()
        assert launcher.wait(20) == 2
    assert said.count(b"x") >= LINES and b"interrupted" not in said


def hears(process, number):
    """Whether a process has a handler of its own for a signal."""
    fields = dict(line.split(":\t") for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return int(fields["SigCgt"], 16) >> (number - 1) & 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_counts_before_anything_is_said(launched, tmp_path, number):
    """Once the program hears it too: one that interrupts Python's own start may end that with 1."""
    launcher, reader = launched(SAVES, full=True)
    with reader:
        wait_for(lambda: hears(launcher.pid, signal.SIGTERM) and "ready" in log(tmp_path))
        launcher.send_signal(number)
        assert launcher.wait(20) == 75
        os.set_blocking(reader.fileno(), False)
        assert b"Traceback" not in reader.read()


DRY = {
    "local": ["--dry-run"],
    "ssh": ["--hosts=a,b", "--dry-run"],
    "slurm": ["--dry-run"],
    "tpu_pod": ["--tpu=a", "--zone=b", "--dry-run"],
    "gke": ["--name=a", "--image=b", "--tpu=v5p:2x2x1"],
}


@pytest.mark.parametrize("name", DRY)
def test_a_dry_run_that_cannot_be_printed_or_is_not_read_to_its_end(name):
    command = [sys.executable, "-m", f"launch.{name}", *DRY[name], "--", "train"]
    reader, writer = os.pipe()
    os.close(reader)
    for out, code, sentence in ((writer, 141, ""), (os.open("/dev/full", os.O_WRONLY), 2, "No space left on device")):
        with open(out, "wb") as stdout:
            done = subprocess.run(command, cwd=ROOT, stdout=stdout, stderr=subprocess.PIPE, text=True)
        said = [line for line in done.stderr.splitlines() if "launch: this is only the manifest" not in line]
        assert (done.returncode, len([line for line in said if "warning" not in line])) == (code, bool(sentence))
        assert sentence in done.stderr

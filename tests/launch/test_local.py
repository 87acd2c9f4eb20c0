"""The local launcher with real processes: places, failures, signals, restarts."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launchers import PLACE, ROOT, SAVES, STEPS, finish, launcher, small_run, wait_for

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and the parent-death signal")


def start(code, logs, processes=2, grace=30.0, restarts=0):
    """A running launcher with Python source in place of the program."""
    call = f"launch([sys.executable, '-c', {code!r}], {processes}, None, Path({str(logs)!r}), {grace}, {restarts})"
    source = f"import sys; from pathlib import Path; from launch.local import launch; sys.exit({call})"
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", source], cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


def log(logs, index=0):
    path = logs / f"process-{index}.log"
    return path.read_text() if path.exists() else ""


def ready(logs, processes=2):
    return lambda: all("ready" in log(logs, index) for index in range(processes))


def test_launch_gives_every_process_its_place(tmp_path):
    code, out, _ = finish(start(PLACE, tmp_path, processes=3))
    assert code == 0 and out == log(tmp_path)  # of the first process alone
    places = [eval(log(tmp_path, index))["places"] for index in range(3)]
    assert [place[1:] for place in places] == [["3", "0"], ["3", "1"], ["3", "2"]]
    assert len({place[0] for place in places}) == 1


def test_launch_ends_all_and_shows_why_if_one_fails(tmp_path):
    code = """if True:
        import os, time
        if os.environ['LONGHAUL_PROCESS'] == '1':
            print('[Gloo] Rank 1 is connected')
            print('the reason')
            raise SystemExit(7)
        time.sleep(60)
    """
    code, _, err = finish(start(code, tmp_path), timeout=20)
    assert code == 7 and "1 | the reason" in err and "Gloo" not in err


def test_launch_kills_the_rest_after_the_grace(tmp_path):
    code = """if True:
        import os, signal, time
        if os.environ['LONGHAUL_PROCESS'] == '1':
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        signal.signal(signal.SIGTERM, lambda *_: None)
        for _ in range(60): time.sleep(1)
    """
    assert finish(start(code, tmp_path, grace=0.5), timeout=20)[0] == 128 + signal.SIGKILL


@pytest.mark.usefixtures("hang_ups_are_heard")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signal_saves_and_exits_with_75(tmp_path, number):
    program = SAVES.replace("SIGTERM", "SIGINT") if number == signal.SIGINT else SAVES
    running = start(program, tmp_path, restarts=3)
    wait_for(ready(tmp_path))
    for _ in range(3):  # echoes of the first within half a second
        running.send_signal(number)
    code, out, err = finish(running)
    assert code == 75 and "restart" not in err and out.split() == ["ready", "saved"]
    assert [log(tmp_path, index).split() for index in range(2)] == [["ready", "saved"]] * 2


def test_signal_before_the_program_listens_exits_with_75(tmp_path):
    running = start("import time; print('ready', flush=True); time.sleep(60)", tmp_path)
    wait_for(ready(tmp_path))
    running.send_signal(signal.SIGTERM)
    assert finish(running)[0] == 75


def test_second_signal_kills(tmp_path):
    deaf = "import signal, time; signal.signal(15, lambda *_: print('deaf', flush=True)); print('ready', flush=True)\n"
    running = start(deaf + "for _ in range(60): time.sleep(1)", tmp_path)
    wait_for(ready(tmp_path))
    running.send_signal(signal.SIGTERM)
    wait_for(lambda: "deaf" in log(tmp_path))
    time.sleep(0.6)  # sooner it would be an echo of the first
    running.send_signal(signal.SIGTERM)
    assert finish(running)[0] == 128 + signal.SIGKILL


FAILS = """if True:
    import os, pathlib, time
    print('started', flush=True)
    left = pathlib.Path({logs!r}, 'codes')
    if os.environ['LONGHAUL_PROCESS'] == '1':
        first, *rest = left.read_text().split()
        left.write_text(' '.join(rest))
        os._exit(int(first)) if first != '-9' else os.kill(os.getpid(), 9)
    else:
        time.sleep(0.3)
"""


@pytest.mark.parametrize(
    ("codes", "restarts", "code", "starts"),
    [("75 -9 0", 5, 0, 3), ("1 75", 1, 75, 2), ("127 0", 5, 127, 1), ("-9 2", 5, 2, 2)],
)
def test_restarts_follow_preemptions_and_faults_only(tmp_path, codes, restarts, code, starts):
    (tmp_path / "codes").write_text(codes)
    ended, _, err = finish(start(FAILS.format(logs=str(tmp_path)), tmp_path, restarts=restarts))
    assert ended == code
    assert log(tmp_path, 1).count("started") == starts == log(tmp_path, 1).count("launch: start at") + 1
    assert err.count("1 | started") == starts - codes.startswith("75") - (code == 0) - codes.endswith(" 75")


@linux
def test_processes_die_with_the_launcher(tmp_path):
    running = start("import os, time; print(os.getpid(), 'ready', flush=True); time.sleep(60)", tmp_path)
    wait_for(ready(tmp_path))
    pids = [int(log(tmp_path, index).split()[0]) for index in range(2)]
    running.kill()
    running.communicate(timeout=10)

    def ended(pid):
        status = Path(f"/proc/{pid}/stat")
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"

    wait_for(lambda: all(map(ended, pids)))


def test_command_line_runs_pretrain(tmp_path):
    argv = ["train", "--config=configs/quickstrat.py"]
    ended, out, err = finish(launcher("local", f"--logs={tmp_path}", "--", *argv), timeout=120)
    assert ended == 2 and "quickstrat" in out + err


@pytest.mark.slow
@linux
@pytest.mark.timeout(1500)
def test_killed_and_preempted_processes_change_nothing(tmp_path, text, same_result):
    """The real program: kill -9 of one process, SIGTERM of another, and the same parameters at the end."""

    def run(workdir):
        options = ["--processes=2", "--devices=1", "--restarts=3", f"--logs={tmp_path}/{workdir}-logs"]
        return launcher("local", *options, "--", *small_run(tmp_path / workdir, text))

    def signal_at(step, number):
        wait_for(lambda: f"step {step}/" in log(tmp_path / "cut-logs"), seconds=400)
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        os.kill(max(map(int, children)), number)

    running = run("cut")
    signal_at(30, signal.SIGKILL)
    signal_at(60, signal.SIGTERM)
    code, out, err = finish(running, timeout=500)
    assert code == 0 and log(tmp_path / "cut-logs").count("launch: start at") == 2, out + err
    code, out, err = finish(run("whole"), timeout=500)
    assert code == 0, out + err
    same_result(tmp_path / "cut", tmp_path / "whole", STEPS)

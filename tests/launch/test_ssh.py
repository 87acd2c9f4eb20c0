"""The SSH launcher and what keeps a program on a host: real processes behind a stand-in of ssh."""

import os
import shlex
import signal
import subprocess
import sys
import time

import pytest
from standins import PROGRAM, ROOT, SSH, called, finish, launcher, project, said, tool, wait_for

from launch import ssh

SAVES = """\
import signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
print("ready", flush=True)
end = time.monotonic() + 60
while not asked and time.monotonic() < end:
    time.sleep(0.02)
time.sleep(0.2)
print("saved", flush=True)
sys.exit(75)
"""


@pytest.fixture
def hosts(tmp_path):
    """What the launcher is given to reach two hosts, whose home is `home`."""
    tool(tmp_path / "ssh", SSH)
    (tmp_path / "home").mkdir()
    project(tmp_path / "home" / "longhaul", SAVES)
    return tmp_path


def start(hosts, *options, program=("train",)):
    own = ["--hosts=node1,me@node2", f"--ssh={hosts / 'ssh'}", f"--logs={hosts / 'logs'}"]
    after = ["--", *program] if program else []
    return launcher("ssh", *own, *options, *after, HOME=hosts / "home", CALLS=hosts / "calls")


def logged(hosts, word, number=2):
    logs = [hosts / "logs" / f"{host}.log" for host in ("node1", "me@node2")][:number]
    return all(log.exists() and word in log.read_text() for log in logs)


def kept_log(hosts, name):
    return (hosts / "home" / "longhaul" / "runs" / "launch" / f"{name}.log").read_text()


def test_every_process_learns_its_place_and_what_ssh_is_told(hosts):
    project(hosts / "home" / "longhaul", PROGRAM)
    code, out, err = finish(start(hosts, "--env=A=b c"))
    assert code == 0, err
    places = [said((hosts / "logs" / f"{host}.log").read_text())[0]["environment"] for host in ("node1", "me@node2")]
    assert places == [
        {"LONGHAUL_COORDINATOR": "node1:28476", "LONGHAUL_PROCESSES": "2", "LONGHAUL_PROCESS": "0"},
        {"LONGHAUL_COORDINATOR": "node1:28476", "LONGHAUL_PROCESSES": "2", "LONGHAUL_PROCESS": "1"},
    ]
    assert len(said(out)) == 1  # the first one's output is shown
    calls = (hosts / "calls").read_text().splitlines()
    assert all(call.startswith("-T -o BatchMode=yes -o ServerAliveInterval=15") for call in calls)
    assert sorted(call.split(" cd ")[0].split()[-1] for call in calls) == ["me@node2", "node1"]
    assert (
        "launch: 2 hosts," in out and "tail -f" in err and "tensorboard" in err and "--stop" in err and "go on" in err
    )


def test_dry_run_prints_what_it_calls(hosts):
    code, out, _ = finish(start(hosts, "--dry-run"))
    assert code == 0 and not (hosts / "calls").exists()
    lines = [shlex.split(line) for line in out.splitlines()]
    assert [line[-2] for line in lines] == ["node1", "me@node2"]
    assert all(line[-1].startswith("cd longhaul && test -f launch/keeper.py || exec sh") for line in lines)
    assert all("; exec env LONGHAUL_COORDINATOR=node1:28476 " in line[-1] for line in lines)
    assert all(line[-1].endswith("--silence 60 -- train") for line in lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all_with_everything_saved(hosts, number):
    running = start(hosts)
    wait_for(lambda: logged(hosts, "ready"))
    running.send_signal(number)
    code, _, _ = finish(running)
    assert code == 75 and logged(hosts, "saved")


def test_a_second_signal_kills(hosts):
    deaf = "import signal, time; signal.signal(15, lambda *_: print('deaf', flush=True)); print('ready', flush=True)\n"
    project(hosts / "home" / "longhaul", deaf + "while True: time.sleep(1)")
    running = start(hosts)
    wait_for(lambda: logged(hosts, "ready"))
    running.send_signal(signal.SIGTERM)
    wait_for(lambda: logged(hosts, "deaf"))
    running.send_signal(signal.SIGTERM)
    assert finish(running)[0] == 128 + signal.SIGKILL


def test_programs_save_and_stop_when_the_launcher_is_killed(hosts):
    running = start(hosts)
    wait_for(lambda: logged(hosts, "ready"))
    running.kill()
    running.communicate(timeout=10)
    for name in ("longhaul-node1", "longhaul-node2"):
        wait_for(lambda name=name: "saved" in kept_log(hosts, name))


def test_one_failure_stops_the_rest_with_everything_saved(hosts):
    fails = """if True:
        import os, pathlib, time
        first = pathlib.Path('runs/launch/longhaul-node1.log')
        if os.environ['LONGHAUL_PROCESS'] == '1':
            while not first.exists() or 'ready' not in first.read_text():
                time.sleep(0.02)
            print('the reason')
            raise SystemExit(7)
    """.replace("\n    ", "\n")
    project(hosts / "home" / "longhaul", fails.rstrip(" ") + SAVES)
    code, _, err = finish(start(hosts))
    assert code == 7
    assert "host me@node2 ended with exit code 7" in err and "me@node2 | the reason" in err
    assert "saved" in kept_log(hosts, "longhaul-node1")


def test_a_second_launch_is_refused_and_stop_stops_the_first(hosts):
    first = start(hosts)
    wait_for(lambda: logged(hosts, "ready"))
    before = (hosts / "logs" / "node1.log").read_text()
    code, _, err = called(
        "ssh",
        "--hosts=node1",
        f"--ssh={hosts / 'ssh'}",
        f"--logs={hosts / 'logs'}",
        "--restarts=3",
        "--",
        "train",
        HOME=hosts / "home",
        CALLS=hosts / "calls",
    )
    assert code == 2 and "starting again" not in err
    refusal = (hosts / "logs" / "node1.log").read_text()
    assert refusal.startswith(f"{before}\nlaunch: start at ")  # what the first one wrote is kept
    assert "runs 'longhaul-node1' of another launch since" in refusal and "--name" in refusal
    code, out, _ = finish(start(hosts, "--stop", program=()))
    assert code == 0 and out.count("has stopped") == 2
    assert finish(first)[0] == 75 and logged(hosts, "saved")
    code, out, _ = finish(start(hosts, "--stop", program=()))
    assert code == 0 and out.count("nothing runs") == 2


def test_stop_ends_a_launch_that_has_restarts(hosts):
    first = start(hosts, "--restarts=2")
    wait_for(lambda: logged(hosts, "ready"))
    assert finish(start(hosts, "--stop", program=()))[0] == 0
    code, _, err = finish(first)
    assert code == 75 and "stopped by --stop" in err and "starting again" not in err
    assert kept_log(hosts, "longhaul-node1").split() == ["ready", "saved"]


def test_stop_between_two_attempts_ends_the_launch(hosts):
    """As where a host is found idle because its launcher pauses."""
    project(hosts / "home" / "longhaul", "print('ready')\nraise SystemExit(1)")
    source = "import sys; from launch import ssh; ssh.PAUSE = 3.0; "
    own = ["--hosts=node1", f"--ssh={hosts / 'ssh'}", f"--logs={hosts / 'logs'}", "--restarts=2", "--", "train"]
    source += f"sys.exit(ssh.main({own!r}))"
    places = dict(os.environ, HOME=str(hosts / "home"), CALLS=str(hosts / "calls"))
    running = subprocess.Popen([sys.executable, "-c", source], cwd=ROOT, env=places, stderr=subprocess.PIPE, text=True)
    assert "starting again" in next(line for line in running.stderr if "starting" in line)
    code, out, _ = finish(start(hosts, "--stop", program=()))
    assert code == 0 and out.count("nothing runs") == 2
    _, err = running.communicate(timeout=20)
    assert running.returncode == 75 and "starting again" not in err
    assert kept_log(hosts, "longhaul-node1").split() == ["ready"]


@pytest.mark.parametrize(
    ("codes", "restarts", "code", "starts"),
    [
        *(([75, 1, 0], 5, 0, 3), ([1, 1, 1], 1, 1, 2), ([2], 5, 2, 1), ([0], 5, 0, 1), ([137, 2], 5, 2, 2)),
        *(([127], 5, 127, 1), ([126], 5, 126, 1)),  # as where the interpreter is not there, or is no program
    ],
)
def test_restarts_after_preemptions_and_faults_only(hosts, monkeypatch, codes, restarts, code, starts):
    body = "import pathlib, sys\nleft = pathlib.Path('codes')\nfirst, *rest = left.read_text().split()\n"
    body += "left.write_text(' '.join(rest))\nprint('started', flush=True)\nsys.exit(int(first))"
    folder = project(hosts / "home" / "longhaul", body)
    (folder / "codes").write_text(" ".join(map(str, codes)))
    monkeypatch.setattr(ssh, "PAUSE", 0.05)
    monkeypatch.setenv("HOME", str(hosts / "home"))
    monkeypatch.setenv("CALLS", str(hosts / "calls"))
    options = ["--hosts=node1", f"--ssh={hosts / 'ssh'}", f"--logs={hosts / 'logs'}", f"--restarts={restarts}"]
    assert ssh.main([*options, "--", "train"]) == code
    assert (hosts / "logs" / "node1.log").read_text().count("started") == starts


@pytest.mark.parametrize("folder", ["nosuch", '~/it\'s "not" $HOME', ".venv"])
def test_a_folder_without_the_project_is_a_mistake_and_not_tried_again(hosts, folder):
    (hosts / "home" / ".venv").mkdir()
    code, out, err = finish(start(hosts, f"--folder={folder}", "--restarts=1"))
    assert code == 2 and "starting again" not in err
    said = f"launch: the project is not in {folder} here; name its folder with --folder, or install it there\n"
    assert said in out and (hosts / "logs" / "node1.log").read_text().endswith(said)


def keeper(folder, *options):
    command = [sys.executable, "-m", "launch.keeper", "--name=run", *options]
    command += [] if "--stop" in options else ["--", "train"]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def log_of(folder):
    log = folder / "runs" / "launch" / "run.log"
    return log.read_text() if log.exists() else ""


def test_an_attempt_that_is_asked_for_again_stops_and_is_not_run_twice(tmp_path):
    """As a client does that lost its connection: gcloud calls ssh again by itself."""
    folder = project(tmp_path, SAVES)
    first = keeper(folder, "--launch=a", "--attempt=0")
    wait_for(lambda: "ready" in log_of(folder))
    again = keeper(folder, "--launch=a", "--attempt=0")
    out, _ = again.communicate(timeout=20)
    assert again.returncode == 75 and "stopping the program of attempt 0" in out
    assert first.wait(timeout=10) == 75
    late = keeper(folder, "--launch=a", "--attempt=0")
    assert late.wait(timeout=20) == 75
    assert log_of(folder).count("ready") == 1 and log_of(folder).count("saved") == 1
    later = keeper(folder, "--launch=a", "--attempt=1")
    wait_for(lambda: log_of(folder).count("ready") == 2)
    later.send_signal(signal.SIGHUP)  # as where a connection is hung up
    assert later.wait(timeout=10) == 75 and log_of(folder).count("saved") == 2
    for process in (first, late, later):
        process.communicate()


def test_a_later_attempt_stops_what_still_runs_of_an_earlier_one(tmp_path):
    folder = project(tmp_path, SAVES)
    first = keeper(folder, "--launch=a", "--attempt=0")
    wait_for(lambda: "ready" in log_of(folder))
    second = keeper(folder, "--launch=a", "--attempt=1")
    wait_for(lambda: log_of(folder).count("ready") == 2)
    assert log_of(folder).split() == ["ready", "saved", "ready"]  # one after the other
    second.communicate(timeout=10)  # which closes its standard input
    assert second.returncode == 75
    first.communicate()


def test_a_silent_launcher_counts_as_gone(tmp_path):
    folder = project(tmp_path, SAVES)
    process = keeper(folder, "--silence=1")
    wait_for(lambda: "ready" in log_of(folder))
    for _ in range(8):  # it says that it lives for longer than that
        process.stdin.write(".")
        process.stdin.flush()
        time.sleep(0.2)
    assert process.poll() is None and "saved" not in log_of(folder)
    assert process.wait(timeout=10) == 75 and "saved" in log_of(folder)
    process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_a_program_saves_when_its_keeper_is_killed_and_keeps_others_out_until_then(tmp_path):
    slow = SAVES.replace("time.sleep(0.2)", "time.sleep(1.5)")
    folder = project(tmp_path, slow)
    process = keeper(folder, "--launch=a")
    wait_for(lambda: "ready" in log_of(folder))
    process.kill()
    process.communicate()
    other = keeper(folder, "--launch=b")
    out, _ = other.communicate(timeout=20)
    assert other.returncode == 2 and "of another launch" in out
    wait_for(lambda: "saved" in log_of(folder))
    stop = keeper(folder, "--stop")
    assert "nothing runs" in stop.communicate(timeout=20)[0]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--", "train"], "in a file with --hostfile\n"),
        (["--hosts=a", "--hostfile=b", "--", "train"], "in a file with --hostfile, not both\n"),
        (["--hosts=a,b,a", "--", "train"], "a is named twice"),
        (["--hosts=me@a,a", "--", "train"], "a is named twice"),
        (["--hosts=a,-oProxyCommand=x", "--", "train"], "is no host"),
        (["--hosts=a b", "--", "train"], "is no host"),
        (["--hostfile={}/nowhere", "--", "train"], "/nowhere cannot be read (No such file or directory)"),
        (["--hostfile=/dev/null", "--", "train"], "--hostfile /dev/null names no host"),
        (["--hosts=a"], "name what to run after '--'"),
        (["--hosts=a", "--env=A", "--", "train"], "A is not NAME=VALUE"),
        (["--hosts=a", "--name=a b", "--", "train"], "'a b' is no name"),
        (["--hosts=a", "--folder=a\nb", "--", "train"], "is not one line of printable text"),
        (["--hosts=a", "--restarts=-1", "--", "train"], "'-1' is no whole number from 0 up"),
        (["--hosts=a", "--grace=inf", "--", "train"], "inf is no time; write seconds from 0 up"),
        (["--hosts=a", "--ssh=ssh 'x", "--dry-run", "--", "train"], "is no command (No closing quotation)"),
        (["--hosts=a", "--ssh='' x", "--", "train"], "is no command"),
        (
            ["--hosts=a", "--coordinator=10.0.0.1", "--", "train"],
            "'10.0.0.1' is not ADDRESS:PORT, such as 10.0.0.1:28476",
        ),
        (["--hosts=a", "--coordinator=a b:1", "--", "train"], "'a b:1' is not ADDRESS:PORT"),
        (["--hosts=a", "--coordinator=a:65535", "--", "train"], "has a port above 65534"),
        (["--hosts=a", "--ssh=true", "--logs=pyproject.toml", "--", "train"], "cannot be made a folder (File exists)"),
        (["--hostfile={}/bytes", "--", "train"], "bytes is not text in UTF-8"),
        (["--hosts=a", "--ssh=no-such-ssh", "--", "train"], "'no-such-ssh' is not installed here"),
    ],
)
def test_mistakes(argv, message, tmp_path):
    (tmp_path / "bytes").write_bytes(b"node\xff\n")
    code, _, err = called("ssh", f"--logs={tmp_path}", *(word.format(tmp_path) for word in argv))
    assert code == 2
    assert message in err and "Traceback" not in err


@pytest.mark.parametrize("folder", ["~/it's here", "~"])
def test_a_folder_in_the_home_folder_is_the_hosts(hosts, folder):
    project(hosts / "home" / folder.removeprefix("~").lstrip("/"), PROGRAM)
    code, out, err = finish(start(hosts, f"--folder={folder}", "--python=~/longhaul/.venv/bin/python"))
    assert code == 0 and len(said(out)) == 1, err


def test_a_file_of_hosts(tmp_path):
    (tmp_path / "hosts").write_text("# the rack\nnode1\n\nnode2  # slow\n")
    code, out, _ = called("ssh", f"--hostfile={tmp_path / 'hosts'}", "--dry-run", "--", "train")
    assert code == 0 and [shlex.split(line)[-2] for line in out.splitlines()] == ["node1", "node2"]

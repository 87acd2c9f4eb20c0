"""The TPU pod launcher against a stand-in of gcloud, which records what it is told and plays a pod's states."""

import os
import re
import shlex
import shutil
import signal
import subprocess

import pytest
from standins import GCLOUD, called, finish, launcher, project, tool, wait_for
from test_ssh import SAVES

from launch import tpu_pod

# What gcloud's reference documents for each command, of what is used here.
DOCUMENTED = {
    "tpu-vm describe": {"--zone", "--project", "--format"},
    "tpu-vm create": {"--zone", "--project", "--version", "--accelerator-type", "--type", "--topology", "--spot"},
    "tpu-vm delete": {"--zone", "--project", "--quiet"},
    "tpu-vm scp": {"--zone", "--project", "--worker"},
    "tpu-vm ssh": {"--zone", "--project", "--worker", "--command", "--ssh-flag"},
    "queued-resources describe": {"--zone", "--project", "--format"},
    "queued-resources create": {
        *("--zone", "--project", "--node-id", "--runtime-version"),
        *("--accelerator-type", "--type", "--topology", "--spot"),
    },
    "queued-resources delete": {"--zone", "--project", "--force", "--quiet"},
}
POD = ["--tpu=pod", "--zone=us-east5-a"]
HOST = os.uname().nodename


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    """A folder with gcloud and git in it; `states` and `requests` are what describe says, turn by turn."""
    tool(tmp_path / "gcloud", GCLOUD)
    tool(tmp_path / "git", "exit 0")
    (tmp_path / "home").mkdir()
    project(tmp_path / "home" / "longhaul", "print('trained')")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("calls", "states", "requests"):
        (tmp_path / name).touch()
        monkeypatch.setenv(name.upper(), str(tmp_path / name))
    monkeypatch.setattr(tpu_pod, "LOOK", 0.05)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def calls(cloud):
    """What gcloud was told: (command, its other words)."""
    lines = [shlex.split(line) for line in (cloud / "calls").read_text().splitlines()]
    for line in lines:
        assert line[:2] == ["compute", "tpus"]
        flags = {word.partition("=")[0] for word in line[4:] if word.startswith("--")}
        assert flags <= DOCUMENTED[" ".join(line[2:4])]
        assert "--zone=us-east5-a" in line
    return [(" ".join(line[2:4]), line[4:]) for line in lines]


def verbs(cloud):
    found = []
    for command, words in calls(cloud):
        remote = next((word for word in words if word.startswith("--command=")), "")
        kind = "install" if "pip install" in remote else "stop" if "--stop" in remote else "run" if remote else ""
        found.append(kind or command.replace("queued-resources", "queue").replace("tpu-vm ", ""))
    return found


def test_the_program_is_run_on_every_worker(cloud):
    assert tpu_pod.main([*POD, "--project=mine", "--", "train", "--workdir=/shared/a run"]) == 0
    ((command, words),) = calls(cloud)
    assert command == "tpu-vm ssh" and words[0] == "pod"
    assert {"--worker=all", "--project=mine"} <= set(words)
    (remote,) = [word.removeprefix("--command=") for word in words if word.startswith("--command=")]
    assert remote.startswith("cd longhaul && test -f launch/keeper.py || exec sh -c ")
    assert "; exec env LONGHAUL_COORDINATOR=auto PYTHONUNBUFFERED=1 .venv/bin/python -m launch.keeper " in remote
    assert remote.endswith("--attempt 0 --hostname -- train '--workdir=/shared/a run'")
    assert (cloud / "runs/pod/workers.log").read_text() == f"{HOST} | trained\n"


def test_all_workers_print_whole_lines_with_their_names_into_one_log(cloud, monkeypatch, capfd):
    monkeypatch.setenv("WORKERS", "3")
    for home in ("home", "home-1", "home-2"):
        body = f"import time\nfor n in range(50): print('{home}', end=' ', flush=True); print(n, flush=True)"
        project(cloud / home / "longhaul", f"{body}\nprint('no end', end='')")
    assert tpu_pod.main([*POD, "--", "train"]) == 0
    printed = [f"{HOST} | {home} {n}" for home in ("home", "home-1", "home-2") for n in range(50)]
    log = (cloud / "runs/pod/workers.log").read_text()
    assert sorted(log.splitlines()) == sorted([*printed, *[f"{HOST} | no end"] * 3])
    assert log in capfd.readouterr().out


def test_lines_that_are_too_long_to_be_printed_at_once_are_several_with_a_name_each(cloud, monkeypatch):
    monkeypatch.setenv("WORKERS", "2")
    for home, letter in (("home", "a"), ("home-1", "b")):
        project(cloud / home / "longhaul", f"for n in range(200): print('{letter}' * 9000)")
    assert tpu_pod.main([*POD, "--", "train"]) == 0
    lines = (cloud / "runs/pod/workers.log").read_text().splitlines()
    assert all(re.fullmatch(rf"{re.escape(HOST)} \| (a+|b+)", line) for line in lines)
    printed = "".join(line.removeprefix(f"{HOST} | ") for line in lines)
    assert (printed.count("a"), printed.count("b")) == (200 * 9000, 200 * 9000)


def test_the_first_worker_that_fails_says_the_exit_code(cloud, monkeypatch):
    monkeypatch.setenv("WORKERS", "2")
    project(cloud / "home-1" / "longhaul", "raise SystemExit(2)")
    assert tpu_pod.main([*POD, "--restarts=3", "--", "train"]) == 2
    assert verbs(cloud) == ["run"]


def test_a_pod_is_created_installed_and_deleted(cloud):
    (cloud / "states").write_text("-\nREADY\n")
    options = ["--create=v5p:4x4x4", "--version=v2-alpha-tpuv5", "--spot", "--install", "--delete"]
    assert tpu_pod.main([*POD, *options, "--", "train"]) == 0
    assert verbs(cloud) == ["describe", "create", "describe", "scp", "install", "run", "delete"]
    created = dict(calls(cloud))["tpu-vm create"]
    assert {"--accelerator-type=v5p-128", "--version=v2-alpha-tpuv5", "--spot"} <= set(created)


def test_a_pod_that_stands_is_kept(cloud):
    (cloud / "states").write_text("CREATING\nREADY\n")
    assert tpu_pod.main([*POD, "--create=v5p-128", "--version=v", "--", "train"]) == 0
    assert verbs(cloud) == ["describe", "describe", "run"]


def test_a_queued_resource_is_waited_for(cloud):
    (cloud / "states").write_text("-\n-\n-\nREADY\n")
    (cloud / "requests").write_text("SUSPENDED\nWAITING_FOR_RESOURCES\nPROVISIONING\n")
    options = ["--create=v5e:4x4", "--version=v", "--queued", "--delete"]
    assert tpu_pod.main([*POD, *options, "--", "train"]) == 0
    waited = ["queue describe", "describe"]
    assert verbs(cloud)[:4] == ["describe", "queue describe", "queue delete", "queue create"]  # an earlier one's
    assert verbs(cloud)[4:] == ["describe", *waited, *waited, "run", "queue delete"]
    created = dict(calls(cloud))["queued-resources create"]
    assert {"--node-id=pod", "--accelerator-type=v5litepod-16", "--runtime-version=v"} <= set(created)


def test_a_queued_resource_that_failed_is_said(cloud, capfd):
    (cloud / "requests").write_text("-\nFAILED\n")
    options = ["--create=v5e:4x4", "--version=v", "--queued"]
    assert tpu_pod.main([*POD, *options, "--", "train"]) == 1
    assert "the queued resource pod is FAILED" in capfd.readouterr().err


FAILS_ONCE = """\
import pathlib, sys
first = not pathlib.Path("began").exists()
pathlib.Path("began").touch()
sys.exit(CODE if first else 0)
"""


def test_a_preempted_pod_is_created_again_and_the_program_goes_on(cloud):
    project(cloud / "home" / "longhaul", FAILS_ONCE.replace("CODE", "75"))
    (cloud / "states").write_text("READY\nPREEMPTED\nREADY\n")
    options = ["--create=v5p-128", "--version=v", "--install", "--restarts=3"]
    assert tpu_pod.main([*POD, *options, "--", "train"]) == 0
    again = ["describe", "delete", "create", "describe", "scp", "install", "run"]
    assert verbs(cloud) == ["describe", "scp", "install", "run", *again]
    attempts = [word for _, words in calls(cloud) for word in words if "launch.keeper" in word]
    assert [" --attempt 0 " in word for word in attempts] == [True, False]


def test_a_pod_in_maintenance_is_waited_for(cloud):
    project(cloud / "home" / "longhaul", FAILS_ONCE.replace("CODE", "1"))
    (cloud / "states").write_text("REPAIRING\nREADY\n")
    assert tpu_pod.main([*POD, "--restarts=1", "--", "train"]) == 0
    assert verbs(cloud) == ["run", "describe", "describe", "run"]


@pytest.mark.parametrize("state", ["STOPPED", "STOPPING", "HIDDEN", "UNKNOWN"])
def test_a_pod_in_another_state_is_refused_and_left_alone(cloud, capfd, state):
    (cloud / "states").write_text(f"{state}\n")
    options = ["--create=v5p-128", "--version=v", "--restarts=3", "--delete"]
    assert tpu_pod.main([*POD, *options, "--", "train"]) == 2
    assert verbs(cloud) == ["describe"] and f"pod is {state}, and is left so" in capfd.readouterr().err


@pytest.mark.parametrize("states", ["REIMAGING\nREADY\n", "!\nREADY\n", "STARTING\n!\nRESTARTING\nREADY\n"])
def test_a_pod_that_will_be_ready_or_of_which_nothing_is_known_is_not_replaced(cloud, states):
    (cloud / "states").write_text(states)
    assert tpu_pod.main([*POD, "--create=v5p-128", "--version=v", "--", "train"]) == 0
    assert verbs(cloud) == ["describe"] * states.count("\n") + ["run"]


def test_a_pod_that_is_being_deleted_is_created_once_it_is_gone(cloud):
    (cloud / "states").write_text("DELETING\n-\nREADY\n")
    assert tpu_pod.main([*POD, "--create=v5p-128", "--version=v", "--", "train"]) == 0
    assert verbs(cloud) == ["describe", "describe", "create", "describe", "run"]


def test_a_gcloud_that_keeps_failing_ends_the_run(cloud, capfd):
    (cloud / "states").write_text("!\n" * 9)
    assert tpu_pod.main([*POD, "--create=v5p-128", "--version=v", "--", "train"]) == 1
    assert verbs(cloud) == ["describe"] * tpu_pod.TRIES and "UNAVAILABLE: try again" in capfd.readouterr().err


@pytest.mark.parametrize("options", [["--create=v5p-128", "--version=v"], []])
def test_who_has_not_logged_in_is_told_so_and_not_waited_for(cloud, capfd, options):
    project(cloud / "home" / "longhaul", "raise SystemExit(1)")
    (cloud / "states").write_text("?\n" * 9)
    assert tpu_pod.main([*POD, *options, "--restarts=9", "--delete", "--", "train"]) == 2
    assert verbs(cloud) == ["describe"] if options else ["run", "describe"]
    assert "launch: gcloud is not logged in; log in with gcloud auth login" in capfd.readouterr().err


def test_who_may_not_do_something_is_not_told_to_log_in(cloud, capfd):
    (cloud / "states").write_text("403\n" * 9)
    assert tpu_pod.main([*POD, "--create", "v5p:4x4x4", "--version", "v", "--", "train"]) != 0
    err = capfd.readouterr().err
    assert "PERMISSION_DENIED" in err and "not logged in" not in err


@pytest.mark.parametrize("request_states", ["ACTIVE\n", "!\n", "WAITING_FOR_RESOURCES\n"])
def test_a_request_that_stands_is_kept(cloud, request_states):
    (cloud / "states").write_text("-\nREADY\n")
    (cloud / "requests").write_text(request_states)
    assert tpu_pod.main([*POD, "--create=v5e:4x4", "--version=v", "--queued", "--", "train"]) == 0
    assert verbs(cloud) == ["describe", "queue describe", "describe", "run"]


def test_an_interpreter_that_is_not_there_is_not_started_again(cloud, capfd):
    (cloud / "home/longhaul/.venv/bin/python").unlink()
    assert tpu_pod.main([*POD, "--restarts=3", "--", "train"]) == 127
    assert verbs(cloud) == ["run"] and "exit code 127: a command is not there" in capfd.readouterr().err


def test_workers_without_the_project_are_a_mistake(cloud, capfd):
    shutil.rmtree(cloud / "home/longhaul")
    assert tpu_pod.main([*POD, "--restarts=3", "--", "train"]) == 2
    assert verbs(cloud) == ["run"]
    assert "launch: the project is not in longhaul here; give --install, which puts it there" in capfd.readouterr().err


def test_a_users_mistake_is_not_repeated(cloud):
    project(cloud / "home" / "longhaul", FAILS_ONCE.replace("CODE", "2"))
    assert tpu_pod.main([*POD, "--restarts=3", "--delete", "--", "train"]) == 2
    assert verbs(cloud) == ["run", "delete"]


def test_a_pod_that_is_gone_and_may_not_be_created_ends_the_run(cloud, capfd):
    project(cloud / "home" / "longhaul", FAILS_ONCE.replace("CODE", "1"))
    (cloud / "states").write_text("TERMINATED\n")
    assert tpu_pod.main([*POD, "--restarts=1", "--", "train"]) == 1
    assert "pod is TERMINATED; create it again (--create does)" in capfd.readouterr().err


def kept_log(cloud):
    log = cloud / "home/longhaul/runs/launch/pod.log"
    return log.read_text() if log.exists() else ""


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "kill -9"])
def test_the_program_saves_and_stops_with_the_launcher(cloud, how):
    project(cloud / "home" / "longhaul", SAVES)
    running = launcher("tpu_pod", *POD, "--restarts=3", "--", "train", cwd=cloud)
    wait_for(lambda: "ready" in kept_log(cloud))
    running.send_signal(signal.SIGKILL if how == "kill -9" else getattr(signal, how))
    code, _, _ = finish(running)
    wait_for(lambda: "saved" in kept_log(cloud))
    assert code == (-signal.SIGKILL if how == "kill -9" else 75) and kept_log(cloud).count("ready") == 1


def test_a_second_launch_is_refused_and_stop_stops_the_first(cloud):
    project(cloud / "home" / "longhaul", SAVES)
    first = launcher("tpu_pod", *POD, "--restarts=2", "--", "train", cwd=cloud)
    wait_for(lambda: "ready" in kept_log(cloud))
    code, _, err = called("tpu_pod", *POD, "--logs=other", "--", "train", cwd=cloud)
    assert code == 2 and "of another launch" in err
    assert called("tpu_pod", *POD, "--stop", cwd=cloud)[0] == 0
    code, _, err = finish(first)
    assert code == 75 and "starting again" not in err and "saved" in kept_log(cloud)


def test_an_option_that_needs_no_program_may_have_its_value_after_an_equals_sign(cloud):
    code, out, err = called("tpu_pod", *POD, "--create=v5p:4x4x4", "--version=v", "--dry-run", cwd=cloud)
    assert code == 0 and [shlex.split(line)[4] for line in out.splitlines()] == ["describe", "create", "describe"], err


def test_dry_run_prints_what_it_calls(cloud):
    options = ["--create=v5p:4x4x4", "--version=v", "--queued", "--install", "--delete", "--dry-run"]
    code, out, err = called("tpu_pod", *POD, *options, "--", "train", "--workdir=/shared/xl")
    lines = [shlex.split(line) for line in out.splitlines()]
    assert code == 0 and (cloud / "calls").read_text() == ""
    assert [line[4] if line[0] == "gcloud" else line[0] for line in lines] == [
        *("describe", "describe", "create", "describe", "git", "scp", "ssh", "ssh", "delete")
    ]
    assert err == ""
    _, _, err = called("tpu_pod", *POD, *options, "--", "train", "--workdir=runs/xl", cwd=cloud)
    assert err == "launch: warning: runs/xl is each worker's own, and gone with the pod: give a bucket\n"


MADE = ["--create=v5p:4x4x4", "--version=v", "--queued", "--install", "--restarts=3"]


def test_stop_does_nothing_else_and_deletes_after_it_only_where_that_is_said(cloud):
    assert tpu_pod.main([*POD, *MADE, "--stop"]) == 0
    assert verbs(cloud) == ["stop"]
    assert tpu_pod.main([*POD, *MADE, "--stop", "--delete"]) == 0
    assert verbs(cloud) == ["stop", "stop", "queue delete"]
    assert called("tpu_pod", *POD, *MADE, "--stop", "--dry-run", cwd=cloud)[1].count("\n") == 1
    (cloud / "home/longhaul/.venv/bin/python").unlink()  # it cannot be asked
    assert tpu_pod.main([*POD, "--stop", "--delete"]) != 0
    assert verbs(cloud)[3:] == ["stop"]


def test_hints_are_given_once_there_is_a_run_and_name_the_short_command(cloud, capfd, monkeypatch):
    project(cloud / "home" / "longhaul", "import time; print('trained', flush=True); time.sleep(0.5)")
    (cloud / "states").write_text("READY\n")
    assert tpu_pod.main([*POD, "--create=v5p-8", "--version=v", "--", "train", "--workdir=/shared/xl"]) == 0
    err = capfd.readouterr().err
    assert "saved: Ctrl-C here, or python -m launch.tpu_pod --tpu=pod --zone=us-east5-a --stop\n" in err
    assert "watch: tail -f runs/pod/workers.log\n" in err and "tensorboard --logdir=/shared/xl/metrics" in err
    tool(cloud / "gcloud", "exit 1")
    monkeypatch.setattr(tpu_pod, "LOOK", 60.0)  # it fails before that
    assert tpu_pod.main([*POD, "--", "train"]) == 1
    assert "watch" not in capfd.readouterr().err


def test_an_earlier_launchs_logs_are_kept(cloud):
    for _ in range(2):
        assert tpu_pod.main([*POD, "--", "train"]) == 0
    first, start, second = (cloud / "runs/pod/workers.log").read_text().replace("\n\n", "\n").splitlines()
    assert first == second == f"{HOST} | trained" and start.startswith("launch: start at ")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--zone=z", "--", "train"], "required: --tpu"),
        ([*POD], "name what to run after '--'"),
        ([*POD, "--create=v5p-8", "--", "train"], "--create needs --version"),
        (
            [*POD, "--create=v5p:4x4", "--", "train"],
            "v5p:4x4 is no shape of v5p; after the colon write three sizes, as in",
        ),
        ([*POD, "--create=v5e:4x4x4", "--", "train"], "write two sizes, as in v5e:8x8"),
        ([*POD, "--create=v5p:2x4x8", "--", "train"], "no shape that gcloud makes of v5p; did you mean v5p:4x4x4?"),
        ([*POD, "--create=v6e:3x5", "--", "train"], "no shape that gcloud makes of v6e; did you mean v6e:4x4?"),
        ([*POD, "--create=v9:4x4", "--", "train"], "v9:4x4 is of no TPU that is known"),
        ([*POD, "--spot", "--", "train"], "--spot says how the pod is created"),
        ([*POD, "--queued", "--", "train"], "--queued says how the pod is created"),
        ([*POD, "--", "train"], "'gcloud' is not installed here"),
    ],
)
def test_mistakes(argv, message, tmp_path):
    code, _, err = called("tpu_pod", *argv, PATH=tmp_path)
    assert code == 2
    assert message in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("pod", "named"),
    [
        *(("v5p:2x2x1", "v5p-8"), ("v5p:4x4x8", "v5p-256"), ("v5p:4x4x12", "v5p-384"), ("v5p:4x12x12", "v5p-1152")),
        *(("v5p:8x16x16", "v5p-4096"), ("v5p:16x16x24", "v5p-12288"), ("v5e:8x16", "v5litepod-128")),
        ("v6e:2x4", "v6e-8"),
    ],
)
def test_gclouds_name_of_a_shape(pod, named):
    """Of v5p's larger slices those that are most compact, as Google's tables have them."""
    assert tpu_pod.accelerator(*tpu_pod.pod_type(pod).split(":")) == named


@pytest.mark.slow
@pytest.mark.parametrize("pod", ["v4:4x4x8", "v5e:4x4", "v5p:4x4x4", "v6e:16x16", "v5p-8"])
@pytest.mark.parametrize("queued", [[], ["--queued"]])
def test_gcloud_itself_knows_the_words(pod, queued, tmp_path):
    """Its parser refuses a command with code 2; what it accepts ends at an account that it has not."""
    if not shutil.which("gcloud"):
        pytest.skip("gcloud is not installed")
    options = [f"--create={pod}", "--version=v2-alpha-tpuv5", "--spot", "--install", "--delete", *queued, "--dry-run"]
    _, out, _ = called("tpu_pod", *POD, *options, "--", "train", f"--workdir={tmp_path}/it's, a run")
    commands = [words for words in map(shlex.split, out.splitlines()) if words[0] == "gcloud"]
    assert len(commands) > 5
    (tmp_path / "longhaul.tar.gz").touch()
    nowhere = {"CLOUDSDK_CONFIG": str(tmp_path / "none"), "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"}
    nowhere |= dict.fromkeys(("https_proxy", "HTTPS_PROXY"), "http://127.0.0.1:9")
    for words in commands:
        words.append("--project=a-project")
        done = subprocess.run(words, cwd=tmp_path, env=os.environ | nowhere, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and "active account" in done.stderr, (words, done.stderr)

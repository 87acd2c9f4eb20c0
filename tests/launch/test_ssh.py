"""The ssh launcher: its script for a host run by bash, and all of it through a real sshd on loopback."""

import getpass
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launchers import PLACE, SAVES, finish, launcher, project, wait_for

from launch.local import free_port
from launch.ssh import start_command, stop_command


@pytest.fixture
def host(tmp_path):
    """`host(body, grace)`: a program with that body, run as ssh runs it on a host."""
    running = []

    def run(body, grace=30.0, program=("train",), **options):
        folder = project(tmp_path / "my project", body)
        command = start_command(str(folder), "run", grace, sys.executable, ["A=b c"], program, **options)
        pipe = subprocess.PIPE
        running.append(subprocess.Popen(["bash", "-c", command], stdin=pipe, stdout=pipe, text=True))
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.communicate()


def stop(tmp_path):
    command = stop_command(str(tmp_path / "my project"), "run")
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30).stdout


def test_start_command_runs_the_program(host):
    body = "import os, sys; print(sys.argv[1:], os.environ['A']); sys.exit(7)"
    process = host(body, program=["train", "a b", "$HOME"])
    assert process.wait(timeout=30) == 7 and process.stdout.read() == "['train', 'a b', '$HOME'] b c\n"


def test_start_command_prefixes_lines_with_the_host(host):
    out = host("print('one\\ntwo')", prefix=True).stdout.read()
    assert out == f"{os.uname().nodename} | one\n{os.uname().nodename} | two\n"


def test_end_of_input_saves_and_exits_with_75(host):
    process = host(SAVES)
    assert process.stdout.readline() == "ready\n"
    out, _ = process.communicate(timeout=30)  # closes its standard input
    assert process.returncode == 75 and out == "saved\n"


def test_end_of_input_kills_after_the_grace(host):
    process = host(
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)", 0.5
    )
    assert process.stdout.readline() == "ready\n"
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGKILL


def test_stop_command_saves_and_is_not_restarted(host, tmp_path):
    process = host(SAVES)
    assert process.stdout.readline() == "ready\n"
    assert "run stopped" in stop(tmp_path)
    assert process.wait(timeout=30) == 76 and "nothing runs" in stop(tmp_path)


def test_start_command_without_the_project_exits_with_2(tmp_path):
    command = start_command(str(tmp_path), "run", 30.0, sys.executable, [], ["train"])
    assert subprocess.run(["bash", "-c", command], capture_output=True, timeout=30).returncode == 2


SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
SERVER = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile {folder}/sshd.pid
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
"""
CLIENT = """\
Host node1 node2
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
  StrictHostKeyChecking accept-new
  LogLevel ERROR
"""


@pytest.fixture(scope="module")
def ssh(tmp_path_factory):
    """Command that reaches node1 and node2, which are this machine behind an sshd."""
    if not (SSHD and shutil.which("ssh") and shutil.which("ssh-keygen")):
        pytest.skip("sshd or ssh is not installed (Debian: openssh-server)")
    folder, port = tmp_path_factory.mktemp("sshd"), free_port()
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd requires it when started by root
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "sshd_config").write_text(SERVER.format(port=port, folder=folder))
    (folder / "ssh_config").write_text(CLIENT.format(port=port, folder=folder, user=getpass.getuser()))
    with (folder / "sshd.log").open("wb") as log:
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "sshd_config"], stdout=log, stderr=log)
    command = f"ssh -F {folder / 'ssh_config'}"
    try:
        wait_for(lambda: subprocess.run([*command.split(), "node1", "true"], capture_output=True).returncode == 0)
        yield command
    finally:
        server.terminate()
        server.wait(timeout=10)


def options_for(ssh, folder):
    hosts = [f"--ssh={ssh}", "--hosts=node1,node2", f"--folder={folder}/far away", f"--python={sys.executable}"]
    return [*hosts, f"--logs={folder}/logs"]


def log(folder, host):
    path = folder / "logs" / f"{host}.log"
    return path.read_text() if path.exists() else ""


@pytest.mark.slow
def test_ssh_gives_every_host_its_place_and_arguments(ssh, tmp_path):
    project(tmp_path / "far away", PLACE)
    nasty = ["train", "it's", 'a "b" $HOME `id`', "two\nlines", "", "--", "*", "\\"]
    code, _, err = finish(launcher("ssh", *options_for(ssh, tmp_path), "--", *nasty))
    assert code == 0, err
    runs = [json.loads(log(tmp_path, host)) for host in ("node1", "node2")]
    assert runs == [{"arguments": nasty, "places": ["node1:28476", "2", index]} for index in "01"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ssh_programs_save_when_the_launcher_ends(ssh, tmp_path, number):
    project(tmp_path / "far away", SAVES)
    running = launcher("ssh", *options_for(ssh, tmp_path), "--restarts=3", "--", "train")
    wait_for(lambda: all("ready" in log(tmp_path, host) for host in ("node1", "node2")))
    running.send_signal(number)
    code, _, _ = finish(running)
    assert code == (75 if number == signal.SIGTERM else -signal.SIGKILL)
    wait_for(lambda: all(log(tmp_path, host).split() == ["ready", "saved"] for host in ("node1", "node2")))


@pytest.mark.slow
def test_ssh_stop_ends_a_launch_with_restarts(ssh, tmp_path):
    project(tmp_path / "far away", SAVES)
    running = launcher("ssh", *options_for(ssh, tmp_path), "--restarts=3", "--", "train")
    wait_for(lambda: all("ready" in log(tmp_path, host) for host in ("node1", "node2")))
    assert finish(launcher("ssh", *options_for(ssh, tmp_path), "--stop"))[0] == 0
    code, _, err = finish(running)
    assert code == 75 and "restart" not in err


def test_quoting_leaves_the_home_folder_to_the_host():
    words = shlex.join(["printf", "%s\\n"]) + " " + start_command("~/it's", "run", 1.0, "~/py", [], ["train"])
    out = subprocess.run(["bash", "-c", words], capture_output=True, text=True).stdout
    assert f"{Path.home()}/it's\nrun\n1\nenv\n{Path.home()}/py\n-m" in out

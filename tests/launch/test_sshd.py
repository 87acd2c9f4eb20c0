"""The SSH launcher through a real sshd on loopback, with keys and settings of its own."""

import getpass
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from standins import ROOT, finish, launcher, project, said, wait_for
from test_ssh import SAVES

from launch.local import free_port

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
missing = [name for name, path in (("sshd", SSHD), *((n, shutil.which(n)) for n in ("ssh", "ssh-keygen"))) if not path]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)} (Debian: openssh-server)"),
]

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
def reach(tmp_path_factory):
    """The option that makes the launcher reach node1 and node2, which are this machine behind an sshd."""
    folder, port = tmp_path_factory.mktemp("sshd"), free_port()
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants that empty folder where it is started as root
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "sshd_config").write_text(SERVER.format(port=port, folder=folder))
    (folder / "ssh_config").write_text(CLIENT.format(port=port, folder=folder, user=getpass.getuser()))
    with (folder / "sshd.log").open("wb") as log:
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "sshd_config"], stdout=log, stderr=log)
    option = f"ssh -F {folder / 'ssh_config'}"
    try:
        wait_for(lambda: subprocess.run([*option.split(), "node1", "true"], capture_output=True).returncode == 0)
        yield f"--ssh={option}"
    finally:
        server.terminate()
        server.wait(timeout=10)


def start(reach, folder, *options, program=("train",), **environment):
    own = [reach, "--hosts=node1,node2", f"--folder={folder}/far away", f"--logs={folder}/logs"]
    return launcher("ssh", *own, *options, "--", *program, **environment)


def logged(folder, word, hosts=("node1", "node2")):
    logs = [folder / "logs" / f"{host}.log" for host in hosts]
    return all(log.exists() and word in log.read_text() for log in logs)


def kept_log(folder, host):
    log = folder / "far away" / "runs" / "launch" / f"longhaul-{host}.log"
    return log.read_text() if log.exists() else ""


def connections(running):
    """The launcher's ssh processes, in the order of the hosts."""
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    return sorted(map(int, children))


def test_arguments_and_variables_arrive(reach, tmp_path):
    project(tmp_path / "far away")
    nasty = ["train", "it's", 'a "b" $HOME `id`', "two\nlines", "", "--", "*", "\\"]
    code, _, err = finish(start(reach, tmp_path, program=nasty))
    assert code == 0, err
    runs = [said((tmp_path / "logs" / f"{host}.log").read_text())[0] for host in ("node1", "node2")]
    assert [run["arguments"] for run in runs] == [nasty] * 2
    assert [run["environment"]["LONGHAUL_PROCESS"] for run in runs] == ["0", "1"]
    assert {run["environment"]["LONGHAUL_COORDINATOR"] for run in runs} == {"node1:28476"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_programs_save_and_stop_with_the_launcher(reach, tmp_path, number):
    project(tmp_path / "far away", SAVES)
    running = start(reach, tmp_path)
    wait_for(lambda: logged(tmp_path, "ready"))
    running.send_signal(number)
    code, _, _ = finish(running)
    assert code == (75 if number == signal.SIGTERM else -signal.SIGKILL)
    for host in ("node1", "node2"):
        wait_for(lambda host=host: "saved" in kept_log(tmp_path, host))


@pytest.mark.skipif(sys.platform != "linux", reason="a process's children are read from Linux's /proc")
def test_a_lost_connection_stops_all_with_everything_saved_and_the_run_goes_on(reach, tmp_path):
    project(tmp_path / "far away", SAVES)
    running = start(reach, tmp_path, "--restarts=1")
    wait_for(lambda: logged(tmp_path, "ready"))
    os.kill(connections(running)[1], signal.SIGKILL)
    wait_for(lambda: all(kept_log(tmp_path, host).count("ready") == 2 for host in ("node1", "node2")), seconds=60)
    assert all(kept_log(tmp_path, host).split() == ["ready", "saved", "ready"] for host in ("node1", "node2"))
    running.send_signal(signal.SIGTERM)
    assert finish(running)[0] == 75


@pytest.mark.skipif(sys.platform != "linux", reason="a process's children are read from Linux's /proc")
def test_a_connection_that_goes_silent_counts_as_lost_at_both_ends(reach, tmp_path):
    """As where a network drops everything: neither end hears of the other's."""
    project(tmp_path / "far away", SAVES)
    own = [reach, "--hosts=node1,node2", f"--folder={tmp_path}/far away", f"--logs={tmp_path}/logs", "--grace=1"]
    source = "import sys; from launch import remote, ssh; remote.BEAT, ssh.SILENCE = 0.3, 3; remote.FAREWELL = 1.0\n"
    source += f"sys.exit(ssh.main({[*own, '--', 'train']!r}))"
    running = subprocess.Popen(
        [sys.executable, "-c", source], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: logged(tmp_path, "ready"))
    time.sleep(4)
    assert "saved" not in kept_log(tmp_path, "node2")  # what is heard of the launcher keeps it going
    stopped = connections(running)[1]
    os.kill(stopped, signal.SIGSTOP)
    wait_for(lambda: "saved" in kept_log(tmp_path, "node2"))
    os.kill(stopped, signal.SIGKILL)
    code, _, _ = finish(running)
    assert code == 128 + signal.SIGKILL and "saved" in kept_log(tmp_path, "node1")


@pytest.mark.timeout(1200)
def test_the_real_program_goes_on_to_the_same_result(reach, tmp_path):
    sys.path.insert(0, str(ROOT / "tests" / "pretrain"))
    from runs import assert_same_leaves, environment, leaves
    from test_slurm_cluster import STEPS, arguments

    (tmp_path / "text").mkdir()
    for number, path in enumerate(sorted((ROOT / "pretrain").rglob("*.py"))[:20]):
        shutil.copy(path, tmp_path / "text" / f"{number}.py")
    (tmp_path / "there").mkdir()
    for name in ("configs", "launch"):
        (tmp_path / "there" / name).symlink_to(ROOT / name)
    own = [f"--env=XLA_FLAGS={environment()['XLA_FLAGS']}", "--env=JAX_PLATFORMS=cpu", f"--env=PYTHONPATH={ROOT}"]
    own += [f"--coordinator=127.0.0.1:{free_port()}", f"--folder={tmp_path}/there", f"--python={sys.executable}"]

    def run(workdir):
        options = [reach, "--hosts=node1,node2", f"--logs={tmp_path}/logs", f"--name={workdir}", *own]
        return launcher("ssh", *options, "--", *arguments(tmp_path / workdir, tmp_path / "text"))

    running = run("cut")
    wait_for(lambda: logged(tmp_path, "step 5/", ["node1"]), seconds=400)
    running.send_signal(signal.SIGTERM)
    code, out, err = finish(running, timeout=120)
    assert code == 75 and "interrupted: saved checkpoint" in out, out + err
    for workdir in ("cut", "whole"):
        code, out, err = finish(run(workdir), timeout=500)
        assert code == 0, out + err
    assert_same_leaves(leaves(tmp_path / "cut", STEPS), leaves(tmp_path / "whole", STEPS))

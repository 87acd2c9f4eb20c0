"""The SLURM launcher on a real cluster of two nodes: slurmctld, slurmd and munged on loopback."""

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest
from launchers import PLACE, SAVES, finish, launcher, project, wait_for

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
CONFIG = """\
ClusterName=longhaul
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A requeued job may begin once its credentials have expired.
AuthInfo=socket={folder}/munge.sock,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
MinJobAge=600
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ReturnToService=2
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName={host}2 NodeHostname={host}2 NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

missing = [tool for tool in TOOLS if not shutil.which(tool, path=PATH)]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)} (Debian: slurm-wlm, munge)"),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd starts jobs as root"),
]


def free_ports(count):
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Environment in which SLURM's commands find a cluster of two nodes."""
    folder, host = tmp_path_factory.mktemp("slurm"), socket.gethostname().partition(".")[0]
    try:
        socket.gethostbyname(host)
    except OSError:
        pytest.skip(f"this machine's name, {host}, has no address")
    for name in ("state", f"spool-{host}", f"spool-{host}2"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(folder=folder, user=getpass.getuser(), host=host, ports=free_ports(3)))
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    daemons = [
        ["munged", "--foreground", "--force", *files, f"--socket={folder}/munge.sock"],
        ["slurmctld", "-D", "-f", str(config)],
        ["slurmd", "-D", "-N", host, "-f", str(config)],
        ["slurmd", "-D", "-N", f"{host}2", "-f", str(config)],
    ]
    environment = {"SLURM_CONF": str(config), "PATH": PATH}
    started = []
    try:
        for number, command in enumerate(daemons):
            with (folder / f"daemon-{number}.log").open("wb") as log:
                own = os.environ | environment
                started.append(subprocess.Popen(command, stdout=log, stderr=log, env=own, cwd=folder))
            time.sleep(1.0)
        wait_for(lambda: run(environment, "sinfo", "-h", "-o", "%T %D").split() == ["idle", "2"], seconds=60)
        yield environment
    finally:
        run(environment, "scancel", f"--user={getpass.getuser()}")
        wait_for(lambda: not run(environment, "squeue", "--noheader"), seconds=60)  # slurmd waits for its jobs
        for daemon in reversed(started):
            daemon.terminate()
            daemon.wait(timeout=30)


def run(environment, *command):
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment).stdout


def submit(cluster, folder, *options, program=("train",)):
    """Submit a job from `folder`; return its number."""
    flags = [f"--python={sys.executable}", f"--logs={folder}/my logs", "--cpus=1", *options]
    code, out, err = finish(launcher("slurm", *flags, "--", *program, cwd=folder, **cluster))
    assert code == 0, out + err
    return out.split()[-1]


def state(cluster, job):
    words = run(cluster, "scontrol", "show", "job", job).split()
    fields = dict(word.split("=", 1) for word in words if "=" in word)
    return fields["JobState"], int(fields["Restarts"]), fields["ExitCode"]


def log(folder, job):
    path = folder / "my logs" / f"longhaul-{job}.log"
    return path.read_text() if path.exists() else ""


def ended(cluster, job):
    return state(cluster, job)[0] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


def job_folder(tmp_path, body):
    """A folder whose `python -m pretrain` does `body`: a job runs where it was submitted."""
    folder = project(tmp_path, body)
    (folder / "launch").symlink_to(os.path.join(os.path.dirname(__file__), "..", "..", "launch"))
    return folder


def test_slurm_gives_every_node_its_place_and_arguments(cluster, tmp_path):
    nasty = ["train", "it's", 'a "b" $HOME', "two\nlines", "", "--"]
    options = ["--nodes=2", '--sbatch=--comment=it\'s "a" \\ #comment']
    job = submit(cluster, job_folder(tmp_path, PLACE), *options, program=nasty)
    wait_for(lambda: ended(cluster, job), seconds=60)
    assert state(cluster, job) == ("COMPLETED", 0, "0:0"), log(tmp_path, job)
    runs = sorted(map(json.loads, log(tmp_path, job).splitlines()), key=lambda run: run["places"])
    coordinator = f"{socket.gethostname().partition('.')[0]}:{20000 + int(job) % 6000 * 2}"
    assert runs == [{"arguments": nasty, "places": [coordinator, "2", index]} for index in "01"]
    comment = run(cluster, "squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%k")
    assert comment == 'it\'s "a" \\ #comment\n'


def test_slurm_job_saves_and_ends_if_its_user_stops_it(cluster, tmp_path):
    job = submit(cluster, job_folder(tmp_path, SAVES), "--nodes=2", "--restarts=3")
    wait_for(lambda: log(tmp_path, job).count("ready") == 2, seconds=60)
    run(cluster, "scancel", "--batch", "--signal=USR2", job)
    wait_for(lambda: ended(cluster, job), seconds=60)
    assert state(cluster, job) == ("FAILED", 0, "75:0") and log(tmp_path, job).count("saved") == 2


def test_slurm_job_saves_and_is_requeued_before_its_time_limit(cluster, tmp_path):
    job = submit(cluster, job_folder(tmp_path, SAVES), "--nodes=2", "--time=1", "--warning=30")
    try:
        wait_for(lambda: log(tmp_path, job).count("saved") == 2, seconds=120)
        wait_for(lambda: log(tmp_path, job).count("ready") == 4, seconds=120)
        assert state(cluster, job)[:2] == ("RUNNING", 1)
    finally:
        run(cluster, "scancel", job)


def test_slurm_restarts_a_fault_but_not_a_mistake(cluster, tmp_path):
    body = "import os, sys\nprint('started', flush=True)\nsys.exit(2 if 'SLURM_RESTART_COUNT' in os.environ else 1)"
    job = submit(cluster, job_folder(tmp_path, body), "--restarts=5")
    wait_for(lambda: log(tmp_path, job).count("started") == 2 and ended(cluster, job), seconds=90)
    assert state(cluster, job) == ("FAILED", 1, "2:0")

"""The SLURM launcher on a real cluster of two nodes: slurmctld, slurmd and munged on loopback, of this test's own."""

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest
from standins import ROOT, called, project, said, wait_for
from test_ssh import SAVES

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"

CONFIG = """\
ClusterName=longhaul
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A job that goes back into the queue may begin once what the nodes were told of it has expired.
AuthInfo=socket={folder}/munge.sock,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
KillWait=30
MinJobAge=600
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ReturnToService=2
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName={host}2 NodeHostname={host}2 NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""

STEPS = 300

missing = [tool for tool in TOOLS if not shutil.which(tool, path=PATH)]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)} (Debian: slurm-wlm, munge)"),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd starts jobs as root"),
]


def free_ports(count):
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The environment in which SLURM's commands find a cluster of two nodes."""
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
    own = {f"--{name}-file={folder}/munge.{name}": name for name in ("key", "pid", "log", "seed")}
    daemons = [
        ["munged", "--foreground", "--force", *own, f"--socket={folder}/munge.sock"],
        ["slurmctld", "-D", "-f", str(config)],
        ["slurmd", "-D", "-N", host, "-f", str(config)],
        ["slurmd", "-D", "-N", f"{host}2", "-f", str(config)],
    ]
    environment = {"SLURM_CONF": str(config), "PATH": PATH}
    started = []
    try:
        for number, command in enumerate(daemons):
            with (folder / f"daemon-{number}.log").open("wb") as log:
                started.append(
                    subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | environment, cwd=folder)
                )
            time.sleep(1.0)
        wait_for(
            lambda: run(environment, "sinfo", "-h", "--partition=main", "-o", "%T %D").split() == ["idle", "2"],
            seconds=60,
        )
        yield environment
    finally:
        run(environment, "scancel", f"--user={getpass.getuser()}")
        wait_for(lambda: not run(environment, "squeue", "--noheader"), seconds=60)  # slurmd waits for its jobs
        for daemon in reversed(started):
            daemon.terminate()
            daemon.wait(timeout=30)


def run(environment, *command, **options):
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, **options)
    return done.stdout


def submit(environment, folder, *options, program=("train",), python=None, logs=None):
    """Submits from `folder` and returns the job's number."""
    python, logs = python or folder / ".venv" / "bin" / "python", logs or folder / "my logs"
    own = [f"--python={python}", f"--logs={logs}", "--cpus=1"]
    code, out, err = called("slurm", *own, *options, "--", *program, cwd=folder, **environment)
    assert code == 0 and "Submitted batch job" in out, out + err
    return out.split()[-1]


def state(environment, job):
    words = run(environment, "scontrol", "show", "job", job).split()
    fields = dict(word.split("=", 1) for word in words if "=" in word)
    return fields["JobState"], int(fields["Restarts"]), fields["ExitCode"]


def log(folder, job):
    path = folder / "my logs" / f"longhaul-{job}.log"
    return path.read_text() if path.exists() else ""


def ended(environment, job):
    return state(environment, job)[0] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


def test_a_process_on_each_node_learns_its_place(cluster, tmp_path):
    nasty = ["train", "it's", 'a "b" $HOME', "two\nlines", "", "--"]
    job = submit(cluster, project(tmp_path), "--nodes=2", '--sbatch=--comment=it\'s "a" \\ #comment', program=nasty)
    wait_for(lambda: ended(cluster, job), seconds=60)
    assert state(cluster, job) == ("COMPLETED", 0, "0:0"), log(tmp_path, job)
    places = said(log(tmp_path, job))
    assert [place["arguments"] for place in places] == [nasty] * 2
    assert sorted(place["environment"]["LONGHAUL_PROCESS"] for place in places) == ["0", "1"]
    assert {place["environment"]["LONGHAUL_PROCESSES"] for place in places} == {"2"}
    (coordinator,) = {place["environment"]["LONGHAUL_COORDINATOR"] for place in places}
    assert coordinator == f"{socket.gethostname().partition('.')[0]}:{20000 + int(job) % 6000 * 2}"
    comment = run(cluster, "squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%k")
    assert comment == 'it\'s "a" \\ #comment\n'  # sbatch read the value as it was meant


def test_a_cancelled_job_saves_and_stays_cancelled(cluster, tmp_path):
    job = submit(cluster, project(tmp_path, SAVES), "--nodes=2", "--restarts=3")
    wait_for(lambda: log(tmp_path, job).count("ready") == 2, seconds=60)
    run(cluster, "scancel", job)
    wait_for(lambda: ended(cluster, job) and log(tmp_path, job).count("saved") == 2, seconds=60)
    time.sleep(8)  # longer than a job waits that goes back into the queue
    assert state(cluster, job)[:2] == ("CANCELLED", 0) and log(tmp_path, job).count("ready") == 2


def test_a_job_that_is_asked_to_stop_has_all_the_time_to_save(cluster, tmp_path):
    job = submit(cluster, project(tmp_path, SAVES), "--nodes=2", "--restarts=3")
    wait_for(lambda: log(tmp_path, job).count("ready") == 2, seconds=60)
    run(cluster, "scancel", "--batch", "--signal=USR2", job)
    wait_for(lambda: ended(cluster, job), seconds=60)
    assert state(cluster, job) == ("FAILED", 0, "75:0") and log(tmp_path, job).count("saved") == 2


def test_a_preempted_job_saves_and_goes_on_afterwards(cluster, tmp_path):
    job = submit(cluster, project(tmp_path, SAVES), "--nodes=2", "--sbatch=--exclusive")
    wait_for(lambda: log(tmp_path, job).count("ready") == 2, seconds=60)
    other = ["--parsable", "--partition=urgent", "--nodes=2", "--exclusive", "--wrap=true"]
    urgent = run(cluster, "sbatch", *other, cwd=tmp_path).strip()
    try:
        wait_for(lambda: ended(cluster, urgent), seconds=90)
        assert log(tmp_path, job).count("saved") == 2
        wait_for(lambda: log(tmp_path, job).count("ready") == 4, seconds=120)
        assert state(cluster, job)[:2] == ("RUNNING", 1)
    finally:
        run(cluster, "scancel", job, urgent)


def test_a_fault_is_restarted_and_a_mistake_is_not(cluster, tmp_path):
    body = "import os, sys, time\nprint('started', flush=True)\n"
    body += "sys.exit({} if os.environ.get('SLURM_RESTART_COUNT', '0') == '0' else {})"
    faulty = submit(cluster, project(tmp_path, body.format(1, 2)), "--restarts=5")
    wait_for(lambda: log(tmp_path, faulty).count("started") == 2 and ended(cluster, faulty), seconds=90)
    assert state(cluster, faulty) == ("FAILED", 1, "2:0")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for number, path in enumerate(sorted((ROOT / "pretrain").rglob("*.py"))[:20]):
        shutil.copy(path, folder / f"{number}.py")
    return folder


def arguments(workdir, text):
    """A small run of the real program."""
    keys = {
        **{"tokenizer.kind": "bytes", "model.vocab_size": 257, "model.layers": 1, "model.width": 16},
        **{"model.heads": 2, "model.ff": 32, "model.dropout_residual": 0.1, "train.steps": STEPS},
        **{"checkpoint.every": 100000, "evaluate.every": 0, "data.workers": 2, "log.tensorboard": "false"},
        "data.train": f"text:{text}/*.py",
    }
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    return ["train", "--config=configs/quickstart.py:tiny", f"--workdir={workdir}", *flags]


def test_a_job_is_warned_of_its_time_limit_and_queued_again(cluster, tmp_path):
    job = submit(cluster, project(tmp_path, SAVES), "--nodes=2", "--time=1", "--warning=30")
    try:
        wait_for(lambda: log(tmp_path, job).count("saved") == 2, seconds=120)  # SLURM's own warning
        wait_for(lambda: log(tmp_path, job).count("ready") == 4, seconds=120)
        assert state(cluster, job)[:2] == ("RUNNING", 1)
    finally:
        run(cluster, "scancel", job)


@pytest.mark.timeout(1500)
def test_a_job_that_was_warned_goes_on_to_the_same_result(cluster, tmp_path, text):
    """The real program on two nodes, with reader processes; the warning comes by hand once it makes updates."""
    sys.path.insert(0, str(ROOT / "tests" / "pretrain"))
    from runs import assert_same_leaves, environment, leaves

    own = {name: environment()[name] for name in ("XLA_FLAGS", "PYTHONUNBUFFERED")} | {"JAX_PLATFORMS": "cpu"}
    program = arguments(tmp_path / "run", text)
    job = submit(cluster | own, ROOT, "--nodes=2", program=program, python=sys.executable, logs=tmp_path / "my logs")
    printed = tmp_path / "my logs" / f"longhaul-{job}.log"
    try:
        wait_for(lambda: printed.exists() and "step 5/" in printed.read_text(), seconds=500)
        run(cluster, "scancel", "--batch", "--signal=USR1", job)  # as SLURM does near the time limit
        wait_for(lambda: ended(cluster, job), seconds=900)
    finally:
        run(cluster, "scancel", job)
    assert state(cluster, job) == ("COMPLETED", 1, "0:0"), printed.read_text()
    assert "interrupted: saved checkpoint" in printed.read_text() and "was killed" not in printed.read_text()
    whole = arguments(tmp_path / "whole", text)
    code, _, err = called("local", "--processes=2", "--devices=1", "--", *whole, timeout=900)
    assert code == 0, err
    assert_same_leaves(leaves(tmp_path / "run", STEPS), leaves(tmp_path / "whole", STEPS))

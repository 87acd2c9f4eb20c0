"""The SLURM launcher: what it would run, read by bash and tried out against stand-ins of SLURM's tools."""

import importlib
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch import slurm

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ["train", "--config=configs/gpt3.py:xl", "--workdir=/shared/it's a run"]


def launch(name, *argv, **environment):
    command = [sys.executable, "-m", f"launch.{name}", *map(str, argv)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


def parsed_by_bash(text):
    return subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""


def slurm_script(*options):
    done = launch("slurm", *options, "--dry-run", "--", *PROGRAM)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_slurm_asks_for_what_was_said():
    text = slurm_script("--nodes", 4, "--gpus-per-node", 8, "--partition", "big", "--time", "2:00:00")
    assert parsed_by_bash(text)
    asked = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert asked == [
        "job-name=longhaul",
        "nodes=4",
        "ntasks-per-node=1",
        "cpus-per-task=8",
        "gpus-per-node=8",
        "time=2:00:00",
        "partition=big",
        "output=runs/slurm/%x-%j.log",
        "signal=B:USR1@120",
        "requeue",
        "open-mode=append",
    ]


def test_slurm_process_per_gpu():
    text = slurm_script("--gpus-per-node", 4, "--per", "gpu")
    assert parsed_by_bash(text)
    assert "#SBATCH --ntasks-per-node=4\n" in text and "CUDA_VISIBLE_DEVICES=$SLURM_LOCALID" in text


@pytest.fixture
def cluster(tmp_path):
    """A folder of stand-ins for SLURM's commands, which write what they were told into `calls`."""
    tools = {
        "scontrol": 'echo "scontrol $*" >> calls; if [ "$1" = show ]; then echo node7; echo node8; fi',
        "squeue": "cat state",
        # Signals every process of the job, as the real one does: the stand-in job is one process.
        "scancel": 'echo "scancel $*" >> calls; kill -TERM "$(cat pid)"',
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; echo $$ > pid; exec "$@"',
        "python": """printf '%s\\n' "$@" > arguments
            env | grep '^LONGHAUL_[CP][OR]' > environment
            touch started
            . ./body""",
    }
    for name, body in tools.items():
        path = tmp_path / name
        path.write_text(f"#!/usr/bin/env bash\n{body}\n")
        path.chmod(0o755)
    (tmp_path / "calls").touch()
    (tmp_path / "state").write_text("RUNNING\n")
    return tmp_path


def run_script(cluster, body, send=None, options=()):
    """Runs the batch script with `body` as the program; sends the batch shell a signal once that has started."""
    (cluster / "body").write_text(body)
    environment = {
        **os.environ,
        "PATH": f"{cluster}:{os.environ['PATH']}",
        **dict(SLURM_JOB_ID="12345", SLURM_JOB_NODELIST="node[7-8]", SLURM_NTASKS="2", SLURM_PROCID="1"),
    }
    text = slurm_script("--nodes", 2, "--python", "python", *options)
    shell = subprocess.Popen(["bash", "-c", text], cwd=cluster, env=environment)
    if send is not None:
        deadline = time.monotonic() + 20
        while not (cluster / "started").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.2)  # for the body to set its trap
        shell.send_signal(send)
    return shell.wait(timeout=30), (cluster / "calls").read_text()


def test_slurm_processes_learn_their_places(cluster):
    code, calls = run_script(cluster, "exit 0")
    assert code == 0
    assert (cluster / "arguments").read_text().splitlines() == ["-m", "pretrain", *PROGRAM]
    assert sorted((cluster / "environment").read_text().split()) == [
        "LONGHAUL_COORDINATOR=node7:20690",
        "LONGHAUL_PROCESS=1",
        "LONGHAUL_PROCESSES=2",
    ]
    assert "requeue" not in calls


SAVES = "trap 'sleep 0.3; exit 75' TERM; while :; do sleep 0.05; done"


@pytest.mark.parametrize(
    ("number", "state", "queued"),
    [
        (signal.SIGUSR1, "RUNNING", True),  # the time limit is near
        (signal.SIGTERM, "RUNNING", True),  # preempted, with time to save, where the shell hears of it
        (signal.SIGTERM, "COMPLETING", False),  # cancelled; or preempted without: SLURM puts it back itself
        (signal.SIGUSR2, "RUNNING", False),  # its user asked it to stop
    ],
)
@pytest.mark.parametrize("restarts", [0, 2])
def test_slurm_signal_reaches_the_program_and_the_job_may_be_queued_again(cluster, number, state, queued, restarts):
    (cluster / "state").write_text(f"{state}\n")
    code, calls = run_script(cluster, SAVES, send=number, options=["--restarts", restarts] if restarts else [])
    assert code == 75
    assert "scancel --signal=TERM 12345" in calls and ("scontrol requeue 12345" in calls) == queued
    assert not list(cluster.rglob("*.faults"))  # that was no fault


def test_slurm_failure_is_passed_on_and_not_queued_again(cluster):
    code, calls = run_script(cluster, "exit 3")
    assert code == 3
    assert "requeue" not in calls


def test_slurm_job_whose_processes_were_told_to_stop_is_queued_again(cluster):
    code, calls = run_script(cluster, "exit 75")  # as where SLURM preempts: the shell is not told
    assert code == 75 and "scontrol requeue 12345" in calls


@pytest.mark.parametrize(
    ("code", "before", "queued"),
    [
        ("1", 0, True),
        ("69", 0, True),
        ("137", 1, True),
        ("1", 2, False),
        ("2", 0, False),
        ("0", 0, False),
        ("127", 0, False),
    ],
)
def test_slurm_restarts_after_preemptions_and_faults_only(cluster, code, before, queued):
    (cluster / "logs of mine").mkdir()
    (cluster / "logs of mine" / "12345.faults").write_text("1\n" * before)
    found, calls = run_script(cluster, f"exit {code}", options=["--restarts", 2, "--logs", "logs of mine"])
    assert found == int(code)
    assert ("scontrol requeue 12345" in calls) == queued


def test_slurm_values_are_quoted():
    text = slurm_script(
        "--account", 'the "big" one', "--partition", "a b#c", "--logs", "it's here", "--sbatch=--qos=x y"
    )
    assert parsed_by_bash(text)
    assert '#SBATCH --account="the \\"big\\" one"\n' in text
    assert '#SBATCH --partition="a b#c"\n' in text
    assert """#SBATCH --output="it's here/%x-%j.log"\n""" in text
    assert '#SBATCH --qos="x y"\n' in text


def test_slurm_runs_in_a_container():
    pyxis = slurm_script("--container-image", "nvcr.io#a/b c", "--mounts", "/data:/data", "--gpus-per-node", 8)
    assert "'--container-image=nvcr.io#a/b c' --container-workdir=/longhaul --container-mounts=/data:/data" in pyxis
    assert "process python -m pretrain train" in pyxis
    apptainer = slurm_script("--apptainer", "a b.sif", "--mounts", "/data", "--gpus-per-node", 8)
    assert "process apptainer exec --nv --bind /data --pwd /longhaul 'a b.sif' python -m pretrain train" in apptainer


def test_slurm_submits_the_script_it_shows(tmp_path):
    (tmp_path / "sbatch").write_text(f"#!/usr/bin/env bash\ncat > {tmp_path}/submitted\n")
    (tmp_path / "sbatch").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = launch("slurm", "--logs", tmp_path / "logs", "--", *PROGRAM, PATH=path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "submitted").read_text() == slurm_script("--logs", tmp_path / "logs")
    assert (tmp_path / "logs").is_dir()


def test_slurm_hints_have_the_jobs_number_and_are_not_said_where_nothing_was_submitted(tmp_path):
    sbatch = tmp_path / "sbatch"
    path = f"{tmp_path}:{os.environ['PATH']}"
    for body, code in (("echo Submitted batch job 4711", 0), ("echo no such partition >&2; exit 1", 1)):
        sbatch.write_text(f"#!/usr/bin/env bash\ncat > /dev/null; {body}\n")
        sbatch.chmod(0o755)
        done = launch("slurm", "--logs", tmp_path / "logs", "--", *PROGRAM, PATH=path)
        assert done.returncode == code
        if code == 0:
            assert done.stdout == "Submitted batch job 4711\n"
            assert "stop with everything saved: scancel --batch --signal=USR2 4711\n" in done.stderr
            assert f"tail -F {tmp_path}/logs/longhaul-4711.log\n" in done.stderr
        else:
            assert done.stderr == "no such partition\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["slurm", "--nodes", "2"], "name what to run after '--'"),
        (["slurm", "--", "pretrain", "train"], "write the command alone, such as: -- train"),
        (["slurm", "--", "python3", "-m", "pretrain", "train"], "'python3' is started by the launcher itself"),
        (
            ["slurm", "--nodes", "2", "--dry-run", "train", "--config=a"],
            "'train' is no option of this launcher; if the",
        ),
        (["slurm", "--", "trian"], "there is no command 'trian' to run; did you mean train?"),
        (["ssh", "--hosts=a", "--env=A=" + "x" * 100_000, "--", "train"], "bytes long, and hosts take 100,000; put"),
        (["slurm", "--per", "gpu", "--", "train"], "--per gpu needs --gpus-per-node"),
        (["slurm", "--", "train"], "'sbatch' is not installed here"),
        (["slurm", "--account", "a\nb", "--", "train"], "'a\\nb' is not one line of printable text"),
        (["slurm", "--logs", "{}/file/x", "--", "train"], "file/x cannot be made a folder (Not a directory)"),
        (["slurm", "--logs", "50%", "--", "train"], "which SLURM would read as a pattern"),
        (["slurm", "--sbatch", "qos=high", "--", "train"], "is no option of sbatch"),
        (["slurm", "--warning=100000", "--time=00:01:00", "--", "train"], "--warning 100000 leaves nothing of --time"),
        (["slurm", "--time=2", "--", "train"], "--warning 120 leaves nothing of --time 2,"),
        (["slurm", "--mounts", "/a:/b", "--", "train"], "--mounts needs --container-image or --apptainer"),
        (["slurm", "--container-image=a", "--apptainer=b", "--", "train"], "choose one"),
    ],
)
def test_mistakes(argv, message, tmp_path):
    (tmp_path / "file").touch()
    argv = [word.format(tmp_path) for word in argv]
    done = launch(*argv[:1], "--logs", tmp_path, *argv[1:], PATH=str(tmp_path))
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("90", 5400), ("2:30", 150), ("1:00:30", 3630), ("1-2", 93_600), ("1-2:03", 93_780), ("1-2:03:04", 93_784)),
        *(("0", math.inf), ("UNLIMITED", math.inf), ("a while", math.inf)),
    ],
)
def test_a_time_limit_as_sbatch_reads_it(text, seconds):
    assert slurm.limit(text) == seconds


EMPTY = [
    (name, option)
    for name, options in {
        "local": ("--logs", "--grace"),
        "ssh": ("--hosts", "--folder", "--python", "--coordinator", "--logs", "--ssh"),
        "slurm": ("--partition", "--account", "--logs", "--python", "--container-image", "--apptainer", "--sbatch"),
        "tpu_pod": ("--create", "--version", "--project", "--logs", "--python"),
        "gke": ("--image", "--tpu", "--python", "--namespace", "--claim"),
    }.items()
    for option in options
]


@pytest.mark.parametrize(("name", "option"), EMPTY)
def test_an_option_of_every_launcher_that_is_empty_is_a_mistake(name, option, capsys):
    """Such as "$TYPE" of a variable that is not set."""
    main = importlib.import_module(f"launch.{name}").main
    for words in ([option, ""], [option, " "], [f"{option}="]):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--dry-run", "--", "train"])
        assert ended.value.code == 2 and f"{option} is given without a value; write one" in capsys.readouterr().err


def test_a_recipe_that_is_not_there_is_not_queued():
    """It once waited in the queue to be told so by the program."""
    done = launch("slurm", "--", "train", "--config=configs/gpt9.py:xl", "--workdir=runs/x")
    assert done.returncode == 2 and "--config names configs/gpt9.py, and there is no such file here" in done.stderr

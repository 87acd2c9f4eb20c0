"""What each launcher would execute, word for word."""

import re
import shlex
import sys

import pytest
import yaml
from launchers import command_lines, dry_run

from launch import common
from launch.ssh import START, STOP

TRAIN = ["train", "--workdir=/shared/a run"]


def test_local():
    commands = command_lines(dry_run("local", "--processes=2", "--devices=4", "--dry-run", "--", *TRAIN))
    for index, command in enumerate(commands):
        flags = command.pop(5)
        assert command == [
            "env",
            "LONGHAUL_COORDINATOR=127.0.0.1:PORT",
            "LONGHAUL_PROCESSES=2",
            f"LONGHAUL_PROCESS={index}",
            "PYTHONUNBUFFERED=1",
            "JAX_PLATFORMS=cpu",
            *(sys.executable, "-m", "pretrain", *TRAIN),
        ]
        assert flags.startswith("XLA_FLAGS=--xla_cpu_collective_call_terminate_timeout_seconds=600 ")
        assert flags.endswith(" --xla_force_host_platform_device_count=4") and flags.count("device_count") == 1
    assert len(commands) == 2


def test_ssh():
    options = ["--hosts=node1,me@node2", "--folder=~/my project", "--env=A=b c", "--grace=60", "--dry-run"]
    client = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"]
    commands = command_lines(dry_run("ssh", *options, "--", *TRAIN))
    for index, (host, command) in enumerate(zip(["node1", "me@node2"], commands, strict=True)):
        assert command[:-1] == [*client, host]
        name = f"longhaul-{host.removeprefix('me@')}"
        places = f"LONGHAUL_COORDINATOR=node1:28476 LONGHAUL_PROCESSES=2 LONGHAUL_PROCESS={index} PYTHONUNBUFFERED=1"
        program = f"env {places} 'A=b c' .venv/bin/python -m pretrain train '--workdir=/shared/a run'"
        assert command[-1] == f"exec bash -c {shlex.quote(START)} ~/'my project' {name} 60 {program}"
    (command,) = command_lines(dry_run("ssh", "--hosts=node1", "--stop", "--dry-run"))
    assert command == [*client, "node1", f"exec bash -c {shlex.quote(STOP)} longhaul longhaul-node1"]


def test_ssh_reads_a_file_of_hosts(tmp_path):
    (tmp_path / "hosts").write_text("# the rack\nnode1\n\nnode2  # slow\n")
    commands = command_lines(dry_run("ssh", f"--hostfile={tmp_path / 'hosts'}", "--dry-run", "--", "train"))
    assert [command[-2] for command in commands] == ["node1", "node2"]


SLURM = """\
#!/usr/bin/env bash
#SBATCH --job-name=longhaul
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=8
#SBATCH --time=2:00:00
#SBATCH --partition="a b#c"
#SBATCH --account="the \\"big\\" one"
#SBATCH --output=runs/slurm/%x-%j.log
#SBATCH --qos="x y"
#SBATCH --exclusive
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
# Even ports, two apart, below the ephemeral range: jobs that share a node do not collide.
export LONGHAUL_COORDINATOR="$first:$((20000 + SLURM_JOB_ID % 6000 * 2))"

stopped=0
# Signals every process of the job except this shell and srun.
pass_on() { scancel --signal=TERM "$SLURM_JOB_ID" 2>/dev/null || true; }
trap pass_on USR1 TERM
trap 'stopped=1; pass_on' USR2

# Once one process has ended, the others have a minute to follow.
srun --cpus-per-task=8 --kill-on-bad-exit=0 --wait=60 bash -c '
  export LONGHAUL_PROCESSES=$SLURM_NTASKS LONGHAUL_PROCESS=$SLURM_PROCID PYTHONUNBUFFERED=1
  export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID
  exec "$@"
' process .venv/bin/python -m pretrain train '--workdir=/shared/a run' &
task=$!

while kill -0 "$task" 2>/dev/null; do
  wait "$task" || true  # a trapped signal interrupts it
done
code=0
wait "$task" || code=$?

state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T || true)
if ((stopped)) || [[ $state != RUNNING ]]; then
  exit "$code"
elif ((code == 75)); then
  scontrol requeue "$SLURM_JOB_ID"
elif ((code != 0 && code != 2 && code != 126 && code != 127)); then
  faults=runs/slurm/$SLURM_JOB_ID.faults
  echo "$code" >> "$faults"
  if (($(wc -l < "$faults") <= 3)); then
    scontrol requeue "$SLURM_JOB_ID"
  fi
fi
exit "$code"
"""


def test_slurm():
    options = ["--nodes=4", "--gpus-per-node=8", "--per=gpu", "--time=2:00:00", "--partition=a b#c", "--restarts=3"]
    options += ['--account=the "big" one', "--sbatch=--qos=x y", "--sbatch=--exclusive"]
    assert dry_run("slurm", *options, "--dry-run", "--", *TRAIN) == SLURM


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--container-image=a#b", "--mounts=/a:/b"], "'--container-image=a#b' --container-workdir=/longhaul "),
        (["--container-image=a#b", "--mounts=/a:/b"], " --container-mounts=/a:/b bash -c"),
        (["--container-image=a#b"], "process python -m pretrain train"),
        (
            ["--apptainer=a b.sif", "--mounts=/a", "--gpus-per-node=8"],
            "process apptainer exec --nv --bind /a --pwd /longhaul 'a b.sif' python -m pretrain train",
        ),
    ],
)
def test_slurm_in_a_container(options, line):
    assert line in dry_run("slurm", *options, "--dry-run", "--", *TRAIN)


def test_tpu_pod():
    options = ["--tpu=pod", "--zone=us-east5-a", "--create=v5p:4x4x4", "--version=v2-alpha-tpuv5", "--spot", "--queued"]
    options += ["--install", "--restarts=20", "--delete", "--env=A=b c", "--dry-run"]
    start = 'exec > >(sed -u "s/^/$HOSTNAME | /") 2>&1\n' + START
    program = "env LONGHAUL_COORDINATOR=auto PYTHONUNBUFFERED=1 'A=b c' .venv/bin/python -m pretrain train"
    unpack = "mkdir -p longhaul && tar -xzf longhaul.tar.gz -C longhaul && cd longhaul"
    pip = "python3 -m venv .venv && .venv/bin/python -m pip install -e '.[tpu,hf,gs]'"
    gcloud, zone = ["gcloud", "compute", "tpus"], "--zone=us-east5-a"
    alive = ["--ssh-flag=-o ServerAliveInterval=15", "--ssh-flag=-o ServerAliveCountMax=4"]
    assert command_lines(dry_run("tpu_pod", *options, "--", *TRAIN)) == [
        [*gcloud, "tpu-vm", "describe", "pod", zone, "--format=value(state)"],
        [*gcloud, "queued-resources", "describe", "pod", zone, "--format=value(state.state)"],
        [
            *(*gcloud, "queued-resources", "create", "pod", zone, "--node-id=pod"),
            *("--runtime-version=v2-alpha-tpuv5", "--accelerator-type=v5p-128", "--spot"),
        ],
        [*gcloud, "tpu-vm", "describe", "pod", zone, "--format=value(state)"],
        ["git", "archive", "--format=tar.gz", "--output=longhaul.tar.gz", "HEAD"],
        [*gcloud, "tpu-vm", "scp", "longhaul.tar.gz", "pod:longhaul.tar.gz", zone, "--worker=all"],
        [*gcloud, "tpu-vm", "ssh", "pod", zone, "--worker=all", f"--command={unpack} && {pip}"],
        [
            *(*gcloud, "tpu-vm", "ssh", "pod", zone, "--worker=all"),
            f"--command=exec bash -c {shlex.quote(start)} longhaul pod 600 {program} '--workdir=/shared/a run'",
            *alive,
        ],
        [*gcloud, "queued-resources", "delete", "pod", zone, "--force", "--quiet"],
    ]
    stop = command_lines(dry_run("tpu_pod", "--tpu=pod", zone, "--stop", "--delete", "--dry-run"))
    own = f"--command=exec bash -c {shlex.quote(STOP)} longhaul pod"
    assert stop == [
        [*gcloud, "tpu-vm", "ssh", "pod", zone, "--worker=all", own],
        [*gcloud, "tpu-vm", "delete", "pod", zone, "--quiet"],
    ]


GKE = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {"name": "longhaul", "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}}
spec:
  failurePolicy:
    maxRestarts: 20
    restartStrategy: BlockingRecreate
    rules:
      - name: mistake
        action: FailJobSet
        onJobFailureReasons: [PodFailurePolicy]
  network:
    enableDNSHostnames: true
  replicatedJobs:
    - name: run
      replicas: 1
      template:
        spec:
          parallelism: 16
          completions: 16
          completionMode: Indexed
          backoffLimit: 0
          podFailurePolicy:
            rules:
              - action: FailJob
                onExitCodes:
                  containerName: pretrain
                  operator: In
                  values: [2, 126, 127]
          template:
            spec:
              restartPolicy: Never
              terminationGracePeriodSeconds: 300
              nodeSelector: {"cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice", "cloud.google.com/gke-tpu-topology": "4x4x4", "cloud.google.com/gke-spot": "true"}
              tolerations: [{"key": "cloud.google.com/gke-spot", "operator": "Exists", "effect": "NoSchedule"}]
              containers:
                - name: pretrain
                  image: "registry/longhaul:1"
                  command: ["python", "-m", "pretrain", "train", "--workdir=/shared/a run"]
                  env: [{"name": "LONGHAUL_COORDINATOR", "value": "auto"}, {"name": "PYTHONUNBUFFERED", "value": "1"}, {"name": "A", "value": "$$b"}]
                  resources:
                    limits: {"google.com/tpu": 4}
                  volumeMounts: [{"name": "memory", "mountPath": "/dev/shm"}, {"name": "shared", "mountPath": "/shared"}]
              volumes: [{"name": "memory", "emptyDir": {"medium": "Memory"}}, {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}]
"""  # noqa: E501
GKE_TPU = ["--image=registry/longhaul:1", "--tpu=v5p:4x4x4", "--restarts=20", "--claim=shared:/shared", "--spot"]
GKE_GPU = ["--image=i", "--gpu=nvidia-h100-80gb", "--nodes=4", "--name=xl", "--namespace=team"]


def manifest(*options, program=TRAIN):
    return yaml.safe_load(dry_run("gke", *options, "--", *program))


def pod_of(jobset):
    return jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def test_gke_on_tpus():
    assert dry_run("gke", *GKE_TPU, "--env=A=$b", "--", *TRAIN) == GKE


def test_gke_on_gpus():
    jobset = manifest(*GKE_GPU)
    pod = pod_of(jobset)
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert jobset["metadata"] == {"name": "xl", "namespace": "team"}
    assert pod["containers"][0]["env"] == [
        {"name": "LONGHAUL_COORDINATOR", "value": "xl-run-0-0.xl:28476"},
        {"name": "LONGHAUL_PROCESSES", "value": "4"},
        {"name": "LONGHAUL_PROCESS", "valueFrom": {"fieldRef": {"fieldPath": index}}},
        {"name": "PYTHONUNBUFFERED", "value": "1"},
    ]
    assert pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 8}}


@pytest.mark.parametrize(
    ("tpu", "nodes", "chips"),
    [("v5e:1x1", 1, 1), ("v5e:2x4", 1, 8), ("v5e:8x8", 16, 4), ("v5p:8x8x8", 128, 4)],
)
def test_gke_slice_has_one_pod_per_node(tpu, nodes, chips):
    jobset = manifest("--image=i", f"--tpu={tpu}")
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job["parallelism"] == job["completions"] == nodes
    assert pod_of(jobset)["containers"][0]["resources"]["limits"] == {"google.com/tpu": chips}


@pytest.mark.oracle
@pytest.mark.parametrize("options", [GKE_TPU, GKE_GPU])
def test_gke_manifest_matches_published_types(options):
    """Kubeflow's types, generated from the OpenAPI documents of JobSet, Job and Pod, drop unknown fields."""
    types = pytest.importorskip("kubeflow_trainer_api.models", reason="JobSet's types need the extra 'oracle'")
    jobset = manifest(*options)
    assert types.JobsetV1alpha2JobSet.from_dict(jobset).to_dict() == jobset


# Arguments that shells, SLURM, gcloud and Kubernetes would interpret.
NASTY = [
    *"""\
train
--workdir=/shared/it's a run
say "hello"
$HOME ${HOME} $(echo no) `echo no` $$ $
a\ttab
*
?[a-z]{a,b}~
~
back\\slash \\n \\
!! !x ^a
# no comment
; & | < > ( ) && ||

  blanks\x20\x20
%d %% %j
--
größer 漢字 🙂
'"'"'
""".splitlines(),
    "two\nlines",
]


def through_local():
    return shlex.split(dry_run("local", "--processes=1", "--dry-run", "--", *NASTY))


def through_ssh():
    return shlex.split(shlex.split(dry_run("ssh", "--hosts=a", "--dry-run", "--", *NASTY))[-1])


def through_tpu_pod():
    words = shlex.split(dry_run("tpu_pod", "--tpu=a", "--zone=z", "--dry-run", "--", *NASTY))
    return shlex.split(next(word for word in words if word.startswith("--command=")))


def through_slurm():
    script = dry_run("slurm", "--dry-run", "--", *NASTY)
    return shlex.split(script.partition("' process ")[2].partition(" &\ntask=")[0])


def through_gke():
    container = pod_of(manifest("--image=i", "--tpu=v5e:4x4", program=NASTY))["containers"][0]
    # Kubernetes reads $$ as a dollar, and $(NAME) as a variable.
    assert not any(re.search(r"(?<!\$)(\$\$)*\$\(", word) for word in container["command"])
    return [word.replace("$$", "$") for word in container["command"]]


@pytest.mark.parametrize("through", [through_local, through_ssh, through_tpu_pod, through_slurm, through_gke])
def test_arguments_are_quoted(through):
    assert through()[-len(NASTY) :] == NASTY


def test_check_config_of_a_dry_run(capsys):
    good = ["train", "--config", "configs/gpt3.py:xl", "--config.mesh.fsdp=8", "--workdir=gs://bucket/xl"]
    common.check_config(good)
    with pytest.raises(SystemExit) as ended:
        common.check_config([*good, "--config.train.stps", "5"])
    assert ended.value.code == 2 and "config.train.stps" in capsys.readouterr().err

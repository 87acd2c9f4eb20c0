"""Run the program on every worker of a Cloud TPU pod, through gcloud.

    python -m launch.tpu_pod --tpu my-pod --zone us-east5-a --create v5p:4x4x4 --version v2-alpha-tpuv5 --spot \\
        --install --restarts 20 --delete -- train --config=configs/gpt3.py:xl --workdir=gs://bucket/xl

`--create` creates the pod if it does not exist, and again after a preemption; `--install` copies the committed tree
(HEAD) to every worker and installs it; `--delete` deletes the pod at the end. With `--restarts N` the program is
restarted after a preemption, a maintenance or a fault, once the pod is ready. The work folder must be in a bucket or on
a shared file system. The program also saves and stops when this launcher or its connection ends, so keep it in a
terminal that outlives you (tmux).
"""

import argparse
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from launch import common
from launch.ssh import quote, start_command, stop_command
from launch.supervisor import Process, Signals, run_attempts, supervise

FOLDER = "longhaul"  # of the project, in the home folder of each worker
ARCHIVE = "longhaul.tar.gz"
LOOK = 30.0  # seconds between looks at a pod that is not ready
GRACE = 600.0  # seconds for the workers to save and end
# Taken back by Google, or a queued resource that failed: safe to replace.
LOST = ("PREEMPTED", "TERMINATED", "FAILED", "SUSPENDED")
# States that do not end by themselves; all others are waited for.
IDLE = ("STOPPED", "STOPPING", "HIDDEN", "UNKNOWN")
# gcloud's name of each TPU, what it counts per chip (v5p: two cores), and an example of its topologies.
TPUS = {
    "v4": ("v4", 2, "4x4x8"),
    "v5e": ("v5litepod", 1, "8x8"),
    "v5litepod": ("v5litepod", 1, "8x8"),
    "v5p": ("v5p", 2, "4x4x4"),
    "v6e": ("v6e", 1, "4x4"),
}


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit code of the run."""
    flags = common.parser("tpu_pod", __doc__)
    flags.add_argument("--tpu", type=common.text, required=True, help="name of the TPU VM or pod")
    flags.add_argument("--zone", type=common.text, required=True, help="its zone")
    flags.add_argument("--project", type=common.text, help="its project (default: gcloud's own)")
    flags.add_argument("--create", type=pod_type, metavar="TYPE", help="create it: v5p:4x4x4, or gcloud's name v5p-128")
    flags.add_argument("--version", type=common.text, help="its software, needed by --create, such as v2-alpha-tpuv5")
    flags.add_argument("--spot", action="store_true", help="create it from spare capacity, which can be preempted")
    flags.add_argument("--queued", action="store_true", help="create it through a queued resource of the same name")
    flags.add_argument("--install", action="store_true", help="copy and install the tree on every worker first")
    flags.add_argument(
        "--python", type=common.text, default="python3", help="Python >= 3.11 of the workers (default: python3)"
    )
    flags.add_argument("--logs", type=common.text, help="folder of the workers' log (default: runs/TPU)")
    common.add_shared(flags, env=True)
    flags.add_argument("--stop", action="store_true", help="only stop the run on all workers, with everything saved")
    flags.add_argument("--delete", action="store_true", help="delete the pod at the end, even after a failure")
    options, program = common.parse(flags, argv, standalone=["stop", "delete", "create", "install"])
    if options.create and not options.version:
        flags.error("--create needs --version; gcloud compute tpus tpu-vm versions list shows them")
    if (options.spot or options.queued) and not (options.create or options.delete):
        flags.error("--spot and --queued need --create")
    workdir = common.flag(program, "workdir", "the default work folder")
    if program[:1] == ["train"] and not workdir.startswith(("gs://", "s3://", "/")):
        common.say(f"warning: {workdir} is a worker's own and is lost with the pod; set --workdir=gs://BUCKET/NAME")
    pod = Pod(options)
    if options.dry_run:
        common.show(pod.commands(program))
        return 0
    common.require("gcloud")
    if options.stop:
        code = subprocess.run(pod.stop()).returncode
    else:
        with Signals() as signals:
            code = run_attempts(Launch(pod, program, signals).attempt, options.restarts, LOOK, signals)
    if options.delete and not (options.stop and code):
        code = subprocess.run(pod.delete()).returncode or code
    return code


class Pod:
    """Commands of gcloud for one pod."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.where = [f"--zone={options.zone}"] + ([f"--project={options.project}"] if options.project else [])

    def describe(self) -> list[str]:
        return self._gcloud("tpu-vm", "describe", "--format=value(state)")

    def describe_queued(self) -> list[str]:
        return self._gcloud("queued-resources", "describe", "--format=value(state.state)")

    def create(self) -> list[str]:
        options = self.options
        kind = [*accelerator(options.create), *(["--spot"] if options.spot else [])]
        if options.queued:
            node = [f"--node-id={options.tpu}", f"--runtime-version={options.version}"]
            return self._gcloud("queued-resources", "create", *node, *kind)
        return self._gcloud("tpu-vm", "create", f"--version={options.version}", *kind)

    def delete(self) -> list[str]:
        if self.options.queued:
            return self._gcloud("queued-resources", "delete", "--force", "--quiet")
        return self._gcloud("tpu-vm", "delete", "--quiet")

    def install(self) -> list[list[str]]:
        """Copy the committed tree to every worker and install it there."""
        unpack = f"mkdir -p {FOLDER} && tar -xzf {ARCHIVE} -C {FOLDER} && cd {FOLDER}"
        pip = f"{quote(self.options.python)} -m venv .venv && .venv/bin/python -m pip install -e '.[tpu,hf,gs]'"
        copy = ["gcloud", "compute", "tpus", "tpu-vm", "scp", ARCHIVE, f"{self.options.tpu}:{ARCHIVE}"]
        return [
            ["git", "archive", "--format=tar.gz", f"--output={ARCHIVE}", "HEAD"],
            [*copy, *self.where, "--worker=all"],
            self._ssh(f"{unpack} && {pip}"),
        ]

    def start(self, program: Sequence[str]) -> list[str]:
        """Run the program on all workers, which share one standard input and output."""
        # JAX finds the workers of a pod by itself.
        variables = ["LONGHAUL_COORDINATOR=auto", "PYTHONUNBUFFERED=1", *self.options.env]
        run = FOLDER, self.options.tpu, GRACE, ".venv/bin/python", variables, program
        alive = ["--ssh-flag=-o ServerAliveInterval=15", "--ssh-flag=-o ServerAliveCountMax=4"]
        return [*self._ssh(start_command(*run, prefix=True)), *alive]

    def stop(self) -> list[str]:
        return self._ssh(stop_command(FOLDER, self.options.tpu))

    def commands(self, program: Sequence[str]) -> list[list[str]]:
        """All commands of a launch without failures, in order."""
        options = self.options
        delete = [self.delete()] if options.delete else []
        if options.stop:
            return [self.stop(), *delete]
        queued = [self.describe_queued()] if options.queued else []
        create = [self.describe(), *queued, self.create(), self.describe()] if options.create else []
        install = self.install() if options.install else []
        return [*create, *install, *([self.start(program)] if program else []), *delete]

    def _ssh(self, command: str) -> list[str]:
        return self._gcloud("tpu-vm", "ssh", "--worker=all", f"--command={command}")

    def _gcloud(self, group: str, verb: str, *more: str) -> list[str]:
        return ["gcloud", "compute", "tpus", group, verb, self.options.tpu, *self.where, *more]


class Launch:
    """Attempts to run a program on a pod."""

    def __init__(self, pod: Pod, program: Sequence[str], signals: Signals, look: float = LOOK):
        self.pod, self.options, self.program, self.signals, self.look = pod, pod.options, program, signals, look
        self.log = Path(self.options.logs or f"runs/{self.options.tpu}", "workers.log")
        self.installed = not self.options.install

    def attempt(self, number: int) -> int:
        """Bring the pod up, install and run the program; return the exit code."""
        if (self.options.create or number) and (code := self.bring_up()):
            return code
        for command in () if self.installed else self.pod.install():
            if code := subprocess.run(command).returncode:
                return code
        self.installed = True
        return self.run() if self.program else 0

    def bring_up(self) -> int:
        """Wait until the pod is ready, and create it if it does not exist or was preempted."""
        tpu, created = self.options.tpu, False
        while not self.signals.received:
            state = query(self.pod.describe())
            if state == "" and self.options.create and self.options.queued:
                state = query(self.pod.describe_queued())
            if state == "READY":
                return 0
            if state is None:
                return 1
            if state in IDLE:
                common.say(f"{tpu} is {state}. Start or delete it, or name another --tpu.")
                raise SystemExit(common.MISTAKE)  # before any --delete: this launch did not create it
            if state in LOST or state == "":
                common.say(f"{tpu} is {state or 'missing'}")
                if created or not self.options.create:
                    return 1
                for command in ([self.pod.delete()] if state else []) + [self.pod.create()]:
                    if code := subprocess.run(command).returncode:
                        return code
                created, self.installed = True, not self.options.install
            else:
                common.say(f"{tpu} is {state}; waiting")
                self.signals.wait(self.look)
        return common.PREEMPTED

    def run(self) -> int:
        """Run the program on all workers; return its exit code."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        stop = shlex.join(["python", "-m", "launch.tpu_pod", f"--tpu={self.options.tpu}", *self.pod.where, "--stop"])
        common.hints(self.program, f"tail -f {shlex.quote(str(self.log))}", f"Ctrl-C here, or {stop}")
        workers = Process(f"pod {self.options.tpu}", self.pod.start(self.program), self.log, remote=True)
        return supervise([workers], GRACE, self.signals)


def query(command: Sequence[str]) -> str | None:
    """State that a gcloud command prints, "" if the thing does not exist, None if gcloud fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 0:
        return done.stdout.strip()
    if "NOT_FOUND" in done.stderr:
        return ""
    sys.stderr.write(done.stderr)
    return None


def pod_type(value: str) -> str:
    """A type of pods as gcloud names it (v5p-128), or a TPU with its topology (v5p:4x4x4)."""
    kind, colon, topology = common.text(value).partition(":")
    if colon and kind not in TPUS:
        raise argparse.ArgumentTypeError(f"{value} is not a known TPU; write one of {', '.join(TPUS)}")
    if colon and not re.fullmatch(re.sub(r"\d", r"[1-9]\\d*", TPUS[kind][2]), topology):
        raise argparse.ArgumentTypeError(f"{value}: write a topology such as {kind}:{TPUS[kind][2]}")
    return value


def accelerator(pod: str) -> list[str]:
    """gcloud's options for a type of pods; v5p:4x4x4 has 64 chips of two cores, v5p-128."""
    kind, colon, topology = pod.partition(":")
    if not colon:
        return [f"--accelerator-type={kind}"]
    if kind == "v4":  # the only one whose topology gcloud takes
        return [f"--type={kind}", f"--topology={topology}"]
    prefix, cores, _ = TPUS[kind]
    return [f"--accelerator-type={prefix}-{cores * math.prod(map(int, topology.split('x')))}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

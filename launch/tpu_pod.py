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
# gcloud's name of each TPU, and what it counts per chip (v4, v5p: two cores).
TPUS = {"v4": ("v4", 2), "v5e": ("v5litepod", 1), "v5p": ("v5p", 2), "v6e": ("v6e", 1)}


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit code of the run."""
    flags = common.parser("tpu_pod", __doc__)
    common.add(flags, "--tpu", None, "name of the TPU VM or pod", required=True)
    common.add(flags, "--zone", None, "its zone", required=True)
    common.add(flags, "--project", None, "its project (default: gcloud's own)")
    create = "create it: v5p:4x4x4, or gcloud's name v5p-128"
    common.add(flags, "--create", None, create, type=accelerator, metavar="TYPE")
    common.add(flags, "--version", None, "its software, needed by --create, such as v2-alpha-tpuv5")
    common.add(flags, "--spot", True, "create it from spare capacity, which can be preempted")
    common.add(flags, "--queued", True, "create it through a queued resource of the same name")
    common.add(flags, "--install", True, "copy and install the tree on every worker first")
    common.add(flags, "--python", "python3", "Python >= 3.11 of the workers")
    common.add(flags, "--logs", None, "folder of the workers' log (default: runs/TPU)")
    common.add(flags, "--stop", True, "only stop the run on all workers, with everything saved")
    common.add(flags, "--delete", True, "delete the pod at the end, even after a failure")
    common.add(flags, "--env", [], "a variable of the program's environment; repeatable", **common.ENV)
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
        kind = [*options.create, *(["--spot"] if options.spot else [])]
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


def accelerator(value: str) -> list[str]:
    """gcloud's options for its own name of a pod (v5p-128) or a topology: v5p:4x4x4 has 64 chips of two cores."""
    if ":" not in value:
        return [f"--accelerator-type={common.TEXT(value)}"]
    kind, shape = common.SLICE(value)
    if kind == "v4":  # the only one whose topology gcloud takes
        return [f"--type={kind}", f"--topology={value.partition(':')[2]}"]
    prefix, cores = TPUS[kind]
    return [f"--accelerator-type={prefix}-{cores * math.prod(shape)}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

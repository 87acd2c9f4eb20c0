"""Runs the program on every worker of a Cloud TPU pod (or a single TPU VM), through gcloud.

    python -m launch.tpu_pod --tpu my-pod --zone us-east5-a --create v5p:4x4x4 --version v2-alpha-tpuv5 --spot \\
        --install --restarts 20 --delete -- train --config=configs/gpt3.py:xl --workdir=gs://bucket/xl

`--create` makes the pod where it does not stand, and again where it was preempted; `--install` copies the tree as it is
committed (HEAD) to every worker and installs it there; `--delete` ends with the pod deleted. With `--restarts N` the
program is started again after a preemption, a maintenance or a fault, once the pod is ready. JAX finds the workers by
itself. The work folder must be in a bucket, or on a file system that all workers share. When this launcher or its
connection ends, the program saves and stops, so keep it in a terminal that outlives you (tmux).
"""

import argparse
import itertools
import math
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from launch import (
    FLAT,
    MISTAKE,
    PREEMPTED,
    carried,
    installed,
    line,
    log_folder,
    name,
    parse,
    parser,
    restarts,
    run,
    work_folder,
)
from launch.output import hints, put, say, show
from launch.remote import kept, new_launch, place
from launch.supervise import POLL, Child, Signals, again, begin, supervise

FOLDER = "longhaul"  # of the copy, in the home folder of each worker
LOGGED_OUT = "You do not currently have an active account selected"  # in gcloud's words
PYTHON = ".venv/bin/python"  # in it
NOT_YET = "give --install, which puts it there"
ARCHIVE = "longhaul.tar.gz"
LOOK = 30.0  # seconds between looks at a pod that is not ready
GRACE = 600.0  # seconds that the workers have to save and end once one has failed or a signal came
TRIES = 5  # times in a row that gcloud may fail to say how a pod is, or may say what does not fit together
WAITS = ("CREATING", "STARTING", "RESTARTING", "REPAIRING", "REIMAGING")  # states of a pod that will be ready
GONE = ("PREEMPTED", "TERMINATED")  # of one that was taken back: it is in the way of a new one, and nothing is on it
FAILED = ("FAILED", "SUSPENDED")  # of a queued resource of which nothing will come any more
SHAPES = {"v4": "4x4x8", "v5e": "8x8", "v5litepod": "8x8", "v5p": "4x4x4", "v6e": "4x4"}  # one of each type
# gcloud takes a topology of v4; of the others a name with the number of cores (v5p) or chips, and a shape goes with it.
NAMES = {"v5e": ("v5litepod", 1), "v5litepod": ("v5litepod", 1), "v5p": ("v5p", 2), "v6e": ("v6e", 1)}
BELOW_A_CUBE = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
CUBE, MOST = 4, 96  # chips along an edge of what v5p is wired of, and how many of these a slice has at most


def main(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code of what was run last."""
    flags = parser("tpu_pod", __doc__)
    flags.add_argument("--tpu", type=name, required=True, help="name of the TPU VM or pod")
    flags.add_argument("--zone", type=name, required=True, help="its zone")
    flags.add_argument("--project", type=line, help="its project (default: gcloud's own)")
    flags.add_argument(
        "--create", type=pod_type, metavar="TYPE", help="create it, of a topology (v5p:4x4x4) or a type (v5p-128)"
    )
    flags.add_argument("--version", type=line, help="its software, which --create needs, such as v2-alpha-tpuv5")
    flags.add_argument("--spot", action="store_true", help="create it of spare capacity, which may be taken back")
    flags.add_argument("--queued", action="store_true", help="create it through a queued resource of the same name")
    flags.add_argument("--install", action="store_true", help="copy and install the tree on every worker first")
    flags.add_argument("--python", default="python3", help="Python 3.11 or newer on the workers (default: python3)")
    flags.add_argument("--logs", type=Path, help="folder of the workers' log (default: runs/TPU)")
    carried(flags)
    restarts(flags)
    flags.add_argument(
        "--stop", action="store_true", help="stop the run on all workers, with everything saved, and only that"
    )
    flags.add_argument("--delete", action="store_true", help="delete the pod at the end, however the run ended")
    flags.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")
    options, program = parse(flags, argv, without=["stop", "delete", "create", "install"])
    if options.create and not options.version:
        flags.error("--create needs --version; gcloud compute tpus tpu-vm versions list shows them")
    for given, word in ((options.spot, "--spot"), (options.queued, "--queued")):
        if given and not (options.create or options.delete):
            flags.error(f"{word} says how the pod is created; give --create too")
    options.logs = options.logs or Path("runs") / options.tpu
    pod = Pod(options)
    if program[:1] == ["train"]:
        warn(work_folder(program))
    if options.dry_run:
        show(*pod.all(program))
        return 0
    if not installed("gcloud"):
        return MISTAKE
    if options.stop:
        code = run(pod.stop())
        if code and options.delete:
            say(f"{options.tpu} is not deleted, since it could not be asked to stop")
        return code or (run(pod.delete()) if options.delete else 0)
    if program:
        log_folder(flags, options.logs)
    with Signals() as signals:
        try:
            code = carry_out(pod, program, options, signals)
        except RefusedError as refusal:  # not deleted either: it is not what was asked for
            say(str(refusal))
            return MISTAKE
        if options.delete:
            code = run(pod.delete()) or code
    return code


def warn(folder: str) -> None:
    """Says where the work folder would be a worker's own, and gone with it."""
    if not folder.startswith(("gs://", "s3://", "/")):
        folder = "the work folder" if folder == "WORKDIR" else folder
        say(f"warning: {folder} is each worker's own, and gone with the pod: give a bucket")


class Pod:
    """The commands that are run here for one pod."""

    def __init__(self, options):
        self.options = options
        self.log = options.logs / "workers.log"
        self.where = [f"--zone={options.zone}"] + ([f"--project={options.project}"] if options.project else [])

    def describe(self) -> list[str]:
        """Prints the pod's state, or fails where there is none."""
        return self._gcloud("tpu-vm", "describe", "--format=value(state)")

    def describe_request(self) -> list[str]:
        """Prints the state of the queued resource."""
        return self._gcloud("queued-resources", "describe", "--format=value(state.state)")

    def create(self) -> list[str]:
        options = self.options
        kind, _, topology = options.create.partition(":")
        asked = [f"--accelerator-type={accelerator(kind, topology)}"]
        if topology and kind not in NAMES:
            asked = [f"--type={kind}", f"--topology={topology}"]
        asked += ["--spot"] if options.spot else []
        if options.queued:
            node = [f"--node-id={options.tpu}", f"--runtime-version={options.version}"]
            return self._gcloud("queued-resources", "create", *node, *asked)
        return self._gcloud("tpu-vm", "create", f"--version={options.version}", *asked)

    def delete(self) -> list[str]:
        if self.options.queued:
            return self._gcloud("queued-resources", "delete", "--force", "--quiet")
        return self._gcloud("tpu-vm", "delete", "--quiet")

    def install(self) -> list[list[str]]:
        """Copies the tree as it is committed to every worker and installs it there."""
        there = (
            f"mkdir -p {FOLDER} && tar -xzf {ARCHIVE} -C {FOLDER} && cd {FOLDER} && "
            f"{place(self.options.python)} -m venv .venv && .venv/bin/python -m pip install -e '.[tpu,hf,gs]'"
        )
        copy = ["gcloud", "compute", "tpus", "tpu-vm", "scp", ARCHIVE, f"{self.options.tpu}:{ARCHIVE}"]
        return [
            ["git", "archive", "--format=tar.gz", f"--output={ARCHIVE}", "HEAD"],
            [*copy, *self.where, "--worker=all"],
            self.ssh(there),
        ]

    def ssh(self, command: str) -> list[str]:
        """Runs a command on all workers, which print into one standard output.

        A log for each, which --output-directory promises, gcloud 528 opens under a folder None.
        """
        return self._gcloud("tpu-vm", "ssh", "--worker=all", f"--command={command}")

    def train(self, program: Sequence[str], launch: str, attempt: int) -> list[str]:
        """Runs the program on all workers."""
        keeping = ["--name", self.options.tpu, "--launch", launch, "--attempt", str(attempt), "--hostname"]
        variables = ["LONGHAUL_COORDINATOR=auto", "PYTHONUNBUFFERED=1", *self.options.env]
        command = kept(FOLDER, NOT_YET, PYTHON, variables, keeping, program)
        # A connection that has gone silent is noticed within a minute.
        alive = ["--ssh-flag=-o ServerAliveInterval=15", "--ssh-flag=-o ServerAliveCountMax=4"]
        return [*self.ssh(command), *alive]

    def hint(self) -> str:
        """The shortest command that stops the run."""
        return shlex.join(["python", "-m", "launch.tpu_pod", f"--tpu={self.options.tpu}", *self.where, "--stop"])

    def stop(self) -> list[str]:
        return self.ssh(kept(FOLDER, NOT_YET, PYTHON, [], ["--name", self.options.tpu, "--stop"], []))

    def all(self, program: Sequence[str]) -> list[list[str]]:
        """All that is run when nothing goes wrong, in turn."""
        options = self.options
        if options.stop:
            return [self.stop()] + ([self.delete()] if options.delete else [])
        request = [self.describe_request()] if options.queued else []
        commands = [self.describe(), *request, self.create(), self.describe()] if options.create else []
        commands += self.install() if options.install else []
        commands += [self.train(program, "LAUNCH", 0)] if program else []
        return commands + ([self.delete()] if options.delete else [])

    def _gcloud(self, group: str, verb: str, *more: str) -> list[str]:
        return ["gcloud", "compute", "tpus", group, verb, self.options.tpu, *self.where, *more]


def carry_out(pod: Pod, program: Sequence[str], options, signals: Signals) -> int:
    """Creates, installs and runs what is asked for; returns the exit code."""
    launch, installed = new_launch(), False

    def attempt(number: int) -> int:
        nonlocal installed
        if options.create or number:
            code, made = ready(pod, options, signals)
            if code:
                return code
            installed = installed and not made
        if options.install and not installed:
            for command in pod.install():
                if code := run(command):
                    return code
            installed = True
        return train(pod, program, launch, number, signals) if program else 0

    return again(attempt, options.restarts, LOOK, signals)


class RefusedError(Exception):
    """A pod cannot be asked for, or is neither used nor replaced as it is; the message is the sentence for the user."""


def ready(pod: Pod, options, signals: Signals) -> tuple[int, bool]:
    """Waits until the pod is ready, creating it where need be: an exit code, and whether it was created.

    Only what was taken back or has failed is deleted. Raises RefusedError where the pod stands in another state.
    """
    tpu, made, odd = options.tpu, False, 0
    while True:
        state = asked(pod.describe())
        request = asked(pod.describe_request()) if state == "" and options.create and options.queued else ""
        if state == "READY":
            return 0, made
        unclear = state is None or request is None or request == "ACTIVE"
        odd = odd + 1 if unclear else 0
        if unclear:
            what = "is ACTIVE, but its pod is not there" if request == "ACTIVE" else "could not be asked for"
            say(f"{tpu} {what} ({odd} of {TRIES} looks)")
            if odd == TRIES:
                return 1, made
        elif state in WAITS or (state == "DELETING" and options.create):
            say(f"{tpu} is {state}; waiting")
        elif state and state not in (*GONE, "DELETING"):
            raise RefusedError(
                f"{tpu} is {state}, and is left so; start it (gcloud compute tpus tpu-vm start), delete it, or give "
                "another --tpu"
            )
        elif not options.create:
            say(f"{tpu} is {state or 'not there'}; create it again (--create does)")
            return 1, made
        elif request and request not in FAILED:
            say(f"the queued resource {tpu} is {request}; waiting for it")
        elif made:
            resource = f"the queued resource {tpu}" if options.queued and not state else tpu
            say(f"{resource} is {state or request or 'not there'} just after it was created")
            return 1, made
        else:
            if state or request:
                say(f"{tpu} is {state or request}; creating it again")
                if code := run(pod.delete()):
                    return code, made
            if code := run(pod.create()):
                return code, made
            made = True
            continue
        until = time.monotonic() + LOOK
        while time.monotonic() < until:
            if signals.came:
                return PREEMPTED, made
            time.sleep(POLL)


def asked(command: Sequence[str]) -> str | None:
    """The state that a command prints; "" where gcloud says that there is no such thing, None where it fails.

    Raises RefusedError where gcloud has no account to ask with.
    """
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode == 0:
        return done.stdout.strip() or "STATE_UNSPECIFIED"
    if "NOT_FOUND" in done.stderr:
        return ""
    put(sys.stderr, done.stderr)
    if LOGGED_OUT in done.stderr:
        raise RefusedError("gcloud is not logged in; log in with gcloud auth login, and start the same command again")
    return None


def train(pod: Pod, program: Sequence[str], launch: str, attempt: int, signals: Signals) -> int:
    """Runs the program on all workers; returns its exit code."""
    since = begin(pod.log, attempt)
    command = pod.train(program, launch, attempt)
    with pod.log.open("ab") as out:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, start_new_session=True)
    put(sys.stdout, f"launch: all workers of {pod.options.tpu}, log in {pod.log}\n")
    watch, stop = f"tail -f {shlex.quote(str(pod.log))}", f"Ctrl-C here, or {pod.hint()}"
    with process.stdin:
        begun = Workers(f"pod {pod.options.tpu}", process, pod.log, since, lambda: hints(program, watch, stop))
        return supervise([begun], GRACE, signals, more=attempt < pod.options.restarts)


def pod_type(text: str) -> str:
    """An argparse type: a type of pods as gcloud calls it, or one with its topology."""
    kind, colon, topology = line(text).partition(":")
    if not colon:
        return text
    if kind not in SHAPES:
        raise argparse.ArgumentTypeError(f"{text} is of no TPU that is known; known are {', '.join(SHAPES)}")
    example = SHAPES[kind]
    if not re.fullmatch("x".join([r"[1-9]\d*"] * len(example.split("x"))), topology):
        wanted = "three sizes" if example.count("x") == 2 else "two sizes"
        raise argparse.ArgumentTypeError(
            f"{text} is no shape of {kind}; after the colon write {wanted}, as in {kind}:{example}"
        )
    chips = _chips(topology)
    shapes = [*BELOW_A_CUBE, *map(_of_cubes, range(1, MOST + 1))] if example.count("x") == 2 else FLAT
    made = {_chips(shape): shape for shape in shapes}
    if kind in NAMES and made.get(chips) != topology:
        near = made.get(chips) or made[min(made, key=lambda number: abs(number - chips))]
        raise argparse.ArgumentTypeError(f"{text} is no shape that gcloud makes of {kind}; did you mean {kind}:{near}?")
    return text


def accelerator(kind: str, topology: str) -> str:
    """gcloud's name of a type and topology, such as v5p-128 of v5p:4x4x4; of no topology the type itself."""
    if not topology or kind not in NAMES:
        return kind
    name, cores = NAMES[kind]
    return f"{name}-{cores * _chips(topology)}"


def _of_cubes(count: int) -> str:
    """The most compact shape of so many cubes, which gcloud makes of a name; that it offers each is its own to say."""
    edges = itertools.combinations_with_replacement(range(1, count + 1), 2)
    sizes = [(count // (a * b), b, a) for a, b in edges if count % (a * b) == 0 and count // (a * b) >= b]
    return "x".join(str(CUBE * size) for size in reversed(min(sizes)))


def _chips(topology: str) -> int:
    return math.prod(map(int, topology.split("x")))


class Workers(Child):
    """The program on all workers: they listen on one input, whose end asks all of them to stop."""

    def __init__(self, name: str, process: subprocess.Popen, log: Path, since: int, hints: Callable[[], None]):
        super().__init__(name, process, log, since)
        self._hints, self._began = hints, time.monotonic()

    def beat(self) -> None:
        """Gives the hints once there is a run: its first word has come, or gcloud has not failed for a while."""
        if self._hints and (self.log.stat().st_size > self.since or time.monotonic() - self._began > LOOK):
            self._hints()
            self._hints = None

    def ask(self, number: int) -> None:
        self.process.stdin.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Submits the program to SLURM, as one process per node or per GPU.

    python -m launch.slurm --nodes 4 --gpus-per-node 8 -- train --config=configs/gpt3.py:xl --workdir=/shared/xl

Two minutes before the time limit SLURM warns the job; every process saves and stops, and the job goes back into the
queue to go on from there. A job that is preempted or whose node fails is queued again by SLURM itself; with
`--restarts N` one that a fault ended too, N times at most. `scancel --batch --signal=USR2 JOB` stops one with all
saved, and it stays stopped; a plain `scancel` leaves it some 30 seconds. The work folder must be on a file system that
all nodes share.
"""

import argparse
import math
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from launch import (
    IMAGE_FOLDER,
    MISTAKE,
    NOT_RUN,
    PREEMPTED,
    flag,
    hand_over,
    line,
    log_folder,
    name,
    parse,
    parser,
    positive,
    restarts,
)
from launch.output import answer, hints

# SLURM says USR1 to this shell before the time limit, as it is told here, and TERM to the processes where it preempts
# and to all where it cancels; users say USR2 to the shell. A job that is to go back into the queue must still be
# running: one that SLURM ends is not ours to bring back.
SCRIPT = """\
#!/usr/bin/env bash
{options}
#SBATCH --signal=B:USR1@{warning}
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
# Even, since process 0 listens on the port above too; below those that systems give away.
export LONGHAUL_COORDINATOR="$first:$((20000 + SLURM_JOB_ID % 6000 * 2))"

stopped=0
# Passed on to every process of the job but this shell and srun; this shell waits until they have saved.
pass_on() {{ scancel --signal=TERM "$SLURM_JOB_ID" 2>/dev/null || true; }}
trap pass_on USR1 TERM
trap 'stopped=1; pass_on' USR2

# Once one process has ended, the others get a minute to follow.
srun {srun} bash -c '
  {places}exec "$@"
' process {program} &
task=$!

while kill -0 "$task" 2>/dev/null; do
  wait "$task" || true  # a trapped signal ends it early
done
code=0
wait "$task" || code=$?  # bash remembers

state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T || true)
if ((stopped)) || [[ $state != RUNNING ]]; then
  exit "$code"
elif ((code == {preempted})); then
  scontrol requeue "$SLURM_JOB_ID"
{restarts}fi
exit "$code"
"""

RESTARTS = """\
elif (({fault})); then
  faults={logs}/$SLURM_JOB_ID.faults
  echo "$code" >> "$faults"
  if (($(wc -l < "$faults") <= {restarts})); then
    scontrol requeue "$SLURM_JOB_ID"
  fi
"""


def main(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code, sbatch's own unless --dry-run."""
    flags = parser("slurm", __doc__)
    flags.add_argument("--nodes", type=positive, default=1, help="how many nodes (default: 1)")
    flags.add_argument("--gpus-per-node", type=positive, help="GPUs of each node; left out, none are asked for")
    flags.add_argument(
        "--per", choices=("node", "gpu"), default="node", help="a process for each of these (default: node)"
    )
    flags.add_argument("--cpus", type=positive, default=8, help="CPU cores of each process (default: 8)")
    flags.add_argument("--time", type=line, default="24:00:00", help="time limit (default: 24:00:00)")
    flags.add_argument(
        "--warning", type=positive, default=120, help="seconds before that at which all is saved (default: 120)"
    )
    flags.add_argument("--name", type=name, default="longhaul", help="name of the job (default: longhaul)")
    flags.add_argument("--partition", type=line, help="partition to submit to")
    flags.add_argument("--account", type=line, help="account to charge")
    flags.add_argument(
        "--sbatch",
        type=option,
        action="append",
        default=[],
        metavar="OPTION",
        help="another option of sbatch, such as --sbatch=--qos=high; may be given several times",
    )
    flags.add_argument("--logs", type=folder, default="runs/slurm", help="folder of the log (default: runs/slurm)")
    restarts(flags, "a fault (what is preempted or out of time goes on in any case)")
    flags.add_argument("--container-image", type=line, help="image to run in, through the plugin pyxis (enroot)")
    flags.add_argument("--apptainer", type=line, help="image to run in, through apptainer")
    flags.add_argument("--mounts", type=line, help="folders that the container sees, FROM:TO with commas between")
    flags.add_argument("--python", help="interpreter on the nodes (default: .venv/bin/python, in a container python)")
    flags.add_argument("--dry-run", action="store_true", help="print the batch script and submit nothing")
    options, program = parse(flags, argv)
    if options.per == "gpu" and not options.gpus_per_node:
        flags.error("--per gpu needs --gpus-per-node")
    if options.container_image and options.apptainer:
        flags.error("--container-image and --apptainer are two ways to run in a container; choose one")
    if options.mounts and not (options.container_image or options.apptainer):
        flags.error("--mounts needs --container-image or --apptainer")
    if options.warning >= limit(options.time):
        flags.error(
            f"--warning {options.warning} leaves nothing of --time {options.time}, so that the job would save and be "
            "queued again for ever; give a longer --time (hours:minutes:seconds), or a shorter --warning"
        )
    text = script(options, program)
    if options.dry_run:
        answer(text)
        return 0
    recipe = flag(program, "config").partition(":")[0]
    if recipe and not (options.container_image or options.apptainer) and not Path(recipe).is_file():
        flags.error(f"--config names {recipe}, and there is no such file here, where the job will look for it")
    log_folder(flags, Path(options.logs))
    code, printed = hand_over(["sbatch"], text)
    if code == 0:
        number = re.search(r"(?:batch job |^)(\d+)", printed, re.MULTILINE)
        job = number[1] if number else "JOB"
        log = f"{options.logs}/{options.name}-{job}.log"
        hints(program, f"tail -F {shlex.quote(log)}", f"scancel --batch --signal=USR2 {job}")
    return code


def script(options, program: Sequence[str]) -> str:
    """The batch script that `sbatch` is given."""
    asked = {
        "job-name": options.name,
        "nodes": options.nodes,
        "ntasks-per-node": options.gpus_per_node if options.per == "gpu" else 1,
        "cpus-per-task": options.cpus,
        "gpus-per-node": options.gpus_per_node,
        "time": options.time,
        "partition": options.partition,
        "account": options.account,
        "output": f"{options.logs}/%x-%j.log",
    }
    lines = [f"#SBATCH --{key}={quoted(str(value))}" for key, value in asked.items() if value is not None]
    for text in options.sbatch:
        key, equals, value = text.partition("=")
        lines.append(f"#SBATCH {key}{equals}{quoted(value)}" if equals else f"#SBATCH {key}")
    places = "export LONGHAUL_PROCESSES=$SLURM_NTASKS LONGHAUL_PROCESS=$SLURM_PROCID PYTHONUNBUFFERED=1\n  "
    if options.per == "gpu":
        places += "export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\n  "
    fault = " && ".join(f"code != {code}" for code in (0, MISTAKE, *NOT_RUN))
    again = RESTARTS.format(fault=fault, logs=shlex.quote(options.logs), restarts=options.restarts)
    return SCRIPT.format(
        options="\n".join(lines),
        warning=options.warning,
        srun=shlex.join([f"--cpus-per-task={options.cpus}", "--kill-on-bad-exit=0", "--wait=60", *pyxis(options)]),
        places=places,
        program=shlex.join([*apptainer(options), *python(options), "-m", "pretrain", *program]),
        preempted=PREEMPTED,
        restarts=again if options.restarts else "",
    )


def python(options) -> list[str]:
    contained = options.container_image or options.apptainer
    return [options.python or ("python" if contained else ".venv/bin/python")]


def pyxis(options) -> list[str]:
    """What srun is told of the container, where that plugin runs it."""
    if not options.container_image:
        return []
    mounts = [f"--container-mounts={options.mounts}"] if options.mounts else []
    return [f"--container-image={options.container_image}", f"--container-workdir={IMAGE_FOLDER}", *mounts]


def apptainer(options) -> list[str]:
    """What stands before the program, where apptainer runs it."""
    if not options.apptainer:
        return []
    gpus = ["--nv"] if options.gpus_per_node else []
    mounts = ["--bind", options.mounts] if options.mounts else []
    return ["apptainer", "exec", *gpus, *mounts, "--pwd", IMAGE_FOLDER, options.apptainer]


def limit(text: str) -> float:
    """Seconds of a time limit as sbatch reads it: 0 is none, and what is no time it refuses itself."""
    days, dash, rest = text.rpartition("-")
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", text):
        return math.inf
    numbers = [int(number) for number in rest.split(":")]
    units = (3600, 60, 1) if dash or len(numbers) == 3 else (60, 1)
    return int(days or 0) * 86_400 + sum(map(math.prod, zip(numbers, units, strict=False))) or math.inf


def quoted(value: str) -> str:
    """A value as sbatch reads it in a line of the script: in quotes, with a backslash before what ends them."""
    if all(letter.isalnum() or letter in "%+,-./:@_=" for letter in value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def option(text: str) -> str:
    """An argparse type: an option of sbatch on one line."""
    if not text.startswith("-"):
        raise argparse.ArgumentTypeError(f"{text!r} is no option of sbatch; write it as --sbatch=--qos=high")
    return line(text)


def folder(text: str) -> str:
    """An argparse type: a folder in whose name SLURM finds no pattern of its own."""
    if "%" in text or "\\" in text:
        raise argparse.ArgumentTypeError(f"{text!r} has a '%' or '\\', which SLURM would read as a pattern")
    return line(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

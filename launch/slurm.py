"""Submits the program to SLURM, as one process per node or per GPU.

    python -m launch.slurm --nodes 4 --gpus-per-node 8 -- train --config=configs/gpt3.py:xl --workdir=/shared/xl

Two minutes before the time limit SLURM warns the job; every process saves and stops, and the job goes back into the
queue to go on from there. A job that is preempted or whose node fails is queued again by SLURM itself; one that is
cancelled saves and stays cancelled. The work folder must be on a file system that all nodes share.
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from launch import PREEMPTED, parse, parser, positive, run

WARNING = 120  # seconds between the warning and the time limit: enough to save

# The warning is USR1 and not TERM, so that a job its user cancels (TERM) is not put back into the queue.
SCRIPT = """\
#!/usr/bin/env bash
{options}
#SBATCH --signal=B:USR1@{warning}
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export LONGHAUL_COORDINATOR="$first:$((20000 + SLURM_JOB_ID % 20000))"

warned=0
trap 'warned=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR1  # passed on to every process of the job
trap : TERM  # the processes have their own; this shell waits for them

# Once one process has ended, the others get a minute to follow.
srun --cpus-per-task={cpus} --kill-on-bad-exit=0 --wait=60 bash -c '
  {places}exec "$@"
' process {program} &
task=$!

while kill -0 "$task" 2>/dev/null; do
  wait "$task" || true  # a trapped signal ends it early
done
code=0
wait "$task" || code=$?  # bash remembers

if ((code == {preempted} && warned)); then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
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
    flags.add_argument("--time", default="24:00:00", help="time limit (default: 24:00:00)")
    flags.add_argument("--name", default="longhaul", help="name of the job (default: longhaul)")
    flags.add_argument("--partition", help="partition to submit to")
    flags.add_argument("--account", help="account to charge")
    flags.add_argument("--logs", type=Path, default=Path("runs/slurm"), help="folder of the log (default: runs/slurm)")
    flags.add_argument(
        "--python", default=".venv/bin/python", help="interpreter on the nodes (default: .venv/bin/python)"
    )
    flags.add_argument("--dry-run", action="store_true", help="print the batch script and submit nothing")
    options, program = parse(flags, argv)
    if options.per == "gpu" and not options.gpus_per_node:
        flags.error("--per gpu needs --gpus-per-node")
    text = script(options, program)
    if options.dry_run:
        print(text, end="")
        return 0
    options.logs.mkdir(parents=True, exist_ok=True)
    return run(["sbatch"], stdin=text)


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
        "output": options.logs / "%x-%j.log",
    }
    places = "export LONGHAUL_PROCESSES=$SLURM_NTASKS LONGHAUL_PROCESS=$SLURM_PROCID\n  "
    if options.per == "gpu":
        places += "export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\n  "
    return SCRIPT.format(
        options="\n".join(f"#SBATCH --{name}={value}" for name, value in asked.items() if value is not None),
        warning=WARNING,
        cpus=options.cpus,
        places=places,
        program=shlex.join([options.python, "-m", "pretrain", *program]),
        preempted=PREEMPTED,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

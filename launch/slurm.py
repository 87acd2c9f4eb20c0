"""Submit the program to SLURM, as one process per node or per GPU.

    python -m launch.slurm --nodes 4 --gpus-per-node 8 -- train --config=configs/gpt3.py:xl --workdir=/shared/xl

Two minutes before the time limit SLURM warns the job: every process saves and stops, and the job returns to the queue.
SLURM itself requeues a job that is preempted or whose node fails; `--restarts N` also requeues after a fault, N times
at most. `scancel --batch --signal=USR2 JOB` stops a job for good with everything saved; a plain `scancel` leaves it
about 30 seconds. The work folder must be on a file system that all nodes share.
"""

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from launch import common

# Signals to the batch shell: SLURM sends USR1 before the time limit and TERM on preemption, users send USR2 to stop.
# Only a job that is still RUNNING may requeue itself: one that SLURM ends was cancelled, or is requeued by SLURM.
SCRIPT = """\
#!/usr/bin/env bash
{options}
#SBATCH --signal=B:USR1@{warning}
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
# Even ports, two apart, below the ephemeral range: jobs that share a node do not collide.
export LONGHAUL_COORDINATOR="$first:$((20000 + SLURM_JOB_ID % 6000 * 2))"

stopped=0
# Signals every process of the job except this shell and srun.
pass_on() {{ scancel --signal=TERM "$SLURM_JOB_ID" 2>/dev/null || true; }}
trap pass_on USR1 TERM
trap 'stopped=1; pass_on' USR2

# Once one process has ended, the others have a minute to follow.
srun {srun} bash -c '
  {places}exec "$@"
' process {program} &
task=$!

while kill -0 "$task" 2>/dev/null; do
  wait "$task" || true  # a trapped signal interrupts it
done
code=0
wait "$task" || code=$?

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
    """Run the command line; return sbatch's exit code."""
    flags = common.parser("slurm", __doc__)
    common.add(flags, "--nodes", 1, "number of nodes")
    common.add(flags, "--gpus-per-node", None, "GPUs of each node (default: none)", type=common.POSITIVE)
    common.add(flags, "--per", "node", "one process per node or GPU", choices=("node", "gpu"))
    common.add(flags, "--cpus", 8, "CPU cores per process")
    common.add(flags, "--time", "24:00:00", "time limit")
    common.add(flags, "--warning", 120, "seconds before it to save and requeue")
    common.add(flags, "--name", "longhaul", "name of the job")
    common.add(flags, "--partition", None, "partition to submit to")
    common.add(flags, "--account", None, "account to charge")
    common.add(flags, "--sbatch", [], "another option of sbatch; repeatable", action="append", metavar="OPTION")
    common.add(flags, "--logs", "runs/slurm", "folder of the log")
    common.add(flags, "--container-image", None, "image to run in, with the plugin pyxis (enroot)")
    common.add(flags, "--apptainer", None, "image to run in, with apptainer")
    common.add(flags, "--mounts", None, "folders visible in the container, FROM:TO separated by commas")
    common.add(flags, "--python", None, "interpreter on the nodes (default: .venv/bin/python, in a container python)")
    options, program = common.parse(flags, argv)
    container = options.container_image or options.apptainer
    if options.per == "gpu" and not options.gpus_per_node:
        flags.error("--per gpu needs --gpus-per-node")
    if options.container_image and options.apptainer:
        flags.error("--container-image and --apptainer are alternatives; choose one")
    if options.mounts and not container:
        flags.error("--mounts needs --container-image or --apptainer")
    script = batch_script(options, program)
    if options.dry_run:
        print(script, end="")
        return 0
    recipe = common.flag(program, "config").partition(":")[0]
    if recipe and not container and not Path(recipe).is_file():  # else the job would wait hours to fail
        flags.error(f"--config={recipe}: no such file here, in the folder of the job")
    common.require("sbatch")
    Path(options.logs).mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["sbatch"], input=script, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="")
    if done.returncode == 0:
        job = re.search(r"\d+", done.stdout)[0]
        log = f"{options.logs}/{options.name}-{job}.log"
        common.hints(program, f"tail -F {shlex.quote(log)}", f"scancel --batch --signal=USR2 {job}")
    return done.returncode


def batch_script(options: argparse.Namespace, program: Sequence[str]) -> str:
    """The batch script for sbatch."""
    fields = {
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
    lines = [f"--{key}={value}" for key, value in fields.items() if value is not None] + options.sbatch
    places = "export LONGHAUL_PROCESSES=$SLURM_NTASKS LONGHAUL_PROCESS=$SLURM_PROCID PYTHONUNBUFFERED=1\n  "
    if options.per == "gpu":
        places += "export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\n  "
    srun = [f"--cpus-per-task={options.cpus}", "--kill-on-bad-exit=0", "--wait=60"]
    command = [options.python or ".venv/bin/python", "-m", "pretrain", *program]
    if options.container_image or options.apptainer:
        command[0] = options.python or "python"
    if options.container_image:
        srun += [f"--container-image={options.container_image}", f"--container-workdir={common.IMAGE_FOLDER}"]
        srun += [f"--container-mounts={options.mounts}"] if options.mounts else []
    if options.apptainer:
        gpus = ["--nv"] if options.gpus_per_node else []
        mounts = ["--bind", options.mounts] if options.mounts else []
        command = ["apptainer", "exec", *gpus, *mounts, "--pwd", common.IMAGE_FOLDER, options.apptainer, *command]
    fault = " && ".join(f"code != {code}" for code in (0, common.MISTAKE, *common.NOT_RUN))
    restarts = RESTARTS.format(fault=fault, logs=shlex.quote(options.logs), restarts=options.restarts)
    return SCRIPT.format(
        options="\n".join(f"#SBATCH {quote(line)}" for line in lines),
        warning=options.warning,
        srun=shlex.join(srun),
        places=places,
        program=shlex.join(command),
        preempted=common.PREEMPTED,
        restarts=restarts if options.restarts else "",
    )


def quote(option: str) -> str:
    """Quote the value of an option as sbatch reads it in a script: double quotes, with backslashes inside."""
    key, equals, value = option.partition("=")
    if re.fullmatch(r"[\w%+,\-./:@=]*", value):
        return option
    value = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{key}{equals}"{value}"'


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

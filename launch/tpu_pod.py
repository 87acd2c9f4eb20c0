"""Runs the program on every worker of a Cloud TPU pod (or a single TPU VM), through gcloud.

    python -m launch.tpu_pod --tpu my-pod --zone us-east5-a --install -- \\
        train --config=configs/gpt3.py:xl --workdir=/shared/xl

`--install` first copies the tree as it is committed (HEAD) to every worker and installs it there. JAX finds the
workers by itself. The work folder must be on a file system that all workers share. The command ends when the program
does; keep it in a terminal that outlives you (tmux), for a broken connection ends it too.
"""

import shlex
import sys
from collections.abc import Sequence

from launch import parse, parser, run, show

FOLDER = "longhaul"  # of the copy, in the home folder of each worker
ARCHIVE = "longhaul.tar.gz"


def main(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code of the first command that failed, or 0."""
    flags = parser("tpu_pod", __doc__)
    flags.add_argument("--tpu", required=True, help="name of the TPU VM or pod")
    flags.add_argument("--zone", required=True, help="its zone")
    flags.add_argument("--project", help="its project (default: gcloud's own)")
    flags.add_argument("--install", action="store_true", help="copy and install the tree on every worker first")
    flags.add_argument("--python", default="python3", help="Python 3.11 or newer on the workers (default: python3)")
    flags.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")
    options, program = parse(flags, argv)
    for command in commands(options, program):
        if options.dry_run:
            show(command)
        elif code := run(command):
            return code
    return 0


def commands(options, program: Sequence[str]) -> list[list[str]]:
    """What has to be run here, in turn."""
    where = ["--zone", options.zone, "--worker=all"] + (["--project", options.project] if options.project else [])
    tpu_vm = ["gcloud", "compute", "tpus", "tpu-vm"]

    def ssh(command: str) -> list[str]:
        return [*tpu_vm, "ssh", options.tpu, *where, f"--command={command}"]

    install = [
        ["git", "archive", "--format=tar.gz", f"--output={ARCHIVE}", "HEAD"],
        [*tpu_vm, "scp", ARCHIVE, f"{options.tpu}:{ARCHIVE}", *where],
        ssh(
            f"mkdir -p {FOLDER} && tar -xzf {ARCHIVE} -C {FOLDER} && cd {FOLDER} && "
            f"{shlex.quote(options.python)} -m venv .venv && .venv/bin/python -m pip install -e '.[tpu]'"
        ),
    ]
    started = shlex.join([".venv/bin/python", "-m", "pretrain", *program])
    return (install if options.install else []) + [ssh(f"cd {FOLDER} && LONGHAUL_COORDINATOR=auto {started}")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

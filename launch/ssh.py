"""Runs the program on a list of hosts that ssh reaches, one process on each.

    python -m launch.ssh --hosts node1,node2 --folder longhaul -- train --config=configs/gpt2.py --workdir=/shared/gpt2

Every host has the project in the same folder and sees the same work folder. The first host is where the processes
meet: the others must reach it under its name in the list, or under the address given by `--coordinator`. When one
fails the rest are asked to stop, and its exit code becomes the launcher's. SIGTERM and Ctrl-C reach every process, so
that each can save and stop; a second one kills them. When this launcher or a connection ends, the programs save and
stop too, so keep it in a terminal that outlives you (tmux).
"""

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from launch import (
    MISTAKE,
    PORT,
    carried,
    count,
    environment,
    installed,
    line,
    log_folder,
    name,
    parse,
    parser,
    restarts,
    seconds,
)
from launch.output import hints, put, show
from launch.remote import SILENCE, Remote, kept, new_launch, start
from launch.supervise import Signals, again, begin, supervise

ELSEWHERE = "name its folder with --folder, or install it there"
PAUSE = 10.0  # seconds before the processes are started again
OPTIONS = ["-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"]


def main(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code of the first process that failed, or 0."""
    flags = parser("ssh", __doc__)
    flags.add_argument("--hosts", help="the hosts as ssh takes them, with commas between: node1,user@node2")
    flags.add_argument("--hostfile", type=Path, help="a file that has them, one a line")
    flags.add_argument("--coordinator", type=meeting, help=f"address:port of the first host (default: its name:{PORT})")
    flags.add_argument("--folder", type=line, default="longhaul", help="the project on each host (default: longhaul)")
    flags.add_argument("--python", default=".venv/bin/python", help="interpreter there (default: .venv/bin/python)")
    flags.add_argument("--name", type=name, default="longhaul", help="name of the run on the hosts (default: longhaul)")
    flags.add_argument("--ssh", type=words, default="ssh", help="how to call ssh, such as 'ssh -p 2222' (default: ssh)")
    flags.add_argument("--logs", type=Path, default=Path("runs/ssh"), help="folder of the logs (default: runs/ssh)")
    flags.add_argument(
        "--grace",
        type=seconds,
        default=300.0,
        help="seconds between asking the rest to stop and killing them (default: 300)",
    )
    carried(flags)
    restarts(flags)
    flags.add_argument("--stop", action="store_true", help="stop the run on all hosts, with everything saved")
    flags.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")
    options, program = parse(flags, argv, without=["stop"])
    hosts = listed(flags, options)
    coordinator = options.coordinator or f"{hosts[0].rpartition('@')[2]}:{PORT}"

    def commands(launch: str, attempt: int) -> list[list[str]]:
        """What is called here for each host."""
        found = []
        for index, host in enumerate(hosts):
            keeping = ["--name", f"{options.name}-{host.rpartition('@')[2]}"]
            if options.stop:
                keeping, variables = [*keeping, "--stop"], []
            else:
                keeping += ["--launch", launch, "--attempt", str(attempt), "--silence", str(SILENCE)]
                places = environment(coordinator, len(hosts), index)
                variables = [*(f"{key}={value}" for key, value in places.items()), *options.env]
            there = kept(options.folder, ELSEWHERE, options.python, variables, keeping, program)
            found.append([*options.ssh, *OPTIONS, host, there])
        return found

    if options.dry_run:
        show(*commands("LAUNCH", 0))
        return 0
    if not installed(options.ssh[0]):
        return MISTAKE
    if options.stop:
        connections = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for command in commands("", 0)]
        return max(connection.wait() for connection in connections)
    log_folder(flags, options.logs)
    first = shlex.quote(str(options.logs / f"{hosts[0]}.log"))
    stop = "Ctrl-C here, or this command with --stop instead of '-- ...'"
    return run(hosts, commands, options, lambda: hints(program, f"tail -f {first}", stop))


def run(hosts: Sequence[str], commands, options, told: Callable[[], None]) -> int:
    """Runs `commands(launch, attempt)`, one for each host, and starts them again as often as is asked for.

    `told` says what is to be said before.
    """
    paths = [options.logs / f"{host}.log" for host in hosts]
    launch = new_launch()

    def attempt(number: int) -> int:
        children = []
        for host, command, path in zip(hosts, commands(launch, number), paths, strict=True):
            since = begin(path, number)
            children.append(Remote(f"host {host}", start(command, path), path, since))
        code = supervise(children, options.grace, signals, more=number < options.restarts)
        for child in children:
            child.process.stdin.close()
        return code

    with Signals() as signals:
        told()
        put(sys.stdout, f"launch: {count(len(hosts), 'host')}, logs in {options.logs}\n")
        return again(attempt, options.restarts, PAUSE, signals)


def listed(flags, options) -> list[str]:
    """The hosts that were named, of which there must be one at least, each once."""
    if bool(options.hosts) == bool(options.hostfile):
        both = ", not both" if options.hosts else ""
        flags.error(f"name the hosts as --hosts=node1,node2 or in a file with --hostfile{both}")
    if options.hosts:
        hosts = [host.strip() for host in options.hosts.split(",")]
    else:
        try:
            lines = options.hostfile.read_text().splitlines()
        except OSError as error:
            flags.error(f"--hostfile {options.hostfile} cannot be read ({error.strerror})")
        except UnicodeDecodeError:
            flags.error(f"--hostfile {options.hostfile} is not text in UTF-8; write one host a line")
        hosts = [host for host in (line.partition("#")[0].strip() for line in lines) if host]
    machines = [host.rpartition("@")[2] for host in hosts]
    for at, host in enumerate(hosts):
        if not host or host.startswith("-") or not all(letter.isalnum() or letter in "@._-" for letter in host):
            flags.error(f"{host!r} is no host; write node1 or user@node1 (a port or a key goes into ~/.ssh/config)")
        if machines[at] in machines[:at]:
            flags.error(
                f"{machines[at]} is named twice; there is one process on each host, which drives all its devices"
            )
    if not hosts:
        flags.error(f"--hostfile {options.hostfile} names no host")
    return hosts


def meeting(text: str) -> str:
    """An argparse type: an address and a port, above which another is free."""
    host, _, port = text.rpartition(":")
    if not re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", host) or not re.fullmatch(r"[1-9]\d{0,4}", port):
        raise argparse.ArgumentTypeError(f"{text!r} is not ADDRESS:PORT, such as 10.0.0.1:{PORT}")
    if int(port) >= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} has a port above 65534; give another, such as {PORT}")
    return text


def words(text: str) -> list[str]:
    """An argparse type: a command's words, as a shell takes them apart."""
    try:
        found = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no command ({error})") from None
    if not found or not found[0]:
        raise argparse.ArgumentTypeError(f"{text!r} is no command; write how to call it, such as 'ssh -p 2222'")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

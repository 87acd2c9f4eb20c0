"""Run the program on a list of hosts that ssh reaches, one process on each.

    python -m launch.ssh --hosts node1,node2 --folder longhaul -- train --config=configs/gpt2.py --workdir=/shared/gpt2

Every host has the project in the same folder and sees the same work folder. The processes meet at the first host, or
at the address given by `--coordinator`. If one fails the others are asked to stop, and its exit code becomes the
launcher's. SIGTERM and Ctrl-C reach every process, so that each saves and stops. The programs also save and stop when
this launcher or a connection ends, so keep it in a terminal that outlives you (tmux).
"""

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from launch import common
from launch.supervisor import Process, Signals, run_attempts, supervise

# A silent connection counts as lost after a minute.
OPTIONS = ["-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"]
LINGER = 10  # seconds that a connection has to end by itself once its host has killed the program

# For a host: bash -c START FOLDER NAME GRACE COMMAND... A connection without a terminal leaves its program running when
# it ends, so a listener asks the program to save once standard input ends, and kills it after the grace.
START = """\
cd "$0" && [ -d pretrain ] || { echo "launch: no project in $0 on $HOSTNAME; install it" >&2; exit 2; }
pid=runs/launch/$1.pid; grace=$2; shift 2
mkdir -p runs/launch; rm -f "$pid.stopped"
"$@" < /dev/null & program=$!
echo $program > "$pid"
{ cat; kill $program; sleep $grace; kill -9 $program; } <&0 > /dev/null 2>&1 & listener=$!
wait $program; code=$?
kill $listener; rm -f "$pid"
[ $code = 75 ] && [ -e "$pid.stopped" ] && code=76
exit $code
"""
# For a host: bash -c STOP FOLDER NAME.
STOP = """\
pid=$0/runs/launch/$1.pid
[ -e "$pid" ] || { echo "launch: nothing runs as $1 on $HOSTNAME"; exit; }
program=$(cat "$pid"); touch "$pid.stopped"; kill $program
while kill -0 $program 2> /dev/null; do sleep 0.2; done
echo "launch: $1 stopped on $HOSTNAME"
"""


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit code of the first process that failed, or 0."""
    flags = common.parser("ssh", __doc__)
    common.add(flags, "--hosts", None, "hosts as ssh takes them, separated by commas: node1,user@node2")
    common.add(flags, "--hostfile", None, "file with one host per line")
    common.add(flags, "--coordinator", None, f"address:port of the first host (default: its name:{common.PORT})")
    common.add(flags, "--folder", "longhaul", "the project on each host")
    common.add(flags, "--python", ".venv/bin/python", "interpreter")
    common.add(flags, "--name", "longhaul", "name of the run on the hosts")
    common.add(flags, "--ssh", "ssh", "ssh with options, such as 'ssh -p 2222'")
    common.add(flags, "--logs", "runs/ssh", "folder of the logs")
    common.add(flags, "--grace", 300.0, "seconds between asking a program to stop and a kill")
    common.add(flags, "--stop", True, "stop the run on all hosts, with everything saved")
    common.add(flags, "--env", [], "a variable of the program's environment; repeatable", **common.ENV)
    options, program = common.parse(flags, argv, standalone=["stop"])
    hosts = read_hosts(flags, options)
    commands = [[*shlex.split(options.ssh), *OPTIONS, host] for host in hosts]
    for index, command in enumerate(commands):
        run = f"{options.name}-{hosts[index].rpartition('@')[2]}"  # hosts may share the folder
        if options.stop:
            command.append(stop_command(options.folder, run))
        else:
            coordinator = options.coordinator or f"{hosts[0].rpartition('@')[2]}:{common.PORT}"
            variables = [f"{key}={value}" for key, value in common.environment(coordinator, len(hosts), index).items()]
            variables += options.env
            command.append(start_command(options.folder, run, options.grace, options.python, variables, program))
    if options.dry_run:
        common.show(commands)
        return 0
    common.require(commands[0][0])
    if options.stop:
        clients = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for command in commands]
        return max(client.wait() for client in clients)
    logs = [Path(options.logs, f"{host}.log") for host in hosts]
    logs[0].parent.mkdir(parents=True, exist_ok=True)
    watch = f"tail -f {shlex.quote(str(logs[0]))}"
    common.hints(program, watch, "Ctrl-C here, or this command with --stop instead of '-- ...'")

    def start(attempt: int) -> int:
        named = zip(hosts, commands, logs, strict=True)
        clients = [Process(f"host {host}", command, log, remote=True) for host, command, log in named]
        return supervise(clients, options.grace + LINGER, signals)

    with Signals() as signals:
        return run_attempts(start, options.restarts, 10.0, signals)


def start_command(
    folder: str,
    run: str,
    grace: float,
    python: str,
    variables: Sequence[str],
    program: Sequence[str],
    prefix: bool = False,
) -> str:
    """Command for the shell of a host, which runs the program until it or standard input ends.

    `prefix` puts the name of the host before each line of output.
    """
    script = 'exec > >(sed -u "s/^/$HOSTNAME | /") 2>&1\n' + START if prefix else START
    command = f"env {shlex.join(variables)} {quote(python)} -m pretrain {shlex.join(program)}"
    return f"exec bash -c {shlex.quote(script)} {quote(folder)} {run} {grace:g} {command}"


def stop_command(folder: str, run: str) -> str:
    """Command for the shell of a host, which stops the program and waits for its end."""
    return f"exec bash -c {shlex.quote(STOP)} {quote(folder)} {run}"


def quote(path: str) -> str:
    """Quote a path for the shell of a host, but leave a leading `~` or `~user` for it to expand."""
    home, rest = re.fullmatch(r"(~(?:[A-Za-z_][A-Za-z0-9._-]*)?(?:/|\Z))?(.*)", path).groups()
    return (home or "") + (shlex.quote(rest) if rest or not home else "")


def read_hosts(flags: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    """Hosts of `--hosts` or `--hostfile`, each once: one process drives all devices of a host."""
    if options.hostfile and not Path(options.hostfile).is_file():
        flags.error(f"--hostfile={options.hostfile}: no such file")
    lines = Path(options.hostfile).read_text().splitlines() if options.hostfile else (options.hosts or "").split(",")
    hosts = [host for host in (line.partition("#")[0].strip() for line in lines) if host]
    if wrong := [host for host in hosts if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9@._-]*", host)]:
        flags.error(f"{wrong[0]!r} is not a host; write node1 or user@node1 (ports and keys go into ~/.ssh/config)")
    if not hosts or len({host.rpartition("@")[2] for host in hosts}) < len(hosts):
        flags.error("name the hosts, each once, as --hosts=node1,node2 or in a file with --hostfile")
    return hosts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

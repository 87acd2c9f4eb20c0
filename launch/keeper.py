"""Runs the program on a host that a launcher reached through ssh, and stops it when that launcher is gone.

    python -m launch.keeper --name longhaul --launch ID --attempt 0 -- train --config=... --workdir=...

Launchers start it; nobody needs to type that. An ssh without a terminal leaves its program running when it ends, so
this process stands between: it listens on standard input, and once that is closed, or silent for longer than
`--silence` seconds, it asks the program to stop, which saves everything. What the program prints goes into
runs/launch/NAME.log, and on to standard output as long as anybody reads there.

There is one program under a name on a host: a file is locked, by the program itself too, so that the lock lasts as
long as it does. Another launch is refused. A later attempt of the same launch stops the earlier one's program first.
The same attempt, which a client that lost its connection asks for again, is not run twice. A launch that `--stop` has
ended, or found between two attempts, is not started again: a file beside the lock names it.
"""

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from launch import MISTAKE, PREEMPTED, STOPPED, name, natural, parse, parser
from launch.output import answer
from launch.passing import Named, Passing
from launch.supervise import with_parent

FOLDER = Path("runs/launch")  # of locks and logs, in the folder of the program
ALIVE, STOP, KILL = b".", b"T", b"K"  # what a launcher says on standard input
FAREWELL = 5.0  # seconds that the last of the output waits for its reader
POLL = 0.2  # seconds between looks at the program, its log and the launcher


def main(argv: Sequence[str]) -> int:
    """Runs the command line and returns the program's exit code."""
    flags = parser("keeper", __doc__)
    flags.add_argument("--name", type=name, required=True, help="what the program is called on this host")
    flags.add_argument("--launch", type=name, default="by-hand", help="which launch this belongs to")
    flags.add_argument("--attempt", type=natural, default=0, help="how often that launch has started it before")
    flags.add_argument(
        "--silence", type=natural, default=0, help="seconds after which a silent launcher counts as gone"
    )
    flags.add_argument("--hostname", action="store_true", help="print each line behind the name of this host")
    flags.add_argument("--stop", action="store_true", help="stop what runs under the name, with everything saved")
    options, program = parse(flags, argv, without=["stop"])
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{options.name}.lock").open("a+") as lock:
        if options.stop:
            return stop(lock, options.name)
        code = take(lock, options)
        if code is not None:
            return code
        command = [sys.executable, "-m", "pretrain", *program]
        host = os.uname().nodename if options.hostname else ""
        code = keep(command, lock, FOLDER / f"{options.name}.log", options.silence, host)
        return STOPPED if code == PREEMPTED and stopped(options.name) == options.launch else code


def take(lock: TextIO, options) -> int | None:
    """Locks the file, or returns the exit code with which to end without having run anything."""
    mine = {"launch": options.launch, "attempt": options.attempt}
    if not locked(lock):
        holder = read(lock)
        if holder.get("launch") != options.launch:
            print(
                f"launch: {os.uname().nodename} runs '{options.name}' of another launch since {holder.get('since')} "
                f"(process {holder.get('process')}); stop that (--stop), or choose another --name (of a pod --tpu)",
                file=sys.stderr,
            )
            return MISTAKE
        print(f"launch: stopping the program of attempt {holder.get('attempt')}, which still runs", file=sys.stderr)
        ask(holder)
        fcntl.flock(lock, fcntl.LOCK_EX)
    if stopped(options.name) == options.launch:
        print("launch: this launch has been stopped (--stop)", file=sys.stderr)
        return STOPPED
    before = read(lock)
    if {key: before.get(key) for key in mine} == mine:
        print("launch: this attempt has ended already, with its connection", file=sys.stderr)
        return PREEMPTED
    mine |= {"process": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    lock.seek(0)
    lock.truncate()
    lock.write(json.dumps(mine))
    lock.flush()
    return None


def stop(lock: TextIO, name: str) -> int:
    """Asks the holder's program to stop and waits until it has; its launch is not to start it again."""
    asked = set()
    while not locked(lock):
        holder = read(lock)
        if holder.get("process") not in asked:
            asked.add(holder.get("process"))
            _stopped(name).write_text(holder.get("launch", ""))
            ask(holder)
        time.sleep(POLL)
    if not asked:
        _stopped(name).write_text(read(lock).get("launch", ""))  # it may be between two attempts
    found = f"'{name}' has stopped" if asked else f"nothing runs as '{name}'"
    answer(f"launch: {found} on {os.uname().nodename}\n")
    return 0


def stopped(name: str) -> str:
    """The launch of that name that `--stop` ended last; nothing where there was none."""
    path = _stopped(name)
    return path.read_text() if path.exists() else ""


def _stopped(name: str) -> Path:
    return FOLDER / f"{name}.stopped"


def locked(lock: TextIO) -> bool:
    """Whether the file is this process's from now on."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read(lock: TextIO) -> dict:
    """What the file says of who locked it last; nothing where that is not written yet."""
    lock.seek(0)
    try:
        return json.loads(lock.read())
    except ValueError:
        return {}


def ask(holder: dict) -> None:
    """Asks the holder's program to stop; where the holder was killed, its program has been asked by the kernel."""
    process = holder.get("process")
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return
    if b"launch.keeper" in words:
        os.kill(process, signal.SIGTERM)


def keep(command: Sequence[str], lock: TextIO, log: Path, silence: int, host: str) -> int:
    """Runs `command` until it ends; returns its exit code, 128 + its number if a signal ended it.

    What it prints is passed on behind the name `host`, if there is one.
    """
    asked = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: asked.append(number))
    with log.open("ab") as out, log.open("rb") as written:
        written.seek(0, os.SEEK_END)
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a hang-up of the connection is told to this process alone
            pass_fds=(lock.fileno(),),
            # The program is asked to stop when this process is killed: nobody could ask it any more.
            preexec_fn=with_parent(signal.SIGTERM),
        )
        passing = Named(written, host) if host else Passing(written)
        listening, heard, told = True, time.monotonic(), False
        while program.poll() is None:
            ready = select.select([0] if listening else [], [], [], POLL)[0]
            said = os.read(0, 4096) if ready else None
            if said:
                heard = time.monotonic()
            if said == b"" or (silence and time.monotonic() - heard > silence) or (said and STOP in said):
                asked.append(signal.SIGTERM)
                listening = listening and said != b""
            if said and KILL in said:
                os.killpg(program.pid, signal.SIGKILL)
            if asked and not told:
                told = True
                program.terminate()
            passing.some()
        until = time.monotonic() + FAREWELL
        passing.rest(waits=lambda: time.monotonic() < until)
    code = program.returncode
    if told and code == -signal.SIGTERM:
        return PREEMPTED  # it had not begun anything that could be lost
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

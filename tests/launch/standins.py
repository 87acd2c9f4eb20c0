"""Stand-ins of the program and of the tools that reach other machines, for tests of the launchers."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """\
import json, os, sys
places = {name: value for name, value in os.environ.items() if name.startswith(("LONGHAUL_PROCESS", "LONGHAUL_COORD"))}
print(json.dumps({"arguments": sys.argv[1:], "environment": places}))
"""


def project(folder: Path, body: str = PROGRAM) -> Path:
    """A folder that looks like the project's, whose `python -m pretrain` does `body`; launchers are the real ones."""
    package = folder / "pretrain"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(body)
    if not (folder / "launch").exists():
        (folder / "launch").symlink_to(ROOT / "launch")
    interpreter = folder / ".venv" / "bin" / "python"
    interpreter.parent.mkdir(parents=True, exist_ok=True)
    interpreter.unlink(missing_ok=True)
    tool(interpreter, f"""export PYTHONPATH='{ROOT}' PYTHONSAFEPATH=; exec '{sys.executable}' "$@" """)
    return folder


def tool(path: Path, body: str) -> None:
    """An executable bash script."""
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(0o755)


# As sshd does: what was said after the host's name goes to a shell in the home folder, and nothing ends with it.
SSH = """\
echo "$*" >> "$CALLS"
cd "$HOME" && exec bash -c "${@: -1}"
"""

# As gcloud does: the command is cut at blanks and put together again by ssh; all workers share standard input and
# output, and the first of them that failed says the exit code. Of the logs that it offers it knows no folder (528.0.0).
# Worker 0 is at home in $HOME, and each other one of $WORKERS beside it.
GCLOUD = """\
printf '%s\\n' "$(printf '%q ' "$@")" >> "$CALLS"
logs=; command=
for word in "$@"; do
  case "$word" in
    --command=*) command=${word#--command=} ;;
    --output-directory=*) logs=${word#--output-directory=} ;;
  esac
done
play() { # the next of the states in a file; "-" is none, "!" a failure of gcloud's own, "?" of who has not logged in
  state=$(sed -n 1p "$1"); sed -i 1d "$1"
  case "$state" in
    !) echo "ERROR: (gcloud) UNAVAILABLE: try again" >&2; exit 1 ;;
    "?") echo "ERROR: (gcloud) You do not currently have an active account selected." >&2; exit 1 ;;
    403) echo "ERROR: (gcloud) PERMISSION_DENIED: as me, which is the active account of [core/account]" >&2; exit 1 ;;
    -|"") echo "ERROR: (gcloud) NOT_FOUND: Resource '$5' was not found." >&2; exit 1 ;;
  esac
  echo "$state"; exit 0
}
case "$3 $4" in
  "tpu-vm describe") play "$STATES" ;;
  "queued-resources describe") play "$REQUESTS" ;;
  "tpu-vm ssh") ;;
  *) exit 0 ;;
esac
case "$command" in *pip*) exit 0 ;; esac
if [ -n "$logs" ]; then
  echo "ERROR: gcloud crashed (MissingFileError): Unable to write file [None/0.log]" >&2; exit 1
fi
workers=() first=$HOME
for ((worker = 0; worker < ${WORKERS:-1}; worker++)); do
  [ "$worker" = 0 ] || HOME=$first-$worker
  (cd && exec bash -c "$command") <&0 &
  workers+=($!)
done
code=0
for worker in "${workers[@]}"; do
  wait "$worker" || { status=$?; [ "$code" != 0 ] || code=$status; }
done
exit "$code"
"""


def launcher(name: str, *argv, cwd: Path = ROOT, **environment) -> subprocess.Popen:
    """A running `python -m launch.NAME ARGV`."""
    return subprocess.Popen(
        [sys.executable, "-m", f"launch.{name}", *map(str, argv)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | {key: str(value) for key, value in environment.items()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(running: subprocess.Popen, timeout: float = 30) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)."""
    try:
        out, err = running.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        running.kill()
        raise
    return running.returncode, out, err


def called(name: str, *argv, timeout: float = 30, **options) -> tuple[int, str, str]:
    return finish(launcher(name, *argv, **options), timeout)


def said(text: str) -> list[dict]:
    """What the stand-in program printed, of all its runs."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def wait_for(condition, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)

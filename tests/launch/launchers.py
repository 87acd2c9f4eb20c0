"""Run launchers as users do, with small programs in place of `pretrain`."""

import contextlib
import importlib
import io
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# A program that prints its arguments and its place in the run.
PLACE = """\
import json, os, sys
places = [os.environ[f"LONGHAUL_{name}"] for name in ("COORDINATOR", "PROCESSES", "PROCESS")]
print(json.dumps({"arguments": sys.argv[1:], "places": places}))
"""
# A program that saves when it is asked to stop.
SAVES = """\
import signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
print("ready", flush=True)
end = time.monotonic() + 60
while not asked and time.monotonic() < end:
    time.sleep(0.02)
time.sleep(0.2)
print("saved", flush=True)
sys.exit(75)
"""
STEPS = 300  # of the small run below


def project(folder: Path, body: str) -> Path:
    """A folder like the project's, whose `python -m pretrain` does `body`."""
    (folder / "pretrain").mkdir(parents=True)
    (folder / "pretrain" / "__init__.py").touch()  # else the installed package comes first
    (folder / "pretrain" / "__main__.py").write_text(body)
    return folder


def small_run(workdir: Path, text: Path) -> list[str]:
    """Arguments of a run of the real program on the files of a folder."""
    keys = {
        **{"tokenizer.kind": "bytes", "model.vocab_size": 257, "model.layers": 1, "model.width": 16},
        **{"model.heads": 2, "model.ff": 32, "model.dropout_residual": 0.1, "train.steps": STEPS},
        **{
            "checkpoint.every": 20,
            "evaluate.every": 0,
            "data.workers": 2,
            "log.seconds": 0,
            "log.tensorboard": "false",
        },
        "data.train": f"text:{text}/*.py",
    }
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    return ["train", "--config=configs/quickstart.py:tiny", f"--workdir={workdir}", *flags]


def launcher(name: str, *argv, cwd: Path = ROOT, **environment) -> subprocess.Popen:
    """A running `python -m launch.NAME ARGV`."""
    return subprocess.Popen(
        [sys.executable, "-m", f"launch.{name}", *map(str, argv)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(running: subprocess.Popen, timeout: float = 30) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of a process."""
    try:
        out, err = running.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        running.kill()
        raise
    return running.returncode, out, err


def dry_run(name: str, *argv) -> str:
    """What a launcher prints with `--dry-run`."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert importlib.import_module(f"launch.{name}").main([*map(str, argv)]) == 0
    return out.getvalue()


def command_lines(text: str) -> list[list[str]]:
    """Words of the commands that a dry run printed; a quoted word may span lines."""
    commands, command = [], ""
    for line in text.splitlines(keepends=True):
        command += line
        with contextlib.suppress(ValueError):  # a quotation is still open
            commands.append(shlex.split(command))
            command = ""
    return commands


def wait_for(condition, seconds: float = 20) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.02)

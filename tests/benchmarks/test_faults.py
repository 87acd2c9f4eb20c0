"""A thin row of the matrix of faults: what happens to pods happens to real processes here."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
THIN = ("kill -9 during a save", "SIGTERM to one process", "hung worker", "two jobs on one folder", "corrupted replica")
MINUTE = "work folder away for a minute"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at through Linux's /proc"),
]


def tried(out, *names, options=()):
    """Each of these faults was done once to two processes, which ended with the bits of the undisturbed ones."""
    words = [f"--only={','.join(names)}", "--trials=1", f"--out={out}", *options]
    done = subprocess.run([sys.executable, "-m", "benchmarks.faults", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["name"], row["value"]) for row in rows] == [(name, 1) for name in names]


def test_jobs_end_with_the_bits_of_the_undisturbed_one(tmp_path):
    tried(tmp_path / "faults.json", *THIN)


@pytest.mark.skipif(not shutil.which("cc"), reason="a C compiler makes the library through which the folder fails")
def test_a_folder_that_fails_for_a_minute_is_tried_again(tmp_path):
    """After ever longer pauses, and what was to be written is there in the end."""
    tried(tmp_path / "faults.json", MINUTE, options=[f"--keep={tmp_path / 'jobs'}"])
    (logs,) = (tmp_path / "jobs").glob("work-folder-away*.logs")
    said = "".join(path.read_text(errors="replace") for path in logs.iterdir())
    assert "trying again for up to 180 s" in said and "Input/output error" in said

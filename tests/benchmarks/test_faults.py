"""The matrix of faults, once over: what happens to pods happens to real processes here."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults import COMPILED, FAULTS

ROOT = Path(__file__).resolve().parents[2]
MINUTE = "work folder away for a minute"
WANTED = sorted(FAULTS.keys() - {MINUTE}, key=lambda name: (name in COMPILED, name))
GROUPS = [WANTED[group::4] for group in range(4)]  # of which each costs an undisturbed job
COMPILER = shutil.which("cc")

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
    assert {row["name"]: row["value"] for row in rows} == dict.fromkeys(names, 1)


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_jobs_end_with_the_bits_of_the_undisturbed_one(names, tmp_path):
    tried(tmp_path / "faults.json", *(name for name in names if COMPILER or name not in COMPILED))


@pytest.mark.skipif(not COMPILER, reason="a C compiler makes the library through which the folder fails")
def test_a_folder_that_fails_for_a_minute_is_tried_again(tmp_path):
    """After ever longer pauses, and what was to be written is there in the end."""
    tried(tmp_path / "faults.json", MINUTE, options=[f"--keep={tmp_path / 'jobs'}"])
    (logs,) = (tmp_path / "jobs").glob("work-folder-away*.logs")
    said = "".join(path.read_text(errors="replace") for path in logs.iterdir())
    assert "trying again for up to 180 s" in said and "Input/output error" in said

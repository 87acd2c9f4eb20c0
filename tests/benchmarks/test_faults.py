"""A thin row of the matrix of faults: what happens to pods happens to real processes here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
THIN = ("kill -9 during a save", "SIGTERM to one process", "hung worker", "two jobs on one folder", "corrupted replica")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at through Linux's /proc")
def test_jobs_end_with_the_bits_of_the_undisturbed_one(tmp_path):
    out = tmp_path / "faults.json"
    words = [f"--only={','.join(THIN)}", "--trials=1", f"--out={out}"]
    done = subprocess.run([sys.executable, "-m", "benchmarks.faults", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["name"], row["value"]) for row in rows] == [(name, 1) for name in THIN]

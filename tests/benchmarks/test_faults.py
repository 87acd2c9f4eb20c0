"""Each fault of the benchmark once: the job ends with the bits of an undisturbed one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(FAULTS)
GROUPS = [NAMES[group::4] for group in range(4)]  # each group costs one undisturbed job


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_faults_end_with_the_same_bits(names, tmp_path):
    options = [f"--only={','.join(names)}", "--trials=1", "--format=json"]
    command = [sys.executable, "-m", "benchmarks.faults", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["name"]: row["value"] for row in rows} == dict.fromkeys(names, 1)

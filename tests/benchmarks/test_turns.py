"""The programs of benchmarks that take turns, which are started by hand too where somebody looks for what they are."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("arguments", "code", "words"), [(["--help"], 0, "such benchmarks start it"), ([], 2, "required: target, options")]
)
def test_what_it_is_is_said(arguments, code, words):
    command = [sys.executable, "-m", "benchmarks.turns", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code and "Traceback" not in done.stderr
    assert words in " ".join((done.stdout + done.stderr).split())

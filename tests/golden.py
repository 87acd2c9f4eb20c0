"""Run `pretrain` as users do: goldens depend on no name inside the code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GOLDENS = ROOT / "tests" / "goldens"
TEXT = GOLDENS / "old_run" / "text"  # two files; documents have blank lines between them, sentences are lines


def pretrain(folder: Path, *arguments: str) -> str:
    """Run `pretrain` in a folder, on one device; return its standard output."""
    flags = re.sub(r"device_count=\d+", "device_count=1", os.environ.get("XLA_FLAGS", ""))
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pretrain", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def overrides(*sections: dict) -> list[str]:
    """Flags that set the keys of a config."""
    return [f"--config.{key}={value}" for section in sections for key, value in section.items()]


def read_metrics(workdir: Path, split: str) -> dict[int, dict]:
    """The rows of a split's metrics by step."""
    lines = (workdir / "metrics" / f"{split}.jsonl").read_text().splitlines()
    return {row["step"]: row for row in map(json.loads, lines)}

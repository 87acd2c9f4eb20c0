"""docs/extending.md, done: its task, put where the page says, in a copy of the tree."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "extending.md"
PACKAGES = ("configs", "docs", "input_pipeline", "models", "pretrain", "launch")


@pytest.fixture
def tree(tmp_path):
    """The packages, with the blocks of the page added to the files that their first lines name."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path, code in re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        with open(tmp_path / path, "a") as file:
            file.write(f"\n{code}")
    return tmp_path


def test_the_task_of_the_page(tree, text):
    small = {"data.train": f"text:{text}/*.py", "tokenizer.kind": "bytes", "model.vocab_size": 257, "train.steps": 4}
    small |= {"schedule.warmup": 0, "evaluate.batches": 2, "log.every": 1, "log.tensorboard": "false"}
    flags = [f"--config.{key}={value}" for key, value in small.items()]
    line = [sys.executable, "-m", "pretrain", "train", "--config=second_half.py", "--workdir=runs/x", *flags]
    done = subprocess.run(line, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    line = [sys.executable, "-m", "pretrain", "evaluate", "--workdir=runs/x", "--batches=2", "--format=json"]
    done = subprocess.run(line, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    config = json.loads((tree / "runs" / "x" / "config.json").read_text())
    rows = 2 * config["evaluate"]["batch_size"]
    assert json.loads(done.stdout)["tokens"] == rows * config["data"]["length"] // 2


def test_its_keys_are_documented(tree):
    environment = os.environ | {"PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, "docs/generate.py"], cwd=tree, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "- `second_half`: " in (tree / "docs" / "configs.md").read_text()


def test_every_name_of_the_page_is_there():
    page = PAGE.read_text()
    for path in re.findall(r"`((?:configs|input_pipeline|models|pretrain|tests)/[a-z_/]+(?:\.py)?)`", page):
        assert (ROOT / path).exists(), path
    tables = {
        "KINDS": ("models/build.py", "input_pipeline/sources/sources.py"),
        "OBJECTIVES": ("input_pipeline/corruption/__init__.py", "pretrain/losses/__init__.py", "configs/common.py"),
        "OPTIMIZERS": ("pretrain/optimizers/__init__.py",),
        "SCHEDULES": ("pretrain/optimizers/schedules.py",),
    }
    for table, files in tables.items():
        assert table in page
        for file in files:
            assert re.search(rf"^{table} = {{", (ROOT / file).read_text(), re.MULTILINE), file

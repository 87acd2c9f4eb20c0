"""The example of docs/extending.md, followed in a copy of the tree."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
PACKAGES = ("configs", "docs", "input_pipeline", "models", "pretrain", "launch")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The packages, with each code block of the page appended to the file that its first line names."""
    folder = tmp_path_factory.mktemp("tree")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path, code in re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL):
        with open(folder / path, "a") as file:
            file.write(f"\n{code}")
    return folder


def run(tree, *words):
    environment = os.environ | {"PYTHONPATH": str(tree)}
    result = subprocess.run([sys.executable, *words], cwd=tree, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_extending_trains_and_evaluates(tree, text):
    small = {"data.train": f"text:{text}/*.py", "tokenizer.kind": "bytes", "model.vocab_size": 257, "train.steps": 4}
    small |= {"schedule.warmup": 0, "evaluate.batches": 2, "log.every": 1, "log.tensorboard": "false"}
    flags = [f"--config.{key}={value}" for key, value in small.items()]
    train = ["train", "--config=second_half.py", "--workdir=runs/x", *flags]
    evaluate = ["evaluate", "--workdir=runs/x", "--batches=2", "--format=json"]
    output = run(tree, "-c", f"from pretrain.cli import main\nassert main({train}) == main({evaluate}) == 0")
    config = json.loads((tree / "runs" / "x" / "config.json").read_text())
    rows = 2 * config["evaluate"]["batch_size"]
    assert json.loads(output)["tokens"] == rows * config["data"]["length"] // 2


def test_extending_documents_its_keys(tree):
    run(tree, "docs/generate.py")
    assert "- `second_half`: " in (tree / "docs" / "configs.md").read_text()


def test_extending_names_existing_paths():
    for path in re.findall(r"`((?:configs|input_pipeline|models|pretrain|tests)/[a-z_/]+(?:\.py)?)`", PAGE):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("table", ["KINDS", "OBJECTIVES", "LAYOUT_SPECIAL", "OPTIMIZERS", "SCHEDULES"])
def test_extending_names_existing_tables(table):
    modules = [path.read_text() for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    assert f"`{table}`" in PAGE and any(re.search(rf"^{table}\b.* = ", module, re.MULTILINE) for module in modules)

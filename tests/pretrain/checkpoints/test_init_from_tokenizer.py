"""A run that begins with another's weights has that run's tokenizer, with all of its ids."""

import json
import subprocess

import pytest
from runs import ROOT, environment, launched, mostly

from input_pipeline import pipeline
from pretrain.cli import main

SMALL = {
    "train.steps": 1,
    "train.batch_size": 8,
    "evaluate.every": 0,
    "data.holdout": 0,
    "log.tensorboard": "false",
    "model.width": 16,
    "model.ff": 16,
    "model.layers": 1,
    "model.heads": 2,
    "data.length": 32,
    "tokenizer.train_bytes": 20_000,
    "tokenizer.vocab_size": 350,
}
FAMILIES = {
    "t5": {"model.head_size": 8, "model.vocab_size": 451},
    "bert": {"model.vocab_size": 450, "objective.max_predictions": 5, "schedule.warmup": 0},
}
KINDS = {"t5": "sentencepiece", "bert": "wordpiece"}


def start(family, workdir, source, command="train", **changes):
    keys = SMALL | FAMILIES[family] | {"data.train": source}
    keys |= {name.replace("__", "."): value for name, value in changes.items()}
    flags = [f"--config.{name}={value}" for name, value in keys.items() if value is not None]
    return main([command, f"--config=configs/{family}.py:mini_stdlib", f"--workdir={workdir}", *flags])


@pytest.fixture
def other(tmp_path):
    """Other text than the runs', as pairs of texts and as lines of one."""
    rows = [{"inputs": f"what is {i} and {i}?", "targets": str(2 * i)} for i in range(300)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = (f"Question {i} is said.\nIts answer is {2 * i}.\n\n" for i in range(300))
    (tmp_path / "lines.txt").write_text("".join(lines))
    return {
        "t5": f"jsonl:{tmp_path}/pairs.jsonl?fields=inputs,targets",
        "bert": f"text:{tmp_path}/lines.txt?document=blank_line",
    }


@pytest.mark.slow
@pytest.mark.parametrize("family", mostly(FAMILIES, "bert"))
def test_a_run_begins_with_another_on_other_text(family, text, other, tmp_path, capsys, signals):
    assert start(family, tmp_path / "x", f"text:{text}/*.py") == 0
    there = tmp_path / "x" / "tokenizer"
    kind = KINDS[family]
    (file,) = (path for path in there.iterdir() if path.stem == kind)
    begun = {"train__start_from": str(tmp_path / "x")}
    assert start(family, tmp_path / "itself", other[family], **begun) == 0
    said = capsys.readouterr().err
    assert f"taking the tokenizer in {there}\n" in said and "(100.0% of the values)" in said
    ways = {"folder": {"tokenizer__path": there}, "file": {"tokenizer__path": file}}
    ways["onward"] = {"train__start_from": str(tmp_path / "itself")}
    for name, way in ways.items():
        assert start(family, tmp_path / name, other[family], "prepare", **way) == 0
        tokenizer = pipeline.open_tokenizer(tmp_path / name / "tokenizer")
        assert tokenizer.fingerprint == pipeline.open_tokenizer(there).fingerprint
        assert len(tokenizer.sentinels) == (100 if family == "t5" else 0)


def test_a_tokenizer_that_the_model_cannot_read_is_not_taken(text, other, tmp_path, capsys):
    """So that the same command with another tokenizer is not in its way."""
    assert start("t5", tmp_path / "x", f"text:{text}/*.py", "prepare") == 0
    keys = {"tokenizer__path": tmp_path / "x" / "tokenizer", "model__vocab_size": 50}
    assert start("t5", tmp_path / "new", other["t5"], "prepare", **keys) == 2
    assert "config.model.vocab_size=50" in capsys.readouterr().err
    assert not pipeline.has_tokenizer(tmp_path / "new" / "tokenizer")


@pytest.mark.slow
def test_two_processes_take_it_alike(text, tmp_path, signals):
    """One makes the folder while the other waits for it."""
    assert start("t5", tmp_path / "x", f"text:{text}/*.py") == 0
    keys = SMALL | FAMILIES["t5"] | {"data.train": f"text:{text}/*.py", "train.start_from": tmp_path / "x"}
    flags = [f"--config.{name}={value}" for name, value in (keys | {"tokenizer.path": ""}).items()]
    line = ["train", "--config=configs/t5.py:mini_stdlib", f"--workdir={tmp_path}/y", *flags]
    done = subprocess.run(
        launched(tmp_path / "logs", *line), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    there, here = (json.loads((tmp_path / name / "tokenizer/made.json").read_text()) for name in "xy")
    assert here["checksum"] == there["checksum"]

"""A run that begins with another's weights has that run's tokenizer, with all of its ids."""

import json

import pytest

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
    "model.head_size": 8,
    "model.vocab_size": 451,
    "data.length": 32,
    "tokenizer.train_bytes": 20_000,
    "tokenizer.vocab_size": 350,
}


def start(workdir, source, command="train", **changes):
    keys = SMALL | {"data.train": source} | {name.replace("__", "."): value for name, value in changes.items()}
    flags = [f"--config.{name}={value}" for name, value in keys.items()]
    return main([command, "--config=configs/t5.py:mini_stdlib", f"--workdir={workdir}", *flags])


@pytest.fixture
def other(tmp_path):
    """Other text than the run's."""
    rows = [{"inputs": f"what is {i} and {i}?", "targets": str(2 * i)} for i in range(300)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"jsonl:{tmp_path}/pairs.jsonl?fields=inputs,targets"


@pytest.mark.slow
def test_a_run_begins_with_another_on_other_text(text, other, tmp_path, capsys, signals):
    assert start(tmp_path / "x", f"text:{text}/*.py") == 0
    there = tmp_path / "x" / "tokenizer"
    assert start(tmp_path / "itself", other, train__start_from=tmp_path / "x") == 0
    said = capsys.readouterr().err
    assert f"taking the tokenizer in {there}\n" in said and "(100.0% of the values)" in said
    ways = [{"tokenizer__path": there}, {"tokenizer__path": there / "sentencepiece.model"}]
    for number, way in enumerate([*ways, {"train__start_from": tmp_path / "itself"}]):
        assert start(tmp_path / str(number), other, "prepare", **way) == 0
        tokenizer = pipeline.open_tokenizer(tmp_path / str(number) / "tokenizer")
        assert tokenizer.fingerprint == pipeline.open_tokenizer(there).fingerprint
        assert len(tokenizer.sentinels) == 100


def test_a_tokenizer_that_the_model_cannot_read_is_not_taken(text, other, tmp_path, capsys):
    """So that the same command with another tokenizer is not in its way."""
    assert start(tmp_path / "x", f"text:{text}/*.py", "prepare") == 0
    keys = {"tokenizer__path": tmp_path / "x" / "tokenizer", "model__vocab_size": 50}
    assert start(tmp_path / "new", other, "prepare", **keys) == 2
    assert "config.model.vocab_size=50" in capsys.readouterr().err
    assert not pipeline.has_tokenizer(tmp_path / "new" / "tokenizer")

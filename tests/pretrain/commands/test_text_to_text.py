"""T5's recipe, small: trained, cut and resumed, evaluated, and asked for text."""

import json

import pytest
from runs import assert_same_leaves, leaves

from pretrain.main import main

STEPS = 4
SMALL = {
    "model.layers": 1,
    "model.width": 16,
    "model.ff": 32,
    "model.heads": 2,
    "model.head_size": 8,
    "data.length": 64,
    "tokenizer.train_bytes": 20_000,
    "train.steps": STEPS,
    "train.batch_size": 8,
    "checkpoint.every": 2,
    "checkpoint.keep": 9,
    "evaluate.every": STEPS,
    "evaluate.batches": 1,
    "evaluate.batch_size": 8,
    "log.tensorboard": "false",
}


def train(workdir, text, **changes):
    keys = SMALL | {"data.train": f"text:{text}/*.py"} | {name.replace("__", "."): v for name, v in changes.items()}
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    return main(["train", "--config=configs/t5.py:mini_stdlib", f"--workdir={workdir}", *flags])


@pytest.fixture
def run(tmp_path, text, signals):
    assert train(tmp_path / "run", text) == 0
    return tmp_path / "run"


def test_from_training_to_text(run, text, tmp_path, capsys):
    """One run that is cut in the middle ends as one that is not, to the last bit; then it is scored and writes."""
    assert train(tmp_path / "cut", text, train__steps=2, schedule__decay_steps=STEPS) == 0
    assert train(tmp_path / "cut", text) == 0
    assert_same_leaves(leaves(run, STEPS), leaves(tmp_path / "cut", STEPS))
    capsys.readouterr()
    assert main(["evaluate", f"--workdir={run}", "--format=json"]) == 0
    scored = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"loss", "accuracy", "perplexity"} <= {*scored}, scored
    for options in (["--temperature=0"], ["--beams=2"]):
        prompts = ["--prompt=def first():", "--prompt=import os"]
        assert main(["generate", f"--workdir={run}", "--format=json", "--max_tokens=6", *prompts, *options]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row["prompt"] for row in rows] == ["def first():", "import os"]
        assert all(row["tokens"] for row in rows)
    assert main(["generate", f"--workdir={run}", "--max_tokens=6", "--prompt=" + "word " * 400]) == 2
    assert "model.context" in capsys.readouterr().err

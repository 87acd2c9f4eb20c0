"""BERT and T5 as users run them: they train, go on bit-exactly, evaluate and are described."""

import json

import pytest
from runs import assert_same_leaves, leaves

from pretrain.main import main

SMALL = {
    "train.steps": 6,
    "train.batch_size": 8,
    "evaluate.every": 6,
    "evaluate.batches": 2,
    "evaluate.batch_size": 8,
    "checkpoint.every": 3,
    "checkpoint.keep": 9,
    "log.every": 1,
    "log.tensorboard": "false",
    "model.width": 32,
    "model.ff": 64,
    "model.layers": 1,
    "data.length": 32,
    "tokenizer.train_bytes": 100_000,
    "schedule.decay_steps": 6,
}
FAMILIES = {
    "bert": {
        "tokenizer.vocab_size": 400,
        "model.vocab_size": 400,
        "objective.max_predictions": 5,
        "schedule.warmup": 2,
    },
    "t5": {"tokenizer.vocab_size": 400, "model.vocab_size": 501},
}
MEASURES = {
    "bert": {"loss", "mlm", "mlm_accuracy", "nsp", "nsp_accuracy", "perplexity"},
    "t5": {"objective", "loss", "accuracy", "perplexity"},
}


def run(family, workdir, text, **changes):
    keys = SMALL | FAMILIES[family] | {"data.train": f"text:{text}/*.py"}
    keys |= {name.replace("__", "."): value for name, value in changes.items()}
    flags = [f"--config.{name}={value}" for name, value in keys.items()]
    return main(["train", f"--config=configs/{family}.py:mini_stdlib", f"--workdir={workdir}", *flags])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_and_goes_on_bit_exactly(family, text, tmp_path, capsys, signals):
    assert run(family, tmp_path / "whole", text) == 0
    assert run(family, tmp_path / "cut", text, train__steps=3) == 0
    assert run(family, tmp_path / "cut", text) == 0
    assert_same_leaves(leaves(tmp_path / "whole", 6), leaves(tmp_path / "cut", 6))
    (row,) = map(json.loads, (tmp_path / "whole/metrics/validation.jsonl").read_text().splitlines())
    assert MEASURES[family] <= row.keys()
    capsys.readouterr()
    assert main(["evaluate", f"--workdir={tmp_path / 'whole'}", "--batches=2", "--format=json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert {name: scores[name] for name in MEASURES[family]} == pytest.approx(
        {name: row[name] for name in MEASURES[family]}, rel=1e-5
    )
    assert main(["evaluate", f"--workdir={tmp_path / 'whole'}", "--gzip"]) == 2
    assert "predicts a part; leave it out" in capsys.readouterr().err

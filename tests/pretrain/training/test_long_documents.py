"""The recipes of long documents: their counts, and their tiny versions as users run them."""

import json
import math

import jax
import pytest
from runs import train_here

import models
from configs import long_documents

SMALL = {
    "train.steps": 2,
    "schedule.warmup": 0,
    "train.batch_size": 8,
    "evaluate.every": 2,
    "evaluate.batches": 1,
    "evaluate.batch_size": 8,
    "checkpoint.every": 2,
    "log.every": 1,
    "log.tensorboard": "false",
    "model.width": 32,
    "model.ff": 64,
    "model.context": 128,
    "data.length": 128,
    "model.attention": "('local_16','strided_16')",
    "tokenizer.train_bytes": 100_000,
    "tokenizer.vocab_size": 400,
}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", pytest.param("t5", marks=pytest.mark.slow)])
def test_long_documents_train(family, text, tmp_path, signals):
    options = {"recipe": f"configs/long_documents.py:{family}_tiny", "small": SMALL}
    assert train_here(tmp_path / "run", text, **options) == 0
    (row,) = map(json.loads, (tmp_path / "run/metrics/validation.jsonl").read_text().splitlines())
    assert 4 < row["loss"] < 9


DENSE = {
    "bert": (109_514_298, 512, 0),
    "t5": (222_903_552, 0, 33_024 - 32_128),
}  # count, positions, words that are more


@pytest.mark.parametrize("variant", [v for v in long_documents.VARIANTS if not v.endswith("tiny")])
def test_long_documents_parameter_counts(variant):
    config = long_documents.get_config(variant)
    family, length = variant.split("_")[0], config.data.length
    count, positions, words = DENSE[family]
    more = (length - positions if positions else 0) + words
    model = models.build(config.model.to_dict())
    shapes = jax.eval_shape(lambda key: model.init(key, **model.example()), jax.random.key(0))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == count + more * 768
    assert config.train.batch_size * length == (65_536 if family == "bert" else 1_048_576)

"""The model card of an exported folder: all of it, literally; what it says of imports; and that YAML reads it."""

import json
import os

import hub
import pytest
import yaml
from runs import SMALL, train_here

import pretrain
from pretrain.interop.hf_export import export_folder

GPT2 = SMALL | {"model.dropout_residual": 0, "model.context": 32, "data.length": 32, "tokenizer.path": ""}
GPT2 |= {"train.steps": 4, "train.batch_size": 8, "checkpoint.every": 2, "evaluate.every": 4, "schedule.warmup": 2}

CARD = """---
library_name: "transformers"
pipeline_tag: "text-generation"
tags:
- "longhaul"
- "gpt2"
- "causal"
---

# gpt2:small

A `GPT2LMHeadModel` of 6,880 parameters: `gpt2:small`, pretrained with Longhaul, after 4 of 4 updates. Its tokenizer \
has 257 entries.

| key of the config | value |
|---|---|
| `model.kind` | `decoder` |
| `model.layers` | `1` |
| `model.width` | `16` |
| `model.heads` | `2` |
| `model.ff` | `32` |
| `model.vocab_size` | `257` |
| `model.context` | `32` |
| `model.dtype` | `bfloat16` |
| `objective.coded` | `False` |
| `objective.kind` | `causal` |
| `objective.selects` | `loss` |
| `data.train` | `text:{text}/*.py` |
| `data.holdout` | `0.05` |
| `data.layout` | `concat` |
| `data.length` | `32` |
| `tokenizer.kind` | `bytes` |
| `train.steps` | `4` |
| `train.batch_size` | `8` |
| `train.label_smoothing` | `0.0` |
| `optimizer.b1` | `0.9` |
| `optimizer.b2` | `0.95` |
| `optimizer.bias_correction` | `True` |
| `optimizer.clip` | `1.0` |
| `optimizer.decay` | `matrices` |
| `optimizer.epsilon` | `1e-08` |
| `optimizer.name` | `adamw` |
| `optimizer.weight_decay` | `0.1` |
| `schedule.beneath_warmup` | `False` |
| `schedule.decay_steps` | `0` |
| `schedule.end` | `0.1` |
| `schedule.hold` | `0` |
| `schedule.kind` | `cosine` |
| `schedule.peak` | `0.0006` |
| `schedule.warmup` | `2` |
| `seed` | `0` |

## Validation

After 4 updates.

| measure | value |
|---|---|
| `loss` | `{loss:.6g}` |
| `perplexity` | `{perplexity:.6g}` |
| `bits_per_byte` | `{bits_per_byte:.6g}` |
| `tokens` | `{tokens:,}` |

## Fingerprints

| content | fingerprint |
|---|---|
| `tokenizer` | `bytes` |
| `text` | `{fingerprint}` |

## Use

```python
from transformers import AutoTokenizer, GPT2LMHeadModel

tokenizer = AutoTokenizer.from_pretrained("back")
model = GPT2LMHeadModel.from_pretrained("back")
```

## Made by

RUN is the run's folder, here `run`, whose `config.json` has the whole config.

```
pretrain train --workdir=RUN
pretrain export --workdir=RUN --folder=NEW --step=4
```
"""


def front_matter(card):
    begin, matter, body = card.split("---\n", 2)
    assert not begin and body.startswith("\n# ")
    return yaml.safe_load(matter)


@pytest.fixture(scope="module")
def run(text, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("card") / "run"
    assert train_here(workdir, text, recipe="configs/gpt2.py:small", small=GPT2) == 0
    return workdir


def test_the_card_of_a_run(run, text, tmp_path):
    pretrain.to_huggingface(run, tmp_path / "back")
    (row,) = map(json.loads, (run / "metrics/validation.jsonl").read_text().splitlines())
    fingerprint = json.loads((run / "checkpoints/4/data/metadata").read_text())["text"]
    card = (tmp_path / "back" / "README.md").read_text()
    assert card == CARD.format(**row, text=text, fingerprint=fingerprint)
    tags = ["longhaul", "gpt2", "causal"]
    assert front_matter(card) == {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": tags}
    pretrain.from_huggingface(tmp_path / "back", tmp_path / "again")  # the folder is what it was


def test_a_mean_of_checkpoints_and_one_without_figures(run, tmp_path):
    export_folder(str(run), str(tmp_path / "mean"), average=2)
    card = (tmp_path / "mean" / "README.md").read_text()
    assert "the mean of the weights after 2 and 4 of 4 updates" in card and "## Validation" not in card
    assert "pretrain export --workdir=RUN --folder=NEW --step=4 --average=2\n" in card
    export_folder(str(run), str(tmp_path / "early"), "2")
    card = (tmp_path / "early" / "README.md").read_text()
    assert "after 2 of 4 updates" in card and "## Validation" not in card


def test_a_name_that_is_not_utf8_costs_no_export(text, tmp_path):
    assert (
        train_here(tmp_path / "run", text, recipe="configs/gpt2.py:small", small=GPT2, name=os.fsdecode(b"a\xff")) == 0
    )
    pretrain.to_huggingface(tmp_path / "run", tmp_path / "back")
    assert r"a\udcff" in (tmp_path / "back" / "README.md").read_text()


def test_the_card_of_an_import_has_nothing_of_training(tmp_path):
    pretrain.from_huggingface(hub.make(tmp_path / "theirs", "electra"), tmp_path / "a | `b`")
    pretrain.to_huggingface(tmp_path / "a | `b`", tmp_path / "back")
    card = (tmp_path / "back" / "README.md").read_text()
    assert front_matter(card) == {"library_name": "transformers", "tags": ["longhaul", "electra"]}  # no plain task
    assert "`` electra:a \\| `b` ``, imported weights that no update of Longhaul has changed." in card
    assert "| `model.kind` | `replaced_tokens` |" in card
    assert not any(words in card for words in ("optimizer.", "schedule.", "data.", "## Validation", "pretrain train"))
    assert "pretrain export --workdir=RUN --folder=NEW --step=0\n" in card


def test_the_card_of_a_model_of_languages_says_how_it_is_told_of_them(tmp_path):
    """Whose class adds none to a text where it is not."""
    for case, called in (("xlm", False), ("xlm_languages", True)):
        pretrain.from_huggingface(hub.make(tmp_path / case, case), tmp_path / f"{case}-run")
        pretrain.to_huggingface(tmp_path / f"{case}-run", tmp_path / f"{case}-back")
        card = (tmp_path / f"{case}-back" / "README.md").read_text()
        assert ("logits = model(**inputs, langs=langs).logits\n```\n" in card) == called
        assert ('model.config.lang2id["0"])' in card) == called

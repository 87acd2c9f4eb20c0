"""Scores of real items, where a folder of them is at hand (LONGHAUL_DATA), computed again in float64."""

import json
import os

import numpy as np
import pytest

import pretrain
from pretrain.cli import main
from pretrain.scoring.task_table import task_named

FOLDER = os.environ.get("LONGHAUL_DATA", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="LONGHAUL_DATA names no folder of corpora")
ITEMS = 200
FILES = {"hellaswag": "hellaswag_1000/validation-1000.jsonl.gz", "lambada": "lambada_openai/test.jsonl.gz"}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_items_computed_again(whole, name, tmp_path, capsys):
    """Every choice as a row of its own, padded to the context, with log-probabilities and metrics in float64."""
    source = f"jsonl:{FOLDER}/zeroshot/{FILES[name]}"
    flags = [f"--tasks={name}", f"--data={name}:{source}", f"--limit={ITEMS}", f"--predictions={tmp_path}/out.jsonl"]
    assert main(["evaluate", f"--workdir={whole}", *flags, "--format=json"]) == 0
    (found,) = json.loads(capsys.readouterr().out.splitlines()[-1])["tasks"]
    run, task = pretrain.open(whole), task_named(name, {name: source})
    scorer, items = run.scorer(), task.items(source, ITEMS)
    rows = [scorer.score_rows.cut(scorer.row(request)) for item in items for request in task.requests(item, "")]
    sums = []
    for begin in range(0, len(rows), 64):
        some = rows[begin : begin + 64]
        tokens = np.zeros((len(some), run.model.context), np.int64)
        for tokens_of_row, row in zip(tokens, some, strict=True):
            tokens_of_row[: len(row.ids) - 1] = row.ids[:-1]
        logits = np.asarray(run.logits(tokens), np.float64)
        logits -= np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True)) + logits.max(
            -1, keepdims=True
        )
        for row, scores in zip(some, logits, strict=True):
            sums.append(float(scores[np.arange(row.start - 1, len(row.ids) - 1), row.ids[row.start :]].sum()))
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    np.testing.assert_allclose([x for row in written for x in row["log_likelihoods"]], sums, rtol=1e-5, atol=1e-4)
    if name == "lambada":
        assert found["perplexity"] == pytest.approx(np.exp(-np.mean(sums)), rel=1e-4)
        return
    by_item = np.array(sums).reshape(ITEMS, 4)
    lengths = np.array([[len(choice) for _, choice in item.pairs] for item in items])
    right = np.array([item.answer for item in items])
    assert found["acc"] == pytest.approx(np.mean(by_item.argmax(1) == right))
    assert found["acc_norm"] == pytest.approx(np.mean((by_item / lengths).argmax(1) == right))

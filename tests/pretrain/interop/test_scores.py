"""Likelihoods of texts against the logits of each row by itself, for every kind of model."""

import json
import shutil
from typing import ClassVar

import numpy as np
import pytest
from runs import mostly

import pretrain
from pretrain.cli import main
from pretrain.errors import UserError
from pretrain.scoring.cached_likelihood import CachedLikelihood
from pretrain.scoring.likelihood import PackedLikelihood
from pretrain.scoring.requests import Request
from pretrain.tasks.predictions import softmax

GROUPS = [
    [Request("the cat sat", choice) for choice in (" on", " 456", " and the dog")],
    [Request("numbers ", "1, 23"), Request("numbers and", " words.")],
    [Request("a reader", " reads;")],
]
SLOW = ("t5", "llama", "bart", "electra_masked", "xlm")
CASES = mostly(("gpt2", "bert_masked", *SLOW), *SLOW)


def log_probs(logits, ids):
    """Float64 log-probabilities of ids [n] by logits [n, V], and whether each is the likeliest."""
    logits = np.asarray(logits, np.float64)
    numbers = logits - logits.max(1, keepdims=True)
    numbers -= np.log(np.exp(numbers).sum(1, keepdims=True))
    return numbers[np.arange(len(ids)), ids], logits.argmax(1) == ids


def alone(run, scorer, request):
    """The scores of one request from the logits of whole rows."""
    row = scorer.score_rows.cut(scorer.row(request))
    if scorer.reads_source:
        (begun,), source, _ = run.prompts([request.context])
        ids = [*begun, *run.tokenizer.encode(request.continuation.lstrip())]
        if "classifier" in run.tokenizer.special:  # BART's targets are <s> text </s>, shifted right
            ids.insert(1, run.tokenizer.special["classifier"])
        assert row.ids.tolist() == ids
        return log_probs(run.logits(row.ids[:-1], **source)[row.start - 1 :], row.ids[row.start :])
    if not scorer.masked:
        return log_probs(run.logits(row.ids[:-1])[row.start - 1 :], row.ids[row.start :])
    frame = scorer.score_rows.frame
    found = []
    for place in range(row.start, len(row.ids)):
        ids, types = np.zeros((2, len(row.ids) + frame.size(1)), np.int64)
        frame.fill([row.ids], ids, types)
        ids[frame.before + place] = run.tokenizer.special["mask"]
        model, params = run.model, run.variables
        if model.has_discriminator:
            hidden = model.apply(params, ids[None], method="generate").hidden
            states, matrix, bias = model.apply(params, hidden, method="generator_inputs")
            logits = states[0] @ matrix.T + bias
        else:
            logits = run.logits(ids)
        found.append(log_probs(logits[frame.before + place][None], row.ids[place : place + 1]))
    return tuple(np.concatenate(one) for one in zip(*found, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_each_row_alone(imported, case):
    """However rows are batched; on eight devices, over which the parameters are split, and on one."""
    _, workdir = imported(case)
    for devices, tokens in ((None, 0), (1, 64)):
        run = pretrain.open(workdir, devices=None if devices is None else jax_devices(devices))
        scorer = run.scorer(tokens=tokens)
        for group, scored in zip(GROUPS, scorer.score(GROUPS), strict=True):
            for request, one in zip(group, scored, strict=True):
                expected, greedy = alone(run, scorer, request)
                np.testing.assert_allclose(one.log_probs, expected, atol=1e-5, rtol=1e-5)
                assert one.greedy.tolist() == greedy.tolist()


def jax_devices(number):
    import jax

    return jax.devices()[:number]


@pytest.mark.parametrize("case", ["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def test_packed_rows_score_as_cached_ones(imported, case):
    """Groups of one batch and of several, one of them longer than the context; learned and rotary positions."""
    run = pretrain.open(imported(case)[1])
    long = [Request("the cat and the dog sat on the mat " * 3, " and the dog" * n) for n in range(1, 6)]
    groups = [*GROUPS, long, *[[Request("the cat " * n, "sat")] for n in range(1, 12)]]
    for tokens in (0, 64):
        packed = run.scorer(tokens=tokens)
        assert isinstance(packed.score_rows, PackedLikelihood)
        own = packed.score_rows
        cached = CachedLikelihood(own.model, own.params, own.layout, tokens=tokens or 512)
        rows = [[packed.row(request) for request in group] for group in groups]
        for group, other in zip(packed.score_rows(rows), cached(rows), strict=True):
            for one, two in zip(group, other, strict=True):
                np.testing.assert_allclose(one.log_probs, two.log_probs, atol=1e-5)
                assert one.greedy.tolist() == two.greedy.tolist()


def test_windows_score_every_token_once(imported):
    """A text of 3.4 contexts: the last window reads a whole context, the others begin with one token."""
    run = pretrain.open(imported("gpt2")[1])
    context = run.model.context
    text = "the cat and the dog sat between words. " * 20
    ids = np.concatenate([[run.tokenizer.end_id], run.tokenizer.encode(text)])
    assert len(ids) > 3.4 * context
    (found,) = run.score([text], tokens=True)
    assert found["tokens"] == len(ids) - 1 and "".join(found["pieces"]) == text
    expected = []
    for begin in range(0, len(ids) - 1, context):
        end = min(begin + context, len(ids) - 1)
        first = max(0, end - context)
        rows, _ = log_probs(run.logits(ids[first:end]), ids[first + 1 : end + 1])
        expected += rows[begin - first :].tolist()
    np.testing.assert_allclose(found["log_probs"], expected, atol=1e-5, rtol=1e-5)
    assert found["nats"] == pytest.approx(-sum(expected)) and found["words"] == len(text.split())
    assert found["bits_per_byte"] == pytest.approx(found["nats"] / np.log(2) / len(text.encode()))


def test_contexts_longer_than_the_model_lose_their_beginning(imported):
    run = pretrain.open(imported("gpt2")[1])
    scorer = run.scorer()
    request = Request("the cat and the dog " * 40, "sat")
    ((scored,),) = scorer.score([[request]])
    ids = scorer.row(request).ids[-run.model.context - 1 :]
    expected, _ = log_probs(run.logits(ids[:-1]), ids[1:])
    np.testing.assert_allclose(scored.log_probs, expected[-len(scored.log_probs) :], atol=1e-5)
    assert scorer.cut == 2  # once scored, once asked here


def test_pieces_behind_a_scored_one_are_masked_within_its_word(imported):
    run = pretrain.open(imported("bert_masked")[1])
    special, text = run.tokenizer.special, "the writers sat"
    ids = run.tokenizer.encode(text)
    assert run.tokenizer.continues[ids].any()
    (found,) = run.score([text], tokens=True, within_word=True)
    for place, score in enumerate(found["log_probs"]):
        row = np.array([special["classifier"], *ids, special["separator"]])
        end = place + 1
        while end < len(ids) and run.tokenizer.continues[ids[end]]:
            end += 1
        row[1 + place : 1 + end] = special["mask"]
        expected, _ = log_probs(run.logits(row)[1 + place][None], ids[place : place + 1])
        assert score == pytest.approx(expected[0], abs=1e-5)
    assert run.score([text])[0]["nats"] != pytest.approx(found["nats"], abs=1e-3)


def test_masks_are_filled_by_the_likeliest_pieces(imported):
    run = pretrain.open(imported("bert_masked")[1])
    first, second = run.fill("the [MASK] sat on the [MASK].", top=3)
    ids = np.concatenate([run.tokenizer.encode(part) for part in ("the", "sat on the", ".")])
    special = run.tokenizer.special
    rows = [[special["classifier"]]]
    for number, part in enumerate(("the", "sat on the", ".")):
        rows += [[special["mask"]]] * bool(number) + [run.tokenizer.encode(part)]
    ids = np.concatenate([*rows, [special["separator"]]])
    places = np.flatnonzero(ids == special["mask"])
    probabilities = softmax(np.asarray(run.logits(ids))[places])
    for gap, row in zip((first, second), probabilities, strict=True):
        best = np.argsort(-row)[:3]
        assert [one.text for one in gap] == [run.tokenizer.decode([i]).strip() or f"<{i}>" for i in best]
        np.testing.assert_allclose([one.probability for one in gap], row[best], rtol=1e-4)


def test_sentinels_are_filled_by_what_t5_writes(imported):
    run = pretrain.open(imported("t5")[1])
    gaps = run.fill("the <extra_id_0> sat on <extra_id_1>.")
    assert len(gaps) == 2 and all(len(gap) == 1 and 0 < gap[0].probability <= 1 for gap in gaps)
    assert run.fill("the [MASK] sat on <mask>.") == gaps


@pytest.mark.slow
def test_tasks_before_one_that_the_model_cannot_do_are_kept(imported, tmp_path, capsys):
    """BLiMP has no context for T5's encoder."""
    workdir = tmp_path / "run"
    shutil.copytree(imported("t5")[1], workdir)
    rows = {"piqa": {"goal": "the cat", "sol1": "sat", "sol2": "reads", "label": 0}}
    rows["blimp"] = {"sentence_good": "the cat", "sentence_bad": "cat the", "UID": "a"}
    flags = ["--tasks=piqa,blimp", f"--predictions={tmp_path}/rows.jsonl"]
    for name, row in rows.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
        flags.append(f"--data={name}:jsonl:{tmp_path}/{name}.jsonl")
    assert main(["evaluate", f"--workdir={workdir}", *flags]) == 2
    assert "encoder needs a text" in capsys.readouterr().err
    (kept,) = (workdir / "scores").iterdir()
    assert [one["task"] for one in json.loads(kept.read_text())["tasks"]] == ["piqa"]
    assert [json.loads(line)["task"] for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == ["piqa"]


def test_models_without_likelihoods_are_refused(imported):
    run = pretrain.open(imported("xlnet")[1])
    with pytest.raises(UserError, match="likelihood"):
        run.score(["the cat"])
    with pytest.raises(UserError, match="gap"):
        run.fill("the cat")


def test_pieces_that_span_context_and_continuation_are_scored(imported):
    """Pieces of phrases join words: what the context and the whole text begin with alike is the context."""
    run = pretrain.open(imported("gpt2")[1])
    scorer = run.scorer()

    class Phrases:
        special, end_id, vocab_size = run.tokenizer.special, run.tokenizer.end_id, run.tokenizer.vocab_size
        ids: ClassVar = {"a b c": [5, 6], "a b": [5, 7, 8]}  # "b c" is one piece

        def encode(self, text):
            return np.array(self.ids[text], np.int32)

    scorer.tokenizer = Phrases()
    row = scorer.row(Request("a b", " c"))
    assert row.ids.tolist() == [5, 6] and row.start == 1

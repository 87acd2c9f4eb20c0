"""Pairs of texts: several in a row, each apart from the others, and both sides cut alike."""

import itertools
import json

import numpy as np
import pytest
from read_batches import take

from input_pipeline.errors import DataError
from input_pipeline.packing import seq2seq

SPANS = {"kind": "spans", "density": 0.3, "mean_span": 2.0}  # rows of 32 and 18 tokens
BYTES = {"kind": "bytes", "sentinels": 20}


def rows_of(plan):
    return [plan.documents[a:b].tolist() for a, b in itertools.pairwise(plan.first.tolist())]


def test_pack_literal():
    # With their end tokens: (5, 3) (6, 2) (4, 4) (5, 3) and one that is cut to (10, 6).
    plan = seq2seq.pack(np.array([(4, 2), (5, 1), (3, 3), (4, 2), (30, 30)]), (10, 6))
    assert rows_of(plan) == [[0, 3], [1, 2], [4]]


def test_pack_fills_rows(monkeypatch):
    monkeypatch.setattr(seq2seq, "OPEN", 8)
    draw = np.random.default_rng(0)
    sizes = draw.integers(1, [20, 12], (500, 2))
    plan = seq2seq.pack(sizes, (40, 30))
    assert sorted(plan.documents.tolist()) == list(range(500))
    held = [np.minimum(sizes[row] + 1, (40, 30)).sum(0) for row in rows_of(plan)]
    assert (np.array(held) <= (40, 30)).all() and np.mean(held, axis=0)[0] > 0.85 * 40


@pytest.fixture
def records(write):
    """Forty pairs: a question of some letters, and as many letters in capitals."""
    made = [{"q": "upper: " + "abcdefghijk"[: 1 + n % 9], "a": "ABCDEFGHIJK"[: 1 + n % 9]} for n in range(40)]
    return write("pairs.jsonl", "".join(json.dumps(record) + "\n" for record in made))


def pairs_of(corpus, batch):
    """(read, written, read by the decoder) of every pair of a batch, as ids."""
    for row in range(len(batch["row"])):
        for segment in range(1, batch["segments"][row].max(initial=0) + 1):
            inside, there = batch["input_segments"][row] == segment, batch["segments"][row] == segment
            assert (batch["input_positions"][row][inside] == np.arange(inside.sum())).all()
            assert (batch["positions"][row][there] == np.arange(there.sum())).all()
            yield [batch[name][row][here].tolist() for name, here in zip(SIDES, (inside, there, there), strict=True)]


def decoded(corpus, batch):
    """(read, written) of every pair of a batch, as text."""
    return [tuple(map(corpus.tokenizer.decode, pair[:2])) for pair in pairs_of(corpus, batch)]


SIDES = ("inputs", "targets", "tokens")


def test_texts_are_read_and_written(prepare, records):
    corpus = prepare(f"jsonl:{records}?fields=q,a", tokenizer=BYTES, objective=SPANS, length=32)
    end, start = corpus.tokenizer.special["end"], corpus.tokenizer.special["pad"]
    (batch,) = take(corpus, 1, batch_size=6)
    assert batch["segments"].max() > 1
    for read, written, before in pairs_of(corpus, batch):
        assert read[-1] == written[-1] == end and before == [start, *written[:-1]]
        question, answer = corpus.tokenizer.decode(read), corpus.tokenizer.decode(written)
        assert question.removeprefix("upper: ").upper() == answer
    assert (batch["weights"] == (batch["segments"] > 0)).all()


def test_mixture_corrupts_only_text(prepare, records, words):
    source = f"{words(20)} + jsonl:{records}?fields=q,a"
    corpus = prepare(source, tokenizer=BYTES, objective=SPANS, length=32, weights=(0.5, 0.5))
    batches = take(corpus, 4, batch_size=6)
    sentinel = np.isin(np.concatenate([batch["inputs"] for batch in batches]), corpus.tokenizer.sentinels).any(1)
    assert sentinel.mean() == 0.5
    scored = list(corpus.evaluation("train", length=32, stride=0, batch_size=6).batches())
    written = [tuple(pair[1]) for batch in scored for pair in pairs_of(corpus, batch)]
    assert sum(len(targets) == 2 for targets in written) == 5  # one letter and an end
    assert len(written) > 40


def test_texts_are_cut_before_their_end_token(prepare, write):
    path = write("long.jsonl", json.dumps({"q": "a" * 100, "a": "b" * 100}) + "\n")
    corpus = prepare(f"jsonl:{path}?fields=q,a", tokenizer=BYTES, objective=SPANS, length=32)
    (batch,) = take(corpus, 1, batch_size=6)
    end = corpus.tokenizer.special["end"]
    assert batch["inputs"][0].tolist() == [97] * 31 + [end]
    assert batch["targets"][0, -1] == end and (batch["targets"][0, :-1] == 98).all()


@pytest.mark.parametrize(
    "options",
    [{"objective": {"kind": "translation"}, "layout": "texts"}, {"objective": SPANS, "tokenizer": BYTES}],
    ids=("translation", "mixture"),
)
def test_pairs_with_an_empty_text_are_left_out(options, prepare, write):
    made = [("a", "b"), ("", "c" * 99), ("d" * 99, ""), ("e", "f"), ("g", "h")]
    path = write("some.jsonl", "".join(json.dumps({"q": q, "a": a}) + "\n" for q, a in made))
    options = options | {"length": 32}
    corpus = prepare(f"jsonl:{path}?fields=q,a", **options)
    assert set(decoded(corpus, *take(corpus, 1, batch_size=6))) == {("a", "b"), ("e", "f"), ("g", "h")}
    for limit, targets in ((0, ["b", "f", "h"]), (2, ["b", "f"])):  # nor are they decoded
        (task,) = corpus.tasks("train", length=32, batch_size=2, limit=limit).values()
        batches = list(task.batches())
        assert [corpus.tokenizer.decode(ids) for _, some in batches for ids in some] == targets
        assert [q + a for batch, _ in batches for q, a in decoded(corpus, batch)] == ["ab", "ef", "gh"][: len(targets)]
        assert task.examples == len(targets)
    path = write("none.jsonl", json.dumps({"q": "a", "a": ""}) + "\n")
    with pytest.raises(DataError, match=r"data\.length"):
        prepare(f"jsonl:{path}?fields=q,a", **options)


@pytest.mark.parametrize("task", [SPANS, SPANS | {"noise": "prefix"}, {"kind": "denoising", "noise": "masking"}])
def test_windows_without_end_tokens_do_not_overlap(prepare, words, task):
    """Each would have its end scored again."""
    corpus = prepare(words(20), tokenizer=BYTES, objective=task, length=32)
    with pytest.raises(DataError, match=r"evaluate\.stride=16"):
        corpus.evaluation("train", length=32, stride=16, batch_size=2)
    assert len(corpus.evaluation("train", length=32, stride=32, batch_size=2))


def test_mixture_weighs_examples_not_rows(prepare, write):
    """Two tasks of forty pairs each, of which two or many share a row: in an epoch's rows each pair comes as often."""
    tasks = []
    for name, length in (("a", 2), ("b", 24)):
        made = [{"q": name * length, "a": name} for _ in range(40)]
        tasks.append(write(f"{name}.jsonl", "".join(json.dumps(record) + "\n" for record in made)))
    source = " + ".join(f"jsonl:{path}?fields=q,a" for path in tasks)
    corpus = prepare(source, tokenizer=BYTES, objective=SPANS, length=32)
    found = [
        corpus.tokenizer.decode(read)[0]
        for batch in take(corpus, 40, batch_size=6)
        for read, *_ in pairs_of(corpus, batch)
    ]
    assert abs(found.count("a") / found.count("b") - 1) < 0.05

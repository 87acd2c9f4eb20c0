"""Pairs of texts: several in a row, each apart from the others, and both sides cut alike; translations in one row."""

import itertools
import json

import numpy as np
import pytest
from read_batches import restore_masked, take

from input_pipeline.errors import DataError
from input_pipeline.packing import seq2seq

SPANS = {"kind": "spans", "density": 0.3, "mean_span": 2.0}  # rows of 32 and 18 tokens
BYTES = {"kind": "bytes", "sentinels": 20}
SIDES = ("inputs", "targets", "tokens")
END = 256  # of the tokenizer of bytes


def rows_of(plan):
    return [plan.row(number) for number in range(len(plan.first) - 1)]


def test_pack_literal():
    # The fourth fits the first row, the last is cut to the row, and one has an empty text.
    plan = seq2seq.pack(np.array([(5, 3), (6, 2), (4, 4), (5, 3), (0, 0), (31, 31)]), (10, 6))
    assert rows_of(plan) == [[0, 3], [1, 2], [5]]


def test_pack_fills_rows(monkeypatch):
    monkeypatch.setattr(seq2seq, "OPEN", 8)
    needs = np.random.default_rng(0).integers(2, [21, 13], (500, 2))
    plan = seq2seq.pack(needs, (40, 30))
    assert sorted(plan.documents.tolist()) == list(range(500))
    held = np.array([needs[row].sum(0) for row in rows_of(plan)])
    assert (held <= (40, 30)).all() and held[:, 0].mean() > 0.85 * 40


@pytest.fixture
def jsonl(write):
    """`jsonl(pairs)`: the source of pairs of texts."""

    def jsonl(pairs, name="pairs.jsonl", fields="q,a"):
        records = (json.dumps(dict(zip(fields.split(","), pair, strict=True))) for pair in pairs)
        return f"jsonl:{write(name, ''.join(record + chr(10) for record in records))}?fields={fields}"

    return jsonl


@pytest.fixture
def letters(jsonl):
    """Forty pairs: some letters, and the same letters in capitals."""
    return jsonl(("upper: " + "abcdefghijk"[: 1 + n % 9], "ABCDEFGHIJK"[: 1 + n % 9]) for n in range(40))


def pairs_of(batch):
    """(read, written, read by the decoder) of every pair of a batch, as ids."""
    for row in range(len(batch["row"])):
        for segment in range(1, batch["segments"][row].max(initial=0) + 1):
            inside, there = batch["input_segments"][row] == segment, batch["segments"][row] == segment
            assert (batch["input_positions"][row][inside] == np.arange(inside.sum())).all()
            assert (batch["positions"][row][there] == np.arange(there.sum())).all()
            yield [batch[name][row][here].tolist() for name, here in zip(SIDES, (inside, there, there), strict=True)]


def decoded(corpus, batch):
    """(read, written) of every pair of a batch, as text."""
    return [tuple(map(corpus.tokenizer.decode, pair[:2])) for pair in pairs_of(batch)]


def test_texts_are_read_and_written(prepare, letters):
    corpus = prepare(letters, tokenizer=BYTES, objective=SPANS, length=32)
    end, start = corpus.tokenizer.special["end"], corpus.tokenizer.special["pad"]
    (batch,) = take(corpus, 1, batch_size=6)
    assert batch["segments"].max() > 1
    for read, written, before in pairs_of(batch):
        assert read[-1] == written[-1] == end and before == [start, *written[:-1]]
    for question, answer in decoded(corpus, batch):
        assert question.removeprefix("upper: ").upper() == answer
    assert (batch["weights"] == (batch["segments"] > 0)).all()


def test_mixture_corrupts_only_text(prepare, letters, words):
    corpus = prepare(f"{words(20)} + {letters}", tokenizer=BYTES, objective=SPANS, length=32, weights=(0.5, 0.5))
    inputs = np.concatenate([batch["inputs"] for batch in take(corpus, 4, batch_size=6)])
    assert np.isin(inputs, corpus.tokenizer.sentinels).any(1).mean() == 0.5
    scored = corpus.evaluation("train", length=32, stride=0, batch_size=6).batches()
    written = [tuple(pair[1]) for batch in scored for pair in pairs_of(batch)]
    assert sum(len(targets) == 2 for targets in written) == 5  # one letter and an end
    assert len(written) > 40


def test_texts_are_cut_before_their_end_token(prepare, jsonl):
    corpus = prepare(jsonl([("a" * 100, "b" * 100)]), tokenizer=BYTES, objective=SPANS, length=32)
    (batch,) = take(corpus, 1, batch_size=6)
    end = corpus.tokenizer.special["end"]
    assert batch["inputs"][0].tolist() == [97] * 31 + [end]
    assert batch["targets"][0, -1] == end and (batch["targets"][0, :-1] == 98).all()


def test_pairs_with_an_empty_text_are_left_out(prepare, jsonl):
    options = {"objective": {"kind": "translation"}, "layout": "texts", "length": 32}
    corpus = prepare(jsonl([("a", "b"), ("", "c" * 99), ("d" * 99, ""), ("e", "f"), ("g", "h")]), **options)
    assert set(decoded(corpus, *take(corpus, 1, batch_size=6))) == {("a", "b"), ("e", "f"), ("g", "h")}
    for limit, targets in ((0, ["b", "f", "h"]), (2, ["b", "f"])):  # nor are they decoded
        (task,) = corpus.tasks("train", length=32, batch_size=2, limit=limit).values()
        batches = list(task.batches())
        assert [corpus.tokenizer.decode(ids) for _, some in batches for ids in some] == targets
        assert [q + a for batch, _ in batches for q, a in decoded(corpus, batch)] == ["ab", "ef", "gh"][: len(targets)]
        assert task.examples == len(targets)
    with pytest.raises(DataError):
        prepare(jsonl([("a", "")], "none.jsonl"), **options)


def test_mixture_weighs_examples_not_rows(prepare, jsonl):
    """Two tasks of forty pairs each, of which two or many share a row: in an epoch's rows each pair comes as often."""
    tasks = [jsonl([(name * length, name)] * 40, f"{name}.jsonl") for name, length in (("a", 2), ("b", 24))]
    corpus = prepare(" + ".join(tasks), tokenizer=BYTES, objective=SPANS, length=32)
    read = [question[0] for batch in take(corpus, 40, batch_size=6) for question, _ in decoded(corpus, batch)]
    assert abs(read.count("a") / read.count("b") - 1) < 0.05


XLM = {
    "objective": {"kind": "masked", "next_sentence": False, "languages": True, "rounding": "coins"},
    "length": 40,
    "shuffle": False,
    "languages": ("en", "fr"),
}
XLM["objective"]["candidates"] = "after_first"
PAIRS = [("a dog", "un chien"), ("it sleeps", "il dort"), ("a cat sees a dog", "un chat voit un chien")]


@pytest.fixture
def corpora(write, jsonl):
    """Sources of a text of each language, and of translations."""
    texts = {"en": "the dog number {} sleeps\n", "fr": "le chien {} dort\n"}
    paths = {name: write(f"{name}.txt", "".join(map(text.format, range(40)))) for name, text in texts.items()}
    alone = [f"text:{path}?document=line&language={name}" for name, path in paths.items()]
    return [*alone, jsonl(PAIRS, fields="en,fr")]


def test_translations_literal(prepare, corpora):
    """</s> A </s></s> B </s>, each with positions from 0; pairs share a row as segments."""
    (batch,) = take(prepare(corpora[2], **XLM), 1, batch_size=2)
    found, names = {}, ("segments", "positions", "languages")
    for tokens, segments, *marks in zip(restore_masked(batch), *(batch[name] for name in names), strict=True):
        for segment in range(1, segments.max() + 1):
            here = segments == segment
            found[tuple(tokens[here].tolist())] = [mark[here].tolist() for mark in marks]
        assert not tokens[segments == 0].any() and not marks[1][segments == 0].any()
    whole = set()
    for a, b in PAIRS[:2]:
        one, other = len(a) + 2, len(b) + 2
        row = (END, *a.encode(), END, END, *b.encode(), END)
        assert found[row] == [[*range(one), *range(other)], [0] * one + [1] * other]
        whole.add(row)
    (cut,) = found.keys() - whole
    assert len(cut) == 40 and cut[0] == cut[-1] == END  # of which the longer text has lost its end


@pytest.mark.parametrize(
    ("sizes", "expected"), [((3, 4, 9), (3, 4)), ((9, 4, 10), (6, 4)), ((4, 9, 10), (4, 6)), ((9, 9, 11), (6, 5))]
)
def test_truncate_literal(sizes, expected):
    assert seq2seq.truncate(*sizes) == expected


def languages_of(batch):
    """Languages of each row of a batch."""
    rows = zip(batch["languages"], batch["segments"], strict=True)
    return [tuple(sorted(set(marks[used > 0].tolist()))) for marks, used in rows]


def test_rows_have_the_language_of_their_source(prepare, corpora):
    (batch,) = take(prepare(" + ".join(corpora), **XLM, weights=(1.0, 1.0, 2.0)), 1, batch_size=64)
    found = languages_of(batch)
    for tokens, own in zip(restore_masked(batch), found, strict=True):
        assert len(own) == 2 or (b"chien" in bytes(int(i) for i in tokens if i < END)) == (own == (1,))
    for own, count in {(0,): 16, (1,): 16, (0, 1): 32}.items():  # shares are kept to within one example
        assert abs(found.count(own) - count) <= 1


def test_evaluation_marks_languages(prepare, corpora):
    french, both = corpora[1:]
    corpus = prepare(f"{corpora[0]} + {both}", validation=french, **XLM)
    scored = corpus.evaluation("validation", length=40, stride=0, batch_size=4)
    assert set(itertools.chain.from_iterable(map(languages_of, scored.batches()))) - {()} == {(1,)}
    scored = corpus.evaluation("train", length=40, stride=0, batch_size=4)
    assert set(itertools.chain.from_iterable(map(languages_of, scored.batches()))) - {()} == {(0,), (0, 1)}

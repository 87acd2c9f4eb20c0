"""Batch n is a function of (seed, n): the same on any number of hosts and workers, from any start."""

import json
import random

import numpy as np
import pytest
from read_batches import assert_equal, take

SENTINELS = {"kind": "bytes", "sentinels": 20}
PIECES = {"kind": "sentencepiece", "vocab_size": 300, "train_bytes": 100_000}
REUSE = {"kind": "permutation", "reuse": 16, "perm_size": 16, "predictions": 6}
CASES = {
    "concat": {"layout": "concat"},
    "packed": {"layout": "packed"},
    "stream": {"layout": "stream"},
    "document": {"layout": "document"},
    "pairs": {"layout": "pairs", "sentences": "lines", "length": 48, "objective": {"kind": "masked", "passes": 2}},
    "spans": {"objective": {"kind": "spans"}, "tokenizer": SENTINELS, "length": 32},
    "texts": {"objective": {"kind": "translation"}, "layout": "texts", "length": 32},
    "segments": {"objective": REUSE, "tokenizer": PIECES, "layout": "stream", "sentences": "lines", "length": 48},
}


@pytest.fixture
def make_corpus(prepare, write, words):
    """`make_corpus(case)`: the corpus of one of CASES, of two sources."""

    def write_source(case: str, name: str, number: int) -> str:
        draw = random.Random(name)
        if case == "document":  # each of one row
            texts = ["".join(draw.choice("abcd") for _ in range(16)) for _ in range(number)]
            paths = [write(f"{name}/{index:03d}.txt", text) for index, text in enumerate(texts)]
            return f"text:{paths[0].rsplit('/', 1)[0]}/*.txt"
        if case == "texts":
            pairs = [{"q": "q" * draw.randint(1, 9), "a": "a" * draw.randint(1, 9)} for _ in range(number)]
            return f"jsonl:{write(name + '.jsonl', chr(10).join(map(json.dumps, pairs)))}?fields=q,a"
        return words(number, folder=name)

    def make_corpus(case: str):
        return prepare(
            f"{write_source(case, 'one', 30)} + {write_source(case, 'two', 20)}", **{"length": 16} | CASES[case]
        )

    return make_corpus


@pytest.mark.parametrize("case", CASES)
def test_batches_depend_on_seed_and_number_alone(make_corpus, case):
    corpus = make_corpus(case)
    whole = take(corpus, 8)
    assert_equal(take(corpus, 8), whole)
    assert_equal(take(corpus, 3, start=5, prefetch=0), whole[5:])
    rows = np.array([6, 1, 3])
    part = take(corpus, 8, rows=rows, prefetch=5)
    assert_equal(part, [{name: value[rows] for name, value in batch.items()} for batch in whole])
    with pytest.raises(AssertionError):
        assert_equal(take(corpus, 8, seed=1), whole)


def test_worker_processes_give_equal_batches(make_corpus):
    corpus = make_corpus("pairs")
    assert_equal(take(corpus, 4, workers=2, start=3, prefetch=4), take(corpus, 4, start=3))


@pytest.mark.parametrize("case", ["packed", "pairs"])
def test_evaluation_is_independent_of_batch_size(make_corpus, case):
    corpus, passes = make_corpus(case), []
    for size in (4, 7):
        scored = corpus.evaluation("train", length=CASES[case].get("length", 16), stride=0, batch_size=size)
        batches = list(scored.batches())
        rows = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0] if name != "row"}
        passes.append(rows)
    number = min(len(rows["weights"]) for rows in passes)
    assert number > 10
    for name, values in passes[0].items():
        np.testing.assert_array_equal(values[:number], passes[1][name][:number])
        assert not values[number:].any() and not passes[1][name][number:].any()  # padding

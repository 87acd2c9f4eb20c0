"""Training batches: literal tables of layouts, epochs and mixtures."""

import itertools

import numpy as np
import pytest
from read_batches import take

from configs import common
from input_pipeline.batching.train import BatchContext, StreamBatches
from input_pipeline.corruption.causal import CausalLM
from input_pipeline.errors import DataError

END = 256


@pytest.fixture
def abc(write):
    """Three documents: "abcd", "ef", "ghijklm"."""
    for name, text in zip("123", ("abcd", "ef", "ghijklm"), strict=True):
        path = write(f"abc/{name}.txt", text)
    return f"text:{path[:-5]}*.txt"


def letters(ids) -> str:
    return "".join("|" if token == END else chr(token) if token else "." for token in ids)


def digits(values) -> str:
    return "".join(str(int(value)) for value in values)


def test_concat_literal(prepare, abc):
    (batch,) = take(prepare(abc, length=5, shuffle=False), 1, batch_size=3)
    assert [letters(row) for row in batch["tokens"]] == ["|abcd", "|ef|g", "hijkl"]
    assert [letters(row) for row in batch["targets"]] == ["abcd|", "ef|gh", "ijklm"]
    assert (batch["segments"] == 1).all() and (batch["weights"] == 1).all()
    assert (batch["positions"] == np.arange(5)).all()


def test_packed_literal(prepare, abc):
    (batch,) = take(prepare(abc, length=8, layout="packed", shuffle=False), 1, batch_size=2)
    assert [letters(row) for row in batch["tokens"]] == ["|ghijklm", "|abcd|ef"]
    assert [letters(row) for row in batch["targets"]] == ["ghijklm|", "abcd|ef|"]
    assert [digits(row) for row in batch["segments"]] == ["11111111", "11111222"]
    assert [digits(row) for row in batch["positions"]] == ["01234567", "01234012"]
    assert (batch["weights"] == 1).all()
    (batch,) = take(prepare(abc, length=6, layout="packed", shuffle=False), 1, batch_size=3)
    assert [letters(row) for row in batch["tokens"]] == ["|ghijk", "|abcd.", "|eflm."]  # the longest is cut in two
    assert [letters(row) for row in batch["targets"]] == ["ghijkl", "abcd|.", "ef|m|."]
    assert [digits(row) for row in batch["segments"]] == ["111111", "111110", "111220"]
    assert [digits(row) for row in batch["positions"]] == ["012345", "012340", "012010"]
    assert np.array_equal(batch["weights"], batch["segments"] > 0)


def test_stream_literal(prepare, abc):
    batches = take(prepare(abc, length=3, layout="stream", shuffle=False), 3, batch_size=2)  # 16 ids: 2 lanes of 8
    assert [[letters(row) for row in batch["tokens"]] for batch in batches] == [
        ["|ab", "|gh"],
        ["cd|", "ijk"],
        ["|ab", "|gh"],  # the next epoch
    ]
    assert [[letters(row) for row in batch["targets"]] for batch in batches[:2]] == [["abc", "ghi"], ["d|e", "jkl"]]
    assert [batch["reset"].tolist() for batch in batches] == [[True, True], [False, False], [True, True]]


def test_document_literal(prepare, write):
    for name, text in zip("123", ("abcd", "efgh", "ijkl"), strict=True):
        path = write(f"fours/{name}.txt", text)
    (batch,) = take(prepare(f"text:{path[:-5]}*.txt", length=4, layout="document", shuffle=False), 1, batch_size=3)
    assert [letters(row) for row in batch["tokens"]] == ["|abc", "|efg", "|ijk"]
    assert [letters(row) for row in batch["targets"]] == ["abcd", "efgh", "ijkl"]
    assert (batch["segments"] == 1).all() and (batch["weights"] == 1).all()
    assert (batch["positions"] == np.arange(4)).all()


@pytest.mark.parametrize("layout", ["concat", "packed"])
def test_epoch_reads_each_row_once(prepare, words, layout):
    corpus = prepare(words(30), layout=layout, length=16)
    (rows,) = corpus._rows
    batches = take(corpus, 2 * len(rows), batch_size=1)
    epochs = [
        [b["tokens"].tobytes() for b in batches[: len(rows)]],
        [b["tokens"].tobytes() for b in batches[len(rows) :]],
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) and epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(row.tobytes() for row in rows.read(np.arange(len(rows))).ids)


@pytest.mark.parametrize(("batch_size", "length"), [(1, 1), (3, 7), (5, 30)])
def test_streams_are_contiguous(prepare, write, batch_size, length):
    corpus = prepare(f"text:{write('a.txt', 'the quick brown fox ' * 40)}", layout="stream")
    stream = corpus.stream("train")
    context = BatchContext(CausalLM(common.causal()), "stream", 3, batch_size, length, np.arange(batch_size))
    lanes = StreamBatches(context, stream, shuffle=True)
    epochs = [[lanes[epoch * len(lanes) + n] for n in range(len(lanes))] for epoch in range(2)]
    for batches in epochs:
        assert [bool(b["reset"].all()) for b in batches] == [n == 0 for n in range(len(lanes))]
        for before, after in itertools.pairwise(batches):
            assert np.array_equal(before["targets"][:, -1], after["tokens"][:, 0])
        assert len(lanes) * length * batch_size > stream.tokens - batch_size * (length + 1)


def test_mixture_shares(prepare, write):
    sources = [write(f"{letter}.txt", letter * 1000) for letter in "ab"]
    corpus = prepare(" + ".join(f"text:{path}" for path in sources), weights=(3.0, 1.0))
    tokens = np.concatenate([batch["tokens"] for batch in take(corpus, 25, batch_size=4)])  # 100 rows
    assert (tokens == ord("a")).any(axis=1).sum() == 75
    by_size = prepare(" + ".join(f"text:{path}" for path in sources))
    tokens = np.concatenate([batch["tokens"] for batch in take(by_size, 25, batch_size=4)])
    assert (tokens == ord("a")).any(axis=1).sum() == 50


def test_stream_needs_a_row_per_lane(prepare, words):
    corpus = prepare(words(5), layout="stream", length=32)
    with pytest.raises(DataError):
        corpus.batches(seed=0, batch_size=1000, workers=0, prefetch=1)

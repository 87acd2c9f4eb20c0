"""Packing: whole documents, each token once, rows well filled."""

import itertools
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline.packing import documents as packing
from input_pipeline.packing import index_cache


def packed(documents, length: int, shards: int = 1) -> packing.Plan:
    """The plan of documents that lie in so many shards."""
    stretches = packing.pack(np.array_split(np.array(documents, np.int64), shards), length)
    return packing.Plan(*map(np.concatenate, zip(*stretches, strict=True)))


def rows_of(plan: packing.Plan) -> list[list[tuple[int, int]]]:
    pieces = list(zip(plan.starts.tolist(), plan.lengths.tolist(), strict=True))
    return [pieces[a:b] for a, b in zip(plan.first, plan.first[1:], strict=False)]


def test_a_plan_by_hand():
    plan = packed([3, 9, 4, 2], 4)  # the document of 9 is cut into 4 + 4 + 1
    assert rows_of(plan) == [[(3, 4)], [(7, 4)], [(12, 4)], [(0, 3), (11, 1)], [(16, 2)]]


@given(st.lists(st.integers(2, 40), max_size=60), st.integers(1, 20), st.integers(1, 5))
def test_pieces_partition_the_stream(documents, length, shards):
    rows = rows_of(packed(documents, length, shards))
    assert all(sum(size for _, size in row) <= length for row in rows)
    pieces = sorted(piece for row in rows for piece in row)
    assert [place for start, size in pieces for place in range(start, start + size)] == list(range(sum(documents)))
    ends = set(np.cumsum(documents).tolist())
    for start, size in pieces:  # no piece reaches over the end of a document
        assert not any(start < end < start + size for end in ends)


def test_rows_are_well_filled(monkeypatch):
    sizes = np.random.default_rng(0).lognormal(5, 1, 20_000).astype(np.int64) + 2
    monkeypatch.setattr(packing, "BLOCK", 5_000)
    plan = packed(sizes, 1024)
    assert sizes.sum() / (len(plan.first) - 1) / 1024 > 0.99


def test_a_plan_does_not_depend_on_shards(monkeypatch):
    sizes = np.random.default_rng(0).lognormal(5, 1, 3_000).astype(np.int64) + 2
    monkeypatch.setattr(packing, "BLOCK", 500)
    for others in (packed(sizes, 512, 7), packed(sizes, 512, 3_000)):
        for field, other in zip(packed(sizes, 512), others, strict=True):
            assert field.dtype == other.dtype and np.array_equal(field, other)


def test_rows_are_planned_while_documents_are_read(monkeypatch):
    """A stream of hundreds of millions of documents is never held whole."""
    monkeypatch.setattr(packing, "BLOCK", 10)
    read = []

    def shards():
        for number in range(100):
            read.append(number)
            yield np.full(10, 5)

    stretches = packing.pack(shards(), 12)
    for number, plan in enumerate(itertools.islice(stretches, 1, 6)):
        assert read == list(range(number + 1)) and len(plan.starts) == 10


def test_best_fit_takes_the_fullest_row_with_room():
    assert packing.best_fit([6, 5, 4, 3, 2], 10) == [[0, 2], [1, 3, 4]]
    assert packing.best_fit([7, 6, 3], 10) == [[0, 2], [1]]


def test_a_plan_is_made_once_and_travels_by_name(prepare, words):
    source, said = words(30), []
    corpus = prepare(source, layout="packed", said=said)
    plan = corpus._rows[0].plan
    assert any("packing 30 documents" in line for line in said)
    said.clear()
    again = prepare(source, layout="packed", said=said)._rows[0].plan
    assert said == [] and isinstance(again.starts, np.memmap)
    data = pickle.dumps(again)
    assert len(data) < 2_000
    for field, copy in zip(plan, pickle.loads(data), strict=True):
        assert np.array_equal(field, copy)


def test_a_plan_is_told_of_with_what_it_is_of(prepare, words):
    source, said = words(30), []
    corpus = prepare(source, layout="packed", said=said, holdout=0.5)
    corpus.evaluation("validation", length=8, stride=0, batch_size=2)
    told = [line.partition(": packing ")[0] for line in said if ": packing " in line]
    assert told == [f"'{source}'", "split validation"]


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def other_bytes(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("starts.npy", other_bytes),  # rows of a document's end and the next one's beginning, once trained on
        ("first.npy", cut),
        ("lengths.npy", Path.unlink),
        ("lengths.npy", lambda path: path.write_bytes(b"")),
        ("made.json", cut),
        ("made.json", lambda path: path.write_text('{"starts.npy": 1}')),
        ("made.json", Path.unlink),
    ],
)
def test_a_damaged_plan_is_made_again(prepare, words, tmp_path, name, damage):
    source, said = words(30), []
    plan = [np.array(field) for field in prepare(source, layout="packed")._rows[0].plan]
    (path,) = (tmp_path / "run/data").glob(f"packed-*/{name}")
    damage(path)
    for expected in ([f"'{source}': packing 30 documents into rows of 8"], []):
        again = prepare(source, layout="packed", said=said)._rows[0].plan
        assert said == expected
        said.clear()
        for field, copy in zip(plan, again, strict=True):
            assert np.array_equal(field, copy)


def test_a_large_plan_is_read_where_that_is_asked_for(prepare, words, monkeypatch, tmp_path):
    source, said = words(30), []
    prepare(source, layout="packed")
    (path,) = (tmp_path / "run/data").glob("packed-*/starts.npy")
    other_bytes(path)
    monkeypatch.setattr(index_cache, "READ", 10)
    prepare(source, layout="packed", said=said)
    assert said == []
    prepare(source, layout="packed", said=said, read_all=True)
    assert said == [f"'{source}': packing 30 documents into rows of 8"]

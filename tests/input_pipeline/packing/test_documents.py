"""Packing: whole documents, each token once, rows well filled."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline.packing import documents as packing


def packed(documents, length: int, shards: int = 1) -> packing.Plan:
    """The plan of documents in so many shards."""
    parts = packing.pack(np.array_split(np.array(documents, np.int64), shards), length)
    return packing.Plan(*map(np.concatenate, zip(*parts, strict=True)))


def rows_of(plan: packing.Plan) -> list[list[tuple[int, int]]]:
    pieces = list(zip(plan.starts.tolist(), plan.lengths.tolist(), strict=True))
    return [pieces[a:b] for a, b in zip(plan.first, plan.first[1:], strict=False)]


def test_pack_literal():
    plan = packed([3, 9, 4, 2], 4)  # the document of 9 is cut into 4 + 4 + 1
    assert rows_of(plan) == [[(3, 4)], [(7, 4)], [(12, 4)], [(0, 3), (11, 1)], [(16, 2)]]
    assert packing.best_fit([6, 5, 4, 3, 2], 10) == [[0, 2], [1, 3, 4]]
    assert packing.best_fit([7, 6, 3], 10) == [[0, 2], [1]]


@given(st.lists(st.integers(2, 40), max_size=60), st.integers(1, 20), st.integers(1, 5))
def test_pack_partitions_the_stream(documents, length, shards):
    rows = rows_of(packed(documents, length, shards))
    assert all(sum(size for _, size in row) <= length for row in rows)
    pieces = sorted(piece for row in rows for piece in row)
    assert [place for start, size in pieces for place in range(start, start + size)] == list(range(sum(documents)))
    ends = set(np.cumsum(documents).tolist())
    for start, size in pieces:  # no piece reaches over the end of a document
        assert not any(start < end < start + size for end in ends)


def test_pack_fills_rows_whatever_the_shards(monkeypatch):
    sizes = np.random.default_rng(0).lognormal(5, 1, 10_000).astype(np.int64) + 2
    monkeypatch.setattr(packing, "BLOCK", 3_000)
    plan = packed(sizes, 1024)
    assert sizes.sum() / (len(plan.first) - 1) / 1024 > 0.99
    for field, other in zip(plan, packed(sizes, 1024, 7), strict=True):
        assert field.dtype == other.dtype and np.array_equal(field, other)

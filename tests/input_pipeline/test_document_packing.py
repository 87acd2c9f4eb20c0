"""Packing: whole documents, each token once, rows well filled."""

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline import packing


def rows_of(plan: packing.Plan) -> list[list[tuple[int, int]]]:
    pieces = list(zip(plan.starts.tolist(), plan.lengths.tolist(), strict=True))
    return [pieces[a:b] for a, b in zip(plan.first, plan.first[1:], strict=False)]


def test_a_plan_by_hand():
    plan = packing.pack(np.array([3, 9, 4, 2]), 4)  # the document of 9 is cut into 4 + 4 + 1
    assert rows_of(plan) == [[(3, 4)], [(7, 4)], [(12, 4)], [(0, 3), (11, 1)], [(16, 2)]]


@given(st.lists(st.integers(2, 40), max_size=60), st.integers(1, 20))
def test_pieces_partition_the_stream(documents, length):
    rows = rows_of(packing.pack(np.array(documents, np.int64), length))
    assert all(sum(size for _, size in row) <= length for row in rows)
    pieces = sorted(piece for row in rows for piece in row)
    assert [place for start, size in pieces for place in range(start, start + size)] == list(range(sum(documents)))
    ends = set(np.cumsum(documents).tolist())
    for start, size in pieces:  # no piece reaches over the end of a document
        assert not any(start < end < start + size for end in ends)


def test_rows_are_well_filled(monkeypatch):
    sizes = np.random.default_rng(0).lognormal(5, 1, 20_000).astype(np.int64) + 2
    monkeypatch.setattr(packing, "BLOCK", 5_000)
    plan = packing.pack(sizes, 1024)
    assert sizes.sum() / (len(plan.first) - 1) / 1024 > 0.99


def test_best_fit_takes_the_fullest_row_with_room():
    assert packing.best_fit([6, 5, 4, 3, 2], 10) == [[0, 2], [1, 3, 4]]
    assert packing.best_fit([7, 6, 3], 10) == [[0, 2], [1]]


def test_a_plan_is_made_once_and_travels_by_name(prepare, words):
    source, said = words(30), []
    plan = prepare(source, layout="packed", said=said)._rows[0].plan
    assert any("packing 30 documents" in line for line in said)
    said.clear()
    again = prepare(source, layout="packed", said=said)._rows[0].plan
    assert said == [] and isinstance(again.starts, np.memmap)
    data = pickle.dumps(again)
    assert len(data) < 2_000
    for field, copy in zip(plan, pickle.loads(data), strict=True):
        assert np.array_equal(field, copy)

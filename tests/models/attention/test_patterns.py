"""Patterns against literal sets of the Sparse Transformer paper (sections 4.2 and 4.3), and their names."""

import numpy as np
import pytest

from models.attention.patterns import parse_pattern, per_head
from models.errors import ModelError


def keys_of(pattern, query, length=16):
    key = np.arange(length)
    seen = np.broadcast_to(parse_pattern(pattern).sees(np.full(length, query), key), length)
    return set(key[seen & (key <= query)].tolist())


@pytest.mark.parametrize(
    ("pattern", "query", "keys"),
    [
        ("local_4", 5, {2, 3, 4, 5}),
        ("local_4", 1, {0, 1}),
        ("column_4", 5, {1, 5}),
        ("column_4", 15, {3, 7, 11, 15}),
        ("strided_4", 5, {1, 2, 3, 4, 5}),
        ("strided_4", 15, {3, 7, 11, 12, 13, 14, 15}),
        ("block_4", 10, {8, 9, 10}),
        ("block_4", 15, {12, 13, 14, 15}),
        ("summary_4_1", 10, {3, 7}),
        ("summary_4_1", 15, {3, 7, 11, 15}),
        ("summary_4_1", 2, set()),
        ("summary_4_2", 10, {2, 3, 6, 7, 10}),
        ("fixed_4_1", 10, {3, 7, 8, 9, 10}),
        ("dense", 3, {0, 1, 2, 3}),
    ],
)
def test_pattern_sees(pattern, query, keys):
    assert keys_of(pattern, query) == keys


@pytest.mark.parametrize(
    "word", ["local_5", "column_4", "strided_4", "block_4", "summary_4_1", "summary_4_3", "fixed_4_2", "fixed_8_3"]
)
def test_pattern_counts_the_keys_it_sees(word):
    """Keys after the query included."""
    pattern, (i, j) = parse_pattern(word), np.ogrid[:16, :16]
    sees = np.broadcast_to(pattern.sees(i, j), (16, 16))
    for before in range(17):
        np.testing.assert_array_equal(pattern.count(np.arange(16), np.full(16, before)), sees[:, :before].sum(1))


def test_local_and_column_connect_any_past_pair_in_two_steps():
    i, j = np.arange(64)[:, None], np.arange(64)[None, :]
    local, column = (parse_pattern(p).sees(i, j) & (j <= i) for p in ("local_8", "column_8"))
    assert ((local.astype(int) @ column.astype(int) > 0) == (j <= i)).all()


def test_per_head_summaries_count_from_the_end_of_the_block():
    heads = per_head(parse_pattern("summary_4_1_by_head"), 5)
    place = [set(np.flatnonzero(head.sees(15, np.arange(16))).tolist()) for head in heads]
    assert place == [{3, 7, 11, 15}, {2, 6, 10, 14}, {1, 5, 9, 13}, {0, 4, 8, 12}, {3, 7, 11, 15}]


def test_per_head_split():
    assert [str(p) for p in per_head(parse_pattern("local_4+column_4"), 4)] == ["local_4"] * 2 + ["column_4"] * 2


@pytest.mark.parametrize(
    "word", ["stridden_4", "local_4+", "local_3000000000", "strided_0", "strided_4_by_head", "fixed_4", "fixed_8_9"]
)
def test_parse_pattern_refuses(word):
    with pytest.raises(ModelError):
        parse_pattern(word)

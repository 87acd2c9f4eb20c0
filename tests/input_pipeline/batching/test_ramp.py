"""Batches that grow: the rows of all batches are the sequence that they are without a ramp, cut differently."""

import numpy as np
import pytest
from read_batches import assert_equal, take

from input_pipeline.batching.ramp import BatchSizes
from input_pipeline.batching.train import Ramp


@pytest.mark.parametrize(
    ("batch_size", "ramp"),
    [(8, (2, 2, 30)), (8, (7, 1, 1)), (256, (16, 16, 20_000)), (32, (8, 24, 1000)), (9, (1, 2, 5))],
)
def test_sizes_are_linear_in_the_rows_read(batch_size, ramp):
    """Against the rule applied batch by batch: a size is the first one plus increments by the share of rows read."""
    sizes, read = BatchSizes.build(batch_size, ramp), 0
    first, increment, rows = ramp
    steps = (batch_size - first) // increment
    for n in range(2 * sizes[-1].batch + 3):
        assert (sizes.size(n), sizes.rows_before(n)) == (
            min(batch_size, first + increment * (read * steps // rows)),
            read,
        )
        read += sizes.size(n)
    assert sizes.size(n) == batch_size and sizes[-1].row >= rows


def test_one_size_without_a_ramp():
    sizes = BatchSizes.build(8)
    assert len(sizes) == 1 and (sizes.size(10**9), sizes.rows_before(10**9)) == (8, 8 * 10**9)


CASES = {
    "packed": {"layout": "packed", "length": 16},
    "masked": {"length": 16, "objective": {"kind": "masked", "next_sentence": False}},
    "pairs": {"layout": "pairs", "sentences": "lines", "length": 48, "objective": {"kind": "masked", "passes": 2}},
}


def ramp(rows=None):
    """Sizes 2, 2, 4, 4, 6, 6, 8, ...; this host's rows are all, or those among `rows`."""
    sizes = BatchSizes.build(8, (2, 2, 24))
    mine = {stage.size: np.arange(stage.size) for stage in sizes}
    return Ramp(sizes, {size: np.array([row for row in rows if row < size]) if rows else mine[size] for size in mine})


@pytest.mark.parametrize("case", CASES)
def test_rows_are_those_without_a_ramp(prepare, words, case):
    """Masks and other random choices too; over the border of an epoch, and of two sources."""
    corpus = prepare(f"{words(20, folder='one')} + {words(10, folder='two')}", **CASES[case])
    plain = take(corpus, 12)
    grown = take(corpus, 15, ramp=ramp())
    assert [len(batch["row"]) for batch in grown[:7]] == [2, 2, 2, 2, 4, 4, 6]
    for name in plain[0].keys() - {"row"}:
        of_plain, of_grown = (np.concatenate([batch[name] for batch in batches]) for batches in (plain, grown))
        least = min(len(of_plain), len(of_grown))
        assert least > 60
        np.testing.assert_array_equal(of_plain[:least], of_grown[:least], err_msg=name)
    assert all((batch["row"] == np.arange(len(batch["row"]))).all() for batch in grown)


def test_ramp_on_any_host_from_any_start(prepare, words):
    corpus = prepare(words(30), **CASES["masked"])
    whole = take(corpus, 12, ramp=ramp())
    for start in (0, 1, 4, 5, 9):
        assert_equal(take(corpus, 12 - start, start=start, ramp=ramp()), whole[start:])
    assert_equal(take(corpus, 4, start=3, workers=2, prefetch=4, ramp=ramp()), whole[3:7])
    rows = [1, 0, 5]
    part = take(corpus, 12, ramp=ramp(rows))
    mine = [[row for row in rows if row < len(batch["row"])] for batch in whole]
    assert_equal(part, [{k: v[own] for k, v in batch.items()} for batch, own in zip(whole, mine, strict=True)])

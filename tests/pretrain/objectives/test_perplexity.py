"""Perplexity of whatever loss, and bits a byte of text that is all predicted."""

import math
from types import SimpleNamespace

import pytest

from pretrain.objectives.causal import Causal
from pretrain.objectives.objective import perplexity


@pytest.mark.parametrize(("nats", "found"), [(0.0, 1.0), (1.0, math.e), (709.0, math.exp(709)), (1e15, math.inf)])
def test_perplexity_is_no_false_number(nats, found):
    assert perplexity(nats) == found
    assert math.isnan(perplexity(math.nan))


@pytest.mark.parametrize(("scored", "bits"), [(8.0, 1.0), (4.0, None)])
def test_no_bits_of_a_byte_where_a_task_leaves_tokens_out(scored, bits):
    totals = {"sums": {"loss": 16 * math.log(2)}, "counts": {"loss": scored}}
    data = SimpleNamespace(tokens=8, bytes=16, words=3)
    found = Causal(0.0, 0.0, None, "bits_per_byte").figures({"loss": 1.0}, totals, data)
    assert found["bits_per_byte"] == (bits and pytest.approx(bits))
    assert (found["tokens"], found["bytes"], found["words"]) == (scored, 16 if bits else None, 3 if bits else None)

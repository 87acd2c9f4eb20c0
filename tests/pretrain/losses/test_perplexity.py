"""Perplexity of whatever loss."""

import math

import pytest

from pretrain.losses.objective import perplexity


@pytest.mark.parametrize(("nats", "found"), [(0.0, 1.0), (1.0, math.e), (709.0, math.exp(709)), (1e15, math.inf)])
def test_perplexity_is_no_false_number(nats, found):
    assert perplexity(nats) == found
    assert math.isnan(perplexity(math.nan))

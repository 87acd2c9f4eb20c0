"""What attention costs by its masks and patterns, whichever path would compute it.

A program traced with a model whose attention path is DESCRIBED holds, in place of every attention, one equation
that says what is asked for; nothing can run it.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jax.extend.core import JaxprEqn, Primitive

from models.attention.backend import Path
from models.attention.patterns import Dense, Pattern, parse_pattern, per_head

CONVENTIONS = ("full", "causal")


@dataclass(frozen=True)
class Visible:
    """Which keys T queries may see of S, as far as that is known before there is data.

    Segments, padding, a prefix and a permutation's order hide nothing here.
    """

    pattern: Pattern
    causal: bool
    first: int  # key column at which the first query stands

    def keys(self, T: int, S: int, convention: str) -> int:
        """Keys that all the queries together are charged by a convention of `pretrain.costs.flops`."""
        return _keys(self, T, S, convention)


@lru_cache(maxsize=256)
def _keys(visible: Visible, T: int, S: int, convention: str) -> int:
    if isinstance(visible.pattern, Dense) and (convention == "full" or not visible.causal):
        return T * S
    positions = visible.first + np.arange(T)
    before = positions + 1 if visible.causal else np.full(T, S)
    return int(visible.pattern.count(positions, before).sum())


def keys_per_query(word: str, heads: int, length: int, convention: str) -> float:
    """Keys that a query of a causal row of `length` tokens is charged, in the mean over queries and heads."""
    patterns = per_head(parse_pattern(word), heads)
    total = sum(Visible(pattern, True, 0).keys(length, length, convention) for pattern in patterns)
    return total / (heads * length)


def _describe(query, key, value, mask, bias, dropout, scale):
    """Attention [B, T, N, H] as one equation."""
    # Where queries stand in a cache that is being filled is data too.
    visible = Visible(mask.pattern, mask.causal and mask.offset is None, mask.memory)
    return ATTENTION.bind(query, key, value, visible=visible, bias=0 if bias is None else bias.products)


DESCRIBED = Path("described", run=_describe, refuses=lambda request: None)
ATTENTION = Primitive("attention")


@ATTENTION.def_abstract_eval
def _result(query, key, value, **asked):
    return query.update(shape=(*query.shape[:3], value.shape[3]))


def multiply_adds(equation: JaxprEqn, convention: str) -> int:
    """Multiply-adds of one such equation: scores, what biases they have, and weighted values."""
    query, key, value = (one.aval.shape for one in equation.invars)
    B, T, heads, size = query
    keys = equation.params["visible"].keys(T, key[1], convention)
    return B * heads * (size + equation.params["bias"] + value[3]) * keys

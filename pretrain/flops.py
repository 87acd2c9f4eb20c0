"""How many floating-point operations a token takes, under one stated definition.

Counted are the multiply-adds of matrix products, two FLOPs each: projections, attention scores, weighted values,
feed-forward, logits. The backward pass takes twice the forward pass, so training takes three forward passes.
Not counted: table look-ups, norms, softmax, the optimiser, and anything computed again in the backward pass.

Attention is counted by both conventions in use. `full`: a causal dense layer is charged all T keys of the row, as
most published figures have it. `causal`: it is charged the keys it may see, (T + 1) / 2 in the mean, about half.
A sparse layer is charged the keys it may see in both.
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from models.layers import GATED
from models.patterns import Dense, Pattern, parse_pattern, per_head
from pretrain.errors import UserError, nearest

TRAIN = 3  # forward passes in one training step: itself and a backward pass of twice its products


def flops_per_token(config) -> dict[str, float]:
    """FLOPs of training on one token of a row of `config.data.length`, by convention: {"full", "causal"}."""
    parts = forward_flops(config)
    return {convention: TRAIN * sum(parts[convention].values()) for convention in parts}


def forward_flops(config) -> dict[str, dict[str, float]]:
    """FLOPs of one token's forward pass by part of the model: {"full": {part: FLOPs}, "causal": {...}}."""
    if config.architecture not in PARTS:
        raise UserError(
            f"FLOPs of architecture '{config.architecture}' are not known{nearest(config.architecture, PARTS)}"
        )
    return {
        convention: {
            part: 2 * products
            for part, products in PARTS[config.architecture](config.model, config.data.length, convention).items()
        }
        for convention in ("full", "causal")
    }


def decoder(model: Mapping, length: int, convention: str) -> dict[str, float]:
    """Multiply-adds of one token's forward pass through `models.Decoder`, by part."""
    D, N, L = model["width"], model["heads"], model["layers"]
    H, G = model["head_size"] or D // N, model["kv_heads"] or N
    matrices = 3 if model["activation"].startswith(GATED) else 2
    patterns = model["attention"]
    keys = sum(keys_per_query(patterns[layer % len(patterns)], N, length, convention) for layer in range(L))
    return {
        "attention projections": L * D * H * (2 * N + 2 * G),
        "attention scores and values": 2 * N * H * keys,
        "feed-forward": L * matrices * D * model["ff"],
        "logits": D * model["vocab_size"],
    }


PARTS = {"decoder": decoder}


def keys_per_query(word: str, heads: int, length: int, convention: str) -> float:
    """Keys that a query of a causal row of `length` tokens is charged, in the mean over queries and heads."""
    return sum(_keys(pattern, length, convention) for pattern in per_head(parse_pattern(word), heads)) / heads


@lru_cache(maxsize=256)
def _keys(pattern: Pattern, length: int, convention: str) -> float:
    if isinstance(pattern, Dense):
        return length if convention == "full" else (length + 1) / 2
    position = np.arange(length, dtype=np.int32)
    block = max(1, 2**22 // length)  # queries at a time: some 4 MB of booleans
    seen = 0
    for first in range(0, length, block):
        query = position[first : first + block, None]
        seen += np.count_nonzero(pattern.sees(query, position) & (position <= query))
    return seen / length

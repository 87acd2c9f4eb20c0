"""How many floating-point operations a token takes, under one stated definition.

Counted are the multiply-adds of matrix products, two FLOPs each: projections, attention scores, weighted values,
feed-forward, logits. The backward pass takes twice the forward pass, so training takes three forward passes.
Not counted: table look-ups, norms, softmax, the optimiser, and anything computed again in the backward pass.

Attention is counted by both conventions in use. `full`: a causal dense layer is charged all T keys of the row, as
most published figures have it. `causal`: it is charged the keys it may see, (T + 1) / 2 in the mean, about half.
A sparse layer is charged the keys it may see in both.

Transformer-XL's keys reach over its memory, whose keys and values are projected anew in every segment. An adaptive
softmax is charged all its clusters for every token. The keys of distances are made once for the whole batch: left out.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise

import numpy as np

from models.attention.patterns import Dense, Pattern, parse_pattern, per_head
from models.parts.activations import GATED
from pretrain.errors import UserError, nearest

TRAIN = 3  # forward passes in one training step: itself and a backward pass of twice its products


def flops_per_token(config) -> dict[str, float]:
    """FLOPs of training on one token of a row of `config.data.length`, by convention: {"full", "causal"}."""
    parts = forward_flops(config)
    return {convention: TRAIN * sum(parts[convention].values()) for convention in parts}


def forward_flops(config) -> dict[str, dict[str, float]]:
    """FLOPs of one token's forward pass by part of the model: {"full": {part: FLOPs}, "causal": {...}}."""
    kind = config.model.kind
    if kind not in PARTS:
        raise UserError(f"FLOPs of a model of kind '{kind}' are not known{nearest(kind, PARTS)}")
    return {
        convention: {
            part: 2 * products for part, products in PARTS[kind](config.model, config.data.length, convention).items()
        }
        for convention in ("full", "causal")
    }


def decoder(model: Mapping, length: int, convention: str) -> dict[str, float]:
    """Multiply-adds of one token's forward pass through `models.decoder.Decoder`, by part."""
    D, N, L = model["width"], model["heads"], model["layers"]
    H, G = model["head_size"] or D // N, model["kv_heads"] or N
    Q = model["query_size"] or H
    matrices = 3 if model["activation"].startswith(GATED) else 2
    patterns = model["attention"]
    keys = sum(keys_per_query(patterns[layer % len(patterns)], N, length, convention) for layer in range(L))
    return {
        "attention projections": L * D * (Q * (N + G) + H * (G + N)),
        "attention scores and values": N * (Q + H) * keys,
        "feed-forward": L * matrices * D * model["ff"],
        "logits": D * model["vocab_size"],
    }


def recurrent(model: Mapping, length: int, convention: str) -> dict[str, float]:
    """Multiply-adds of one token's forward pass through `models.recurrent.Recurrent`, by part."""
    D, N, L, M = model["width"], model["heads"], model["layers"], model["memory"]
    H = model["head_size"] or D // N
    again = (M + length) / length  # keys and values are made of the memory too
    keys = M + (length if convention == "full" else (length + 1) / 2)
    if model["same_length"]:
        keys = M
    read, scored, words = _clusters(model)
    return {
        "embedding projections": D * read,
        "attention projections": L * D * N * H * (2 + 2 * again),
        "attention scores and values": 3 * L * N * H * keys,  # content, position, values
        "feed-forward": L * 2 * D * model["ff"],
        "logits": D * scored + words,
    }


def _clusters(model: Mapping) -> tuple[int, int, int]:
    """Sums over the clusters of an adaptive vocabulary.

    (widths that are projected at the input, those at the output, width x words).
    """
    edges = (0, *model["cutoffs"], model["vocab_size"])
    first = model["embed"] or model["width"]
    widths = [first // model["divisor"] ** i for i in range(len(edges) - 1)]
    sizes = [stop - start for start, stop in pairwise(edges)]
    sizes[0] += len(model["cutoffs"])  # the first softmax chooses among the other clusters too
    projected = [width if model["project_always"] or width != model["width"] else 0 for width in widths]
    read = scored = sum(projected)
    if model["divisor"] == 1:  # one width: one projection of the input, and of all softmaxes that share it
        read = projected[0]
        scored = read * {"all": 1, "tails": min(2, len(widths)), "none": len(widths)}[model["shared_projections"]]
    return read, scored, sum(width * size for width, size in zip(widths, sizes, strict=True))


PARTS = {"decoder": decoder, "recurrent": recurrent}


def keys_per_query(word: str, heads: int, length: int, convention: str) -> float:
    """Keys that a query of a causal row of `length` tokens is charged, in the mean over queries and heads."""
    return sum(_keys(pattern, length, convention) for pattern in per_head(parse_pattern(word), heads)) / heads


@lru_cache(maxsize=256)
def _keys(pattern: Pattern, length: int, convention: str) -> float:
    if isinstance(pattern, Dense):
        return length if convention == "full" else (length + 1) / 2
    position = np.arange(length)
    return int(pattern.count(position, position + 1).sum()) / length

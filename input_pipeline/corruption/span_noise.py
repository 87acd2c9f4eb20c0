"""Which tokens are taken out of texts (Raffel et al. 2019, section 3.1.4): pure functions of lengths and keys."""

import numpy as np

from input_pipeline.corruption.rng import places, uniform

SPANS, TEXT, PREFIX = range(3)  # what is drawn


def counts(texts: np.ndarray, density: float, mean_span: float) -> tuple[np.ndarray, np.ndarray]:
    """(tokens taken out, spans that they make) of texts of so many tokens: int64 of the same shape.

    Halves are rounded to even. At least one token is taken out and one is left; of a text of one token, it is left.
    """
    texts = np.asarray(texts, np.int64)
    noise = np.minimum(np.maximum(np.rint(texts * density).astype(np.int64), 1), np.maximum(texts - 1, 0))
    spans = np.maximum(np.rint(noise / mean_span).astype(np.int64), 1)
    return noise, np.minimum(spans, np.minimum(noise, texts - noise))  # each has a token, and one of text before it


def span_lengths(inputs: int, density: float, mean_span: float) -> tuple[int, int]:
    """(tokens of text, tokens of targets) for inputs of `inputs` tokens: of the longest text whose input fits.

    Input and target hold a sentinel a span and end with an end token. Half of a text makes no target longer than its
    input.
    """
    texts = np.arange(int(inputs / (1 - density)) + 2)
    noise, spans = counts(texts, density, mean_span)
    text = int(np.flatnonzero(texts - noise + spans + 1 <= inputs)[-1])
    targets = int((noise + spans + 1)[text])
    return (text - 1, targets - 1) if density == 0.5 and targets > inputs else (text, targets)


def composition(keys: np.ndarray, purpose: int, totals: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """A uniformly random way to write each of `totals` as an ordered sum of `parts` positive numbers.

    int64 [n] each, parts <= totals; int64 [n, max(parts)], zeros behind.
    """
    among, sizes = (np.maximum(counted - 1, 0) for counted in (totals, parts))
    ends = 1 + places(keys, purpose, among, sizes)  # where a part ends, and another begins; then the end of all
    bounds = np.concatenate([np.zeros_like(among)[:, None], ends, 1 + among[:, None]], axis=1)
    return np.diff(bounds, axis=1) * (parts > 0)[:, None]


def spans(keys: np.ndarray, texts: np.ndarray, density: float, mean_span: float, width: int) -> np.ndarray:
    """Which tokens of texts of so many tokens (int64 [n]) are taken out: bool [n, width].

    Text and spans take turns, text first; the lengths of both are random compositions.
    """
    noise, parts = counts(texts, density, mean_span)
    lengths = [composition(keys, TEXT, texts - noise, parts), composition(keys, SPANS, noise, parts)]
    lengths = np.stack(lengths, -1).reshape(len(keys), -1)  # of text, of a span, of text, ...
    lengths = np.concatenate([lengths, width - lengths.sum(1, keepdims=True)], axis=1)
    taken = np.arange(lengths.shape[1]) % 2 == 1
    return np.repeat(np.tile(taken, len(keys)), lengths.ravel()).reshape(len(keys), width)


def prefixes(keys: np.ndarray, texts: np.ndarray, width: int) -> np.ndarray:
    """All but a prefix is taken out, of uniform length from 1 to all but one of so many tokens: bool [n, width]."""
    left = 1 + np.floor(uniform(keys, PREFIX, 1)[:, 0] * (texts - 1)).astype(np.int64)
    place = np.arange(width)
    return (place >= left[:, None]) & (place < texts[:, None])

"""Probes of frozen states: ridge regressions, a mix of layers, and the structural probe for distances in trees."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from pretrain.scoring.probe_tasks import Items, tree_distances
from pretrain.tasks.metrics.classes import spearman

STRENGTH = 1.0  # of the ridge, on standardised features, as scikit-learn's default
EPOCHS, BATCH, RATE = 40, 32, 2e-3  # of the structural probe
LONGEST = 64  # words of a sentence for the structural probe
MIX_STEPS, MIX_BATCH, MIX_RATE = 600, 256, 5e-3


class Ridge:
    """A linear map from standardised features [n, D] to targets [n, C], by least squares with an L2 penalty.

    The statistics are those of the training part; the intercept is not penalised.
    """

    def __init__(self, features: np.ndarray):
        self.mean, self.scale = features.mean(axis=0), features.std(axis=0)
        self.scale[self.scale == 0] = 1
        self._x = self.standardise(features)
        # One factorisation serves the task and its control.
        self._gram = self._x.T @ self._x + STRENGTH * np.eye(self._x.shape[1])

    def standardise(self, features: np.ndarray) -> np.ndarray:
        """Features with the training part's mean 0 and deviation 1, float64."""
        return (features.astype(np.float64) - self.mean) / self.scale

    def predict(self, targets: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Targets [m, C] of other features [m, D], fitted to the training part's `targets` [n, C]."""
        middle = targets.mean(axis=0)
        weights = np.linalg.solve(self._gram, self._x.T @ (targets - middle))
        return self.standardise(features) @ weights + middle


def score_classes(ridge: Ridge, train: Sequence, features: np.ndarray, test: Sequence) -> float:
    """Accuracy on `test` of a ridge to one-hot labels; a class that training lacks is always wrong."""
    names, numbers = np.unique(np.array(train, str), return_inverse=True)
    found = ridge.predict(np.eye(len(names))[numbers], features).argmax(axis=1)
    return float(np.mean(names[found] == np.array(test, str)))


def score_numbers(ridge: Ridge, train: Sequence, features: np.ndarray, test: Sequence) -> float:
    """Spearman's correlation on `test`."""
    found = ridge.predict(np.array(train, np.float64)[:, None], features)[:, 0]
    return float(spearman(found, np.array(test, np.float64)))


def control_labels(words: Sequence[str], labels: Sequence, seed: int) -> list:
    """A random label for each word type, drawn as often as among `labels` (Hewitt and Liang 2019, section 2.2)."""
    # By hash, so that a type has one label in the training part and in the test.
    return [labels[np.random.default_rng((seed, zlib.crc32(word.encode()))).integers(len(labels))] for word in words]


def probe(train: Items, test: Items, states: Sequence, other: Sequence, control: bool, seed: int, rank: int) -> dict:
    """Scores of one layer. states, other: of the texts of `train` and `test`, [D] each or [W, D] with words.

    Classes have `accuracy`, numbers `spearman`, trees `uuas` and `spearman`; with `control` also `control` and
    `selectivity`, the difference (Hewitt and Liang 2019).
    """
    if train.kind == "tree":
        return probe_trees(train, test, states, other, seed, rank)
    if not train.per_word:
        return {"accuracy": score_classes(Ridge(np.stack(states)), train.labels, np.stack(other), test.labels)}
    (x, labels, words), (y, expected, asked) = words_with_states(train, states), words_with_states(test, other)
    name, score = ("accuracy", score_classes) if train.kind == "class" else ("spearman", score_numbers)
    ridge = Ridge(x)
    found = {name: score(ridge, labels, y, expected)}
    if control:
        drawn = control_labels(words, labels, seed), control_labels(asked, labels, seed)
        found["control"] = score(ridge, drawn[0], y, drawn[1])
        found["selectivity"] = found[name] - found["control"]
    return found


def words_with_states(part: Items, states: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(states [n, D], labels [n], words [n]) of all words of texts that were not cut off."""
    labels, words = (np.array([one for text in texts for one in text]) for texts in (part.labels, part.texts))
    features = np.concatenate(states)
    there = np.isfinite(features[:, 0])
    return features[there], labels[there], words[there]


class Mix(NamedTuple):
    """The score of a linear map of one mix of all layers, and the weight of each layer in it."""

    score: float
    weights: list[float]

    def centre(self, layers: Sequence[int]) -> float:
        """The mean number of a layer by weight: the centre of gravity (Tenney et al. 2019, section 3.3)."""
        return float(np.dot(self.weights, layers))


def probe_mix(x: np.ndarray, labels: Sequence, y: np.ndarray, expected: Sequence, numeric: bool, seed: int) -> Mix:
    """Learns sum_k softmax(s)_k h_k (Peters et al. 2018, equation 1) with a linear map of it to classes or a number.

    x [K, n, D], y [K, m, D]: states of the layers, which are standardised. The score is accuracy, or Spearman's
    correlation if `numeric`.
    """
    mean, scale = x.mean(axis=1, keepdims=True), x.std(axis=1, keepdims=True) + 1e-6
    names, targets = np.unique(np.array(labels, str), return_inverse=True)
    if numeric:
        targets = np.array(labels, np.float32)
    outputs = 1 if numeric else len(names)
    params = {"mix": jnp.zeros(len(x)), "kernel": jnp.zeros((x.shape[2], outputs)), "bias": jnp.zeros((1, outputs))}
    optimizer = optax.adam(optax.linear_schedule(MIX_RATE, 0, MIX_STEPS))

    def predict(params, states):
        mixed = jnp.einsum("K,KND->ND", jax.nn.softmax(params["mix"]), (states - mean) / scale)
        return mixed @ params["kernel"] + params["bias"]

    def loss(params, states, targets):
        found = predict(params, states)
        if numeric:
            return jnp.mean(jnp.square(found[:, 0] - targets))
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(found, targets))

    @jax.jit
    def step(params, state, *batch):
        updates, state = optimizer.update(jax.grad(loss)(params, *batch), state)
        return optax.apply_updates(params, updates), state

    state, rng = optimizer.init(params), np.random.default_rng(seed)
    for _ in range(MIX_STEPS):
        chosen = rng.integers(len(targets), size=MIX_BATCH)
        params, state = step(params, state, x[:, chosen], targets[chosen])
    found = np.asarray(predict(params, y))
    right = spearman(found[:, 0], expected) if numeric else np.mean(names[found.argmax(1)] == np.array(expected, str))
    return Mix(float(right), jax.nn.softmax(params["mix"]).tolist())


def probe_trees(train: Items, test: Items, states, other, seed: int, rank: int) -> dict:
    """The structural probe: |B (h_i - h_j)|^2 as distances in the tree (Hewitt and Manning 2019, section 2)."""
    usable = [n for n, one in enumerate(states) if 1 < len(one) <= LONGEST and np.isfinite(one).all()]
    every = np.concatenate([states[n] for n in usable])
    mean, scale = every.mean(axis=0), every.std(axis=0) + 1e-6
    longest, width = max(len(states[n]) for n in usable), every.shape[1]
    x, gold = np.zeros((len(usable), longest, width), np.float32), np.zeros((len(usable), longest, longest), np.float32)
    sizes = np.array([len(states[n]) for n in usable], np.int32)
    for row, n in enumerate(usable):
        x[row, : sizes[row]] = (states[n] - mean) / scale
        gold[row, : sizes[row], : sizes[row]] = tree_distances(train.labels[n])
    # Distances of one map serve all pairs of words: B B^T is the metric.
    matrix = _fit(x, gold, sizes, seed, min(rank, width))
    right = edges = 0
    by_length = {}
    for heads, keep, own in zip(test.labels, test.keep, other, strict=True):
        if len(own) < 2 or not np.isfinite(own).all():
            continue
        mapped = ((own - mean) / scale) @ matrix.T
        found, expected = np.square(mapped[:, None] - mapped[None]).sum(-1), tree_distances(heads)
        kept = np.flatnonzero(keep)  # punctuation does not count
        true = {tuple(sorted(pair)) for pair in zip(*np.nonzero(expected == 1), strict=True) if {*pair} <= {*kept}}
        right += len(true & {tuple(sorted((kept[a], kept[b]))) for a, b in spanning_tree(found[np.ix_(kept, kept)])})
        edges += len(true)
        if 5 <= len(own) <= 50:  # as in the paper: a mean for each length, then over lengths
            ranks = [spearman(a, b) for a, b in zip(found, expected, strict=True)]
            by_length.setdefault(len(own), []).append(np.mean(ranks))
    lengths = [np.mean(values) for values in by_length.values()]
    return {"uuas": right / max(edges, 1), "spearman": float(np.mean(lengths)) if lengths else float("nan")}


def _fit(x: np.ndarray, gold: np.ndarray, sizes: np.ndarray, seed: int, rank: int) -> np.ndarray:
    """B [rank, D] that minimises the mean of |distance - gold| over pairs, then over sentences."""
    optimizer = optax.adam(RATE)
    rng = np.random.default_rng(seed)
    matrix = jnp.asarray(rng.uniform(-0.05, 0.05, (rank, x.shape[2])), jnp.float32)

    def loss(matrix, x, gold, sizes):
        mapped = jnp.einsum("BWD,RD->BWR", x, matrix)
        found = jnp.sum(jnp.square(mapped[:, :, None] - mapped[:, None]), axis=-1)
        real = jnp.arange(x.shape[1])[None] < sizes[:, None]
        apart = jnp.abs(found - gold) * (real[:, :, None] & real[:, None])
        return jnp.mean(jnp.sum(apart, axis=(1, 2)) / jnp.square(sizes))

    @jax.jit
    def step(matrix, state, *batch):
        updates, state = optimizer.update(jax.grad(loss)(matrix, *batch), state)
        return optax.apply_updates(matrix, updates), state

    state = optimizer.init(matrix)
    for _ in range(EPOCHS):
        order = rng.permutation(len(x))
        # Whole batches alone: another size would be compiled again.
        for first in range(0, max(len(x) - BATCH, 0) + 1, BATCH):
            chosen = order[first : first + BATCH]
            matrix, state = step(matrix, state, x[chosen], gold[chosen], sizes[chosen])
    return np.asarray(matrix)


def spanning_tree(distances: np.ndarray) -> list[tuple[int, int]]:
    """The edges of the minimum spanning tree of distances [W, W] (Prim)."""
    near, nearest, edges = distances[:1].copy(), np.zeros(len(distances), int), []
    near = near.reshape(-1)
    outside = np.ones(len(distances), bool)
    outside[:1] = False
    while outside.any():
        new = int(np.where(outside, near, np.inf).argmin())
        edges.append((int(nearest[new]), new))
        outside[new] = False
        closer = distances[new] < near
        near, nearest = np.where(closer, distances[new], near), np.where(closer, new, nearest)
    return edges

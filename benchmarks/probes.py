"""What a pretrained encoder knows of other tasks: of parts of speech as it is, of labels of sentences once tuned."""

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import pretrain
from benchmarks.report import Result
from pretrain import config as configs

ROWS = 32
RATES, STARTS, EPOCHS = (1e-4, 3e-4), 3, 2  # of what is trained on


def of(name: str, workdir: Path, asked: Mapping[str, Sequence[str]], untrained: bool = False) -> list[Result]:
    """The figures of a run called `name` by the files that are asked for: `probe` two, `tune` three.

    `untrained` takes its model, and none of its weights.
    """
    encoder, found = Encoder(workdir, untrained), []
    if "probe" in asked:
        found.append(Result(f"{name}, accuracy of the probe", probed(encoder, asked["probe"]), ""))
    if "tune" in asked:
        shares = tuned(encoder, asked["tune"])
        mean, spread = float(np.mean(shares)), (min(shares), max(shares))
        found.append(Result(f"{name}, accuracy once tuned, mean of {STARTS}", mean, "", spread=spread))
    return found


class Encoder:
    """The model of a run, for texts of at most `length` tokens, as its rows have."""

    def __init__(self, workdir: Path, untrained: bool = False):
        self._run, self._untrained = pretrain.open(str(workdir)), untrained
        self.encode, self.length = self._run.tokenizer.encode, configs.saved(str(workdir)).data.length

    def variables(self, seed: int):
        """The run's own; of what is `untrained` others by each seed."""
        if self._untrained:
            return nn.meta.unbox(self._run.model.init(jax.random.key(seed), **self._run.model.example()))
        return self._run.variables

    def hidden(self, variables, tokens):
        """The last states of rows of ids: [rows, length, width]."""
        return self._run.model.apply(variables, tokens.clip(0), segments=(tokens >= 0).astype("int32")).hidden


def padded(texts: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """[texts, length] of ids, cut off where a row ends, and -1 behind a text's end."""
    ids = np.full((len(texts), length), -1, np.int32)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text[:length]
    return ids


def probed(encoder: Encoder, files: Sequence[str]) -> float:
    """The share of words of the second file whose part of speech a linear map of a model's hidden states tells.

    A word's state is that of its first piece. The map is fitted to the first file by least squares with a little decay.
    """
    variables, hidden = encoder.variables(0), jax.jit(encoder.hidden)

    def states(file: str) -> tuple[np.ndarray, np.ndarray]:
        """([words, D + 1], [words]): the states and a one, and the tags."""
        sentences, found, tags = tagged(file), [], []
        for first in range(0, len(sentences), ROWS):
            texts, places = [], []
            for sentence in sentences[first : first + ROWS]:
                texts.append([])
                for word, tag in sentence:
                    pieces = encoder.encode(word)
                    places.append((len(texts) - 1, len(texts[-1]), tag if len(pieces) else None))
                    texts[-1].extend(pieces)
            ids = padded(texts + [[]] * (ROWS - len(texts)), encoder.length)
            there = [(row, place, tag) for row, place, tag in places if tag is not None and place < ids.shape[1]]
            rows, columns, names = zip(*there, strict=True)
            found.append(np.asarray(hidden(variables, ids))[rows, columns])
            tags += names
        states = np.concatenate(found).astype(np.float64)
        return np.concatenate([states, np.ones((len(states), 1))], axis=1), np.array(tags)

    (x, tags), (x_new, tags_new) = map(states, files)
    known = np.unique(tags)
    weights = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ (tags[:, None] == known))
    return float(np.mean(known[np.argmax(x_new @ weights, axis=1)] == tags_new))


def tagged(file: str) -> list[list[tuple[str, str]]]:
    """The sentences of a gzipped CoNLL-U file, as words with their parts of speech."""
    with gzip.open(file, "rt", encoding="utf-8") as text:
        sentences = [block.splitlines() for block in text.read().split("\n\n") if block.strip()]
    fields = [[line.split("\t") for line in lines if not line.startswith("#")] for lines in sentences]
    return [[(line[1], line[3]) for line in lines if line[0].isdigit()] for lines in fields]


def tuned(encoder: Encoder, files: Sequence[str]) -> list[float]:
    """The shares of sentences of the third file whose label a model tells, one of each of STARTS trainings.

    Model and a linear map of the mean of its last states are trained on the first file, by Adam with decay, for EPOCHS,
    at that of RATES which tells most of the second file.
    """
    ids, labels = zip(*(labelled(encoder, file) for file in files), strict=True)
    known, train = np.unique(labels[0]), ids[0]
    wanted = np.searchsorted(known, labels[0])
    count = len(train) // ROWS * ROWS
    steps = EPOCHS * count // ROWS
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(),
        optax.add_decayed_weights(0.01),
        optax.scale_by_schedule(optax.warmup_cosine_decay_schedule(0, -1, steps // 10, steps)),
    )

    def scores(params, tokens):
        there = (tokens >= 0)[..., None]
        mean = (encoder.hidden(params["model"], tokens) * there).sum(1) / there.sum(1).clip(1)
        return mean @ params["map"] + params["bias"]

    def loss(params, tokens, targets):
        return optax.softmax_cross_entropy_with_integer_labels(scores(params, tokens), targets).mean()

    @jax.jit
    def update(params, state, rate, tokens, targets):
        updates, state = optimizer.update(jax.grad(loss)(params, tokens, targets), state, params)
        return optax.apply_updates(params, jax.tree.map(lambda leaf: rate * leaf, updates)), state

    told = jax.jit(lambda params, tokens: scores(params, tokens).argmax(-1))

    def share(params, tokens, names) -> float:
        rows = np.concatenate([tokens, np.full((-len(tokens) % ROWS, tokens.shape[1]), -1, np.int32)])
        found = np.concatenate([told(params, rows[at : at + ROWS]) for at in range(0, len(rows), ROWS)])
        return float(np.mean(known[found[: len(names)]] == names))

    def trained(rate: float, start: int) -> tuple[float, float]:
        """The shares of the second file and of the third."""
        variables, random = encoder.variables(start), np.random.default_rng(start)
        width = jax.eval_shape(encoder.hidden, variables, train[:1]).shape[-1]
        params = {"model": variables, "map": jnp.zeros((width, len(known))), "bias": jnp.zeros((1, len(known)))}
        state = optimizer.init(params)
        for _ in range(EPOCHS):
            for batch in random.permutation(len(train))[:count].reshape(-1, ROWS):
                params, state = update(params, state, rate, train[batch], wanted[batch])
        return share(params, ids[1], labels[1]), share(params, ids[2], labels[2])

    by_rate = [[trained(rate, start) for start in range(STARTS)] for rate in RATES]
    best = max(by_rate, key=lambda found: np.mean([chosen for chosen, _ in found]))
    return [scored for _, scored in best]


def labelled(encoder: Encoder, file: str) -> tuple[np.ndarray, np.ndarray]:
    """(rows of ids, labels) of a gzipped file of lines, each a sentence, a tab and its label."""
    with gzip.open(file, "rt", encoding="utf-8") as text:
        lines = [line.rstrip("\n").rpartition("\t") for line in text]
    rows = padded([encoder.encode(sentence) for sentence, _, _ in lines], encoder.length)
    return rows, np.array([label for *_, label in lines])

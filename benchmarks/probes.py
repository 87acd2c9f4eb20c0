"""Probe a pretrained encoder for parts of speech, and fine-tune it on labelled sentences."""

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
RATES, STARTS, EPOCHS = (1e-4, 3e-4), 3, 2  # of fine-tuning


def evaluate(name: str, workdir: Path, files: Mapping[str, Sequence[str]], untrained: bool = False) -> list[Result]:
    """Results of a run on the files of `probe` and `tune`; `untrained` takes its model with random weights."""
    encoder, results = Encoder(workdir, untrained), []
    if "probe" in files:
        results.append(Result(f"{name}, accuracy of the probe", probe(encoder, files["probe"]), ""))
    if "tune" in files:
        accuracies = tune(encoder, files["tune"])
        mean, spread = float(np.mean(accuracies)), (min(accuracies), max(accuracies))
        results.append(Result(f"{name}, accuracy once tuned, mean of {STARTS}", mean, "", spread=spread))
    return results


class Encoder:
    """The model of a run, for texts of at most `length` tokens, its row length."""

    def __init__(self, workdir: Path, untrained: bool = False):
        self._run, self._untrained = pretrain.open(str(workdir)), untrained
        self.encode, self.length = self._run.tokenizer.encode, configs.saved(str(workdir)).data.length

    def variables(self, seed: int):
        """The run's weights, or random ones if `untrained`."""
        if self._untrained:
            return nn.meta.unbox(self._run.model.init(jax.random.key(seed), **self._run.model.example()))
        return self._run.variables

    def hidden(self, variables, tokens):
        """Last hidden states [rows, length, width] of ids; negative ids are padding."""
        return self._run.model.apply(variables, tokens.clip(0), segments=(tokens >= 0).astype("int32")).hidden


def pad(texts: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """Ids [texts, length], truncated, and padded with -1."""
    ids = np.full((len(texts), length), -1, np.int32)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text[:length]
    return ids


def probe(encoder: Encoder, files: Sequence[str]) -> float:
    """Accuracy on the second file of parts of speech by a ridge regression that is fitted to the first.

    A word's state is that of its first piece.
    """
    variables, hidden = encoder.variables(0), jax.jit(encoder.hidden)

    def states(file: str) -> tuple[np.ndarray, np.ndarray]:
        """(states with a constant [words, D + 1], tags [words]) of a file."""
        sentences, chunks, tags = read_tags(file), [], []
        for first in range(0, len(sentences), ROWS):
            texts, places = [], []
            for sentence in sentences[first : first + ROWS]:
                texts.append([])
                for word, tag in sentence:
                    pieces = encoder.encode(word)
                    places.append((len(texts) - 1, len(texts[-1]), tag if len(pieces) else None))
                    texts[-1].extend(pieces)
            ids = pad(texts + [[]] * (ROWS - len(texts)), encoder.length)
            valid = [(row, place, tag) for row, place, tag in places if tag is not None and place < ids.shape[1]]
            rows, columns, names = zip(*valid, strict=True)
            chunks.append(np.asarray(hidden(variables, ids))[rows, columns])
            tags += names
        states = np.concatenate(chunks).astype(np.float64)
        return np.concatenate([states, np.ones((len(states), 1))], axis=1), np.array(tags)

    (x, tags), (x_new, tags_new) = map(states, files)
    labels = np.unique(tags)
    weights = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ (tags[:, None] == labels))
    return float(np.mean(labels[np.argmax(x_new @ weights, axis=1)] == tags_new))


def read_tags(file: str) -> list[list[tuple[str, str]]]:
    """Sentences of a gzipped CoNLL-U file, as (word, part of speech) pairs."""
    with gzip.open(file, "rt", encoding="utf-8") as text:
        sentences = [block.splitlines() for block in text.read().split("\n\n") if block.strip()]
    fields = [[line.split("\t") for line in lines if not line.startswith("#")] for lines in sentences]
    return [[(line[1], line[3]) for line in lines if line[0].isdigit()] for lines in fields]


def tune(encoder: Encoder, files: Sequence[str]) -> list[float]:
    """Accuracies on the third file after fine-tuning on the first, from STARTS starts.

    A linear map of the mean last state is trained with the model by AdamW for EPOCHS, at the one of RATES that is best
    on the second file.
    """
    ids, labels = zip(*(read_labels(encoder, file) for file in files), strict=True)
    classes, train = np.unique(labels[0]), ids[0]
    targets = np.searchsorted(classes, labels[0])
    count = len(train) // ROWS * ROWS
    steps = EPOCHS * count // ROWS
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(),
        optax.add_decayed_weights(0.01),
        optax.scale_by_schedule(optax.warmup_cosine_decay_schedule(0, -1, steps // 10, steps)),
    )

    def scores(params, tokens):
        valid = (tokens >= 0)[..., None]
        mean = (encoder.hidden(params["model"], tokens) * valid).sum(1) / valid.sum(1).clip(1)
        return mean @ params["map"] + params["bias"]

    def loss(params, tokens, targets):
        return optax.softmax_cross_entropy_with_integer_labels(scores(params, tokens), targets).mean()

    @jax.jit
    def update(params, state, rate, tokens, targets):
        updates, state = optimizer.update(jax.grad(loss)(params, tokens, targets), state, params)
        return optax.apply_updates(params, jax.tree.map(lambda leaf: rate * leaf, updates)), state

    predict = jax.jit(lambda params, tokens: scores(params, tokens).argmax(-1))

    def accuracy(params, tokens, names) -> float:
        rows = np.concatenate([tokens, np.full((-len(tokens) % ROWS, tokens.shape[1]), -1, np.int32)])
        predictions = np.concatenate([predict(params, rows[i : i + ROWS]) for i in range(0, len(rows), ROWS)])
        return float(np.mean(classes[predictions[: len(names)]] == names))

    def train_once(rate: float, start: int) -> tuple[float, float]:
        """Accuracy on the second and third file."""
        variables, random = encoder.variables(start), np.random.default_rng(start)
        width = jax.eval_shape(encoder.hidden, variables, train[:1]).shape[-1]
        params = {"model": variables, "map": jnp.zeros((width, len(classes))), "bias": jnp.zeros((1, len(classes)))}
        state = optimizer.init(params)
        for _ in range(EPOCHS):
            for batch in random.permutation(len(train))[:count].reshape(-1, ROWS):
                params, state = update(params, state, rate, train[batch], targets[batch])
        return accuracy(params, ids[1], labels[1]), accuracy(params, ids[2], labels[2])

    by_rate = [[train_once(rate, start) for start in range(STARTS)] for rate in RATES]
    best = max(by_rate, key=lambda pairs: np.mean([development for development, _ in pairs]))
    return [test for _, test in best]


def read_labels(encoder: Encoder, file: str) -> tuple[np.ndarray, np.ndarray]:
    """(ids, labels) of a gzipped file with a sentence, a tab and its label on each line."""
    with gzip.open(file, "rt", encoding="utf-8") as text:
        lines = [line.rstrip("\n").rpartition("\t") for line in text]
    rows = pad([encoder.encode(sentence) for sentence, _, _ in lines], encoder.length)
    return rows, np.array([label for *_, label in lines])

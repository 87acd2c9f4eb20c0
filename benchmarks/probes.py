"""Probe a pretrained encoder for parts of speech."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from flax import linen as nn

import pretrain
from benchmarks.report import Result
from pretrain import config as configs

ROWS = 32


def evaluate(name: str, workdir: Path, files: Sequence[str], untrained: bool = False) -> list[Result]:
    """Result of a run on two files of tags, if there are any; `untrained` takes its model with random weights."""
    if not files:
        return []
    return [Result(f"{name}, accuracy of the probe", probe(Encoder(workdir, untrained), files), "")]


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

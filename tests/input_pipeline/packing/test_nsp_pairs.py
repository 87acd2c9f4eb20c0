"""Sentence pairs equal those of the released algorithm."""

import itertools
import random

import numpy as np
import pytest

from input_pipeline.packing import nsp_pairs


class Draws(random.Random):
    """Each draw takes one random number, so that both algorithms see the same ones."""

    def randint(self, a, b):
        return a + int(self.random() * (b - a + 1))


def released(documents, length, short, passes, seed, swapped=False):
    """Devlin et al.'s procedure, sentence by sentence: (tokens of A, tokens of B, whether B is random) in order.

    Or Lan et al.'s, where the two are swapped, and random where there is one sentence alone.
    """
    rng, made = Draws(seed), []
    for _ in range(passes):
        for index, document in enumerate(documents):
            most = length - 3
            target = rng.randint(2, most) if rng.random() < short else most
            chunk, size, i = [], 0, 0
            while i < len(document):
                chunk.append(document[i])
                size += len(document[i])
                if i == len(document) - 1 or size >= target:
                    a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
                    first = [token for sentence in chunk[:a_end] for token in sentence]
                    second = []
                    is_random = len(chunk) == 1 or rng.random() < 0.5
                    if is_random and swapped and len(chunk) > 1:
                        second = first
                        first = [token for sentence in chunk[a_end:] for token in sentence]
                    elif is_random:
                        for _ in range(10):
                            other = rng.randint(0, len(documents) - 1)
                            if other != index:
                                break
                        for sentence in documents[other][rng.randint(0, len(documents[other]) - 1) :]:
                            second.extend(sentence)
                            if len(second) >= target - len(first):
                                break
                        i -= len(chunk) - a_end
                    else:
                        second = [token for sentence in chunk[a_end:] for token in sentence]
                    while len(first) + len(second) > most:
                        longer = first if len(first) > len(second) else second
                        if rng.random() < 0.5:
                            del longer[0]
                        else:
                            longer.pop()
                    made.append((first, second, is_random))
                    chunk, size = [], 0
                i += 1
    return made


def place(sizes):
    """Documents of sentences of these sizes, each token its place in the joined text."""
    count = iter(range(10**9))
    return [[[next(count) for _ in range(size)] for size in document] for document in sizes]


def make_pairs(sizes, *options, **more):
    """The pairs of `nsp_pairs.make_pairs`, as `released` gives them."""
    bounds = np.cumsum([0, *itertools.chain.from_iterable(sizes)])
    parts = nsp_pairs.make_pairs(bounds, np.cumsum([0, *map(len, sizes)]), *options, **more)
    rows = zip(*(np.concatenate(field).tolist() for field in zip(*parts, strict=True)), strict=True)
    return [(list(range(a, a + n)), list(range(b, b + m)), is_random) for a, n, b, m, is_random in rows]


@pytest.mark.parametrize("swapped", [False, True], ids=["random", "swapped"])
@pytest.mark.parametrize(("length", "short", "passes"), [(128, 0.1, 2), (16, 0.5, 3), (5, 1.0, 1)])
def test_make_pairs_matches_release(length, short, passes, swapped, monkeypatch):
    monkeypatch.setattr(nsp_pairs, "BLOCK", 10)
    draw = np.random.default_rng(0)
    sizes = [draw.geometric(0.1, draw.integers(1, 60)).tolist() for _ in range(60)]
    pairs = make_pairs(sizes, length, short, passes, swapped, seed=7)
    assert pairs == released(place(sizes), length, short, passes, 7, swapped)


def test_make_pairs_lone_document():
    sizes = [[3, 2, 9]]
    assert make_pairs(sizes, 12, 0.1, 4) == released(place(sizes), 12, 0.1, 4, nsp_pairs.SEED)

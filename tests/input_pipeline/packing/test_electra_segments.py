"""Rows of one or two segments, drawn as in the release of ELECTRA."""

import itertools
import random

import numpy as np
import pytest

from input_pipeline.packing import electra_segments

LENGTH = 24
NAMES = ("originals", "types", "segments", "token_weights")


def split(sizes, length, seed):
    """(tokens of the first segment, of the second) of each row of the plan, as places in the text."""
    bounds = np.cumsum([0, *itertools.chain.from_iterable(sizes)])
    parts = list(electra_segments.split(bounds, np.cumsum([0, *map(len, sizes)]), length, seed))
    first, starts, sizes, second = (np.concatenate(column) for column in zip(*parts, strict=True))
    for begin, end in itertools.pairwise(first):
        row = [[], []]
        for piece in range(begin, end):
            row[int(second[piece])] += range(starts[piece], starts[piece] + sizes[piece])
        yield row


def token_by_token(documents, length, seed):
    """The same from lists of tokens, one sentence after another."""
    generator, target, token, waiting, made = random.Random(seed), length, 0, [], []

    def close():
        nonlocal target
        alone = generator.random() < 0.1
        one, other = [], []
        for sentence in waiting:
            least = (target - 3) // 2
            if not one or alone or len(one + sentence) < least:
                one += sentence
            elif other or len(one) >= least:
                other += sentence
            else:
                (one if generator.random() < 0.5 else other).extend(sentence)
        one = one[: length - 2]
        made.append([one, other[: max(0, length - 3 - len(one))]])
        waiting.clear()
        target = generator.randint(5, length) if generator.random() < 0.05 else length

    for document in documents:
        for size in document:
            waiting.append(list(range(token, token + size)))
            token += size
            if sum(map(len, waiting)) >= target:
                close()
        if waiting:
            close()
    return made


def test_split_matches_release():
    draw = np.random.default_rng(0)
    documents = [draw.integers(1, 14, draw.integers(1, 40)).tolist() for _ in range(120)] + [[70], [1]]
    expected = token_by_token(documents, LENGTH, seed=7)
    assert list(split(documents, LENGTH, seed=7)) == expected
    alone = np.mean([not other for _, other in expected])
    assert 0.1 < alone < 0.3 and len(expected) > 500  # documents' ends are alone too
    skipped = [one for one, _ in expected if one and one[-1] - one[0] >= len(one)]
    assert skipped  # a sentence that was too long for the first segment, between two of it


@pytest.fixture
def corpus(prepare, write):
    """Documents of some sentences of letters, one sentence a line."""
    letters = np.random.default_rng(1).integers(0, 26, 4000)
    lines = ["".join(chr(97 + letter) for letter in part) for part in np.array_split(letters, 500)]
    path = write("a.txt", "\n\n".join("\n".join(lines[n : n + 10]) for n in range(0, 500, 10)))
    return prepare(
        f"text:{path}?document=blank_line",
        objective={"kind": "replaced"},
        layout="halves",
        length=LENGTH,
        sentences="lines",
    )


def test_halves_frame_segments(corpus):
    special = corpus.tokenizer.special
    first, last = special["classifier"], special["separator"]
    ids = np.empty(corpus.stream("train").tokens, np.int32)
    corpus.stream("train").copy(0, ids)
    text = corpus.tokenizer.decode(ids[ids < 256])
    seen = set()
    for batch in corpus.evaluation("train", length=LENGTH, stride=0, batch_size=8).batches():
        for ids, types, segments, weights in zip(*(batch[name] for name in NAMES), strict=True):
            size = int(segments.sum())
            if not size:
                continue
            assert ids[0] == first and ids[size - 1] == last and (segments == (np.arange(LENGTH) < size)).all()
            assert (weights == segments).all() and not types[size:].any() and not ids[size:].any()
            inside = np.flatnonzero(ids[: size - 1] == last)
            one = int(types.argmax()) if types.any() else size
            assert inside.tolist() == ([one - 1] if types.any() else [])
            assert types[one:size].all() and not types[:one].any()
            for part in (ids[1 : one - 1], ids[one : size - 1]):
                pieces = corpus.tokenizer.decode(part)
                assert pieces in text or pieces[:4] in text  # a first segment may leave a sentence out
            seen.add(bool(types.any()))
    assert seen == {True, False}

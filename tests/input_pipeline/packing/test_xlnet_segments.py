"""Rows of text and two segments: their places in the text, in both directions, and how lanes continue."""

import itertools

import numpy as np
import pytest
from read_batches import take

from input_pipeline.packing.xlnet_segments import truncate

OBJECTIVE = {"kind": "permutation", "reuse": 16, "perm_size": 16, "predictions": 6}
WORDS = {"kind": "sentencepiece", "vocab_size": 300, "train_bytes": 100_000}
LENGTH = 48


@pytest.fixture
def lines(write):
    """Documents of numbered sentences, one a line."""
    for document in range(6):
        text = "\n".join(f"line {line} of text {document} has {'more ' * (line % 4)}words." for line in range(20))
        path = write(f"lines/{document}.txt", text + "\n")
    return f"text:{path.rsplit('/', 1)[0]}/*.txt"


@pytest.fixture(params=["lines", ""], ids=["sentences", "anywhere"])
def corpus(request, prepare, lines):
    return prepare(lines, tokenizer=WORDS, objective=OBJECTIVE, layout="stream", sentences=request.param, length=LENGTH)


def ids_of(corpus):
    ids = np.empty(corpus.stream("train").tokens, np.int32)
    corpus.stream("train").copy(0, ids)
    return ids


def test_lanes_continue_in_both_directions(corpus):
    """The text of each lane's rows, joined, is the stream's, or the stream's back to front, from some place on."""
    special, ids = corpus.tokenizer.special, ids_of(corpus)
    found = take(corpus, 9)
    assert found[0]["reset"].all() and not any(batch["reset"].any() for batch in found[1:])
    twice = {False: np.concatenate([ids, ids]), True: np.concatenate([ids, ids])[::-1]}
    labels = []
    for lane in range(8):
        back = lane >= 4
        assert all(batch["backward"][lane] == back for batch in found)
        joined = np.concatenate([batch["tokens"][lane, :16] for batch in found])
        windows = np.lib.stride_tricks.sliding_window_view(twice[back], len(joined))
        places = np.flatnonzero((windows == joined).all(1))
        assert len(places)
        for batch in found:
            tokens, types = batch["tokens"][lane], batch["types"][lane]
            middle = int(np.flatnonzero(tokens[16:] == special["separator"])[0]) + 16
            assert tokens[-2] == special["separator"] and tokens[-1] == special["classifier"]
            assert types.tolist() == [0] * (middle + 1) + [1] * (LENGTH - middle - 2) + [2]
            first, second = tokens[16:middle], tokens[middle + 1 : -2]
            assert len(first) + len(second) == LENGTH - 16 - 3 and min(len(first), len(second)) > 0
            text = np.concatenate([tokens[:16], first])
            windows = np.lib.stride_tricks.sliding_window_view(twice[back], len(text))
            at = np.flatnonzero((windows == text).all(1))
            assert len(at)
            behind = [place + len(text) for place in at]  # where A ended before it was cut
            stretches = (twice[back][b + more :][: len(second)] for b in behind for more in range(LENGTH))
            labels.append(any(np.array_equal(stretch, second) for stretch in stretches))
    assert 0.2 < np.mean(labels) < 0.8


def test_segments_end_with_sentences(prepare, lines):
    """A ends where a sentence does, unless it was longer than half and cut."""
    corpus = prepare(lines, tokenizer=WORDS, objective=OBJECTIVE, layout="stream", sentences="lines", length=LENGTH)
    special, whole = corpus.tokenizer.special, 0
    for batch in take(corpus, 6):
        for tokens, back in zip(batch["tokens"], batch["backward"], strict=True):
            middle = int(np.flatnonzero(tokens[16:] == special["separator"])[0]) + 16
            first = tokens[16:middle]
            if len(first) > 14:  # of 29
                continue
            text = corpus.tokenizer.decode(first[::-1] if back else first)
            whole += 1
            ending = text.startswith("line"[: len(text)]) if back else text.endswith("words."[-len(text) :])
            assert ending, text
    assert whole > 5


def test_truncate_matches_release():
    for first, second, room in itertools.product(range(1, 12), range(1, 12), range(2, 9)):
        if first + second >= room:
            a, b = first, second
            while a + b > room:
                a, b = (a - 1, b) if a > b else (a, b - 1)
            assert truncate(first, second, room) == (a, b)


@pytest.mark.parametrize("size", [1, 4, 4000])
def test_evaluation_scores_no_text_twice(corpus, size):
    """Forwards, however many rows a batch has: those beyond the text are padding."""
    scored = corpus.evaluation("train", length=LENGTH, stride=0, batch_size=size, rows=np.arange(size + 1))
    found, tokens = list(scored.batches()), corpus.stream("train").tokens
    for batch in found:
        assert not batch["backward"].any() and not batch["segments"][size].any() and not batch["weights"][size].any()
    read = [batch["tokens"][row, :16] for row in range(size) for batch in found if batch["segments"][row].any()]
    whole = tokens // 16
    assert len(read) == whole < 4000 if size == 4000 else whole - size < len(read) <= whole
    np.testing.assert_array_equal(np.concatenate(read)[:64], ids_of(corpus)[:64])

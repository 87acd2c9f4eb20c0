"""FULL-SENTENCES (Liu et al. 2019), against a loop over sentences."""

import numpy as np
import pytest
from read_batches import restore_masked

from input_pipeline.packing import full_sentences
from input_pipeline.token_store.store import NOTHING

END, FIRST, BETWEEN = 1, 2, 3
SPECIAL = {"end": END, "classifier": FIRST, "separator": BETWEEN}


class Text:
    """Documents as a stream has them: `end doc end doc ...`, each sentence a stretch of ids from 10 on."""

    def __init__(self, documents):
        count = iter(range(10, 10**9))
        self.documents = [[[next(count) for _ in range(size)] for size in document] for document in documents]
        self.ids = [token for document in self.documents for token in [END, *(t for s in document for t in s)]]

        self.counts, self.identity = NOTHING._replace(documents=len(documents)), "text"
        self.starts = np.cumsum([1, *(1 + sum(map(len, document)) for document in self.documents)])

    def document(self, number):
        return int(self.starts[number]), int(self.starts[number + 1] - self.starts[number]) - 1

    def sentences(self, number):
        return np.cumsum([len(sentence) for sentence in self.documents[number]])

    def copy(self, start, out):
        out[:] = self.ids[start : start + len(out)]


def published(documents, length):
    """Rows of ids: <s>, sentences while they fit, a separator where a document ends within, </s>."""
    room, rows, row, last = length - 2, [], [], None
    pieces = []
    for number, document in enumerate(documents):
        for sentence in document:
            pieces += [(number, sentence[at : at + room]) for at in range(0, len(sentence), room)]
    for number, piece in pieces:
        more = [BETWEEN] * (bool(row) and number != last) + piece
        if len(row) + len(more) > room:
            rows.append(row)
            row, more = [], piece
        row, last = row + more, number
    return [[FIRST, *row, BETWEEN] for row in [*rows, row] if row]


class Cache:
    """Plans in memory."""

    def load(self, kind, name, build, action):
        return kind(*(np.concatenate(field) for field in zip(*build(), strict=True)))


def read(text, length):
    return full_sentences.Sentences(text, length, SPECIAL, Cache())


def test_sentences_literal():
    layout = read(Text([[2, 2], [1], [4, 1]]), 8)
    raw = layout.read(np.arange(len(layout)))
    assert raw.ids.tolist() == [[2, 10, 11, 12, 13, 3, 14, 3], [2, 15, 16, 17, 18, 19, 3, 0]]
    assert raw.following.tolist()[0][:7] == raw.ids.tolist()[0][1:]
    assert raw.segments.tolist() == [[1] * 8, [1] * 7 + [0]]
    assert raw.positions.tolist() == [[*range(8)], [*range(7), 0]]
    assert raw.scored.tolist() == [[True] * 8, [True] * 7 + [False]]


def test_sentences_longer_than_a_row():
    layout = read(Text([[1, 7, 2]]), 5)
    ids = layout.read(np.arange(len(layout))).ids
    assert ids.tolist() == [[2, 10, 3, 0, 0], [2, 11, 12, 13, 3], [2, 14, 15, 16, 3], [2, 17, 18, 19, 3]]


@pytest.mark.parametrize(("length", "block"), [(16, 1), (128, 7), (512, 100)])
def test_sentences_match_paper(length, block, monkeypatch):
    """However much of the text is planned at a time."""
    draw = np.random.default_rng(0)
    text = Text([draw.geometric(0.1, draw.integers(1, 60)).tolist() for _ in range(60)])
    monkeypatch.setattr(full_sentences, "BLOCK", block)
    layout = read(text, length)
    raw = layout.read(np.arange(len(layout)))
    found = [ids[:size].tolist() for ids, size in zip(raw.ids, raw.segments.sum(1), strict=True)]
    assert found == published(text.documents, length)
    some = np.array([1, 0])
    np.testing.assert_array_equal(layout.read(some).ids, raw.ids[some])


DOCUMENTS = [["a dog.", "it sleeps."], ["another."], ["the cat sees it.", "so it is."]]


@pytest.mark.parametrize("length", [14, 60])
def test_sentences_of_a_corpus(prepare, write, length):
    """With ids of its own for what frames rows and masks; evaluation reads each once, in order."""
    text = "\n\n".join("\n".join(document) for document in DOCUMENTS)
    source = f"text:{write('a.txt', text)}?document=blank_line"
    objective = {"kind": "masked", "next_sentence": False, "rounding": "random", "candidates": "any"}
    corpus = prepare(source, objective=objective, sentences="lines", layout="sentences", length=length)
    special = corpus.tokenizer.special
    assert {"end", "mask", "classifier", "separator"} <= special.keys() and corpus.tokenizer.vocab_size == 260
    found = []
    for batch in corpus.evaluation("train", length=length, stride=0, batch_size=2).batches():
        rows = zip(restore_masked(batch), batch["segments"], strict=True)
        found += [ids[there > 0].tolist() for ids, there in rows]
    names = {FIRST: special["classifier"], BETWEEN: special["separator"]}
    # Bytes are moved apart from the ids that stand for names.
    moved = [[[token + 1000 for token in sentence.encode()] for sentence in document] for document in DOCUMENTS]
    expected = [[names.get(i, i - 1000) for i in row] for row in published(moved, length)]
    assert [row for row in found if row] == expected

"""FULL-SENTENCES (Liu et al. 2019), against a loop over sentences."""

from pathlib import Path

import numpy as np
import pytest

from configs import common
from input_pipeline import pipeline
from input_pipeline.io import Folders
from input_pipeline.packing import full_sentences

ROOT = Path(__file__).resolve().parents[3]
END, FIRST, BETWEEN = 1, 2, 3


class Text:
    """Documents as a stream has them: `end doc end doc ...`, each sentence a stretch of ids from 10 on."""

    def __init__(self, documents):
        count = iter(range(10, 10**9))
        self.documents = [[[next(count) for _ in range(size)] for size in document] for document in documents]
        self.ids = [token for document in self.documents for token in [END, *(t for s in document for t in s)]]

    def bounds(self):
        """What `filled` takes."""
        place, starts, ends = 0, [], []
        for document in self.documents:
            place += 1
            for sentence in document:
                starts.append(place)
                place += len(sentence)
                ends.append(place)
        return np.array(starts, np.int64), np.array(ends, np.int64)

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


def read(text, length, block=None):
    starts, ends = text.bounds()
    cuts = range(0, len(starts), block or max(len(starts), 1))
    parts = list(full_sentences.pack(((starts[c : c + cuts.step], ends[c : c + cuts.step]) for c in cuts), length))
    plan = full_sentences.Plan(*(np.concatenate(field) for field in zip(*parts, strict=True)))
    return full_sentences.Sentences(text, plan, length, END, FIRST, BETWEEN)


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


@pytest.mark.parametrize("length", [16, 128, 512])
@pytest.mark.parametrize("block", [None, 1, 7])
def test_sentences_match_paper(length, block):
    """Words of this project's own pages and modules, however much of it is planned at a time."""
    paths = sorted((ROOT / "input_pipeline").rglob("*.py"))[:20] + sorted((ROOT / "docs").glob("*.md"))[:4]
    text = Text([[len(line.split()) for line in path.read_text().split("\n") if line.split()] for path in paths])
    layout = read(text, length, block)
    raw = layout.read(np.arange(len(layout)))
    found = [ids[:size].tolist() for ids, size in zip(raw.ids, raw.segments.sum(1), strict=True)]
    assert found == published(text.documents, length)
    some = np.array([1, 0])
    np.testing.assert_array_equal(layout.read(some).ids, raw.ids[some])


DOCUMENTS = [["a dog.", "it sleeps."], ["another."], ["the cat sees it.", "so it is."]]


def sections(tmp_path, length, **tokenizer):
    """The sections data, tokenizer and objective of RoBERTa's rows of DOCUMENTS."""
    text = "\n\n".join("\n".join(document) for document in DOCUMENTS)
    (tmp_path / "a.txt").write_text(text)
    config = common.base()
    config.objective = common.masked()
    config.objective.update(next_sentence=False, rounding="random", candidates="any", max_predictions=9)
    config.data.update(train=f"text:{tmp_path}/a.txt?document=blank_line", sentences="lines", layout="sentences")
    config.data.update(length=length, holdout=0.0)
    config.tokenizer.update(tokenizer or {"kind": "bytes"})
    return config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict()


def prepared(tmp_path, *given):
    folders = Folders(tmp_path / "run" / "tokenizer", tmp_path / "run" / "data")
    return pipeline.prepare(*given, folders, report=lambda message: None)


@pytest.mark.parametrize("length", [14, 24, 60])
def test_sentences_of_a_corpus(tmp_path, length):
    """With ids of its own for what frames rows and masks; evaluation reads each once, in order."""
    corpus = prepared(tmp_path, *sections(tmp_path, length))
    special = corpus.tokenizer.special
    assert {"end", "mask", "classifier", "separator"} <= special.keys() and corpus.tokenizer.vocab_size == 260
    found = []
    for batch in corpus.evaluation("train", length=length, stride=0, batch_size=2).batches():
        rows, places = np.nonzero(batch["weights"] > 0)
        batch["tokens"][rows, batch["slots"][rows, places]] = batch["targets"][rows, places]
        found += [ids[there > 0].tolist() for ids, there in zip(batch["tokens"], batch["segments"], strict=True)]
    names = {FIRST: special["classifier"], BETWEEN: special["separator"]}
    ids = [[list(sentence.encode()) for sentence in document] for document in DOCUMENTS]
    moved = [[[token + 1000 for token in sentence] for sentence in document] for document in ids]  # apart from names
    expected = [[names.get(i, i - 1000) for i in row] for row in published(moved, length)]
    assert [row for row in found if row] == expected

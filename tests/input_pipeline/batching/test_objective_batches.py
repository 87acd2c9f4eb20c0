"""Batches of objectives from text to features, whichever host reads them, whatever the batch size."""

import numpy as np
import pytest
from read_batches import restore_masked, take

WORDPIECE = {"kind": "wordpiece", "vocab_size": 150}
SENTINELS = {"kind": "bytes", "sentinels": 100}


@pytest.fixture
def sentences(write):
    """Ten documents of numbered sentences, one a line."""
    for document in range(10):
        lines = [f"w{document} s{line} " + "x " * (line % 5) for line in range(3 + 2 * document)]
        path = write(f"sentences/{document}.txt", "\n".join(lines) + "\n")
    return f"text:{path.rsplit('/', 1)[0]}/*.txt"


@pytest.fixture
def paired(prepare, sentences):
    return prepare(
        sentences,
        tokenizer=WORDPIECE,
        objective={"kind": "masked", "passes": 2},
        layout="pairs",
        sentences="lines",
        length=48,
    )


@pytest.fixture
def corrupted(prepare, words):
    return prepare(words(20), tokenizer=SENTINELS, objective={"kind": "spans"}, length=32)


def test_pairs_are_sentences_of_the_text(paired):
    special, texts = paired.tokenizer.special, set()
    labels = []
    for batch in take(paired, 6):
        for row, tokens in enumerate(restore_masked(batch)):
            tokens = tokens[: batch["segments"][row].sum()]
            assert tokens[0] == special["classifier"] and tokens[-1] == special["separator"]
            (middle, _last) = np.flatnonzero(tokens == special["separator"])
            types = batch["types"][row]
            assert (
                not types[: middle + 1].any()
                and types[middle + 1 : len(tokens)].all()
                and not types[len(tokens) :].any()
            )
            assert (batch["positions"][row, : len(tokens)] == np.arange(len(tokens))).all()
            a, b = (paired.tokenizer.decode(part) for part in (tokens[1:middle], tokens[middle + 1 : -1]))
            label = batch["next"][row]
            labels.append(label)
            texts.update((a, b))
            same = a.split()[0] == b.split()[0] if len(tokens) < 48 else None  # uncut: each begins with its document
            assert label == 1 or same in (True, None)
    assert 0.3 < np.mean(labels) < 0.9 and len(texts) > 20


def test_evaluation_of_spans_reads_all_text(corrupted):
    """The text of inputs and targets together is the split's, each token once."""
    evaluation = corrupted.evaluation("train", length=32, stride=0, batch_size=5)
    ids = []
    for batch in evaluation.batches():
        for side, segments in (("inputs", "input_segments"), ("targets", "segments")):
            ids += batch[side][batch[segments] > 0].tolist()
    text = corrupted.raw_bytes("train")
    assert sorted(i for i in ids if i < 256) == sorted(text)


def test_smoothing_uses_counts_of_the_training_text(prepare, sentences):
    """Counts are cached: a second start gives the same."""
    task = {"kind": "masked", "next_sentence": False, "smoothing": 0.7, "max_predictions": 4}
    options = {"tokenizer": WORDPIECE, "objective": task, "layout": "packed", "length": 32}
    corpora = [prepare(sentences, **options) for _ in range(2)]
    stream = corpora[0].stream("train")
    ids = np.empty(stream.tokens, np.int32)
    stream.copy(0, ids)
    counts = np.bincount(ids, minlength=corpora[0].tokenizer.vocab_size)
    expected = np.maximum(counts, 1.0) ** -0.7
    expected[list(corpora[0].tokenizer.special.values())] = 0
    for corpus in corpora:
        np.testing.assert_allclose(corpus._objective.preference, expected)
    one, other = (take(corpus, 2) for corpus in corpora)
    for batch, again in zip(one, other, strict=True):
        np.testing.assert_array_equal(batch["slots"], again["slots"])
        assert batch["weights"].any()

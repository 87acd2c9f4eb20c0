"""Control codes (CTRL): rows begin with their source's code."""

import numpy as np
import pytest
from read_batches import take

from input_pipeline.errors import DataError

CODED = {"kind": "causal", "coded": True}
END = 256


@pytest.fixture
def sources(words):
    """Two sources of random words, with codes of one byte and of three."""
    return " + ".join(f"{words(6, folder=name, seed=n)}?code={code}" for n, (name, code) in enumerate(NAMED))


NAMED = (("a", "W"), ("b", "Bks"))


def test_coded_rows_begin_with_the_code_of_their_source(prepare, sources):
    corpus = prepare(sources, objective=CODED, length=16)
    texts = {}
    for part, (_, code) in zip(corpus._splits["train"], NAMED, strict=True):
        ids = np.empty(part.stream.tokens + 1, np.int32)
        part.stream.copy(0, ids)
        texts[code] = ids.tolist()
    seen = set()
    for batch in take(corpus, 12):
        assert (batch["weights"] == 1).all() and (batch["segments"] == 1).all()
        assert (batch["positions"] == np.arange(16)).all()
        np.testing.assert_array_equal(batch["tokens"][:, 1:], batch["targets"][:, :-1])
        for row, after in zip(batch["tokens"].tolist(), batch["targets"][:, -1].tolist(), strict=True):
            code = "W" if row[0] == ord("W") else "Bks"
            assert bytes(row[: len(code)]) == code.encode()
            size = 16 - len(code)
            assert [*row[len(code) :], after] in [texts[code][at : at + size + 1] for at in range(len(texts[code]))]
            seen.add(code)
    assert seen == {"W", "Bks"}


@pytest.mark.parametrize(("length", "stride"), [(16, 0), (16, 5), (7, 6), (5, 5)])
def test_coded_evaluation_scores_text_once_and_no_code(prepare, sources, length, stride):
    corpus = prepare(sources, objective=CODED, length=16)
    scored = corpus.evaluation("train", length=length, stride=stride, batch_size=3)
    found = {"W": [], "B": []}  # by the code that a row begins with: the sources' rows take turns
    for batch in scored.batches():
        for row, targets, weights in zip(batch["tokens"], batch["targets"], batch["weights"], strict=True):
            if weights.any():
                found[chr(row[0])] += targets[weights > 0].tolist()
    for part, texts in zip(corpus._splits["train"], found.values(), strict=True):
        ids = np.empty(part.stream.tokens + 1, np.int32)
        part.stream.copy(0, ids)
        assert texts == ids[1:].tolist()
    found = [*found["W"], *found["B"]]
    assert scored.tokens == len(found) and scored.bytes == len(found) - found.count(END)


def test_encode_code_needs_room(prepare, sources):
    corpus = prepare(sources, objective=CODED, length=16)
    with pytest.raises(DataError, match="code=Bks"):
        corpus.evaluation("train", length=3, stride=0, batch_size=3)


def test_coded_prompts_begin_with_their_own_code(prepare, sources):
    objective = prepare(sources, objective=CODED, length=16)._objective
    assert objective.prompts(["W one"]).begun[0].tolist() == list(b"W one")
    with pytest.raises(DataError, match="prompt"):
        objective.prompts([""])

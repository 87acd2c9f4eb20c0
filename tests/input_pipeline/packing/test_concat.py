"""Control codes (CTRL): rows begin with their source's code."""

import numpy as np
import pytest
from read_batches import take

CODED = {"kind": "causal", "coded": True}
CODES = ("W", "Bks")  # of one byte and of three
END = 256


@pytest.fixture
def corpus(prepare, words):
    """Two sources of random words."""
    sources = " + ".join(f"{words(6, folder=code, seed=n)}?code={code}" for n, code in enumerate(CODES))
    return prepare(sources, objective=CODED, length=16)


@pytest.fixture
def texts(corpus):
    """Ids of each source, with the end token behind them, by the first byte of its code."""
    ids = [np.empty(part.stream.tokens + 1, np.int32) for part in corpus._splits["train"]]
    for part, out in zip(corpus._splits["train"], ids, strict=True):
        part.stream.copy(0, out)
    return {code[0]: out.tolist() for code, out in zip(CODES, ids, strict=True)}


def test_coded_rows_begin_with_the_code_of_their_source(corpus, texts):
    seen = set()
    for batch in take(corpus, 12):
        assert (batch["weights"] == 1).all() and (batch["segments"] == 1).all()
        assert (batch["positions"] == np.arange(16)).all()
        np.testing.assert_array_equal(batch["tokens"][:, 1:], batch["targets"][:, :-1])
        for row, after in zip(batch["tokens"].tolist(), batch["targets"][:, -1].tolist(), strict=True):
            code = CODES[row[0] != ord("W")]
            assert bytes(row[: len(code)]) == code.encode()
            size, text = 16 - len(code), texts[code[0]]
            assert [*row[len(code) :], after] in [text[at : at + size + 1] for at in range(len(text))]
            seen.add(code)
    assert seen == set(CODES)


@pytest.mark.parametrize(("length", "stride"), [(16, 0), (16, 5), (7, 6)])
def test_coded_evaluation_scores_text_once_and_no_code(corpus, texts, length, stride):
    scored = corpus.evaluation("train", length=length, stride=stride, batch_size=3)
    found = {"W": [], "B": []}  # by the code that a row begins with: the sources' rows take turns
    for batch in scored.batches():
        for row, targets, weights in zip(batch["tokens"], batch["targets"], batch["weights"], strict=True):
            if weights.any():
                found[chr(row[0])] += targets[weights > 0].tolist()
    assert found == {code: ids[1:] for code, ids in texts.items()}
    found = [*found["W"], *found["B"]]
    assert scored.tokens == len(found) and scored.bytes == len(found) - found.count(END)

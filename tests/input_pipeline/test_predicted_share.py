"""The share of tokens that the first rows predict, compared with the one asked for."""

import random

import numpy as np
import pytest

from input_pipeline.errors import DataError

LETTERS = [chr(0x4E00 + n) for n in range(300)]
ASKED = {
    "masked": {"max_predictions": 64},
    "whole words": {"kind": "masked", "whole_words": True, "max_predictions": 64},
    "n-grams": {"kind": "masked", "whole_words": True, "ngrams": 3, "max_predictions": 64},
    "coins": {"kind": "masked", "rounding": "coins", "max_predictions": 64},
    "few": {"kind": "masked", "max_predictions": 3},
    "replaced": {},
    "permutation": {"perm_size": 16, "reuse": 32, "predictions": 11},
    "denoising": {"permutation": 0.0},
    "masking": {"kind": "denoising", "permutation": 0.0, "noise": "masking", "random": 1.0},
    "deletion": {"kind": "denoising", "permutation": 0.0, "noise": "deletion", "rotation": 1.0},
}


@pytest.fixture
def corpus(prepare, write):
    """`corpus(objective, join)`: sentences of words joined by `join`, in pieces of SentencePiece with bytes."""

    def make(join: str, letters=LETTERS, vocab_size: int = 600, **objective):
        draw = random.Random(0)
        lines = [join.join(draw.choices(letters, k=30)) for _ in range(300)]
        tokenizer = {"kind": "sentencepiece", "vocab_size": vocab_size}
        layout = "stream" if objective["kind"] == "permutation" else "concat"
        path, changes = (
            write("a.txt", "\n".join(lines)),
            {"next_sentence": False} if objective["kind"] == "masked" else {},
        )
        how = {"layout": layout, "length": 64, "sentences": "lines" if layout == "stream" else ""}
        return prepare(f"text:{path}?document=line", tokenizer=tokenizer, objective=objective | changes, **how)

    return make


@pytest.mark.parametrize("join", ["", " "], ids=["joined", "spaced"])
@pytest.mark.parametrize("case", ASKED)
def test_share_of_every_objective(corpus, case, join):
    made = corpus(join, **{"kind": case} | ASKED[case])
    said = []
    made.check_predicted(3, 8, said.append)
    batch = made._numbered(3, 64, np.arange(64))[0]
    found, asked, _ = made._objective.count_predicted(batch)
    assert not said and asked > 100
    assert found == pytest.approx(asked, rel=0.15)
    if case == "deletion":
        assert found == 64 * 64 - np.count_nonzero(batch["input_segments"])


def test_words_longer_than_rows(corpus):
    """A word of letters without spaces is all of a row: what is asked for cannot be predicted."""
    said, how = [], {"letters": "abcdefgh", "vocab_size": 280}
    with pytest.raises(DataError):
        corpus("", kind="masked", whole_words=True, **how).check_predicted(0, 4, said.append)
    assert not said


FAR = [
    ({"kind": "masked", "whole_words": True, "candidates": "any"}, "15.0%"),
    ({"kind": "denoising", "permutation": 0.0}, "30.0%"),
]


@pytest.mark.parametrize(("case", "asked"), FAR, ids=["special ids", "rows"])
def test_share_far_from_the_one_asked_for(corpus, case, asked):
    """Special ids alone are predicted, or all of each row."""
    said = []
    corpus("", letters="abcdefgh", vocab_size=280, **case).check_predicted(0, 4, said.append)
    (warning,) = said
    assert warning.startswith("warning:") and asked in warning


BYTES = {
    "masked": {"whole_words": True, "max_predictions": 64, "masked": 1.0, "random": 0.0, "next_sentence": False},
    "denoising": {"permutation": 0.0, "mean_span": 1.0, "random": 0.0},
}


@pytest.mark.parametrize("kind", BYTES)
def test_bytes_of_an_ideograph_are_one_word(prepare, write, kind):
    """Whole characters are hidden: what is left decodes, but for the row's ends."""
    path = write("a.txt", "".join(random.Random(0).choices(LETTERS, k=4000)))
    corpus = prepare(f"text:{path}", length=64, objective={"kind": kind} | BYTES[kind])
    batch = next(corpus.batches(seed=0, batch_size=16, workers=0, prefetch=1))
    read = batch["inputs" if kind == "denoising" else "tokens"]
    for row in read:
        # Without the masks: one that is inserted may stand within a character.
        inner = corpus.tokenizer.decode(row[row > 0]).strip("\ufffd")
        assert "\ufffd" not in inner and set(inner) <= set(LETTERS)
    assert (read == corpus.tokenizer.special["mask"]).sum() > 30

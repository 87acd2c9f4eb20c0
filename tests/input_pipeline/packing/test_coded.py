"""Control codes: every row begins with its source's, and its text is learned from and scored as ever."""

import itertools

import numpy as np
import pytest

from input_pipeline.errors import DataError

CODED = {"kind": "causal", "coded": True}
END = 256


@pytest.fixture
def sources(words):
    """Two sources of random words, with codes of one byte and of three."""
    return " + ".join(f"{words(6, folder=name, seed=n)}?code={code}" for n, (name, code) in enumerate(NAMED))


NAMED = (("a", "W"), ("b", "Bks"))


def test_a_row_begins_with_the_code_of_its_source(prepare, sources):
    corpus = prepare(sources, objective=CODED, length=16)
    texts = {}
    for part, (_, code) in zip(corpus._splits["train"], NAMED, strict=True):
        ids = np.empty(part.stream.tokens + 1, np.int32)
        part.stream.copy(0, ids)
        texts[code] = ids.tolist()
    reader, seen = corpus.batches(seed=1, batch_size=4, workers=0, prefetch=1), set()
    for batch in itertools.islice(reader, 12):
        assert (batch["weights"] == 1).all() and (batch["segments"] == 1).all()
        assert (batch["positions"] == np.arange(16)).all()
        np.testing.assert_array_equal(batch["tokens"][:, 1:], batch["targets"][:, :-1])
        for row, after in zip(batch["tokens"].tolist(), batch["targets"][:, -1].tolist(), strict=True):
            code = "W" if row[0] == ord("W") else "Bks"
            assert bytes(row[: len(code)]) == code.encode()
            size = 16 - len(code)
            assert [*row[len(code) :], after] in [texts[code][at : at + size + 1] for at in range(len(texts[code]))]
            seen.add(code)
    reader.close()
    assert seen == {"W", "Bks"}


@pytest.mark.parametrize(("length", "stride"), [(16, 0), (16, 5), (7, 6), (5, 5)])
def test_an_evaluation_scores_all_text_once_and_no_code(prepare, sources, length, stride):
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


def test_rows_too_short_for_a_code_are_of_the_length_that_is_given(prepare, sources):
    corpus = prepare(sources, objective=CODED, length=16)
    with pytest.raises(DataError, match=r"'Bks', which is 3 tokens; .* raise data\.length \(in evaluation --length or"):
        corpus.evaluation("train", length=3, stride=0, batch_size=3)


def test_prompts_begin_with_a_code_of_their_own(prepare, sources):
    objective = prepare(sources, objective=CODED, length=16)._objective
    assert objective.prompts(["W one"]).begun[0].tolist() == list(b"W one")
    with pytest.raises(DataError, match=r"begin with control codes, .*; give --prompt"):
        objective.prompts([""])


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (("ein", "Кн"), r"b\.txt\?code=Кн' has the control code 'Кн', which the tokenizer reads as its unknown token"),
        (("ein", "EIN"), r"the control code 'EIN', .* the same as 'ein' of 'text:.*a\.txt\?code=ein'; choose another"),
        (("ein", "ein"), ""),
    ],
)
def test_codes_that_could_not_be_told_apart(prepare, write, codes, message):
    names = [write(name, "ein zwei drei ein zwei " * 9) for name in ("a.txt", "b.txt")]
    train = " + ".join(f"text:{name}?code={code}" for name, code in zip(names, codes, strict=True))
    options = {"tokenizer": {"kind": "wordpiece", "vocab_size": 40, "cased": False}, "objective": CODED, "length": 16}
    if not message:
        assert len(prepare(train, **options).splits) == 1  # sources of one kind
        return
    with pytest.raises(DataError, match=message):
        prepare(train, **options)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("a.txt?code=W + b.txt", {"objective": CODED}, r"coded = true .* 'text:.*b\.txt' has none; give it one"),
        ("a.txt?code=W", {}, r"the control code 'W', which a causal objective with .*coded = true alone reads"),
        ("a.txt?code=W", {"objective": {"kind": "spans", "mean_span": 1.0}}, "alone reads"),
        ("a.txt?code=W", {"objective": CODED, "layout": "packed"}, "set data.layout to concat, not packed"),
        ("a.txt?code=Wikipedia", {"objective": CODED}, "'Wikipedia', which is 9 tokens; .* 7 at most, so choose"),
    ],
)
def test_what_cannot_be(prepare, write, source, options, message):
    for name in ("a.txt", "b.txt"):
        path = write(name, f"{name} is a text of some length")
    folder = path.removesuffix("b.txt")
    with pytest.raises(DataError, match=message):
        prepare(" + ".join(f"text:{folder}{one}" for one in source.split(" + ")), **options)

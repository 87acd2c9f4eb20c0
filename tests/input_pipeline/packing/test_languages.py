"""Rows marked with languages, and translations, whose positions restart (Lample and Conneau 2019)."""

import json

import numpy as np
import pytest
from read_batches import restore_masked, take

from configs import common
from input_pipeline import pipeline
from input_pipeline.io import Folders
from input_pipeline.packing import languages

END = 256  # of the tokenizer of bytes
PAIRS = [("a dog", "un chien"), ("it sleeps", "il dort"), ("a cat sees a dog", "un chat voit un chien")]


def sections(tmp_path, train, names=("en", "fr"), **changes):
    """The sections data, tokenizer and objective of a masked run on `train`, with languages told."""
    config = common.base()
    config.objective = common.masked()
    config.objective.update(next_sentence=False, languages=bool(names), rounding="coins", candidates="after_first")
    config.data.update({"train": train, "languages": names, "length": 40, "holdout": 0.0, "shuffle": False, **changes})
    config.tokenizer.kind = "bytes"
    return config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict()


@pytest.fixture
def texts(tmp_path):
    """Specs of a text of each language, and of translations."""
    (tmp_path / "en.txt").write_text("\n".join(f"the dog number {n} sleeps" for n in range(40)))
    (tmp_path / "fr.txt").write_text("\n".join(f"le chien {n} dort" for n in range(40)))
    lines = [json.dumps({"en": en, "fr": fr}) for en, fr in PAIRS]
    (tmp_path / "both.jsonl").write_text("\n".join(lines))
    alone = [f"text:{tmp_path}/{name}.txt?document=line&language={name}" for name in ("en", "fr")]
    return [*alone, f"jsonl:{tmp_path}/both.jsonl?fields=en,fr"]


def corpus(tmp_path, *given):
    folders = Folders(tmp_path / "run" / "tokenizer", tmp_path / "run" / "data")
    return pipeline.prepare(*given, folders, report=lambda message: None)


def test_translations_literal(tmp_path, texts):
    """</s> A </s></s> B </s>, each with positions from 0; pairs share a row as segments."""
    made = corpus(tmp_path, *sections(tmp_path, texts[2]))
    (batch,) = take(made, 1, batch_size=2)
    ids = [[END, *a.encode(), END, END, *b.encode(), END] for a, b in PAIRS]
    found = {}
    for tokens, segments, positions, told in zip(
        restore_masked(batch), batch["segments"], batch["positions"], batch["languages"], strict=True
    ):
        for segment in range(1, segments.max() + 1):
            here = segments == segment
            found[tuple(tokens[here].tolist())] = positions[here].tolist(), told[here].tolist()
        assert not tokens[segments == 0].any() and not told[segments == 0].any()
    for (a, b), row in zip(PAIRS[:2], ids[:2], strict=True):
        one, other = len(a) + 2, len(b) + 2
        assert found[tuple(row)] == ([*range(one), *range(other)], [0] * one + [1] * other)
    (cut,) = found.keys() - {tuple(row) for row in ids[:2]}
    assert len(cut) == 40 and cut[0] == cut[-1] == END  # of which the longer text has lost its end


@pytest.mark.parametrize(
    ("sizes", "expected"), [((3, 4, 9), (3, 4)), ((9, 4, 10), (6, 4)), ((4, 9, 10), (4, 6)), ((9, 9, 11), (6, 5))]
)
def test_truncate_literal(sizes, expected):
    assert languages.truncate(*sizes) == expected


def test_rows_have_the_language_of_their_source(tmp_path, texts):
    made = corpus(tmp_path, *sections(tmp_path, " + ".join(texts), weights=(1.0, 1.0, 2.0)))
    (batch,) = take(made, 1, batch_size=64)
    kinds = {}
    for tokens, segments, told in zip(restore_masked(batch), batch["segments"], batch["languages"], strict=True):
        text = bytes(int(i) for i in tokens[segments > 0] if i < 256).decode()
        own = set(told[segments > 0].tolist())
        kinds[tuple(own)] = kinds.get(tuple(own), 0) + 1
        if len(own) == 1:
            assert ("chien" in text) == (own == {1})
    wanted = {(0,): 16, (1,): 16, (0, 1): 32}  # shares are kept to within one example
    assert kinds.keys() == wanted.keys() and all(abs(kinds[own] - wanted[own]) <= 1 for own in wanted)
    assert not (batch["slots"][batch["weights"] > 0] == 0).any()


def test_evaluation_marks_languages(tmp_path, texts):
    given = sections(tmp_path, texts[0], validation=" + ".join(texts[1:]))
    given[0]["languages"] = ("en", "fr")
    given[0]["train"] = " + ".join((texts[0], texts[1].replace("fr.txt", "fr2.txt")))
    (tmp_path / "fr2.txt").write_text("autre chose\n" * 40)
    made = corpus(tmp_path, *given)
    scored = made.evaluation("validation", length=40, stride=0, batch_size=4)
    seen = [
        tuple(sorted(set(told[there > 0].tolist())))
        for b in scored.batches()
        for told, there in zip(b["languages"], b["segments"], strict=True)
    ]
    assert set(seen) - {()} == {(1,), (0, 1)}


def test_translations_without_text_are_left_out(tmp_path):
    lines = [{"en": en, "fr": fr} for en, fr in [*PAIRS, ("", "un " * 30), ("a " * 30, "")]]
    (tmp_path / "both.jsonl").write_text("\n".join(map(json.dumps, lines)))
    made = corpus(tmp_path, *sections(tmp_path, f"jsonl:{tmp_path}/both.jsonl?fields=en,fr"))
    scored = made.evaluation("train", length=40, stride=0, batch_size=4)
    assert sum(len(np.unique(row[row > 0])) for batch in scored.batches() for row in batch["segments"]) == len(PAIRS)

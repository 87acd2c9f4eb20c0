"""What holds for every objective: rows are functions of their keys, and mistakes name their key."""

import numpy as np
import pytest
from filling import build_objective, fill_batch

from input_pipeline.errors import DataError

CASES = {
    "masked": ("masked", {}),
    "whole words": ("masked", {"whole_words": True}),
    "n-grams": ("masked", {"whole_words": True, "ngrams": 3}),
    "any of text": ("masked", {"rounding": "random", "candidates": "any", "replacements": "text"}),
    "coins": ("masked", {"rounding": "coins"}),
    "static": ("masked", {"masks": 4}),
    "replaced": ("replaced", {}),
    "spans": ("spans", {}),
    "prefix": ("spans", {"noise": "prefix"}),
    "infilling": ("denoising", {"permutation": 0.0}),
    "masking": ("denoising", {"permutation": 0.0, "noise": "masking", "rotation": 0.5}),
    "deletion": ("denoising", {"permutation": 0.0, "noise": "deletion"}),
}


@pytest.mark.parametrize("case", CASES)
def test_fill_rows_are_independent(word_vocabulary, raw_rows, case):
    kind, changes = CASES[case]
    objective = build_objective(kind, word_vocabulary, **changes)
    raw, keys, some = raw_rows(20, objective.raw_length(64)), np.arange(20) * 31, np.array([3, 17, 8])
    batch = fill_batch(objective, raw, keys, 64)
    for name, rows in fill_batch(objective, raw.map(lambda field: field[some]), keys[some], 64).items():
        if name != "row":
            np.testing.assert_array_equal(rows, batch[name][some], err_msg=name)


MISTAKES = [
    ("masked", {"rounding": "up"}, "objective.rounding"),
    ("masked", {"ngrams": 3}, "objective.ngrams"),
    ("masked", {"swapped_pairs": True}, "objective.swapped_pairs"),
    ("masked", {"languages": True, "next_sentence": True}, "objective.languages"),
    ("masked", {"smoothing": 0.7, "rounding": "coins"}, "objective.smoothing"),
    ("masked", {"whole_words": True}, "objective.whole_words"),
    ("denoising", {"permutation": 0.0}, "objective.noise=infilling"),
    ("permutation", {}, "objective.kind=permutation"),
]


@pytest.mark.parametrize(("kind", "changes", "key"), MISTAKES)
def test_build_names_the_key_of_a_mistake(vocabulary, kind, changes, key):
    """With a tokenizer that does not mark words."""
    with pytest.raises(DataError, match=key):
        build_objective(kind, vocabulary, **changes)


LENGTHS = [
    ({"longest": 60, "reuse": 12, "perm_size": 4, "predictions": 6}, {"longest": 11}),
    ({"perm_size": 12, "reuse": 12, "predictions": 6}, {"perm_size": 4}),
    ({"perm_size": 8, "reuse": 12, "predictions": 6}, {"perm_size": 4}),
    ({"predictions": 32, "reuse": 16, "perm_size": 8}, {"predictions": 30}),
]


@pytest.mark.parametrize(("changes", "remedy"), LENGTHS)
def test_check_length_names_the_key_of_a_mistake(changes, remedy):
    name, value = next(iter(changes.items()))
    with pytest.raises(DataError, match=f"objective.{name}={value}"):
        build_objective("permutation", None, **changes).check_length(32)
    build_objective("permutation", None, **changes | remedy).check_length(32)


def test_spans_need_sentinels(vocabulary):
    with pytest.raises(DataError):
        build_objective("spans", vocabulary).raw_length(2048)

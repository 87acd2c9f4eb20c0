"""Start of decoding: end token and text, or start token and a text for the encoder."""

import dataclasses

import numpy as np
import pytest
from filling import build_objective

from input_pipeline.errors import DataError


def test_prompts_causal(vocabulary):
    begun, source, continued = build_objective("causal", vocabulary).prompts(["ab", ""])
    assert [list(ids) for ids in begun] == [[5, 97, 98], [5]] and source == {} and continued
    endless = build_objective("causal", dataclasses.replace(vocabulary, end_id=None))
    assert endless.prompts(["ab"]).begun[0].tolist() == [97, 98]
    framed = build_objective("causal", dataclasses.replace(vocabulary, special={**vocabulary.special, "start": 7}))
    assert framed.prompts(["ab"]).begun[0].tolist() == [7, 97, 98]
    coded = build_objective("causal", vocabulary, coded=True)
    assert coded.prompts(["ab"]).begun[0].tolist() == [97, 98]
    for objective in (endless, coded):
        with pytest.raises(DataError):
            objective.prompts([""])


def test_prompts_seq2seq(vocabulary):
    objective = build_objective("spans", vocabulary)
    begun, source, continued = objective.prompts(["abc", "d"])
    assert [list(ids) for ids in begun] == [[0], [0]] and not continued
    np.testing.assert_array_equal(source["inputs"], [[97, 98, 99, 5], [100, 5, 0, 0]])
    np.testing.assert_array_equal(source["input_segments"], [[1, 1, 1, 1], [1, 1, 0, 0]])
    assert all(array.dtype == np.int32 for array in (*begun, *source.values()))
    for text in ("", "a <extra_id_100>"):
        with pytest.raises(DataError):
            objective.prompts(["abc", text])


@pytest.mark.parametrize(("kind", "gap", "there"), [("spans", "<extra_id_0>", 999), ("denoising", "<mask>", 4)])
def test_prompts_with_gaps(vocabulary, kind, gap, there):
    changes = {"noise": "deletion", "permutation": 0.0} if kind == "denoising" else {}
    source = build_objective(kind, vocabulary, **changes).prompts([f"ab \n{gap} d{gap}", f"{gap}<e>"]).source
    front = [2] if kind == "denoising" else []
    first, second = ([i for i in row if i] for row in source["inputs"].tolist())
    assert first == [*front, 97, 98, there, 32, 100, there, 5]
    assert second == [*front, there, *map(ord, "<e>"), 5]

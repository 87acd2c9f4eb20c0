"""Start of decoding: end token and text, or start token and a text for the encoder."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from configs import common
from input_pipeline import corruption
from input_pipeline.errors import DataError


@dataclass
class Letters:
    """Ids of letters, and some special ones."""

    end_id: int | None = 7
    sentinels = (99,)
    special: ClassVar = {"pad": 3, "end": 7, "mask": 5, "classifier": 6}
    vocab_size = 200
    continues = None

    def encode(self, text):
        return np.array([ord(letter) for letter in text], np.int32)


def prompts(kind, texts, **changes):
    return corruption.build(common.OBJECTIVES[kind]().to_dict(), Letters(**changes)).prompts(texts)


def test_prompts_causal():
    begun, source, continued = prompts("causal", ["ab", ""])
    assert [list(ids) for ids in begun] == [[7, 97, 98], [7]] and source == {} and continued
    assert [list(ids) for ids in prompts("causal", ["ab"], end_id=None).begun] == [[97, 98]]
    with pytest.raises(DataError, match="prompt"):
        prompts("causal", ["ab", ""], end_id=None)


def test_prompts_seq2seq():
    begun, source, continued = prompts("spans", ["abc", "d"])
    assert [list(ids) for ids in begun] == [[3], [3]] and not continued
    np.testing.assert_array_equal(source["inputs"], [[97, 98, 99, 7], [100, 7, 0, 0]])
    np.testing.assert_array_equal(source["input_segments"], [[1, 1, 1, 1], [1, 1, 0, 0]])
    assert all(array.dtype == np.int32 for array in (*begun, *source.values()))
    with pytest.raises(DataError, match="prompt"):
        prompts("spans", ["abc", ""])


@pytest.mark.parametrize(("kind", "gap", "there"), [("spans", "<extra_id_0>", 99), ("denoising", "<mask>", 5)])
def test_prompts_with_gaps(kind, gap, there):
    section = common.OBJECTIVES[kind]().to_dict()
    if kind == "denoising":
        section |= {"noise": "deletion", "permutation": 0.0}
    built = corruption.build(section, Letters())
    source = built.prompts([f"ab \n{gap} d{gap}", f"{gap}<e>"]).source
    front = [6] if kind == "denoising" else []
    first, second = ([i for i in row if i] for row in source["inputs"].tolist())
    assert first == [*front, 97, 98, there, 32, 100, there, 7]
    assert second == [*front, there, *map(ord, "<e>"), 7]
    if kind == "spans":
        with pytest.raises(DataError, match="prompt"):
            built.prompts(["a <extra_id_1>"])

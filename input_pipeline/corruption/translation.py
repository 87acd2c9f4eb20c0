"""From one text to another, as of translation (Vaswani et al. 2017): an encoder reads the one, a decoder writes it.

Texts come in pairs, from sources of two fields. Both end with the end token, with which the decoder begins, too.
"""

from collections.abc import Mapping

import numpy as np

from input_pipeline.corruption.two_texts import TwoTexts
from input_pipeline.packing.seq2seq import RawTexts


class Translation(TwoTexts):
    """Rows of as many pairs as there is room for on both sides, which are of one length."""

    layouts = ("texts",)
    least = 2  # a token, and the end

    def fill(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: RawTexts, keys: np.ndarray) -> None:
        self.fill_texts(batch, slots, raw)

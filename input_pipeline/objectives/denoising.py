"""Denoising (Lewis et al. 2019): a decoder writes the text that an encoder reads spoilt.

The released recipe puts the sentences of a text in random order, and one mask in the place of each of some spans of
words. Both texts stand between the classifier and the end token; the decoder begins with the end token.
"""

from collections.abc import Mapping

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.layouts.raw import Raw
from input_pipeline.objectives import infilling
from input_pipeline.objectives.two_texts import READ, WRITTEN, TwoTexts
from input_pipeline.tokenizers.tokenizer import Tokenizer

NOISE = ("infilling", "masking", "deletion")


class Denoising(TwoTexts):
    """Rows of one length on both sides."""

    layouts = ("concat",)
    bare = True
    two_texts = False
    special = ("end", "mask", "classifier")
    least = 1

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None):
        super().__init__(section, tokenizer)
        self.section = section
        if section["noise"] not in NOISE:
            raise DataError(f"objective.noise is '{section['noise']}'; choose one of: {', '.join(NOISE)}")
        if section["noise"] == "infilling" and tokenizer and tokenizer.continues is None:
            raise DataError(
                "objective.noise = infilling takes out whole words, and this tokenizer does not say which ids go on "
                "with one; set it to masking or deletion, or use a tokenizer of kind sentencepiece or a byte-level one"
            )
        if tokenizer:
            self.mask, self.begin = tokenizer.special["mask"], tokenizer.special["classifier"]
            stop = tokenizer.encode(section["stop"])[-1:] if section["permutation"] else ()
            if section["permutation"] and not len(stop):
                raise DataError(
                    f"objective.permutation = {section['permutation']} takes sentences to end with objective.stop = "
                    f"'{section['stop']}', of which the tokenizer makes no token; set that to a full stop, or "
                    "permutation to 0"
                )
            self.stops = np.zeros(tokenizer.vocab_size, bool)
            self.stops[stop] = True

    def raw_length(self, length: int) -> int:
        return length - 2  # between the classifier and the end token

    def fill(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: Raw, keys: np.ndarray) -> None:
        there = raw.segments > 0
        spoilt, left = self.spoil(keys, raw.ids, there)
        self._place(batch, slots, READ, spoilt, left)
        framed = self._place(batch, slots, WRITTEN, raw.ids, there)
        weights = np.zeros(framed.shape, bool)
        weights[:, 1:-1] = raw.scored
        ends = np.arange(len(there)), there.sum(1) + 1
        weights[:, 0], weights[ends] = raw.scored[:, 0], raw.scored.any(1)
        batch["weights"][slots] = weights & framed
        self.shift(batch, slots)

    def spoil(self, keys: np.ndarray, ids: np.ndarray, there: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Texts as an encoder reads them: ids, int32 [n, R], and whether there is one, bool [n, R]."""
        section, share = self.section, self.section["share"]
        if section["permutation"]:
            sentence = infilling.sentences(self.stops[ids], there)
            order = infilling.permuted(keys, sentence, there, section["permutation"])
            ids = np.take_along_axis(ids, order, axis=1)
        if section["noise"] == "infilling":
            begins = ~self.tokenizer.continues[ids]
            text = infilling.infilled(keys, ids, there, begins, share, section["mean_span"])
        else:
            spoil = {"masking": infilling.hidden_tokens, "deletion": infilling.deleted_tokens}[section["noise"]]
            text = spoil(keys, ids, there, share)
        if section["rotation"]:
            text = infilling.rotated(keys, text, section["rotation"])
        return infilling.written(keys, text, self.mask, self.tokenizer.vocab_size, section["random"]), text.there

    def _place(self, batch, slots, side, ids, there) -> np.ndarray:
        """Writes texts between the classifier and the end token: where there is something, bool [n, T]."""
        some = there.any(1)
        rows, size = np.flatnonzero(some), there.sum(1)[some]
        framed = np.zeros((len(ids), ids.shape[1] + 2), np.int32)
        framed[:, 1:-1] = ids * there
        framed[rows, 0], framed[rows, size + 1] = self.begin, self.end
        place = np.arange(framed.shape[1], dtype=np.int32)
        here = (place < there.sum(1)[:, None] + 2) & some[:, None]
        batch[side.tokens][slots], batch[side.segments][slots] = framed, here
        batch[side.positions][slots] = place * here
        return here

    def read(self, ids: np.ndarray) -> np.ndarray:
        return np.concatenate([[self.begin], ids, [self.end]]).astype(np.int32)

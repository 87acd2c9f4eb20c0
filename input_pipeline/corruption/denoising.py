"""Denoising (Lewis et al. 2019): a decoder writes the text that an encoder reads spoilt.

The released recipe puts the sentences of a text in random order, and one mask in the place of each of some spans of
words. Both texts stand between the classifier and the end token; the decoder begins with the end token. With codes of
languages (Liu et al. 2020, mBART) both end with the end token instead, behind which what is read has its language's
code, and the decoder begins with that.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from input_pipeline.corruption import infilling
from input_pipeline.corruption.prompts import Prompts
from input_pipeline.corruption.two_texts import READ, WRITTEN, TwoTexts
from input_pipeline.errors import DataError
from input_pipeline.packing.languages import RawLanguages
from input_pipeline.packing.raw import Raw
from input_pipeline.tokenizers.base import Tokenizer

NOISE = ("infilling", "masking", "deletion")


def stop_ids(tokenizer: Tokenizer, stop: str) -> list[int]:
    """The ids with which sentences end that end with `stop`, none where the tokenizer makes no token of it.

    A stop within a text may be another piece than alone, where words begin with a mark of the space before them: all
    are meant that decode to it but for white space. Of one that is made of several pieces it is the last.
    """
    alone = [i for i in tokenizer.encode(stop)[-1:].tolist() if i != tokenizer.special.get("unknown")]
    bare = stop.strip()
    return sorted({*alone, *(i for i in range(tokenizer.vocab_size) if bare and tokenizer.decode([i]).strip() == bare)})


class Denoising(TwoTexts):
    """Rows of one length on both sides."""

    layouts = ("concat",)
    bare = True
    two_texts = False
    special = ("end", "mask", "classifier")

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None):
        self.section, self.codes = section, tuple(section["languages"])
        if self.codes:
            self.special = ("end", "mask", *self.codes)
        super().__init__(section, tokenizer)
        if section["noise"] not in NOISE:
            raise DataError(f"objective.noise is '{section['noise']}'; choose one of: {', '.join(NOISE)}")
        if section["noise"] == "infilling" and tokenizer and tokenizer.continues is None:
            raise DataError(
                "objective.noise = infilling takes out whole words, and this tokenizer does not say which ids go on "
                "with one; set it to masking or deletion, or use a tokenizer of kind sentencepiece or a byte-level one"
            )
        if tokenizer:
            self.mask = tokenizer.special["mask"]
            self.gaps = {"<mask>": self.mask}
            self.front = [] if self.codes else [tokenizer.special["classifier"]]
            self.code_ids = np.array([tokenizer.special[code] for code in self.codes], np.int32)
            stops = stop_ids(tokenizer, section["stop"]) if section["permutation"] else []
            if section["permutation"] and not stops:
                raise DataError(
                    f"objective.permutation = {section['permutation']} takes sentences to end with objective.stop = "
                    f"'{section['stop']}', of which the tokenizer makes no token; set that to a full stop, or "
                    "permutation to 0"
                )
            self.stops = np.zeros(tokenizer.vocab_size, bool)
            self.stops[stops] = True

    def raw_length(self, length: int) -> int:
        return length - 2  # the classifier and the end token, or that and a language's code

    def check(self, length: int) -> None:
        """Raises DataError where spans are longer on average than all that is taken out of a row, a token a word."""
        share, mean = self.section["share"], self.section["mean_span"]
        taken = math.ceil(share * self.raw_length(length))
        if self.section["noise"] == "infilling" and share and mean > taken:
            raise DataError(
                f"objective.mean_span = {mean} words are more than objective.share = {share} takes out of a row of "
                f"{length} tokens, which is {taken} at most; lower it to at most that, or raise the share or the row's "
                "length"
            )

    def fill(
        self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: Raw | RawLanguages, keys: np.ndarray
    ) -> None:
        there = raw.segments > 0
        spoilt, left = self.spoil(keys, raw.ids, there)
        end = np.full((len(there), 1), self.end, np.int32)
        codes = self.code_ids[raw.languages.max(1)][:, None] if self.codes else end[:, :0]
        some = there.any(1)
        self._place(batch, slots, READ, spoilt, left, some, np.concatenate([end, codes], axis=1))
        framed = self._place(batch, slots, WRITTEN, raw.ids, there, some, end)
        weights, first = np.tile(raw.scored.any(1)[:, None], framed.shape[1]), len(self.front)
        weights[:, first : first + there.shape[1]] &= raw.scored | ~there
        batch["weights"][slots] = weights & framed
        self.shift(batch, slots, codes if self.codes else None)

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

    def _place(self, batch, slots, side, ids, there, some, back: np.ndarray) -> np.ndarray:
        """Writes texts with what stands before them and behind, int32 [n, k]: where there is something, bool [n, T].

        some: the rows that have a text, bool [n], even one of which nothing is left.
        """
        first = len(self.front)
        size = first + there.sum(1)
        framed = np.zeros((len(ids), ids.shape[1] + 2), np.int32)
        framed[:, first : first + ids.shape[1]] = ids * there
        framed[:, :first] = self.front
        np.put_along_axis(framed, size[:, None] + np.arange(back.shape[1]), back, axis=1)
        place = np.arange(framed.shape[1], dtype=np.int32)
        here = (place < size[:, None] + back.shape[1]) & some[:, None]
        batch[side.tokens][slots], batch[side.segments][slots] = framed * here, here
        batch[side.positions][slots] = place * here
        return here

    def read(self, ids: np.ndarray) -> np.ndarray:
        return np.concatenate([self.front, ids, [self.end]]).astype(np.int32)

    def prompts(self, texts: Sequence[str]) -> Prompts:
        """With codes of languages each text begins with its own, and a space. Errors: DataError where one does not."""
        if not self.codes:
            return super().prompts(texts)
        named = [text.partition(" ")[::2] for text in texts]
        for code, _ in named:
            if code not in self.codes:
                raise DataError(
                    f"the prompt begins with '{code:.20}', which is no code of a language; begin with one of: "
                    f"{', '.join(self.codes)}, and a space"
                )
        found = super().prompts([text for _, text in named])
        ids = [self.code_ids[[self.codes.index(code)]] for code, _ in named]
        inputs, there = (np.pad(found.source[name], ((0, 0), (0, 1))) for name in ("inputs", "input_segments"))
        ends = np.arange(len(texts)), there.sum(1)
        inputs[ends], there[ends] = np.concatenate(ids), 1
        return Prompts(ids, {"inputs": inputs, "input_segments": there}, continued=False)

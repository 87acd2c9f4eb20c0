"""Denoising with an encoder and a decoder (Raffel et al. 2019): spans are taken out of the text, and written out.

The encoder reads the text with a sentinel in the place of each span; the decoder writes, for each, its sentinel and
what it stood for. Both texts end with the end token. With noise "prefix" the encoder reads the beginning of the text
and the decoder writes the rest, without sentinels. Of sources of two fields it reads the one and writes the other.
"""

from collections.abc import Mapping

import numpy as np

from input_pipeline.corruption import span_noise
from input_pipeline.corruption.two_texts import READ, WRITTEN, TwoTexts
from input_pipeline.errors import LENGTH, DataError
from input_pipeline.packing.raw import Raw
from input_pipeline.packing.seq2seq import RawTexts
from input_pipeline.tokenizers.base import Tokenizer

NOISE = ("spans", "prefix")
ROWS = 88  # worked on together: of more, what is made on the way is memory that the system gives anew each time


class Spans(TwoTexts):
    """Rows whose T' follows from T: 114 from 512, for texts of 568 tokens."""

    layouts = ("concat",)
    bare = True
    special = ("pad", "end")
    start = "pad"
    least = 2  # one is taken out, and one is left

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None):
        self.noise, self.density, self.mean_span = section["noise"], section["density"], section["mean_span"]
        if self.noise not in NOISE:
            raise DataError(f"objective.noise is '{self.noise}'; choose one of: {', '.join(NOISE)}")
        super().__init__(section, tokenizer)
        self.sentinels = None
        if tokenizer and self.noise == "spans":
            self.sentinels = np.array(tokenizer.sentinels, np.int32)
            self.gaps = {f"<extra_id_{n}>": i for n, i in enumerate(tokenizer.sentinels)}

    def raw_length(self, length: int) -> int:
        """Errors: DataError where a row has more spans than the tokenizer has sentinels."""
        if self.sentinels is not None:
            self.check_sentinels(length, len(self.sentinels))
        return self._lengths(length)[0]

    def check_sentinels(self, length: int, sentinels: int) -> None:
        if self.noise == "prefix":
            return
        spans = int(span_noise.counts(self._lengths(length)[0], self.density, self.mean_span)[1])
        if spans > sentinels:
            raise DataError(
                f"a length of {length} takes {spans} spans out of a row, and the tokenizer has {sentinels} sentinels; "
                f"lower {LENGTH}, or raise objective.mean_span, or tokenizer.sentinels in a new --workdir"
            )

    def check(self, length: int) -> None:
        """Raises DataError where spans are longer on average than all that is taken out of a row."""
        if self.noise == "spans":
            taken = int(span_noise.counts(self._lengths(length)[0], self.density, self.mean_span)[0])
            if self.mean_span > taken:
                raise DataError(
                    f"objective.mean_span = {self.mean_span} tokens are more than objective.density = {self.density} "
                    f"takes out of a row of {length} tokens, which is {taken}; lower it to at most that, or raise the "
                    "density or the row's length"
                )

    def _lengths(self, length: int) -> tuple[int, int]:
        """(tokens of text, tokens of targets) for inputs of `length`."""
        if self.noise == "prefix":
            return length - 1, length
        return span_noise.span_lengths(length, self.density, self.mean_span)

    def target_length(self, length: int) -> int:
        return self._lengths(length)[1]

    def fill(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: Raw | RawTexts, keys: np.ndarray) -> None:
        if isinstance(raw, RawTexts):
            self.fill_texts(batch, slots, raw)
            return
        for some in (slice(begin, begin + ROWS) for begin in range(0, len(keys), ROWS)):
            self._fill(batch, slots[some], Raw(*(field[some] for field in raw)), keys[some])

    def _fill(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: Raw, keys: np.ndarray) -> None:
        """Writes rows of text."""
        here = raw.segments > 0
        texts, width = here.sum(1), here.shape[1]
        if self.noise == "prefix":
            taken = span_noise.prefixes(keys, texts, width)
        else:
            taken = span_noise.spans(keys, texts, self.density, self.mean_span, width)
        # One place more, for the end token, which stands on both sides and is scored as the last token is.
        taken, left, ids, scored = map(_longer, (taken, here > taken, raw.ids, raw.scored))
        ends = rows, last = np.flatnonzero(texts), texts[texts > 0]
        ids[ends], scored[ends] = self.end, scored[rows, last - 1]
        for gone, kept, side in ((taken, left.copy(), READ), (left, taken.copy(), WRITTEN)):
            kept[ends] = True
            tokens, there, places = self._without(gone, kept, ids, batch[side.tokens].shape[1])
            batch[side.tokens][slots], batch[side.segments][slots] = tokens, there
            batch[side.positions][slots] = np.arange(there.shape[1], dtype=np.int32) * there
        weights = np.zeros(there.shape, bool)
        weights[there] = scored.ravel()[places]
        batch["weights"][slots] = weights
        self.shift(batch, slots)

    def _without(self, gone: np.ndarray, kept: np.ndarray, ids: np.ndarray, width: int) -> tuple[np.ndarray, ...]:
        """The tokens of `ids` that are `kept`, with a sentinel for each run of those that are `gone`: [n, R] each.

        (ids, whether there is one), [n, width] each, and where in [n R] each of them comes from.
        """
        if self.sentinels is not None:
            begins = gone.copy()
            begins[:, 1:] = gone[:, 1:] > gone[:, :-1]
            ids, kept, starts = ids.copy(), kept | begins, np.flatnonzero(begins)
            first = _firsts(starts, ids.shape)
            within = np.arange(len(starts)) - np.repeat(first[:-1], np.diff(first))
            ids.ravel()[starts] = self.sentinels[within]  # faster than by a mask
        places = np.flatnonzero(kept)
        there = np.arange(width) < np.diff(_firsts(places, ids.shape))[:, None]
        shortened = np.zeros(there.shape, np.int32)
        shortened[there] = ids.ravel()[places]
        return shortened, there, places


def _firsts(places: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Which of `places`, numbered through an array of this shape, is the first of each row, and their number."""
    return np.searchsorted(places, np.arange(shape[0] + 1) * shape[1])


def _longer(rows: np.ndarray) -> np.ndarray:
    """Rows with a place more, in which there is nothing."""
    return np.concatenate([rows, np.zeros_like(rows[:, :1])], axis=1)

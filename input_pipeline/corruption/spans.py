"""Span corruption (Raffel et al. 2019, section 3.1.4): spans are removed from a text, and written by the decoder.

The encoder reads the text with a sentinel for each span; the decoder writes each sentinel and its span. Both end with
the end token. With noise "prefix" the encoder reads the beginning of the text, and the decoder writes the rest without
sentinels. Documents of two fields are read as (source, target) pairs instead.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from input_pipeline.corruption.rng import subset_places, uniform
from input_pipeline.corruption.seq2seq import DECODER, ENCODER, Seq2Seq
from input_pipeline.errors import DataError
from input_pipeline.packing.concat import Raw
from input_pipeline.packing.seq2seq import RawTexts
from input_pipeline.tokenizers.base import Tokenizer

SPANS, TEXT, PREFIX = range(3)  # purposes of draws
ROWS = 88  # rows worked on together: temporaries of more rows are given back to the system and fetched again


class SpanCorruption(Seq2Seq):
    """Rows whose target length T' follows from T: T = 512 reads texts of 568 tokens and writes T' = 114."""

    kind = "spans"
    layouts = ("concat",)
    drops_end_tokens = True
    special = ("pad", "end")
    choices: ClassVar = {"noise": ("spans", "prefix")}
    start = "pad"
    min_raw_length = 2  # one token is removed, and one stays

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None):
        self.noise, self.density, self.mean_span = section["noise"], section["density"], section["mean_span"]
        super().__init__(section, tokenizer)
        self.sentinels = None
        if tokenizer and self.noise == "spans":
            self.sentinels = np.array(tokenizer.sentinels, np.int32)
            self.gaps = {f"<extra_id_{n}>": i for n, i in enumerate(tokenizer.sentinels)}

    def raw_length(self, length: int) -> int:
        if self.sentinels is not None:
            self.check_sentinels(length, len(self.sentinels))
        return self._lengths(length)[0]

    def target_length(self, length: int) -> int:
        return self._lengths(length)[1]

    def _lengths(self, length: int) -> tuple[int, int]:
        """(tokens of text, tokens of targets) for inputs of `length`."""
        if self.noise == "prefix":
            return length - 1, length
        return span_lengths(length, self.density, self.mean_span)

    def check_sentinels(self, length: int, sentinels: int) -> None:
        spans = int(count_noise(self._lengths(length)[0], self.density, self.mean_span)[1])
        if self.noise == "spans" and spans > sentinels:
            raise DataError(
                f"tokenizer.sentinels={sentinels}: a row of {length} tokens has {spans} spans. Raise it, or "
                "lower data.length."
            )

    def fill(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: Raw | RawTexts, keys: np.ndarray) -> None:
        if isinstance(raw, RawTexts):
            super().fill(batch, slots, raw, keys)
            return
        for begin in range(0, len(keys), ROWS):
            part = slice(begin, begin + ROWS)
            self._fill(batch, slots[part], raw.map(lambda field, part=part: field[part]), keys[part])

    def _fill(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: Raw, keys: np.ndarray) -> None:
        inside = raw.segments > 0
        texts, width = inside.sum(1), inside.shape[1]
        if self.noise == "prefix":
            noise = prefix_noise(keys, texts, width)
        else:
            noise = span_noise(keys, texts, self.density, self.mean_span, width)
        # One more column holds the end token, which both sides have; it is scored if the last token is.
        noise, text, ids, scored = map(_add_column, (noise, inside > noise, raw.ids, raw.scored))
        ends = rows, last = np.flatnonzero(texts), texts[texts > 0]
        ids[ends], scored[ends] = self.end_id, scored[rows, last - 1]
        # The encoder keeps the text and loses the noise, the decoder the other way round.
        for removed, kept, side in ((noise, text.copy(), ENCODER), (text, noise.copy(), DECODER)):
            kept[ends] = True
            tokens, used, places = self._remove(removed, kept, ids, batch[side[0]].shape[1])
            self.write(batch, slots, side, tokens, used)
        # `places` are the decoder's, the last side of the loop; a sentinel has the weight of the token it replaces.
        weights = np.zeros(used.shape, bool)
        weights[used] = scored.ravel()[places]
        batch["weights"][slots] = weights
        self.shift(batch, slots)

    def _remove(self, removed: np.ndarray, kept: np.ndarray, ids: np.ndarray, width: int) -> tuple[np.ndarray, ...]:
        """The `kept` ids, and a sentinel for each run of `removed` ones; arguments are [n, R].

        Returns ids [n, width], whether each place is used [n, width], and the flat place in [n R] of each used one.
        """
        if self.sentinels is not None:
            # The first place of each run becomes its sentinel, numbered within the row.
            begins = removed.copy()
            begins[:, 1:] = removed[:, 1:] > removed[:, :-1]
            ids, kept, starts = ids.copy(), kept | begins, np.flatnonzero(begins)
            first = _row_offsets(starts, ids.shape)
            within = np.arange(len(starts)) - np.repeat(first[:-1], np.diff(first))
            ids.ravel()[starts] = self.sentinels[within]  # flat indices are faster than a boolean mask
        places = np.flatnonzero(kept)
        used = np.arange(width) < np.diff(_row_offsets(places, ids.shape))[:, None]
        shortened = np.zeros(used.shape, np.int32)
        shortened[used] = ids.ravel()[places]
        return shortened, used, places


def count_noise(texts: np.ndarray, density: float, mean_span: float) -> tuple[np.ndarray, np.ndarray]:
    """(noise tokens, spans) of texts of so many tokens: int64 of the same shape.

    Halves are rounded to even. At least one token is noise and one is not; a text of one token has no noise.
    """
    texts = np.asarray(texts, np.int64)
    noise = np.minimum(np.maximum(np.rint(texts * density).astype(np.int64), 1), np.maximum(texts - 1, 0))
    spans = np.maximum(np.rint(noise / mean_span).astype(np.int64), 1)
    # Each span has at least one token, and at least one token of text before it.
    return noise, np.minimum(spans, np.minimum(noise, texts - noise))


def span_lengths(inputs: int, density: float, mean_span: float) -> tuple[int, int]:
    """(tokens of text, tokens of targets) for inputs of `inputs` tokens: of the longest text whose input fits.

    Each side holds one sentinel per span and an end token: 512 inputs are 568 - 85 + 28 + 1 tokens of text.
    """
    # Inputs never get shorter as the text grows, so the last text that fits is the longest.
    texts = np.arange(int(inputs / (1 - density)) + 2)
    noise, spans = count_noise(texts, density, mean_span)
    text = int(np.flatnonzero(texts - noise + spans + 1 <= inputs)[-1])
    targets = int((noise + spans + 1)[text])
    # With density 0.5 rounding could make targets one token longer than inputs; a text one shorter avoids it (seqio).
    return (text - 1, targets - 1) if density == 0.5 and targets > inputs else (text, targets)


def compose(keys: np.ndarray, purpose: int, totals: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Uniformly random compositions of `totals` into `parts` positive summands: int64 [n, max(parts)], zeros behind.

    totals, parts: int64 [n], parts <= totals.
    """
    # A composition of N into k parts is a choice of k - 1 of the N - 1 gaps between units.
    gaps, sizes = (np.maximum(values - 1, 0) for values in (totals, parts))
    cuts = 1 + subset_places(keys, purpose, gaps, sizes)
    bounds = np.concatenate([np.zeros_like(gaps)[:, None], cuts, 1 + gaps[:, None]], axis=1)
    return np.diff(bounds, axis=1) * (parts > 0)[:, None]


def span_noise(keys: np.ndarray, texts: np.ndarray, density: float, mean_span: float, width: int) -> np.ndarray:
    """Noise tokens of texts of so many tokens (int64 [n]): bool [n, width].

    Stretches of text and noise alternate, text first; the lengths of both are random compositions.
    """
    noise, parts = count_noise(texts, density, mean_span)
    lengths = [compose(keys, TEXT, texts - noise, parts), compose(keys, SPANS, noise, parts)]
    lengths = np.stack(lengths, -1).reshape(len(keys), -1)  # text, span, text, span, ...
    lengths = np.concatenate([lengths, width - lengths.sum(1, keepdims=True)], axis=1)  # and padding, which is no noise
    is_noise = np.arange(lengths.shape[1]) % 2 == 1
    return np.repeat(np.tile(is_noise, len(keys)), lengths.ravel()).reshape(len(keys), width)


def prefix_noise(keys: np.ndarray, texts: np.ndarray, width: int) -> np.ndarray:
    """Noise is all but a prefix, whose length is uniform in 1 .. texts - 1: bool [n, width]."""
    left = 1 + np.floor(uniform(keys, PREFIX, 1)[:, 0] * (texts - 1)).astype(np.int64)
    place = np.arange(width)
    return (place >= left[:, None]) & (place < texts[:, None])


def _row_offsets(places: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Index of the first of the sorted flat `places` in each row of an array of this shape, and their number."""
    return np.searchsorted(places, np.arange(shape[0] + 1) * shape[1])


def _add_column(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([rows, np.zeros_like(rows[:, :1])], axis=1)

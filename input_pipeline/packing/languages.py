"""Rows that mark the language of each token, and rows of translations (Lample and Conneau 2019, section 3)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.packing import seq2seq
from input_pipeline.packing.concat import RawRows
from input_pipeline.packing.index_cache import IndexCache, pluralize
from input_pipeline.sources.base import Source
from input_pipeline.token_store.stream import Stream

FRAME = 4  # end tokens of a pair of texts: one before and one behind each


class RawLanguages(NamedTuple):
    """The fields of `Raw`, and the number of each id's language; 0 in padding."""

    ids: np.ndarray
    following: np.ndarray
    segments: np.ndarray
    positions: np.ndarray
    scored: np.ndarray
    languages: np.ndarray  # int32 [n, R]


def source_languages(source: Source) -> tuple[str, ...]:
    """Languages of a source: its one, or those of its two fields."""
    return (source.language,) if source.language else source.fields


def number_languages(source: Source, names: Sequence[str]) -> tuple[int, ...]:
    """Places of a source's languages in `data.languages`."""
    return tuple(list(names).index(name) for name in source_languages(source))


@dataclass(frozen=True)
class Monolingual:
    """`rows` of text of one language."""

    rows: RawRows
    language: int

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: np.ndarray) -> RawLanguages:
        raw = self.rows.read(rows)
        return RawLanguages(*raw, languages=self.language * (raw.segments > 0).astype(np.int32))


def mark_language(rows: RawRows, source: Source, names: Sequence[str]) -> RawRows:
    """`rows` of a source, marked with its language if `data.languages` has `names` and its rows are not marked yet."""
    return rows if source.fields or not names else Monolingual(rows, *number_languages(source, names))


def plan(stream: Stream, length: int, cache: IndexCache) -> seq2seq.Plan:
    """The plan of translations in rows of `length`."""

    def build() -> Iterator[seq2seq.Plan]:
        sizes = seq2seq.pair_sizes(stream)
        pairs = pack(sizes, length)
        whole = (sizes > 0).all(1)
        seq2seq.report_losses((whole & (sizes.sum(1) + FRAME > length)).sum(), (~whole).sum(), cache)
        yield pairs

    action = f"packing {pluralize(stream.counts.documents, 'translation')} into rows of {length}"
    return cache.load(seq2seq.Plan, f"translations-{stream.identity}-{length}-filled", build, action)


def pack(sizes: np.ndarray, length: int) -> seq2seq.Plan:
    """Packs documents of two texts of `sizes` (int64 [n, 2]) into rows of `length`."""
    if length < FRAME + 2:
        raise DataError(f"data.length={length}: translations need at least {FRAME + 2}. Raise it.")
    # Both texts share a row, so each "side" of a pair needs the sum; `seq2seq.pack` adds one end token itself.
    needs = np.where((sizes > 0).all(1), np.minimum(sizes.sum(1) + FRAME, length) - 1, 0)
    return seq2seq.pack(np.stack([needs, needs], axis=1), (length, length))


def truncate(one: int, other: int, room: int) -> tuple[int, int]:
    """Sizes of two texts cut to `room` in all: the longer one first, then both."""
    if one + other <= room:
        return one, other
    # Half of the room each (the odd token to the first), unless the other needs less.
    one = min(one, max(room - room // 2, room - other))
    return one, room - one


class Translations:
    """Rows of pairs of texts: each text between end tokens with positions from 0, each pair a segment.

    languages: numbers of the languages of the two fields.
    """

    def __init__(self, stream: Stream, plan: seq2seq.Plan, length: int, end: int, languages: tuple[int, int]):
        self.stream, self.plan, self.length, self.end, self.languages = stream, plan, length, end, languages

    def __len__(self) -> int:
        return len(self.plan.first) - 1

    def read(self, rows: np.ndarray) -> RawLanguages:
        shape = len(rows), self.length
        ids = np.zeros((len(rows), self.length + 1), np.int32)
        segments, positions, languages = (np.zeros(shape, np.int32) for _ in range(3))
        for slot, row in enumerate(rows.tolist()):
            place = 0
            documents = self.plan.documents[slice(*self.plan.first[row : row + 2].tolist())].tolist()
            for segment, document in enumerate(documents, 1):
                pair = self.stream.fields(document).values()
                sizes = truncate(*(size for _, size in pair), self.length - FRAME)
                for (start, _), size, language in zip(pair, sizes, self.languages, strict=True):
                    # END text END, as XLM frames each of the two texts.
                    stop = place + size + 2
                    self.stream.copy(start, ids[slot, place + 1 : stop - 1])
                    ids[slot, [place, stop - 1]] = self.end
                    segments[slot, place:stop] = segment
                    positions[slot, place:stop] = np.arange(size + 2)
                    languages[slot, place:stop] = language
                    place = stop
        return RawLanguages(ids[:, :-1], ids[:, 1:], segments, positions, segments > 0, languages)

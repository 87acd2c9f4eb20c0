"""Rows that say which language each token is of, and rows of translations (Lample and Conneau 2019, section 3)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from input_pipeline.errors import LENGTH, DataError
from input_pipeline.packing import index_cache, seq2seq
from input_pipeline.packing.raw import RawRows
from input_pipeline.sources.sources import Source
from input_pipeline.token_store.stream import Stream

FRAME = 4  # end tokens of a pair of texts: one before and one behind each


class RawLanguages(NamedTuple):
    """The fields of `Raw`, and the language that each id is of, by its number; zeros where there is no text."""

    ids: np.ndarray
    following: np.ndarray
    segments: np.ndarray
    positions: np.ndarray
    scored: np.ndarray
    languages: np.ndarray  # int32 [n, R]


def check(found: Sequence[Source], names: Sequence[str], told: bool) -> None:
    """Raises DataError where a task that is `told` languages does not hear of each source which it is of.

    names: those that there are, in the order of their numbers.
    """
    if told != bool(names):
        raise DataError(
            f"objective.languages = {told} and data.languages = {tuple(names)}: the one says that each token's "
            "language is read, the other which there are; set both, or neither"
        )
    for source in found:
        if source.language and not told:
            raise DataError(
                f"'{source.spec}' has the language '{source.language}', which a masked objective with "
                "objective.languages = True alone reads; set that and data.languages, or leave it out"
            )
        own = of_source(source)
        if told and bool(source.language) == (len(source.fields) == 2):
            raise DataError(
                f"'{source.spec}' is to be of one language, such as text:GLOB?language={names[0]}, or to have two "
                "fields that are named by theirs, a text and its translation"
            )
        if unknown := [name for name in own if told and name not in names]:
            raise DataError(
                f"'{source.spec}' has the language '{unknown[0]}', and data.languages has {', '.join(names)}; correct "
                "the one or add to the other"
            )


def check_all(found: Sequence[Source], names: Sequence[str]) -> None:
    """Raises DataError where there is a language of which no source has text."""
    there = {name for source in found for name in of_source(source)}
    if lacking := [name for name in names if name not in there]:
        raise DataError(
            f"data.languages has {lacking[0]}, of which no source of data.train has text; give it one, such as "
            f"text:GLOB?language={lacking[0]}, or leave it out"
        )
    if len(set(names)) < len(names):
        raise DataError(f"data.languages = {tuple(names)} names a language twice; name each once")


def of_source(source: Source) -> tuple[str, ...]:
    """The languages of a source: its one, or those of its two fields."""
    return (source.language,) if source.language else source.fields


class Monolingual:
    """`rows` of text of one language."""

    def __init__(self, rows: RawRows, language: int):
        self.rows, self.language = rows, language

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: np.ndarray) -> RawLanguages:
        """Rows `rows` (int64 [n])."""
        raw = self.rows.read(rows)
        return RawLanguages(*raw, languages=self.language * (raw.segments > 0).astype(np.int32))


def plan(stream: Stream, length: int, folder: Path, report: Callable[[str], None], read_all: bool) -> seq2seq.Plan:
    """The stored plan of which translations share a row of `length`, made first if it is not there."""

    def made() -> Iterator[seq2seq.Plan]:
        found = pack(_sizes(stream), length, report)
        seq2seq.report_left_out(found, stream, report)
        yield found

    return index_cache.kept(
        seq2seq.Plan,
        folder / f"translations-{stream.identity}-{length}-filled",
        made,
        f"packing {index_cache.counted(stream.counts.documents, 'translation')} into rows of {length}",
        report,
        read_all,
    )


def _sizes(stream: Stream) -> Iterator[tuple[int, int]]:
    for document in range(stream.counts.documents):
        (_, one), (_, other) = stream.fields(document).values()
        yield one, other


def pack(sizes: Iterable[tuple[int, int]], length: int, report: Callable[[str], None]) -> seq2seq.Plan:
    """Which documents, of two texts of these sizes, share a row of `length`; none where one of the two is empty.

    Errors: DataError where a row has no room for one.
    """
    if length < FRAME + 2:
        raise DataError(
            f"a row's length of {length} leaves no room for a text and its translation between {FRAME} end tokens; set "
            f"{LENGTH} to at least {FRAME + 2}"
        )
    cut = 0

    def needed() -> Iterator[tuple[int, int]]:
        nonlocal cut
        for pair in sizes:
            need = min(sum(pair) + FRAME, length) - 1 if all(pair) else 0  # `texts.pack` adds an end token
            cut += need > 0 and sum(pair) + FRAME > length
            yield need, need

    found = seq2seq.pack(needed(), (length, length))
    if cut:
        report(f"{cut:,} translations are longer than {length} tokens, and are cut; raise {LENGTH}")
    return found


def fitted(one: int, other: int, room: int) -> tuple[int, int]:
    """The sizes of two texts, the longer of which is cut, then both, where they are longer than `room`."""
    if one + other <= room:
        return one, other
    one = min(one, max(room - room // 2, room - other))
    return one, room - one


class Translations:
    """Rows of pairs of texts under a plan: each text between end tokens, with positions from 0; a pair is a segment.

    languages: the numbers of those of the two fields.
    """

    def __init__(self, stream: Stream, plan: seq2seq.Plan, length: int, end: int, languages: tuple[int, int]):
        self.stream, self.plan, self.length, self.end, self.languages = stream, plan, length, end, languages

    def __len__(self) -> int:
        return len(self.plan.first) - 1

    def read(self, rows: np.ndarray) -> RawLanguages:
        """Rows `rows` (int64 [n]) of the plan."""
        shape = len(rows), self.length
        ids = np.zeros((len(rows), self.length + 1), np.int32)
        segments, positions, languages = (np.zeros(shape, np.int32) for _ in range(3))
        for slot, row in enumerate(rows.tolist()):
            place = 0
            documents = self.plan.documents[slice(*self.plan.first[row : row + 2].tolist())].tolist()
            for segment, document in enumerate(documents, 1):
                pair = self.stream.fields(document).values()
                sizes = fitted(*(size for _, size in pair), self.length - FRAME)
                for (start, _), size, language in zip(pair, sizes, self.languages, strict=True):
                    stop = place + size + 2
                    self.stream.copy(start, ids[slot, place + 1 : stop - 1])
                    ids[slot, [place, stop - 1]] = self.end
                    segments[slot, place:stop] = segment
                    positions[slot, place:stop] = np.arange(size + 2)
                    languages[slot, place:stop] = language
                    place = stop
        return RawLanguages(ids[:, :-1], ids[:, 1:], segments, positions, segments > 0, languages)


def told(rows: RawRows, source: Source, names: Sequence[str]) -> RawRows:
    """`rows` of a source, which say of which language they are, if there are any and they do not say so themselves."""
    return rows if source.fields or not names else Monolingual(rows, *numbers(source, names))


def numbers(source: Source, names: Sequence[str]) -> tuple[int, ...]:
    """The numbers of a source's languages."""
    return tuple(list(names).index(name) for name in of_source(source))

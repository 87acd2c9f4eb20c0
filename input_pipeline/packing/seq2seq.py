"""Pairs of texts, one to be read and one to be written: as many in a row as there is room for on both sides.

Which pairs share a row is planned once for a stream and its lengths, and kept on disk.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from input_pipeline.errors import LENGTH, DataError
from input_pipeline.packing import index_cache
from input_pipeline.token_store.stream import Stream

OPEN = 64  # rows that are filled at a time: one for which there is too little room in all of them closes the oldest


class RawTexts(NamedTuple):
    """n raw rows of texts that each end with an end token: of T ids that are read and T' ids that are written."""

    inputs: np.ndarray  # int32 [n, T]
    input_segments: np.ndarray  # int32 [n, T], which pair of its row an id belongs to, from 1; 0 where there is none
    input_positions: np.ndarray  # int32 [n, T], its place in its text
    targets: np.ndarray  # int32 [n, T']
    segments: np.ndarray  # int32 [n, T']
    positions: np.ndarray  # int32 [n, T']


class Plan(NamedTuple):
    """Row i holds documents documents[first[i]] .. documents[first[i + 1] - 1]."""

    first: np.ndarray  # int64 [rows + 1]
    documents: np.ndarray  # int64 [documents]

    __reduce__ = index_cache.by_name


def plan(
    stream: Stream,
    lengths: tuple[int, int],
    folder: Path,
    report: Callable[[str], None],
    read_all: bool,
) -> Plan:
    """The stored plan for rows of `lengths`, made first if it is not there, and again where its files are damaged."""
    length, target_length = lengths
    return index_cache.kept(
        Plan,
        folder / f"texts-{stream.identity}-{length}-{target_length}-filled",
        lambda: [_planned(stream, lengths, report)],
        f"packing {index_cache.counted(stream.counts.documents, 'pair')} of texts into rows of {length} and "
        f"{target_length}",
        report,
        read_all,
    )


def check_fields(fields: Sequence[str], name: str) -> None:
    """Raises DataError, with its source's `name`, where a document of these fields is not made of two texts."""
    if len(fields) != 2:
        found = f"has for fields {', '.join(fields)}" if fields else "has one text a document"
        raise DataError(
            f"{name} {found}; name two, the text that is read and the text that is written, as "
            "jsonl:GLOB?fields=inputs,targets or parallel:data/train.{}?fields=en,de do"
        )


def _planned(stream: Stream, lengths: tuple[int, int], report: Callable[[str], None]) -> Plan:
    """The plan of a stream; `report` is told how many texts of which field are cut, and how many pairs left out."""
    cut = dict.fromkeys(stream.shards[0].form.fields, 0)

    def sizes() -> Iterator[tuple[int, int]]:
        for document in range(stream.counts.documents):
            (_, read), (_, written) = stream.fields(document).values()
            for field, size, length in zip(cut, (read, written), lengths, strict=True):
                cut[field] += size + 1 > length and read > 0 < written
            yield read, written

    plan = pack(sizes(), lengths)
    for (field, number), length in zip(cut.items(), lengths, strict=True):
        if number:
            report(
                f"{number:,} of {stream.counts.documents:,} texts of '{field}' are longer than {length} tokens, their "
                f"end among them, and are cut; raise {LENGTH}"
            )
    report_left_out(plan, stream, report)
    return plan


def report_left_out(plan: Plan, stream: Stream, report: Callable[[str], None]) -> None:
    """Tells `report` how many pairs of a stream the plan lacks, if it lacks any."""
    if number := stream.counts.documents - len(plan.documents):
        report(
            f"{number:,} of {stream.counts.documents:,} pairs of texts are left out, since one of the two has no token"
        )


def pack(sizes: Iterator[tuple[int, int]], lengths: tuple[int, int]) -> Plan:
    """Packs pairs of texts of these sizes, with an end token each, and cut where they are longer than a row.

    Each goes into the oldest open row that has room for both; into none where one of the two is empty.
    """
    rows, open_rows = [], []
    for document, texts in enumerate(sizes):
        if not all(texts):
            continue
        need = [min(size + 1, length) for size, length in zip(texts, lengths, strict=True)]
        for row in open_rows:
            if row[0] >= need[0] and row[1] >= need[1]:
                break
        else:
            row = [*lengths, []]
            open_rows.append(row)
            if len(open_rows) > OPEN:
                rows.append(open_rows.pop(0)[2])
        row[0] -= need[0]
        row[1] -= need[1]
        row[2].append(document)
    rows += [members for _, _, members in open_rows]
    first = np.cumsum([0, *map(len, rows)])
    return Plan(first, np.fromiter(itertools.chain.from_iterable(rows), np.int64, first[-1]))


class Texts:
    """Rows of pairs of texts under a plan."""

    def __init__(self, stream: Stream, plan: Plan, lengths: tuple[int, int], end: int):
        self.stream, self.plan, self.lengths, self.end = stream, plan, lengths, end

    def __len__(self) -> int:
        return len(self.plan.first) - 1

    def read(self, rows: np.ndarray) -> RawTexts:
        """Rows `rows` (int64 [n]) of the plan."""
        raw = RawTexts(*(np.zeros((len(rows), length), np.int32) for length in self.lengths for _ in range(3)))
        for slot, row in enumerate(rows.tolist()):
            documents = self.plan.documents[slice(*self.plan.first[row : row + 2].tolist())].tolist()
            places = [0, 0]
            for segment, document in enumerate(documents, 1):
                for side, (start, size) in enumerate(self.stream.fields(document).values()):
                    ids, segments, positions = (array[slot] for array in raw[3 * side : 3 * side + 3])
                    begin, size = places[side], min(size, self.lengths[side] - 1)
                    last = begin + size
                    self.stream.copy(start, ids[begin:last])
                    ids[last] = self.end
                    segments[begin : last + 1] = segment
                    positions[begin : last + 1] = np.arange(size + 1)
                    places[side] = last + 1
        return raw

"""Examples of a source as arrays: made once from its records, and kept in the folder of the run's token stores.

examples.npz    ids of all parts, their ends, a target and a length for each example, the number of its record,
                and the records as JSON, from which predictions and metrics are written
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from input_pipeline.batching.mixture import shuffle_rows
from input_pipeline.corruption.examples import UNLABELLED, Example, Labelled
from input_pipeline.errors import DataError
from input_pipeline.io import lock, make_folder, replace
from input_pipeline.sources.base import Source, hash_to_unit

FILE = "examples.npz"
DRAWN = 1 << 16  # streams of random numbers, from this one on, by which records are drawn
SPAN = 1 << 24  # bytes of a source that are read at a time


@dataclass(frozen=True)
class Examples:
    """N examples of K parts each, and the records that they were made from."""

    ids: np.ndarray  # int32, of all parts in order
    ends: np.ndarray  # int64 [N, K], where each part ends in `ids`
    targets: np.ndarray  # float64 [N]
    lengths: np.ndarray  # int32 [N], tokens of a whole row
    numbers: np.ndarray  # int64 [N], the record of an example
    json: np.ndarray  # uint8, the records, one after the other
    json_ends: np.ndarray  # int64 [records]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, number: int) -> Example:
        ends = self.ends[number]
        first = self.ends[number - 1, -1] if number else 0
        parts = np.split(self.ids[first : ends[-1]], ends[:-1] - first)
        return Example(tuple(parts), float(self.targets[number]), int(self.lengths[number]))

    @property
    def sizes(self) -> np.ndarray:
        """Values of each part, int64 [N, K]."""
        # Parts of all examples follow each other, so that each begins where the one before ends.
        return np.diff(self.ends.reshape(-1), prepend=0).reshape(self.ends.shape)

    def record(self, number: int) -> dict:
        """A record, by its own number."""
        first = self.json_ends[number - 1] if number else 0
        return json.loads(self.json[first : self.json_ends[number]].tobytes())

    def select(self, wanted: np.ndarray) -> "Examples":
        """The examples of the records where `wanted` (bool [records]) is true."""
        chosen, kept = np.flatnonzero(wanted[self.numbers]), np.flatnonzero(wanted)
        parts = (chosen[:, None] * self.ends.shape[1] + np.arange(self.ends.shape[1])).reshape(-1)
        ids, ends = _take(self.ids, self.ends.reshape(-1), parts)
        text, text_ends = _take(self.json, self.json_ends, kept)
        renumbered = np.cumsum(wanted) - 1
        return Examples(
            ids=ids,
            ends=ends.reshape(len(chosen), -1),
            targets=self.targets[chosen],
            lengths=self.lengths[chosen],
            numbers=renumbered[self.numbers[chosen]],
            json=text,
            json_ends=text_ends,
        )

    def draw(self, number: int, seed: int, classes: Sequence[str] = ()) -> "Examples":
        """`number` of the records with a label, drawn by the seed: as many of each class, if `classes` names them.

        Errors: DataError if there are too few.
        """
        # The first example of a record tells its class.
        first = np.unique(self.numbers, return_index=True)[1]
        targets = self.targets[first]
        groups = {f" of {name}": targets == place for place, name in enumerate(classes)}
        groups = groups or {"": targets != UNLABELLED}
        if number % len(groups):
            raise DataError(f"data.examples={number}: not divisible by {len(groups)} labels. Change it.")
        wanted = np.zeros(len(self.json_ends), np.bool_)
        # The first records of a permutation by the seed, so that a larger sample holds a smaller one.
        for stream, (name, members) in enumerate(groups.items()):
            records, size = self.numbers[first[members]], number // len(groups)
            if size > len(records):
                raise DataError(f"data.examples={number}: data.train has {len(records)} records{name}. Lower it.")
            wanted[records[shuffle_rows(np.arange(size), len(records), seed, DRAWN + stream)]] = True
        return self.select(wanted)

    def holdout_ranks(self) -> np.ndarray:
        """A hash in [0, 1) of each record's content."""
        starts = [0, *self.json_ends[:-1].tolist()]
        spans = zip(starts, self.json_ends.tolist(), strict=True)
        return np.array([hash_to_unit(self.json[first:last].tobytes()) for first, last in spans])

    @cached_property
    def identity(self) -> str:
        """Hash of everything that batches are made from."""
        digest = hashlib.blake2b(digest_size=16)
        # Without the records: a field that no objective reads may change.
        for array in (self.ids, self.ends, self.targets, self.lengths):
            digest.update(array.tobytes())
        return digest.hexdigest()


def _take(values: np.ndarray, ends: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The `chosen` stretches of `values`, one after the other, and their ends; stretch i ends at ends[i]."""
    starts = np.concatenate([[0], ends[:-1]])[chosen]
    sizes = ends[chosen] - starts
    new_ends = np.cumsum(sizes)
    # Where each stretch moves to, less where it was, is added to the place of each of its values.
    places = np.arange(sizes.sum()) + np.repeat(starts - (new_ends - sizes), sizes)
    return values[places], new_ends


def from_examples(examples: Sequence[Example], numbers: Sequence[int], records: Sequence[Mapping]) -> Examples:
    """The arrays of some examples; `numbers` are the places of their records in `records`."""
    parts = [part for one in examples for part in one.parts]
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64).reshape(len(examples), -1)
    texts = list(map(to_json, records))
    return Examples(
        ids=np.concatenate(parts).astype(np.int32) if parts else np.zeros(0, np.int32),
        ends=ends,
        targets=np.array([one.target for one in examples], np.float64),
        lengths=np.array([one.length for one in examples], np.int32),
        numbers=np.asarray(numbers, np.int64),
        json=np.frombuffer(b"".join(texts), np.uint8),
        json_ends=np.cumsum([len(text) for text in texts], dtype=np.int64),
    )


def join(tables: Sequence[Examples]) -> Examples:
    """The examples of several tables, one after the other."""
    if len(tables) == 1:
        return tables[0]
    ids = np.cumsum([0, *(len(one.ids) for one in tables)])
    texts = np.cumsum([0, *(len(one.json) for one in tables)])
    records = np.cumsum([0, *(len(one.json_ends) for one in tables)])
    # Places in a joined array begin where those of the tables before end.
    shifted = {"ends": ids, "json_ends": texts, "numbers": records}
    fields = {}
    for name in Examples.__dataclass_fields__:
        arrays = [getattr(one, name) for one in tables]
        if name in shifted:
            arrays = [array + shift for array, shift in zip(arrays, shifted[name], strict=False)]
        fields[name] = np.concatenate(arrays)
    return Examples(**fields)


def open_or_make(source: Source, objective: Labelled, folder: Path, limit: float, report) -> Examples:
    """The examples of a source: those in `folder`, or read from its records and kept there.

    limit: the largest share of unusable records that may be skipped; 0: none. Errors: DataError.
    """
    path = folder / FILE
    make_folder(folder)
    with lock(folder / "lock"):
        if path.is_file():
            with np.load(path) as saved:
                files = json.loads(str(saved["files"]))
                if files == _files(source, files):
                    return Examples(**{name: saved[name] for name in Examples.__dataclass_fields__})
        report(f"reading examples of {source.spec}")
        files = _files(source, None)
        table = _read(source, objective, limit, report)
        with replace(path) as partial, partial.open("wb") as output:
            arrays = {name: getattr(table, name) for name in Examples.__dataclass_fields__}
            np.savez(output, files=json.dumps(files), **arrays)
        return table


def _files(source: Source, known: list | None) -> list:
    """Names, sizes and times of a source's files; those that are `known` where the files are gone."""
    try:
        return [list(file) for file in source.files()]
    except DataError:
        if known is None:
            raise
        return known


def _read(source: Source, objective: Labelled, limit: float, report) -> Examples:
    """Reads every record of a source. Errors: DataError for an unusable one, or too many."""
    examples, numbers, records, bad, first = [], [], [], 0, ""
    for place, record in enumerate(_records(source), 1):
        try:
            found = objective.read(record)
        except DataError as error:
            problem = f"'{source.spec}', record {place}: {error}"
            if not limit:
                raise DataError(problem) from None
            bad, first = bad + 1, first or problem
            continue
        examples += found
        numbers += [len(records)] * len(found)
        records.append(record)
    if bad > limit * (bad + len(records)):
        raise DataError(f"{bad} of {bad + len(records)} records are unusable (data.bad_records={limit}). {first}")
    if not examples:
        raise DataError(f"'{source.spec}': holds no example. Name another source.")
    if bad:
        report(f"warning: {bad:,} records of {source.spec} are skipped, the first: {first}")
    return from_examples(examples, numbers, records)


def _records(source: Source) -> Iterator[Mapping]:
    for span in source.spans(SPAN):
        yield from (document.record for document in source.good_documents(span))


def to_json(record: Mapping) -> bytes:
    """A record as tables keep it."""
    return json.dumps(record, ensure_ascii=False, default=_plain).encode()


def _plain(value: object) -> object:
    """What JSON has for a value of NumPy or of bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return value.tolist() if hasattr(value, "tolist") else str(value)

"""The labelled records of a run: what `pipeline.Corpus` is for text."""

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from input_pipeline import batching, corruption, splits, validate
from input_pipeline.batching.train import BatchContext, rows_of_host
from input_pipeline.corruption.examples import UNLABELLED, Frame
from input_pipeline.errors import DataError
from input_pipeline.examples.batches import ExampleBatches, ExamplePass, PackedBatches, bucket_lengths, pack_rows
from input_pipeline.examples.table import Examples, join, open_or_make, to_json
from input_pipeline.io import Folders
from input_pipeline.packing.seq2seq import Plan
from input_pipeline.sources.base import Document, Source, hash_to_unit
from input_pipeline.tokenizers.base import Tokenizer

OF_LOSSES = ("lm_weight",)  # keys of objectives that change no example and are younger than kept ones


def prepare(
    data: Mapping,
    tokenizer: Mapping,
    objective: Mapping,
    folders: Folders,
    opened: Tokenizer,
    sources: Mapping[str, Sequence[Source]],
    report: Callable[[str], None],
) -> "ExampleCorpus":
    """Reads the examples of all splits, or opens those that an earlier start has kept. Errors: DataError."""
    frame = Frame(tokenizer["single"], tokenizer["pair"], opened.special, data["length"])
    task = corruption.build(objective, opened, frame)
    limit = data["bad_records"] if data["on_bad_record"] == "skip" else 0.0
    read = sorted((key, value) for key, value in objective.items() if key not in OF_LOSSES)
    # Windows depend on the length of rows. Tables of earlier versions have another UNLABELLED.
    settings = repr((read, opened.fingerprint, frame.frames, UNLABELLED, *[frame.length] * task.windows))
    digest = hashlib.blake2b(settings.encode(), digest_size=4).hexdigest()
    tables = {}
    for name, found in sources.items():
        made = []
        for source in found:
            folder = validate.store_folder(source, 0.0, data, folders.data)
            made.append(open_or_make(source, task, folder.parent / f"{folder.name}-{digest}", limit, report))
        tables[name] = join(made)
    share = splits.holdout_share(data)
    # By content, as documents are held out: equal records are on one side.
    if "validation" not in tables and share and "train" in tables:
        held = tables["train"].holdout_ranks() < share
        tables["validation"], tables["train"] = tables["train"].select(held), tables["train"].select(~held)
    if data["examples"] and "train" in tables:
        if data["balanced"] and not task.classes:
            raise DataError(f"data.balanced=True: objective.kind={task.kind} has no classes. Set it to False.")
        number, seed, every = data["examples"], data["seed"], len(tables["train"].json_ends)
        classes = task.classes if data["balanced"] else ()
        tables["train"] = tables["train"].draw(number, seed, classes)
        report(f"drew {number:,} of {every:,} training records by config.seed={seed}")
    return ExampleCorpus(data, opened, task, {name: table for name, table in tables.items() if len(table)})


@dataclass(frozen=True, kw_only=True)
class TaskTexts(Source):
    """The texts that a task reads of a source's records, as a tokenizer is trained on them."""

    source: Source
    task: corruption.Objective

    def files(self):
        return self.source.files()

    def spans(self, target: int):
        return self.source.spans(target)

    def documents(self, span) -> Iterator[Document]:
        for document in self.source.good_documents(span):
            try:
                texts = self.task.texts(document.record)
            except DataError as error:
                if not self.source.bad_records:
                    raise DataError(f"'{self.spec}': {error}") from None
                continue
            # Ranks are those by which tables hold records out.
            yield Document.from_texts(hash_to_unit(to_json(document.record)), *texts)


def texts_of(sources: Mapping[str, Sequence[Source]], objective: Mapping) -> dict[str, list[Source]]:
    """The sources of each split as `TaskTexts`."""
    task = corruption.build(objective)
    return {
        name: [TaskTexts(spec=source.spec, source=source, task=task) for source in found]
        for name, found in sources.items()
    }


class ExampleCorpus:
    """Examples, ready to be read as batches."""

    def __init__(self, data: Mapping, tokenizer: Tokenizer, objective, tables: Mapping[str, Examples]):
        self.tokenizer, self._data, self._objective, self._tables = tokenizer, data, objective, tables

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self._tables)

    @property
    def origin(self) -> dict[str, str]:
        """Fingerprints of the tokenizer and of the training examples, in which a data position counts batches."""
        return {"tokenizer": self.tokenizer.fingerprint, "text": self.identity("train")}

    def identity(self, split: str) -> str:
        """Hash of a split's examples."""
        return self.examples(split).identity

    def tokens(self, split: str) -> int:
        """Tokens of a split's rows."""
        return int(self.examples(split).lengths.sum())

    def examples(self, split: str) -> Examples:
        """The examples of a split. Errors: DataError for a split that does not exist."""
        if split not in self._tables:
            raise DataError(f"--split={split}: unknown. Choose one of: {', '.join(self._tables)}, or give --data.")
        return self._tables[split]

    def summary(self) -> list[dict]:
        """Counts of each split: split, documents (examples), tokens, bytes and words of the records."""
        rows = []
        for name, table in self._tables.items():
            tokens, size = int(table.lengths.sum()), int(table.json_ends[-1])
            rows.append({"split": name, "documents": len(table), "tokens": tokens, "bytes": size, "words": 0})
        return [row | {"bytes_per_token": row["bytes"] / row["tokens"]} for row in rows]

    @property
    def rows_per_epoch(self) -> float:
        """Rows in which training reads each example once."""
        return float(len(self._packed.first) - 1 if self._is_packed else len(self.examples("train")))

    @property
    def _is_packed(self) -> bool:
        return self._data["layout"] == "packed_examples"

    @functools.cached_property
    def _packed(self) -> Plan:
        """The training examples of each row, if several share one."""
        return pack_rows(self.examples("train"), self._objective, self._data["length"])

    def batches(
        self, *, seed: int, batch_size: int, rows: np.ndarray | None = None, start: int = 0, workers: int, prefetch: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """Training batches from number `start` on, as `Corpus.batches`."""
        context = self._context(seed, batch_size, rows, self._data["length"])
        table, shuffle = self.examples("train"), self._data["shuffle"]
        if self._is_packed:
            batches = PackedBatches(context, table, self._packed, shuffle)
        else:
            batches = ExampleBatches(context, table, self._lengths(context.length), shuffle)
        return batching.read(batches, start, batching.ENDLESS, workers, prefetch)

    def check_predicted(self, seed: int, batch_size: int, report: Callable[[str], None]) -> None:
        """Reports rows that are cut. Errors: DataError if no training or validation example has a label."""
        for split in set(self.splits) & {"train", "validation"}:
            table = self.examples(split)
            if self._objective.labelled and (table.targets <= UNLABELLED).all():
                raise DataError(f"data.{split}: no record has a label. Change objective.{self._objective.labelled}.")
            for note in self._objective.notes(table):
                report(f"warning: data.{split}: {note}")

    def evaluation(
        self,
        split: str,
        *,
        length: int,
        stride: int,
        batch_size: int,
        rows: np.ndarray | None = None,
        limit: int = 0,
        layout: str | None = None,
    ) -> "ExampleEvaluation":
        """A pass over `split`, as `Corpus.evaluation`; each example is in it once."""
        context = self._context(0, batch_size, rows, length)
        batches = ExamplePass(context, self.examples(split), self._lengths(length), limit)
        return ExampleEvaluation(batches, self._data["prefetch"])

    def tasks(self, split: str, **options) -> dict:
        """Nothing is decoded."""
        return {}

    def _context(self, seed: int, batch_size: int, rows: np.ndarray | None, length: int) -> BatchContext:
        needed = rows_of_host(rows, batch_size)
        return BatchContext(self._objective, self._data["layout"], seed, batch_size, length, needed)

    def _lengths(self, length: int) -> tuple[int, ...]:
        return bucket_lengths(self._data["buckets"], length)


@dataclass(frozen=True)
class ExampleEvaluation:
    """A pass over the examples of a split."""

    passes: ExamplePass
    prefetch: int

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.passes)

    @property
    def scope(self) -> str:
        """The part of the split that is read, in words for the log."""
        read, whole = len(self.passes.order), len(self.passes.table)
        return f"all {whole:,} examples" if read == whole else f"first {read:,} of {whole:,} examples"

    @property
    def table(self) -> Examples:
        """The split's examples."""
        return self.passes.table

    @property
    def order(self) -> np.ndarray:
        """The examples in the order of the rows of all batches, int64 [n]."""
        return self.passes.order

    def batches(self) -> Iterator[dict[str, np.ndarray]]:
        """The batches in order: this host's rows of each."""
        with contextlib.closing(batching.read(self.passes, 0, len(self), 0, self.prefetch)) as batches:
            yield from batches

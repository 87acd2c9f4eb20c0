"""The whole input pipeline: from the config's `data` and `tokenizer` sections to batches.

prepare -> sources -> tokenizer -> token stores -> Corpus -> batches, evaluation
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from input_pipeline import corruption, requirements, splits
from input_pipeline.batching import loader
from input_pipeline.batching.eval_batches import Evaluation, Lanewise, Rowwise, predicted
from input_pipeline.batching.mixture import mixing_weights
from input_pipeline.batching.tasks import Task
from input_pipeline.batching.train_batches import Batching, Examples, Lanes, SegmentLanes
from input_pipeline.errors import DataError
from input_pipeline.folders import Folders
from input_pipeline.packing import control_codes, token_counts
from input_pipeline.rows import Plans, Rows, examples
from input_pipeline.sources import sources
from input_pipeline.sources.readers import Document, raw
from input_pipeline.sources.sources import Source
from input_pipeline.splits import Part
from input_pipeline.token_store import build
from input_pipeline.token_store.parts import documents
from input_pipeline.token_store.store import HELD, KEPT, NOTHING, Store
from input_pipeline.token_store.stream import Stream
from input_pipeline.token_store.workers import Workers
from input_pipeline.tokenizers import folder as tokenizer_folder
from input_pipeline.tokenizers import saved
from input_pipeline.tokenizers.base import Tokenizer

SCORING_SEED = 0  # what an objective draws while it is evaluated is the same in every run


def prepare(
    data: Mapping,
    tokenizer: Mapping,
    objective: Mapping,
    folders: Folders,
    *,
    report: Callable[[str], None] = print,
    accept: Callable[[Tokenizer], None] = lambda tokenizer: None,
    read_all: bool = False,
    taken: Path | None = None,
    scratch: Path | None = None,
    workers: Workers | None = None,
) -> "Corpus":
    """Makes what is missing (tokenizer, token stores, packing plan) and opens it.

    `data`, `tokenizer` and `objective` are the sections of that name in configs/common.py; `report` hears what takes
    long; `accept` sees the tokenizer before any text is tokenised, and raises where it will not do.
    `read_all` compares large stores and plans with their checksums too. `taken` is the folder of another run's
    tokenizer, for a run that names none. In `scratch` lie plans for which the run's own folder has no room, where that
    is only read. Split, tokenizer and store depend on the text alone, never on a seed or on the `workers` that make
    the parts of stores (None: the processes of this machine).
    Safe when several processes start at once, or are killed. Errors: DataError for anything wrong with either.
    """
    named = requirements.check(data, tokenizer, objective, folders, taken is not None)
    holdout = splits.share_of(data)
    special = corruption.special(objective, data["layout"])
    opened = tokenizer_folder.make_folder(folders.tokenizer, tokenizer, named, holdout, report, special, taken, accept)
    requirements.check_ends(opened, data, report)

    def store(source: Source, share: float) -> Store:
        place = requirements.store_folder(source, share, data, folders.data)
        return build.open_or_build(
            source, opened, folders.tokenizer, place, share, report, read_all, data["sentences"], workers
        )

    def parts(found: Sequence[Source], share: float, split: str) -> list[Part]:
        return [Part(source, split, share, Stream(store(source, share).shards(split))) for source in found]

    by_split = {name: parts(found, holdout if name == "train" else 0.0, KEPT) for name, found in named.items()}
    if holdout:
        by_split["validation"] = parts(named["train"], holdout, HELD)
    splits.check_copies(by_split)
    root = requirements.store_root(data, folders.data)
    return Corpus(data, objective, opened, by_split, root, report, read_all, scratch)


def prepare_given(
    given: str,
    root: str,
    data: Mapping,
    tokenizer: Mapping,
    objective: Mapping,
    folders: Folders,
    *,
    report: Callable[[str], None],
    accept: Callable[[Tokenizer], None],
) -> "Corpus":
    """As `prepare`, of the sources `given` alone, in one split of that name, with the tokenizer that `folders` hold.

    They are tokenised into the folder `root`; the run's own text is not asked for.
    """
    data = {**data, "store": root, "weights": ()}
    found = sources.parse(given, "--data", data["image"])
    opened = open_tokenizer(folders.tokenizer)
    accept(opened)
    requirements.check_ends(opened, data, report)
    requirements.check_fields(found, data, objective)
    requirements.check_codes(found, data["layout"], objective)
    requirements.check_languages(found, data, objective)
    parts = []
    for source in found:
        place = requirements.store_folder(source, 0.0, data, folders.data)
        store = build.open_or_build(source, opened, folders.tokenizer, place, 0.0, report, sentences=data["sentences"])
        parts.append(Part(source, KEPT, 0.0, Stream(store.shards(KEPT))))
    return Corpus(data, objective, opened, {given: parts}, Path(root), report)


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a tokenizer that `prepare` made to the end."""
    return tokenizer_folder.is_made(folder)


def open_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer that `prepare` made in a run's folder for it."""
    if not has_tokenizer(folder):
        raise DataError(
            f"{folder.parent} holds no tokenizer; give the work folder of a run, or run prepare there first"
        )
    return saved.open_folder(folder)


class Corpus:
    """Tokenised text, ready to be read as batches."""

    def __init__(
        self,
        data: Mapping,
        objective: Mapping,
        tokenizer: Tokenizer,
        splits: Mapping[str, Sequence[Part]],
        root: Path,
        report: Callable[[str], None],
        read_all: bool = False,
        scratch: Path | None = None,
    ):
        self.tokenizer, self._data, self._splits = tokenizer, data, splits
        self._objective = corruption.build(objective, tokenizer)
        control_codes.check((part.source for parts in splits.values() for part in parts), tokenizer)
        plans = Plans(root, scratch, report, read_all)
        self._layouts = Rows(data, self._objective, tokenizer, plans)
        self._streams = {
            name: Stream([shard for part in parts for shard in part.stream.shards]) for name, parts in splits.items()
        }
        self._originals = functools.cache(_originals)  # read once: a run may outlive its text
        for name, stream in self._streams.items():
            if not stream.bare_tokens:
                raise DataError(requirements.empty(name, data, self._streams))
        if self._objective.counted:
            # Of what is trained on; where there is none, as where other text is scored, of the first stream.
            counted = self._streams.get("train") or next(iter(self._streams.values()))
            self._objective.weigh(plans(token_counts.plan, counted, tokenizer.vocab_size).counts)
        if data["layout"] != "stream" and "train" in splits:
            self._layouts.check(splits["train"])
            self._rows = [self._layouts.training(part) for part in splits["train"]]
            sizes = [(len(rows), examples(rows)) for rows in self._rows]
            self._weights = mixing_weights(sizes, data["weights"], data["temperature"], data["cap"])

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that there are, of train, validation and test."""
        return tuple(self._streams)

    @property
    def origin(self) -> dict[str, str]:
        """What a position in the training data is a position in: `tokenizer` and `text`, each by its fingerprint.

        Both are those of the content: text that is tokenised again has the same.
        """
        return {"tokenizer": self.tokenizer.fingerprint, "text": self.stream("train").identity}

    def summary(self) -> list[dict]:
        """How much each split holds: split, documents, tokens, bytes, words, bytes_per_token."""
        counts = ((name, stream.counts) for name, stream in self._streams.items())
        return [{"split": name, **c._asdict(), "bytes_per_token": c.bytes / c.tokens} for name, c in counts]

    def raw_bytes(self, split: str) -> bytes:
        """The text of a split's documents as it was tokenised, joined, read from its sources again.

        Errors: DataError where they are not there, or have other text than its token stores were made of.
        """
        whole = self.stream(split).counts.bytes
        parts, cut = self._splits[split], self._data["sentences"]
        found = (document for part in parts for document in _documents(part, cut))
        text = b"".join(raw(chunk) for document in found for chunk in document.chunks)
        if len(text) != whole:
            raise DataError(
                f"the text of split '{split}' has {len(text):,} bytes here, and {whole:,} where its token store was "
                "made; bring that text back, or leave out what reads it again (evaluate --gzip, --xz)"
            )
        return text

    def batches(
        self, *, seed: int, batch_size: int, rows: np.ndarray | None = None, start: int = 0, workers: int, prefetch: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """Training batches from number `start` on, without end; `close()` the iterator when done.

        Batch n is a function of (seed, n). `rows` are the rows of it that this host needs (None: all).
        `workers` processes read ahead (0: threads), `prefetch` batches altogether.
        """
        data = self._data
        batching = Batching(self._objective, data["layout"], seed, batch_size, data["length"], _rows(rows, batch_size))
        if data["layout"] == "stream" and self._objective.segmented:
            segmented = self._layouts.segments(self._streams["train"], data["length"])
            both_ways = self._objective.both_ways
            lanes = batch_size // 2 if both_ways else batch_size
            batches = SegmentLanes(batching, segmented, lanes, data["shuffle"], both_ways)
        elif data["layout"] == "stream":
            batches = Lanes(batching, self._streams["train"], data["shuffle"])
        else:
            batches = Examples(batching, self._rows, self._weights, data["shuffle"])
        return loader.read(batches, start, loader.ENDLESS, workers, prefetch)

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
    ) -> Evaluation:
        """A pass over `split` in rows of `length`; each token is scored once.

        stride: tokens a window moves on (layout concat); 0 means `length`. limit: the first so many batches;
        0 means all. layout: as data.layout, which it is where None. Errors: DataError for what cannot be.
        """
        stream, objective = self.stream(split), self._objective
        layout, stride = layout or self._data["layout"], stride or length
        if layout not in objective.layouts:
            raise DataError(f"layout is '{layout}'; choose one of: {', '.join(objective.layouts)}")
        requirements.check_stride(stride, length, layout, objective.bare)
        batching = Batching(objective, layout, SCORING_SEED, batch_size, length, _rows(rows, batch_size))
        overlap, whole = length - stride, predicted(stream, self.tokenizer)
        if layout == "stream" and objective.segmented:
            segmented = self._layouts.segments(stream, length)
            lanes = min(batch_size, stream.tokens // segmented.reuse)  # no text is scored twice
            scored = SegmentLanes(batching, segmented, lanes, shuffle=False, both_ways=False)
        elif layout == "stream":
            scored = Lanewise(batching, stream, whole.tokens)
        else:
            parts = [part for part in self._splits[split] if part.stream.tokens]
            if any(part.source.code for part in parts):
                whole = sum((predicted(part.stream, self.tokenizer) for part in parts), NOTHING)
            scored = Rowwise(batching, self._layouts.scored(split, stream, parts, layout, length, overlap))
            if layout == "document":
                whole = whole._replace(tokens=whole.tokens - whole.documents)  # end tokens are read, not predicted
        if not len(scored):
            raise DataError(f"split '{split}' has no token that the model could be scored on; give it more text")
        return Evaluation(scored, whole, self.tokenizer, limit=limit, prefetch=self._data["prefetch"])

    def tasks(
        self, split: str, *, length: int, batch_size: int, rows: np.ndarray | None = None, limit: int = 0
    ) -> dict[str, Task]:
        """The sources of a split that are pairs of texts, by name, an example a row: `limit` of each, 0 for all.

        Pairs of which a text has no token are none of them.
        """
        self.stream(split)
        found = {}
        for part in self._splits[split]:
            if not part.stream.counts.documents or not self._layouts.pairs_texts(part.stream):
                continue
            pairs = self._layouts.both_texts(part, length)
            if numbers := tuple(np.sort(pairs.plan.documents)[: limit or None].tolist()):
                batching = Batching(
                    self._objective, self._data["layout"], SCORING_SEED, batch_size, length, _rows(rows, batch_size)
                )
                originals = functools.partial(self._originals, part, numbers)
                found[part.source.spec] = Task(pairs, numbers, batching, originals, self._data["prefetch"])
        return found

    def first_documents(self, split: str, count: int) -> list[np.ndarray]:
        """The ids, int32, of the first `count` documents of a split."""
        stream = self.stream(split)
        found = []
        for start, length in map(stream.document, range(min(count, stream.counts.documents))):
            found.append(np.empty(length, np.int32))
            stream.copy(start, found[-1])
        return found

    def stream(self, split: str) -> Stream:
        """The ids of a split, as one circular array."""
        if split not in self._streams:
            raise DataError(
                f"the run has no split '{split}'; choose one of: {', '.join(self._streams)}, or name any source "
                "instead (evaluate --data=SOURCE, generate --images=SOURCE)"
            )
        return self._streams[split]


def _rows(rows: np.ndarray | None, batch_size: int) -> np.ndarray:
    return np.arange(batch_size) if rows is None else np.asarray(rows, np.int64)


def _documents(part: Part, sentences: str = "") -> Iterator[Document]:
    """The documents of a source's share of a split, read from it again. Errors: DataError where it is not there."""
    part.source.files()
    for document in documents(part.source, part.source.spans(1 << 30), sentences):
        if (document.place < part.holdout) == (part.split == HELD):
            yield document


def _originals(part: Part, numbers: Sequence[int]) -> list[str]:
    """The second texts of the documents of these numbers, in order, read from their source again.

    Errors: DataError where it is not there, or has fewer.
    """
    pairs = (document.texts for document in _documents(part) if document.texts)  # without text it is none
    first, wanted = enumerate(itertools.islice(pairs, numbers[-1] + 1)), set(numbers)
    found = ["".join(written) for number, (_, written) in first if number in wanted]
    if len(found) < len(numbers):
        raise DataError(
            f"'{part.source.spec}' has {len(found):,} pairs of texts here, and had {len(numbers):,} or more when its "
            "token store was made; bring them back"
        )
    return found

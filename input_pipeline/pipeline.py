"""The input pipeline: from the config's `data` and `tokenizer` sections to batches.

prepare -> sources -> tokenizer -> token stores -> Corpus -> batches, evaluation
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from input_pipeline import batching, corruption, splits, validate
from input_pipeline.batching.eval import EvalRows, Evaluation, Task
from input_pipeline.batching.mixture import mixing_weights
from input_pipeline.batching.train import BatchContext, MixedBatches, Ramp, SegmentBatches, StreamBatches, rows_of_host
from input_pipeline.errors import DataError
from input_pipeline.examples import corpus as example_corpus
from input_pipeline.io import Folders, replace, writable
from input_pipeline.packing.build import RowBuilder, count_examples
from input_pipeline.packing.concat import count_targets
from input_pipeline.packing.index_cache import IndexCache, count_tokens
from input_pipeline.sources.base import Document, Source, to_bytes
from input_pipeline.sources.parser import parse_data
from input_pipeline.splits import Part
from input_pipeline.token_store import build
from input_pipeline.token_store.build import Workers
from input_pipeline.token_store.store import HELD, KEPT, NOTHING
from input_pipeline.token_store.stream import Stream
from input_pipeline.token_store.writer import documents
from input_pipeline.tokenizers import store as tokenizer_store
from input_pipeline.tokenizers.base import Tokenizer

# Rows and tokens that are looked at before training: hundreds of predictions, so that chance moves their number by less
# than a third (coins: 15% of 512 tokens are 77 +- 8), and a second for the longest rows.
FIRST_ROWS, FIRST_TOKENS = 64, 1 << 15
MAX_RATIO = 2  # BERT's 15% halved or doubled gives another model (Wettig et al. 2022, "Should You Mask 15%?")
BAD_RECORDS = "bad_records.txt"  # in the work folder: the first records that were skipped
EVAL_SEED = 0  # of corruption in evaluation: the same in every run, so that runs compare


def prepare(
    data: Mapping,
    tokenizer: Mapping,
    objective: Mapping,
    folders: Folders,
    *,
    sources: Mapping[str, Sequence[Source]] | None = None,
    report: Callable[[str], None] = print,
    accept: Callable[[Tokenizer], None] = lambda tokenizer: None,
    read_all: bool = False,
    inherited: Path | None = None,
    scratch: Path | None = None,
    workers: Workers | None = None,
) -> "Corpus | example_corpus.ExampleCorpus":
    """Makes what is missing (tokenizer, token stores, row plans) and opens it.

    data, tokenizer, objective: sections of configs/common.py.
    sources: by split, as `validate.check` returned them; None: they are checked here.
    report: receives what takes long. accept: sees the tokenizer before text is tokenised, and may raise.
    read_all: verify checksums of large stores and plans too.
    inherited: folder of another run's tokenizer, for a config that names none.
    scratch: folder for plans if the run's own is read-only. workers: tokenise (None: processes of this machine).

    Splits, tokenizer and stores depend on the text alone, never on a seed or on `workers`. Safe to run in several
    processes at once, and to kill. Errors: DataError.
    """
    if sources is None:
        sources = validate.check(data, tokenizer, objective, folders, inherited is not None)
    # Splits come first: the tokenizer must not see text that is held out.
    share, special = splits.holdout_share(data), corruption.special(objective, data["layout"])
    read = example_corpus.texts_of(sources, objective) if data["layout"] in validate.EXAMPLES else sources
    opened = tokenizer_store.make_folder(folders.tokenizer, tokenizer, read, share, report, special, inherited, accept)
    validate.check_ends(opened, data, report)
    if data["layout"] in validate.EXAMPLES:
        return example_corpus.prepare(data, tokenizer, objective, folders, opened, sources, report)

    cache = IndexCache(validate.store_root(data, folders.data), scratch, report, read_all)
    how = {"read_all": read_all, "workers": workers}
    by_split, skipped = _open_splits(sources, share, opened, data, folders, report, **how)
    path = folders.tokenizer.parent / BAD_RECORDS
    if skipped and not (path.is_file() and path.read_text(encoding="utf-8") == skipped):
        with writable(path.parent, "data.on_bad_record"), replace(path) as partial:
            partial.write_text(skipped, encoding="utf-8")
    splits.check_copies(by_split)
    return Corpus(data, objective, opened, by_split, cache)


def prepare_given(
    given: Mapping[str, str],
    root: str,
    data: Mapping,
    tokenizer: Mapping,
    objective: Mapping,
    folders: Folders,
    *,
    report: Callable[[str], None],
    accept: Callable[[Tokenizer], None],
) -> "Corpus | example_corpus.ExampleCorpus":
    """Open the sources `given` as splits, name -> source, with the run's tokenizer.

    They are tokenised into the folder `root`; the run's own text need not exist.
    """
    data = {**data, "store": root, "weights": (), "holdout": 0.0, "examples": 0}
    found = {name: parse_data(data, text, "--data") for name, text in given.items()}
    opened = open_tokenizer(folders.tokenizer)
    accept(opened)
    validate.check_ends(opened, data, report)
    validate.check_sources(list(itertools.chain(*found.values())), data, objective, corruption.build(objective))
    if data["layout"] in validate.EXAMPLES:
        return example_corpus.prepare(data, tokenizer, objective, folders, opened, found, report)
    cache = IndexCache(Path(root), scratch=None, report=report, read_all=False)
    by_split, _ = _open_splits(found, 0.0, opened, data, folders, report)
    return Corpus(data, objective, opened, by_split, cache)


def _open_splits(
    sources: Mapping[str, Sequence[Source]],
    share: float,
    tokenizer: Tokenizer,
    data: Mapping,
    folders: Folders,
    report,
    **how,
) -> tuple[dict[str, list[Part]], str]:
    """Opens the token stores of sources, by split; those of training text are divided by the holdout `share`.

    Also returns lines about the records that they skipped.
    """
    by_split, skipped, sentences = {}, [], data["sentences"]
    for name, found in sources.items():
        holdout = share if name == "train" else 0.0
        for source in found:
            folder = validate.store_folder(source, holdout, data, folders.data)
            store = build.open_or_build(
                source, tokenizer, folders.tokenizer, folder, holdout, report, sentences=sentences, **how
            )
            if "bad" in store.manifest:
                bad, records = build.count_bad(store.manifest["parts"])
                report(f"warning: {bad:,} of {records:,} records of {source.spec} are skipped (data.on_bad_record)")
                skipped += [f"{source.spec}: {bad:,} of {records:,} records, the first:", *store.manifest["bad"]]
            # One store holds both splits of a source, divided by a hash of each document.
            for split, to in ((KEPT, name), (HELD, "validation")) if holdout else ((KEPT, name),):
                by_split.setdefault(to, []).append(Part(source, split, holdout, Stream(store.shards(split))))
    return by_split, "".join(f"{line}\n" for line in skipped)


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a complete tokenizer."""
    return tokenizer_store.is_made(folder)


def open_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in a run's folder. Errors: DataError if there is none."""
    if not has_tokenizer(folder):
        raise DataError(f"{folder.parent}: no tokenizer. Give a run's folder, or run `pretrain prepare`.")
    return tokenizer_store.open_folder(folder)


class Corpus:
    """Tokenised text, ready to be read as batches."""

    def __init__(
        self,
        data: Mapping,
        objective: Mapping,
        tokenizer: Tokenizer,
        splits: Mapping[str, list[Part]],
        cache: IndexCache,
    ):
        self.tokenizer, self._data, self._splits = tokenizer, data, splits
        self._objective = corruption.build(objective, tokenizer)
        self._builder = RowBuilder(data, self._objective, tokenizer, cache)
        self._streams = {
            name: Stream([shard for part in parts for shard in part.stream.shards]) for name, parts in splits.items()
        }
        # Targets of tasks are read from their sources once: a run may outlive its text.
        self._originals = functools.cache(_originals)
        for name, stream in self._streams.items():
            if not stream.bare_tokens:
                raise DataError(f"data.{name}: no token is left (data.holdout={data['holdout']}). Give it more text.")
        if self._objective.needs_token_counts:
            # Counts of the training text, also in evaluation; of other text if the run's own is not there.
            counted = self._streams.get("train") or next(iter(self._streams.values()))
            self._objective.set_token_counts(count_tokens(counted, tokenizer.vocab_size, cache))
        # Streams need no row plans: lanes are cut once the batch size is known.
        if data["layout"] != "stream" and "train" in splits:
            self._rows = [self._builder.training(part) for part in splits["train"]]
            if data["layout"] == "pairs" and all(rows.plan.is_random.all() for rows in self._rows):
                raise DataError(
                    "data.layout=pairs: no sentences follow others. Add ?document=blank_line, or longer rows."
                )
            sizes = [(len(rows), count_examples(rows)) for rows in self._rows]
            self._weights = mixing_weights(sizes, data["weights"], data["temperature"], data["cap"])

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self._streams)

    @property
    def origin(self) -> dict[str, str]:
        """Fingerprints of the tokenizer and of the training text, in which a data position counts batches.

        They depend on content alone: text that is tokenised again has the same.
        """
        return {"tokenizer": self.tokenizer.fingerprint, "text": self.identity("train")}

    def identity(self, split: str) -> str:
        """Hash of a split's text and tokens."""
        return self.stream(split).identity

    def tokens(self, split: str) -> int:
        """Tokens of a split's text."""
        return self.stream(split).tokens

    def summary(self) -> list[dict]:
        """Counts of each split: split, documents, tokens, bytes, words, bytes_per_token."""
        counts = ((name, stream.counts) for name, stream in self._streams.items())
        return [{"split": name, **c._asdict(), "bytes_per_token": c.bytes / c.tokens} for name, c in counts]

    def stream(self, split: str) -> Stream:
        """The ids of a split, as one circular array."""
        if split not in self._streams:
            raise DataError(f"--split={split}: unknown. Choose one of: {', '.join(self._streams)}, or give --data.")
        return self._streams[split]

    @property
    def rows_per_epoch(self) -> float:
        """Rows in which training reads each token of its text once, on average over the sources."""
        if self._data["layout"] == "stream":
            objective = self._objective
            return self._streams["train"].tokens / (objective.reuse if objective.two_segments else self._data["length"])
        # Pairs are cut from the text in several ways, one after the other.
        passes = self._objective.passes if self._data["layout"] == "pairs" else 1
        return sum(map(len, self._rows)) / passes

    def first_documents(self, split: str, count: int) -> list[np.ndarray]:
        """Ids, int32, of the first `count` documents of a split."""
        stream, found = self.stream(split), []
        for number in range(min(count, stream.counts.documents)):
            start, length = stream.document(number)
            found.append(np.empty(length, np.int32))
            stream.copy(start, found[-1])
        return found

    def raw_bytes(self, split: str) -> bytes:
        """The joined text of a split's documents, read from its sources again. Errors: DataError if it has changed."""
        size = self.stream(split).counts.bytes
        read = (document for part in self._splits[split] for document in _read_documents(part, self._data["sentences"]))
        text = b"".join(to_bytes(chunk) for document in read for chunk in document.chunks)
        if len(text) != size:
            raise DataError(f"split {split}: text changed since tokenising. Leave out --gzip and --xz.")
        return text

    def batches(
        self,
        *,
        seed: int,
        batch_size: int,
        rows: np.ndarray | None = None,
        ramp: Ramp | None = None,
        start: int = 0,
        workers: int,
        prefetch: int,
    ) -> Iterator[dict[str, np.ndarray]]:
        """Training batches from number `start` on, without end; `close()` the iterator when done.

        Batch n is a function of (seed, n). rows: the rows of it that this host needs (None: all). ramp: sizes
        of batches that grow to `batch_size`. `workers` processes read ahead (0: threads), `prefetch` batches in all.
        """
        numbered = self._numbered(seed, batch_size, rows_of_host(rows, batch_size), ramp)
        return batching.read(numbered, start, batching.ENDLESS, workers, prefetch)

    def _numbered(
        self, seed: int, batch_size: int, rows: np.ndarray, ramp: Ramp | None = None
    ) -> MixedBatches | SegmentBatches | StreamBatches:
        """Training batches by number."""
        data, objective = self._data, self._objective
        context = BatchContext(objective, data["layout"], seed, batch_size, data["length"], rows)
        if data["layout"] == "stream" and objective.two_segments:
            segments = self._builder.segments(self._streams["train"], data["length"])
            # With both ways, half of the lanes read backwards.
            lanes = batch_size // 2 if objective.both_ways else batch_size
            return SegmentBatches(context, segments, lanes, data["shuffle"], objective.both_ways)
        if data["layout"] == "stream":
            return StreamBatches(context, self._streams["train"], data["shuffle"])
        return MixedBatches(context, self._rows, self._weights, data["shuffle"], ramp)

    def check_predicted(self, seed: int, batch_size: int, report: Callable[[str], None]) -> None:
        """Compares the share of tokens that the first rows predict with the one asked for.

        Reports a share that is off by `MAX_RATIO`. Errors: DataError if nothing is predicted.
        """
        wanted = max(1, min(FIRST_ROWS, FIRST_TOKENS // self._data["length"]))
        numbered = self._numbered(seed, batch_size, np.arange(min(wanted, batch_size)))
        batches = [numbered[n] for n in range(-(-wanted // batch_size))]
        counts = [self._objective.count_predicted(batch) for batch in batches]
        if None in counts:
            return
        *shares, tokens = np.sum(counts, axis=0)
        (found, asked), rows = np.array(shares) / max(tokens, 1), len(batches) * min(wanted, batch_size)
        kind, setting = self._objective.kind, self._objective.needs_words
        remedy = f"Unset objective.{setting}" if setting.startswith("whole_words") else "Look at the text of data.train"
        if asked and not found:
            raise DataError(
                f"objective.kind={kind}: the first {rows} rows predict no token, instead of {asked:.1%}. {remedy}."
            )
        if not asked / MAX_RATIO <= found <= asked * MAX_RATIO:
            report(
                f"warning: {found:.1%} of the tokens of the first {rows} rows are predicted, {asked:.1%} are asked for"
            )

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
        """A pass over `split` in rows of `length` that scores each token once.

        stride: tokens that a window advances (layout concat; 0: `length`). limit: number of batches (0: all). layout:
        None for data.layout. Errors: DataError.
        """
        stream, objective = self.stream(split), self._objective
        layout, stride = layout or self._data["layout"], stride or length
        validate.check_stride(stride, length, layout, objective)
        context = BatchContext(objective, layout, EVAL_SEED, batch_size, length, rows_of_host(rows, batch_size))
        whole = count_targets(stream, self.tokenizer)
        if layout == "stream" and objective.two_segments:
            segments = self._builder.segments(stream, length)
            # At most one lane per `reuse` tokens: more would score text twice.
            lanes = min(batch_size, stream.tokens // segments.reuse)
            batches = SegmentBatches(context, segments, lanes, shuffle=False, both_ways=False)
        elif layout == "stream":
            batches = StreamBatches(context, stream, shuffle=False, targets=whole.tokens)
        else:
            parts = [part for part in self._splits[split] if part.stream.tokens]
            # Behind control codes each source is scored by itself.
            if any(part.source.code for part in parts):
                whole = sum((count_targets(part.stream, self.tokenizer) for part in parts), NOTHING)
            how = {"layout": layout, "length": length, "overlap": length - stride}
            batches = EvalRows(context, self._builder.evaluation(stream, parts, **how))
            if layout == "document":
                # End tokens are read, not predicted.
                whole = whole._replace(tokens=whole.tokens - whole.documents)
        if not len(batches):
            raise DataError(f"split {split}: no token to score. Give it more text.")
        return Evaluation(batches, whole, self.tokenizer, limit=limit, prefetch=self._data["prefetch"])

    def tasks(
        self, split: str, *, length: int, batch_size: int, rows: np.ndarray | None = None, limit: int = 0
    ) -> dict[str, Task]:
        """Sources of a split that are (source, target) pairs, by spec, one pair a row: `limit` of each (0: all)."""
        self.stream(split)
        layout, tasks = self._data["layout"], {}
        context = BatchContext(self._objective, layout, EVAL_SEED, batch_size, length, rows_of_host(rows, batch_size))
        for part in self._splits[split]:
            if not part.stream.counts.documents or not self._builder.has_text_pairs(part.stream):
                continue
            pairs = self._builder.pairs(part, length)
            # The plan leaves out pairs with an empty text, and orders documents by row.
            if numbers := tuple(np.sort(pairs.plan.documents)[: limit or None].tolist()):
                originals = functools.partial(self._originals, part, numbers)
                tasks[part.source.spec] = Task(pairs, numbers, context, originals, self._data["prefetch"])
        return tasks


def _read_documents(part: Part, sentences: str = "") -> Iterator[Document]:
    """Documents of a part of a split, read from its source again. Errors: DataError if it is gone."""
    part.source.files()
    for document in documents(part.source, part.source.spans(1 << 30), sentences):
        # Documents whose rank is below the share are held out.
        if (document.holdout_rank < part.holdout) == (part.split == HELD):
            yield document


def _originals(part: Part, numbers: Sequence[int]) -> list[str]:
    """Target texts of the documents of these numbers, in order, read from their source again."""
    pairs = (document.texts for document in _read_documents(part) if document.texts)  # stores skip empty documents
    # Read up to the last one that is wanted.
    wanted = set(numbers)
    read = enumerate(itertools.islice(pairs, numbers[-1] + 1))
    found = ["".join(target) for number, (_, target) in read if number in wanted]
    if len(found) < len(numbers):
        raise DataError(f"'{part.source.spec}': pairs of its token store are missing. Restore them.")
    return found

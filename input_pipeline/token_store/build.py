"""Building a token store: parts in parallel, each written whole or not at all, so that a killed build resumes."""

import contextlib
import multiprocessing
import pickle
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from input_pipeline.errors import DataError
from input_pipeline.io import lock, read_json, remove_partial, writable, write_json
from input_pipeline.processes import cores, die_with_parent, workers_start
from input_pipeline.sources.base import LISTED, BadRecord, File, Source, Span
from input_pipeline.token_store.store import MANIFEST, READ, SPLITS, Store
from input_pipeline.token_store.writer import Job, describe, encode, record_path, text_digest
from input_pipeline.tokenizers.base import Tokenizer

PART_BYTES = 1 << 20  # least size of a part
MAX_PARTS = 512  # approximately: a killed build loses little, and not too many files are open

# Makes parts, and yields the number and the record of each as it is done.
Workers = Callable[[Sequence[Job]], Iterator[tuple[int, dict]]]


def open_or_build(
    source: Source,
    tokenizer: Tokenizer,
    saved: Path,
    folder: Path,
    holdout: float,
    report: Callable[[str], None],
    read_all: bool = False,
    sentences: str = "",
    workers: Workers | None = None,
) -> Store:
    """Opens the store of `source` in `folder`, after building it if needed; `saved` is the tokenizer's folder.

    `workers` make its parts, by default processes of this machine; the files do not depend on them. Several processes
    may call this at once: one builds, the others wait. Stores above `store.READ` bytes are compared with their
    checksums only if `read_all`. Errors: DataError for a store of other text or another tokenizer, damaged files, and
    unusable text.
    """
    with writable(folder, "data.store"):
        store = Store.open(folder)
        if store is None:
            with lock(folder / "lock", lambda: report(f"waiting for another process to tokenise {source.spec}")):
                store = Store.open(folder)  # that process may have built it
                if store is None:
                    settings = describe(source, tokenizer, holdout, sentences)
                    store = _build(source, saved, folder, settings, report, workers or processes())
    if store.manifest["tokenizer"] != tokenizer.fingerprint:
        raise DataError(f"data.store={folder} was made with another tokenizer. Delete it, or choose another.")
    _check_bad(source, store.manifest["parts"], len(store.manifest["parts"]))
    _check_unchanged(source, store, report)
    if read_all or store.bytes <= READ:
        store.check_content()
    return store


def _build(source: Source, saved: Path, folder: Path, settings: dict, report, workers: Workers) -> Store:
    remove_partial(folder)
    files = source.files()
    plan = settings | {"files": [list(file) for file in files]}
    (folder / MANIFEST).unlink(missing_ok=True)  # of an earlier format
    plan_path = folder / "plan.json"
    before = read_json(plan_path) if plan_path.is_file() else None
    if before != plan:
        if before:
            report(f"{source.spec} changed during an interrupted build: starting again")
        for leftover in [path for path in folder.iterdir() if path.name[0].isdigit()] if folder.exists() else []:
            leftover.unlink()
    write_json(plan_path, plan)
    jobs = [Job(source, spans, number, saved, folder, settings) for number, spans in enumerate(divide(source, files))]
    # A part is complete once its record is there, since that is written last.
    records = {job.number: read_json(record_path(job)) for job in jobs if record_path(job).is_file()}
    _run([job for job in jobs if job.number not in records], records, report, workers)
    if not sum(record["splits"][split][0] for record in records.values() for split in SPLITS):
        raise DataError(f"'{source.spec}' has no text. Check the path and the files.")
    bad = [BadRecord(*found) for job in jobs for found in records[job.number].get("bad", (0, ()))[1]]
    if bad:
        plan |= {"bad": [source.describe(found) for found in bad[:LISTED]]}
    # The manifest makes the store complete; only then may the records of its parts go.
    write_json(folder / MANIFEST, plan | {"parts": [records[job.number] for job in jobs]})
    for job in jobs:
        record_path(job).unlink()
    plan_path.unlink()
    return Store.open(folder)


def divide(source: Source, files: Sequence[File]) -> Iterator[tuple[Span, ...]]:
    """The spans of a source in parts of similar size; the same for the same files."""
    # Not of the number of processes: a store is the same however it is made.
    target = max(PART_BYTES, sum(file.size for file in files) // MAX_PARTS)
    part, size = [], 0
    for span in source.spans(target):
        part.append(span)
        size += span.size
        if size >= target:
            yield tuple(part)
            part, size = [], 0
    if part:
        yield tuple(part)


def _run(jobs: list[Job], records: dict[int, dict], report, workers: Workers) -> None:
    """Has the jobs done, and puts their records into `records`."""
    if not jobs:
        return
    total, spec, start, reported, tokens = len(jobs) + len(records), jobs[0].source.spec, time.monotonic(), 0.0, 0
    megabytes = sum(span.size for job in jobs for span in job.spans) / 1e6
    report(f"tokenising {spec}: {len(jobs)} of {total} parts, {megabytes:,.3g} MB")
    with contextlib.closing(workers(jobs)) as done:
        for number, record in done:
            records[number] = record
            _check_bad(jobs[0].source, records.values(), total)
            tokens += sum(record["splits"][split][1] for split in SPLITS)
            elapsed = time.monotonic() - start
            if elapsed - reported > 5:
                reported = elapsed
                report(f"tokenising {spec}: {len(records)}/{total} parts, {tokens / elapsed:,.0f} tok/s")


def _check_bad(source: Source, records: Collection[dict], parts: int) -> None:
    """Raises DataError if more of a source's records are bad than it may skip.

    records: of those of its `parts` that are done; the others are taken to have as many records, all usable.
    """
    bad, total = count_bad(records)
    if bad > source.bad_records * total * parts / max(len(records), 1):
        first = next(BadRecord(*found) for record in records for found in record.get("bad", (0, ()))[1])
        raise DataError(
            f"data.bad_records={source.bad_records}: {bad:,} of {total:,} records are bad, the first: "
            f"{source.describe(first)} Raise it, with data.on_bad_record=skip."
        )


def count_bad(records: Collection[dict]) -> tuple[int, int]:
    """(bad records, all records) of parts of a store."""
    bad = sum(record.get("bad", (0, ()))[0] for record in records)
    return bad, bad + sum(record["splits"][split][0] for record in records for split in SPLITS)


def processes(count: int = 0) -> Workers:
    """Parts are made by `count` processes of this machine; 0: one per core.

    With little text, or a single part, by this process: starting others takes half a second.
    """

    def work(jobs: Sequence[Job]) -> Iterator[tuple[int, dict]]:
        workers = min(len(jobs), count or cores())
        if workers == 1 or sum(span.size for job in jobs for span in job.spans) < 4 * PART_BYTES:
            for job in jobs:
                yield job.number, encode(job)
            return
        with contextlib.ExitStack() as stack:
            with workers_start():
                # A fork of a process that runs JAX may deadlock.
                context = multiprocessing.get_context("spawn")
                pool = stack.enter_context(ProcessPoolExecutor(workers, context, initializer=die_with_parent))
                stack.callback(pool.shutdown, cancel_futures=True)  # before the pool would wait for all parts
                futures = {pool.submit(encode, job): job.number for job in jobs}
            for future in as_completed(futures):
                yield futures[future], future.result()

    return work


def beam_pipeline(options: str) -> Workers:
    """Parts are made by the Apache Beam pipeline of `options`, on as many machines as its runner has.

    options: such as "--runner=DirectRunner --direct_num_workers=2". The pipeline carries no text: workers write parts
    into the store's folder, so that a restarted worker makes the same files. Errors: DataError without Beam.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError:
        raise DataError("--beam needs the package apache-beam. Run pip install -e '.[beam]'.") from None

    def work(jobs: Sequence[Job]) -> Iterator[tuple[int, dict]]:
        with beam.Pipeline(options=PipelineOptions(shlex.split(options))) as graph:
            # Pickled here: of a NamedTuple Beam would make a row of columns.
            elements = graph | "parts" >> beam.Create([pickle.dumps(job) for job in jobs])
            # Without a reshuffle a runner may give all parts to one worker.
            _ = elements | "spread" >> beam.Reshuffle() | "tokenise" >> beam.Map(_encode_pickled)
        for job in jobs:
            yield job.number, read_json(record_path(job))

    return work


def _encode_pickled(job: bytes) -> None:
    encode(pickle.loads(job))


def _check_unchanged(source: Source, store: Store, report) -> None:
    """Raises DataError if the text is no longer what the store was made from.

    Compares names and sizes of all files and, for files with a new time, as after a copy, their content. A store
    outlives its source: without the files, or under another interpreter's library, it is used as it is.
    """
    if store.manifest["origin"] != source.origin:
        report(f"using the token store of {source.spec} made from {store.manifest['origin']}")
        return
    try:
        files = source.files()
    except DataError:
        report(f"using the token store of {source.spec}, whose files are not here")
        return
    was, now = ({file.name: file for file in some} for some in (map(File._make, store.manifest["files"]), files))
    changed = [name for name in was.keys() | now.keys() if name not in was or name not in now]
    changed += [name for name in was.keys() & now.keys() if was[name].size != now[name].size]
    touched = [] if changed else [name for name in sorted(now) if was[name].changed != now[name].changed]
    if touched:
        report(f"{source.spec}: {len(touched)} file(s) with a new time; comparing content with the token store")
        for spans, record in zip(divide(source, files), store.manifest["parts"], strict=True):
            names = {span.name for span in spans}
            # Names of TFDS spans are not file names: their parts are always compared.
            untouched = names <= now.keys() - set(touched)
            if not untouched and text_digest(source, spans, store.manifest["sentences"]) != record["digest"]:
                changed += [name for name in touched if name in names] or touched
    if changed:
        raise DataError(
            f"'{source.spec}': {min(changed)} changed since {store.folder} was made. Restore it, set a new data.store, "
            "or delete that folder."
        )
    if touched:
        with contextlib.suppress(OSError), lock(store.folder / "lock"):  # a read-only store is compared each time
            write_json(store.folder / MANIFEST, store.manifest | {"files": [list(file) for file in files]})

"""The input pipeline against its limits: the tokenizer alone, and bare copies out of a memory map.

    python -m benchmarks.data [--quick] [--format=json]

`prepare` is one part of the token store, made in this process: reading, cutting, hashing, tokenising, writing.
Its peer is the same tokenizer on the same texts, already in memory. Both in CPU seconds, so that figures are per
core. `windows` are random rows of the store; `batches` go through the whole loader.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.report import Result, arguments, ratio, show
from configs import common
from input_pipeline import pipeline
from input_pipeline.sources import sources
from input_pipeline.token_store import parts
from input_pipeline.token_store.store import SPLITS, TOKENS
from input_pipeline.tokenizers import folder as tokenizer_folder
from input_pipeline.tokenizers.saved import open_folder
from pretrain.workdir import Workdir

LENGTH, BATCH = 1024, 32
TOKENIZERS = {
    "bytes": {"kind": "bytes"},
    "unigram words": {"algorithm": "unigram", "pieces": "words"},
    "bpe words": {"algorithm": "bpe", "pieces": "words"},
    "bpe phrases": {"algorithm": "bpe", "pieces": "phrases"},
}


def cpu_seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def pairs(ours: Callable, peer: Callable, rounds: int) -> tuple[list[float], list[float]]:
    """CPU seconds of both in each round, after a warm-up."""
    ours(), peer()
    times = [(cpu_seconds(ours), cpu_seconds(peer)) for _ in range(rounds)]
    return [a for a, _ in times], [b for _, b in times]


def trained(kind: str, folder: Path) -> Path:
    """The folder of a tokenizer of this kind, trained on a megabyte of the standard library."""
    config = common.base().tokenizer
    config.update(TOKENIZERS[kind] | {"train_bytes": 1_000_000})
    saved = folder / kind.replace(" ", "-")
    tokenizer_folder.make_folder(
        saved, config.to_dict(), {"train": sources.parse("stdlib", "source")}, 0.0, lambda line: None
    )
    return saved


def prepare(kind: str, saved: Path, spec: str, unit: str, rounds: int, size: int) -> Result:
    """Tokens/s per core of making a part of the store, against the tokenizer alone."""
    (source,) = sources.parse(spec, "source")
    tokenizer = open_folder(saved)
    spans, total = [], 0
    for span in source.spans(size):
        if total < size:
            spans.append(span)
            total += span.size
    texts = ["".join(document.chunks) for span in spans for document in source.documents(span)]
    with tempfile.TemporaryDirectory() as folder:
        job = parts.Job(source, tuple(spans), 0, saved, tokenizer.fingerprint, Path(folder), 0.05, "")
        tokens = sum(parts.encode(job)["splits"][split][1] for split in SPLITS)
        ours, alone = pairs(lambda: parts.encode(job), lambda: [tokenizer.encode(t) for t in texts], rounds)
    middle, spread = ratio(ours, alone)
    target = None if kind == "bytes" else 0.8  # bytes are their own ids: there is no tokenizer to compare with
    name, value = f"prepare, {kind}, a document a {unit}", tokens / statistics.median(ours)
    return Result(name, value, "tokens/s per core", "tokenizer alone", middle, target, spread)


def windows(corpus: pipeline.Corpus, rounds: int, count: int) -> Result:
    """Random windows of the store, against the same copies out of one map of one file."""
    stream = corpus.stream("train")
    shard = max(stream.shards, key=lambda shard: shard.counts.tokens).open(TOKENS)
    draw = np.random.default_rng(0)
    ours_at = draw.integers(0, stream.tokens - LENGTH, count).tolist()
    bare_at = draw.integers(0, len(shard) - LENGTH, count).tolist()
    out = np.zeros(LENGTH, np.int32)

    def ours():
        for start in ours_at:
            stream.copy(start, out)

    def bare():
        for start in bare_at:
            out[:] = shard[start : start + LENGTH]

    times, limit = pairs(ours, bare, rounds)
    middle, spread = ratio(times, limit)
    return Result(
        f"random windows of {LENGTH}",
        count / statistics.median(times),
        "windows/s per core",
        "bare copies",
        middle,
        None,
        spread,
    )


def batches(corpus: pipeline.Corpus, layout: str, count: int) -> Result:
    """Tokens/s of training batches of one host, read ahead in threads: wall time."""
    reader = corpus.batches(seed=0, batch_size=BATCH, workers=0, prefetch=4)
    next(reader)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            next(reader)
        times.append(count * BATCH * LENGTH / (time.perf_counter() - start))
    reader.close()
    return Result(f"batches, {layout}", statistics.median(times), "tokens/s", spread=(min(times), max(times)))


def main() -> None:
    args = arguments(__doc__).parse_args()
    rounds, size = (5, 500_000) if args.quick else (9, 2_000_000)
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = sources.parse("stdlib", "source")[0]
        texts = [t for span in library.spans(1) for d in library.documents(span) for t in d.chunks]
        (folder / "lines.txt").write_text("".join(texts), encoding="utf-8")
        for kind in TOKENIZERS:
            saved = trained(kind, folder)
            for unit, spec in (("file", "stdlib"), ("line", f"text:{folder}/lines.txt?document=line")):
                results.append(prepare(kind, saved, spec, unit, rounds, size))
        config = common.base()
        config.tokenizer.kind = "bytes"
        config.data.length = LENGTH
        for layout in ("concat", "packed", "stream"):
            data = config.data.to_dict() | {"layout": layout, "store": str(folder / "store")}
            sections = data, config.tokenizer.to_dict(), config.objective.to_dict()
            corpus = pipeline.prepare(*sections, Workdir(folder).folders, report=lambda line: None)
            if layout == "concat":
                results.append(windows(corpus, rounds, 2_000 if args.quick else 20_000))
            results.append(batches(corpus, layout, 5 if args.quick else 20))
    show(results, args, [TOKENIZERS, LENGTH, BATCH, size, rounds])


if __name__ == "__main__":
    main()

"""The input pipeline against its limits: the tokenizer alone, and plain copies out of a memory map.

    python -m benchmarks.data [--quick] [--format=json]

`prepare` makes one part of the token store in this process: reads, splits, hashes, tokenises, writes. Its peer is the
same tokenizer on the same texts in memory. `windows` are random rows of the store. Both in CPU seconds, so figures are
per core. `batches` go through the whole loader, in wall time.
"""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import report
from configs import common
from input_pipeline import pipeline
from input_pipeline.sources import parser
from input_pipeline.token_store import writer
from input_pipeline.token_store.store import SPLITS, TOKENS
from input_pipeline.tokenizers import store as tokenizer_store
from input_pipeline.tokenizers.store import open_folder
from pretrain.workdir import Workdir

LENGTH, BATCH = 1024, 32
TOKENIZERS = {
    "bytes": {"kind": "bytes"},
    "unigram words": {"algorithm": "unigram", "pieces": "words"},
    "bpe words": {"algorithm": "bpe", "pieces": "words"},
    "bpe phrases": {"algorithm": "bpe", "pieces": "phrases"},
}


def train_tokenizer(kind: str, folder: Path) -> Path:
    """Train a tokenizer on a megabyte of the standard library; return its folder."""
    config = common.base().tokenizer
    config.update(TOKENIZERS[kind] | {"train_bytes": 1_000_000})
    path, texts = folder / kind.replace(" ", "-"), {"train": parser.parse("stdlib", "source")}
    tokenizer_store.make_folder(path, config.to_dict(), texts, 0.0, lambda line: None)
    return path


def compare_prepare(kind: str, path: Path, spec: str, unit: str, rounds: int, size: int) -> report.Result:
    """Making a part of the store, against the tokenizer alone."""
    (source,) = parser.parse(spec, "source")
    tokenizer = open_folder(path)
    spans, total = [], 0
    for span in source.spans(size):
        if total < size:
            spans.append(span)
            total += span.size
    texts = ["".join(document.chunks) for span in spans for document in source.documents(span)]
    with tempfile.TemporaryDirectory() as folder:
        job = writer.Job(source, tuple(spans), 0, path, Path(folder), writer.describe(source, tokenizer, 0.05, ""))
        tokens = sum(writer.encode(job)["splits"][split][1] for split in SPLITS)
        runs = {"ours": lambda: writer.encode(job), "alone": lambda: [tokenizer.encode(text) for text in texts]}
        times = report.interleave(runs, rounds, clock=time.process_time)
    name, value = f"prepare, {kind}, a document a {unit}", tokens / statistics.median(times["ours"])
    target = None if kind == "bytes" else 0.8  # bytes are their own ids: the peer does nothing
    pair = times["ours"], times["alone"]
    return report.compare(name, *pair, "tokenizer alone", unit="tokens/s per core", value=value, target=target)


def compare_windows(corpus: pipeline.Corpus, rounds: int, count: int) -> report.Result:
    """Random windows of the store, against copies out of one memory-mapped file."""
    stream = corpus.stream("train")
    shard = max(stream.shards, key=lambda shard: shard.counts.tokens).open(TOKENS)
    rng, out = np.random.default_rng(0), np.zeros(LENGTH, np.int32)
    store_starts = rng.integers(0, stream.tokens - LENGTH, count).tolist()
    shard_starts = rng.integers(0, len(shard) - LENGTH, count).tolist()

    def read_store():
        for start in store_starts:
            stream.copy(start, out)

    def copy():
        for start in shard_starts:
            out[:] = shard[start : start + LENGTH]

    times = report.interleave({"ours": read_store, "copies": copy}, rounds, clock=time.process_time)
    name, value = f"random windows of {LENGTH}", count / statistics.median(times["ours"])
    return report.compare(name, *times.values(), "bare copies", unit="windows/s per core", value=value)


def measure_batches(corpus: pipeline.Corpus, layout: str, count: int) -> report.Result:
    """Training batches of one host, prefetched by threads."""
    reader = corpus.batches(seed=0, batch_size=BATCH, workers=0, prefetch=4)
    blocks = report.interleave({"": lambda: [next(reader) for _ in range(count)]}, rounds=5)[""]
    reader.close()
    speeds = [count * BATCH * LENGTH / seconds for seconds in blocks]
    return report.Result(f"batches, {layout}", statistics.median(speeds), "tokens/s", spread=(min(speeds), max(speeds)))


def main() -> None:
    args = report.arguments(__doc__).parse_args()
    rounds, size = (5, 500_000) if args.quick else (9, 2_000_000)
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = parser.parse("stdlib", "source")[0]
        texts = [t for span in library.spans(1) for d in library.documents(span) for t in d.chunks]
        (folder / "lines.txt").write_text("".join(texts), encoding="utf-8")
        for kind in TOKENIZERS:
            path = train_tokenizer(kind, folder)
            for unit, spec in (("file", "stdlib"), ("line", f"text:{folder}/lines.txt?document=line")):
                results.append(compare_prepare(kind, path, spec, unit, rounds, size))
        config = common.base()
        config.tokenizer.kind = "bytes"
        config.data.length = LENGTH
        for layout in ("concat", "packed", "stream"):
            data = config.data.to_dict() | {"layout": layout, "store": str(folder / "store")}
            sections = data, config.tokenizer.to_dict(), config.objective.to_dict()
            corpus = pipeline.prepare(*sections, Workdir(folder).folders, report=lambda line: None)
            if layout == "concat":
                results.append(compare_windows(corpus, rounds, 2_000 if args.quick else 20_000))
            results.append(measure_batches(corpus, layout, 5 if args.quick else 20))
    report.show(results, args, [TOKENIZERS, LENGTH, BATCH, size, rounds])


if __name__ == "__main__":
    main()

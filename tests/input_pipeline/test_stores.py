"""Text and token stores in an object store equal those on a disk."""

import functools
import gzip
import hashlib
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from input_pipeline.errors import DataError
from input_pipeline.io import files_below, open_path
from input_pipeline.sources import parser
from input_pipeline.token_store import build
from tests.object_store import UPLOADS

pytestmark = UPLOADS


def upload(bucket: str, folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            (open_path(bucket) / str(path.relative_to(folder))).write_bytes(path.read_bytes())


@pytest.fixture
def text(write, tmp_path):
    """Files of several kinds, on a disk."""
    for number in range(6):
        write(f"books/{number}.txt", f"viér {number} words\n" * 300)
    write("books/deep/7.txt", "deep " * 50)
    write("rows.jsonl", "\n".join(json.dumps({"text": f"row {n} " * 20, "b": "x"}) for n in range(200)))
    write("packed.txt.gz", gzip.compress(b"a line\n" * 500))
    for code in ("en", "de"):
        write(f"pairs.{code}", "\n".join(f"{code} {n}" for n in range(50)))
    write("rows.csv", "text,b\n" + "".join(f'"row, {n}",x\n' for n in range(200)))
    if importlib.util.find_spec("pyarrow"):
        import pyarrow.ipc
        import pyarrow.parquet

        table = pyarrow.table({"text": [f"row {n}" for n in range(200)]})
        pyarrow.parquet.write_table(table, tmp_path / "text/rows.parquet", row_group_size=20)
        state = '{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}'
        saved = write("saved/data-00000-of-00001.arrow", "")
        with open(saved, "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=20)
        write("saved/state.json", state)
    return tmp_path / "text"


@pytest.mark.parametrize(
    "spec",
    [
        "text:{}/books/**/*.txt",
        "text:{}/books/*.txt?document=line&bytes=10:2000",
        "jsonl:{}/rows.jsonl?field=text",
        "text:{}/packed.txt.gz?document=line",
        "parallel:{}/pairs.{{}}?fields=en,de",
        "csv:{}/rows.csv",
        "parquet:{}/*.parquet",
        "arrow:{}/saved",
    ],
)
def test_source_same_documents(bucket, text, spec):
    if spec.startswith(("parquet", "arrow")):
        pytest.importorskip("pyarrow")
    upload(bucket, text)
    (here,), (there,) = (parser.parse(spec.format(root), "data.train") for root in (text, bucket))

    def read(source):
        return [
            (span.name, document.holdout_rank, "".join(document.chunks))
            for span in source.spans(1000)
            for document in source.documents(span)
        ]

    assert read(there) == read(here) and len(read(here)) >= 6
    assert [file[:2] for file in there.files()] == [file[:2] for file in here.files()]


def hashes(root) -> dict[str, str]:
    """SHA-256 of the files of token stores and index caches, without locks and manifests, which have times."""
    files = [path for path in files_below(root) if path.name not in ("lock", "store.json")]
    return {f"{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_token_store_same_files(bucket, text, tmp_path, monkeypatch, prepare):
    monkeypatch.setattr(build, "PART_BYTES", 4000)
    root = open_path(bucket)
    trained = {"kind": "sentencepiece", "vocab_size": 300, "algorithm": "bpe"}
    how = {"tokenizer": trained, "holdout": 0.2, "length": 16, "layout": "packed"}
    prepared = functools.partial(prepare, f"jsonl:{text}/rows.jsonl?field=text", **how)
    here, there = prepared(), prepared(root=root)
    assert hashes(root) == hashes(tmp_path / "run") and len(hashes(root)) > 8
    assert here.summary() == there.summary()
    rows = [next(corpus.batches(seed=1, batch_size=4, workers=0, prefetch=1)) for corpus in (here, there)]
    assert all(np.array_equal(rows[0][name], rows[1][name]) for name in rows[0])
    assert prepared(root=root).origin == there.origin  # reused
    (damaged,) = (path for path in files_below(root) if path.name == "00000.kept.tokens")
    damaged.write_bytes(damaged.read_bytes()[:-2] + b"\0\0")
    with pytest.raises(DataError, match=r"data\.store"):
        prepared(root=root)

"""The token store: exact, atomic, resumable, checked, shared by processes. Real processes, really killed."""

import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from configs import common
from input_pipeline.errors import DataError
from input_pipeline.sources import base
from input_pipeline.token_store import build
from input_pipeline.token_store.stream import Stream

END = 256  # of the byte tokenizer


def stream_ids(stream: Stream) -> np.ndarray:
    """All ids of a stream, and the one that closes it."""
    ids = np.zeros(stream.tokens + 1, np.int64)
    stream.copy(0, ids)
    return ids


def split_texts(corpus, split: str) -> list[bytes]:
    """The documents of a split, out of its ids."""
    joined = stream_ids(corpus.stream(split))
    assert joined[0] == joined[-1] == END
    ends = np.flatnonzero(joined == END)
    return [bytes(joined[a + 1 : b].astype(np.uint8)) for a, b in itertools.pairwise(ends)]


def test_store_round_trip(prepare, write):
    texts = ["one", "zwei ö", "\n drei\n"]
    for number, text in enumerate(texts):
        path = write(f"{number}.txt", text)
    write("empty.txt", "")
    corpus = prepare(f"text:{path[:-5]}*.txt", length=4)
    assert split_texts(corpus, "train") == [text.encode() for text in texts]
    assert corpus.raw_bytes("train") == "".join(texts).encode()
    (summary,) = corpus.summary()
    size = len("".join(texts).encode())
    assert (summary["documents"], summary["bytes"], summary["words"]) == (3, size, 4 + 4)  # line ends: 1, 1 and 2
    assert summary["tokens"] == size + 3  # an end token a document


ARTICLE = " \n = Robert Boulter = \n \n Robert Boulter is an English <unk> , film and theatre actor . \n \n"


@pytest.mark.parametrize("chunk", [1 << 20, 3, 20])
def test_word_count_of_wikitext(prepare, write, monkeypatch, chunk):
    """4 words of the heading, 12 of the paragraph and 5 line ends: with `<eos>` a line, as models of words predict."""
    monkeypatch.setattr(base.split_chunks, "__defaults__", (chunk,))
    tokens = [token for line in ARTICLE.splitlines() for token in (*line.split(), "<eos>")]
    for text, words in ((ARTICLE, len(tokens)), (ARTICLE.rstrip(), len(tokens) - 1)):
        corpus = prepare(f"text:{write(f'{len(text)}.txt', text)}", length=1)
        assert corpus.summary()[0]["words"] == words


def test_holdout_by_name_hash(prepare, words):
    corpus = prepare(words(60), holdout=0.3)
    (source,) = (part.source for part in corpus._splits["train"])
    every = [(span.name, "".join(d.chunks).encode()) for span in source.spans(1) for d in source.documents(span)]
    held = [text for name, text in every if base.hash_to_unit(name.encode()) < 0.3]
    assert split_texts(corpus, "validation") == held and 5 < len(held) < 30
    assert split_texts(corpus, "train") == [text for _, text in every if text not in held]
    assert corpus.raw_bytes("validation") == b"".join(held)


def test_holdout_equal_lines(prepare, write):
    path = write("a.txt", "\n".join(f"line {n % 50}" for n in range(500)))
    corpus = prepare(f"text:{path}?document=line", holdout=0.2)
    train, held = set(split_texts(corpus, "train")), set(split_texts(corpus, "validation"))
    assert held and not train & held and len(train | held) == 50


def test_store_source_changed(prepare, words, write, tmp_path):
    source, said = words(5), []
    prepare(source)
    path = tmp_path / "text/words/003.txt"
    old = path.read_bytes()
    for content in (old + b"more", b"X" + old[1:]):
        path.write_bytes(content)
        with pytest.raises(DataError):
            prepare(source)
    path.write_bytes(old)
    for _ in range(2):  # only its time is new, which is remembered
        prepare(source, said=said)
        assert len(said) == 1
    write("words/new.txt", "new")
    with pytest.raises(DataError):
        prepare(source)


def test_store_outlives_source(prepare, words, tmp_path):
    source, said = words(5), []
    before = split_texts(prepare(source), "train")
    shutil.rmtree(tmp_path / "text")
    assert split_texts(prepare(source, said=said), "train") == before
    assert said == [f"using the token store of {source}, whose files are not here"]


# Real processes.

SCRIPT = """
import json, pathlib, sys
from input_pipeline import pipeline
from input_pipeline.io import Folders
from input_pipeline.token_store import build, writer
if __name__ == "__main__":
    build.PART_BYTES = 20_000
    *sections, folders = json.loads(sys.argv[1])
    corpus = pipeline.prepare(*sections, Folders(*map(pathlib.Path, folders)), report=lambda s: print(s, flush=True))
    print(json.dumps(corpus.summary()), flush=True)
"""


def start(tmp_path: Path, source: str) -> subprocess.Popen:
    """Another process that prepares the source."""
    config = common.base()
    config.data.update(train=source, holdout=0.1, length=8)
    config.tokenizer.update(kind="bytes")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    sections = [section.to_dict() for section in (config.data, config.tokenizer, config.objective)]
    folders = [f"{tmp_path}/run/tokenizer", f"{tmp_path}/run/data"]
    return subprocess.Popen(
        [sys.executable, str(script), json.dumps([*sections, folders])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def large(write) -> str:
    """A source of many parts."""
    rng = np.random.default_rng(0)
    for number in range(60):
        path = write(f"large/{number:03d}.txt", " ".join(map(str, rng.integers(0, 10**6, 3000))))
    return f"text:{path[: path.rindex('/')]}/*.txt"


def test_build_killed_resumes(write, tmp_path, prepare, monkeypatch):
    """Its workers end with it: else they would write into a store that others build."""
    source, folder = large(write), tmp_path / "run/data"
    process = start(tmp_path, source)
    children, deadline = set(), time.monotonic() + 60
    while len(list(folder.glob("*/[0-9]*.json"))) < 3 and time.monotonic() < deadline:
        children.update(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [child for child in children if Path(f"/proc/{child}").exists()]
    (kept,) = folder.iterdir()
    assert not (kept / "store.json").exists()
    assert len(list(kept.glob("[0-9]*.json"))) >= 3
    (kept / "00001.kept.tokens.99.partial").write_bytes(b"torn")  # as a killed writer leaves it
    monkeypatch.setattr(build, "PART_BYTES", 20_000)
    monkeypatch.setattr(build, "cores", lambda: 1)
    said = []
    corpus = prepare(source, holdout=0.1, said=said)
    done, total = next(re.search(r"(\d+) of (\d+) parts", line).groups() for line in said if " parts, " in line)
    assert int(done) <= int(total) - 3
    assert not list(kept.glob("*.partial"))
    assert corpus.raw_bytes("train") == b"".join(split_texts(corpus, "train"))


def test_build_concurrent_processes(write, tmp_path):
    source = large(write)
    processes = [start(tmp_path, source) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert len({out.splitlines()[-1] for out, _ in outputs}) == 1
    assert sum("tokenising" in out for out, _ in outputs) == 1


def test_pipeline_imports_no_jax():
    """Worker processes start quickly."""
    code = "import sys, input_pipeline.pipeline; print([m for m in ('jax', 'grain', 'tensorflow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("workers", ["processes", "beam"])
def test_build_any_workers_same_files(prepare, write, tmp_path, monkeypatch, workers):
    """Whoever makes the parts, the files are the same, byte for byte."""
    if workers == "beam":
        pytest.importorskip("apache_beam", reason="the extra `beam` is not installed")
    monkeypatch.setattr(build, "PART_BYTES", 3000)
    for number in range(3):
        rows = (json.dumps({"text": f"viér {number} {row} " * (row % 7 + 1)}) for row in range(200))
        path = write(f"rows/{number}.jsonl", "\n".join(rows))
    direct = "--runner=DirectRunner --direct_num_workers=2 --direct_running_mode=multi_threading"
    hashes = []
    for by in (build.processes(1), build.processes(3) if workers == "processes" else build.beam_pipeline(direct)):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        prepare(f"jsonl:{path[: path.rindex('/')]}/*.jsonl", holdout=0.2, workers=by)
        files = sorted((tmp_path / "run/data").glob("jsonl*/[0-9s]*"))
        hashes.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files})
    assert hashes[0] == hashes[1] and len(hashes[0]) > 20 and "store.json" in hashes[0]

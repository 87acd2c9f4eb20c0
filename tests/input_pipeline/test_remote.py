"""Text, token stores and tokenizers in an object store: what is there, and that it is what a disk would hold."""

import hashlib
import json
import multiprocessing
import pickle
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from configs import common
from input_pipeline import away, leases, pipeline, remote
from input_pipeline.away import hurry
from input_pipeline.errors import DataError
from input_pipeline.files import checksum, locked, read_json, replaced, write_json
from input_pipeline.folders import Folders
from input_pipeline.remote import RemoteError, at, local, matching
from input_pipeline.sources import sources
from input_pipeline.token_store import parts
from tests.object_store import UPLOADS

pytestmark = UPLOADS


def test_a_file_is_whole_or_not_there(bucket):
    path = at(bucket) / "a" / "b.txt"
    assert not path.exists() and not path.parent.is_dir()
    with pytest.raises(ZeroDivisionError), replaced(path) as partial:
        partial.write_text("half")
        raise ZeroDivisionError
    assert not path.exists()
    with replaced(path) as partial:
        partial.write_text("whole")
    assert path.is_file() and path.parent.is_dir() and not path.is_dir()
    assert path.read_text() == "whole" and path.stat().st_size == 5 and path.open().read() == b"whole"
    assert checksum(path) == checksum(local(path))
    path.unlink()
    path.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError, match=r"b\.txt"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"b\.txt"):
        path.read_bytes()


def test_paths_are_taken_apart_and_put_together(bucket):
    path = at(bucket) / "runs" / "one.json"
    assert str(path) == f"{bucket}/runs/one.json" and pickle.loads(pickle.dumps(path)) == path
    assert (path.name, path.stem, path.suffix, path.parent.name) == ("one.json", "one", ".json", "runs")
    assert path.with_name("two").name == "two" and str(path.relative_to(at(bucket))) == "runs/one.json"
    assert path.is_relative_to(at(bucket)) and not path.is_relative_to(Path("/runs"))
    assert at("/runs/one") == Path("/runs/one") and at(path) == path


def test_folders_are_listed_copied_and_deleted(bucket):
    root = at(bucket)
    for name in ("1.csv", "2.csv", "deep/3.csv", "deep/4.txt"):
        (root / name).write_bytes(name.encode())
    assert [path.name for path in root.iterdir()] == ["1.csv", "2.csv", "deep"]
    assert [path.name for path in root.glob("*.csv")] == ["1.csv", "2.csv"]
    assert [path.name for path in root.rglob("*.csv")] == ["1.csv", "2.csv", "3.csv"]
    assert list(matching(f"{bucket}/**/*.csv")) == [f"{bucket}/{name}" for name in ("1.csv", "2.csv", "deep/3.csv")]
    (root / "deep").copy_tree(root / "other")
    (root / "deep").remove_tree()
    assert [path.name for path in root.rglob("*")] == ["1.csv", "2.csv", "3.csv", "4.txt"]
    assert (root / "other/4.txt").read_text() == "deep/4.txt" and not (root / "deep").exists()
    with pytest.raises(OSError, match="not empty"):
        root.rmdir()
    (root / "deep").rmdir()


def test_a_file_is_created_by_one(bucket):
    path = at(bucket) / "lock"
    path.create(b"one")
    with pytest.raises(FileExistsError, match="lock"):
        path.create(b"two")
    before = path.sign()
    time.sleep(1.1)  # the store's clock has seconds
    path.write_bytes(b"one")
    assert path.sign() != before and path.read_bytes() == b"one"


class Lossy:
    """A store that does what it is asked, and whose first answer to each of `lost` does not arrive; `then` is done."""

    def __init__(self, system, *lost, then=lambda: None):
        self._system, self._lost, self._then = system, set(lost), then

    def __getattr__(self, name):
        asked = getattr(self._system, name)

        def answered(*given, **named):
            found = asked(*given, **named)
            if name in self._lost:
                self._lost.remove(name)
                self._then()
                raise ConnectionResetError("Connection reset by peer")
            return found

        return answered


@pytest.fixture
def lossy(monkeypatch, store):
    """Loses the first answer to each of the calls that it is given."""
    monkeypatch.setattr(away, "PAUSE", 0.01)

    def lose(*lost, **then):
        system = Lossy(remote._system(store.scheme), *lost, **then)
        monkeypatch.setattr(remote, "_system", lambda scheme: system)
        return system

    return lose


def test_a_file_is_created_though_the_answer_is_lost(bucket, lossy):
    path, system = at(bucket) / "lock", lossy("pipe_file")
    path.create(b"mine")
    with pytest.raises(FileExistsError, match="lock"):
        path.create(b"another's")
    assert path.read_bytes() == b"mine" and not system._lost


def test_who_takes_over_a_lock_deletes_no_other_where_the_answer_is_lost(bucket, lossy, monkeypatch):
    """A second process takes it first: what is deleted is asked for once, and then looked at again."""
    monkeypatch.setattr(leases, "TURN", 0.05)
    monkeypatch.setattr(leases, "PATIENCE", 0.5)
    path, created = at(bucket) / "lock", []

    def second():
        created.append(time.monotonic())
        path.create(b"of another, that is killed too")

    path.create(b"of one that was killed")
    lossy("rm_file", then=second)
    with locked(path, lambda: None):
        assert time.monotonic() - created[0] > 0.5
        assert path.read_bytes() != b"of another, that is killed too"


def test_who_takes_a_lock_does_not_wait_for_itself(bucket, lossy):
    """It once took itself for another process, until a minute had passed."""
    lossy("pipe_file")
    waits = []
    with locked(at(bucket) / "lock", lambda: waits.append(1)):
        pass
    assert not waits


def test_a_lock_is_held_by_one_and_given_back(bucket, monkeypatch):
    monkeypatch.setattr(leases, "TURN", 0.05)
    path, order, waits = at(bucket) / "lock", [], []

    def second():
        with locked(path, lambda: waits.append(1)):
            order.append("second")

    with locked(path, lambda: None):
        thread = threading.Thread(target=second)
        thread.start()
        while not waits:
            time.sleep(0.01)
        order.append("first")
    thread.join()
    assert order == ["first", "second"] and waits == [1] and not path.exists()


def test_a_lock_whose_holder_died_is_taken_over(bucket, monkeypatch):
    monkeypatch.setattr(leases, "TURN", 0.05)
    monkeypatch.setattr(leases, "PATIENCE", 0.5)
    path = at(bucket) / "lock"
    path.create(b"of one that was killed")
    with locked(path, lambda: None):
        assert path.read_bytes() != b"of one that was killed"


def test_a_copy_is_made_once_and_again_when_the_file_is_another(bucket, store):
    path = at(bucket) / "a.bin"
    path.write_bytes(b"one")
    copy = local(path)
    assert copy.read_bytes() == b"one" and copy.is_relative_to(store.copies)
    written = copy.stat().st_mtime_ns
    assert local(path) == copy and copy.stat().st_mtime_ns == written
    path.write_bytes(b"two")
    assert local(path).read_bytes() == b"two"


def test_json(bucket):
    write_json(at(bucket) / "a.json", {"a": [1]})
    assert read_json(at(bucket) / "a.json") == {"a": [1]}


def test_a_bucket_that_is_not_there(bucket, store):
    name = f"{store.scheme}://nowhere-at-all/x"
    with pytest.raises(RemoteError, match=rf"{name} cannot be reached \(there is no such bucket\)"):
        at(name).write_bytes(b"")
    (source,) = sources.parse(f"text:{name}/*.txt", "data.train")
    with pytest.raises(DataError, match=r"matches no file; check the bucket and the path"):
        source.files()


def test_a_server_that_is_not_there(bucket, store):
    """In a process of its own: a connection is opened once."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        said = pool.apply(_asked, (store.scheme,))
    why = {"s3": "Could not connect", "gs": "Cannot connect"}[store.scheme]
    assert why in said and said.endswith(f"'{store.bucket}/x'")


@pytest.mark.slow
def test_a_server_that_does_not_answer(store):
    """It takes connections, and says nothing; gcsfs once waited for it without end."""
    if store.scheme == "s3":
        pytest.skip("s3fs waits for 15 seconds of its own, some times over")
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, multiprocessing.get_context("spawn").Pool(1) as pool:
        said = pool.apply_async(_asked, (store.scheme, silent.getsockname()[1], 0.2)).get(200)
    assert said.endswith(f"'{store.bucket}/x'")


def _asked(scheme: str, port: int = 9, silence: float = remote.SILENCE) -> str:
    import os

    remote.SILENCE = silence
    os.environ[remote.ENDPOINTS[scheme]] = f"http://127.0.0.1:{port}"
    try:
        with hurry():
            return str(at(f"{scheme}://bucket/x").exists())
    except TimeoutError as error:
        return str(error)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hdfs://a/b", r"hdfs://a/b is in no store that is known; write one of: gs://, s3://"),
        ("s3://", r"s3:// names no bucket; write s3://BUCKET/FOLDER"),
    ],
)
def test_names_that_cannot_be(name, said):
    with pytest.raises(DataError, match=said):
        at(name)


def test_a_package_that_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    remote._opened.cache_clear()
    with pytest.raises(DataError, match=r"gs:// needs the package gcsfs; in the clone, pip install -e '.\[gs\]'"):
        at("gs://bucket/x").exists()


def test_a_path_without_the_kind_of_its_source():
    with pytest.raises(DataError, match=r"'s3://b/\*.txt' is a path without the kind of its source; write text:s3://b"):
        sources.parse("s3://b/*.txt", "data.train")


# Text and token stores.


def uploaded(bucket: str, folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            (at(bucket) / str(path.relative_to(folder))).put(path)


@pytest.fixture
def text(write, tmp_path):
    """Files of several kinds, on a disk."""
    import gzip

    for number in range(6):
        write(f"books/{number}.txt", f"viér {number} words\n" * 300)
    write("books/deep/7.txt", "deep " * 50)
    write("rows.jsonl", "\n".join(json.dumps({"text": f"row {n} " * 20, "b": "x"}) for n in range(200)))
    write("packed.txt.gz", gzip.compress(b"a line\n" * 500))
    for code in ("en", "de"):
        write(f"pairs.{code}", "\n".join(f"{code} {n}" for n in range(50)))
    return tmp_path / "text"


@pytest.mark.parametrize(
    "spec",
    [
        "text:{}/books/**/*.txt",
        "text:{}/books/*.txt?document=line&bytes=10:2000",
        "jsonl:{}/rows.jsonl?field=text",
        "text:{}/packed.txt.gz?document=line",
        "parallel:{}/pairs.{{}}?fields=en,de",
    ],
)
def test_sources_read_what_they_read_on_a_disk(bucket, text, spec):
    uploaded(bucket, text)
    (here,), (there,) = (sources.parse(spec.format(root), "data.train") for root in (text, bucket))

    def read(source):
        return [
            (span.name, document.place, "".join(document.chunks))
            for span in source.spans(1000)
            for document in source.documents(span)
        ]

    assert read(there) == read(here) and len(read(here)) >= 6
    assert [file[:2] for file in there.files()] == [file[:2] for file in here.files()]
    for source in (here, there):
        divided = source.dividing(0.3)
        assert [file.name for file in divided.files()] == [file.name for file in here.files()]


def test_a_source_that_matches_nothing(bucket):
    (source,) = sources.parse(f"text:{bucket}/none/*.txt", "data.train")
    with pytest.raises(DataError, match=r"matches no file; check the bucket and the path"):
        source.files()


def prepared(source: str, root, **tokenizer) -> pipeline.Corpus:
    config = common.base()
    config.data.update(train=source, holdout=0.2, length=16, layout="packed")
    config.tokenizer.update({"kind": "bytes", **tokenizer})
    sections = (section.to_dict() for section in (config.data, config.tokenizer, config.objective))
    return pipeline.prepare(*sections, Folders(root / "tokenizer", root / "data"), report=lambda line: None)


def hashes(root) -> dict[str, str]:
    """SHA-256 of the files of the token stores and plans below a folder, locks and what names it left out."""
    found = {}
    for path in root.rglob("*"):
        if path.is_file() and path.name not in ("lock", "store.json"):
            found[f"{path.parent.name}/{path.name}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def test_the_token_store_is_the_same_as_on_a_disk(bucket, text, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "BYTES", 4000)
    source = f"jsonl:{text}/rows.jsonl?field=text"
    trained = {"kind": "sentencepiece", "vocab_size": 300, "algorithm": "bpe"}
    here, there = prepared(source, tmp_path / "run", **trained), prepared(source, at(bucket), **trained)
    assert hashes(at(bucket)) == hashes(tmp_path / "run") and len(hashes(at(bucket))) > 8
    assert here.origin == there.origin and here.summary() == there.summary()
    rows = [next(corpus.batches(seed=1, batch_size=4, workers=0, prefetch=1)) for corpus in (here, there)]
    assert all(np.array_equal(rows[0][name], rows[1][name]) for name in rows[0])
    again = prepared(source, at(bucket), **trained)  # nothing is made again
    assert again.origin == there.origin
    (damaged,) = (path for path in at(bucket).rglob("00000.kept.tokens"))
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-2] + b"\0\0")
    with pytest.raises(DataError, match=r"00000.kept.tokens has other bytes than were written"):
        prepared(source, at(bucket), **trained)
    damaged.write_bytes(content)
    copies = [local(path) for path in at(bucket).rglob("*") if path.suffix in (".tokens", ".npy")]
    held = [copy.read_bytes() for copy in copies]
    for size in (0, 1):  # as a machine that lost power may have left them
        for copy, whole in zip(copies, held, strict=True):
            copy.write_bytes(bytes(size * len(whole)))
        prepared(source, at(bucket), **trained)
        assert [copy.read_bytes() for copy in copies] == held and len({copy.suffix for copy in copies}) == 2
    damaged.write_bytes(content[:-2])
    with pytest.raises(DataError, match=r"00000.kept.tokens has \d+ bytes instead of \d+"):
        prepared(source, at(bucket), **trained)

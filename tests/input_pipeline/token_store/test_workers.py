"""Whoever makes the parts of a token store, its files are the same, byte for byte."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from input_pipeline.errors import DataError
from input_pipeline.token_store import beam, parts, workers
from input_pipeline.tokenizers import saved

DIRECT = "--runner=DirectRunner --direct_num_workers=2 --direct_running_mode=multi_threading"


@pytest.fixture
def needs_beam():
    pytest.importorskip("apache_beam", reason="the extra `beam` is not installed")


@pytest.fixture
def source(write, monkeypatch):
    """Several files of JSON lines, of which each is read in several parts."""
    monkeypatch.setattr(parts, "BYTES", 3000)
    for number in range(3):
        rows = (json.dumps({"text": f"viér {number} {row} " * (row % 7 + 1)}) for row in range(200))
        path = write(f"rows/{number}.jsonl", "\n".join(rows))
    return f"jsonl:{path[: path.rindex('/')]}/*.jsonl"


@pytest.fixture
def made(prepare, source, tmp_path):
    """`made(workers)`: what the files of the store are that these make: {name: SHA-256}."""

    def made(by: workers.Workers) -> dict[str, str]:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        prepare(source, holdout=0.2, workers=by)
        (folder,) = (path for path in (tmp_path / "run/data").iterdir() if path.name.startswith("jsonl"))
        files = (path for path in folder.iterdir() if path.name != "lock")
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    return made


def test_the_store_is_the_same_whatever_the_number_of_processes(made):
    alone = made(workers.processes(1))
    assert len(alone) > 20 and "store.json" in alone
    assert made(workers.processes(3)) == alone


def test_the_store_is_the_same_by_beam(made, needs_beam):
    assert made(beam.pipeline(DIRECT)) == made(workers.processes(1))


def test_what_a_worker_of_beam_finds_wrong_is_said_once(prepare, write, needs_beam):
    path = write("rows/a.jsonl", '{"text": "one"}\nno JSON\n')
    with pytest.raises(DataError, match=r"a.jsonl, line 2 is not JSON .*; write one object a line$"):
        prepare(f"jsonl:{path}", workers=beam.pipeline(DIRECT))


def test_a_beam_pipeline_that_fails(prepare, source, monkeypatch, needs_beam):
    def full(path, value):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(parts, "write_json", full)
    with pytest.raises(DataError, match=r"the Beam pipeline .* failed \(.*No space left.*what it had finished is kept"):
        prepare(source, workers=beam.pipeline(DIRECT))


def test_workers_of_beam_that_write_elsewhere(prepare, source, monkeypatch, needs_beam):
    monkeypatch.setattr(parts, "encode", lambda job: None)
    with pytest.raises(DataError, match=r"its workers left no part 0 in .*; give a --workdir and a data.store that"):
        prepare(source, workers=beam.pipeline(DIRECT))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--runner=DirectRunner --direct_number=2", r"neither Beam nor its runners know: --direct_number"),
        ("--runner=Nowhere", r"describes no pipeline \(.*Nowhere"),
        ("DirectRunner", r"has 'DirectRunner', which is no option; write --NAME=VALUE"),
        ("--runner='DirectRunner", r"cannot be read \(No closing quotation\)"),
    ],
)
def test_options_that_describe_no_pipeline(options, said, needs_beam):
    with pytest.raises(DataError, match=said):
        beam.pipeline(options)


def test_beam_is_asked_for_where_it_is_not_installed(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "apache_beam", None)
    with pytest.raises(DataError, match=r"needs the package apache-beam; in the clone, pip install -e '.\[beam\]'"):
        beam.pipeline("--runner=DirectRunner")


def test_a_part_follows_from_its_job_alone(tmp_path, source, prepare):
    """A worker elsewhere gets nothing else."""
    corpus = prepare(source, holdout=0.2)
    (one,) = (part.source for part in corpus._splits["train"])
    made = Path(tmp_path / "run/tokenizer")
    spans = list(parts.divided(one, one.files()))
    records = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        job = parts.Job(one, spans[4], 4, made, saved.open_folder(made).fingerprint, tmp_path / name, 0.2, "")
        records.append(parts.encode(job))
    assert records[0] == records[1] == parts.recorded(job)

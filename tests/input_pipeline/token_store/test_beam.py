"""Whoever makes the parts of a token store, its files are the same, byte for byte."""

import hashlib
import json
import shutil

import pytest

from input_pipeline.token_store import beam, build

DIRECT = "--runner=DirectRunner --direct_num_workers=2 --direct_running_mode=multi_threading"


@pytest.fixture
def needs_beam():
    pytest.importorskip("apache_beam", reason="the extra `beam` is not installed")


@pytest.fixture
def source(write, monkeypatch):
    """Several files of JSON lines, of which each is read in several parts."""
    monkeypatch.setattr(build, "PART_BYTES", 3000)
    for number in range(3):
        rows = (json.dumps({"text": f"viér {number} {row} " * (row % 7 + 1)}) for row in range(200))
        path = write(f"rows/{number}.jsonl", "\n".join(rows))
    return f"jsonl:{path[: path.rindex('/')]}/*.jsonl"


@pytest.fixture
def made(prepare, source, tmp_path):
    """`made(workers)`: what the files of the store are that these make: {name: SHA-256}."""

    def made(by: build.Workers) -> dict[str, str]:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        prepare(source, holdout=0.2, workers=by)
        (folder,) = (path for path in (tmp_path / "run/data").iterdir() if path.name.startswith("jsonl"))
        files = (path for path in folder.iterdir() if path.name != "lock")
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    return made


def test_build_any_number_of_processes(made):
    alone = made(build.processes(1))
    assert len(alone) > 20 and "store.json" in alone
    assert made(build.processes(3)) == alone


def test_beam_same_store(made, needs_beam):
    assert made(beam.pipeline(DIRECT)) == made(build.processes(1))

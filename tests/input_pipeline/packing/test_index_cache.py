"""Plans on disk: built once, shared as memory maps, rebuilt if damaged, placed elsewhere if the run is read-only."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from input_pipeline.errors import DataError
from input_pipeline.packing import index_cache

PAIRS = "".join(f'{{"inputs": "to be read {n}", "targets": "to be written {n}"}}\n' for n in range(40))


def flip_bits(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-8] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def test_load_builds_once_and_pickles_by_path(prepare, words):
    source, lines = words(30), []
    plan = prepare(source, layout="packed", said=lines)._rows[0].plan
    assert any("packing 30 documents" in line for line in lines)
    lines.clear()
    again = prepare(source, layout="packed", said=lines)._rows[0].plan
    assert lines == [] and isinstance(again.starts, np.memmap)
    data = pickle.dumps(again)
    assert len(data) < 2_000
    for field, copy in zip(plan, pickle.loads(data), strict=True):
        assert np.array_equal(field, copy)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("starts.npy", flip_bits),
        ("first.npy", cut),
        ("lengths.npy", Path.unlink),
        ("made.json", cut),
        ("made.json", Path.unlink),
    ],
)
def test_load_rebuilds_a_damaged_plan(prepare, words, tmp_path, name, damage):
    source, lines = words(30), []
    plan = [np.array(field) for field in prepare(source, layout="packed")._rows[0].plan]
    (path,) = (tmp_path / "run/data").glob(f"packed-*/{name}")
    damage(path)
    for builds in (1, 0):
        again = prepare(source, layout="packed", said=lines)._rows[0].plan
        assert len(lines) == builds
        lines.clear()
        for field, copy in zip(plan, again, strict=True):
            assert np.array_equal(field, copy)


def test_load_verifies_large_plans_on_request(prepare, words, monkeypatch, tmp_path):
    source, lines = words(30), []
    prepare(source, layout="packed")
    (path,) = (tmp_path / "run/data").glob("packed-*/starts.npy")
    flip_bits(path)
    monkeypatch.setattr(index_cache, "READ", 10)
    prepare(source, layout="packed", said=lines)
    assert lines == []
    prepare(source, layout="packed", said=lines, read_all=True)
    assert len(lines) == 1


def test_manifest_has_sizes_and_checksums(prepare, words, tmp_path):
    """The format on disk, which later versions must read."""
    prepare(words(30), layout="packed")
    (path,) = (tmp_path / "run/data").glob("packed-*-8/made.json")
    manifest = json.loads(path.read_text())
    assert set(manifest) == {"first.npy", "starts.npy", "lengths.npy"}
    for name, (size, crc) in manifest.items():
        assert (path.parent / name).stat().st_size == size and 0 <= crc < 2**32


LAYOUTS = {
    "packed": {"layout": "packed"},
    "pairs": {"layout": "pairs", "sentences": "lines", "objective": {"kind": "masked"}},
    "texts": {"objective": {"kind": "spans"}, "tokenizer": {"sentinels": 20}},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scratch_holds_plans_of_a_read_only_run(prepare, write, words, tmp_path, layout):
    source = f"jsonl:{write('pairs.jsonl', PAIRS)}?fields=inputs,targets" if layout == "texts" else words(30)
    options = LAYOUTS[layout] | {"length": 48, "holdout": 0.3}

    def score(**elsewhere):
        corpus = prepare(source, **options, **elsewhere)
        return list(corpus.evaluation("validation", length=40, stride=40, batch_size=4).batches())

    prepare(source, **options)
    before = {path.name for path in (tmp_path / "run/data").iterdir()}
    expected = score()
    (plan,) = (path for path in (tmp_path / "run/data").iterdir() if path.name not in before)
    for file in plan.iterdir():
        file.unlink()
    plan.rmdir()
    plan.write_text("in the way")
    with pytest.raises(DataError, match=r"data\.store"):
        score()
    again = score(scratch=tmp_path / "scratch")
    assert len(again) == len(expected) > 0
    for here, there in zip(again, expected, strict=True):
        for name, values in there.items():
            np.testing.assert_array_equal(here[name], values)
    assert (tmp_path / "scratch" / plan.name).is_dir() and plan.is_file()

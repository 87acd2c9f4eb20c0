"""Plans on disk: built once, shared as memory maps, rebuilt if damaged, placed elsewhere if the run is read-only."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from read_batches import assert_equal

from input_pipeline.errors import DataError
from input_pipeline.packing import index_cache


def flip_bits(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-8] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def load(prepare, source: str, **options) -> tuple[tuple[np.ndarray, ...], int]:
    """(plan of the training rows, number of plans that were built)."""
    lines = []
    plan = prepare(source, layout="packed", said=lines, **options)._rows[0].plan
    return plan, sum("packing" in line for line in lines)


def test_load_builds_once_and_pickles_by_path(prepare, words, tmp_path):
    source = words(30)
    plan, builds = load(prepare, source)
    again, more = load(prepare, source)
    assert (builds, more) == (1, 0) and isinstance(again.starts, np.memmap)
    data = pickle.dumps(again)
    assert len(data) < 2_000
    for field, copy in zip(plan, pickle.loads(data), strict=True):
        assert np.array_equal(field, copy)
    # The format on disk, which later versions must read.
    (path,) = (tmp_path / "run/data").glob("packed-*-8/made.json")
    manifest = json.loads(path.read_text())
    assert set(manifest) == {"first.npy", "starts.npy", "lengths.npy"}
    for name, (size, crc) in manifest.items():
        assert (path.parent / name).stat().st_size == size and 0 <= crc < 2**32


DAMAGE = [("starts.npy", flip_bits), ("first.npy", cut), ("lengths.npy", Path.unlink), ("made.json", cut)]


@pytest.mark.parametrize(("name", "damage"), DAMAGE)
def test_load_rebuilds_a_damaged_plan(prepare, words, tmp_path, name, damage):
    source = words(30)
    plan = [np.array(field) for field in load(prepare, source)[0]]
    (path,) = (tmp_path / "run/data").glob(f"packed-*/{name}")
    damage(path)
    for expected in (1, 0):
        again, builds = load(prepare, source)
        assert builds == expected
        for field, copy in zip(plan, again, strict=True):
            assert np.array_equal(field, copy)


def test_load_verifies_large_plans_on_request(prepare, words, monkeypatch, tmp_path):
    source = words(30)
    load(prepare, source)
    (path,) = (tmp_path / "run/data").glob("packed-*/starts.npy")
    flip_bits(path)
    monkeypatch.setattr(index_cache, "READ", 10)
    assert load(prepare, source)[1] == 0 and load(prepare, source, read_all=True)[1] == 1


def test_scratch_holds_plans_of_a_read_only_run(prepare, words, tmp_path):
    options = {"layout": "pairs", "sentences": "lines", "objective": {"kind": "masked"}, "length": 48, "holdout": 0.3}
    source = words(30)

    def score(**elsewhere):
        corpus = prepare(source, **options, **elsewhere)
        return list(corpus.evaluation("validation", length=40, stride=40, batch_size=4).batches())

    expected = score()
    (plan,) = (path for path in (tmp_path / "run/data").glob("pairs-*-40-*"))
    for file in plan.iterdir():
        file.unlink()
    plan.rmdir()
    plan.write_text("in the way")
    with pytest.raises(DataError, match=r"data\.store"):
        score()
    assert_equal(score(scratch=tmp_path / "scratch"), expected)
    assert (tmp_path / "scratch" / plan.name).is_dir() and plan.is_file()

"""A token store whose files were damaged after it was written is named, never read as if it were whole."""

import json
import os
import shutil
from pathlib import Path

import pytest

from input_pipeline.errors import DataError
from input_pipeline.token_store import build


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def zero(path):
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("00000.kept.tokens", zero),
        ("00000.held.documents", zero),
        ("00000.kept.sentences", cut),
        ("00000.held.tokens", Path.unlink),
    ],
)
def test_store_damaged(prepare, words, tmp_path, name, damage):
    source = words(40)
    prepare(source, holdout=0.3, sentences="lines")
    (path,) = (tmp_path / "run/data").glob(f"*/{name}")
    damage(path)
    with pytest.raises(DataError):
        prepare(source, holdout=0.3, sentences="lines")
    shutil.rmtree(path.parent)
    assert prepare(source, holdout=0.3, sentences="lines").splits == ("train", "validation")


def test_store_large_read_all(prepare, words, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "READ", 10)
    source = words(3)
    prepare(source)
    (path,) = (tmp_path / "run/data").glob("*/00000.kept.tokens")
    zero(path)
    prepare(source)
    with pytest.raises(DataError):
        prepare(source, read_all=True)


def test_store_of_earlier_format(prepare, words, tmp_path):
    source = words(3)
    prepare(source)
    (manifest,) = (tmp_path / "run/data").glob("*/store.json")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 2}))
    (manifest.parent / "0.of-another-name").touch()
    assert prepare(source).stream("train").tokens and not (manifest.parent / "0.of-another-name").exists()
    assert json.loads(manifest.read_text())["format"] == 3

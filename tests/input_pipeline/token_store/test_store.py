"""A token store whose files were damaged after it was written is named, never read as if it were whole."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from configs import common
from input_pipeline import pipeline
from input_pipeline.errors import DataError
from input_pipeline.io import Folders
from input_pipeline.token_store import build


def ids(corpus) -> list[int]:
    stream = corpus.stream("train")
    found = np.zeros(stream.tokens, np.int64)
    stream.copy(0, found)
    return found.tolist()


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def zero(path):
    path.write_bytes(bytes(path.stat().st_size))


def miscount(path):
    """Another number of words, by which perplexities are divided."""
    manifest = json.loads(path.read_text())
    manifest["parts"][0]["splits"]["kept"][3] ^= 1
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("00000.kept.tokens", zero),
        ("00000.held.documents", zero),
        ("00000.kept.tokens", cut),
        ("00000.kept.sentences", zero),
        ("00000.kept.sentences", cut),
        ("00000.kept.documents", cut),
        ("00000.held.tokens", lambda path: path.write_bytes(b"")),
        ("00000.held.tokens", Path.unlink),
        ("store.json", cut),
        ("store.json", lambda path: path.write_bytes(b"")),
        ("store.json", lambda path: path.write_text("{}")),
        ("store.json", lambda path: path.write_text("[]")),
        ("store.json", miscount),
        ("store.json", lambda path: path.write_bytes(b"\xff\xfe")),
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
    config = common.base()
    config.data.update(train=words(3), holdout=0.0, length=8)
    config.tokenizer.kind = "bytes"
    folders = Folders(tmp_path / "run/tokenizer", tmp_path / "run/data")
    sections = config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict(), folders
    pipeline.prepare(*sections)
    (path,) = (tmp_path / "run/data").glob("*/00000.kept.tokens")
    zero(path)
    pipeline.prepare(*sections)
    with pytest.raises(DataError):
        pipeline.prepare(*sections, read_all=True)


@pytest.mark.parametrize("number", [2, 4])
def test_store_of_another_format(prepare, words, tmp_path, number):
    source = words(3)
    prepare(source)
    (manifest,) = (tmp_path / "run/data").glob("*/store.json")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": number}))
    if number > 3:
        with pytest.raises(DataError, match=r"data\.store"):
            prepare(source)
        return
    (manifest.parent / "0.of-another-name").touch()
    assert prepare(source).stream("train").tokens and not (manifest.parent / "0.of-another-name").exists()
    assert json.loads(manifest.read_text())["format"] == 3

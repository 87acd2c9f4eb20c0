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
from input_pipeline.folders import Folders
from input_pipeline.token_store import build, parts


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
    ("name", "damage", "what"),
    [
        ("00000.kept.tokens", zero, r"00000.kept.tokens has other bytes than were written"),
        ("00000.held.documents", zero, r"00000.held.documents has other bytes than were written"),
        ("00000.kept.tokens", cut, r"00000.kept.tokens has \d+ bytes instead of \d+"),
        ("00000.kept.sentences", zero, r"00000.kept.sentences has other bytes than were written"),
        ("00000.kept.sentences", cut, r"00000.kept.sentences has \d+ bytes instead of \d+"),
        ("00000.kept.documents", cut, r"00000.kept.documents has \d+ bytes instead of \d+"),
        ("00000.held.tokens", lambda path: path.write_bytes(b""), r"00000.held.tokens has 0 bytes"),
        ("00000.held.tokens", Path.unlink, r"00000.held.tokens is missing"),
        ("store.json", cut, r"store.json is not what was written"),
        ("store.json", lambda path: path.write_bytes(b""), r"store.json is not what was written"),
        ("store.json", lambda path: path.write_text("{}"), r"store.json is not what was written"),
        ("store.json", lambda path: path.write_text("[]"), r"store.json is not what was written"),
        ("store.json", miscount, r"store.json counts \(\d+, \d+, \d+, \d+, \d+\) in part 0 where its files have"),
        ("store.json", lambda path: path.write_bytes(b"\xff\xfe"), r"store.json is not what was written"),
    ],
)
def test_a_damaged_store_is_named(prepare, words, tmp_path, name, damage, what):
    source = words(40)
    prepare(source, holdout=0.3, sentences="lines")
    (path,) = (tmp_path / "run/data").glob(f"*/{name}")
    damage(path)
    with pytest.raises(DataError, match=f"token store .* is damaged: {what}.*delete that folder to tokenise again"):
        prepare(source, holdout=0.3, sentences="lines")
    shutil.rmtree(path.parent)
    assert prepare(source, holdout=0.3, sentences="lines").splits == ("train", "validation")


def test_the_bytes_of_a_large_store_are_compared_where_it_is_asked_for(prepare, words, monkeypatch, tmp_path):
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
    with pytest.raises(DataError, match=r"00000.kept.tokens has other bytes than were written"):
        pipeline.prepare(*sections, read_all=True)


@pytest.mark.parametrize(("damage", "what"), [(cut, r"has \d+ bytes instead of \d+"), (Path.unlink, "is missing")])
@pytest.mark.parametrize("name", ["tokens", "documents", "sentences"])
def test_a_file_of_a_large_store_is_looked_at_when_it_is_opened(
    prepare, write, monkeypatch, tmp_path, name, damage, what
):
    """A start touches none of its files, of which a store of terabytes has many."""
    monkeypatch.setattr(build, "READ", 10)
    text = "one sentence\nand another\n"
    source = f"text:{write('a.txt', text)}"
    prepare(source, sentences="lines")
    (path,) = (tmp_path / "run/data").glob(f"*/00000.kept.{name}")
    damage(path)
    stream = prepare(source, sentences="lines").stream("train")
    with pytest.raises(DataError, match=f"is damaged: 00000.kept.{name} {what}"):
        stream.copy(0, np.zeros(3, np.int64))
        stream.sentences(0)
    with pytest.raises(DataError, match=f"is damaged: 00000.kept.{name} {what}"):
        prepare(source, sentences="lines", read_all=True)


def test_damaged_notes_of_a_cut_build_are_made_again(prepare, words, monkeypatch, tmp_path):
    source = words(20)
    monkeypatch.setattr(parts, "BYTES", 300)
    whole = ids(prepare(source))
    shutil.rmtree(tmp_path / "run")
    monkeypatch.setattr(build, "_run", lambda jobs, *rest: [parts.encode(job) for job in jobs[:2]] and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare(source)
    monkeypatch.undo()
    monkeypatch.setattr(parts, "BYTES", 300)
    (note,) = (tmp_path / "run/data").glob("*/00001.json")
    cut(note)
    assert ids(prepare(source)) == whole
    cut(tmp_path / "run/tokenizer/made.json")
    with pytest.raises(DataError, match=r"made.json is damaged; restore it, or delete .* and run prepare again"):
        prepare(source)
    (tmp_path / "run/tokenizer/made.json").write_text("[]")
    with pytest.raises(DataError, match=r"made.json is damaged"):
        prepare(source)


@pytest.mark.parametrize(("kind", "damage"), [("symbols", zero), ("words", cut), ("sentencepiece", cut)])
def test_a_damaged_tokenizer_is_named_with_what_brings_it_back(prepare, words, tmp_path, kind, damage):
    source, tokenizer = words(40), {"kind": kind, "vocab_size": 270}
    whole = ids(prepare(source, tokenizer=tokenizer))
    (path,) = (tmp_path / "run/tokenizer").glob(f"{kind}.*")
    for spoil in (damage, lambda path: path.write_bytes(b"")):
        spoil(path)
        said = rf"{path.name} has other bytes than were written; restore it, or delete .*tokenizer and run prepare"
        with pytest.raises(DataError, match=said):
            prepare(source, tokenizer=tokenizer)
    shutil.rmtree(tmp_path / "run/tokenizer")
    assert ids(prepare(source, tokenizer=tokenizer)) == whole

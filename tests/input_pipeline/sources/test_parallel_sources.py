"""Texts that lie line by line in a file for each language."""

import gzip
import pickle

import pytest

from input_pipeline.errors import DataError
from input_pipeline.sources import sources

ENGLISH, GERMAN = "a cat\nthe hat\n\nblue\r\n", "eine Katze\nder Hut\n\nblau für\n"


def only(spec):
    (source,) = sources.parse(spec, "data.train")
    return source


def texts(source):
    (span,) = source.spans(1)
    return [["".join(chunks) for chunks in document.texts] for document in source.documents(span)]


@pytest.mark.parametrize("fields", ["en,de", "de,en"])
def test_lines_belong_together(write, fields):
    path = write("t.en", ENGLISH)
    write("t.de", GERMAN)
    source = only(f"parallel:{path.replace('t.en', 't.{}')}?fields={fields}")
    english = ["a cat", "the hat", None, "blue"]
    german = ["eine Katze", "der Hut", None, "blau für"]
    pairs = zip(english, german, strict=True) if fields == "en,de" else zip(german, english, strict=True)
    assert texts(pickle.loads(pickle.dumps(source))) == [[] if None in pair else list(pair) for pair in pairs]
    assert source.fields == tuple(fields.split(","))
    assert sorted(file.name for file in source.files()) == ["t.de", "t.en"]


def test_compressed_files(tmp_path):
    for name, text in (("en", ENGLISH), ("de", GERMAN)):
        (tmp_path / f"t.{name}.gz").write_bytes(gzip.compress(text.encode()))
    assert texts(only(f"parallel:{tmp_path}/t.{{}}.gz?fields=en,de"))[1] == ["the hat", "der Hut"]


def test_files_of_unequal_length_are_refused(write):
    path = write("t.en", ENGLISH)
    write("t.de", GERMAN + "noch eine\nund noch eine\n")
    with pytest.raises(DataError, match=r"different numbers of lines \(.*t\.en 4, .*t\.de 6\).* as many lines"):
        texts(only(f"parallel:{path.replace('t.en', 't.{}')}?fields=en,de"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("parallel:t.en?fields=en,de", r"name a file for each field; write \{\} once"),
        ("parallel:t.{}", r"name a file for each field"),
        ("parallel:t.{}?fields=en,en", r"each once"),
        ("parallel:t.{}?field=en", r"unknown option 'field'; a parallel source takes: fields"),
    ],
)
def test_what_names_no_two_files(spec, message):
    with pytest.raises(DataError, match=message):
        sources.parse(spec, "data.train")


def test_a_missing_file_is_named(write):
    path = write("t.en", ENGLISH)
    with pytest.raises(DataError, match=r"reads .*t\.de, which is no file"):
        only(f"parallel:{path.replace('t.en', 't.{}')}?fields=en,de").files()


def test_what_is_not_utf8_is_named(tmp_path):
    (tmp_path / "t.en").write_text(ENGLISH)
    (tmp_path / "t.de").write_bytes("eine\nüber\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"t\.de is not UTF-8 at byte 5"):
        texts(only(f"parallel:{tmp_path}/t.{{}}?fields=en,de"))

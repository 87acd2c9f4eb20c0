"""Texts that lie line by line in a file for each language."""

import pickle

import pytest

from input_pipeline.errors import DataError
from input_pipeline.sources import parser

ENGLISH, GERMAN = "a cat\nthe hat\n\nblue\r\n", "eine Katze\nder Hut\n\nblau für\n"


def only(spec):
    (source,) = parser.parse(spec, "data.train")
    return source


def texts(source):
    (span,) = source.spans(1)
    return [["".join(chunks) for chunks in document.texts] for document in source.good_documents(span)]


@pytest.mark.parametrize("fields", ["en,de", "de,en"])
def test_parallel_lines(write, fields):
    path = write("t.en", ENGLISH)
    write("t.de", GERMAN)
    source = only(f"parallel:{path.replace('t.en', 't.{}')}?fields={fields}")
    english = ["a cat", "the hat", None, "blue"]
    german = ["eine Katze", "der Hut", None, "blau für"]
    pairs = zip(english, german, strict=True) if fields == "en,de" else zip(german, english, strict=True)
    assert texts(pickle.loads(pickle.dumps(source))) == [[] if None in pair else list(pair) for pair in pairs]
    assert source.fields == tuple(fields.split(","))
    assert sorted(file.name for file in source.files()) == ["t.de", "t.en"]


def test_parallel_unequal_length(write):
    path = write("t.en", ENGLISH)
    write("t.de", GERMAN + "noch eine\nund noch eine\n")
    with pytest.raises(DataError):
        texts(only(f"parallel:{path.replace('t.en', 't.{}')}?fields=en,de"))

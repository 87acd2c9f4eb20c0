"""What a store knows of its documents: where each lies, where its sentences end; and the text without end tokens."""

import itertools
import json
import pickle

import numpy as np
import pytest

from input_pipeline import validate
from input_pipeline.sources import base
from input_pipeline.token_store import build, writer
from input_pipeline.token_store.stream import Stream

END = 256  # of the byte tokenizer
BOOK = "One. \n  Two, and more.\r\n\nThree\n\n\nA new one\nends here"


@pytest.fixture(autouse=True)
def _any_fields(monkeypatch):
    """Stores keep named parts of documents whatever task reads them."""
    monkeypatch.setattr(validate, "check_sources", lambda *given: None)


@pytest.fixture
def small_parts(monkeypatch):
    """Stores of many parts, written in many steps, of which few are held open."""
    monkeypatch.setattr(build, "PART_BYTES", 400)
    monkeypatch.setattr(build, "cores", lambda: 1)  # one process is quicker
    monkeypatch.setattr(writer, "FLUSH", 30)
    monkeypatch.setattr(Stream, "OPEN_FILES", 3)


def taken(stream: Stream, start: int, length: int) -> bytes:
    ids = np.zeros(length, np.int32)
    stream.copy(start, ids)
    return bytes(ids.astype(np.uint8))


def texts(stream: Stream) -> list[bytes]:
    """Every document, by its place in the stream."""
    return [taken(stream, *stream.document(number)) for number in range(stream.counts.documents)]


def sentences(stream: Stream) -> list[list[bytes]]:
    """The sentences of every document."""
    found = []
    for number, text in enumerate(texts(stream)):
        ends = stream.sentences(number).tolist()
        found.append([text[a:b] for a, b in itertools.pairwise([0, *ends])])
        assert b"".join(found[-1]) == text
    return found


def assert_windows(copy, expected: np.ndarray) -> None:
    """Asserts that random windows are as in `expected`, which is circular."""
    rng = np.random.default_rng(0)
    starts, lengths = rng.integers(0, 3 * len(expected), 200), rng.integers(0, 400, 200)
    for start, length in [(0, len(expected)), *zip(starts.tolist(), lengths.tolist(), strict=True)]:
        ids = np.zeros(length, np.int32)
        copy(start, ids)
        assert np.array_equal(ids, np.take(expected, np.arange(start, start + length), mode="wrap"))


def test_stream_documents(prepare, words, small_parts):
    corpus = prepare(words(40), holdout=0.3)
    for split in corpus.splits:
        stream = corpus.stream(split)
        assert len(stream.shards) > 5
        assert b"".join(texts(stream)) == corpus.raw_bytes(split)
        assert (stream.document_sizes() - 1).tolist() == [len(text) for text in texts(stream)]
        assert_windows(stream.copy, np.concatenate([[END, *text] for text in texts(stream)]))


def test_stream_bare(prepare, words, small_parts):
    stream = (corpus := prepare(words(40, longest=25))).stream("train")
    text = np.frombuffer(corpus.raw_bytes("train"), np.uint8)
    assert stream.bare_tokens == len(text) == stream.tokens - stream.counts.documents
    assert_windows(stream.copy_bare, text)


@pytest.mark.parametrize("chunk", [1 << 20, 7])
def test_stream_sentences(prepare, write, monkeypatch, chunk):
    """As the release of BERT reads them: blank lines and the white space around a line are left out."""
    monkeypatch.setattr(base.split_chunks, "__defaults__", (chunk,))
    write("empty.txt", "\n \n")
    corpus = prepare(f"text:{write('book.txt', BOOK)[:-8]}*.txt", sentences="lines")
    assert sentences(corpus.stream("train")) == [[b"One.", b"Two, and more.", b"Three", b"A new one", b"ends here"]]
    (counts,) = corpus.summary()
    lines = ["One.", "Two, and more.", "Three", "A new one", "ends here"]
    assert counts["bytes"] == sum(map(len, lines)) and counts["tokens"] == counts["bytes"] + 1
    assert counts["words"] == len(BOOK.split()) + len(lines)


def test_stream_sentences_of_paragraphs(prepare, write, small_parts):
    path = write("book.txt", "\n\n".join([BOOK] * 50))
    corpus = prepare(f"text:{path}?document=blank_line", sentences="lines", holdout=0.0)
    stream = corpus.stream("train")
    documents = [[b"One.", b"Two, and more."], [b"Three"], [b"A new one", b"ends here"]] * 50
    assert sentences(stream) == documents and len(stream.shards) > 5
    again = pickle.loads(pickle.dumps(stream))
    assert sentences(again) == documents and again.bare_tokens == stream.bare_tokens


def test_sentences_tokenised_separately(prepare, write):
    """Pieces that hold a line's end are never met, and text that gives no ids is no sentence."""
    path = write("a.txt", "few words\nmore words\n\u200b\n" * 30)
    settings = {"kind": "wordpiece", "vocab_size": 40}
    pytest.importorskip("tokenizers", reason="needs the extra hf")
    corpus = prepare(f"text:{path}", tokenizer=settings, sentences="lines")
    stream, tokenizer = corpus.stream("train"), corpus.tokenizer
    ids = np.zeros(stream.bare_tokens, np.int32)
    stream.copy_bare(0, ids)
    found = [tokenizer.decode(part) for part in np.split(ids, stream.sentences(0))[:-1]]
    assert found == ["few words", "more words"] * 30


RECORDS = [
    {"inputs": "übersetze: ein Haus", "targets": "a house", "label": 1},
    {"inputs": "", "targets": "nothing\nat all", "label": 2.5},
    {"inputs": "", "targets": "", "label": ""},
    {"targets": "yes", "inputs": "is it?", "label": True, "more": None},
]


def by_name(stream: Stream) -> list[dict[str, str]]:
    """The fields of every document."""
    return [
        {name: taken(stream, *place).decode() for name, place in stream.fields(number).items()}
        for number in range(stream.counts.documents)
    ]


def records(write, name="a.jsonl", copies=1) -> str:
    return write(name, "".join(json.dumps(record) + "\n" for record in RECORDS * copies))


def test_stream_fields(prepare, write, small_parts):
    stream = prepare(f"jsonl:{records(write, copies=20)}?fields=inputs,targets,label").stream("train")
    expected = [
        {"inputs": "übersetze: ein Haus", "targets": "a house", "label": "1"},
        {"inputs": "", "targets": "nothing\nat all", "label": "2.5"},
        {"inputs": "is it?", "targets": "yes", "label": "true"},
    ]
    assert by_name(stream) == expected * 20 and len(stream.shards) > 5
    assert texts(stream)[:3] == ["".join(fields.values()).encode() for fields in expected]
    assert by_name(pickle.loads(pickle.dumps(stream))) == expected * 20


def test_stream_sentences_of_fields(prepare, write):
    path = write("a.jsonl", json.dumps({"a": "One.\nTwo.", "b": "Three.\n\n"}) + "\n")
    stream = prepare(f"jsonl:{path}?fields=a,b", sentences="lines").stream("train")
    assert sentences(stream) == [[b"One.", b"Two.", b"Three."]]
    assert by_name(stream) == [{"a": "One.Two.", "b": "Three."}]

"""Vocabularies counted from text, symbols and words; and streams of symbols, which no end token divides."""

import itertools

import numpy as np
import pytest

from input_pipeline import pipeline
from input_pipeline.errors import DataError

TEXT = "the quick brown fox jumps over the lazy dog and the dog sleeps " * 4
SYMBOLS = {"kind": "symbols"}


@pytest.fixture
def corpus(prepare, write):
    """TEXT in stretches of 90, 5 and 5 parts of a hundred, as text8 is cut."""
    path, size = write("text8", TEXT), len(TEXT)
    cuts = [0, size * 90 // 100, size * 95 // 100, size]
    train, validation, test = (f"text:{path}?bytes={a}:{b}" for a, b in itertools.pairwise(cuts))
    return prepare(train, validation=validation, test=test, tokenizer=SYMBOLS, layout="stream", length=8)


def test_symbols_by_frequency(corpus):
    tokenizer = corpus.tokenizer
    assert tokenizer.vocab_size == len(set(TEXT)) and tokenizer.end_id is None
    first = [tokenizer.decode([i]) for i in range(3)]
    assert first == sorted(set(TEXT), key=lambda c: (-TEXT.count(c), c))[:3]
    assert tokenizer.byte_lengths.tolist() == [1] * tokenizer.vocab_size
    text = ""
    for stream in map(corpus.stream, ("train", "validation", "test")):
        stream.copy(0, ids := np.zeros(stream.tokens, np.int32))
        text += tokenizer.decode(ids)
    assert text == TEXT


@pytest.mark.parametrize(("layout", "stride", "batch_size"), [("stream", 0, 3), ("concat", 0, 1), ("concat", 3, 3)])
def test_symbols_scored_once(corpus, layout, stride, batch_size):
    scored = corpus.evaluation("test", length=5, stride=stride, batch_size=batch_size, layout=layout)
    batches = list(scored.batches())
    text = corpus.raw_bytes("test").decode()
    lanes = [np.concatenate([b["targets"][r][b["weights"][r] > 0] for b in batches]) for r in range(batch_size)]
    if layout == "stream":
        assert corpus.tokenizer.decode(np.concatenate(lanes)) == text[1:]
    assert sorted(corpus.tokenizer.decode(np.concatenate(lanes))) == sorted(text[1:])
    assert (scored.tokens, scored.bytes) == (len(text) - 1, len(text) - 1)


def test_symbols_layout_of_documents(prepare, write):
    with pytest.raises(DataError):
        prepare(f"text:{write('a.txt', TEXT)}", tokenizer=SYMBOLS, layout="packed")


def test_symbols_unknown_byte(corpus):
    with pytest.raises(DataError):
        corpus.tokenizer.encode("dog!")


def test_symbols_without_line_ends(prepare, write):
    path = write("enwik", "äß\nä\n")
    corpus = prepare(f"text:{path}?line_ends=dropped", tokenizer=SYMBOLS, length=4)
    assert corpus.tokenizer.vocab_size == 3  # 0xc3, 0xa4, 0x9f
    assert corpus.raw_bytes("train") == "äßä".encode()
    assert corpus.summary()[0]["tokens"] == 6


@pytest.mark.parametrize("cut", [1, 3, 4])
def test_text_range_cuts_characters(prepare, write, tmp_path, cut):
    text = "aä€b" * 30
    path = write("a.txt", text)
    first = 70 + cut  # characters of 1, 2, 3 and 1 bytes, in turn; 70 is ten of them
    corpus = prepare(f"text:{path}?bytes=:{first}", validation=f"text:{path}?bytes={first}:", length=1)
    parts = [corpus.raw_bytes(split).decode() for split in ("train", "validation")]
    assert "".join(parts) == text and 0 <= len(parts[0].encode()) - first < 3 and all(parts)


WORDS = "a rose is\na rose\n\n"


def test_words_by_frequency(prepare, write, tmp_path):
    corpus = prepare(f"text:{write('a.txt', WORDS)}", tokenizer={"kind": "words", "vocab_size": 10}, length=2)
    tokenizer = corpus.tokenizer
    assert [tokenizer.decode([i]) for i in range(1, 5)] == ["a", "rose", "is", "<unk>"]
    assert (tokenizer.vocab_size, tokenizer.end_id) == (5, 0)
    assert tokenizer.encode(WORDS).tolist() == [1, 2, 3, 0, 1, 2, 0, 0]
    assert tokenizer.encode("a tulip\n").tolist() == [1, 4, 0]
    assert pipeline.open_tokenizer(tmp_path / "run/tokenizer").fingerprint == tokenizer.fingerprint
    assert corpus.summary()[0]["tokens"] == corpus.summary()[0]["words"] + 1  # the end token before the file
    assert corpus.evaluation("train", length=2, stride=0, batch_size=1).bytes is None  # "rose" and "tulip" may be one


@pytest.mark.parametrize(
    ("text", "size", "ids"),
    [("a rose is a rose\n", 3, [1, 2, 2, 1, 2, 0]), ("<unk> wins <unk> <eos>\n", 9, [1, 2, 1, 0, 0])],
)
def test_words_ids_of_their_text(prepare, write, text, size, ids):
    settings = {"kind": "words", "vocab_size": size}
    tokenizer = prepare(f"text:{write('a.txt', text)}", tokenizer=settings, length=2).tokenizer
    assert tokenizer.vocab_size == 3 and tokenizer.encode(text).tolist() == ids


@pytest.mark.parametrize(("kind", "content"), [("words", "the\n"), ("symbols", '{"vocabulary": ["<eos>", "<unk>"]}')])
def test_counts_unusable_file(prepare, write, tmp_path, kind, content):
    path = write("bad.json", content)
    with pytest.raises(DataError):
        prepare(f"text:{write('a.txt', WORDS)}", tokenizer={"kind": kind, "path": path}, length=2)
    assert not (tmp_path / "run/tokenizer/made.json").exists()


@pytest.mark.parametrize("kind", ["symbols", "words", "sentencepiece", "wordpiece"])
def test_train_without_text(prepare, write, tmp_path, kind):
    source, settings = f"text:{write('a.txt', '')}", {"kind": kind, "vocab_size": 300}
    with pytest.raises(DataError):
        prepare(source, tokenizer=settings, length=2)
    assert not list((tmp_path / "run").glob("**/*.json"))
    write("a.txt", WORDS)
    assert len(set(prepare(source, tokenizer=settings, length=2).tokenizer.encode("a rose").tolist())) > 1


def test_words_continuation(prepare, write):
    tokenizer = prepare(f"text:{write('a.txt', WORDS)}", tokenizer={"kind": "words"}, length=2).tokenizer
    before, ids = tokenizer.encode("a rose"), tokenizer.encode("is a rose")
    assert tokenizer.continuation(before, ids) == " is a rose"
    assert tokenizer.continuation([tokenizer.end_id], ids) == "is a rose"
    assert tokenizer.continuation(before, ids, "a rose ") == "is a rose"
    assert tokenizer.continuation(before, ids, "a rose") == " is a rose"
    decoder = tokenizer.decoder(before)
    assert [decoder.feed(token) for token in ids] == [" is", " a", " rose"] and decoder.finish() == ""

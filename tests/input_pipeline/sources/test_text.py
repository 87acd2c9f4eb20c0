"""From bytes to documents: nothing lost, nothing read whole, every bad byte named."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline.errors import DataError
from input_pipeline.sources import base, parser
from input_pipeline.sources import text as text_files


def read(spec: str, target: int = 1 << 30) -> list[str]:
    """The documents of a source, read in spans of `target` bytes."""
    (source,) = parser.parse(spec, "data.train")
    found = [document for span in source.spans(target) for document in source.good_documents(span)]
    return ["".join(document.chunks) for document in found]


@given(st.text(alphabet="ab \n\r\té", max_size=200), st.integers(1, 20), st.integers(1, 30))
def test_split_chunks_lossless(text, limit, block):
    chunks = list(base.split_chunks([text], limit))
    assert "".join(chunks) == text
    assert all(0 < len(chunk) <= limit for chunk in chunks)
    assert chunks == list(base.split_chunks([text[i : i + block] for i in range(0, len(text), block)], limit))


def test_split_chunks_at_lines():
    assert list(base.split_chunks(["def f():\n    return 1\n\n    x"], 24)) == ["def f():\n    return 1", "\n\n    x"]
    assert list(base.split_chunks(["one two three"], 9)) == ["one two", " three"]


@pytest.mark.parametrize("unit", ["file", "line", "blank_line"])
def test_text_document_units(write, unit):
    path = write("a.txt", "one\ntwo\r\n\n \nthree é\nfour\n")
    expected = {
        "file": ["one\ntwo\r\n\n \nthree é\nfour\n"],
        "line": ["one", "two", "three é", "four"],
        "blank_line": ["one\ntwo", "three é\nfour"],
    }
    assert read(f"text:{path}?document={unit}") == expected[unit]


@pytest.mark.parametrize("blank", ["", "\u3000 "], ids=ascii)
def test_text_blank_lines(write, blank):
    """As sentences of a document have it, and BERT's release."""
    path = write("a.txt", f"one\n{blank}\n\u3000two\n")
    assert read(f"text:{path}?document=line") == ["one", "\u3000two"]
    assert read(f"text:{path}?document=blank_line") == ["one", "\u3000two"]


@given(
    lines=st.lists(st.sampled_from(["", " ", "\u3000", "a", "bb", "é\r", "long line here"]), max_size=30),
    target=st.integers(1, 50),
)
@pytest.mark.parametrize("unit", ["line", "blank_line"])
def test_text_spans_partition(tmp_path_factory, unit, lines, target):
    path = tmp_path_factory.mktemp("spans") / "a.txt"
    path.write_bytes("\n".join(lines).encode())
    assert read(f"text:{path}?document={unit}", target) == read(f"text:{path}?document={unit}")


def test_text_bytes_option(write):
    path = write("a.txt", "0123456789")
    assert read(f"text:{path}?bytes=2:5") == ["234"]
    assert read(f"text:{path}?bytes=7:") == ["789"]
    packed = write("b.txt.gz", gzip.compress(b"0123456789"))
    assert read(f"text:{packed}?bytes=:3") == ["012"]


def test_text_compressed(write):
    zstandard = pytest.importorskip("zstandard", reason="needs the extra zstd")
    text = "première ligne\nzweite Zeile\n" * 1000
    compress = zstandard.ZstdCompressor().compress
    write("a.txt", text)
    write("a.txt.gz", gzip.compress(text.encode()))
    path = write("a.txt.zst", compress(text[:5000].encode()) + compress(text[5000:].encode()))
    assert read(f"text:{path.removesuffix('.zst')}*") == 3 * [text]
    assert read(f"text:{path}?bytes=8:15") == ["e ligne"]


def test_text_cut_zstd_frames(write):
    """Such a file once ended as if it were whole."""
    zstandard = pytest.importorskip("zstandard", reason="needs the extra zstd")
    lines = [f"line {n} of many\n" * 500 for n in range(6)]
    frames = [zstandard.ZstdCompressor(write_checksum=True).compress(line.encode()) for line in lines]
    whole = b"".join(frames)
    end = len(b"".join(frames[:3]))
    for size in (1, end - 4, end + 1, len(whole) - 1):
        with pytest.raises(DataError):
            read(f"text:{write('a.zst', whole[:size])}")
    assert read(f"text:{write('a.zst', whole[:end])}") == ["".join(lines[:3])]
    aside = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"  # a frame that is skipped
    assert read(f"text:{write('a.zst', aside + whole)}?bytes=100:200") == ["".join(lines)[100:200]]


def test_text_line_ends_dropped(write, monkeypatch):
    path = write("a.txt", "ab\r\ncd\n\r\n\re\r")
    for chunk in (text_files.CHUNK, 3, 1):
        monkeypatch.setattr(text_files, "CHUNK", chunk)
        dropped = read(f"text:{path}?line_ends=dropped")
        assert "".join(dropped) == "abcd\re\r"


def test_text_broken_archive(write):
    whole = gzip.compress(b"some text" * 1000)
    for content in (whole[:-20], b"no archive"):
        with pytest.raises(DataError):
            read(f"text:{write('a.txt.gz', content)}")


def test_text_decoded_across_blocks(write, monkeypatch):
    monkeypatch.setattr(text_files, "CHUNK", 7)
    text = "aé😀中" * 50
    assert read(f"text:{write('a.txt', text)}") == [text]
    with pytest.raises(DataError):
        read(f"text:{write('b.txt', text.encode()[:493] + bytes([0xFF]))}")


@pytest.mark.parametrize("unit", ["file", "line", "blank_line"])
def test_text_byte_order_mark(write, unit):
    path = write("a.txt", "\ufeffone\ufeff".encode())
    assert read(f"text:{path}?document={unit}") == ["one\ufeff"]


def test_jsonl_documents(write):
    path = write("a.jsonl", '{"text": "one\\ntwo", "n": 1}\n\n{"text": "", "n": 2}\n{"text": "é", "n": 3}\n')
    assert read(f"jsonl:{path}") == ["one\ntwo", "", "é"]
    assert read(f"jsonl:{path}", target=5) == ["one\ntwo", "", "é"]


@pytest.mark.parametrize("line", ['{"body": "x"}', '{"text": null}', "{text", '["text"]', b'{"text": "\xff"}'])
def test_jsonl_unusable_line(write, line):
    line = line if isinstance(line, bytes) else line.encode()
    path = write("a.jsonl", b'{"text":"ok"}\n' + line)
    with pytest.raises(DataError, match="line 2"):
        read(f"jsonl:{path}")

"""From bytes to documents: nothing lost, nothing read whole, every bad byte named."""

import gzip
import lzma
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline.errors import DataError
from input_pipeline.sources import readers, sources


def read(spec: str, target: int = 1 << 30) -> list[str]:
    """The documents of a source, read in spans of `target` bytes."""
    (source,) = sources.parse(spec, "data.train")
    found = [document for span in source.spans(target) for document in source.documents(span)]
    return ["".join(document.chunks) for document in found]


@given(st.text(alphabet="ab \n\r\té", max_size=200), st.integers(1, 20), st.integers(1, 30))
def test_chunks_lose_nothing_and_depend_on_the_text_alone(text, limit, block):
    chunks = list(readers.chunks([text], limit))
    assert "".join(chunks) == text
    assert all(0 < len(chunk) <= limit for chunk in chunks)
    assert chunks == list(readers.chunks([text[i : i + block] for i in range(0, len(text), block)], limit))


def test_chunks_end_before_the_white_space_of_a_new_line():
    assert list(readers.chunks(["def f():\n    return 1\n\n    x"], 24)) == ["def f():\n    return 1", "\n\n    x"]
    assert list(readers.chunks(["one two three"], 9)) == ["one two", " three"]


@pytest.mark.parametrize("unit", ["file", "line", "blank_line"])
def test_units_of_a_document(write, unit):
    path = write("a.txt", "one\ntwo\r\n\n \nthree é\nfour\n")
    expected = {
        "file": ["one\ntwo\r\n\n \nthree é\nfour\n"],
        "line": ["one", "two", "three é", "four"],
        "blank_line": ["one\ntwo", "three é\nfour"],
    }
    assert read(f"text:{path}?document={unit}") == expected[unit]


@pytest.mark.parametrize("blank", ["", " \t", "\u00a0", "\u3000 ", "\u0085", "\x1c"], ids=ascii)
def test_a_line_of_any_white_space_is_blank(write, blank):
    """As sentences of a document have it, and BERT's release."""
    path = write("a.txt", f"one\n{blank}\n\u3000two\n")
    assert read(f"text:{path}?document=line") == ["one", "\u3000two"]
    assert read(f"text:{path}?document=blank_line") == ["one", "\u3000two"]


@given(
    lines=st.lists(st.sampled_from(["", " ", "\u3000", "a", "bb", "é\r", "long line here"]), max_size=30),
    target=st.integers(1, 50),
)
@pytest.mark.parametrize("unit", ["line", "blank_line"])
def test_spans_partition_the_documents(tmp_path_factory, unit, lines, target):
    path = tmp_path_factory.mktemp("spans") / "a.txt"
    path.write_bytes("\n".join(lines).encode())
    assert read(f"text:{path}?document={unit}", target) == read(f"text:{path}?document={unit}")


def test_bytes_of_a_file(write):
    path = write("a.txt", "0123456789")
    assert read(f"text:{path}?bytes=2:5") == ["234"]
    assert read(f"text:{path}?bytes=7:") == ["789"]
    packed = write("b.txt.gz", gzip.compress(b"0123456789"))
    assert read(f"text:{packed}?bytes=:3") == ["012"]
    assert read(f"text:{packed}?bytes=8:") == ["89"]


def test_gzip_and_zstandard_are_read_like_the_plain_file(write):
    zstandard = pytest.importorskip("zstandard", reason="needs the extra zstd")
    text = "première ligne\nzweite Zeile\n" * 1000
    compress = zstandard.ZstdCompressor().compress
    write("a.txt", text)
    write("a.txt.gz", gzip.compress(text.encode()))
    path = write("a.txt.zst", compress(text[:5000].encode()) + compress(text[5000:].encode()))
    write("a.txt.GZ", gzip.compress(text.encode()))
    assert read(f"text:{path.removesuffix('.zst')}*") == 4 * [text]
    assert read(f"text:{path[:-4]}.GZ?bytes=8:15") == ["e ligne"]


def test_frames_that_are_cut_short_are_refused(write):
    """Such a file once ended as if it were whole."""
    zstandard = pytest.importorskip("zstandard", reason="needs the extra zstd")
    compress = zstandard.ZstdCompressor(write_checksum=True).compress
    lines = [f"line {n} of many\n" * 500 for n in range(6)]
    frames = [compress(line.encode()) for line in lines]
    whole = b"".join(frames)
    ends = [sum(map(len, frames[: n + 1])) for n in range(len(frames))]
    for size in (1, 5, ends[0] // 2, ends[2] - 4, ends[2] + 1, len(whole) - 1):
        with pytest.raises(DataError, match=r"a\.zst cannot be decompressed \(it ends within a frame\); fetch it"):
            read(f"text:{write('a.zst', whole[:size])}")
    assert read(f"text:{write('a.zst', whole[: ends[2]])}") == ["".join(lines[:3])]
    nothing = compress(b"")
    aside = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"  # a frame that is skipped
    assert read(f"text:{write('a.zst', nothing + aside + whole + nothing)}") == ["".join(lines)]
    assert read(f"text:{write('a.zst', whole)}?bytes=100:200") == ["".join(lines)[100:200]]


@pytest.mark.parametrize("ending", ["xz", "bz2", "Z", "ZIP"])
def test_other_archives_are_refused_by_name(write, ending):
    with pytest.raises(DataError, match="is compressed in a way that is not read; unpack it, or pack it with gzip or"):
        read(f"text:{write(f'a.txt.{ending}', lzma.compress(b'text'))}")


def test_line_ends_are_dropped_whole(write, monkeypatch):
    path = write("a.txt", "ab\r\ncd\n\r\n\re\r")
    for chunk in (readers.CHUNK, 3, 1):
        monkeypatch.setattr(readers, "CHUNK", chunk)
        dropped = read(f"text:{path}?line_ends=dropped")
        assert "".join(dropped) == "abcd\re\r"


def test_a_link_that_leads_nowhere_is_named(write, tmp_path):
    path = Path(write("a.txt", "text"))
    path.with_name("b.txt").symlink_to(tmp_path / "nowhere" / "b.txt")
    with pytest.raises(DataError, match=r"matches \S+/b\.txt, a link that leads nowhere; mend or delete it"):
        read(f"text:{path.parent}/*.txt")


def test_zstandard_absent_is_said(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(DataError, match=r"needs the package zstandard; in the clone, pip install -e '\.\[zstd\]'"):
        read(f"text:{write('a.zst', b'')}")


def test_a_broken_archive_is_named(write):
    whole = gzip.compress(b"some text" * 1000)
    for content in (whole[:-20], b"no archive"):
        with pytest.raises(DataError, match=r"a\.txt\.gz cannot be decompressed .*fetch it again"):
            read(f"text:{write('a.txt.gz', content)}")


def test_a_file_longer_than_a_block_is_decoded_across_blocks(write, monkeypatch):
    monkeypatch.setattr(readers, "CHUNK", 7)
    text = "aé😀中" * 50
    assert read(f"text:{write('a.txt', text)}") == [text]
    with pytest.raises(DataError, match="byte 493 "):
        read(f"text:{write('b.txt', text.encode()[:493] + bytes([0xFF]))}")


@pytest.mark.parametrize("unit", ["file", "line", "blank_line"])
def test_undecodable_text_is_named_with_its_offset(write, unit):
    path = write("a.txt", b"one\ntw\xe9o\n")
    with pytest.raises(DataError, match=rf"{path} is not UTF-8 at byte 6 .*; convert it with iconv -f ENCODING "):
        read(f"text:{path}?document={unit}")
    with pytest.raises(DataError, match="is not UTF-8 at byte 4"):
        read(f"text:{write('cut.txt', b'one ' + 'é'.encode()[:1])}")


@pytest.mark.parametrize("unit", ["file", "line", "blank_line"])
def test_a_mark_of_utf8_is_no_text(write, unit):
    path = write("a.txt", "\ufeffone\ufeff".encode())
    assert read(f"text:{path}?document={unit}") == ["one\ufeff"]


@pytest.mark.parametrize("source", ["text:{}", "text:{}?document=line", "jsonl:{}"])
def test_binary_files_are_not_to_be_converted(write, source):
    """Latin-1 makes text of any bytes."""
    path = write("a.parquet", b"PAR1\x15\x00\xe9\xff\n")
    with pytest.raises(DataError, match=rf"{path} is no text: it is not UTF-8 at byte 6, and has zeros .*coming_from"):
        read(source.format(path))


@pytest.mark.parametrize("source", ["text:{}", "text:{}?document=line", "jsonl:{}"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-32-be"])
def test_the_encoding_that_a_file_begins_with_is_named(write, source, encoding):
    """Read as Latin-1 it is text of which every second character is nothing."""
    mark = "\ufeff" if encoding.endswith("be") else ""  # the others write their own
    path = write("a.txt", (mark + '{"text": "one"}\n').encode(encoding))
    name = encoding.removesuffix("-be")
    with pytest.raises(DataError, match=rf"begins as {name.upper()} does, so convert it with iconv -f {name} -t utf-8"):
        read(source.format(path))


def test_json_lines_may_begin_with_the_mark_of_utf_8(write):
    path = write("a.jsonl", '{"text": "one"}'.encode("utf-8-sig"))
    assert read(f"jsonl:{path}") == ["one"]


def test_json_lines(write):
    path = write("a.jsonl", '{"text": "one\\ntwo", "n": 1}\n\n{"text": "", "n": 2}\n{"text": "é", "n": 3}\n')
    assert read(f"jsonl:{path}") == ["one\ntwo", "", "é"]
    assert read(f"jsonl:{path}", target=5) == ["one\ntwo", "", "é"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"body": "x"}',
            r"line 2 has no field 'text'; name one of: body, with \?field=NAME, or leave out what lacks it",
        ),
        ('{"text": 3}', r"line 2 holds int at 'text', not text"),
        ('{"text": null}', r"line 2 holds null at 'text', not text; give it a text or leave it out"),
        ("{text", r"line 2 is not JSON"),
        ('["text"]', r"line 2 is a list, not an object"),
        ('{"text": "\\ud800"}', r"line 2 holds text at 'text' that is not UTF-8"),
        (b'{"text": "\xff"}', r"is not UTF-8 at byte 24"),
    ],
)
def test_bad_json_is_named_with_its_place(write, line, message):
    line = line if isinstance(line, bytes) else line.encode()
    path = write("a.jsonl", b'{"text":"ok"}\n' + line)
    with pytest.raises(DataError, match=message):
        read(f"jsonl:{path}")

"""From files to documents: decompression, decoding and cutting, in bounded memory.

A document is its text, or a text for each of its fields, in chunks of at most a million characters to be read once
and in order, or an image's bytes, in one chunk; and its place: a hash from 0 to 1 of the file's name where a file is
a document, else of the content, so that equal lines share a place. Those below `data.holdout` are held out, always.
"""

import codecs
import contextlib
import gzip
import hashlib
import io
import itertools
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from input_pipeline.away import naming
from input_pipeline.errors import DataError
from input_pipeline.remote import at, is_remote

CHUNK = 1 << 20  # characters; tokenizers take time and memory in proportion
# How files of other encodings begin, the longest first: a byte order mark of UTF-16 begins one of UTF-32.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
MARK = "\ufeff"  # the same of UTF-8, which is no part of the text
COMPRESSED = (".gz", ".zst")  # these can only be read from the beginning
UNREAD = (".xz", ".bz2", ".lz4", ".zip", ".7z", ".z")
PACKED = 1 << 12  # bytes of a frame at a time, of which each may be tens of thousands
BEGINNING = 1 << 12  # bytes that tell what a file is


class Document(NamedTuple):
    """A hash that is uniform from 0 to 1, and the texts that it is made of, each in chunks; of an image, its bytes.

    There is one text, or one for each field that the source names; none where all would be empty.
    """

    place: float
    texts: tuple[Iterable[str] | Iterable[bytes], ...]

    @property
    def chunks(self) -> Iterator[str] | Iterator[bytes]:
        """The chunks of all its texts."""
        return itertools.chain.from_iterable(self.texts)


class Span(NamedTuple):
    """The stretch [start, end) of one file, in (decompressed) bytes; or of a TFDS split, in records."""

    path: str
    name: str
    start: int
    end: int | None  # None: to the end of the file
    size: int  # bytes, roughly: what the work is divided by


def place(name: bytes) -> float:
    """Hash of a name or a text, uniform from 0 to 1."""
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) / 2**64


def raw(chunk: str | bytes) -> bytes:
    """The bytes of a document's chunk."""
    return chunk if isinstance(chunk, bytes) else chunk.encode("utf-8")


@contextlib.contextmanager
def opened(path: str, start: int) -> Iterator[BinaryIO]:
    """The file's bytes from `start` on, decompressed where its name ends in .gz or .zst."""
    ending = os.path.splitext(path)[1].lower()
    if ending in UNREAD:
        raise DataError(f"{path} is compressed in a way that is not read; unpack it, or pack it with gzip or zstd")
    unpack = {".gz": gzip.open, ".zst": _open_zstd}.get(ending, lambda file, mode: contextlib.nullcontext(file))
    with naming(path), raw_bytes(path) as file, unpack(file, "rb") as stream:
        try:
            if not is_compressed(path):
                stream.seek(start)
            while stream.tell() < start and stream.read(min(start - stream.tell(), CHUNK)):
                pass  # a compressed file can only be read from its beginning
            yield stream
        except (EOFError, gzip.BadGzipFile, zlib.error, *_zstd_errors()) as error:
            raise DataError(f"{path} cannot be decompressed ({error}); fetch it again") from None


def is_compressed(path: str) -> bool:
    """Whether a file is unpacked as it is read."""
    return path.lower().endswith(COMPRESSED)


def size_up_to(path: str, most: int) -> int:
    """Bytes of a file, decompressed; `most` where it has more."""
    with opened(path, most - 1) as stream:
        stream.read(1)
        return stream.tell()


def raw_bytes(path: str) -> BinaryIO:
    """The bytes of a file as they are stored, on a disk or in an object store."""
    return at(path).open() if is_remote(path) else open(path, "rb")


def _open_zstd(file: BinaryIO, mode: str) -> BinaryIO:
    try:
        import zstandard
    except ImportError:
        raise DataError(
            f"reading {file.name} needs the package zstandard; in the clone, pip install -e '.[zstd]'"
        ) from None
    frames = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # as `zstd --long=31` writes them
    return io.BufferedReader(_Frames(file, frames.decompressobj), CHUNK)


class _Frames(io.RawIOBase):
    """What the frames of a file hold, one after the other, as pzstd writes many; the last must be whole."""

    def __init__(self, file: BinaryIO, frame: Callable):
        self._file, self._new, self._frame = file, frame, None
        self._packed, self._text, self._given = b"", b"", 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._given

    def readinto(self, buffer) -> int:
        while not self._text:
            self._packed = self._packed or self._file.read(PACKED)
            if not self._packed and self._frame:
                raise EOFError("it ends within a frame")
            if not self._packed:
                return 0
            self._frame = self._frame or self._new()
            self._text = self._frame.decompress(self._packed)
            self._packed = self._frame.unused_data
            self._frame = None if self._frame.eof else self._frame
        size = min(len(buffer), len(self._text))
        buffer[:size], self._text = self._text[:size], self._text[size:]
        self._given += size
        return size


def _zstd_errors() -> list[type]:
    library = sys.modules.get("zstandard")
    return [library.ZstdError] if library else []


def chunks(blocks: Iterable[str], limit: int = CHUNK) -> Iterator[str]:
    """The same text in chunks of at most `limit` characters, which depend on the text alone.

    A chunk ends before the whitespace that starts a new line, so that tokens of newline and indentation
    stay whole; failing that before a space, failing that anywhere.
    """
    rest = ""
    for block in blocks:
        rest += block
        while len(rest) > limit:
            cut = _last_line_start(rest, limit) or max(rest.rfind(" ", 1, limit), 0) or limit
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest


def _last_line_start(text: str, limit: int) -> int:
    """Where the last run of whitespace with a newline begins in text[:limit]; 0 if there is none."""
    newline = text.rfind("\n", 1, limit)
    while newline > 0 and text[newline - 1].isspace():
        newline -= 1
    return max(newline, 0)


def sentences(chunks: Iterable[str], span: Span) -> Iterator[str]:
    """The sentences of a document: its lines, without the white space around them, those that are not blank.

    Errors: DataError for a line that no sentence can be, since it does not end.
    """
    rest = ""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split("\n")
        yield from filter(None, map(str.strip, lines))
        if len(rest) > CHUNK:
            raise DataError(
                f"{span.path} has a line of more than {CHUNK:,} characters, but data.sentences = lines takes each line "
                "for a sentence; write one sentence a line"
            )
    if rest := rest.strip():
        yield rest


def of_text(place: float, text: str) -> Document:
    """A document that is in memory."""
    return Document(place, (_in_chunks(text),) if text else ())


def of_texts(place: float, texts: Sequence[str]) -> Document:
    """A document of several texts that are in memory."""
    return Document(place, tuple(map(_in_chunks, texts)) if any(texts) else ())


def _in_chunks(text: str) -> Iterable[str]:
    return chunks([text]) if len(text) > CHUNK else (text,)


def whole_file(span: Span) -> Iterator[Document]:
    """The span as one document, decoded as it is read."""
    yield Document(place(os.fsencode(span.name)), (chunks(_decoded(span)),))


def joined_file(span: Span) -> Iterator[Document]:
    """The span as one document, without its line ends."""
    yield Document(place(os.fsencode(span.name)), (chunks(_without_line_ends(_decoded(span))),))


def _without_line_ends(blocks: Iterable[str]) -> Iterator[str]:
    held = ""  # which may be the first half of a line's end
    for block in blocks:
        block = held + block
        held = "\r" * block.endswith("\r")
        yield block.removesuffix("\r").replace("\r\n", "").replace("\n", "")
    yield held


def divided_file(span: Span, holdout: float, read: Callable[[Span], Iterator[Document]]) -> Iterator[Document]:
    """The span as two documents of `read`: its text, and the last share of it, `holdout`, which is held out.

    The cut is where a line begins, or failing that where a character does.
    """
    with opened(span.path, span.start) as stream:
        limit = sys.maxsize if span.end is None else span.end - span.start
        size = 0
        while block := stream.read(min(CHUNK, limit - size)):
            size += len(block)
    cut = span.start + _cut(span._replace(end=span.start + size), int(size * (1 - holdout)))
    for place_, part in ((1.0, span._replace(end=cut)), (0.0, span._replace(start=cut, end=span.start + size))):
        yield from (document._replace(place=place_) for document in read(part))


def _cut(span: Span, wanted: int) -> int:
    """The first line's start among the span's bytes from `wanted` on, counted from its start; or `wanted`."""
    size = span.end - span.start
    with opened(span.path, span.start + wanted) as stream:
        rest = stream.read(min(CHUNK, size - wanted))
    line = rest.find(b"\n") + 1
    return wanted + line if 0 < line < size - wanted else wanted


def _decoded(span: Span) -> Iterator[str]:
    """Text of the span, block by block; a block's incomplete last character is kept for the next.

    A character belongs to the span that its first byte is in, so that stretches of a file may be cut anywhere.
    """
    if span.start:
        span = span._replace(start=_character(span.path, span.start))
    if span.end is not None:
        span = span._replace(end=_character(span.path, span.end))
    offset, carried = span.start, b""
    with opened(span.path, span.start) as stream:
        while True:
            wanted = CHUNK if span.end is None else min(CHUNK, span.end - offset - len(carried))
            block = stream.read(wanted)
            data = carried + block
            try:
                text, used = data.decode("utf-8"), len(data)
            except UnicodeDecodeError as error:
                if error.reason != "unexpected end of data" or not block:
                    raise undecodable(span.path, offset + error.start, error.reason) from None
                text, used = data[: error.start].decode("utf-8"), error.start
            if text:
                yield text if offset else text.removeprefix(MARK)
            offset, carried = offset + used, data[used:]
            if not block:
                return


def _character(path: str, offset: int) -> int:
    """The first byte from `offset` on that begins a character of UTF-8, which has up to three more."""
    with opened(path, offset) as stream:
        following = stream.read(3)
    return offset + next((i for i, byte in enumerate(following) if byte & 0xC0 != 0x80), len(following))


def undecodable(path: str, offset: int, reason: str) -> DataError:
    with opened(path, 0) as stream:
        begin = stream.read(BEGINNING)
    encoding = next((name for mark, name in MARKS if begin.startswith(mark)), None)
    if not encoding and b"\0" in begin:
        return DataError(
            f"{path} is no text: it is not UTF-8 at byte {offset}, and has zeros as binary files do; give text, which "
            "docs/coming_from.md says how to make of tables, or convert what is UTF-16 or UTF-32 with iconv"
        )
    remedy = (
        f"it begins as {encoding.upper()} does, so convert it with iconv -f {encoding} -t utf-8"
        if encoding
        else "convert it with iconv -f ENCODING -t utf-8, from the encoding that it was written in"
    )
    return DataError(f"{path} is not UTF-8 at byte {offset} ({reason}); {remedy}")


def lines(span: Span) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of every line that begins in the span, and of those after it: the caller stops.

    A line keeps no line end. Offsets count decompressed bytes.
    """
    start = max(span.start - 1, 0)
    with opened(span.path, start) as stream:
        offset = start + len(stream.readline()) if span.start else 0  # from the byte before: is this a line's start?
        for line in stream:
            text = line if offset else line.removeprefix(codecs.BOM_UTF8)
            yield offset, text.rstrip(b"\n").removesuffix(b"\r")
            offset += len(line)


def line_documents(span: Span) -> Iterator[Document]:
    """Each line that is not blank."""
    end = float("inf") if span.end is None else span.end
    for offset, line in lines(span):
        if offset >= end:
            return
        if not _is_blank(line):
            yield _document(span.path, offset, line)


def paragraph_documents(span: Span) -> Iterator[Document]:
    """Each run of lines between blank ones. A paragraph belongs to the span of the blank line just before it."""
    inside, start, held = span.start == 0, 0, []
    for offset, line in lines(span):
        past = span.end is not None and offset >= span.end
        if not _is_blank(line):
            if past and not inside:
                return
            if inside:
                start = start if held else offset
                held.append(line)
            continue
        if held:
            yield _document(span.path, start, b"\n".join(held))
            held = []
        if past:
            return
        inside = True
    if held:
        yield _document(span.path, start, b"\n".join(held))


def _is_blank(line: bytes) -> bool:
    """Whether a line has white space alone, as Python's text has it: a no-break or an ideographic space is one."""
    return not line.decode("utf-8", "replace").strip()


def _document(path: str, offset: int, data: bytes) -> Document:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise undecodable(path, offset + error.start, error.reason) from None
    return of_text(place(data), text)


def json_documents(span: Span, read: Callable[[object, str], Document]) -> Iterator[Document]:
    """What `read` makes of each line's JSON object, and of the words that name the line."""
    for offset, line in lines(span):
        if span.end is not None and offset >= span.end:
            return
        if not line.strip():
            continue
        where = _Line(span.path, offset)
        try:
            record = json.loads(line.decode("utf-8").removeprefix("\ufeff"))  # json guesses other encodings of bytes
        except UnicodeDecodeError as error:
            raise undecodable(span.path, offset + error.start, error.reason) from None
        except RecursionError:
            raise DataError(f"{where} is nested too deeply to be read; write one object a line") from None
        except ValueError as error:
            raise DataError(f"{where} is not JSON ({error}); write one object a line") from None
        yield read(record, where)


class _Line(NamedTuple):
    """The line that begins at byte `offset`, as a message names it: its number is counted only for one."""

    path: str
    offset: int

    def __str__(self) -> str:
        number, at = 1, 0
        with opened(self.path, 0) as stream:
            for line in stream:
                at += len(line)
                if at > self.offset:
                    break
                number += 1
        return f"{self.path}, line {number}"

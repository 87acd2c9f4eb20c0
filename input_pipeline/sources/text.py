"""Text files as documents: decompression, decoding and cutting, in bounded memory."""

import codecs
import contextlib
import functools
import gzip
import io
import itertools
import os
import sys
import sysconfig
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from input_pipeline.errors import DataError
from input_pipeline.io import info, open_path
from input_pipeline.sources.base import CHUNK, BadRecord, Document, File, Source, Span, hash_to_unit, split_chunks

COMPRESSED = (".gz", ".zst")  # read from their beginning only
CONVERT = "Convert it with iconv -f ENCODING -t utf-8."
PACKED = 1 << 12  # compressed bytes at a time: each may become tens of thousands


@contextlib.contextmanager
def open_bytes(path: str, start: int) -> Iterator[BinaryIO]:
    """A file's bytes from `start` on, decompressed if its name ends in .gz or .zst."""
    unpack = {".gz": gzip.open, ".zst": _open_zstd}.get(os.path.splitext(path)[1].lower(), contextlib.nullcontext)
    with open_path(path).open("rb") as file, unpack(file) as stream:
        library = sys.modules.get("zstandard")  # imported once it is needed
        broken = EOFError, gzip.BadGzipFile, zlib.error, *([library.ZstdError] if library else [])
        try:
            if not is_compressed(path):
                stream.seek(start)
            else:
                while start and (block := stream.read(min(start, CHUNK))):
                    start -= len(block)
            yield stream
        except broken as error:
            raise DataError(f"{path} cannot be decompressed ({error}). Download it again.") from error


def stretches(path: str, start: int, end: int, target: int) -> Iterator[tuple[int, int, int]]:
    """(start, end, bytes) of stretches of `target` bytes, for readers of lines."""
    for first in range(start, end, target):
        yield first, min(first + target, end), min(target, end - first)


def is_compressed(path: str) -> bool:
    return path.lower().endswith(COMPRESSED)


def _open_zstd(file: BinaryIO) -> BinaryIO:
    try:
        import zstandard
    except ImportError:
        raise DataError(".zst files need the package zstandard. Run pip install -e '.[zstd]'.") from None
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # as `zstd --long=31` writes
    return io.BufferedReader(_Blocks(_zstd_blocks(file, decompressor.decompressobj)), CHUNK)


def _zstd_blocks(file: BinaryIO, new_frame: Callable) -> Iterator[bytes]:
    """The content of a file's frames; pzstd writes many. The library's own reader ignores a last frame cut short."""
    frame, packed = None, b""
    while packed := packed or file.read(PACKED):
        frame = frame or new_frame()
        yield frame.decompress(packed)
        # Bytes behind the end of a frame begin the next.
        packed = frame.unused_data
        frame = None if frame.eof else frame
    if frame:
        raise EOFError("it ends within a frame")


class _Blocks(io.RawIOBase):
    """Blocks of bytes as a stream."""

    def __init__(self, blocks: Iterator[bytes]):
        self._blocks, self._rest = filter(None, blocks), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        self._rest = self._rest or next(self._blocks, b"")
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def sentences(chunks: Iterable[str]) -> Iterator[str]:
    """The sentences of a document: its lines, stripped, without blank ones."""
    rest = ""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split("\n")
        yield from filter(None, map(str.strip, lines))
    if rest := rest.strip():
        yield rest


def whole_file(span: Span) -> Iterator[Document]:
    """The span as one document, decoded as it is read."""
    yield Document(hash_to_unit(os.fsencode(span.name)), (split_chunks(_decode(span)),))


def joined_file(span: Span) -> Iterator[Document]:
    """The span as one document, without its line ends."""
    yield Document(hash_to_unit(os.fsencode(span.name)), (split_chunks(_without_line_ends(_decode(span))),))


def _without_line_ends(blocks: Iterable[str]) -> Iterator[str]:
    # A block's last "\r" may be the first half of a line end, so it waits for the next block.
    carried = ""
    for block in blocks:
        block = carried + block
        carried = "\r" * block.endswith("\r")
        yield block.removesuffix("\r").replace("\r\n", "").replace("\n", "")
    yield carried


def divided_file(span: Span, holdout: float, read: Callable[[Span], Iterator[Document]]) -> Iterator[Document]:
    """The span as two documents of `read`: its text, and its last share `holdout`, which is held out.

    The cut is at a line's start if there is one, else at a character's.
    """
    # A compressed file shows its size only when read.
    with open_bytes(span.path, span.start) as stream:
        limit = sys.maxsize if span.end is None else span.end - span.start
        size = 0
        while block := stream.read(min(CHUNK, limit - size)):
            size += len(block)
    wanted = int(size * (1 - holdout))
    # Cut where the next line begins, unless none begins before the end.
    with open_bytes(span.path, span.start + wanted) as stream:
        line = stream.read(min(CHUNK, size - wanted)).find(b"\n") + 1
    cut = span.start + wanted + (line if 0 < line < size - wanted else 0)
    for place, part in ((1.0, span._replace(end=cut)), (0.0, span._replace(start=cut, end=span.start + size))):
        yield from (document._replace(holdout_rank=place) for document in read(part))


def _decode(span: Span) -> Iterator[str]:
    """Text of the span, block by block.

    A character belongs to the span of its first byte, so that stretches of a file may be cut anywhere.
    """
    start = _character_start(span.path, span.start) if span.start else 0
    left = sys.maxsize if span.end is None else _character_start(span.path, span.end) - start
    # At a file's start UTF-8's byte order mark is no part of the text.
    decoder, offset = codecs.getincrementaldecoder("utf-8" if start else "utf-8-sig")(), start
    with open_bytes(span.path, start) as stream:
        while block := stream.read(min(CHUNK, left)):
            left -= len(block)
            offset += len(block)
            yield _decoded(decoder.decode, block, span.path, offset)
        yield _decoded(functools.partial(decoder.decode, final=True), b"", span.path, offset)


def _decoded(decode: Callable[[bytes], str], data: bytes, path: str, end: int) -> str:
    """Decodes `data`, which ends at byte `end` of a file."""
    try:
        return decode(data)
    except UnicodeDecodeError as error:
        # A decoder may have carried bytes of the block before.
        offset = end - len(error.object) + error.start
        raise DataError(f"{path} is not UTF-8 text at byte {offset}. {CONVERT}") from None


def _character_start(path: str, offset: int) -> int:
    """The first byte from `offset` on that begins a character of UTF-8, which has up to three more bytes."""
    with open_bytes(path, offset) as stream:
        following = stream.read(3)
    # Bytes 0b10xxxxxx continue a character.
    return offset + next((i for i, byte in enumerate(following) if byte & 0xC0 != 0x80), len(following))


def lines(span: Span) -> Iterator[tuple[int, bytes]]:
    """(offset in decompressed bytes, line without its end) of every line that begins in the span."""
    start = max(span.start - 1, 0)
    with open_bytes(span.path, start) as stream:
        # Read from the byte before: if that is a newline, a line starts at the span's start.
        offset = start + len(stream.readline()) if span.start else 0
        for line in stream:
            if span.end is not None and offset >= span.end:
                return
            text = line if offset else line.removeprefix(codecs.BOM_UTF8)
            yield offset, text.rstrip(b"\n").removesuffix(b"\r")
            offset += len(line)


def line_number(path: str, offset: int) -> int:
    """The number of the line that begins at byte `offset`."""
    with open_bytes(path, 0) as stream:
        ends = itertools.accumulate(map(len, stream))
        return next((number for number, end in enumerate(ends, start=1) if end > offset), 0)


def line_documents(span: Span) -> Iterator[Document | BadRecord]:
    """Each line that is not blank."""
    return (_document(span.path, offset, line) for offset, line in lines(span) if not _is_blank(line))


def paragraph_documents(span: Span) -> Iterator[Document | BadRecord]:
    """Each run of lines between blank ones. A paragraph belongs to the span of the blank line just before it."""
    inside, start, paragraph = span.start == 0, 0, []
    # A paragraph that begins in the span is read to its end, even beyond the span.
    for offset, line in lines(span._replace(end=None)):
        past = span.end is not None and offset >= span.end
        if _is_blank(line):
            if paragraph:
                yield _document(span.path, start, b"\n".join(paragraph))
            if past:
                return
            inside, paragraph = True, []
        elif inside:
            start = start if paragraph else offset
            paragraph.append(line)
        elif past:
            return
    if paragraph:
        yield _document(span.path, start, b"\n".join(paragraph))


def _is_blank(line: bytes) -> bool:
    """Whether a line is white space only, including Unicode's no-break and ideographic spaces."""
    return not line.decode("utf-8", "replace").strip()


def _document(path: str, offset: int, data: bytes) -> Document | BadRecord:
    try:
        return Document.from_texts(hash_to_unit(data), data.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadRecord(path, f"is not UTF-8 text at byte {offset + error.start}. {CONVERT}", offset)


@dataclass(frozen=True)
class StandardLibrary(Source):
    """The running interpreter's standard library: one document a .py file, without tests and foreign packages."""

    SKIPPED = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})

    @classmethod
    def make(cls, spec: str, path: str, options: dict) -> "StandardLibrary":
        return cls(spec=spec)

    @property
    def origin(self) -> str:
        return f"{sys.implementation.name} {sys.version.split()[0]}"

    def _paths(self) -> list[tuple[str, Path]]:
        root, paths = Path(sysconfig.get_path("stdlib")), []
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in self.SKIPPED]
            paths += [Path(folder, name) for name in names if name.endswith(".py")]
        return sorted((path.relative_to(root).as_posix(), path) for path in paths)

    def paths(self) -> list[str]:
        return [str(path) for _, path in self._paths()]

    def files(self) -> list[File]:
        return [File(name, *info(path)) for name, path in self._paths()]

    def spans(self, target: int) -> Iterator[Span]:
        for name, path in self._paths():
            yield Span(str(path), name, 0, None, path.stat().st_size)

    def documents(self, span: Span) -> Iterator[Document]:
        try:
            text = Path(span.path).read_bytes().decode("utf-8")
        except UnicodeDecodeError:  # a few files are in other encodings on purpose
            return
        yield Document.from_texts(hash_to_unit(span.name.encode("utf-8")), text)

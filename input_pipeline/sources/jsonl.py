"""Records, from JSON lines and from TFDS, as documents of the fields that a source names."""

import json
from collections.abc import Callable, Iterator, Sequence

from input_pipeline.errors import DataError
from input_pipeline.sources.base import Document, Span, hash_to_unit
from input_pipeline.sources.text import lines, not_utf8, open_bytes


def json_documents(span: Span, read: Callable[[object, str], Document]) -> Iterator[Document]:
    """The document that `read` makes of each line's JSON object and the line's name."""
    for offset, line in lines(span):
        if span.end is not None and offset >= span.end:
            return
        if not line.strip():
            continue
        where = _Line(span.path, offset)
        try:
            record = json.loads(line.decode("utf-8").removeprefix("\ufeff"))  # json guesses other encodings of bytes
        except UnicodeDecodeError as error:
            raise not_utf8(span.path, offset + error.start) from None
        except ValueError as error:
            raise DataError(f"{where} is not JSON ({error}). Write one object a line.") from None
        yield read(record, where)


class _Line:
    """Names the line that begins at byte `offset`; its number is counted only for a message."""

    def __init__(self, path: str, offset: int):
        self._path, self._offset = path, offset

    def __str__(self) -> str:
        number, end = 1, 0
        with open_bytes(self._path, 0) as stream:
            for line in stream:
                end += len(line)
                if end > self._offset:
                    break
                number += 1
        return f"{self._path}, line {number}"


def value_at(record: object, field: str, where: object) -> object:
    """The value of a record (a dict) at `field`. Errors: DataError if there is none."""
    if not isinstance(record, dict):
        raise DataError(f"{where} is not a JSON object. Write one object a line.")
    if field not in record:
        choices = ", ".join(map(str, record)) or "none"
        raise DataError(f"{where} has no field '{field}'. Its fields are: {choices}; choose with ?field=NAME.")
    return record[field]


def text_document(record: object, where: object, field: str) -> Document:
    """The text at `field` of a record."""
    value = value_at(record, field, where)
    if not isinstance(value, str | bytes):
        raise DataError(f"{where}: '{field}' is {type(value).__name__}, not text. Choose another with ?field=NAME.")
    text, data = _utf8(value, field, where)
    return Document.from_text(hash_to_unit(data), text)


def fields_document(record: object, where: object, fields: Sequence[str]) -> Document:
    """The texts at `fields` of a record, in this order; numbers and booleans as JSON writes them."""
    texts = []
    for field in fields:
        value = value_at(record, field, where)
        value = value.item() if hasattr(value, "item") and not value.shape else value  # NumPy scalars from TFDS
        if not isinstance(value, str | bytes | int | float):
            raise DataError(f"{where}: '{field}' is {type(value).__name__}, not text or a number. Choose other fields.")
        texts.append(_utf8(value, field, where))
    return Document.from_fields(hash_to_unit(b"\0".join(data for _, data in texts)), [text for text, _ in texts])


def _utf8(value: str | bytes | float, field: str, where: object) -> tuple[str, bytes]:
    """A value as text and as bytes."""
    try:
        if isinstance(value, bytes):
            return value.decode("utf-8"), value
        text = value if isinstance(value, str) else json.dumps(value)
        return text, text.encode("utf-8")
    except UnicodeError as error:
        raise DataError(f"{where}: '{field}' is not UTF-8 ({error}). Repair or drop it.") from None

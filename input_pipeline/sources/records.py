"""Records, of JSON lines and of TFDS: what they hold at the fields that a source names, as documents."""

import json
from collections.abc import Sequence

from input_pipeline.errors import DataError
from input_pipeline.sources.readers import Document, of_text, of_texts, place

SEVERAL = "?fields=NAME,NAME"


def value_at(record: object, field: str, where: str, remedy: str = "?field=NAME") -> object:
    """What a record (a dict of values) holds at `field`; `remedy` is how a source names others."""
    if not isinstance(record, dict):
        raise DataError(f"{where} is {_JSON[type(record)]}, not an object; write one object a line")
    if not record:
        raise DataError(f"{where} is an object without fields; give it '{field}', or leave it out")
    if field not in record:
        raise DataError(
            f"{where} has no field '{field}'; name one of: {', '.join(map(str, record))}, with {remedy}, or leave out "
            "what lacks it"
        )
    return record[field]


_JSON = {list: "a list", str: "a string", int: "a number", float: "a number", bool: "a truth value", type(None): "null"}


def text_document(record: object, where: str, field: str) -> Document:
    """The text at `field` of a record."""
    value = value_at(record, field, where)
    if value is None:
        raise DataError(f"{where} holds null at '{field}', not text; give it a text or leave it out")
    if not isinstance(value, str | bytes):
        raise DataError(f"{where} holds {type(value).__name__} at '{field}', not text; name another: ?field=NAME")
    text, data = _utf8(value, field, where)
    return of_text(place(data), text)


def fields_document(record: object, where: str, fields: Sequence[str]) -> Document:
    """The texts at `fields` of a record, in this order; a number or a truth value as JSON writes it."""
    texts, data = [], []
    for field in fields:
        value = value_at(record, field, where, SEVERAL)
        value = value.item() if hasattr(value, "item") and not value.shape else value  # NumPy's numbers, of TFDS
        if not isinstance(value, str | bytes | int | float):
            raise DataError(
                f"{where} holds {_JSON.get(type(value), type(value).__name__)} at '{field}', neither text nor a "
                f"number; name others: {SEVERAL}"
            )
        for kept, part in zip((texts, data), _utf8(value, field, where), strict=True):
            kept.append(part)
    return of_texts(place(b"\0".join(data)), texts)


def _utf8(value: str | bytes | float, field: str, where: str) -> tuple[str, bytes]:
    """A value as text, and in bytes."""
    try:
        if isinstance(value, bytes):
            return value.decode("utf-8"), value
        text = value if isinstance(value, str) else json.dumps(value)
        return text, text.encode("utf-8")
    except UnicodeError as error:
        raise DataError(f"{where} holds text at '{field}' that is not UTF-8 ({error}); repair or drop it") from None

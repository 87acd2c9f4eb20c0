"""Texts that a user names on the command line."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from input_pipeline.errors import DataError
from input_pipeline.sources import parser
from input_pipeline.sources.records import value_at
from pretrain.errors import UserError

SPAN = 2**24  # bytes of a source that are read at once
JSON = (".jsonl", ".json")


def records(source: str, key: str) -> Iterator[Mapping]:
    """The records of a source, such as jsonl:FILE; documents of text: have the field `text`."""
    whole = not source.startswith("text:")
    for one in parser.parse(source, key, whole=whole):
        for span in one.spans(SPAN):
            for document in one.good_documents(span):
                yield document.record if whole else {"text": "".join(document.chunks)}


def read_input(given: str, key: str = "--input") -> list[Mapping]:
    """The records of a file or source: JSON lines by the file's suffix, else every line that is not empty is a text.

    Errors: UserError for a missing or empty file, DataError.
    """
    source = given
    if given.partition(":")[0] not in parser.KINDS:
        if not Path(given).is_file():
            raise UserError(f"{key}={given}: no such file. Name a file of texts.")
        name = given.removesuffix(".gz").removesuffix(".zst")
        source = f"jsonl:{given}" if name.endswith(JSON) else f"text:{given}?document=line"
    found = list(records(source, key))
    if not found:
        raise UserError(f"{key}={given}: holds no text. Name another file.")
    return found


def texts_of(found: list[Mapping], key: str = "--input", field: str = "text") -> list[str]:
    """The text of each record. Errors: DataError with the number of the record."""
    texts = []
    for number, record in enumerate(found, 1):
        try:
            texts.append(value_at(record, field, str))
        except DataError as error:
            raise DataError(f"{key}, record {number}: {error}") from None
    return texts

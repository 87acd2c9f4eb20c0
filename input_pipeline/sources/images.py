"""Images as documents: their bytes in the order row, column, colour, all images of one shape."""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.io import open_path
from input_pipeline.sources.base import BadRecord, Document, Span, hash_to_unit
from input_pipeline.sources.records import value_at

Shape = tuple[int, int, int]  # rows, columns, colours


def file_documents(span: Span, shape: Shape) -> Iterator[Document | BadRecord]:
    """The image in a file."""
    pillow()  # its absence is no fault of the file
    with open_path(span.path).open("rb") as file:
        try:
            document = _document(hash_to_unit(os.fsencode(span.name)), decode(file, "it"), shape, "it")
        except DataError as error:
            document = BadRecord(f"{span.path}:", str(error))
    yield document


def record_document(record: object, field: str, where: str, shape: Shape) -> Document:
    """The image at `field` of a record: a uint8 array [rows, columns, colours], or the bytes of an image file."""
    value = value_at(record, field, object)
    pixels = decode(io.BytesIO(value), where) if isinstance(value, bytes) else np.asarray(value)
    return _document(hash_to_unit(pixels.tobytes()), pixels, shape, where)


def _document(place: float, pixels: np.ndarray, shape: Shape, where: str) -> Document:
    if pixels.dtype != np.uint8 or pixels.shape != shape:
        raise DataError(f"data.image={shape}: {where} is {pixels.dtype} {pixels.shape}. Resize or convert it.")
    # Bytes in memory are in the order row, column, colour.
    return Document(place, ((pixels.tobytes(),),))


def decode(file: str | BinaryIO, where: str) -> np.ndarray:
    """Pixels of an image file, uint8 [rows, columns, colours]; `where` names it in errors."""
    library = pillow()
    try:
        with library.open(file) as image:
            # Palette images hold indices; convert() looks up their colours.
            pixels = np.asarray(image.convert() if image.mode == "P" else image)
    except Exception as error:  # Pillow's readers raise many types for a broken file
        raise DataError(f"{where}: not a readable image ({error}). Repair or remove it.") from error
    return pixels[..., None] if pixels.ndim == 2 else pixels


def write_png(path: Path, pixels: np.ndarray) -> None:
    """Writes pixels, uint8 [rows, columns, colours], as a PNG file."""
    pillow().fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(path, format="PNG")


def pillow():
    """Pillow's module `Image`."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError("data.image needs the package Pillow. Run pip install -e '.[images]'.") from None
    return Image

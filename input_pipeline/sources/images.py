"""Images as documents: their bytes in the order row, column, colour, all images of one shape."""

import io
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from input_pipeline.away import naming, passes
from input_pipeline.errors import DataError
from input_pipeline.remote import RemoteError
from input_pipeline.sources.readers import Document, Span, place, raw_bytes
from input_pipeline.sources.records import value_at

MODES = ("L", "LA", "RGB", "RGBA")  # Pillow's names for bytes of 1 to 4 colours
EXAMPLE = "(32, 32, 3)"

Shape = tuple[int, int, int]  # rows, columns, colours


def check(data: Mapping, tokenizer: Mapping) -> None:
    """Raises DataError unless the rest of the config's `data` and its `tokenizer` go with data.image."""
    shape = data["image"]
    if not shape:
        return
    if tokenizer["kind"] != "bytes":
        raise DataError(
            f"data.image = {shape} makes documents of raw bytes, which tokenizer.kind = {tokenizer['kind']} does not "
            "take; set it to bytes"
        )
    if data["layout"] == "document" and data["length"] != math.prod(shape):
        raise DataError(
            f"data.length = {data['length']}, but an image of data.image = {shape} has {math.prod(shape)} bytes and "
            f"data.layout = document puts one in a row; set data.length to {math.prod(shape)}"
        )


def file_documents(span: Span, shape: Shape) -> Iterator[Document]:
    """The image of a file."""
    with naming(span.path), raw_bytes(span.path) as file:
        pixels = decoded(file, span.path)
    yield _document(place(os.fsencode(span.name)), pixels, shape, span.path)


def record_document(record: object, field: str, where: str, shape: Shape) -> Document:
    """The image at `field` of a record: a uint8 array [rows, columns, colours], or the bytes of an image file."""
    value = value_at(record, field, where)
    if isinstance(value, bytes):
        value = decoded(io.BytesIO(value), where)
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise DataError(f"{where} holds {kind} at '{field}', not an image of bytes; name another: ?field=NAME")
    return _document(place(value.tobytes()), value, shape, where)


def _document(place: float, pixels: np.ndarray, shape: Shape, where: str) -> Document:
    if pixels.shape != shape:
        raise DataError(
            f"{where} is an image of the wrong size: its rows, columns and colours are {pixels.shape}, but data.image "
            f"is {shape}; crop, resize or convert it, leave it out, or change data.image"
        )
    return Document(place, ((pixels.tobytes(),),))


def decoded(file: str | BinaryIO, where: str) -> np.ndarray:
    """Pixels of an image file, uint8 [rows, columns, colours]; `where` names it in errors."""
    library = pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", library.DecompressionBombWarning)  # from twice that on it is an error
            image = library.open(file)
        with image:
            if image.mode == "P":  # numbers of colours in a table
                image = image.convert()
            mode, pixels = image.mode, np.asarray(image)
    except Exception as error:  # Pillow's readers raise whatever they stumble over in a broken file
        if isinstance(error, MemoryError | RemoteError) or passes(error):
            raise
        raise DataError(f"{where} cannot be read as an image ({error}); repair it or leave it out") from None
    if mode not in MODES:
        raise DataError(
            f"{where} is an image of mode '{mode}', neither grey nor RGB in 8 bits a colour; convert it to one of: "
            f"{', '.join(MODES)}"
        )
    return pixels[..., None] if pixels.ndim == 2 else pixels


def write_png(path: Path, pixels: np.ndarray) -> None:
    """Writes pixels, uint8 [rows, columns, colours], as a PNG file."""
    pillow().fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(path, format="PNG")


def pillow():
    """Pillow's module `Image`."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError("images need the package Pillow; in the clone, pip install -e '.[images]'") from None
    return Image

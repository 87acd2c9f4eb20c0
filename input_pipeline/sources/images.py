"""Images as documents: their bytes in the order row, column, colour, all images of one shape."""

import io
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.io import open_path
from input_pipeline.sources.base import Document, Span, hash_to_unit
from input_pipeline.sources.jsonl import value_at

MODES = ("L", "LA", "RGB", "RGBA")  # Pillow's names for 1 to 4 colours of 8 bits
EXAMPLE = "(32, 32, 3)"

Shape = tuple[int, int, int]  # rows, columns, colours


def check(data: Mapping, tokenizer: Mapping) -> None:
    """Raises DataError unless the rest of the config's `data` and its `tokenizer` fit data.image."""
    shape = data["image"]
    if not shape:
        return
    if tokenizer["kind"] != "bytes":
        raise DataError(f"tokenizer.kind={tokenizer['kind']} does not read images (data.image={shape}). Set bytes.")
    if data["layout"] == "document" and data["length"] != math.prod(shape):
        raise DataError(
            f"data.length={data['length']}: an image of data.image={shape} has {math.prod(shape)} bytes. "
            f"Set data.length={math.prod(shape)}."
        )


def file_documents(span: Span, shape: Shape) -> Iterator[Document]:
    """The image in a file."""
    with open_path(span.path).open("rb") as file:
        pixels = decode(file, span.path)
    yield _document(hash_to_unit(os.fsencode(span.name)), pixels, shape, span.path)


def record_document(record: object, field: str, where: str, shape: Shape) -> Document:
    """The image at `field` of a record: a uint8 array [rows, columns, colours], or the bytes of an image file."""
    value = value_at(record, field, where)
    if isinstance(value, bytes):
        value = decode(io.BytesIO(value), where)
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise DataError(f"{where}: '{field}' is {kind}, not an image of bytes. Choose another with ?field=NAME.")
    return _document(hash_to_unit(value.tobytes()), value, shape, where)


def _document(place: float, pixels: np.ndarray, shape: Shape, where: str) -> Document:
    if pixels.shape != shape:
        raise DataError(f"data.image={shape}: {where} is {pixels.shape}. Resize or convert it, or change data.image.")
    return Document(place, ((pixels.tobytes(),),))


def decode(file: str | BinaryIO, where: str) -> np.ndarray:
    """Pixels of an image file, uint8 [rows, columns, colours]; `where` names it in errors."""
    library = pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", library.DecompressionBombWarning)  # from twice that size it is an error
            image = library.open(file)
        with image:
            if image.mode == "P":  # indices into a palette
                image = image.convert()
            mode, pixels = image.mode, np.asarray(image)
    except Exception as error:  # Pillow's readers raise many types for a broken file
        if isinstance(error, MemoryError) or getattr(error, "errno", None):  # the machine's fault, not the file's
            raise
        raise DataError(f"{where} cannot be read as an image ({error}). Repair it or leave it out.") from error
    if mode not in MODES:
        raise DataError(f"{where} is an image of mode '{mode}'. Convert it to one of: {', '.join(MODES)}.")
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

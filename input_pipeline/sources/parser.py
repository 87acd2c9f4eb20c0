"""Sources from the config's text: `stdlib`, `text:GLOB`, `jsonl:GLOB?field=text`, `parallel:FILE?fields=en,de`,
`tfds:NAME?split=train`, `images:GLOB`, joined by ` + `.
"""

import dataclasses
import os
import re
from collections.abc import Sequence

from input_pipeline.errors import DataError
from input_pipeline.io import SCHEMES
from input_pipeline.sources import images
from input_pipeline.sources.base import File, Source
from input_pipeline.sources.glob import Files
from input_pipeline.sources.parallel import Parallel
from input_pipeline.sources.text import StandardLibrary
from input_pipeline.sources.tfds import TensorFlowDataset

KINDS = {  # constructor and options
    "stdlib": (StandardLibrary.make, ()),
    "text": (Files.text, ("document", "bytes", "line_ends", "code", "language")),
    "jsonl": (Files.json, ("field", "fields", "code", "language")),
    "parallel": (Parallel.make, ("fields",)),
    "images": (Files.images, ()),
    "tfds": (TensorFlowDataset.make, ("split", "field", "fields", "data_dir", "code", "language")),
}
IMAGES = ("images", "tfds")  # kinds that can read images
EXAMPLES = {
    "stdlib": "stdlib alone",
    "text": "text:GLOB, for example text:/books/*.txt",
    "jsonl": "jsonl:GLOB?field=text",
    "parallel": "parallel:FILE?fields=NAME,NAME, with {} in FILE where their names differ",
    "images": "images:GLOB, for example images:/photos/**/*.png",
    "tfds": "tfds:NAME?split=train, or tfds:FOLDER?split=train",
}
TABLES = ("csv", "tsv", "parquet")  # formats to be converted first
LINES = ("json", "jsonl")  # formats with a record a line


def parse(text: str, key: str, image: Sequence[int] = ()) -> list[Source]:
    """The sources of the value `text` of the config key (or flag) `key`.

    They hold images if `image` gives their shape, [rows, columns, colours], else text. Errors: DataError.
    """
    specs = [spec.strip() for spec in text.split(" + ")]
    if not all(specs):
        raise DataError(f"{key}='{text}' has an empty source. Write sources joined by ' + ', for example stdlib.")
    kinds = "|".join(f"{kind}(?={'[?]|$' if kind == 'stdlib' else '[:?]'})" for kind in KINDS)  # fields=label,text
    for spec in specs:
        parts = re.split(rf"\s*[+,]\s*(?={kinds})", spec)
        if len(parts) > 1:
            raise DataError(f"{key}='{text}': join sources by ' + ', with spaces: {' + '.join(parts)}.")
    if len(set(specs)) < len(specs):
        raise DataError(f"{key}='{text}' names a source twice. Name it once and set data.weights.")
    return [_parse_one(spec, key, tuple(image)) for spec in specs]


def _parse_one(spec: str, key: str, image: tuple[int, ...]) -> Source:
    kind, _, rest = spec.partition(":")
    if kind not in KINDS:
        raise _unknown_kind(spec, key)
    is_flag = key.startswith("--")  # a flag's text is for a run whose data.image is fixed
    if kind == "images" and not image:
        remedy = f"Write {EXAMPLES['text']}." if is_flag else f"Set data.image, such as {images.EXAMPLE}."
        raise DataError(f"{key}='{spec}' reads images, but data.image is empty. {remedy}")
    if image and kind not in IMAGES:
        raise DataError(f"{key}='{spec}' reads text, but data.image={image}. Write {EXAMPLES['images']}.")
    make, allowed = KINDS[kind]
    match = re.search(r"\?(\w+=.*)$", rest)
    path, query = (rest[: match.start()], match[1]) if match else (rest, "")
    pairs = [option.partition("=")[::2] for option in query.split("&")] if query else []
    options = dict(pairs)
    for name in options:
        if name not in allowed or len(options) < len(pairs):
            choices = ", ".join(allowed) or "none"
            raise DataError(f"{key}='{spec}': unknown or repeated option '{name}'. {kind} takes: {choices}.")
    if bool(path) == (kind == "stdlib"):
        raise DataError(f"{key}='{spec}' is incomplete. Write {EXAMPLES[kind]}.")
    marks = {name: options.pop(name) for name in ("code", "language") if name in options}
    source = make(spec, path, options, image) if kind in IMAGES else make(spec, path, options)
    return dataclasses.replace(source, **marks) if marks else source


def _unknown_kind(spec: str, key: str) -> DataError:
    kind, path = spec.partition(":")[0], os.path.expanduser(spec.partition("?")[0])
    is_path = ":" not in spec or kind in SCHEMES
    table = _suffix(path) if is_path else kind.lower()
    if table in TABLES:
        return DataError(f"{key}='{spec}': {table.upper()} is not read. Convert it as docs/coming_from.md shows.")
    known = path.startswith(("/", "./", "../")) or _suffix(path) in ("txt", *LINES) or os.path.exists(path)
    if kind in SCHEMES or (is_path and known):
        kind = "jsonl" if ".json" in os.path.basename(path).lower() else "text"
        example = f"text:{path.rstrip('/')}/**/*" if os.path.isdir(path) else f"{kind}:{spec}"
        return DataError(f"{key}='{spec}' is a path without the kind of its source. Write {example}.")
    return DataError(f"{key}='{spec}': unknown source kind '{kind}'. Choose one of: {', '.join(KINDS)}.")


def format_hint(source: Source, files: Sequence[File]) -> str:
    """A hint for files that are read as plain text though their names say that they have fields; else empty."""
    suffixes = {_suffix(file.name) for file in files} if source.spec.startswith("text:") else set()
    if table := next((kind for kind in TABLES if kind in suffixes), ""):
        return f"{source.spec} reads .{table} as plain text; docs/coming_from.md shows how to read its fields"
    if line := next((kind for kind in LINES if kind in suffixes), ""):
        return f"{source.spec} reads .{line} as plain text; jsonl:GLOB?field=text reads a field of each line"
    return ""


def _suffix(path: str) -> str:
    """The format of a file by its name, compressed or not: txt, csv; empty if it has none."""
    return os.path.splitext(path.lower().removesuffix(".gz").removesuffix(".zst"))[1].lstrip(".")

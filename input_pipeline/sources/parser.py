"""Sources from the config's text: `stdlib`, `text:GLOB`, `jsonl:GLOB?field=text`, `parallel:FILE?fields=en,de`,
`parquet:GLOB`, `arrow:GLOB`, `csv:GLOB`, `tsv:GLOB`, `conll:GLOB`, `conllu:GLOB`, `squad:GLOB`,
`tfds:NAME?split=train`, `images:GLOB`, joined by ` + `.
"""

import dataclasses
import difflib
import functools
import os
import re
from collections.abc import Mapping, Sequence

from input_pipeline.errors import DataError
from input_pipeline.sources.base import Source
from input_pipeline.sources.glob import Files
from input_pipeline.sources.records import Parallel
from input_pipeline.sources.text import StandardLibrary
from input_pipeline.sources.tfds import TensorFlowDataset

EXAMPLES = ("examples", "packed_examples")  # layouts of whole records, one a row or several
FIELDS = ("field", "fields", "code", "language")
TABLE, CSV = (*FIELDS, "labels"), (*FIELDS, "quotes", "columns")
CONLL = (*FIELDS, "columns", "prefix")
KINDS = {  # constructor, options, and an example
    "stdlib": (StandardLibrary.make, (), "stdlib alone"),
    "text": (Files.text, ("document", "bytes", "line_ends", "code", "language"), "text:/books/*.txt"),
    "jsonl": (Files.json, FIELDS, "jsonl:GLOB?field=text"),
    "parquet": (Files.parquet, TABLE, "parquet:GLOB?field=text"),
    "arrow": (Files.arrow, TABLE, "arrow:GLOB?field=text, or arrow:FOLDER of datasets.save_to_disk"),
    "csv": (functools.partial(Files.csv, delimiter=","), CSV, "csv:GLOB?field=text"),
    "tsv": (functools.partial(Files.csv, delimiter="\t"), CSV, "tsv:GLOB?field=text"),
    "conll": (functools.partial(Files.annotated, kind="conll"), CONLL, "conll:GLOB?columns=words,pos,chunk,tags"),
    "conllu": (functools.partial(Files.annotated, kind="conllu"), FIELDS, "conllu:GLOB"),
    "squad": (functools.partial(Files.annotated, kind="squad"), FIELDS, "squad:GLOB"),
    "parallel": (Parallel.make, ("fields",), "parallel:train.{}.gz?fields=en,de"),
    "images": (Files.images, (), "images:/photos/**/*.png"),
    "tfds": (
        TensorFlowDataset.make,
        ("split", "data_dir", *TABLE),
        "tfds:NAME?split=train, or tfds:FOLDER?split=train",
    ),
}
IMAGES = ("images", "tfds")  # kinds that can read images


def parse(text: str, key: str, image: Sequence[int] = (), whole: bool = False) -> list[Source]:
    """The sources of the value `text` of the config key (or flag) `key`.

    They hold images if `image` gives their shape, [rows, columns, colours], else text, or `whole` records. Errors:
    DataError.
    """
    specs = [spec.strip() for spec in text.split(" + ")]
    if len(set(specs)) < len(specs):
        raise DataError(f"{key}='{text}': repeats a source. Set data.weights instead.")
    return [_parse_one(spec, key, tuple(image), whole) for spec in specs]


def named_sources(given: Sequence[str], key: str) -> dict[str, str]:
    """Sources by name: of NAME:SOURCE, such as de:jsonl:de.jsonl, else the source itself. Errors: DataError."""
    found = {}
    for text in given:
        name, _, source = text.partition(":")
        named = name not in KINDS and source.partition(":")[0] in KINDS
        found[name if named else text] = source if named else text
    if len(found) < len(given):
        raise DataError(f"{key}={given[-1]}: a name is given twice. Name each source once.")
    return found


def parse_data(data: Mapping, text: str, key: str) -> list[Source]:
    """The sources of `text` as `data`, the section of the config, has them read. Errors: DataError."""
    whole = data["layout"] in EXAMPLES
    limit = data["bad_records"] if data["on_bad_record"] == "skip" else 0.0
    found = [dataclasses.replace(source, bad_records=limit) for source in parse(text, key, data["image"], whole)]
    return [source.replacing_surrogates() for source in found] if data["replace_surrogates"] else found


def _parse_one(spec: str, key: str, image: tuple[int, ...], whole: bool) -> Source:
    kind, _, rest = spec.partition(":")
    if kind not in KINDS:
        _check_dataset(spec, key)
        raise DataError(
            f"{key}='{spec}': unknown kind {kind}. Choose one of: {', '.join(KINDS)}. Write a path as text:PATH."
        )
    make, allowed, example = KINDS[kind]
    match = re.search(r"\?(\w+=.*)$", rest)  # other question marks are of the glob
    path, query = (rest[: match.start()], match[1]) if match else (rest, "")
    pairs = [option.partition("=")[::2] for option in query.split("&")] if query else []
    options = dict(pairs)
    if len(options) < len(pairs) or not set(options) <= set(allowed):
        choices = ", ".join(allowed) or "none"
        raise DataError(f"{key}='{spec}': unknown or repeated option. {kind} takes, each once: {choices}.")
    if bool(path) == (kind == "stdlib"):
        raise DataError(f"{key}='{spec}' is incomplete. Write {example}.")
    if (kind not in IMAGES) if image else (kind == "images"):
        raise DataError(f"{key}='{spec}' does not fit data.image={image}. Set (32, 32, 3) for images, () for text.")
    marks = {name: options.pop(name) for name in ("code", "language") if name in options}
    lines = kind == "parallel"  # whose fields name files
    if whole and not lines and ("field" not in allowed or {"field", "fields"} & options.keys()):
        raise DataError(f"{key}='{spec}': a task reads whole records. Write jsonl:, csv: or tfds: without field.")
    options |= {"field": ""} if whole else {}
    source = make(spec, path, options, image) if kind in IMAGES else make(spec, path, options)
    return dataclasses.replace(source, **marks) if marks else source


def _check_dataset(spec: str, key: str) -> None:
    """Raises DataError with the way to read a saved dataset, or a name of the Hugging Face Hub."""
    if os.path.isfile(os.path.join(spec, "state.json")) or os.path.isfile(os.path.join(spec, "dataset_dict.json")):
        raise DataError(f"{key}='{spec}': unknown kind of source. Write arrow:{spec}.")
    if not re.fullmatch(r"[\w-]+(/[\w.-]+)?", spec) or difflib.get_close_matches(spec, KINDS, cutoff=0.75):
        return
    folder = f"data/{spec.rpartition('/')[2]}"
    fetch = f"from datasets import load_dataset; load_dataset('{spec}', split='train').save_to_disk('{folder}')"
    raise DataError(
        f"{key}='{spec}': unknown kind of source. Download a dataset of the Hugging Face Hub first:\n"
        f'  pip install datasets && python -c "{fetch}"\n'
        f"  --config.{key}='arrow:{folder}?field=text'"
    )

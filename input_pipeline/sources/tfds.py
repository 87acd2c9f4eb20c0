"""TensorFlow Datasets in ArrayRecord files, read without TensorFlow: `tfds:NAME?split=train`."""

import functools
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.io import info
from input_pipeline.sources import images
from input_pipeline.sources.base import BadRecord, Document, File, Source, Span
from input_pipeline.sources.records import parse_fields, reader


@dataclass(frozen=True)
class TensorFlowDataset(Source):
    """A prepared TFDS dataset, by name or by folder."""

    name: str
    split: str
    field: str
    data_dir: str | None
    image: tuple[int, ...]  # shape of its images; () for text

    @classmethod
    def make(cls, spec: str, path: str, options: dict, image: tuple[int, ...]) -> "TensorFlowDataset":
        field = options.get("field", "image" if image else "text")
        own = path, options.get("split", "train"), field, options.get("data_dir"), image
        return cls(*own, spec=spec, fields=parse_fields(spec, options), records=True)

    @functools.cached_property
    def _builder(self):
        import tensorflow_datasets as tfds
        import tensorflow_datasets.image_classification
        import tensorflow_datasets.text  # TFDS registers the datasets of these folders only once they are imported

        try:
            if self.name.startswith(("/", ".", "~")):
                builder = tfds.builder_from_directory(Path(self.name).expanduser())
            else:
                builder = tfds.builder(self.name, data_dir=self.data_dir, try_gcs=False)
        except Exception as error:  # its own types, for a name, a config of a dataset, and a folder without metadata
            reason = str(error).strip().partition("\n")[0]
            raise DataError(f"'{self.spec}': TFDS has no dataset '{self.name}' ({reason}). Check it.") from error
        array_record = tfds.core.FileFormat.ARRAY_RECORD
        if not builder.info.splits or builder.info.file_format != array_record:
            folder = re.match(r"tensorflow_datasets\.(text|image_classification)(?=\.)", type(builder).__module__)
            options = f" --imports={folder[0]}" if folder else ""
            options += f" --data_dir={self.data_dir}" if self.data_dir else ""
            raise DataError(
                f"'{self.spec}' is not prepared as ArrayRecord in {builder.data_path}. Run "
                f"tfds build {self.name}{options} --file_format=array_record."
            )
        return builder

    @functools.cached_property
    def _records(self):
        """The split's records, by index, with image files not decoded."""
        import tensorflow_datasets as tfds

        features = self._builder.info.features
        # Decoding images would need TensorFlow.
        files = [name for name in features if isinstance(features[name], tfds.features.Image)]
        self._ranges()
        return self._builder.as_data_source(split=self.split, decoders=dict.fromkeys(files, tfds.decode.SkipDecoding()))

    def _ranges(self) -> list[tuple[str, int, int]]:
        """The ranges of the split: (name of a prepared split, first record, one after the last)."""
        import tensorflow_datasets as tfds

        splits = self._builder.info.splits
        try:
            parts = tfds.core.ReadInstruction.from_spec(self.split).to_absolute(splits)
        except ValueError as error:
            raise DataError(f"'{self.spec}': no split '{self.split}'. Choose from: {', '.join(splits)}.") from error
        sizes = {name: split.num_examples for name, split in splits.items()}
        return [(p.splitname, p.from_ or 0, sizes[p.splitname] if p.to is None else p.to) for p in parts]

    def shared(self, other: Source) -> str:
        """The first records that both read, from one dataset under whatever name."""
        if not isinstance(other, TensorFlowDataset):
            return ""
        try:
            folders = [os.path.realpath(source._builder.data_path) for source in (self, other)]
        except DataError:  # already tokenised, and deleted
            return super().shared(other)
        if folders[0] != folders[1]:
            return ""
        # Slices such as train[:80%] and train[70%:] overlap in records, though their specs differ.
        for (name, *mine), (others_name, *others) in itertools.product(self._ranges(), other._ranges()):
            start, end = max(mine[0], others[0]), min(mine[1], others[1])
            if name == others_name and start < end:
                return f"records {start} to {end - 1} of split {name} in {folders[0]}"
        return ""

    def __getstate__(self) -> dict:
        # Each process opens its own files.
        return {name: value for name, value in self.__dict__.items() if name not in ("_builder", "_records")}

    def files(self) -> list[File]:
        folder = Path(self._builder.data_path)
        return [File(path.name, *info(path)) for path in sorted(folder.iterdir()) if path.is_file()]

    def spans(self, target: int) -> Iterator[Span]:
        count, total = len(self._records), sum(file.size for file in self.files())
        # Sizes of records are unknown: bytes are divided evenly.
        step = max(1, count * target // max(total, 1))
        for start in range(0, count, step):
            end = min(start + step, count)
            yield Span(self.name, self.split, start, end, total * (end - start) // count)

    def documents(self, span: Span) -> Iterator[Document | BadRecord]:
        records, read = self._records, reader(self.field, self.fields)
        for index in range(span.start, span.end):
            try:
                if self.image:
                    document = images.record_document(records[index], self.field, "it", self.image)
                else:
                    document = read({name: _plain(value) for name, value in records[index].items()})
            except ValueError as error:
                document = BadRecord(f"'{self.spec}', record {index}:", f"{str(error).rstrip('.')}.")
            yield document


def _plain(value: object) -> object:
    """A value without NumPy's scalar types; of floats, the fewest digits that tell float32 values apart.

    TFDS gives float32 values as Python floats, which would print 0.2 as 0.20000000298023224. Whole numbers stay.
    """
    if type(value) is float and not (value.is_integer() and abs(value) < 1e16):
        # NumPy prints the shortest decimal that reads back as the same float32.
        return float(str(np.float32(value)))
    return value.item() if getattr(value, "shape", None) == () else value

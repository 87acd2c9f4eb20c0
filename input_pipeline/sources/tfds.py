"""TensorFlow Datasets in ArrayRecord files, read without TensorFlow: `tfds:NAME?split=train`."""

import contextlib
import functools
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.io import info
from input_pipeline.sources import images, jsonl
from input_pipeline.sources.base import Document, File, Source, Span, named_fields


@dataclass(frozen=True)
class TensorFlowDataset(Source):
    """A prepared TFDS dataset, by name or by folder."""

    spec: str
    name: str
    split: str
    field: str
    data_dir: str | None
    image: tuple[int, ...]  # shape of its images; () for text
    fields: tuple[str, ...] = ()
    code: str = ""
    language: str = ""
    records = True

    @classmethod
    def make(cls, spec: str, path: str, options: dict, image: tuple[int, ...]) -> "TensorFlowDataset":
        fields = named_fields(spec, options)
        if image and fields:
            raise DataError(f"'{spec}': an image is a single field. Write field=NAME.")
        field = options.get("field", "image" if image else "text")
        return cls(spec, path, options.get("split", "train"), field, options.get("data_dir"), image, fields)

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
        except (tfds.core.DatasetNotFoundError, ValueError) as error:  # ValueError: an unknown config of a dataset
            raise DataError(f"'{self.spec}': TFDS has no dataset '{self.name}'. Check it, or give a folder.") from error
        except tfds.core.dataset_info.DatasetInfoFileError as error:
            raise DataError(f"'{self.spec}': {self.name} has no dataset_info.json. Give another folder.") from error
        if not builder.info.splits:
            folder = re.match(r"tensorflow_datasets\.(text|image_classification)(?=\.)", type(builder).__module__)
            options = f" --imports={folder[0]}" if folder else ""
            options += f" --data_dir={self.data_dir}" if self.data_dir else ""
            raise DataError(
                f"'{self.spec}' is not prepared in {builder.data_path}. With TensorFlow installed, run "
                f"tfds build {self.name}{options} --file_format=array_record."
            )
        if builder.info.file_format != tfds.core.FileFormat.ARRAY_RECORD:
            raise DataError(
                f"'{self.spec}' is in {builder.info.file_format.value} files. Prepare it with "
                "--file_format=array_record."
            )
        return builder

    @functools.cached_property
    def _records(self):
        """The split's records, by index, with image files not decoded."""
        import tensorflow_datasets as tfds

        features = self._builder.info.features
        files = [name for name in features if isinstance(features[name], tfds.features.Image)]
        if self.field in files and not self.image:
            raise DataError(f"'{self.spec}': '{self.field}' is an image. Set data.image, such as {images.EXAMPLE}.")
        whole = {name: tfds.decode.SkipDecoding() for name in files}
        with self._known_splits():
            return self._builder.as_data_source(split=self.split, decoders=whole)

    def _ranges(self) -> list[tuple[str, int, int]]:
        """The ranges of the split: (name of a prepared split, first record, one after the last)."""
        import tensorflow_datasets as tfds

        splits = self._builder.info.splits
        with self._known_splits():
            parts = tfds.core.ReadInstruction.from_spec(self.split).to_absolute(splits)
        sizes = {name: split.num_examples for name, split in splits.items()}
        return [(p.splitname, p.from_ or 0, sizes[p.splitname] if p.to is None else p.to) for p in parts]

    @contextlib.contextmanager
    def _known_splits(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            choices = ", ".join(self._builder.info.splits)
            raise DataError(f"'{self.spec}' has no split '{self.split}'. Choose from: {choices}.") from error

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
        return {name: value for name, value in self.__dict__.items() if name not in ("_builder", "_records")}

    def files(self) -> list[File]:
        folder = Path(self._builder.data_path)
        return [File(path.name, *info(path)) for path in sorted(folder.iterdir()) if path.is_file()]

    def spans(self, target: int) -> Iterator[Span]:
        count, total = len(self._records), sum(file.size for file in self.files())
        step = max(1, count * target // max(total, 1))
        for start in range(0, count, step):
            end = min(start + step, count)
            yield Span(self.name, self.split, start, end, total * (end - start) // count)

    def documents(self, span: Span) -> Iterator[Document]:
        for index in range(span.start, span.end):
            record, where = self._records[index], f"'{self.spec}', record {index}"
            if self.image:
                yield images.record_document(record, self.field, where, self.image)
            elif self.fields:
                yield jsonl.fields_document(_shortest_floats(record), where, self.fields)
            else:
                yield jsonl.text_document(record, where, self.field)


def _shortest_floats(record: Mapping[str, object]) -> dict[str, object]:
    """A record whose float32 values have the fewest digits that tell them from their neighbours.

    TFDS gives them as Python floats, which would print 0.2 as 0.20000000298023224. Whole numbers stay.
    """

    def short(value: object) -> object:
        exact = type(value) is not float or (value.is_integer() and abs(value) < 1e16)
        return value if exact else float(str(np.float32(value)))

    return {name: short(value) for name, value in record.items()}

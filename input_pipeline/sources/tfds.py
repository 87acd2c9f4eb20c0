"""TensorFlow Datasets, in TFRecord or ArrayRecord files, read without TensorFlow: `tfds:NAME?split=train`."""

import functools
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.io import glob_store, info, is_remote, local_copy, open_path
from input_pipeline.sources import images
from input_pipeline.sources.base import BadRecord, Document, File, Source, Span
from input_pipeline.sources.records import Choice, Convert, name_class, shortest_float
from input_pipeline.sources.tfrecord import TFRecords


@functools.lru_cache(2)
def _open_records(path: str):
    """The records of a file, by number. A store's file is copied to this machine."""
    copy = local_copy(open_path(path))
    if ".tfrecord" in copy.name:
        return TFRecords(copy)
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    return ArrayRecordDataSource(str(copy))


@dataclass(frozen=True)
class TensorFlowDataset(Source):
    """A prepared TFDS dataset, by name or by folder."""

    name: str
    split: str
    choice: Choice
    data_dir: str | None
    image: tuple[int, ...]  # shape of its images; () for text

    @classmethod
    def make(cls, spec: str, path: str, options: dict, image: tuple[int, ...]) -> "TensorFlowDataset":
        choice = Choice.parse(spec, options, "image" if image else "text")
        own = path, options.get("split", "train"), choice, options.get("data_dir"), image
        return cls(*own, spec=spec, fields=choice.fields, records=True)

    @functools.cached_property
    def _builder(self):
        import tensorflow_datasets as tfds
        import tensorflow_datasets.image_classification
        import tensorflow_datasets.text  # TFDS registers the datasets of these folders only once they are imported

        for place in filter(is_remote, (self.name, self.data_dir)):
            open_path(place)  # raises without the package of the store, whose retries it sets
        try:
            if self.name.startswith(("/", ".", "~")) or is_remote(self.name):
                builder = tfds.builder_from_directory(open_path(os.path.expanduser(self.name)))
            else:
                builder = tfds.builder(self.name, data_dir=self.data_dir, try_gcs=False)
        except Exception as error:  # its own types, for a name, a config of a dataset, and a folder without metadata
            reason = str(error).strip().partition("\n")[0]
            raise DataError(f"'{self.spec}': TFDS has no dataset '{self.name}' ({reason}). Check it.") from error
        formats = tfds.core.FileFormat.ARRAY_RECORD, tfds.core.FileFormat.TFRECORD
        if not builder.info.splits or builder.info.file_format not in formats:
            folder = re.match(r"tensorflow_datasets\.(text|image_classification)(?=\.)", type(builder).__module__)
            options = f" --imports={folder[0]}" if folder else ""
            options += f" --data_dir={self.data_dir}" if self.data_dir else ""
            raise DataError(
                f"'{self.spec}' is not prepared in {builder.data_path}. Run tfds build {self.name}{options}."
            )
        return builder

    @functools.cached_property
    def _shards(self) -> list:
        """The split's files in order, each with the records to skip and to take."""
        self._ranges()
        return self._builder.info.splits[self.split].file_instructions

    def _examples(self, start: int, end: int) -> Iterator[bytes]:
        """Serialised records [start, end) of the split."""
        first = 0
        for shard in self._shards:
            for number in range(max(start - first, 0), min(end - first, shard.take)):
                yield _open_records(str(shard.filename))[shard.skip + number]
            first += shard.take

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
        return {name: value for name, value in self.__dict__.items() if name not in ("_builder", "_shards")}

    def files(self) -> list[File]:
        folder = open_path(str(self._builder.data_path))
        if is_remote(folder):
            found = glob_store(f"{folder}/*")
        else:
            found = {str(path): info(path) for path in sorted(folder.iterdir()) if path.is_file()}
        return [File(os.path.basename(path), *status) for path, status in found.items()]

    def spans(self, target: int) -> Iterator[Span]:
        count, total = sum(shard.take for shard in self._shards), sum(file.size for file in self.files())
        # Sizes of records are unknown: bytes are divided evenly.
        step = max(1, count * target // max(total, 1))
        for start in range(0, count, step):
            end = min(start + step, count)
            yield Span(self.name, self.split, start, end, total * (end - start) // count)

    def documents(self, span: Span) -> Iterator[Document | BadRecord]:
        import tensorflow_datasets as tfds

        features = self._builder.info.features
        # Decoding images would need TensorFlow.
        files = [name for name in features if isinstance(features[name], tfds.features.Image)]
        decoders = dict.fromkeys(files, tfds.decode.SkipDecoding())
        read = self.choice.reader(self._conversions())
        for index, example in enumerate(self._examples(span.start, span.end), start=span.start):
            record = features.deserialize_example_np(example, decoders=decoders)
            try:
                if self.image:
                    document = images.record_document(record, self.choice.field, "it", self.image)
                else:
                    document = read(record)
            except ValueError as error:
                document = BadRecord(f"'{self.spec}', record {index}:", f"{str(error).rstrip('.')}.")
            yield document

    def _conversions(self) -> dict[str, Convert]:
        """Functions for classes and float32 values among the chosen fields."""
        import tensorflow_datasets as tfds

        features, found = self._builder.info.features, {}
        for name in self.choice.names or features:
            feature = _feature_at(features, [name] if name in features else name.split("."))
            if isinstance(feature, tfds.features.ClassLabel) and self.choice.labels == "names":
                found[name] = functools.partial(name_class, names=feature.names)
            elif getattr(feature, "np_dtype", None) == np.float32:
                found[name] = shortest_float
        return found


def _feature_at(feature, steps: list[str]):
    """The feature at a path, which in TFDS has no step for a sequence; None if there is none."""
    import tensorflow_datasets as tfds

    for step in [*(step for step in steps if not step.isdecimal()), None]:
        while isinstance(feature, tfds.features.Sequence):
            feature = feature.feature
        if step is not None:
            known = isinstance(feature, tfds.features.FeaturesDict) and step in feature
            feature = feature[step] if known else None
    return feature

"""Datasets of TFDS in its default format, TFRecord, of labels and of nested features, read without TensorFlow."""

import sys

import numpy as np
import pytest
from tensorboardX.crc32c import crc32c
from tensorboardX.record_writer import RecordWriter, masked_crc32c

from input_pipeline.errors import DataError
from input_pipeline.io import open_path
from input_pipeline.sources import parser, tfrecord
from tests.object_store import UPLOADS

FORMATS = ("tfrecord", "array_record")
QUESTIONS = [
    {
        "id": f"q{n}",
        "question": f"Which is {n}?",
        "answers": {"text": [f"viér {n}", "it"][: 2 - n % 2], "answer_start": [n, 0][: 2 - n % 2]},
    }
    for n in range(40)
]


def write_records(cls, path, examples) -> None:
    """Writes TFRecord as tensorboardX does, in place of TensorFlow."""
    writer = RecordWriter(str(path))
    for _, example in examples:
        writer.write(example)
    writer.close()


@pytest.fixture(scope="session")  # TFDS registers a builder once
def data_dir(tmp_path_factory):
    """A folder for each format, with a dataset as GLUE's and one as SQuAD, in three files per split."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import file_adapters

    features = tfds.features

    class Sst(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("2.0.0")

        def _info(self):
            label = features.ClassLabel(names=["negative", "positive"])
            found = {"sentence": features.Text(), "label": label, "idx": np.int32, "score": np.float32}
            return tfds.core.DatasetInfo(builder=self, features=features.FeaturesDict(found))

        def _split_generators(self, download):
            return {"train": self._generate_examples(30, 2), "test": self._generate_examples(3, 0)}

        def _generate_examples(self, count, labels):
            for n in range(count):
                label = n % 2 if labels else -1
                yield n, {"sentence": f"a film {n}", "label": label, "idx": n, "score": n / 5}

    class Squad(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("3.0.0")

        def _info(self):
            answers = features.Sequence({"text": features.Text(), "answer_start": np.int32})
            found = {"id": features.Text(), "question": features.Text(), "answers": answers}
            return tfds.core.DatasetInfo(builder=self, features=features.FeaturesDict(found))

        def _split_generators(self, download):
            return {"train": ((row["id"], row) for row in QUESTIONS)}

        def _generate_examples(self):
            pass

    root = tmp_path_factory.mktemp("tfds")
    tfds.disable_progress_bar()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_adapters.TfRecordFileAdapter, "write_examples", classmethod(write_records))
        for name in FORMATS:
            config = tfds.download.DownloadConfig(num_shards=3)
            for builder in (Sst, Squad):
                made = builder(data_dir=root / name, file_format=name)
                made.download_and_prepare(download_config=config)
                assert len(list(made.data_path.glob(f"*train.{name}-*-of-00003"))) == 3
    return root


def read(spec: str, target: int = 1 << 30) -> list[tuple[str, ...]]:
    (source,) = parser.parse(spec, "data.train")
    return [
        tuple("".join(chunks) for chunks in document.texts)
        for span in source.spans(target)
        for document in source.good_documents(span)
    ]


@pytest.mark.parametrize("data_format", FORMATS)
def test_tfds_labels_and_nested_features(data_dir, data_format):
    sst, squad = (f"tfds:{name}?data_dir={data_dir / data_format}" for name in ("sst", "squad"))
    found = read(f"{sst}&fields=sentence,label,score")
    rows = ((f"a film {n}", ("negative", "positive")[n % 2], str(n / 5)) for n in range(30))
    assert sorted(found) == sorted(rows)
    assert read(f"{sst}&fields=sentence,label,score", 100) == found  # in several spans
    assert read(f"{sst}&split=train[3:17]&fields=sentence,label,score") == found[3:17]
    with pytest.raises(DataError, match="labels=ids"):
        read(f"{sst}&field=label&split=test")
    answers = [
        (row["question"], row["answers"]["text"][0], str(row["answers"]["answer_start"][0])) for row in QUESTIONS
    ]
    assert sorted(read(f"{squad}&fields=question,answers.text.0,answers.answer_start.0")) == sorted(answers)
    with pytest.raises(DataError, match=r"answers\.text\.1.*Its fields: answers\.answer_start\.0, answers\.text\.0"):
        read(f"{squad}&field=answers.text.1")
    assert "tensorflow" not in sys.modules


def test_tfds_same_in_both_formats(data_dir, prepare, tmp_path):
    corpora = [
        prepare(f"tfds:squad?data_dir={data_dir / name}&field=question", holdout=0.2, root=tmp_path / name)
        for name in FORMATS
    ]
    batches = [next(corpus.batches(seed=1, batch_size=8, workers=0, prefetch=1)) for corpus in corpora]
    assert corpora[0].summary() == corpora[1].summary()
    assert all(np.array_equal(batches[0][name], batches[1][name]) for name in batches[0])


@pytest.mark.parametrize("query", ["sst&fields=sentence,label", "squad&fields=question,answers.text.0"])
def test_tfds_tasks(data_dir, prepare, query):
    name, fields = query.split("&")
    train = f"tfds:{name}?data_dir={data_dir}/tfrecord&{fields}"
    corpus = prepare(train, layout="texts", length=48, holdout=0.1, objective={"kind": "translation"})
    batch = next(corpus.batches(seed=1, batch_size=4, workers=0, prefetch=1))
    written = bytes(batch["targets"][batch["targets"] < 256].astype(np.uint8)).decode()
    assert any(word in written for word in ("negative", "positive")) if name == "sst" else "viér" in written


def test_crc32c():
    """Known values of RFC 3720, appendix B.4, and those of tensorboardX."""
    for data, known in ((b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)):
        assert tfrecord.crc32c(np.frombuffer(data, np.uint8)) == known
    draw = np.random.default_rng(0)
    for size in (0, 1, 3, 4, 5, 2047, 2048, 2049, 2051, 9000):
        rows = np.frombuffer(draw.bytes(2 * size), np.uint8).reshape(2, size)
        assert tfrecord.crc32c(rows).tolist() == [crc32c(row.tobytes()) for row in rows]
        assert tfrecord.masked_crc32c(rows).tolist() == [masked_crc32c(row.tobytes()) for row in rows]


@pytest.mark.parametrize("place", ["length", "data", "checksum", "end"])
def test_tfrecord_damaged(tmp_path, place):
    path = tmp_path / "a.tfrecord"
    write_records(None, path, [(n, b"x" * 3000) for n in range(3)])
    whole, size = bytearray(path.read_bytes()), 3016
    assert [len(tfrecord.TFRecords(path)[n]) for n in range(3)] == [3000] * 3
    at = size + {"length": 0, "data": 2000, "checksum": size - 1, "end": 0}[place]
    whole[at] ^= 1
    path.write_bytes(whole[:at] + b"x" if place == "end" else whole)
    with pytest.raises(DataError, match=r"record [12]"):
        records = tfrecord.TFRecords(path)
        assert records[0] == b"x" * 3000
        for number in range(3):
            records[number]


@UPLOADS
@pytest.mark.parametrize("data_format", FORMATS)
def test_tfds_in_a_store(data_dir, bucket, data_format):
    for path in (data_dir / data_format / "sst").rglob("*.*"):
        if path.is_file():
            (open_path(bucket) / str(path.relative_to(data_dir / data_format))).write_bytes(path.read_bytes())
    here = read(f"tfds:sst?data_dir={data_dir / data_format}&field=sentence", 100)
    assert read(f"tfds:sst?data_dir={bucket}&field=sentence", 100) == here
    assert read(f"tfds:{bucket}/sst/2.0.0?field=sentence", 100) == here
    with pytest.raises(DataError, match="no_such"):
        read(f"tfds:no_such?data_dir={bucket}")

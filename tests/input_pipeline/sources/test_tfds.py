"""TFDS for real: a small set built by its own builder, read back without TensorFlow."""

import pickle
import shutil
import sys

import numpy as np
import pytest

from input_pipeline import validate
from input_pipeline.errors import DataError
from input_pipeline.sources import parser

WHOLE = 123456792.0  # which 32 bits hold, and which fewer digits tell from the next


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A prepared set of 50 training and 5 validation documents, in ArrayRecord files."""
    import tensorflow_datasets as tfds

    class Tiny(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {"text": tfds.features.Text(), "label": tfds.features.Scalar(np.int64)}
            features["score"] = tfds.features.Scalar(np.float32)
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, download):
            return {"train": self._generate_examples(50), "validation": self._generate_examples(5)}

        def _generate_examples(self, count):
            for n in range(count):
                yield n, {"text": f"Dökument {n} of {count}", "label": n, "score": n / 5 if n else WHOLE}

    data_dir = tmp_path_factory.mktemp("tfds")
    builder = Tiny(data_dir=data_dir, file_format="array_record")
    tfds.disable_progress_bar()
    builder.download_and_prepare()
    return builder.data_path


def lines(data: bytes) -> list[str]:
    """The documents of a split, which all begin with the same letter."""
    return sorted("D" + text for text in data.decode().split("D")[1:])


def test_tfds_folder(prepare, folder):
    corpus = prepare(f"tfds:{folder}?split=train", validation=f"tfds:{folder}?split=validation")
    assert lines(corpus.raw_bytes("train")) == sorted(f"Dökument {n} of 50" for n in range(50))
    assert lines(corpus.raw_bytes("validation")) == sorted(f"Dökument {n} of 5" for n in range(5))
    assert [split["documents"] for split in corpus.summary()] == [50, 5]
    assert "tensorflow" not in sys.modules
    (source,) = parser.parse(f"tfds:{folder}", "data.train")
    (span,) = source.spans(1 << 20)
    copy = pickle.loads(pickle.dumps(source))  # as for a worker process
    assert list(copy.documents(span)) == list(source.documents(span))


def test_tfds_fields(prepare, folder, monkeypatch):
    monkeypatch.setattr(validate, "check_sources", lambda *given: None)  # whatever task reads them
    stream = prepare(f"tfds:{folder}?split=train[:5]&fields=label,text,score").stream("train")
    for number in range(5):
        found = {}
        for name, (start, length) in stream.fields(number).items():
            ids = np.zeros(length, np.uint8)
            stream.copy(start, ids)
            found[name] = bytes(ids).decode()
        assert found["text"] == f"Dökument {found['label']} of 50"
        label = int(found["label"])
        assert found["score"] == str(label / 5 if label else WHOLE)  # a fifth of 32 bits has other digits as a float


def test_tfds_bad_records(prepare, folder):
    with pytest.raises(DataError, match=r"50 of 50 records.*record 0.*'label'"):
        prepare(f"tfds:{folder}?split=train&field=label", on_bad_record="skip")


def test_tfds_name_and_slice(prepare, folder):
    data_dir = folder.parent.parent
    corpus = prepare(f"tfds:tiny?split=train[:20%]&data_dir={data_dir}")
    assert corpus.summary()[0]["documents"] == 10


@pytest.mark.parametrize(
    ("train", "scored"),
    [
        ("{folder}", "{folder}?split=train[:20%]"),
        ("{folder}?split=train[:80%]", "{folder}?split=train[70%:]"),
        ("tiny?data_dir={data_dir}", "{folder}?split=train[:1]"),
    ],
)
def test_tfds_overlapping_splits(prepare, folder, train, scored):
    train, scored = (f"tfds:{spec.format(folder=folder, data_dir=folder.parent.parent)}" for spec in (train, scored))
    with pytest.raises(DataError):
        prepare(train, validation=scored)


def test_tfds_deleted_after_tokenising(prepare, folder, tmp_path):
    copy = tmp_path / "tiny/1.0.0"
    shutil.copytree(folder, copy)
    splits = {"train": f"tfds:{copy}", "validation": f"tfds:{copy}?split=validation"}
    before = prepare(**splits).summary()
    shutil.rmtree(copy)
    assert prepare(**splits).summary() == before


def test_tfds_holdout(prepare, folder):
    corpus = prepare(f"tfds:{folder}", holdout=0.3)
    train, held = lines(corpus.raw_bytes("train")), lines(corpus.raw_bytes("validation"))
    assert len(train) + len(held) == 50 and 5 < len(held) < 30 and not set(train) & set(held)


@pytest.mark.parametrize(
    "spec",
    [
        "tfds:no_such_set",
        "tfds:/no/such/folder",
        "tfds:{folder}?split=tain",
        "tfds:{folder}?field=label",
    ],
)
def test_tfds_mistakes(prepare, folder, spec):
    with pytest.raises(DataError):
        prepare(spec.format(folder=folder))

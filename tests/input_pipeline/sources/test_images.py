"""Images through files and through TFDS: pixels survive, a row is an image, and what is no such image is named."""

import sys

import numpy as np
import pytest
from PIL import Image

from input_pipeline.errors import DataError
from input_pipeline.sources import images

SHAPE = (4, 6, 3)
BYTES = 72
IMAGE = {"image": SHAPE, "layout": "document", "length": BYTES}


def pixels(count: int, shape=SHAPE, seed: int = 0) -> np.ndarray:
    """Random images, uint8 [count, rows, columns, colours]."""
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


@pytest.fixture
def folder(tmp_path):
    """`folder(images)`: writes them as PNG files, 000.png and on, and gives the source that reads them."""

    def folder(array: np.ndarray, name: str = "png") -> str:
        (tmp_path / name).mkdir()
        for number, image in enumerate(array):
            images.write_png(tmp_path / name / f"{number:03d}.png", image)
        return f"images:{tmp_path}/{name}/*.png"

    return folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A TFDS set of 9 images as PNG files and as plain arrays, in ArrayRecord files, in order."""
    import tensorflow_datasets as tfds

    class Pictures(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {
                "image": tfds.features.Image(shape=(None, None, 3)),
                "array": tfds.features.Tensor(shape=SHAPE, dtype=np.uint8),
                "wide": tfds.features.Tensor(shape=SHAPE, dtype=np.uint16),
                "text": tfds.features.Text(),
            }
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True
            )

        def _split_generators(self, download):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for number, array in enumerate(pixels(9)):
                image = Image.fromarray(array)  # an array would be encoded by TensorFlow
                yield number, {"image": image, "array": array, "wide": array.astype(np.uint16), "text": f"{number}"}

    builder = Pictures(data_dir=tmp_path_factory.mktemp("tfds"), file_format="array_record")
    tfds.disable_progress_bar()
    builder.download_and_prepare()
    return builder.data_path


def rows(corpus, count: int) -> np.ndarray:
    """The targets of the first `count` rows, in order."""
    iterator = corpus.batches(seed=0, batch_size=count, workers=0, prefetch=1)
    try:
        return next(iterator)["targets"]
    finally:
        iterator.close()


def test_images_row_order(prepare, folder):
    array = pixels(9)
    corpus = prepare(folder(array), shuffle=False, **IMAGE)
    found = rows(corpus, 9)
    assert np.array_equal(found.reshape(9, *SHAPE), array)
    assert found[2, 7 * 3 + 1] == array[2, 1, 1, 1]  # row 1 of 6 columns, column 1, green
    assert corpus.summary()[0] == {
        "split": "train",
        "documents": 9,
        "tokens": 9 * (1 + BYTES),
        "bytes": 9 * BYTES,
        "words": 0,
        "bytes_per_token": BYTES / (1 + BYTES),
    }
    assert corpus.raw_bytes("train") == array.tobytes()
    assert np.array_equal(corpus.first_documents("train", 4), array[:4].reshape(4, -1))


def test_images_from_tfds_and_files(prepare, folder, prepared):
    from_files = prepare(folder(pixels(9)), **IMAGE)
    for field in ("", "&field=array"):
        from_tfds = prepare(f"tfds:{prepared}?split=train{field}", **IMAGE)
        assert np.array_equal(rows(from_tfds, 20), rows(from_files, 20))
    assert "tensorflow" not in sys.modules


def test_images_scored_once(prepare, folder):
    array = pixels(7)
    corpus = prepare(folder(array[:2]), validation=folder(array, "other"), **IMAGE)
    scored = corpus.evaluation("validation", length=BYTES, stride=0, batch_size=3)
    batches = list(scored.batches())
    targets = np.concatenate([batch["targets"][batch["weights"] > 0] for batch in batches])
    assert targets.astype(np.uint8).tobytes() == array.tobytes()
    assert (scored.tokens, scored.bytes) == (7 * BYTES, 7 * BYTES)
    part = corpus.evaluation("validation", length=BYTES, stride=0, batch_size=3, limit=2)
    assert (part.tokens, part.bytes) == (6 * BYTES, 6 * BYTES)


def test_images_colours(prepare, folder):
    array = pixels(3, (5, 5, 4))
    corpus = prepare(folder(array), image=(5, 5, 4), layout="document", length=100, shuffle=False)
    assert np.array_equal(rows(corpus, 3), array.reshape(3, -1))


def test_images_changed_file(prepare, tmp_path):
    first, second = pixels(2)
    path = tmp_path / "image.bmp"  # of any content, this format's files have one size
    Image.fromarray(first).save(path)
    prepare(f"images:{path}", **IMAGE)
    Image.fromarray(second).save(path)
    with pytest.raises(DataError):
        prepare(f"images:{path}", **IMAGE)


def test_images_unreadable_file(prepare, write):
    with pytest.raises(DataError):
        prepare(f"images:{write('a.png', 'no image')}", **IMAGE)


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ("?field=text", {}),
        ("?field=wide", {}),
        ("", {"image": (4, 4, 3), "length": 48}),
        ("?field=image", {"image": ()}),
    ],
)
def test_images_unusable_record(prepare, prepared, options, change):
    with pytest.raises(DataError):
        prepare(f"tfds:{prepared}{options}", **IMAGE | change)

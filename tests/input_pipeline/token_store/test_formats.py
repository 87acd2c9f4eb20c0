"""Token stores of other versions: what is older is made again, and what is newer left alone."""

import json
import shutil
from pathlib import Path

import pytest

from input_pipeline.errors import DataError


@pytest.fixture
def of_format(prepare, words, tmp_path):
    """Makes a store and changes the number of its format: (its text, its folder)."""

    def make(number):
        source = words(3)
        prepare(source)
        (manifest,) = (tmp_path / "run/data").glob("*/store.json")
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": number}))
        return source, manifest.parent

    return make


def test_a_store_of_an_earlier_format_is_made_again(prepare, of_format, tmp_path):
    source, folder = of_format(2)
    (folder / "0.of-another-name").touch()
    said = []
    corpus = prepare(source, said=said)
    assert [line for line in said if "format" in line] == [
        f"the token store of {source} is of an earlier format: tokenising again"
    ]
    assert corpus.stream("train").tokens and not (folder / "0.of-another-name").exists()
    assert json.loads((folder / "store.json").read_text())["format"] == 3


def test_a_store_of_an_earlier_format_whose_text_is_gone_is_left(prepare, of_format):
    source, folder = of_format(2)
    shutil.rmtree(Path(source.removeprefix("text:")).parent)
    with pytest.raises(DataError, match=r"earlier format .* its text is not there \(.*matches no file.*bring the text"):
        prepare(source)
    assert (folder / "store.json").exists()


def test_a_store_of_a_later_format(prepare, of_format):
    source, folder = of_format(4)
    with pytest.raises(DataError, match=r"is of format 4, and this version reads 3; use the version that made it"):
        prepare(source)
    assert (folder / "store.json").exists()

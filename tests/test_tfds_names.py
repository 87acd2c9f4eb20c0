"""Every set that README, docs and recipes name is one that TFDS knows."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "configs").glob("*.py"))]
NAMED = re.compile(r"(?:tfds:|tfds build )([a-z]\w*)(?:/([\w.]+))?")
NAMES = sorted({match for page in PAGES for match in NAMED.findall(page.read_text())})


def test_names_are_found():
    assert {("lm1b", ""), ("c4", "webtextlike"), ("downsampled_imagenet", "64x64")} <= set(NAMES)


@pytest.mark.parametrize(("name", "config"), NAMES)
def test_tfds_knows_it(name, config):
    import tensorflow_datasets as tfds
    import tensorflow_datasets.text  # as input_pipeline.sources does

    assert not config or config in tfds.builder_cls(name).builder_configs
    assert tfds.builder_cls(name)

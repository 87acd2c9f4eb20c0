"""Every set that README, docs and recipes name is one that TFDS knows."""

import re
from pathlib import Path

import pytest

from input_pipeline.requirements import SETS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "configs").glob("*.py"))]
NAMED = re.compile(r"(?:tfds:|tfds build )([a-z]\w*)(?:/([\w.]+))?")
NAMES = sorted({match for page in PAGES for match in NAMED.findall(page.read_text())})


def test_names_are_found():
    assert {("lm1b", ""), ("c4", "webtextlike"), ("downsampled_imagenet", "64x64")} <= set(NAMES)


def test_sets_of_recipes_are_those_that_docs_have_a_command_for():
    commands = re.findall(r"^tfds build (\w+)", (ROOT / "docs/data.md").read_text(), re.MULTILINE)
    of_recipes = {
        name for page in (ROOT / "configs").glob("*.py") for name in re.findall(r"tfds:([a-z]\w*)", page.read_text())
    }
    assert of_recipes == set(commands) == set(SETS)


@pytest.mark.parametrize(("name", "config"), NAMES)
def test_tfds_knows_it(name, config):
    import tensorflow_datasets as tfds
    import tensorflow_datasets.text  # as input_pipeline.sources does

    assert not config or config in tfds.builder_cls(name).builder_configs
    assert tfds.builder_cls(name)

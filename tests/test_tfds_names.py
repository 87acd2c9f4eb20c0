"""TFDS datasets that README, docs and recipes name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "configs").glob("*.py"))]
NAMES = sorted(
    {
        match
        for page in PAGES
        for match in re.findall(r"(?:tfds:|tfds build )([a-z]\w*)(?:/([\w.]+))?", page.read_text())
    }
)


def test_datasets_of_recipes_have_commands():
    commands = re.findall(r"^tfds build (\w+)", (ROOT / "docs/data.md").read_text(), re.MULTILINE)
    recipes = {
        name for page in (ROOT / "configs").glob("*.py") for name in re.findall(r"tfds:([a-z]\w*)", page.read_text())
    }
    assert recipes == set(commands)


@pytest.mark.parametrize(("name", "config"), NAMES)
def test_tfds_has_the_dataset(name, config):
    import tensorflow_datasets as tfds
    import tensorflow_datasets.text  # as input_pipeline.sources does

    assert not config or config in tfds.builder_cls(name).builder_configs
    assert tfds.builder_cls(name)

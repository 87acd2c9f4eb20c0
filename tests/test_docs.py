"""The generated page of config keys: complete, up to date, and strict about comments."""

import importlib.util
from collections import defaultdict
from pathlib import Path

import pytest

from configs.common import base
from pretrain.config import flat

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_is_up_to_date(generate):
    assert generate.PAGE.read_text() == generate.page(generate.SOURCE.read_text()), "run `make docs`"


def test_page_has_every_key(generate):
    page = generate.PAGE.read_text()
    sections = defaultdict(str)  # config.model has one for each architecture
    for part in page.split("\n## ")[1:]:
        sections[part.split("`")[1]] += part
    missing = []
    for key in flat(base()):
        section, _, name = f"config.{key}".rpartition(".")
        if f"| `{name}` |" not in sections[section]:
            missing.append(key)
    assert not missing


def test_rows_show_default_and_comment(generate):
    source = """
def encoder():
    '''An encoder.'''
    return ConfigDict(dict(layers=12))  # unused


def base():
    return ConfigDict(
        dict(
            seed=0,  # the one <seed> | of all
            model=encoder(),
            train=dict(
                rules=(  # a table
                    ("a", "b"),
                ),
            ),
        )
    )
"""
    page = generate.page(source)
    assert (
        "## `config`\n\n| key | default | meaning |\n|---|---|---|\n| `seed` | `0` | the one &lt;seed> \\| of all |"
        in page
    )
    assert "## `config.train`" in page and "| `rules` | `(('a', 'b'),)` | a table |" in page
    assert "## `config.model` of architecture `encoder`\n\nAn encoder.\n" in page


def test_key_without_a_comment_is_named(generate):
    with pytest.raises(ValueError, match="the key 'seed' lacks a comment"):
        generate.page("def base():\n    return ConfigDict(dict(\n        seed=0,\n    ))\n")

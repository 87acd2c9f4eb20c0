"""What is generated of the docs: config keys (complete, strict about comments) and attention's tables, up to date."""

import importlib.util
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from configs.common import base
from pretrain.config import flat

ROOT = Path(__file__).resolve().parent.parent


def script(name):
    """A generator of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generate():
    return script("generate")


@pytest.fixture(scope="module")
def tables():
    return script("attention_tables")


def test_page_is_up_to_date(generate):
    assert generate.PAGE.read_text() == generate.page(generate.joined()), "run `make docs`"


def test_page_has_every_key(generate):
    page = generate.PAGE.read_text()
    sections = defaultdict(str)  # config.model has one for each kind
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
    return dict(layers=12)  # unused


def base():
    return dict(
        seed=non_negative(0, below=2**32),  # the one <seed> | of all
        model=encoder(),
        train=dict(
            rules=(  # a table
                ("a", "b"),
            ),
        ),
    )


MODELS = {"encoder": encoder}
"""
    page = generate.page(source)
    assert (
        "## `config`\n\n| key | default | range | meaning |\n|---|---|---|---|\n"
        "| `seed` | `0` | at least 0, below 2 ** 32 | the one &lt;seed> \\| of all |" in page
    )
    assert "## `config.train`" in page and "| `rules` | `(('a', 'b'),)` |  | a table |" in page
    assert "## `config.model` of kind `encoder`\n\nAn encoder.\n" in page


def test_key_without_a_comment_is_named(generate):
    with pytest.raises(ValueError, match="the key 'seed' lacks a comment"):
        generate.page("def base():\n    return dict(\n        seed=0,\n    )\n")


@pytest.mark.slow
def test_attention_tables_are_up_to_date(tables):
    texts = [path.read_text() for path in tables.PAGES]
    assert [tables.page(text) for text in texts] == texts, "run `make docs`"
    assert all(f"<!-- generated: {name} -->" in "".join(texts) for name in tables.PARTS)


def test_attention_tables_are_made_anew(tables):
    text = "Before.\n<!-- generated: paths -->\nold\n<!-- end -->\nAfter.\n"
    made = tables.page(text)
    assert made.startswith("Before.\n<!-- generated: paths -->\n| pattern |")
    assert made.endswith("|\n<!-- end -->\nAfter.\n")
    with pytest.raises(KeyError, match="nothing"):
        tables.page(text.replace("paths", "nothing"))


def test_attention_pictures(tables):
    """The drawn rows are the index sets that the paper's section 4.3 gives for 16 positions and a stride of 4."""
    strided, fixed = tables.grid("strided_4").splitlines(), tables.grid("fixed_4_1").splitlines()
    assert strided[-2] == "   15  . . . x . . . x . . . x o o o o  3, 7, 11, 12, 13, 14, 15"
    assert fixed[-7] == "   10  . . . x . . . x o o o            3, 7, 8, 9, 10"

"""Generated docs: docs/configs.md is complete and current, and so are the tables of docs/attention.md."""

import importlib.util
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from configs.common import base
from pretrain.config import flat

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def load_script(name):
    """Import a script of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generate():
    return load_script("generate")


@pytest.fixture(scope="module")
def tables():
    return load_script("attention_tables")


def test_configs_page_is_current(generate):
    assert generate.PAGE.read_text() == generate.render(generate.read_sources()), "run `make docs`"


def test_configs_page_has_every_key(generate):
    sections = defaultdict(str)  # config.model has one for each kind
    for part in generate.PAGE.read_text().split("\n## ")[1:]:
        sections[part.split("`")[1]] += part
    names = [f"config.{key}".rpartition(".") for key in flat(base())]
    assert not [f"{section}.{name}" for section, _, name in names if f"| `{name}` |" not in sections[section]]


def test_configs_page_row(generate):
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
    page = generate.render(source)
    assert (
        "## `config`\n\n| key | default | range | meaning |\n|---|---|---|---|\n"
        "| `seed` | `0` | at least 0, below 2 ** 32 | the one &lt;seed> \\| of all |" in page
    )
    assert "## `config.train`" in page and "| `rules` | `(('a', 'b'),)` |  | a table |" in page
    assert "`encoder`: An encoder." in page


def test_configs_page_requires_comments(generate):
    with pytest.raises(ValueError):
        generate.render("def base():\n    return dict(\n        seed=0,\n    )\n")


@pytest.mark.slow
def test_attention_tables_are_current(tables):
    text = tables.PAGE.read_text()
    assert tables.render(text) == text, "run `make docs`"
    assert all(f"<!-- generated: {name} -->" in text for name in tables.PARTS)


def test_attention_tables_replace_parts(tables):
    text = "Before.\n<!-- generated: paths -->\nold\n<!-- end -->\nAfter.\n"
    page = tables.render(text)
    assert page.startswith("Before.\n<!-- generated: paths -->\n| pattern |")
    assert page.endswith("|\n<!-- end -->\nAfter.\n")
    with pytest.raises(KeyError):
        tables.render(text.replace("paths", "nothing"))


def test_attention_drawings(tables):
    """The drawn rows are the index sets of Child et al. 2019, section 4.3, for 16 positions and a stride of 4."""
    strided, fixed = (tables.draw_pattern(word).splitlines() for word in ("strided_4", "fixed_4_1"))
    assert strided[-2] == "   15  . . . x . . . x . . . x o o o o  3, 7, 11, 12, 13, 14, 15"
    assert fixed[-7] == "   10  . . . x . . . x o o o            3, 7, 8, 9, 10"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", page.read_text()):
        path = (page.parent / target) if target else page
        assert path.exists(), target
        headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M) if path.suffix == ".md" else []
        slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, f"{target}#{anchor}"


def test_docs_stay_short():
    """README at most 100 lines, docs at most 2,600."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100
    assert sum(len(page.read_text().splitlines()) for page in (ROOT / "docs").glob("*.md")) <= 2600

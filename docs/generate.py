"""Writes docs/configs.md from the comments and ranges of configs/common.py and configs/kinds.py: `make docs`."""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from configs import ranges

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "configs" / "common.py", ROOT / "configs" / "kinds.py"
PAGE = ROOT / "docs" / "configs.md"

HEAD = """\
# Every key of a config

Generated from the comments of `configs/common.py` and, of models, `configs/kinds.py` by `make docs`; edit them there.

A recipe (`configs/NAME.py`) starts from these defaults and sets what its paper says. Any key can be set on the command
line, by its dotted name: `pretrain train --config=configs/gpt2.py:medium --config.train.steps=200`. Tuples are written
as in Python: `--config.model.attention="('dense', 'local_256')"`. Keys, types and ranges of recipes and overrides are
checked before anything else happens; whole numbers are below 2 ** 31 where nothing else is said, and all are finite.
"""


def page(source: str) -> str:
    """The page for the text of both files, joined. Raises ValueError naming a key that lacks a comment."""
    comments = _comments(source)
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    schemas = {name: schema for name, node in functions.items() if (schema := _schema(node)) is not None}
    parts = [HEAD]
    for title, keywords in _sections("config", schemas.pop("base")):
        parts += [f"## `{title}`\n", _table(keywords, comments)]
    tables = _tables(source)
    for name, schema in schemas.items():
        about = ast.get_docstring(functions[name]).split("\n")[0]
        for title, keywords in _sections(f"config.{tables[name]}", schema):
            parts += [f"## `{title}` of kind `{name}`\n", about + "\n", _table(keywords, comments)]
    return "\n".join(parts)


def joined() -> str:
    """The text that the page is made of."""
    return "\n".join(source.read_text(encoding="utf-8") for source in SOURCES)


def _tables(source: str) -> dict[str, str]:
    """Function -> the section that is one of its table's: `MODELS = {"decoder": decoder}` makes it of `model`, and so
    does `MODELS["decoder"] = decoder` behind the table."""
    found = {}
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=table)], value=ast.Dict(values=values)):
                pass
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=table))], value=ast.Name() as value):
                values = [value]
            case _:
                continue
        found |= {value.id: table.lower().removesuffix("s") for value in values}
    return found


def _schema(function: ast.FunctionDef) -> ast.Call | None:
    """The `dict(...)` of a function that does nothing but return it."""
    match function.body[-1]:
        case ast.Return(value=ast.Call(func=ast.Name(id="dict")) as schema):
            return schema
    return None


def _sections(path: str, call: ast.Call) -> Iterator[tuple[str, list[ast.keyword]]]:
    """(dotted name, keys that are no sections) of a nested dict(...), itself first."""
    inner = [keyword for keyword in call.keywords if _is_section(keyword)]
    yield path, [keyword for keyword in call.keywords if not _is_section(keyword)]
    for keyword in inner:
        yield from _sections(f"{path}.{keyword.arg}", keyword.value)


def _is_section(keyword: ast.keyword) -> bool:
    return isinstance(keyword.value, ast.Call) and keyword.value.func.id == "dict"


def _comments(source: str) -> dict[int, str]:
    """The comment at the end of each line that has one."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


def _table(keywords: list[ast.keyword], comments: dict[int, str]) -> str:
    rows = ["| key | default | range | meaning |", "|---|---|---|---|"]
    for keyword in keywords:
        default, rule = keyword.value, ""
        called = default.func.id if isinstance(default, ast.Call) else ""
        if called and hasattr(ranges, called):
            ends = [f", below {ast.unparse(end.value)}" for end in default.keywords]
            default, rule = default.args[0], getattr(ranges, called).rule + "".join(ends)
        elif called:  # another function of the file, which has a section of its own
            rows.append(f"| `{keyword.arg}` | | | its fields depend on its `kind`; those of `{called}` are below |")
            continue
        if keyword.lineno not in comments:
            raise ValueError(f"configs: the key '{keyword.arg}' lacks a comment")
        cells = (f"`{keyword.arg}`", f"`{ast.unparse(default)}`", rule, comments[keyword.lineno])
        rows.append(f"| {' | '.join(map(_escaped, cells))} |")
    return "\n".join(rows) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    PAGE.write_text(page(joined()), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()

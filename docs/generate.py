"""Write docs/configs.md from the comments and ranges of configs/common.py and configs/model_kinds.py: `make docs`."""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from configs import ranges

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "configs" / "common.py", ROOT / "configs" / "model_kinds.py"
PAGE = ROOT / "docs" / "configs.md"

HEAD = """\
# Configs

Every key, generated from `configs/common.py` and, for models, `configs/model_kinds.py` by `make docs`; edit them there.

A recipe (`configs/NAME.py`) starts from these defaults and sets what its paper says. Set any key on the command line by
its dotted name: `pretrain train --config=configs/gpt2.py:medium --config.train.steps=200`. Tuples are written as in
Python: `--config.model.attention="('dense', 'local_256')"`. Keys, types and ranges are checked before anything else;
all numbers are finite, and integers are below 2 ** 31 unless another limit is given.
"""

Row = tuple[str, str, str, str]  # key, default, range, meaning


def read_sources() -> str:
    return "\n".join(source.read_text(encoding="utf-8") for source in SOURCES)


def render(source: str) -> str:
    """Return the page for the joined source files. Raises ValueError naming a key that lacks a comment."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    parts = [HEAD]
    for title, rows in parse_section("config", functions["base"].body[-1].value, comments):
        parts += [f"## `{title}`\n", table(("key", "default", "range", "meaning"), rows)]
    for section, kinds in parse_kinds(source).items():
        parts.append(f"## `{section}`\n\nThe keys depend on `kind`:\n")
        kind_rows: dict[Row, list[str]] = {}  # a row that several kinds share is written once
        for kind in kinds:
            parts.append(f"- `{kind}`: {ast.get_docstring(functions[kind]).splitlines()[0]}")
            for _, rows in parse_section(section, functions[kind].body[-1].value, comments):
                for row in rows:
                    if row[0] == "`kind`":  # the list above has them
                        row = ("`kind`", "", "", "one of these")
                    kind_rows.setdefault(row, []).append(kind)
        rows = [(*row, "all" if len(names) == len(kinds) else ", ".join(names)) for row, names in kind_rows.items()]
        parts.append("\n" + table(("key", "default", "range", "meaning", "kinds"), rows))
    return "\n".join(parts)


def parse_kinds(source: str) -> dict[str, list[str]]:
    """Return {config section: functions of its kinds} from tables such as `MODELS = {"decoder": decoder}`.

    Later entries, such as `MODELS["decoder"] = decoder`, count too.
    """
    kinds: dict[str, list[str]] = {}
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(values=values)):
                pass
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name))], value=ast.Name() as value):
                values = [value]
            case _:
                continue
        kinds.setdefault(f"config.{name.lower().removesuffix('s')}", []).extend(value.id for value in values)
    return kinds


def parse_section(path: str, call: ast.Call, comments: dict[int, str]) -> Iterator[tuple[str, list[Row]]]:
    """Yield (dotted name, rows) of a nested `dict(...)`, outermost first."""
    inner = [word for word in call.keywords if isinstance(word.value, ast.Call) and word.value.func.id == "dict"]
    yield path, [parse_key(word, comments) for word in call.keywords if word not in inner]
    for word in inner:
        yield from parse_section(f"{path}.{word.arg}", word.value, comments)


def parse_key(keyword: ast.keyword, comments: dict[int, str]) -> Row:
    default, rule = keyword.value, ""
    if isinstance(default, ast.Call):
        name = default.func.id
        if not hasattr(ranges, name):  # a section with kinds
            return f"`{keyword.arg}`", "", "", f"its keys depend on its `kind`, `{name}` by default; see below"
        limits = [f", below {ast.unparse(limit.value)}" for limit in default.keywords]
        default, rule = default.args[0], getattr(ranges, name).rule + "".join(limits)
    if keyword.lineno not in comments:
        raise ValueError(f"configs: the key '{keyword.arg}' lacks a comment")
    return f"`{keyword.arg}`", f"`{ast.unparse(default)}`", rule, comments[keyword.lineno]


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        cells = (cell.replace("|", "\\|").replace("<", "&lt;") for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    PAGE.write_text(render(read_sources()), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()

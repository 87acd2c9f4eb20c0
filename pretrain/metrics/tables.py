"""Results for people and programs: tables on the terminal, JSON."""

import json
import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


class _Console(Console):
    """A console that raises BrokenPipeError, for which the command line has an exit code."""

    def on_broken_pipe(self) -> None:
        raise


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence]) -> None:
    """Print a table on stdout below its title; numbers are right-aligned with thousands separators."""
    table = Table()
    for i, name in enumerate(columns):
        numeric = all(isinstance(row[i], (int, float)) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_format, row))
    console = _Console()
    console.print(Text(title, "italic"), soft_wrap=True)
    console.print(table)


def _format(value) -> str:
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.{4 if abs(value) < 100 else 2 if abs(value) < 10_000 else 0}f}"
    return str(value)


def one_line(row) -> str:
    """JSON of a result on one line, with null for numbers that are not finite, which JSON lacks."""

    def replace(value):
        if isinstance(value, dict):
            return {name: replace(item) for name, item in value.items()}
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(replace(row), allow_nan=False)

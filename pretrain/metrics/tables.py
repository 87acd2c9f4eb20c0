"""Results as people and programs read them: tables on the terminal, JSON."""

import json
import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


class Shown(Console):
    """A console that leaves it to the program what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        raise  # the error that is being handled where this is called


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence]) -> None:
    """Prints a table on stdout, below its title; numbers are right-aligned with separators of thousands."""
    table = Table()
    numeric = [all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(columns))]
    for name, right in zip(columns, numeric, strict=True):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    console = Shown()
    console.print(Text(title, "italic"), soft_wrap=True)
    console.print(table)


def _cell(value) -> str:
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.{4 if abs(value) < 100 else 2 if abs(value) < 10_000 else 0}f}"
    return str(value)


def one_line(row) -> str:
    """JSON of a result on one line: numbers that are not finite are null, since JSON has no word for them."""

    def told(value):
        if isinstance(value, dict):
            return {name: told(one) for name, one in value.items()}
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(told(row), allow_nan=False)

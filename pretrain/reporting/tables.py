"""Tables on the terminal."""

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
        table.add_column(name, justify="right" if right else "left")
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
    return f"{value:,.4f}" if isinstance(value, float) else str(value)

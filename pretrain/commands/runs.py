"""`pretrain runs`: a table of the runs below a folder."""

import time

from pretrain.commands.arguments import Runs
from pretrain.metrics.progress import amount, clock
from pretrain.metrics.tables import one_line, show
from pretrain.report.history import find_runs

COLUMNS = ("run", "state", "step", "loss", "best validation", "tok/s", "last seen")


def run(arguments: Runs) -> None:
    """Prints one row for each run, as a table or as JSON."""
    folders = arguments.folders or ("runs",)
    rows = [history.summary() for folder in folders for history in find_runs(folder)]
    if arguments.format == "json":
        print(*map(one_line, rows), sep="\n")
        return
    show(f"{len(rows)} run{'s' * (len(rows) != 1)} in {', '.join(folders)}", COLUMNS, list(map(_cells, rows)))


def _cells(row: dict) -> tuple:
    speed, seen = row["tokens_per_second"], row["seen"]
    return (
        row["run"],
        row["state"],
        f"{row['step']:,}/{row['steps']:,}",
        row["loss"],
        row["best_validation"],
        amount(speed) if speed else None,
        f"{clock(max(0.0, time.time() - seen))} ago" if seen else None,
    )

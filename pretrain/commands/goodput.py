"""`pretrain goodput`: where the time of a run went, over all its starts."""

import json

from pretrain import config as configs
from pretrain.commands.arguments import Goodput
from pretrain.errors import UserError
from pretrain.metrics.goodput import summarize
from pretrain.metrics.progress import clock
from pretrain.metrics.tables import show
from pretrain.workdir import Workdir

WORDS = {
    "step": "updates",
    "data": "waiting for data",
    "compile": "compiling",
    "save": "saving",
    "restore": "restoring",
    "evaluate": "evaluating",
    "start": "starting",
    "other": "anything else",
    "lost": "updates repeated after a restart",
    "idle": "between starts",
}


def run(arguments: Goodput) -> None:
    """Prints the summary of a work folder's `goodput.jsonl`, as a table or as one JSON object."""
    configs.check_folder(arguments.workdir)
    path = Workdir(arguments.workdir).goodput
    if not path.is_file():
        raise UserError(f"--workdir={arguments.workdir}: no {path.name} there. Give the folder of a run.")
    found = summarize(path)
    if arguments.format == "json":
        print(json.dumps(found))
        return
    again = f", {found['made_again']:,} of them repeated" if found["made_again"] else ""
    total = found["total"] or 1.0
    rows = [
        (WORDS.get(name, name), clock(value), f"{value / total:.1%}")
        for name, value in found["seconds"].items()
        if value
    ]
    title = f"goodput {found['goodput']:.1%}: {found['updates']:,} updates{again}, in {clock(found['total'])}"
    show(f"{title} and {found['starts']} start{'s' * (found['starts'] != 1)}", ("spent on", "time", "share"), rows)

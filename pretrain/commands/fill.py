"""`pretrain fill`: what may be in the gaps of a text."""

from pretrain.commands.arguments import Fill
from pretrain.distributed.init import print_on_host0, start
from pretrain.metrics.tables import one_line, show
from pretrain.run import Run


def run(arguments: Fill) -> None:
    """Prints what may be in each gap, with its probability."""
    start()
    trained = Run(arguments.workdir, arguments.step, None, arguments.average, print_on_host0)
    gaps = trained.fill(arguments.text, arguments.top)
    if arguments.format == "json":
        print(one_line({"step": trained.step, "gaps": [[one._asdict() for one in gap] for gap in gaps]}))
        return
    rows = [[number, one.text, one.probability] for number, gap in enumerate(gaps, 1) for one in gap]
    show(arguments.text, ("gap", "text", "probability"), rows)

"""`python -m pretrain`, and the `pretrain` script: signals are listened to before anything else is loaded."""

import importlib.util
import sys

from pretrain.distributed import streams
from pretrain.distributed.shutdown import MISTAKE, leaving

OURS = ("configs", "input_pipeline", "models", "pretrain")


def run() -> None:
    """Runs the command line and exits with its code."""
    streams.settle()
    leaving.listen()
    try:
        from pretrain.cli import main
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package in OURS or importlib.util.find_spec(package):  # which lacks a part of its own
            raise
        lacking = f"{sys.executable} has no {error.name}"
        remedy = "start it with the interpreter that has the project, or install it there (pip install -e .)"
        leaving.end(leaving.failed(MISTAKE, f"pretrain: {lacking}; {remedy}\n"))
    leaving.end(main(sys.argv[1:]))


if __name__ == "__main__":
    run()

"""`python -m pretrain`, and the `pretrain` script: signals are listened to before anything else is loaded."""

import sys

from pretrain.processes import streams
from pretrain.processes.leaving import leaving


def run() -> None:
    """Runs the command line and exits with its code."""
    streams.settle()
    leaving.listen()
    from pretrain.main import main

    leaving.end(main(sys.argv[1:]))


if __name__ == "__main__":
    run()

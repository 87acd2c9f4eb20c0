"""`python -m pretrain`, and the `pretrain` script.

Signals are handled before JAX is imported, which takes seconds.
"""

from pretrain.distributed import streams
from pretrain.distributed.shutdown import leaving


def run() -> None:
    """Runs the command line and exits with its code."""
    streams.settle()
    leaving.listen()
    from pretrain.cli import script

    script()


if __name__ == "__main__":
    run()

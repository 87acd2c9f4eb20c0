"""`python -m pretrain`, and the `pretrain` script.

Signals are handled before JAX is imported, which takes seconds.
"""

from pretrain.distributed.shutdown import protect_streams, shutdown


def run() -> None:
    """Runs the command line and exits with its code."""
    protect_streams()
    shutdown.listen()
    from pretrain.cli import script

    script()


if __name__ == "__main__":
    run()

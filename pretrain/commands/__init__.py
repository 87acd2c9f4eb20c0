"""What each command is told, and what it does."""

import importlib
import multiprocessing
import sys

from pretrain.commands.arguments import Arguments


def run(arguments: Arguments) -> int:
    """Does what the arguments of a command say; returns its exit code. Errors: UserError and its kin, as they are said.

    What does it is imported when it is done: help, and mistakes in what is told, need not wait for Orbax.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        sys.exit(1)  # of a script without `if __name__ == "__main__":`, which a process of ours reads; we say so there
    module = importlib.import_module(f"pretrain.commands.{type(arguments).__name__.lower()}")
    return module.run(arguments) or 0

"""What each command is told, and what it does."""

import importlib
import multiprocessing
import sys

from pretrain.commands.arguments import Arguments


def run(arguments: Arguments) -> int:
    """Does what the arguments of a command say; returns its exit code. Errors: UserError and its kin, as they are said.

    What does it is imported when it is done: help, and mistakes in what is told, need not wait for Orbax.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as `spawn` has it while it reads the script
        sys.exit(
            "pretrain: each process that a script starts reads the script again; put what trains or prepares in it "
            'under `if __name__ == "__main__":` (docs/python.md)'
        )
    module = importlib.import_module(f"pretrain.commands.{type(arguments).__name__.lower()}")
    return module.run(arguments) or 0

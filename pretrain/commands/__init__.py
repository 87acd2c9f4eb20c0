"""The commands: arguments, and a module for each that runs it (`trials` is `train` with several seeds)."""

import importlib

from pretrain.commands.arguments import Arguments

MODULES = {"Complete": "complete_images", "Import": "hf", "Export": "hf"}  # else the command's own name


def run(arguments: Arguments) -> int:
    """Runs a command; returns its exit code. Errors: those of `pretrain.errors.USER_ERRORS`.

    Its module is imported only now, so that help and mistakes in the arguments need not wait for JAX and Orbax.
    """
    name = type(arguments).__name__
    module = importlib.import_module(f"pretrain.commands.{MODULES.get(name, name.lower())}")
    return module.run(arguments) or 0

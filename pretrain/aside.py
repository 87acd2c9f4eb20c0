"""Putting files and folders aside: what is there already stays, and a link still leads where it led."""

import itertools
import os
from pathlib import Path


def free(path: Path) -> Path:
    """`path`, with the first number behind it under which there is nothing where that is taken."""
    numbered = (path.with_name(f"{path.name}.{number}" if number else path.name) for number in itertools.count())
    return next(name for name in numbered if not os.path.lexists(name))


def move(source: Path, to: Path) -> None:
    """Renames `source`, which may be a link of any kind. Errors: OSError, after which `source` is where it was."""
    if source.is_symlink() and not os.path.isabs(os.readlink(source)):
        os.symlink(os.path.relpath(os.path.realpath(source), os.path.realpath(to.parent)), to)
        source.unlink()
    else:
        os.replace(source, to)

"""Putting files and folders aside: what is there already stays, and a link still leads where it led."""

import itertools
import os
from pathlib import Path

from input_pipeline.away import mode
from input_pipeline.remote import RemotePath


def free(path: Path) -> Path:
    """`path`, with the first number behind it under which there is nothing where that is taken."""
    numbered = (path.with_name(f"{path.name}.{number}" if number else path.name) for number in itertools.count())
    return next(name for name in numbered if not taken(name))


def taken(path: Path | RemotePath) -> bool:
    """Whether anything has that name, be it a link that leads nowhere. Errors: OSError of a folder that is away."""
    return path.exists() if isinstance(path, RemotePath) else bool(mode(path, follow=False))


def move(source: Path | RemotePath, to: Path | RemotePath) -> None:
    """Renames `source`, which may be a link of any kind; in an object store what is below it is copied, then deleted.

    Errors: OSError, after which `source` is where it was.
    """
    if isinstance(source, RemotePath):
        source.copy_tree(to)
        source.remove_tree()
    elif source.is_symlink() and not os.path.isabs(os.readlink(source)):
        os.symlink(os.path.relpath(os.path.realpath(source), os.path.realpath(to.parent)), to)
        source.unlink()
    else:
        os.replace(source, to)

"""Putting files and folders aside: what is there already stays, and a link still leads where it led."""

import itertools
import os
from pathlib import Path

from etils import epath

from input_pipeline.io import filesystem, is_remote


def free(path: Path) -> Path:
    """`path`, with the first number behind it under which there is nothing where that is taken."""
    numbered = (path.with_name(f"{path.name}.{number}" if number else path.name) for number in itertools.count())
    return next(name for name in numbered if not taken(name))


def taken(path: Path | epath.Path) -> bool:
    """Whether anything has that name, be it a link that leads nowhere."""
    return path.exists() if is_remote(path) else os.path.lexists(path)


def move(source: Path | epath.Path, to: Path | epath.Path) -> None:
    """Renames `source`, which may be a link of any kind; in an object store what is below it is copied, then deleted.

    Errors: OSError, after which `source` is where it was.
    """
    if is_remote(source):
        # Not fsspec's own recursive `mv`: on S3 it fails at names of folders, which are no objects.
        store, key, new = filesystem(source), str(source).partition("://")[2], str(to).partition("://")[2]
        for name in store.find(str(source)):
            store.cp_file(name, f"{new}{name.removeprefix(key)}")
        store.rm(str(source), recursive=True)
    elif source.is_symlink() and not os.path.isabs(os.readlink(source)):
        os.symlink(os.path.relpath(os.path.realpath(source), os.path.realpath(to.parent)), to)
        source.unlink()
    else:
        os.replace(source, to)

"""Folders that are made whole or not at all."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pretrain.errors import UserError, reason


def check_free(folder: Path) -> None:
    """Raises UserError where `folder` holds anything."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UserError(f"{folder} is there already, and nothing is overwritten; choose the name of a new folder")


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside `folder`, to be filled, which gets its name when all is well and else is gone."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise UserError(f"{folder} cannot be made ({reason(error)}); choose another folder") from error
    try:
        yield partial
        partial.chmod(0o777 & ~_mask())
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _mask() -> int:
    """The bits that new files are made without; it can only be asked for by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask

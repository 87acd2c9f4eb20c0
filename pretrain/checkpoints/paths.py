"""Folders on a disk as Orbax sees them: it asks `etils.epath`, whose answers are not always those of the system.

To it a folder that is away has nothing in it, so that Orbax says of a checkpoint that is being written or read that it
is not there, or leaves out, without a word, what joins its parts. And it looks for `folder.glob(pattern)` with the
folder's own name as a part of the pattern: in a folder `[a]` nothing is found.
"""

import fnmatch
import glob
import os
import stat
from collections.abc import Iterator

from etils import epath
from etils.epath.backend import os_backend

from input_pipeline.away import mode, names

PATHS = type(epath.Path("/"))


def answer_truly() -> None:
    """Lets such paths find what lies in a folder with brackets in its name, and raise the error of one that is away."""
    found = PATHS.glob
    if getattr(found, "_true", False):
        return

    def find(self, pattern: str) -> Iterator[epath.Path]:
        folder = os.fspath(self)
        if "://" in folder:
            return found(self, pattern)
        return (self / name for name in _like(folder, pattern))

    find._true = True
    PATHS.glob = find
    os_backend.exists = lambda path: mode(path) != 0
    os_backend.isdir = lambda path: stat.S_ISDIR(mode(path))


def _like(folder: str, pattern: str) -> list[str]:
    """What has a name like `pattern` in a folder, relative to it. Errors: OSError of a folder that is away."""
    within, _, last = pattern.rpartition("/")
    if any(letter in within for letter in "*?["):
        return glob.glob(pattern, root_dir=folder, recursive=True, include_hidden=True)
    return [os.path.join(within, name) for name in fnmatch.filter(names(os.path.join(folder, within)), last)]

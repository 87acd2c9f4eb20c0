"""Folders on a disk as Orbax sees them: it asks `etils.epath`, whose answers are not always those of the system.

To it a folder that is away has nothing in it, so that Orbax says of a checkpoint that is being written or read that it
is not there, or leaves out, without a word, what joins its parts. And it looks for `folder.glob(pattern)` with the
folder's own name as a part of the pattern: in a folder `[a]` nothing is found.
"""

import os
import stat
from collections.abc import Iterator

from etils import epath
from etils.epath.backend import os_backend

from input_pipeline.away import mode
from input_pipeline.sources.globs import matched

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
        return map(epath.Path, matched(f"{folder}/", pattern))

    find._true = True
    PATHS.glob = find
    os_backend.exists = lambda path: mode(path) != 0
    os_backend.isdir = lambda path: stat.S_ISDIR(mode(path))

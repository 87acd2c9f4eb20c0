"""Folders whose names have brackets, which Orbax and the paths that it uses take for patterns.

`etils.epath` looks for `folder.glob(pattern)` with the folder's own name as a part of the pattern. In a folder `[a]`
nothing is found then: Orbax leaves out, without a word, what joins the parts of a checkpoint, and cannot read it.
"""

import glob
import os
from collections.abc import Iterator

from etils import epath

PATHS = type(epath.Path("/"))


def are_letters() -> None:
    """Lets such paths on a disk find what lies in a folder with brackets in its name."""
    found = PATHS.glob
    if getattr(found, "_literal", False):
        return

    def find(self, pattern: str) -> Iterator[epath.Path]:
        folder = os.fspath(self)
        if "[" not in folder or "://" in folder:
            return found(self, pattern)
        names = glob.glob(pattern, root_dir=folder, recursive=True, include_hidden=True)
        return (self / name for name in names)

    find._literal = True
    PATHS.glob = find

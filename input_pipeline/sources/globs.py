"""What a glob matches, in a finite walk: links may lead to a folder that holds them."""

import glob
import heapq
import os
import re
from collections.abc import Iterable, Iterator


def expanded(pattern: str) -> list[str]:
    """As `glob.glob(pattern, recursive=True)` of an absolute path, but that each `**` enters a folder once.

    Where a folder has several names, through links, that is by the one in the fewest folders. `**` at the end is
    `**/*`.
    """
    first, *rest = re.split(r"(?<=/)(?:\*\*/)+", re.sub(r"(?<=/)\*\*$", "**/*", pattern))
    found = glob.glob(first)
    for below in rest:
        found = [f"{folder}{name}" for folder in _folders(found) for name in glob.iglob(below, root_dir=folder)]
    return found


def _folders(starts: Iterable[str]) -> Iterator[str]:
    """The folders `starts`, whose names end with "/", and all below them that are not hidden; each once."""
    left, entered = [(start.count("/"), start, os.path.realpath(start)) for start in starts], set()
    heapq.heapify(left)
    while left:
        depth, folder, real = heapq.heappop(left)
        if real in entered:
            continue
        entered.add(real)
        yield folder
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if _is_folder(entry) and not entry.name.startswith("."):
                        itself = os.path.realpath(entry.path) if entry.is_symlink() else os.path.join(real, entry.name)
                        heapq.heappush(left, (depth + 1, f"{entry.path}/", itself))
        except OSError:  # which may not be read
            continue


def _is_folder(entry: os.DirEntry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False

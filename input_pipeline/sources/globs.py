"""What a glob matches, in a finite walk: links may lead to a folder that holds them.

A folder that is away, which `glob` takes for an empty one, is an OSError.
"""

import fnmatch
import glob
import heapq
import os
import re
import stat
from collections.abc import Iterable, Iterator

from input_pipeline.away import mode, names, passes, real


def expanded(pattern: str) -> list[str]:
    """As `glob.glob(pattern, recursive=True)` of an absolute path, but that each `**` enters a folder once.

    Where a folder has several names, through links, that is by the one in the fewest folders. `**` at the end is
    `**/*`.
    """
    first, *rest = re.split(r"(?<=/)(?:\*\*/)+", re.sub(r"(?<=/)\*\*$", "**/*", pattern))
    found = matched("", first)
    for below in rest:
        found = [path for folder in _folders(found) for path in matched(folder, below)]
    return found


def matched(start: str, pattern: str) -> list[str]:
    """As `glob.glob` of a pattern without `**` below the folder `start`, whose name ends with "/"."""
    found, (*folders, last) = [start], pattern.split("/")
    for part in folders:
        found = [f"{path}/" for folder in found for path in _named(folder, part)]
    if not last:
        return [folder for folder in found if stat.S_ISDIR(mode(folder))]
    magic = glob.has_magic(last)  # of which a folder's own list tells that they are there
    return [path for folder in found for path in _named(folder, last) if magic or mode(path, follow=False)]


def _named(folder: str, part: str) -> list[str]:
    """What is called like one part of a pattern in a folder; one without wildcards is not looked for."""
    if not glob.has_magic(part):
        return [f"{folder}{part}"]
    return [f"{folder}{n}" for n in fnmatch.filter(names(folder), part) if part.startswith(".") or n[0] != "."]


def _folders(starts: Iterable[str]) -> Iterator[str]:
    """The folders `starts`, whose names end with "/", and all below them that are not hidden; each once."""
    left, entered = [(start.count("/"), start, real(start)) for start in starts], set()
    heapq.heapify(left)
    while left:
        depth, folder, at = heapq.heappop(left)
        if at in entered:
            continue
        entered.add(at)
        yield folder
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if _is_folder(entry) and not entry.name.startswith("."):
                        itself = real(entry.path) if entry.is_symlink() else os.path.join(at, entry.name)
                        heapq.heappush(left, (depth + 1, f"{entry.path}/", itself))
        except OSError as error:
            if passes(error):
                raise
            continue  # which may not be read


def _is_folder(entry: os.DirEntry) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if passes(error):
            raise
        return False  # a link to itself

"""Plans of layouts, which say where in a stream each row lies: made once, kept on disk with checksums, read at random.

A plan is a NamedTuple of arrays, whose `__reduce__` is `by_name`, so that it travels to other processes as file names.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from input_pipeline.files import checksum, locked, read_json, remove_partial, replaced, write_json, written_under
from input_pipeline.store.store import READ

MADE = "made.json"  # bytes and CRC-32 of a plan's files; written last


def by_name(plan: tuple) -> tuple:
    """What `pickle` makes a plan of: an array on disk is its name."""
    return _restored, (type(plan), *(field.filename if isinstance(field, np.memmap) else field for field in plan))


def _restored(kind: type, *fields):
    return kind(*(field if isinstance(field, np.ndarray) else np.load(field, mmap_mode="r") for field in fields))


def kept(
    kind: type,
    folder: Path,
    make: Callable[[], Iterable[np.ndarray]],
    what: str,
    report: Callable[[str], None],
    read_all: bool,
):
    """The plan of this `kind` in `folder`, made first if it is not there, and again where its files are damaged.

    `what` is being made goes to `report`. Of a plan beyond `store.READ` bytes the sizes are compared with what was
    written, and the bytes where `read_all`.
    """
    paths = [folder / f"{name}.npy" for name in kind._fields]
    with written_under(folder, "data.store"):
        if not _whole(folder, paths, read_all):
            with locked(folder / "lock", lambda: report(f"waiting for another process that is {what}")):
                if not _whole(folder, paths, read_all):
                    remove_partial(folder)
                    report(what)
                    (folder / MADE).unlink(missing_ok=True)
                    for path, values in zip(paths, make(), strict=True):
                        with replaced(path) as partial, open(partial, "wb") as file:
                            np.save(file, values)
                    write_json(folder / MADE, {path.name: [path.stat().st_size, checksum(path)] for path in paths})
    return _restored(kind, *paths)


def _whole(folder: Path, paths: Sequence[Path], read_all: bool) -> bool:
    """Whether the files of a plan are there, as they were written."""
    try:
        made = read_json(folder / MADE)
        written = {path: tuple(map(int, made[path.name])) for path in paths}
        if any(path.stat().st_size != size for path, (size, _) in written.items()):
            return False
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False
    read = read_all or sum(size for size, _ in written.values()) <= READ
    return not read or all(checksum(path) == crc for path, (_, crc) in written.items())

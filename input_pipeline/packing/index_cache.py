"""Plans of layouts, which say where in a stream each row lies: made once, kept on disk with checksums, read at random.

A plan is a NamedTuple of arrays, whose `__reduce__` is `by_name`, so that it travels to other processes as file names.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from input_pipeline.files import (
    checksum,
    copied_checksum,
    locked,
    read_json,
    remove_partial,
    replaced,
    write_json,
    written_under,
)
from input_pipeline.remote import local
from input_pipeline.token_store.store import READ

MADE = "made.json"  # bytes and CRC-32 of a plan's files; written last


def counted(number: int, what: str) -> str:
    """How many there are, in words: "1 document", "1,234 documents"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def by_name(plan: tuple) -> tuple:
    """What `pickle` makes a plan of: an array on disk is its name."""
    return _restored, (type(plan), *(field.filename if isinstance(field, np.memmap) else field for field in plan))


def _restored(kind: type, *fields):
    return kind(*(field if isinstance(field, np.ndarray) else np.load(local(field), mmap_mode="r") for field in fields))


def kept(
    kind: type,
    folder: Path,
    make: Callable[[], Iterable[Sequence[np.ndarray]]],
    what: str,
    report: Callable[[str], None],
    read_all: bool,
):
    """The plan of this `kind` in `folder`, made first if it is not there, and again where its files are damaged.

    `make` gives it in stretches, at least one, each with a stretch of every array; none is held longer than it takes to
    write it. `what` is being made goes to `report`. Of a plan beyond `store.READ` bytes the sizes are compared with
    what was written, and the bytes where `read_all`.
    """
    paths = [folder / f"{name}.npy" for name in kind._fields]
    with written_under(folder, "data.store"):
        if not _whole(folder, paths, read_all):
            with locked(folder / "lock", lambda: report(f"waiting for another process that is {what}")):
                if not _whole(folder, paths, read_all):
                    remove_partial(folder)
                    report(what)
                    (folder / MADE).unlink(missing_ok=True)
                    with contextlib.ExitStack() as stack:
                        arrays = [stack.enter_context(_growing(path)) for path in paths]
                        for stretch in make():
                            for array, values in zip(arrays, stretch, strict=True):
                                array.append(values)
                    write_json(folder / MADE, {path.name: [path.stat().st_size, checksum(path)] for path in paths})
    return _restored(kind, *paths)


class _Growing:
    """An array in a file of NumPy's format, to which stretches of one type are appended."""

    def __init__(self, file: BinaryIO):
        self._file, self._length, self._dtype = file, 0, None

    def append(self, values: np.ndarray) -> None:
        if self._dtype is None:
            self._dtype = values.dtype
            self.write_header()
        self._file.write(np.ascontiguousarray(values, self._dtype).data.cast("B") if len(values) else b"")
        self._length += len(values)

    def write_header(self) -> None:
        """NumPy leaves room for any length, so that a longer array's header takes the place of a shorter one's."""
        self._file.seek(0)
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._file, header)


@contextlib.contextmanager
def _growing(path: Path) -> Iterator[_Growing]:
    """Writes an array that appears at the end."""
    with replaced(path) as partial, open(partial, "wb") as file:
        array = _Growing(file)
        yield array
        array.write_header()


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
    return not read or all(copied_checksum(path, crc) == crc for path, (_, crc) in written.items())

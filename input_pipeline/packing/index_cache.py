"""Index arrays that say where each row of a layout is in a stream: built once, kept on disk, memory-mapped.

A plan is a NamedTuple of arrays. Its folder holds one .npy file per array, and `made.json` with their sizes and CRC-32,
which is written last: a plan without it is built again.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from input_pipeline.errors import UnwritableError
from input_pipeline.io import (
    checksum,
    info,
    local_copy,
    lock,
    read_json,
    remove_partial,
    replace,
    writable,
    write_json,
)
from input_pipeline.token_store.store import READ
from input_pipeline.token_store.stream import Stream

MANIFEST = "made.json"
BLOCK = 1 << 24  # ids counted at a time: 64 MiB


def reduce_by_path(plan: tuple) -> tuple:
    """`__reduce__` of plans: arrays on disk travel to worker processes as file names, not as bytes."""
    return _open, (type(plan), *(field.filename if isinstance(field, np.memmap) else field for field in plan))


def _open(kind: type, *fields):
    return kind(
        *(field if isinstance(field, np.ndarray) else np.load(local_copy(field), mmap_mode="r") for field in fields)
    )


class IndexCache:
    """Plans under the folder `root`, each opened once: checksums need not be verified in every evaluation.

    scratch: folder for plans if `root` is read-only. report: receives what takes long. read_all: verify checksums of
    plans of any size, not only of those up to `READ` bytes.
    """

    def __init__(self, root: Path, scratch: Path | None, report: Callable[[str], None], read_all: bool):
        self.report = report
        self._root, self._scratch, self._read_all, self._plans = root, scratch, read_all, {}

    def load(self, kind: type, name: str, build: Callable[[], Iterable[Sequence[np.ndarray]]], action: str):
        """The plan of type `kind` in folder `name`; built if it is missing or damaged.

        build: gives the plan in parts, at least one, each with a part of every array; parts are written one by one, so
        that memory does not grow with the plan. action: what building does, for `report`.
        """
        if name not in self._plans:
            try:
                self._plans[name] = self._load(kind, self._root / name, build, action)
            except UnwritableError:
                if self._scratch is None:
                    raise
                self._plans[name] = self._load(kind, self._scratch / name, build, action)
        return self._plans[name]

    def _load(self, kind: type, folder: Path, build: Callable, action: str):
        paths = [folder / f"{name}.npy" for name in kind._fields]
        with writable(folder, "data.store"):
            if not self._is_whole(folder, paths):
                with lock(folder / "lock", lambda: self.report(f"waiting for another process: {action}")):
                    # Another process may have built it while this one waited.
                    if not self._is_whole(folder, paths):
                        remove_partial(folder)
                        self.report(action)
                        # Removed first: if this process is killed, no manifest vouches for half-written arrays.
                        (folder / MANIFEST).unlink(missing_ok=True)
                        _write_arrays(paths, build())
                        sums = {path.name: [info(path).size, checksum(path)] for path in paths}
                        write_json(folder / MANIFEST, sums)
        return _open(kind, *paths)

    def _is_whole(self, folder: Path, paths: Sequence[Path]) -> bool:
        """Whether all files of a plan have the size, and up to `READ` bytes the checksum, that was written."""
        try:
            manifest = read_json(folder / MANIFEST)
            sums = {path: tuple(map(int, manifest[path.name])) for path in paths}
            if any(info(path).size != size for path, (size, _) in sums.items()):
                return False
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return False
        verify = self._read_all or sum(size for size, _ in sums.values()) <= READ
        return not verify or all(checksum(local_copy(path)) == crc for path, (_, crc) in sums.items())


def _write_arrays(paths: Sequence[Path], parts: Iterable[Sequence[np.ndarray]]) -> None:
    """Writes one .npy file per array, part by part; the files appear at the end."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(stack.enter_context(replace(path)), "wb")) for path in paths]
        lengths = np.zeros(len(files), np.int64)
        for part in parts:
            for file, array in zip(files, part, strict=True):
                if not file.tell():
                    _write_header(file, array, 0)
                file.write(array.tobytes())
            lengths += [len(array) for array in part]
        for file, array, length in zip(files, part, lengths.tolist(), strict=True):
            # NumPy pads headers so that any length fits: the final one overwrites that of length 0.
            file.seek(0)
            _write_header(file, array, length)


def _write_header(file: BinaryIO, array: np.ndarray, length: int) -> None:
    header = np.lib.format.header_data_from_array_1_0(array) | {"shape": (length,)}
    np.lib.format.write_array_header_1_0(file, header)


class TokenCounts(NamedTuple):
    """Occurrences of each id in a stream."""

    counts: np.ndarray  # int64 [V]

    __reduce__ = reduce_by_path


def count_tokens(stream: Stream, vocab_size: int, cache: IndexCache) -> np.ndarray:
    """How often each id occurs in a stream: int64 [V]."""

    def build() -> Iterator[TokenCounts]:
        counts = np.zeros(vocab_size, np.int64)
        for start in range(0, stream.tokens, BLOCK):
            ids = np.empty(min(BLOCK, stream.tokens - start), np.int32)
            stream.copy(start, ids)
            counts += np.bincount(ids, minlength=vocab_size)
        yield TokenCounts(counts)

    name = f"counts-{stream.identity}-{vocab_size}"
    return cache.load(TokenCounts, name, build, f"counting {stream.tokens:,} tokens").counts

"""What the files of a checkpoint were when it became whole, so that damage is proven and not guessed.

The record, `files.json` in the checkpoint's own folder, gives bytes and CRC-32 of every file. It is written before
the checkpoint gets its final name, so that one without a record is rare: its record is lost, or unreadable itself.
CRC-32 is what the standard library computes fastest: 3 GB/s on one core, where blake2b gives 0.6. An object store keeps
checksums itself and gives no other bytes than it was given, so that of its files the bytes are only counted.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from input_pipeline.away import files_below
from input_pipeline.files import checksum, read_json
from input_pipeline.remote import RemotePath
from pretrain import workdir
from pretrain.workdir import DATA, METRICS, RECORD, STATE

ITEMS = (STATE, DATA, METRICS)  # the folders of a checkpoint; only Orbax's own notes lie beside them
NEEDED = (STATE, DATA)  # without metrics a checkpoint is not known to be best, and goes on as well as any
THREADS = 4  # one disk or server gives more to several readers; zlib lets other threads run while it computes

Record = dict[str, list[int | None]]  # file, relative to the checkpoint -> [bytes, CRC-32, or None]


def write(folder: Path) -> None:
    """Records the files of a checkpoint as they are now: reads each once."""
    workdir.write(folder / RECORD, json.dumps(found(folder)).encode())


def found(folder: Path) -> Record:
    """The record of its files as they are now."""
    files = [path for item in ITEMS for path in _below(folder / item)]
    with ThreadPoolExecutor(THREADS) as pool:
        sums = list(pool.map(_sum, files))
    return {str(p.relative_to(folder)): [p.stat().st_size, s] for p, s in zip(files, sums, strict=True)}


def _below(folder: Path | RemotePath) -> list[Path | RemotePath]:
    if isinstance(folder, RemotePath):
        return sorted(folder.rglob("*"))
    return sorted(map(Path, files_below(folder)))


def _sum(path: Path | RemotePath) -> int | None:
    return None if isinstance(path, RemotePath) else checksum(path)


def fingerprint(folder: Path) -> str:
    """A hash of what a checkpoint's state is, by its record, or by its files where it has none."""
    rows = sorted(_of(read(folder) or found(folder), (STATE,)))
    return hashlib.blake2b(json.dumps(rows).encode(), digest_size=8).hexdigest()


def renew(folder: Path, name: str) -> None:
    """Records one file again, which was written after the others; all else stays as it was recorded."""
    path = folder / name
    rows = (read(folder) or {}) | {name: [path.stat().st_size, _sum(path)]}
    workdir.write(folder / RECORD, json.dumps(rows).encode())


def read(folder: Path) -> Record | None:
    """The record of a checkpoint; None where it has none that can be read, so that nothing can be proven."""
    try:
        record = read_json(folder / RECORD)
        rows = {str(name): [int(size), crc if crc is None else int(crc)] for name, (size, crc) in record.items()}
        return rows if _of(rows, (STATE,)) else None
    except (FileNotFoundError, ValueError, TypeError, AttributeError, OverflowError):  # none, or not what `write` wrote
        return None


def sizes(folder: Path, record: Record, items: Iterable[str] = NEEDED) -> dict[str, str]:
    """The files of `items` that are missing or of another size, each with what is wrong with it.

    Every file is opened, which on a network's file system asks the server. One that cannot be raises OSError.
    """
    found = {}
    for name, (size, _) in _of(record, items):
        try:
            actual = _opened_size(folder / name)
        except (FileNotFoundError, NotADirectoryError):
            found[name] = f"{name} is missing"
            continue
        if actual != size:
            found[name] = f"{name} has {actual} bytes instead of {size}"
    return found


def _opened_size(path: Path | RemotePath) -> int:
    if isinstance(path, RemotePath):
        return path.stat().st_size
    with open(path, "rb", buffering=0) as file:
        return os.fstat(file.fileno()).st_size


def checksums(folder: Path, record: Record, share: int, shares: int) -> dict[str, str]:
    """The needed files whose bytes have changed; of all files this reads one share of several, which together do all.

    A file that cannot be read raises OSError.
    """
    summed = [row for row in _of(record, NEEDED) if row[1][1] is not None]
    mine = sorted(summed, key=lambda row: -row[1][0])[share::shares]  # about as many bytes for each
    with ThreadPoolExecutor(THREADS) as pool:
        sums = pool.map(checksum, [folder / name for name, _ in mine])
        return {
            name: f"{name} has other bytes than were written (CRC-32 {actual:08x} instead of {expected:08x})"
            for (name, (_, expected)), actual in zip(mine, sums, strict=True)
            if actual != expected
        }


def faults(folder: Path, record: Record, names: Iterable[str]) -> list[str]:
    """What is wrong with the files `names`, each looked at and read whole."""
    some = {name: record[name] for name in names if name in record}
    wrong = sizes(folder, some, ITEMS)
    for name, (_, expected) in some.items():
        if expected is not None and name not in wrong and checksum(folder / name) != expected:
            wrong[name] = f"{name} has other bytes than were written"
    return list(wrong.values())


def _of(record: Record, items: Iterable[str]):
    return [(name, row) for name, row in record.items() if name.partition("/")[0] in items]

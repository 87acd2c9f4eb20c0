"""Checksums of a checkpoint's files, recorded when it was written, so that damage is proven and not guessed.

The record, `files.json` in the checkpoint's folder, has size and CRC-32 of every file. CRC-32 is what the standard
library computes fastest: 3 GB/s on one core, where blake2b gives 0.6. An object store verifies content itself, so only
sizes are recorded there.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from input_pipeline import io
from pretrain.workdir import DATA, METRICS, RECORD, STATE

# zlib releases the GIL, and disks serve several readers faster than one.
THREADS = 4
# Items without which a checkpoint cannot be restored; metrics are optional.
NEEDED = (STATE, DATA)

Record = dict[str, list[int | None]]  # file, relative to the checkpoint -> [bytes, CRC-32 or None]


def write_record(folder: Path) -> None:
    """Records the files of a checkpoint as they are now."""
    io.write_json(folder / RECORD, compute_record(folder))


def compute_record(folder: Path) -> Record:
    """The record of a checkpoint's files as they are now. Reads each file once."""
    items = [folder / item for item in (STATE, DATA, METRICS)]
    files = [path for item in items if item.exists() for path in io.files_below(item)]
    with ThreadPoolExecutor(THREADS) as pool:
        rows = pool.map(_describe, files)
        return {str(path)[len(str(folder)) + 1 :]: row for path, row in zip(files, rows, strict=True)}


def _describe(path: Path) -> list[int | None]:
    return [io.info(path).size, None if io.is_remote(path) else io.checksum(path)]


def read_record(folder: Path) -> Record | None:
    """The record of a checkpoint; None without a readable one, so that nothing can be proven."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
        rows = {str(name): [int(size), crc if crc is None else int(crc)] for name, (size, crc) in record.items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return None
    return rows if _select(rows, (STATE,)) else None


def fingerprint(folder: Path) -> str:
    """A hash of a checkpoint's state, from its record or, without one, from its files."""
    rows = sorted(_select(read_record(folder) or compute_record(folder), (STATE,)).items())
    return hashlib.blake2b(json.dumps([[name, row] for name, row in rows]).encode(), digest_size=8).hexdigest()


def find_faults(folder: Path, record: Record, share: int = 0, shares: int = 1) -> list[str]:
    """Faults of a checkpoint's files: missing, of another size, or of other bytes. Errors: OSError.

    Several processes each check their `share`, so that together they read every file once.
    """
    # Sorted by size, so that shares have about as many bytes.
    rows = sorted(_select(record, NEEDED).items(), key=lambda row: (-row[1][0], row[0]))[share::shares]

    def find_fault(row) -> str | None:
        name, (size, expected) = row
        if not (path := folder / name).exists():
            return f"{name} is missing"
        if (actual := io.info(path).size) != size:
            return f"{name} has {actual} bytes instead of {size}"
        if expected is not None and (crc := io.checksum(path)) != expected:
            return f"{name} has CRC-32 {crc:08x} instead of {expected:08x}"
        return None

    with ThreadPoolExecutor(THREADS) as pool:
        return [fault for fault in pool.map(find_fault, rows) if fault]


def _select(record: Mapping, items: Iterable[str]) -> Record:
    return {name: row for name, row in record.items() if name.partition("/")[0] in items}

"""TFRecord files, read without TensorFlow.

A record is framed as uint64 length, masked CRC-32C of the length, data, masked CRC-32C of the data, little-endian
(tensorflow.org/tutorials/load_data/tfrecord, section "TFRecords format details").
"""

import functools
import mmap
import struct
from pathlib import Path

import numpy as np

from input_pipeline.errors import DataError

HEADER, FOOTER = struct.Struct("<QI"), struct.Struct("<I")
POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed
BLOCK = 1 << 11  # bytes that are looked up at once: tables of 2 MiB stay in a core's cache


@functools.cache
def _tables() -> np.ndarray:
    """The CRC of each byte followed by d zero bytes: uint32 [BLOCK, 256]."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ POLYNOMIAL, table >> 1).astype(np.uint32)
    tables = np.empty((BLOCK, 256), np.uint32)
    tables[0] = table
    for distance in range(1, BLOCK):
        tables[distance] = tables[distance - 1] >> 8 ^ table[tables[distance - 1] & 0xFF]
    return tables


def crc32c(data: bytes) -> int:
    """CRC-32C (RFC 3720, appendix B.4)."""
    state = 0xFFFFFFFF
    for start in range(0, len(data), BLOCK):
        block = np.frombuffer(data, np.uint8, min(BLOCK, len(data) - start), start).copy()
        head = min(len(block), 4)
        # The state so far counts as part of the next four bytes; CRCs of single bytes add up.
        block[:head] ^= np.frombuffer(state.to_bytes(4, "little"), np.uint8)[:head]
        places = np.arange(len(block) - 1, -1, -1)
        state = state >> 8 * head ^ int(np.bitwise_xor.reduce(_tables()[places, block]))
    return state ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """The CRC as TFRecord keeps it, rotated by 15 bits and shifted, since data may hold CRCs itself."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class TFRecords:
    """The records of one file, by number; opening it reads the headers alone."""

    def __init__(self, path: Path):
        self._path = path
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        starts, place = [], 0
        while place < size:
            starts.append(place)
            end = place + HEADER.size
            place = end + HEADER.unpack_from(self._data, place)[0] + FOOTER.size if end <= size else size + 1
            if place > size:
                raise self._damaged(len(starts) - 1)
        self._starts = np.array(starts, np.int64)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> bytes:
        """The data of a record. Errors: DataError for another checksum."""
        start = int(self._starts[number])
        length, length_crc = HEADER.unpack_from(self._data, start)
        data = self._data[start + HEADER.size : start + HEADER.size + length]
        (data_crc,) = FOOTER.unpack_from(self._data, start + HEADER.size + length)
        if length_crc != masked_crc32c(self._data[start : start + 8]) or data_crc != masked_crc32c(data):
            raise self._damaged(number)
        return data

    def _damaged(self, number: int) -> DataError:
        return DataError(f"{self._path}: record {number} is damaged or cut short. Copy or prepare the dataset again.")

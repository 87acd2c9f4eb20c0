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
    """The CRC of each byte followed by BLOCK - 1 to 0 zero bytes: uint32 [BLOCK * 256]."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ POLYNOMIAL, table >> 1).astype(np.uint32)
    tables = [table]
    while len(tables) < BLOCK:
        tables.append(tables[-1] >> 8 ^ table[tables[-1] & 0xFF])
    return np.concatenate(tables[::-1])


PLACES = np.arange(0, BLOCK * 256, 256)  # of a block's bytes in the tables


def crc32c(data: np.ndarray) -> np.ndarray:
    """CRC-32C (RFC 3720, appendix B.4) of rows of bytes, uint8 [..., n]: uint32 [...]."""
    state = np.full(data.shape[:-1], 0xFFFFFFFF, "<u4")
    for start in range(0, data.shape[-1], BLOCK):
        block = data[..., start : start + BLOCK].astype(np.intp)
        head = min(block.shape[-1], 4)
        # The state so far counts as part of the next four bytes; CRCs of single bytes add up.
        block[..., :head] ^= state[..., None].view(np.uint8)[..., :head]
        block += PLACES[-block.shape[-1] :]
        rest = state >> 8 * head if head < 4 else np.uint32(0)
        state = np.asarray(np.bitwise_xor.reduce(_tables().take(block), axis=-1) ^ rest, "<u4")
    return state ^ np.uint32(0xFFFFFFFF)


def masked_crc32c(data: np.ndarray) -> np.ndarray:
    """The CRC as TFRecord keeps it, rotated by 15 bits and shifted, since data may hold CRCs itself."""
    crc = crc32c(data).astype(np.uint64)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).astype(np.uint32)


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
        headers = np.frombuffer(self._data, np.uint8)[self._starts[:, None] + np.arange(HEADER.size)]
        right = masked_crc32c(headers[:, :8]) == headers[:, 8:].copy().view("<u4")[:, 0]
        if not right.all():
            raise self._damaged(int(right.argmin()))

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> bytes:
        """The data of a record. Errors: DataError for another checksum."""
        start = int(self._starts[number])
        (length, _), start = HEADER.unpack_from(self._data, start), start + HEADER.size
        data = self._data[start : start + length]
        if FOOTER.unpack_from(self._data, start + length)[0] != masked_crc32c(np.frombuffer(data, np.uint8)):
            raise self._damaged(number)
        return data

    def _damaged(self, number: int) -> DataError:
        return DataError(f"{self._path}: record {number} is damaged or cut short. Copy or prepare the dataset again.")

"""Pages of packed tokens, read and verified without Arrow: one copy, to where they are wanted.

The tokens of a row group are one page: a short header, then the values as they are. Arrow reads
that into fresh memory. Here it is read into the memory of the rows, or, where only some rows are
wanted, into the same memory again and again, so that what follows finds it in the L2 cache. What is
not exactly as our writer leaves it is left to Arrow.
"""

from __future__ import annotations

import functools
import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from numpy.typing import NDArray

_MOST_HEADER_BYTES = 64

# The CRC's polynomial divides x^_HIGH + x^_LOW + 1 (found by search), so also the same with both
# exponents times 8. A byte at p thus adds to the CRC what it would add at p + _NEAR and at
# p + _HIGH together: the head of a page can be folded into its last _HIGH bytes.
_HIGH, _LOW = 91_639, 41_678
_NEAR = _HIGH - _LOW


class TokenPages:
    """Reads and verifies pages, in memory of its own; for one thread."""

    def __init__(self) -> None:
        self._header = np.empty(_MOST_HEADER_BYTES, np.uint8)
        self._values = np.empty(0, np.uint8)
        self._folded = np.empty(0, np.uint8)
        self._folds: list[tuple[slice | NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]]

    def read(
        self,
        file: pa.NativeFile,
        chunk: pq.ColumnChunkMetaData,
        num_rows: int,
        row_bytes: int,
        into: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8] | None:
        """Return the rows of a column chunk, (R, row_bytes), until the next call.

        None unless it is the tokens, one page without levels or compression, and its CRC is right.

        Args:
            file: to read it from.
            chunk: where it is.
            num_rows: how many rows it must have (R).
            row_bytes: bytes of each.
            into: contiguous memory for them, (R, row_bytes), to be overwritten and returned.

        Raises:
            OSError: it can't be read.
        """
        num_bytes, size = num_rows * row_bytes, chunk.total_compressed_size
        header_bytes = size - num_bytes
        if not 0 < header_bytes <= _MOST_HEADER_BYTES or chunk.path_in_schema != "tokens":
            return None
        if len(self._folded) != num_bytes:
            self._make_room(num_bytes)
        values = self._values if into is None else into.reshape(-1)
        found = self._header[:header_bytes]
        file.seek(chunk.data_page_offset)
        if file.readinto(found) != header_bytes or file.readinto(values) != num_bytes:
            return None
        before, after = _header(num_bytes, num_rows)
        if found.tobytes() != before + _coded(_signed(self._crc(values))) + after:
            return None
        return values.reshape(num_rows, row_bytes)

    def _make_room(self, num_bytes: int) -> None:
        """Lay out memory for pages of so many bytes of values, and the steps of their CRC."""
        self._values = np.empty(num_bytes, np.uint8)
        folded = self._folded = np.empty(num_bytes, np.uint8)
        self._folds = []
        behind = num_bytes - _HIGH  # bytes from here on are not folded any further
        for first in range(_NEAR, num_bytes if behind > _NEAR else 0, _NEAR):
            last = min(first + _NEAR, num_bytes)
            # Each byte and those that are folded into it, at most two.
            near, high = max(first, min(last, behind + _NEAR)), min(max(first, _HIGH), last)
            nothing = np.zeros(1, np.uint8)
            shifted, farther = folded[first - _NEAR : near - _NEAR], folded[high - _HIGH :]
            self._folds += [
                (slice(first, near), shifted, folded[first:near]),
                (slice(near, last), nothing, folded[near:last]),
                (folded[high:last], farther[: last - high], folded[high:last]),
            ]
        self._folds = [fold for fold in self._folds if len(fold[2])]

    def _crc(self, values: NDArray[np.uint8]) -> int:
        """Return the CRC-32 of the values, that of zlib, in half of its time for large pages."""
        if not self._folds:
            return zlib.crc32(values.data)
        self._folded[:_NEAR] = values[:_NEAR]
        self._folded[:4] ^= 0xFF  # a CRC begins with all bits set
        for one, other, into in self._folds:
            np.bitwise_xor(values[one] if isinstance(one, slice) else one, other, out=into)
        return zlib.crc32(self._folded[-_HIGH:].data, 0xFFFFFFFF)


@functools.lru_cache(maxsize=16)
def _header(num_bytes: int, num_values: int) -> tuple[bytes, bytes]:
    """Return what stands before and after the CRC in a page header: Thrift's compact protocol."""
    size = _coded(num_bytes)
    # Type DATA_PAGE, the bytes of the values twice, the CRC; a struct of how many values there are,
    # PLAIN, levels RLE twice, and statistics, which are empty.
    before = b"\x15\x00\x15" + size + b"\x15" + size + b"\x15"
    after = b"\x1c\x15" + _coded(num_values) + b"\x15\x00\x15\x06\x15\x06\x1c\x00\x00\x00"
    return before, after


def _signed(number: int) -> int:
    return number - (1 << 32) if number >> 31 else number


def _coded(number: int) -> bytes:
    """Return an integer as a zigzag varint."""
    number = (number << 1) ^ (number >> 63)
    coded = bytearray()
    while number > 0x7F:
        coded.append(number & 0x7F | 0x80)
        number >>= 7
    coded.append(number)
    return bytes(coded)

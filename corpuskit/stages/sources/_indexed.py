"""Megatron's indexed datasets: a `.bin` of token ids, and an `.idx` that says where.

An index is a header (magic, version, code of the ids' type, S, D), S int32 lengths of sequences, S
int64 byte offsets into the `.bin`, and D int64 bounds of documents, each a number of sequences: the
first is 0, the last is S. S int8 modes may follow, which nothing here reads. All little endian.

Source: megatron-core 0.16.1, `megatron/core/datasets/indexed_dataset.py`. Letters: S sequences, N
documents, T token ids.
"""

from __future__ import annotations

import contextlib
import os
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.errors import DataError
from corpuskit.storage import open_input

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedIOBase

    from numpy.typing import NDArray

MAGIC = b"MMIDIDX\0\0"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
CHUNK = 1 << 20
"""Entries of an index that are in memory at a time."""

_OLDER = b"TNTIDX"
_BOUND_BYTES, _LENGTH_BYTES, _POINTER_BYTES = 8, 4, 8


def index_path(path: str) -> str:
    """Return the address of the index that belongs to a `.bin`.

    Raises:
        DataError: the file is called something else.
    """
    stem, ending = os.path.splitext(path)
    if ending != ".bin":
        raise DataError(f"{path}: must end in .bin. Name the file of ids; its .idx lies beside it.")
    return f"{stem}.idx"


class IndexFile:
    """An open index.

    Attributes:
        path: where it is.
        dtype: of the ids in the `.bin`.
        num_sequences: S.
        num_docs: N.

    Raises:
        DataError: it is no index, or its size is not what its header says.
    """

    def __init__(self, path: str, file: BufferedIOBase) -> None:
        self.path, self._file = path, file
        size = file.seek(0, os.SEEK_END)
        head = self._bytes(0, min(size, HEADER.size))
        if head.startswith(_OLDER):
            raise DataError(
                f"{path}: byte 0: an index of fairseq's older kind (TNTIDX). Convert the files "
                "with the version of Megatron that wrote them."
            )
        if not head.startswith(MAGIC) or len(head) < HEADER.size:
            raise DataError(
                f"{path}: byte 0: an index of Megatron begins with {MAGIC!r}, this file with "
                f"{head[:9]!r}."
            )
        _, version, code, self.num_sequences, bounds = HEADER.unpack(head)
        if version != VERSION:
            raise DataError(f"{path}: byte 9: version must be {VERSION}, got {version}.")
        if code not in DTYPES:
            raise DataError(f"{path}: byte 17: no type of ids has the code {code}, 1 to 8 have.")
        self.dtype = np.dtype(DTYPES[code])
        self._pointers = HEADER.size + self.num_sequences * _LENGTH_BYTES
        self._bounds = self._pointers + self.num_sequences * _POINTER_BYTES
        end = self._bounds + bounds * _BOUND_BYTES
        if size not in (end, end + self.num_sequences):  # with modes
            raise DataError(
                f"{path}: has {size:,} bytes; {self.num_sequences:,} sequences and {bounds:,} "
                f"bounds of documents take {end:,}. Copy it again."
            )
        if not bounds:
            raise DataError(f"{path}: byte 26: must have a bound of documents, got 0.")
        self.num_docs = bounds - 1

    def lengths(self, begin: int, end: int) -> NDArray[np.int32]:
        """Return the tokens of sequences [begin, end).

        Raises:
            DataError: one is below 0.
        """
        at = HEADER.size + begin * _LENGTH_BYTES
        found = np.frombuffer(self._bytes(at, (end - begin) * _LENGTH_BYTES), "<i4")
        if len(found) and found.min() < 0:
            bad = int(np.argmax(found < 0))
            raise DataError(
                f"{self.path}: byte {at + bad * _LENGTH_BYTES}: sequence {begin + bad} has a "
                f"length of {found[bad]}. Write the index again."
            )
        return found

    def pointers(
        self, begin: int, lengths: NDArray[np.int32], size_bytes: int
    ) -> NDArray[np.int64]:
        """Return where in the `.bin` the sequences [begin, begin + len(lengths)) start, in bytes.

        Raises:
            DataError: one lies outside of a `.bin` of `size_bytes`.
        """
        at = self._pointers + begin * _POINTER_BYTES
        found = np.frombuffer(self._bytes(at, len(lengths) * _POINTER_BYTES), "<i8")
        room = size_bytes - lengths.astype(np.int64) * self.dtype.itemsize
        outside = (found < 0) | (found > room)
        if outside.any():
            bad = int(np.argmax(outside))
            raise DataError(
                f"{self.path}: byte {at + bad * _POINTER_BYTES}: sequence {begin + bad}, of "
                f"{lengths[bad]} ids of {self.dtype.itemsize} bytes, starts at {found[bad]}, and "
                f"the .bin has {size_bytes:,} bytes. Copy both files again."
            )
        return found

    def bounds(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the bounds of documents [begin, end): (end - begin + 1,) numbers of sequences.

        Raises:
            DataError: they fall, or are not those of all sequences.
        """
        at = self._bounds + begin * _BOUND_BYTES
        found = np.frombuffer(self._bytes(at, (end - begin + 1) * _BOUND_BYTES), "<i8")
        wrong = np.diff(found, prepend=found[0]) < 0
        wrong |= (found < 0) | (found > self.num_sequences)
        wrong[0] |= begin == 0 and found[0] != 0
        wrong[-1] |= end == self.num_docs and found[-1] != self.num_sequences
        if wrong.any():
            bad = int(np.argmax(wrong))
            raise DataError(
                f"{self.path}: byte {at + bad * _BOUND_BYTES}: bounds of documents must rise from "
                f"0 to the {self.num_sequences} sequences, number {begin + bad} is {found[bad]}. "
                "Write the index again."
            )
        return found

    def token_ends(self, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tokens lie between the first of ascending bounds and each of them."""
        ends = np.zeros(len(bounds), np.int64)
        total = 0
        for begin in range(int(bounds[0]), int(bounds[-1]), CHUNK):
            end = min(begin + CHUNK, int(bounds[-1]))
            sums = np.cumsum(self.lengths(begin, end), dtype=np.int64)
            here = slice(*np.searchsorted(bounds, [begin, end], side="right"))
            ends[here] = total + sums[bounds[here] - begin - 1]
            total += int(sums[-1])
        return ends

    def check(self, size_bytes: int) -> None:
        """Check all lengths, offsets and bounds, CHUNK of each in memory.

        Raises:
            DataError: one is wrong; names its byte in the index.
        """
        for begin in range(0, self.num_sequences, CHUNK):
            end = min(begin + CHUNK, self.num_sequences)
            self.pointers(begin, self.lengths(begin, end), size_bytes)
        for begin in range(0, max(self.num_docs, 1), CHUNK):
            self.bounds(begin, min(begin + CHUNK, self.num_docs))

    def _bytes(self, at: int, size: int) -> bytes:
        self._file.seek(at)
        found = self._file.read(size)
        if len(found) != size:
            raise DataError(
                f"{self.path}: byte {at}: {size} bytes were due, {len(found)} came. Copy it again."
            )
        return found


@contextlib.contextmanager
def open_index(path: str) -> Iterator[IndexFile]:
    """Open the index at a path or address.

    Raises:
        DataError: it is none.
    """
    with contextlib.closing(open_input(path)) as file:
        yield IndexFile(path, file)


def read_ids(
    path: str,
    file: BufferedIOBase,
    dtype: np.dtype[np.generic],
    pointers: NDArray[np.int64],
    lengths: NDArray[np.int32],
) -> NDArray[np.uint32]:
    """Return the ids of sequences one behind the other, (T,); neighbours are read at once.

    Raises:
        DataError: the file ends early, or something in it is no id of 32 bits; names the byte.
    """
    sizes = lengths.astype(np.int64) * dtype.itemsize
    wanted = np.flatnonzero(sizes)
    starts, ends = pointers[wanted], pointers[wanted] + sizes[wanted]
    breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    firsts, lasts = np.append(0, breaks), np.append(breaks, len(wanted)) - 1
    pieces = [np.zeros(0, np.uint32)]
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True) if len(wanted) else ():
        start, end = int(starts[first]), int(ends[last])
        file.seek(start)
        content = file.read(end - start)
        if len(content) != end - start:
            raise DataError(
                f"{path}: byte {start}: {end - start} bytes were due, {len(content)} came. Copy it "
                "again."
            )
        pieces.append(_as_ids(path, start, np.frombuffer(content, dtype)))
    return np.concatenate(pieces) if len(pieces) > 2 else pieces[-1]


def _as_ids(path: str, start: int, values: NDArray[Any]) -> NDArray[np.uint32]:
    """Return stored values as ids; those of 16 or 8 unsigned bits can't be wrong."""
    kind, most = values.dtype.kind, np.iinfo(np.uint32).max
    if kind != "u" and len(values) and not (values.min() >= 0 and values.max() <= most):
        wrong = ~((values >= 0) & (values <= most))
    elif kind == "f":
        wrong = values != np.floor(values)
    else:
        return values.astype(np.uint32)
    if wrong.any():
        bad = int(np.argmax(wrong))
        raise DataError(
            f"{path}: byte {start + bad * values.itemsize}: {values[bad]} is no token id. If the "
            "type of ids in the .idx is right, the .bin is broken: copy it again."
        )
    return values.astype(np.uint32)

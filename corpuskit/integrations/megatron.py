"""Writes Megatron's indexed datasets; neither Megatron nor torch is needed.

A dataset is a `.bin` of token ids and an `.idx`: a header (magic, version, code of the ids' type,
S, D), S int32 lengths of sequences, S int64 byte offsets into the `.bin`, and D int64 bounds of
documents, each a number of sequences: the first is 0, the last is S. All little endian.

Source: megatron-core 0.16.1, `megatron/core/datasets/indexed_dataset.py`. Letters: S sequences, D
bounds (one more than documents), T token ids.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.errors import DataError
from corpuskit.storage.local import DigestedFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

MAGIC, VERSION = b"MMIDIDX\0\0", 1
HEADER = struct.Struct("<9sQBQQ")
CODES = {"uint16": 8, "int32": 4}
SMALL_VOCABULARY = 65_500
"""Megatron stores ids of smaller vocabularies as uint16, all others as int32."""

INDEX_BYTES, SPOOL_BYTES = 20, 4
"""Of a sequence: in the index, and in the file that lengths wait in."""

CHUNK = 1 << 18  # entries of an index that are in memory at a time


def stored_type(dtype: np.dtype[np.unsignedinteger], vocab_size: int) -> np.dtype[np.integer]:
    """Return the type that Megatron gives ids, as its `DType.optimal_dtype` does."""
    is_small = vocab_size < SMALL_VOCABULARY and dtype.itemsize == 2
    return np.dtype("<u2") if is_small else np.dtype("<i4")


class MegatronWriter:
    """Writes one `.bin` and its `.idx`; each sequence is a document of its own.

    Args:
        folder: where the files are made.
        name: theirs, without an ending.
        dtype: of the ids that are given.
        vocab_size: ids are below it.
    """

    def __init__(
        self, folder: Path, name: str, dtype: np.dtype[np.unsignedinteger], vocab_size: int
    ) -> None:
        self.dtype = stored_type(dtype, vocab_size)
        self._stem, self._name = folder / name, name
        self._bin = _create(folder / f"{name}.bin")
        self._lengths = (folder / f"{name}.lengths").open("xb")
        self.num_sequences = 0

    def add(self, ids: NDArray[np.unsignedinteger], lengths: NDArray[np.int64]) -> None:
        """Append sequences: (T,) ids, and how many of them each sequence has.

        Raises:
            DataError: an id is beyond 2**31, which Megatron can't store.
        """
        if ids.dtype.itemsize == 4 and len(ids) and ids.max() >= 1 << 31:
            raise DataError(
                f"{self._name}: Megatron stores ids of 31 bits, got {ids.max()}. Use another "
                "tokenizer."
            )
        self._bin.write(ids.astype(self.dtype, copy=False).data)
        self._lengths.write(lengths.astype("<i4").data)
        self.num_sequences += len(lengths)

    def abandon(self) -> None:
        """Close the files as they are."""
        self._bin.close()
        self._lengths.close()

    def close(self) -> list[DigestedFile]:
        """Return the complete files, in the order in which they are to appear."""
        self.abandon()
        with _create(self._stem.with_name(f"{self._name}.idx")) as index:
            code = CODES[self.dtype.name]
            index.write(
                HEADER.pack(MAGIC, VERSION, code, self.num_sequences, self.num_sequences + 1)
            )
            for lengths in self._spooled():
                index.write(lengths)
            end = np.int64(0)
            for lengths in self._spooled():
                ends = end + np.cumsum(lengths, dtype=np.int64) * self.dtype.itemsize
                index.write(np.append(end, ends[:-1]))
                end = ends[-1]
            for first in range(0, self.num_sequences + 1, CHUNK):
                last = min(first + CHUNK, self.num_sequences + 1)
                index.write(np.arange(first, last, dtype="<i8"))
        return [self._bin, index]

    def _spooled(self) -> Iterator[NDArray[np.int32]]:
        with open(self._lengths.name, "rb") as file:
            while content := file.read(4 * CHUNK):
                yield np.frombuffer(content, "<i4")


def _create(path: Path) -> DigestedFile:
    return DigestedFile(path, hashlib.blake2b(digest_size=16))

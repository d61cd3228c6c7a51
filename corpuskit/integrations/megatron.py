"""Writes Megatron's indexed datasets; neither Megatron nor torch is needed.

The format is described in `corpuskit.stages.sources._indexed`, which reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.errors import DataError
from corpuskit.integrations._digested import CHUNK, DigestedFile, column, running
from corpuskit.stages.sources._indexed import HEADER, MAGIC, VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from corpuskit.integrations._digested import Written

SMALL_VOCABULARY = 65_500
"""Megatron stores ids of smaller vocabularies as uint16, all others as int32."""

INDEX_BYTES, SPOOL_BYTES = 20, 4
"""Of a sequence: in the index, and in the file that lengths wait in."""

_CODES = {"uint16": 8, "int32": 4}


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
        vocab_size: what they are below.
    """

    rows_by_size = False

    def __init__(
        self, folder: Path, name: str, dtype: np.dtype[np.unsignedinteger], vocab_size: int
    ) -> None:
        self.dtype = stored_type(dtype, vocab_size)
        self._folder, self._name = folder, name
        self._bin = DigestedFile(folder / f"{name}.bin")
        self._lengths = DigestedFile(folder / f"{name}.lengths")
        self.num_sequences = 0

    def add(self, ids: NDArray[np.unsignedinteger], lengths: NDArray[np.int64]) -> None:
        """Append sequences: (T,) ids, and how many of them each sequence has.

        Raises:
            DataError: an id is beyond 2**31, which Megatron can't store.
        """
        if ids.dtype.itemsize == self.dtype.itemsize:
            if ids.dtype.itemsize == 4 and len(ids) and ids.max() >= 1 << 31:
                raise DataError(
                    f"{self._name}: Megatron stores ids of 31 bits, got {ids.max()}. Use another "
                    "tokenizer."
                )
            self._bin.write(ids.view(self.dtype))
        else:
            self._bin.write(ids.astype(self.dtype))
        self._lengths.write(lengths.astype("<i4"))
        self.num_sequences += len(lengths)

    def abandon(self) -> None:
        """Close the files as they are."""
        self._bin.close()
        self._lengths.close()

    def close(self) -> list[Written]:
        """Return the complete files, in the order in which they are to appear."""
        ids, spool = self._bin.close(), self._lengths.close().path
        with DigestedFile(self._folder / f"{self._name}.idx") as index:
            code = _CODES[self.dtype.name]
            index.write(
                HEADER.pack(MAGIC, VERSION, code, self.num_sequences, self.num_sequences + 1)
            )
            for lengths in column(spool, "<i4"):
                index.write(lengths)
            width = self.dtype.itemsize
            running(column(spool, "<i4"), lambda begins: index.write(begins * width))
            for first in range(0, self.num_sequences + 1, CHUNK):
                last = min(first + CHUNK, self.num_sequences + 1)
                index.write(np.arange(first, last, dtype="<i8"))
            return [ids, index.close()]

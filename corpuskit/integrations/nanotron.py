"""Tokenized files as datatrove writes them and nanotron reads them.

`NAME.ds` has nothing but ids, 2 or 4 bytes each, little endian; `NAME.ds.index` where each document
ends, in tokens (uint64); `NAME.ds.metadata` three lines of text: tokenizer and bytes of an id, the
number of tokens, and that number for people.

Source: datatrove 0.10.1, `pipeline/tokens/tokenizer.py:TokenizedFile` and `utils/dataset.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.errors import UsageError
from corpuskit.integrations._digested import DigestedFile

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from corpuskit.integrations._digested import Written

INDEX_BYTES, SPOOL_BYTES = 8, 0
"""Of a document: in the index, and in files that are gone afterwards."""


class NanotronWriter:
    """Writes one `.ds` with its index and metadata.

    Args:
        folder: where the files are made.
        name: theirs, without an ending.
        dtype: of the ids that are given, and stored.
        tokenizer: its name, for the metadata.

    Raises:
        UsageError: the metadata can't hold that name.
    """

    rows_by_size = True
    """Readers cut the file into rows by size, so the index is free to tell documents apart."""

    def __init__(
        self, folder: Path, name: str, dtype: np.dtype[np.unsignedinteger], tokenizer: str
    ) -> None:
        if not tokenizer or set(tokenizer) & set("|\r\n"):
            raise UsageError(
                f"--tokenizer-name must not be empty nor have '|' or line ends, got {tokenizer!r}."
            )
        self.dtype: np.dtype[np.integer] = dtype
        self._folder, self._name, self._tokenizer = folder, name, tokenizer
        self._ids = DigestedFile(folder / f"{name}.ds")
        self._index = DigestedFile(folder / f"{name}.ds.index")
        self._end = self.num_sequences = 0

    def add(self, ids: NDArray[np.unsignedinteger], lengths: NDArray[np.int64]) -> None:
        """Append documents: (T,) ids, and how many of them each document has."""
        self._ids.write(ids)
        self._index.write((self._end + np.cumsum(lengths)).astype("<u8"))
        self._end += len(ids)
        self.num_sequences += len(lengths)

    def abandon(self) -> None:
        """Close the files as they are."""
        self._ids.close()
        self._index.close()

    def close(self) -> list[Written]:
        """Return the complete files, in the order in which they are to appear."""
        head = f"{self._tokenizer}|{self.dtype.itemsize}"
        with DigestedFile(self._folder / f"{self._name}.ds.metadata") as file:
            file.write("\n".join([head, str(self._end), count_words(self._end)]).encode())
            metadata = file.close()
        return [self._ids.close(), metadata, self._index.close()]


def count_words(tokens: int) -> str:
    """Return a number of tokens as datatrove does: three digits and a metric prefix."""
    exponent = math.floor(math.log10(tokens)) if tokens else 0
    digits = max(0, 2 - exponent % 3)
    value = tokens / 10 ** (exponent // 3 * 3)
    if round(value, digits) >= 10 ** (exponent % 3 + 1):  # 999.9 k is 1.00 M
        exponent += 1
        value = tokens / 10 ** (exponent // 3 * 3)
        digits = max(0, 2 - exponent % 3)
    prefix = "kMGTPE"[exponent // 3 - 1] if exponent >= 3 else ""
    return f"{value:.{digits}f} {prefix}T"

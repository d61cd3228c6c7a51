"""Files that are hashed as they are written."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from numpy.typing import NDArray

CHUNK = 1 << 18
"""Entries of a column that are in memory at a time."""


class Written(NamedTuple):
    """A file that is complete: `digest` is the blake2b-128 of its bytes."""

    path: Path
    size_bytes: int
    digest: str


class DigestedFile:
    """A new file, written from front to back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb", buffering=0)
        self._hash = hashlib.blake2b(digest_size=16)
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def write(self, content: bytes | NDArray[np.generic]) -> None:
        """Append bytes, or an array as it lies in memory."""
        view = memoryview(content if isinstance(content, bytes) else content.view(np.uint8).data)
        self._hash.update(view)
        self._size += len(view)
        while view:  # a file without a buffer may take a part only
            view = view[self._file.write(view) :]

    def close(self) -> Written:
        """Close the file and return what was written."""
        self._file.close()
        return Written(self._path, self._size, self._hash.hexdigest())


def column(path: Path, kind: str) -> Iterator[NDArray[np.generic]]:
    """Yield the values of a file of numbers, CHUNK at a time."""
    width = np.dtype(kind).itemsize
    with path.open("rb") as file:
        while content := file.read(CHUNK * width):
            yield np.frombuffer(content, kind)


def running(
    pieces: Iterator[NDArray[np.generic]], write: Callable[[NDArray[np.int64]], None]
) -> int:
    """Write the sum of all numbers before each number, and return the sum of all."""
    total = 0
    for piece in pieces:
        ends = total + np.cumsum(piece, dtype=np.int64)
        write(np.append(total, ends[:-1]))
        total = int(ends[-1])
    return total

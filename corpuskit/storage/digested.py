"""A file that is hashed as it is written."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import os


class _Hash(Protocol):
    def update(self, content: Any, /) -> None: ...
    def hexdigest(self) -> str: ...


class DigestedFile(io.BufferedWriter):
    """A file that is written from its beginning to its end.

    Args:
        path: of the file.
        digest: of hashlib or xxhash.
        mode: `xb` for a file that must not exist, `wb`.

    Attributes:
        size_bytes: bytes written so far.
        digest: takes the same bytes; complete, as the file is, once it is closed.
    """

    def __init__(self, path: str | os.PathLike[str], digest: _Hash, mode: str = "xb") -> None:
        super().__init__(io.FileIO(path, mode))
        self.size_bytes, self.digest = 0, digest

    def write(self, content: Any, /) -> int:
        """Append bytes, or an array as it lies in memory."""
        self.digest.update(content)
        self.size_bytes += memoryview(content).nbytes
        return super().write(content)

    def fileno(self) -> int:
        """Return the descriptor; torch syncs it, of `.metadata` without a flush before."""
        self.flush()
        return super().fileno()

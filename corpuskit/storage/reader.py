"""An object as a file: range reads, exact where the reader jumps, ahead of it where it goes on."""

from __future__ import annotations

import functools
import io
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corpuskit.storage.client import Bucket, Entry

LEAST_BYTES = 64 << 10
"""Asked for at least: as fast as less."""

FIRST_AHEAD_BYTES = 256 << 10
MOST_AHEAD_BYTES = 4 << 20
"""Asked for in a file that is read from front to back; one such request is always under way."""

MOST_BYTES = 32 << 20
"""Asked for at most, so that a slow line answers in time."""

FOOTED = (".parquet", ".arrow")
"""Files that are read from their end: one request serves for size, footer and small files whole."""


class ObjectFile(io.BufferedIOBase):
    """An object, open for reading from any position.

    It reads the object that it opened: should it be replaced meanwhile, reading fails. Threads may
    share it as they may share a file; requests of one file go one after another.

    Raises:
        FileNotFoundError: there is no such object.

    Attributes:
        size_bytes: of the object.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket, self._key = bucket, key
        self._lock = threading.RLock()
        self._window = memoryview(b"")
        self._entry = self._open()
        self.size_bytes = self._entry.size_bytes
        self._begin = self.size_bytes - len(self._window)
        self._at = self._ahead_bytes = 0
        self._coming: tuple[int, Future[memoryview]] | None = None

    @property
    def name(self) -> str:
        """The address."""
        return self._bucket.place(self._key)

    def _open(self) -> Entry:
        if self._key.endswith(FOOTED):
            try:
                self._window, entry = self._bucket.read_tail(self._key, LEAST_BYTES)
            except FileNotFoundError:
                raise
            except OSError:  # an empty object has no last byte; a HEAD says what else there is
                self._window = memoryview(b"")
            else:
                return entry
        found = self._bucket.head(self._key)
        if found is None:
            raise FileNotFoundError(2, "there is no such object", self._bucket.place(self._key))
        return found

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check_open()
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check_open()
        with self._lock:
            start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size_bytes}[whence]
            if start + offset < 0:
                raise ValueError(f"{self.name}: position {start + offset} is before the start.")
            self._at = start + offset
            return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        self._check_open()
        with self._lock:
            wanted = self.size_bytes if size is None or size < 0 else self._at + size
            end = min(wanted, self.size_bytes)
            pieces = []
            while self._at < end:
                pieces.append(self._piece(end))
                self._at += len(pieces[-1])
            return b"".join(pieces)

    def read1(self, size: int = -1, /) -> bytes:
        self._check_open()
        with self._lock:
            wanted = LEAST_BYTES if size < 0 else size
            content = bytes(self._piece(min(self._at + wanted, self.size_bytes)))
            self._at += len(content)
            return content

    def peek(self, size: int = 0, /) -> bytes:
        """Return some bytes from here on without moving; none at the end."""
        self._check_open()
        with self._lock:
            return bytes(self._piece(min(self._at + LEAST_BYTES, self.size_bytes)))

    def close(self) -> None:
        with self._lock:
            self._window, self._coming = memoryview(b""), None
        super().close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self.name}: the file is closed.")

    def _piece(self, end: int) -> memoryview:
        """Return the next bytes up to `end`, as many as one request brings."""
        if self._at >= end:
            return memoryview(b"")
        if not self._begin <= self._at < self._begin + len(self._window):
            self._load(end)
        inside = self._at - self._begin
        return self._window[inside : inside + end - self._at]

    def _load(self, end: int) -> None:
        """Fetch a window that starts here."""
        goes_on = self._at == self._begin + len(self._window) and self._at > 0
        if goes_on:
            self._ahead_bytes = min(max(2 * self._ahead_bytes, FIRST_AHEAD_BYTES), MOST_AHEAD_BYTES)
        else:
            self._ahead_bytes = 0
        coming, self._coming = self._coming, None
        if coming is not None and coming[0] == self._at:
            self._window = coming[1].result()
        else:
            self._window = self._fetch(self._at, max(end - self._at, self._ahead_bytes))
        self._begin = self._at
        follows = self._begin + len(self._window)
        if self._ahead_bytes == MOST_AHEAD_BYTES and end <= follows < self.size_bytes:
            future = _readers(os.getpid()).submit(self._fetch, follows, MOST_AHEAD_BYTES)
            self._coming = (follows, future)

    def _fetch(self, begin: int, size: int) -> memoryview:
        end = min(begin + min(max(size, LEAST_BYTES), MOST_BYTES), self.size_bytes)
        return self._bucket.read_range(self._key, begin, end, self._entry.tag)


@functools.lru_cache(maxsize=1)
def _readers(process: int) -> ThreadPoolExecutor:
    """Return the threads that read ahead: those of this process, not of one it was forked from."""
    return ThreadPoolExecutor(8, "read-ahead")

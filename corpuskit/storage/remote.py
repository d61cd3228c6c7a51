"""A run directory in an object store, and input objects as files.

A put is whole or not at all, a large one too (multipart: its parts are no object until the last
request). So publishing is one put under the final name; nothing is renamed or copied.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import io
import os
import re
import shutil
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.errors import DataError, UsageError
from corpuskit.storage.client import RetryPolicy, open_bucket, split
from corpuskit.storage.faults import cleaning, fault_point
from corpuskit.storage.lease import LEASE_SECONDS, RENEW_SECONDS, Lease, lease_retries
from corpuskit.storage.local import LocalStore
from corpuskit.storage.search import found_file
from corpuskit.storage.store import SCRATCH, DamagedError, Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from corpuskit.storage.client import Bucket, Entry
    from corpuskit.storage.store import FoundFile, Stored

LOCK = "lock"
DELETED_AT_ONCE = 1_000
READ_AT_ONCE, READ_EACH = 32, 1_024
CONTROL = re.compile(r"[\x00-\x1f\x7f]")

LEAST_BYTES = 64 << 10
"""Smallest request: a smaller one is not faster."""

FIRST_AHEAD_BYTES = 256 << 10
MOST_AHEAD_BYTES = 4 << 20
"""Requests in a file that is read from front to back grow from the first size to the last; at the
last size the next one is always under way."""

MOST_BYTES = 32 << 20
"""Largest request, so that a slow network answers within the time limit."""

WITH_FOOTER = (".parquet", ".arrow")
"""Files that are read from their end: one request brings the size, the footer, and small files."""


class RemoteStore(Store):
    """A run directory in an object store: S3, Google Cloud Storage or Azure Blob Storage.

    Credentials, region and endpoint come from the environment alone.

    Args:
        address: `s3://bucket/prefix`, `gs://bucket/prefix`, or `az://container/prefix`.
        retries: how long requests are retried.
        renew_seconds: between two renewals of the lock by its holder.
        lease_seconds: without a renewal, after which the lock is free.

    Raises:
        UsageError: the address cannot be used, or the extra `s3` is not installed.
    """

    is_remote = True

    def __init__(
        self,
        address: str,
        *,
        retries: RetryPolicy | None = None,
        renew_seconds: float = RENEW_SECONDS,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        bucket, prefix = split(address)
        self.address, self._prefix = address.rstrip("/"), prefix.strip("/")
        if self._prefix and not _is_plain(self._prefix):
            raise UsageError(f"{address}: empty, '.' and '..' folders are no use. Leave them out.")
        self._retries, self._renew, self._lease_time = retries, renew_seconds, lease_seconds
        self._bucket = open_bucket(bucket, retries)
        self._lease: Lease | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.address, self._retries, self._renew, self._lease_time)

    def _key(self, name: str) -> str:
        self.check(name)
        if not _is_plain(name):
            raise DataError(f"{self.address}: the path {name!r} is no name of an object.")
        return f"{self._prefix}/{name}" if self._prefix else name

    def _folder(self, folder: str) -> str:
        return self._key(folder) if folder else self._prefix

    def where(self, name: str) -> str:
        return self._bucket.address(self._key(name))

    def size(self, name: str) -> int | None:
        key = self._key(name)
        fault_point("size:before", name)
        entry = self._bucket.head(key)
        return None if entry is None else entry.size_bytes

    def read(self, name: str) -> bytes:
        key = self._key(name)
        fault_point("read:before", name)
        answer = self._bucket.read(key)
        if answer is None:
            raise DataError(f"{self._bucket.address(key)}: the file is missing.")
        return answer[0]

    def read_each(self, names: Iterable[str]) -> Iterator[bytes | None]:
        """Yield the contents of many small files in order, None for what is not there.

        READ_AT_ONCE requests are under way at any time.
        """
        keys = [self._key(name) for name in names]
        with ThreadPoolExecutor(READ_AT_ONCE, "read-each") as pool:
            for begin in range(0, len(keys), READ_EACH):
                for answer in pool.map(self._bucket.read, keys[begin : begin + READ_EACH]):
                    yield None if answer is None else answer[0]

    def open(self, name: str) -> pa.NativeFile:
        import pyarrow as pa

        key = self._key(name)
        fault_point("read:before", name)
        return pa.PythonFile(ObjectFile(self._bucket, key), mode="r")

    def put(self, name: str, content: bytes) -> None:
        key = self._key(name)
        fault_point("put:before", name)
        (self._lease or self._bucket).put(key, content)
        fault_point("put:after", name)

    def put_new(self, name: str, content: bytes) -> bool:
        key = self._key(name)
        fault_point("put:before", name)
        bucket = self._lease.guarded if self._lease else self._bucket
        is_new = bucket.put_new(key, content) is not None
        fault_point("put:after", name)
        return is_new

    def publish(self, scratch: Path, name: str) -> None:
        key = self._key(name)
        fault_point("publish:before", str(scratch))
        if self._lease:  # once: the name holds the hash of the content, so none is replaced
            self._lease.check()
        self._bucket.put_file(scratch, key)
        fault_point("publish:after", name)
        scratch.unlink()

    def adopt(self, stored: Stored, name: str) -> None:
        if not isinstance(stored.store, LocalStore):
            super().adopt(stored, name)
            return
        key = self._key(name)  # without a second copy on this machine
        fault_point("adopt:before", name)
        if stored.store.digest(stored.name) != stored.digest:
            raise DamagedError(stored)
        if self._lease:
            self._lease.check()
        self._bucket.put_file(stored.store.path(stored.name), key)
        fault_point("adopt:after", name)

    def sizes(self, folder: str) -> dict[str, int]:
        fault_point("list:before", folder)
        start = f"{self._prefix}/" if self._prefix else ""
        sizes = {
            entry.key.removeprefix(start): entry.size_bytes
            for entry in self._bucket.walk(self._folder(folder))
            if entry.key.startswith(start)
        }
        return dict(sorted(sizes.items()))

    def top(self) -> set[str]:
        folders, objects = self._bucket.level(self._prefix)
        if self._prefix and not folders and not objects and self._bucket.head(self._prefix):
            raise UsageError(f"{self.address}: the output is an object. Set another output.")
        start = f"{self._prefix}/" if self._prefix else ""
        keys = [*folders, *(entry.key for entry in objects)]
        return {key.removeprefix(start) for key in keys if key.startswith(start)}

    def delete(self, names: Iterable[str]) -> None:
        waiting: list[str] = []
        for name in names:
            key = self._key(name)
            fault_point("delete:before", name)
            waiting.append(key)
            if len(waiting) == DELETED_AT_ONCE:
                self._delete(waiting)
                waiting = []
        self._delete(waiting)

    def _delete(self, keys: list[str]) -> None:
        (self._lease or self._bucket).delete(keys)
        for key in keys:
            fault_point("delete:after", key)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        folder, handle = _make_scratch(self._scratch_prefix())
        try:
            with cleaning(lambda: shutil.rmtree(folder, ignore_errors=True)):
                yield folder
        finally:
            os.close(handle)

    def clear_scratch(self) -> None:
        """Delete what killed writers left on this machine; parts of uploads are not seen here."""
        fault_point("clear:before", SCRATCH)
        for folder in Path(tempfile.gettempdir()).glob(f"{self._scratch_prefix()}*"):
            with contextlib.suppress(OSError):
                handle = os.open(folder, os.O_RDONLY)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(handle)
        fault_point("clear:after", SCRATCH)

    def _scratch_prefix(self) -> str:
        return f"corpuskit-{_short(self.address)}-"

    def logs(self) -> Path:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        name = f"{self.address.rpartition('/')[2][:40]}-{_short(self.address)}"
        folder = Path(home) / "corpuskit" / "logs" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run directory alone.

        What this store writes or deletes meanwhile fails with a TaskError as soon as the lease may
        be another run's.
        """
        key, times = self._key(LOCK), (self._renew, self._lease_time)
        retries = lease_retries(self._retries or RetryPolicy(), self._lease_time)
        bucket = open_bucket(self._bucket.name, retries)
        with Lease(bucket, key, self.address, *times) as self._lease:
            try:
                yield
            finally:
                self._lease = None


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
        self._position = self._ahead_bytes = 0
        self._prefetch: tuple[int, Future[memoryview]] | None = None

    @property
    def name(self) -> str:
        return self._bucket.address(self._key)

    def _open(self) -> Entry:
        if self._key.endswith(WITH_FOOTER):
            try:
                self._window, entry = self._bucket.read_tail(self._key, LEAST_BYTES)
            except FileNotFoundError:
                raise
            except OSError:  # an empty object has no last byte; any other failure shows in the HEAD
                self._window = memoryview(b"")
            else:
                return entry
        head = self._bucket.head(self._key)
        if head is None:
            raise FileNotFoundError(2, "there is no such object", self._bucket.address(self._key))
        return head

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check_open()
        with self._lock:
            start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size_bytes}[
                whence
            ]
            if start + offset < 0:
                raise ValueError(f"{self.name}: position {start + offset} is before the start.")
            self._position = start + offset
            return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        self._check_open()
        with self._lock:
            stop = self.size_bytes if size is None or size < 0 else self._position + size
            end = min(stop, self.size_bytes)
            pieces = []
            while self._position < end:
                pieces.append(self._piece(end))
                self._position += len(pieces[-1])
            return b"".join(pieces)

    def read1(self, size: int = -1, /) -> bytes:
        self._check_open()
        with self._lock:
            limit = LEAST_BYTES if size < 0 else size
            content = bytes(self._piece(min(self._position + limit, self.size_bytes)))
            self._position += len(content)
            return content

    def peek(self, size: int = 0, /) -> bytes:
        """Return some bytes from here on without moving; none at the end."""
        self._check_open()
        with self._lock:
            return bytes(self._piece(min(self._position + LEAST_BYTES, self.size_bytes)))

    def close(self) -> None:
        with self._lock:
            self._window, self._prefetch = memoryview(b""), None
        super().close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self.name}: the file is closed.")

    def _piece(self, end: int) -> memoryview:
        """Return the next bytes up to `end`, as many as one request brings."""
        if self._position >= end:
            return memoryview(b"")
        if not self._begin <= self._position < self._begin + len(self._window):
            self._load(end)
        offset = self._position - self._begin
        return self._window[offset : offset + end - self._position]

    def _load(self, end: int) -> None:
        """Fetch a window that starts here."""
        is_sequential = self._position == self._begin + len(self._window) and self._position > 0
        if is_sequential:
            self._ahead_bytes = min(max(2 * self._ahead_bytes, FIRST_AHEAD_BYTES), MOST_AHEAD_BYTES)
        else:
            self._ahead_bytes = 0
        prefetch, self._prefetch = self._prefetch, None
        if prefetch is not None and prefetch[0] == self._position:
            self._window = prefetch[1].result()
        else:
            self._window = self._fetch(self._position, max(end - self._position, self._ahead_bytes))
        self._begin = self._position
        follows = self._begin + len(self._window)
        if self._ahead_bytes == MOST_AHEAD_BYTES and end <= follows < self.size_bytes:
            future = _readers(os.getpid()).submit(self._fetch, follows, MOST_AHEAD_BYTES)
            self._prefetch = (follows, future)

    def _fetch(self, begin: int, size: int) -> memoryview:
        end = min(begin + min(max(size, LEAST_BYTES), MOST_BYTES), self.size_bytes)
        return self._bucket.read_range(self._key, begin, end, self._entry.tag)


@functools.lru_cache(maxsize=1)
def _readers(process: int) -> ThreadPoolExecutor:
    """Return the threads that read ahead: those of this process, not of one it was forked from."""
    return ThreadPoolExecutor(8, "read-ahead")


def open_object(address: str) -> ObjectFile:
    """Open an object for reading from any position.

    Raises:
        OSError: it cannot be opened.
    """
    bucket, key = split(address)
    if not _is_plain(key):
        raise FileNotFoundError(2, "no name of an object", address)
    return ObjectFile(open_bucket(bucket), key)


def stat_object(address: str) -> FoundFile:
    """Return the size and stamp of an object as they are now.

    Raises:
        OSError: it is gone, or the store does not answer.
    """
    bucket_name, key = split(address)
    bucket = open_bucket(bucket_name)
    entry = bucket.head(key) if _is_plain(key) else None
    if entry is None:
        raise FileNotFoundError(2, "there is no such object", address)
    return found_file(bucket, entry)


def _reopen(address: str, retries: RetryPolicy | None, renew: float, lease: float) -> RemoteStore:
    return RemoteStore(address, retries=retries, renew_seconds=renew, lease_seconds=lease)


def _is_plain(key: str) -> bool:
    """Return whether no segment of a key is empty, `.` or `..`, or has control characters."""
    return not any(part in ("", ".", "..") or CONTROL.search(part) for part in key.split("/"))


def _make_scratch(prefix: str) -> tuple[Path, int]:
    """Make a folder and lock it for as long as this process lives; return both.

    `clear_scratch` deletes folders without a lock, of processes that it may not be able to see.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another process is clearing it
            os.close(handle)
            continue
        if folder.exists():
            return folder, handle
        os.close(handle)


def _short(address: str) -> str:
    return hashlib.blake2b(address.encode(), digest_size=6).hexdigest()

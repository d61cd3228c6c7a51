"""Caches ranges from object storage in a folder that processes and later runs share.

Guarantees:

- An entry appears complete or not at all: it is written under another name and renamed. Its content
  is checked against the hash stored with it whenever it is read; if they differ, it is dropped.
- The files together never exceed the limit, whatever number of processes writes: counting an entry,
  freeing space and writing the file happen under one lock.
- If several processes need the same entry at the same time, one fetches it: `get` returns an
  `EntryLock`, a locked file. The lock of a killed process disappears with it.
- The cache removes only its own files: they are in a folder of their own with a marker, and have
  names of a form that only the cache uses.
- A cache that fails (no space, no permission) is switched off with one warning, never an error.

Entries that this process will not need again are evicted first, the least recently used ones before
others. Then come those that it will need again, the most recently used first, because the run needs
those last. Those that it has just used are not evicted.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import threading
import time
import warnings
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from corpuskit.errors import UsageError
from corpuskit.storage.faults import fault_point

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FOLDER = "corpuskit-ranges"
MARKER = "corpuskit-cache"
TITLE = b"corpuskit: a cache of ranges, format 1\n"
OWN = re.compile(r"[0-9a-f]{32}\.(range|part)")
MAGIC, HASH_BYTES = b"CKRANGE1", 16
HEADER_BYTES = len(MAGIC) + HASH_BYTES
COUNT_BYTES = 20
LOCK_SECONDS, START_SECONDS = 2.0, 60.0  # to wait for the folder's lock; when the cache is opened
PAUSE_SECONDS = 0.005
EVICTION_SHARE = 16  # an eviction frees at least 1/16 of the limit


class EntryLock(NamedTuple):
    """The right to fetch an entry; `file` is a locked, empty file of this name."""

    key: str
    name: str
    file: int


class _CacheFile(NamedTuple):
    key: str
    name: str
    size_bytes: int
    used: int


def open_cache(cache_dir: Path, most_bytes: int) -> RangeCache | None:
    """Open or create the cache in a folder; None, with a warning, where that fails.

    Files that killed processes left half written are removed.

    Raises:
        UsageError: the folder holds something else than a cache of this version, or the limit is
            below 1.
    """
    if most_bytes < 1:
        raise UsageError(f"loader: cache_bytes must be at least 1, got {most_bytes}.")
    folder = cache_dir / FOLDER
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)  # a user who can write there decides what is read
        cache = RangeCache(folder, most_bytes)
        cache.start()
    except OSError as error:
        _warn(folder, error)
        return None
    return cache


class RangeCache:
    """A cache in a folder; threads and processes may share it."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder, self.most_bytes = folder, most_bytes
        self.keep_bytes = most_bytes // 2
        self._lock = threading.Lock()
        self._is_off = False
        self._recent: OrderedDict[str, int] = OrderedDict()  # sizes by key, the last used last
        self._recent_bytes = 0
        self._reread: set[str] = set()

    def start(self) -> None:
        """Write the marker, remove what killed processes left, and sum up the sizes.

        Raises:
            UsageError: the folder holds something else.
            OSError: it can't be used.
        """
        with self._locked_marker(START_SECONDS, os.O_CREAT) as marker:
            if marker is None:
                raise OSError(f"its lock was held for {START_SECONDS:g} seconds")
            title = os.pread(marker, len(TITLE), 0)
            strange = [name for name in os.listdir(self.folder) if not OWN.fullmatch(name)]
            if title != TITLE and (title or set(strange) - {MARKER}):
                raise UsageError(
                    f"{self.folder}: is not a cache of this version of corpuskit."
                    " Choose another cache_dir, or delete that folder."
                )
            os.pwrite(marker, TITLE, 0)
            for file in self._files():
                if file.name.endswith(".part") and (lock := self._lock_file(file.name)) is not None:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self.folder / file.name)
                    os.close(lock)
            _set_total(marker, sum(file.size_bytes for file in self._files()))

    def reserve(self, sizes: Sequence[int]) -> None:
        """Never evict the most recently used entries, up to the sum of these sizes.

        Raises:
            UsageError: they don't fit; names the lowest limit that would fit.
        """
        required = sum(sizes) + HEADER_BYTES * len(sizes)
        if self.most_bytes < required:
            raise UsageError(
                f"loader: cache_bytes must be at least {required}, what two windows of rows take,"
                f" got {self.most_bytes}. Raise it, or lower read_ahead_bytes."
            )
        self.keep_bytes = required

    def get(self, key: str, wait_seconds: float = 0.0) -> memoryview | EntryLock | None:
        """Return an entry, or the right to fetch it.

        None if another process fetches it for longer than `wait_seconds`, or the cache is off.
        """
        end = time.monotonic() + wait_seconds
        try:
            while not self._is_off:
                content = self._read(key)
                lock = None if content is not None else self._lock_entry(key)
                if lock is not None and (content := self._read(key)) is None:
                    return lock
                if lock is not None:
                    self.release(lock)
                if content is not None:
                    return content
                if time.monotonic() >= end:
                    break
                time.sleep(PAUSE_SECONDS)
        except OSError as error:
            self._switch_off(error)
        return None

    def find(self, key: str) -> memoryview | None:
        """Return an entry; None without it."""
        try:
            return None if self._is_off else self._read(key)
        except OSError as error:
            self._switch_off(error)
            return None

    def publish(self, entries: Sequence[tuple[EntryLock, memoryview]], *, is_reread: bool) -> None:
        """Write entries, as far as they fit; their locks are released.

        Args:
            entries: locks and contents.
            is_reread: this process will need the entries again.
        """
        try:
            with self._locked_marker(LOCK_SECONDS) as marker:
                if marker is not None:
                    for lock, content in entries:
                        self._write(marker, lock, content, is_reread=is_reread)
        except OSError as error:
            self._switch_off(error)
        finally:
            for lock, _ in entries:
                self.release(lock)

    def release(self, lock: EntryLock) -> None:
        """Release a lock; its entry stays if it was published."""
        with contextlib.suppress(OSError):
            if _is_file_of(lock.file, self.folder / lock.name):
                os.unlink(self.folder / lock.name)
        with contextlib.suppress(OSError):
            os.close(lock.file)

    def drop(self, key: str) -> None:
        """Remove an entry with wrong content."""
        try:
            with self._locked_marker(LOCK_SECONDS) as marker:
                path = self.folder / f"{key}.range"
                size = path.stat().st_size
                path.unlink()
                if marker is not None:
                    _set_total(marker, max(0, _total(marker) - size))
        except FileNotFoundError:
            pass
        except OSError as error:
            self._switch_off(error)

    def _read(self, key: str) -> memoryview | None:
        """Return an entry; None if there is none, or its content does not match its hash."""
        path = self.folder / f"{key}.range"
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with open(file, "rb", buffering=0) as entry:
            status = os.fstat(file)
            is_file = stat.S_ISREG(status.st_mode) and status.st_size <= self.most_bytes
            content = memoryview(entry.read(status.st_size) if is_file else b"")
        body = content[HEADER_BYTES:]
        if content[:HEADER_BYTES] != MAGIC + _digest(key, body):
            self.drop(key)
            return None
        with contextlib.suppress(OSError):  # another user's file then looks older than it is
            os.utime(path)
        self._note(key, len(content))
        return body

    def _lock_entry(self, key: str) -> EntryLock | None:
        name = f"{key}.part"
        file = self._lock_file(name, os.O_CREAT)
        return None if file is None else EntryLock(key, name, file)

    def _lock_file(self, name: str, flags: int = 0) -> int | None:
        """Return a locked file of the cache; None if another process holds it or it is gone."""
        path = self.folder / name
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o666)
        except FileNotFoundError:
            if flags & os.O_CREAT:
                raise
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its holder may have renamed or removed it between `open` and `flock`.
            if _is_file_of(file, path):
                return file
        except BlockingIOError:
            pass
        os.close(file)
        return None

    def _write(self, marker: int, lock: EntryLock, content: memoryview, *, is_reread: bool) -> None:
        """Write one entry; the caller holds the lock of the folder."""
        size = HEADER_BYTES + len(content)
        if _total(marker) + size > self.most_bytes:
            self._evict(marker, size)
        total = _total(marker)
        if total + size > self.most_bytes:
            return
        # Counted first: a process that dies in between leaves a count too high, not too low.
        _set_total(marker, total + size)
        try:
            os.ftruncate(lock.file, 0)
            _write_all(lock.file, MAGIC + _digest(lock.key, content))
            half = len(content) // 2
            _write_all(lock.file, content[:half])
            fault_point("write:before", lock.name)
            _write_all(lock.file, content[half:])
            os.rename(self.folder / lock.name, self.folder / f"{lock.key}.range")
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(lock.file, 0)
            _set_total(marker, total)
            raise
        self._note(lock.key, size)
        if is_reread:
            with self._lock:
                self._reread.add(lock.key)

    def _evict(self, marker: int, size: int) -> None:
        """Free `size` bytes and some more; the caller holds the lock of the folder."""
        files = self._files()
        with self._lock:
            self._reread &= {file.key for file in files}
            reread, recent = set(self._reread), set(self._recent)
        total = sum(file.size_bytes for file in files)
        goal = self.most_bytes - max(size, self.most_bytes // EVICTION_SHARE)
        files = [file for file in files if file.name.endswith(".range") and file.key not in recent]
        files.sort(key=lambda file: file.used)
        kept_last = [file for file in files if file.key in reread]
        files = [file for file in files if file.key not in reread]
        for file in files + kept_last[::-1]:
            if total <= goal:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.folder / file.name)
            total -= file.size_bytes
        _set_total(marker, total)

    def _files(self) -> list[_CacheFile]:
        files = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if OWN.fullmatch(entry.name):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            key, size = entry.name.partition(".")[0], status.st_size
                            files.append(_CacheFile(key, entry.name, size, status.st_mtime_ns))
        return files

    def _note(self, key: str, size: int) -> None:
        with self._lock:
            self._recent_bytes += size - self._recent.pop(key, 0)
            self._recent[key] = size
            while self._recent_bytes > self.keep_bytes and len(self._recent) > 1:
                self._recent_bytes -= self._recent.popitem(last=False)[1]

    @contextlib.contextmanager
    def _locked_marker(self, wait_seconds: float, flags: int = 0) -> Iterator[int | None]:
        """Lock the file with the count, and so the folder; yield None if others hold the lock."""
        path = self.folder / MARKER
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o666)
        end = time.monotonic() + wait_seconds
        try:
            is_held = False
            while not is_held and time.monotonic() < end:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    is_held = True
                except BlockingIOError:
                    time.sleep(PAUSE_SECONDS)
            yield file if is_held else None
        finally:
            os.close(file)

    def _switch_off(self, error: OSError) -> None:
        with self._lock:
            is_first, self._is_off = not self._is_off, True
        if is_first:
            _warn(self.folder, error)


def _warn(folder: Path, error: OSError) -> None:
    warnings.warn(
        f"{folder}: the cache can't be used: {error}. Ranges are read without it.",
        RuntimeWarning,
        stacklevel=3,
    )


def _digest(key: str, content: memoryview) -> bytes:
    """Return the hash of an entry's key and content, so that a renamed file is not valid."""
    digest = hashlib.blake2b(key.encode(), digest_size=HASH_BYTES)
    digest.update(content)
    return digest.digest()


def _is_file_of(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False


def _write_all(file: int, content: bytes | memoryview) -> None:
    unwritten = memoryview(content)
    while unwritten:
        unwritten = unwritten[os.write(file, unwritten) :]


def _total(marker: int) -> int:
    """Return the count; if it can't be read, a value above every limit, so it is recounted."""
    text = os.pread(marker, COUNT_BYTES, len(TITLE))
    return int(text) if len(text) == COUNT_BYTES and text.isdigit() else 1 << 62


def _set_total(marker: int, total: int) -> None:
    os.pwrite(marker, b"%0*d" % (COUNT_BYTES, total), len(TITLE))

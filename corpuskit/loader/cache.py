"""A folder of ranges from object storage, shared by the processes of a machine and by later runs.

What it promises:

- An entry is seen whole or not at all: it is written under another name and renamed. Its content is
  checked against the hash stored with it whenever it is read; one that differs is dropped.
- The files together never exceed the bound, whatever number of processes writes: each entry is
  counted, room is made and the file is written under one lock.
- Of several that want the same entry at the same time, one fetches it: `get` hands out a claim,
  which is a locked file. The lock of a killed process is gone with it.
- Nothing but its own files is ever removed: they lie in a folder of their own with a marker, and
  have names that only the cache gives.
- A cache that fails (no space, no permission) is given up with one warning, never with an error.

To make room, entries that this process does not need again, as far as it knows, go first, those
that were used longest ago before others; then those that it will need again, the last used first:
the order of a run comes back to them last. Those that it used just now stay.
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
from corpuskit.storage.faults import reach

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
LOCK_SECONDS, START_SECONDS = 2.0, 60.0
PAUSE_SECONDS = 0.005
SLACK = 16  # of the bound, this part is made free at once


class Claim(NamedTuple):
    """The right to fetch an entry; `file` is a locked, empty file of this name."""

    key: str
    name: str
    file: int


class _Seen(NamedTuple):
    """A file of the cache."""

    key: str
    name: str
    size_bytes: int
    used: int


def open_cache(cache_dir: Path, most_bytes: int) -> RangeCache | None:
    """Return the cache in a folder, which is made; None, with a warning, where that fails.

    What killed processes left half written is removed.

    Raises:
        UsageError: what lies there is no cache of this version, or the bound is below 1.
    """
    if most_bytes < 1:
        raise UsageError(f"loader: cache_bytes must be at least 1, got {most_bytes}.")
    folder = cache_dir / FOLDER
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)  # whoever can write there decides what is read
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
        self._again: set[str] = set()

    def start(self) -> None:
        """Mark the folder, remove what killed processes left, and count.

        Raises:
            UsageError: the folder holds something else.
            OSError: it can't be used.
        """
        with self._book(START_SECONDS, os.O_CREAT) as book:
            if book is None:
                raise OSError(f"its lock was held for {START_SECONDS:g} seconds")
            title = os.pread(book, len(TITLE), 0)
            strange = [name for name in os.listdir(self.folder) if not OWN.fullmatch(name)]
            if title != TITLE and (title or set(strange) - {MARKER}):
                raise UsageError(
                    f"{self.folder}: is no cache of this version of corpuskit."
                    " Give another cache_dir, or delete that folder."
                )
            os.pwrite(book, TITLE, 0)
            for one in self._files():
                if one.name.endswith(".part") and (left := self._lock_file(one.name)) is not None:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self.folder / one.name)
                    os.close(left)
            _set_total(book, sum(one.size_bytes for one in self._files()))

    def get(self, key: str, wait_seconds: float = 0.0) -> memoryview | Claim | None:
        """Return an entry, or the right to fetch it; None if others fetch it for longer than that.

        None, too, from a cache that was given up.
        """
        end = time.monotonic() + wait_seconds
        try:
            while not self._is_off:
                found = self._read(key)
                claim = None if found is not None else self._claim(key)
                if claim is not None and (found := self._read(key)) is None:
                    return claim
                if claim is not None:
                    self.release(claim)
                if found is not None:
                    return found
                if time.monotonic() >= end:
                    break
                time.sleep(PAUSE_SECONDS)
        except OSError as error:
            self._give_up(error)
        return None

    def find(self, key: str) -> memoryview | None:
        """Return an entry, None if there is none."""
        try:
            return None if self._is_off else self._read(key)
        except OSError as error:
            self._give_up(error)
            return None

    def publish(self, entries: Sequence[tuple[Claim, memoryview]], *, again: bool) -> None:
        """Write entries, as far as there is room for them; the claims are given up.

        Args:
            entries: what was claimed.
            again: this process will need them again.
        """
        try:
            with self._book(LOCK_SECONDS) as book:
                if book is not None:
                    for claim, content in entries:
                        self._write(book, claim, content, again=again)
        except OSError as error:
            self._give_up(error)
        finally:
            for claim, _ in entries:
                self.release(claim)

    def release(self, claim: Claim) -> None:
        """Give a claim up; of one that was published, nothing changes."""
        with contextlib.suppress(OSError):
            if _is_file_of(claim.file, self.folder / claim.name):
                os.unlink(self.folder / claim.name)
        with contextlib.suppress(OSError):
            os.close(claim.file)

    def drop(self, key: str) -> None:
        """Remove an entry that turned out to be wrong."""
        try:
            with self._book(LOCK_SECONDS) as book:
                path = self.folder / f"{key}.range"
                size = path.stat().st_size
                path.unlink()
                if book is not None:
                    _set_total(book, max(0, _total(book) - size))
        except FileNotFoundError:
            pass
        except OSError as error:
            self._give_up(error)

    def _read(self, key: str) -> memoryview | None:
        """Return an entry, None if there is none that is sound."""
        path = self.folder / f"{key}.range"
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with open(file, "rb", buffering=0) as entry:
            found = os.fstat(file)
            is_file = stat.S_ISREG(found.st_mode) and found.st_size <= self.most_bytes
            content = memoryview(entry.read(found.st_size) if is_file else b"")
        body = content[HEADER_BYTES:]
        if content[:HEADER_BYTES] != MAGIC + _digest(key, body):
            self.drop(key)
            return None
        with contextlib.suppress(OSError):  # somebody else's: it then looks older than it is
            os.utime(path)
        self._note(key, len(content))
        return body

    def _claim(self, key: str) -> Claim | None:
        name = f"{key}.part"
        file = self._lock_file(name, os.O_CREAT)
        return None if file is None else Claim(key, name, file)

    def _lock_file(self, name: str, flags: int = 0) -> int | None:
        """Return a locked file of the cache, None if somebody else has it or it is gone."""
        path = self.folder / name
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o666)
        except FileNotFoundError:
            if flags & os.O_CREAT:
                raise
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it may have renamed or removed it between our two steps.
            if _is_file_of(file, path):
                return file
        except BlockingIOError:
            pass
        os.close(file)
        return None

    def _write(self, book: int, claim: Claim, content: memoryview, *, again: bool) -> None:
        """Write one entry; the caller holds the lock."""
        size = HEADER_BYTES + len(content)
        if _total(book) + size > self.most_bytes:
            self._evict(book, size)
        total = _total(book)
        if total + size > self.most_bytes:
            return
        # Counted before it is there: whoever dies in between leaves a count that is too high.
        _set_total(book, total + size)
        try:
            os.ftruncate(claim.file, 0)
            _write_all(claim.file, MAGIC + _digest(claim.key, content))
            half = len(content) // 2
            _write_all(claim.file, content[:half])
            reach("write:before", claim.name)
            _write_all(claim.file, content[half:])
            os.rename(self.folder / claim.name, self.folder / f"{claim.key}.range")
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(claim.file, 0)
            _set_total(book, total)
            raise
        self._note(claim.key, size)
        if again:
            with self._lock:
                self._again.add(claim.key)

    def _evict(self, book: int, size: int) -> None:
        """Make room for `size` bytes and some more; the caller holds the lock."""
        files = self._files()
        with self._lock:
            self._again &= {one.key for one in files}
            again, recent = set(self._again), set(self._recent)
        total = sum(one.size_bytes for one in files)
        goal = self.most_bytes - max(size, self.most_bytes // SLACK)
        entries = [one for one in files if one.name.endswith(".range") and one.key not in recent]
        entries.sort(key=lambda one: one.used)
        later = [one for one in entries if one.key in again]
        entries = [one for one in entries if one.key not in again]
        for one in entries + later[::-1]:
            if total <= goal:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.folder / one.name)
            total -= one.size_bytes
        _set_total(book, total)

    def _files(self) -> list[_Seen]:
        """Return the files that the cache has made."""
        found = []
        with os.scandir(self.folder) as files:
            for file in files:
                if OWN.fullmatch(file.name):
                    with contextlib.suppress(FileNotFoundError):
                        facts = file.stat(follow_symlinks=False)
                        if stat.S_ISREG(facts.st_mode):
                            key = file.name.partition(".")[0]
                            found.append(_Seen(key, file.name, facts.st_size, facts.st_mtime_ns))
        return found

    def _note(self, key: str, size: int) -> None:
        """Remember that an entry was used just now."""
        with self._lock:
            self._recent_bytes += size - self._recent.pop(key, 0)
            self._recent[key] = size
            while self._recent_bytes > self.keep_bytes and len(self._recent) > 1:
                self._recent_bytes -= self._recent.popitem(last=False)[1]

    @contextlib.contextmanager
    def _book(self, patience_seconds: float, flags: int = 0) -> Iterator[int | None]:
        """Hold the lock of the folder, on the file with the count; None if others keep it."""
        path = self.folder / MARKER
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o666)
        end = time.monotonic() + patience_seconds
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

    def _give_up(self, error: OSError) -> None:
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
    """Return the hash of an entry; of its key, too: a file under another name is no entry."""
    digest = hashlib.blake2b(key.encode(), digest_size=HASH_BYTES)
    digest.update(content)
    return digest.digest()


def _is_file_of(file: int, path: Path) -> bool:
    """Return whether an open file still is what lies at a path."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False


def _write_all(file: int, content: bytes | memoryview) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]


def _total(book: int) -> int:
    """Return the count; one that can't be read is beyond every bound, so that it is made anew."""
    text = os.pread(book, COUNT_BYTES, len(TITLE))
    return int(text) if len(text) == COUNT_BYTES and text.isdigit() else 1 << 62


def _set_total(book: int, total: int) -> None:
    os.pwrite(book, b"%0*d" % (COUNT_BYTES, total), len(TITLE))

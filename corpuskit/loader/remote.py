"""Reads runs in object storage: small files whole, parts by ranges.

The footer of a part is fetched once, then the row groups that a read needs; adjacent ones are one
request. pyarrow reads them from memory, so pages are verified as on a disk. A cache stores each row
group as an entry, after its pages were verified.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import os
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from corpuskit.errors import DataError
from corpuskit.loader.cache import EntryLock
from corpuskit.loader.files import digest_json
from corpuskit.storage.client import RetryPolicy, open_bucket, split
from corpuskit.storage.remote import RemoteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow.parquet as pq

    from corpuskit.loader.cache import RangeCache
    from corpuskit.loader.files import Transfers

TAIL_BYTES = 64 << 10  # of a part, fetched when it is opened
MAX_FOOTER_BYTES = 64 << 20
KEPT_TAIL_BYTES = 64 << 20  # of tails in memory, all parts together
LOCK_WAIT_RATIO = 0.25  # of the deadline, to wait for a process that fetches the same range

# Ranges with gaps of at most GAP_BYTES are one request, of at most MAX_REQUEST_BYTES.
GAP_BYTES = 64 << 10
MAX_REQUEST_BYTES = 32 << 20


class Span(NamedTuple):
    """Bytes [begin, end) of a part."""

    begin: int
    end: int


class Tail(NamedTuple):
    """The end of a part, with its footer; all of a small part."""

    tag: str
    size_bytes: int
    content: memoryview


class RangeFile:
    """An object as a file for pyarrow; ranges that are not in memory are fetched.

    Args:
        tail: the end of the object.
        fetch: returns another range of it.
        when_closed: called when the file is closed.
    """

    def __init__(
        self, tail: Tail, fetch: Callable[[Span], memoryview], when_closed: Callable[[], None]
    ) -> None:
        self.size_bytes = tail.size_bytes
        self.closed = False
        self._fetch, self._when_closed, self._position = fetch, when_closed, 0
        self._tail = (tail.size_bytes - len(tail.content), tail.content)
        self._begins: list[int] = []
        self._contents: list[memoryview] = []
        self.clear()

    def clear(self) -> None:
        """Drop all ranges but the tail."""
        self._begins, self._contents = [self._tail[0]], [self._tail[1]]

    def add(self, span: Span, content: memoryview) -> None:
        """Hold a span in memory until `clear`."""
        i = bisect.bisect_right(self._begins, span.begin)
        self._begins.insert(i, span.begin)
        self._contents.insert(i, content)

    def has(self, span: Span) -> bool:
        """Return whether a span is in memory."""
        return self._find(span) is not None

    def content(self, span: Span) -> memoryview:
        """Return a span, fetched if it is not in memory."""
        content = self._find(span)
        return self._fetch(span) if content is None else content

    def _find(self, span: Span) -> memoryview | None:
        i = bisect.bisect_right(self._begins, span.begin) - 1
        if i < 0:
            return None
        begin = span.begin - self._begins[i]
        content = self._contents[i][begin : begin + span.end - span.begin]
        return content if len(content) == span.end - span.begin else None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size_bytes}[whence]
        self._position = start + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        return bytes(self._next(size))

    def read_buffer(self, size: int = -1) -> pa.Buffer:
        """Return the next bytes without a copy; pyarrow calls this where it exists."""
        return pa.py_buffer(self._next(size))

    def close(self) -> None:
        """Drop everything."""
        if not self.closed:
            self.closed = True
            self._when_closed()
            # pyarrow refers to this object where no garbage collector sees it: leave no circle.
            self._fetch, self._when_closed = _fetch_nothing, _do_nothing
        self._tail = (self.size_bytes, memoryview(b""))
        self.clear()

    def _next(self, size: int) -> memoryview:
        end = self.size_bytes if size < 0 else min(self.size_bytes, self._position + size)
        span = Span(self._position, max(self._position, end))
        self._position = span.end
        return self.content(span) if span.begin < span.end else memoryview(b"")


def _fetch_nothing(span: Span) -> memoryview:
    raise ValueError(f"bytes {span.begin} to {span.end} were requested from a closed part")


def _do_nothing() -> None:
    pass


def spans_of(
    footer: pq.FileMetaData, group: int, size_bytes: int, columns: Sequence[str] | None = None
) -> list[Span]:
    """Return the spans of column chunks of a row group; without `columns`, one span for all.

    Raises:
        DataError: a span is outside the file; callers name the file.
    """
    facts = footer.row_group(group)
    spans = []
    for leaf in range(facts.num_columns):
        chunk = facts.column(leaf)
        if columns is None or chunk.path_in_schema.partition(".")[0] in columns:
            begin = chunk.data_page_offset
            if chunk.has_dictionary_page:
                begin = min(begin, chunk.dictionary_page_offset)
            spans.append(Span(begin, begin + chunk.total_compressed_size))
    if any(not 0 <= span.begin < span.end <= size_bytes for span in spans):
        raise DataError(f"its row group {group} lies outside its {size_bytes} bytes")
    if columns is not None:
        return spans
    group_span = Span(min(span.begin for span in spans), max(span.end for span in spans))
    if group_span.end - group_span.begin > sum(span.end - span.begin for span in spans) + GAP_BYTES:
        raise DataError(f"its row group {group} is not one range of bytes")
    return [group_span]


def merge_spans(spans: Sequence[Span]) -> list[Span]:
    """Return ranges that cover spans; near spans share a range."""
    ranges: list[Span] = []
    for span in sorted(spans):
        last = ranges[-1] if ranges else None
        is_near = last is not None and span.begin - last.end <= GAP_BYTES
        if last and is_near and span.end - last.begin <= MAX_REQUEST_BYTES:
            ranges[-1] = Span(last.begin, max(last.end, span.end))
        else:
            ranges.append(span)
    return ranges


class RemoteFiles:
    """A run directory in an object store; see `RunFiles`.

    A part must not change after rows of it were read: another ETag is then an error. An answer may
    take a quarter of the deadline, and a request is repeated for as long, so the two tries of a
    read, with their repeated requests, end within the deadline.
    """

    reader_threads = 8

    def __init__(self, address: str, deadline_seconds: float, cache: RangeCache | None) -> None:
        retries = RetryPolicy(
            answer_seconds=min(60.0, deadline_seconds / 4),
            retry_seconds=min(60.0, deadline_seconds / 4),
            first_pause_seconds=min(0.2, deadline_seconds / 40),
        )
        self.address, self.cache = address.rstrip("/"), cache
        self.deadline_seconds = deadline_seconds
        self._store = RemoteStore(address, retries=retries)
        self._bucket = open_bucket(split(address)[0], retries)
        self._lock = threading.Lock()
        self._tails: OrderedDict[str, Tail] = OrderedDict()  # the last used last
        self._opening: dict[str, threading.Lock] = {}
        self._tags: dict[str, str] = {}  # of parts whose rows were read

    def where(self, name: str) -> str:
        return self._store.where(name)

    def read(self, name: str, limit: int | None = None) -> bytes:
        try:
            content_and_entry = self._bucket.read(self._key(name), limit)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            raise DataError(f"{self.where(name)}: {error.strerror}.") from None
        if content_and_entry is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", self.where(name))
        return content_and_entry[0]

    def open(self, name: str) -> pa.NativeFile:
        return self._store.open(name)

    def list(self, folder: str) -> list[str]:
        """Return the names of the objects right below a folder."""
        key = self._key(folder)
        _, entries = self._bucket.level(key)
        start = f"{key}/"
        return sorted(
            f"{folder}/{entry.key.removeprefix(start)}"
            for entry in entries
            if entry.key.startswith(start) and entry.key != start
        )

    def open_part(self, name: str, transfers: Transfers, *, is_reread: bool) -> RemotePart:
        """Open a part, by one request, or none if its tail is in memory."""
        return RemotePart(self, name, self._tail(name, transfers), transfers, is_reread=is_reread)

    def fetch(self, name: str, span: Span, tag: str, transfers: Transfers) -> memoryview:
        """Return a range of a part that must still have this tag."""
        content = self._bucket.read_range(self._key(name), span.begin, span.end, tag)
        transfers.add(fetched_bytes=len(content), requests=1)
        return content

    def entry_key(self, name: str, tag: str, span: Span) -> str:
        """Return the key of a cache entry: a hash of what identifies its bytes anywhere."""
        parts = (self._bucket.endpoint, self.where(name), tag, *span)
        return digest_json(parts)

    def accept(self, name: str, tag: str) -> None:
        """Require this tag of a part from now on: rows of it were read."""
        with self._lock:
            self._tags.setdefault(name, tag)

    def forget(self, name: str) -> None:
        """Fetch the footer of a part again when it is opened next."""
        with self._lock:
            self._tails.pop(name, None)

    def _key(self, name: str) -> str:
        return self._store.where(name).partition("://")[2].partition("/")[2]

    def _tail(self, name: str, transfers: Transfers) -> Tail:
        """Return the tail of a part; threads that need the same tail wait for the first of them."""
        with self._lock:
            turn = self._opening.setdefault(name, threading.Lock())
        with turn:
            with self._lock:
                tail = self._tails.get(name)
                if tail is not None:
                    self._tails.move_to_end(name)
            if tail is None:
                tail = self._fetch_tail(name, transfers)
                self._keep(name, tail)
        with self._lock:
            self._opening.pop(name, None)
        return tail

    def _keep(self, name: str, tail: Tail) -> None:
        with self._lock:
            self._tails[name] = tail
            num_bytes = sum(len(held_tail.content) for held_tail in self._tails.values())
            while num_bytes > KEPT_TAIL_BYTES and len(self._tails) > 1:
                num_bytes -= len(self._tails.popitem(last=False)[1].content)

    def _fetch_tail(self, name: str, transfers: Transfers) -> Tail:
        key = self._key(name)
        try:
            content, entry = self._bucket.read_tail(key, TAIL_BYTES)
        except OSError as error:
            # A range of an empty object is an error, which differs between servers.
            empty = self._bucket.head(key) if error.errno == errno.EIO else None
            if empty is None or empty.size_bytes:
                raise
            return Tail(empty.tag, 0, memoryview(b""))
        transfers.add(fetched_bytes=len(content), requests=1)
        size, tag = entry.size_bytes, entry.tag
        with self._lock:
            first_tag = self._tags.get(name, tag)
        if tag != first_tag:
            raise DataError(
                f"it was replaced since rows of it were read: its ETag is {tag}, it was {first_tag}"
            )
        # A Parquet file ends with the length of its footer, and "PAR1".
        begin = size - 8 - int.from_bytes(content[-8:-4], "little")
        have = size - len(content)
        if max(0, size - MAX_FOOTER_BYTES) <= begin < have:
            missing = self.fetch(name, Span(begin, have), tag, transfers)
            content = memoryview(b"".join([missing, content]))
        return Tail(tag, size, content)


class RemotePart:
    """An open part of a run in object storage; see `PartSource`."""

    def __init__(
        self, files: RemoteFiles, name: str, tail: Tail, transfers: Transfers, *, is_reread: bool
    ) -> None:
        self._files, self._name, self._tag = files, name, tail.tag
        self._transfers, self._is_reread = transfers, is_reread
        self._is_sound = False
        self._ranges = RangeFile(tail, self._fetch, self._on_close)
        self.file = pa.PythonFile(self._ranges, mode="r")

    @contextlib.contextmanager
    def ready(
        self, footer: pq.FileMetaData, groups: Sequence[int], columns: Sequence[str]
    ) -> Iterator[None]:
        """Fetch what a read needs and the cache lacks; cache it after the read."""
        cache = self._files.cache
        locks: dict[Span, EntryLock] = {}
        hits: list[str] = []
        is_loaded = is_sound = False
        try:
            if "tokens" not in columns:
                self._request(self._side(footer, groups, columns, hits))
            else:
                size = self._ranges.size_bytes
                spans = [span for group in groups for span in spans_of(footer, group, size)]
                missing = [span for span in spans if not self._ranges.has(span)]
                if cache is None:
                    self._request(missing)
                else:
                    self._gather(cache, missing, locks, hits)
            is_loaded = True
            yield
            is_sound = True
        finally:
            if cache is not None:
                self._settle(cache, locks, hits if is_loaded else [], is_sound=is_sound)
            self._ranges.clear()
            self._is_sound = is_sound
            if is_sound:
                self._files.accept(self._name, self._tag)

    def _on_close(self) -> None:
        # If the last read failed, the footer may be the reason: fetch it again.
        if not self._is_sound:
            self._files.forget(self._name)

    def _side(
        self,
        footer: pq.FileMetaData,
        groups: Sequence[int],
        columns: Sequence[str],
        hits: list[str],
    ) -> list[Span]:
        """Return the chunks of some columns, of row groups that the cache does not have."""
        cache, size = self._files.cache, self._ranges.size_bytes
        spans = []
        for group in groups:
            (span,) = spans_of(footer, group, size)
            key = self._entry(span)
            content = cache.find(key) if cache is not None else None
            if content is not None and self._add(span, content, key, hits):
                continue
            spans += spans_of(footer, group, size, columns)
        return [span for span in spans if not self._ranges.has(span)]

    def _gather(
        self, cache: RangeCache, spans: list[Span], locks: dict[Span, EntryLock], hits: list[str]
    ) -> None:
        """Load ascending spans: from the cache, by requests, or as other processes fetch them.

        A process that holds a lock waits for later spans only, so there is no deadlock.
        """
        end = time.monotonic() + self._files.deadline_seconds * LOCK_WAIT_RATIO
        absent: list[Span] = []
        for span in spans:
            key = self._entry(span)
            entry = cache.get(key)
            if entry is None:
                self._request(absent)
                absent = []
                entry = cache.get(key, end - time.monotonic())
            if isinstance(entry, EntryLock):
                locks[span] = entry
            if isinstance(entry, EntryLock | None) or not self._add(span, entry, key, hits):
                absent.append(span)
        self._request(absent)

    def _settle(
        self, cache: RangeCache, locks: Mapping[Span, EntryLock], hits: list[str], *, is_sound: bool
    ) -> None:
        """Cache what was fetched and read without error; drop entries with which a read failed."""
        if is_sound:
            contents = [(lock, self._ranges.content(span)) for span, lock in locks.items()]
            cache.publish(contents, is_reread=self._is_reread)
            return
        for lock in locks.values():
            cache.release(lock)
        for key in hits:
            cache.drop(key)

    def _add(self, span: Span, content: memoryview, key: str, hits: list[str]) -> bool:
        """Use an entry of the cache; False if it does not fit the span."""
        if len(content) != span.end - span.begin:
            return False
        self._ranges.add(span, content)
        hits.append(key)
        self._transfers.add(cache_hits=1)
        return True

    def _request(self, spans: Sequence[Span]) -> None:
        for span in merge_spans(spans):
            self._ranges.add(span, self._fetch(span))

    def _fetch(self, span: Span) -> memoryview:
        return self._files.fetch(self._name, span, self._tag, self._transfers)

    def _entry(self, span: Span) -> str:
        return self._files.entry_key(self._name, self._tag, span)

"""Runs in object storage: small files whole, parts by ranges, and never a whole part.

Of a part, the footer is fetched once, and then what a read needs: row groups that lie side by side
come in one request. pyarrow reads them from memory, so pages are verified as on a disk. With a
cache, each row group is kept as an entry of its own, after its pages were verified.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError, UsageError
from corpuskit.loader.cache import HEADER_BYTES, Claim
from corpuskit.loader.index import ROWS_PER_GROUP
from corpuskit.loader.ranges import Pieces, Span, Tail, joined, spans_of
from corpuskit.storage.client import RetryPolicy, open_bucket, split
from corpuskit.storage.remote import RemoteStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow.parquet as pq

    from corpuskit.loader.cache import RangeCache
    from corpuskit.loader.files import Transfers
    from corpuskit.loader.index import MixPlan
    from corpuskit.loader.window import Planner

TAIL_BYTES = 64 << 10
MOST_FOOTER_BYTES = 64 << 20
KEPT_TAIL_BYTES = 64 << 20
"""Footers held in memory, all parts together."""

CLAIM_RATIO = 0.25
"""Of the deadline, to wait for somebody else who fetches the same."""


class RemoteFiles:
    """A run directory in an object store; see `RunFiles`.

    A part whose rows were read stays what it was: if its ETag is another one later, that is an
    error. An answer may take a quarter of the deadline, and a request is repeated for so long: both
    tries that a read has, with what each repeats, end within the deadline.
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
        """Return the address."""
        return self._store.where(name)

    def read(self, name: str, most: int | None = None) -> bytes:
        """Return the content of an object."""
        try:
            found = self._bucket.read(self._key(name), most)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            raise DataError(f"{self.where(name)}: {error.strerror}.") from None
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", self.where(name))
        return found[0]

    def open(self, name: str) -> pa.NativeFile:
        """Open an object for ranges of it."""
        return self._store.open(name)

    def list(self, folder: str) -> list[str]:
        """Return the names of the objects right below a folder."""
        key = self._key(folder)
        _, found = self._bucket.level(key)
        start = f"{key}/"
        return sorted(
            f"{folder}/{entry.key.removeprefix(start)}"
            for entry in found
            if entry.key.startswith(start) and entry.key != start
        )

    def open_part(self, name: str, transfers: Transfers, *, again: bool) -> RemotePart:
        """Open a part: one request, or none if its footer is still held."""
        return RemotePart(self, name, self._tail(name, transfers), transfers, again=again)

    def fetch(self, name: str, span: Span, tag: str, transfers: Transfers) -> memoryview:
        """Return a range of a part that must still have this tag."""
        content = self._bucket.read_range(self._key(name), span.begin, span.end, tag)
        transfers.add(fetched_bytes=len(content), requests=1)
        return content

    def entry_key(self, name: str, tag: str, span: Span) -> str:
        """Return the key of a cache entry: a hash of what identifies its bytes anywhere."""
        parts = (self._bucket.endpoint, self.where(name), tag, *span)
        text = json.dumps(parts, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def accept(self, name: str, tag: str) -> None:
        """Hold a part to its tag from now on: rows of it were read."""
        with self._lock:
            self._tags.setdefault(name, tag)

    def forget(self, name: str) -> None:
        """Fetch the footer of a part anew when it is opened next."""
        with self._lock:
            self._tails.pop(name, None)

    def _key(self, name: str) -> str:
        return self._store.where(name).partition("://")[2].partition("/")[2]

    def _tail(self, name: str, transfers: Transfers) -> Tail:
        """Return the tail of a part; threads that want the same one wait for the first of them."""
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
            held = sum(len(one.content) for one in self._tails.values())
            while held > KEPT_TAIL_BYTES and len(self._tails) > 1:
                held -= len(self._tails.popitem(last=False)[1].content)

    def _fetch_tail(self, name: str, transfers: Transfers) -> Tail:
        key = self._key(name)
        try:
            content, entry = self._bucket.read_tail(key, TAIL_BYTES)
        except OSError as error:
            # An object without bytes has no last ones; servers say so in different ways.
            found = self._bucket.head(key) if error.errno == errno.EIO else None
            if found is None or found.size_bytes:
                raise
            return Tail(found.tag, 0, memoryview(b""))
        transfers.add(fetched_bytes=len(content), requests=1)
        size, tag = entry.size_bytes, entry.tag
        with self._lock:
            known = self._tags.get(name, tag)
        if tag != known:
            raise DataError(
                f"it was replaced since rows of it were read: its ETag is {tag}, it was {known}"
            )
        # A Parquet file ends with the length of its footer, and "PAR1".
        begin = size - 8 - int.from_bytes(content[-8:-4], "little")
        have = size - len(content)
        if max(0, size - MOST_FOOTER_BYTES) <= begin < have:
            missing = self.fetch(name, Span(begin, have), tag, transfers)
            content = memoryview(b"".join([missing, content]))
        return Tail(tag, size, content)


class RemotePart:
    """An open part of a run in object storage; see `PartSource`."""

    def __init__(
        self, files: RemoteFiles, name: str, tail: Tail, transfers: Transfers, *, again: bool
    ) -> None:
        self._files, self._name, self._tag = files, name, tail.tag
        self._transfers, self._again = transfers, again
        self._is_sound = False
        self._pieces = Pieces(tail, self._fetch, self._closed)
        self.file = pa.PythonFile(self._pieces, mode="r")

    @contextlib.contextmanager
    def ready(
        self, footer: pq.FileMetaData, groups: Sequence[int], columns: Sequence[str]
    ) -> Iterator[None]:
        """Fetch what a read takes and the cache has not; keep it there once it was read."""
        cache = self._files.cache
        claims: dict[Span, Claim] = {}
        hits: list[str] = []
        is_loaded = is_sound = False
        try:
            if "tokens" not in columns:
                self._request(self._side(footer, groups, columns, hits))
            else:
                size = self._pieces.size_bytes
                wanted = [span for group in groups for span in spans_of(footer, group, size)]
                missing = [span for span in wanted if not self._pieces.has(span)]
                if cache is None:
                    self._request(missing)
                else:
                    self._gather(cache, missing, claims, hits)
            is_loaded = True
            yield
            is_sound = True
        finally:
            if cache is not None:
                self._settle(cache, claims, hits if is_loaded else [], is_sound=is_sound)
            self._pieces.clear()
            self._is_sound = is_sound
            if is_sound:
                self._files.accept(self._name, self._tag)

    def _closed(self) -> None:
        """Have the footer fetched anew if nothing was read with this one, or not the last time."""
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
        cache, size = self._files.cache, self._pieces.size_bytes
        wanted = []
        for group in groups:
            (span,) = spans_of(footer, group, size)
            key = self._entry(span)
            found = cache.find(key) if cache is not None else None
            if found is not None and self._add(span, found, key, hits):
                continue
            wanted += spans_of(footer, group, size, columns)
        return [span for span in wanted if not self._pieces.has(span)]

    def _gather(
        self, cache: RangeCache, spans: list[Span], claims: dict[Span, Claim], hits: list[str]
    ) -> None:
        """Have ascending spans at hand: from the cache, by requests, or fetched by others just now.

        Who holds a claim waits for spans behind it only, so nobody waits in a circle.
        """
        end = time.monotonic() + self._files.deadline_seconds * CLAIM_RATIO
        wanted: list[Span] = []
        for span in spans:
            key = self._entry(span)
            found = cache.get(key)
            if found is None:
                self._request(wanted)
                wanted = []
                found = cache.get(key, end - time.monotonic())
            if isinstance(found, Claim):
                claims[span] = found
            if isinstance(found, Claim | None) or not self._add(span, found, key, hits):
                wanted.append(span)
        self._request(wanted)

    def _settle(
        self, cache: RangeCache, claims: Mapping[Span, Claim], hits: list[str], *, is_sound: bool
    ) -> None:
        """Keep what was fetched and found sound; drop entries with which a read failed."""
        if is_sound:
            kept = [(claim, self._pieces.piece(span)) for span, claim in claims.items()]
            cache.publish(kept, again=self._again)
            return
        for claim in claims.values():
            cache.release(claim)
        for key in hits:
            cache.drop(key)

    def _add(self, span: Span, content: memoryview, key: str, hits: list[str]) -> bool:
        """Use an entry of the cache; False if it is not of this span."""
        if len(content) != span.end - span.begin:
            return False
        self._pieces.add(span, content)
        hits.append(key)
        self._transfers.add(cache_hits=1)
        return True

    def _request(self, spans: Sequence[Span]) -> None:
        """Fetch spans, those that are near to each other together."""
        for span in joined(spans):
            self._pieces.add(span, self._fetch(span))

    def _fetch(self, span: Span) -> memoryview:
        return self._files.fetch(self._name, span, self._tag, self._transfers)

    def _entry(self, span: Span) -> str:
        return self._files.entry_key(self._name, self._tag, span)


def require_room(plan: MixPlan, planner: Planner, first_step: int, end_step: int) -> None:
    """Refuse a cache that does not hold what two windows of a loader are made of.

    Raises:
        UsageError: its bound is smaller; names the least that will do.
    """
    cache = plan.files.cache if isinstance(plan.files, RemoteFiles) else None
    if cache is None:
        return
    sizes = plan.parts.sizes // -(-plan.parts.rows // ROWS_PER_GROUP)  # of a row group
    least = 0
    for _ in range(2):
        if first_step >= end_step:
            break
        window = planner.window(first_step)
        place = plan.parts.locate(window.rows.sources, window.rows.rows)
        parts = np.unique(np.stack([place.parts, place.groups]), axis=1)[0]
        least += int(sizes[parts].sum()) + HEADER_BYTES * len(parts)
        first_step = window.end_step
    if cache.most_bytes < least:
        raise UsageError(
            f"loader: cache_bytes must be at least {least}, what two windows of rows take, got"
            f" {cache.most_bytes}. Raise it, or lower read_ahead_bytes."
        )
    cache.keep_bytes = least

"""Ranges of bytes of a part: which a read takes, which are one request, and a file made of them."""

from __future__ import annotations

import bisect
import os
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from corpuskit.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow.parquet as pq

GAP_BYTES = 64 << 10
MOST_BYTES = 32 << 20
"""Ranges so near to each other are one request, if it is not larger than that."""


class Span(NamedTuple):
    """Bytes [begin, end) of a part."""

    begin: int
    end: int


class Tail(NamedTuple):
    """The end of a part as it was opened: the footer, or all of a small part."""

    tag: str
    size_bytes: int
    content: memoryview


class Pieces:
    """An object as a file for pyarrow: pieces are at hand, what else it reads is fetched.

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
        self._fetch, self._when_closed, self._at = fetch, when_closed, 0
        self._tail = (tail.size_bytes - len(tail.content), tail.content)
        self._begins: list[int] = []
        self._contents: list[memoryview] = []
        self.clear()

    def clear(self) -> None:
        """Let go of all but the tail."""
        self._begins, self._contents = [self._tail[0]], [self._tail[1]]

    def add(self, span: Span, content: memoryview) -> None:
        """Have a span at hand until `clear`."""
        at = bisect.bisect_right(self._begins, span.begin)
        self._begins.insert(at, span.begin)
        self._contents.insert(at, content)

    def has(self, span: Span) -> bool:
        """Say whether a span is at hand."""
        return self._find(span) is not None

    def piece(self, span: Span) -> memoryview:
        """Return a span, fetched if it is not at hand."""
        found = self._find(span)
        return self._fetch(span) if found is None else found

    def _find(self, span: Span) -> memoryview | None:
        at = bisect.bisect_right(self._begins, span.begin) - 1
        if at < 0:
            return None
        begin = span.begin - self._begins[at]
        found = self._contents[at][begin : begin + span.end - span.begin]
        return found if len(found) == span.end - span.begin else None

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read from any position."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size_bytes}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        return bytes(self._next(size))

    def read_buffer(self, size: int = -1) -> pa.Buffer:
        """Return the next bytes without a copy; pyarrow asks for this where it exists."""
        return pa.py_buffer(self._next(size))

    def close(self) -> None:
        """Let go of everything."""
        if not self.closed:
            self.closed = True
            self._when_closed()
            # pyarrow holds this object where no garbage collector sees it: leave no circle.
            self._fetch, self._when_closed = _fetch_nothing, _do_nothing
        self._tail = (self.size_bytes, memoryview(b""))
        self.clear()

    def _next(self, size: int) -> memoryview:
        end = self.size_bytes if size < 0 else min(self.size_bytes, self._at + size)
        span = Span(self._at, max(self._at, end))
        self._at = span.end
        return self.piece(span) if span.begin < span.end else memoryview(b"")


def _fetch_nothing(span: Span) -> memoryview:
    raise ValueError(f"bytes {span.begin} to {span.end} were asked for from a closed part")


def _do_nothing() -> None:
    pass


def spans_of(
    footer: pq.FileMetaData, group: int, size_bytes: int, columns: Sequence[str] | None = None
) -> list[Span]:
    """Return where column chunks of a row group lie; without `columns`, the one span of all.

    Raises:
        DataError: they lie outside of the file; without a place.
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
        raise DataError(f"its row group {group} lies outside of its {size_bytes} bytes")
    if columns is not None:
        return spans
    whole = Span(min(span.begin for span in spans), max(span.end for span in spans))
    if whole.end - whole.begin > sum(span.end - span.begin for span in spans) + GAP_BYTES:
        raise DataError(f"its row group {group} is not one range of bytes")
    return [whole]


def joined(spans: Sequence[Span]) -> list[Span]:
    """Return ranges that cover spans, one for those that are near to each other."""
    joined: list[Span] = []
    for span in sorted(spans):
        last = joined[-1] if joined else None
        is_near = last is not None and span.begin - last.end <= GAP_BYTES
        if last and is_near and span.end - last.begin <= MOST_BYTES:
            joined[-1] = Span(last.begin, max(last.end, span.end))
        else:
            joined.append(span)
    return joined

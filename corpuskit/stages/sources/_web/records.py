"""Takes web archives apart into records, and accounts for every byte that is in none."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from corpuskit.stages.sources._web.archive import HEADER_BYTES, START, VERSION, WARC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    ReadsBody = Callable[[Mapping[str, str]], bool]
    """Fields of a record -> whether its body is needed."""

    from corpuskit.stages.sources._web.archive import ArchivePiece, Framing


NOT_A_RECORD = "no record begins here"

HEAD_BYTES = 2000
"""Bytes that the ledger keeps of what is not a record."""

_DIGITS = re.compile(r"\d{1,15}")
_BREAKS = re.compile(rb"[\r\n \t\0]*")

STEP_BYTES = 1 << 20

REREAD_BYTES = 1 << 26
"""Because of wrong lengths this much may be read twice, and as much as the file holds."""


@dataclasses.dataclass(frozen=True)
class ArchiveRecord:
    """A record, or bytes that should have been one.

    Attributes:
        position: byte offset in the decompressed file, plus one for each damaged stretch before it.
        offset: of its gzip member in the file, None if it is not the first in one.
        fields: header, names in lower case; the first of equal names.
        body: its content block; empty if it is not to be read, or too long.
        size_bytes: of the block, as far as it could be read.
        expected_bytes: of the block, as its header says.
        problem: empty, `too_long`, `broken_record` or `clipped_file`.
        note: what is wrong, for people, and the first bytes of what is not a record.
    """

    position: int
    offset: int | None
    fields: Mapping[str, str]
    body: bytes = b""
    size_bytes: int = 0
    expected_bytes: int = 0
    problem: str = ""
    note: str = ""


class Cursor:
    """Reads pieces as one stream that stops where a record must end.

    That is before a gzip member that begins with a record, and where the file is damaged;
    `open` continues after it.

    Attributes:
        position: of the next byte.
        offset: of the gzip member whose first byte is the next one, else None.
        member_position: position of the first byte of the member that was last read from.
        damage: why the stream stops within that member, or empty.
        is_clipped: with damage, nothing follows.
        end: where the content ends, if it is known.
    """

    def __init__(
        self, pieces: Iterator[ArchivePiece], framing: Framing, end: int | None = None
    ) -> None:
        self._pieces, self.framing, self.end = pieces, framing, end
        self._waiting: ArchivePiece | None = None
        self._buffer, self._pos = b"", 0
        self.position = self.member_position = 0
        self.offset: int | None = None
        self.damage, self.is_clipped, self._is_stopped = "", False, False
        self.is_at_end = False
        self._reread_budget = REREAD_BYTES

    def open(self) -> bool:
        """Continue after a stop; return whether there is anything."""
        if self.damage:
            self.position += 1  # the damaged stretch has a position, and so a key, of its own
        self.damage, self.is_clipped, self._is_stopped = "", False, False
        self.offset = None
        if self._waiting is None:
            self._read_more()
        if self._waiting is not None:
            piece, self._waiting = self._waiting, None
            self.offset = piece.offset
            self._append(piece)
        return self._has_bytes() or bool(self.damage)

    def peek(self, size: int) -> bytes:
        """Return the next bytes without taking them: `size`, fewer only before a stop."""
        while len(self._buffer) - self._pos < size and self._read_more():
            pass
        return self._buffer[self._pos : self._pos + size]

    def skip(self, size: int) -> int:
        """Skip bytes; return how many there were before a stop."""
        bytes_left = size
        while bytes_left:
            step = min(bytes_left, len(self._buffer) - self._pos)
            self._pos += step
            bytes_left -= step
            if bytes_left and not self._read_more():
                break
        self.position += size - bytes_left
        self.offset = self.offset if size == bytes_left else None
        return size - bytes_left

    def take(self, size: int) -> bytes:
        """Return bytes: `size`, fewer only before a stop."""
        pieces, bytes_left = [], size
        while bytes_left:
            piece = self._buffer[self._pos : self._pos + bytes_left]
            pieces.append(piece)
            self._pos += len(piece)
            bytes_left -= len(piece)
            if bytes_left and not self._read_more():
                break
        self.position += size - bytes_left
        self.offset = None
        return b"".join(pieces)

    def pass_long(self, size: int, max_bytes: int) -> tuple[int, bytes]:
        """Skip a block that is not held in memory.

        Returns:
            How many of its bytes there are before a stop, and the bytes from the first line on
            that begins a record; none if they are more than `max_bytes`.
        """
        pieces: list[bytes] = []
        num_read = kept_bytes = 0
        tail, is_started = b"", False
        while num_read < size and (step := self.take(min(STEP_BYTES, size - num_read))):
            num_read += len(step)
            if not is_started:
                window = tail + step
                match = self.framing.next.search(window)
                tail, is_started = window[-self.framing.line_bytes :], match is not None
                step = window[match.start() + 1 :] if match else b""
            kept_bytes += len(step)
            pieces = [*pieces, step] if kept_bytes <= max_bytes else []
        return num_read, b"".join(pieces)

    def give_back(self, content: bytes) -> bool:
        """Put back the last bytes taken; False if that was done too often, or damage follows."""
        size = len(content) + len(self._buffer) - self._pos
        if self.damage or size > self._reread_budget:
            return False
        self._reread_budget -= size
        self._buffer = content + self._buffer[self._pos :]
        self._pos = 0
        self.position -= len(content)
        return True

    def skip_breaks(self) -> None:
        """Skip line breaks and blanks."""
        while self._has_bytes() or self._read_more():
            match = _BREAKS.match(self._buffer, self._pos)
            self.skip(match.end() - self._pos if match else 0)
            if self._has_bytes():
                return

    def skip_to_record(self) -> int:
        """Skip bytes up to a line that begins a record, or a stop; return how many."""
        begin = self.position
        while True:
            window = self.peek(HEADER_BYTES)
            match = self.framing.next_or_cut.search(window)
            if match:
                self.skip(match.start() + 1)
                return self.position - begin
            # The beginning of a record may lie across the end of the window.
            full_step = HEADER_BYTES - self.framing.line_bytes
            size = full_step if len(window) == HEADER_BYTES else len(window)
            if self.skip(size) < size or size < full_step:
                return self.position - begin

    def _has_bytes(self) -> bool:
        return self._pos < len(self._buffer)

    def _read_more(self) -> bool:
        """Append the next piece; return whether there is one before a stop."""
        if self._is_stopped:
            return False
        piece = next(self._pieces, None)
        if piece is None:
            self._is_stopped = self.is_at_end = True
            return False
        # Of a damaged member there may be less than the start of a record, or nothing.
        if piece.is_first and self.framing.may_start(piece.content[: self.framing.head_bytes]):
            self._waiting, self._is_stopped = piece, True
            return False
        self._append(piece)
        return not piece.damage

    def _append(self, piece: ArchivePiece) -> None:
        if piece.is_first:
            self.member_position = self.position + len(self._buffer) - self._pos
        self._buffer = self._buffer[self._pos :] + piece.content
        self._pos = 0
        self._reread_budget += len(piece.content)
        self.damage, self.is_clipped = piece.damage, piece.is_clipped
        self._is_stopped = bool(piece.damage)


def read_records(
    pieces: Iterator[ArchivePiece],
    reads_body: ReadsBody,
    limit: int,
    end: int | None = None,
    framing: Framing = WARC,
) -> Iterator[ArchiveRecord]:
    """Yield all records, and the bytes between them that belong to none.

    A record in a damaged member is `broken_record`, or `clipped_file` if the file has nothing more,
    however much of it could be read. A record whose length reaches into others, or beyond the end,
    is `broken_record`, and reading continues at the first line in its block that begins a record;
    in compressed files only if at most `limit` bytes of the block follow it.

    Args:
        pieces: of the file.
        limit: longer bodies are skipped, in bytes.
        end: where the content ends, if it is known.
        framing: how records begin.
    """
    cursor = Cursor(pieces, framing, end)
    while cursor.open():
        is_accounted = False
        cursor.skip_breaks()
        while cursor.peek(1):
            record = _read_record(cursor, reads_body, limit)
            end = cursor.position
            cursor.skip_breaks()
            stray = None
            head = b"" if record.problem else cursor.peek(framing.head_bytes)
            if head and not framing.may_start(head):
                stray = _read_record(cursor, reads_body, limit)
                cursor.skip_breaks()
            if cursor.damage and not cursor.peek(1) and not record.problem:
                if end > cursor.member_position:
                    # Bytes after it in a damaged member may be its own end, garbled.
                    record, stray = _damaged(record, cursor), None
                elif stray is not None:
                    stray = _damaged(stray, cursor)
            for item in (record,) if stray is None else (record, stray):
                is_accounted = item.problem in {"broken_record", "clipped_file"}
                yield item
        if cursor.damage and not is_accounted:
            yield _damaged(ArchiveRecord(cursor.position, cursor.offset, {}), cursor)


def _read_record(cursor: Cursor, reads_body: ReadsBody, limit: int) -> ArchiveRecord:
    position, offset = cursor.position, cursor.offset
    framing = cursor.framing
    window = cursor.peek(1024)
    end, fields = framing.read_header(window)
    if end is None:
        window = cursor.peek(HEADER_BYTES)
        end, fields = framing.read_header(window)
    length = fields.get("content-length", "")
    is_start = framing.starts(window)
    if not is_start or end is None or not _DIGITS.fullmatch(length):
        is_cut = end is None and framing.may_start(window)
        if not is_start and not is_cut:
            note = NOT_A_RECORD
        else:
            note = "a header without end" if end is None else f"Content-Length is {length!r}"
        next_start = _last_start(window[:end]) if framing.is_nested else 0
        return _stray(
            cursor, ArchiveRecord(position, offset, fields, note=note), window, next_start, is_cut
        )
    cursor.skip(end)
    return _read_block(
        cursor, ArchiveRecord(position, offset, fields, b"", 0, int(length)), reads_body, limit
    )


def _read_block(
    cursor: Cursor,
    record: ArchiveRecord,
    reads_body: ReadsBody,
    limit: int,
) -> ArchiveRecord:
    """Return a record with its block, and with what is wrong with it."""
    expected, offset = record.expected_bytes, record.offset
    is_long = expected > limit
    if cursor.end is not None and cursor.position + expected > cursor.end:
        size = cursor.skip_to_record()
        problem = "broken_record" if cursor.peek(1) else "clipped_file"
        return dataclasses.replace(record, size_bytes=size, problem=problem, note="ends early")
    if is_long:
        body = b""
        size, from_next = cursor.pass_long(expected, limit)
    else:
        body = from_next = cursor.take(expected)
        size = len(body)
    is_wrong_length = not cursor.damage and (size < expected or not _at_record_end(cursor))
    if is_wrong_length and not cursor.damage:
        if not is_long:
            # The line may begin in the block and end after it.
            match = cursor.framing.next.search(body + cursor.peek(cursor.framing.line_bytes))
            from_next = body[match.start() + 1 :] if match else b""
        if from_next and cursor.give_back(from_next):
            size -= len(from_next)
            note = "its length reaches into other records"
            return dataclasses.replace(record, size_bytes=size, problem="broken_record", note=note)
    body = body if reads_body(record.fields) else b""
    record = dataclasses.replace(record, body=body, size_bytes=size)
    if size < expected:
        if cursor.damage:
            return _damaged(record, cursor)
        problem = "clipped_file" if cursor.is_at_end and offset is None else "broken_record"
        return dataclasses.replace(record, body=b"", problem=problem, note="ends early")
    return dataclasses.replace(record, problem="too_long") if is_long else record


def _at_record_end(cursor: Cursor) -> bool:
    """Return whether another record follows, or nothing."""
    framing = cursor.framing
    return framing.may_start(cursor.peek(4 + framing.head_bytes).lstrip(b"\r\n \t\0"))


def _last_start(window: bytes) -> int:
    """Return where the last line begins that begins a record, 0 if none but the first does."""
    line_end = window.rfind(b"\n" + START)
    while line_end >= 0 and not VERSION.match(window, line_end + 1):
        line_end = window.rfind(b"\n" + START, 0, line_end)
    return line_end + 1


def _stray(
    cursor: Cursor, record: ArchiveRecord, window: bytes, next_start: int, is_cut: bool
) -> ArchiveRecord:
    """Skip bytes that are not a record, up to the next one.

    Args:
        cursor: at the first of them.
        record: with the reason as its note.
        window: the bytes that follow.
        next_start: where in `window` the next record begins; 0: unknown.
        is_cut: they may be the beginning of a record that the end of the file cuts off.
    """
    size = cursor.skip(next_start) if next_start else cursor.skip(1) + cursor.skip_to_record()
    head = window[: min(size, HEAD_BYTES)].decode("utf-8", "replace")
    record = dataclasses.replace(record, size_bytes=size, note=f"{record.note}: {head}")
    if cursor.damage:
        return _damaged(record, cursor)
    is_last = cursor.is_at_end and not cursor.peek(1) and record.offset is None
    return dataclasses.replace(
        record, problem="clipped_file" if is_cut and is_last else "broken_record"
    )


def _damaged(record: ArchiveRecord, cursor: Cursor) -> ArchiveRecord:
    """Return a record without its body, which is damaged."""
    problem = "clipped_file" if cursor.is_clipped else "broken_record"
    return dataclasses.replace(record, body=b"", problem=problem, note=cursor.damage)

"""Takes web archives apart into records, and accounts for every byte that is in none."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from corpuskit.stages.sources._archive import START

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from corpuskit.stages.sources._archive import Piece

HEADER_BYTES = 1 << 16
"""A longer header is none."""

NOT_A_RECORD = "no record begins here"

HEAD_BYTES = 2000
"""How much of what is no record goes to the ledger."""

_VERSION = re.compile(rb"WARC/\d{1,2}\.\d{1,2}[ \t]*\r?\n")
_BLANK = re.compile(rb"\r?\n\r?\n")
_FIELD = re.compile(r"([^\s:][^:]*?)[ \t]*:[ \t]*(.*)")
_DIGITS = re.compile(r"\d{1,15}")
_BREAKS = re.compile(rb"[\r\n \t\0]*")


@dataclasses.dataclass(frozen=True)
class Record:
    """A record, or bytes that should have been one.

    Attributes:
        position: byte offset in the decompressed file; each damaged place before it counts as one.
        offset: of its gzip member in the file, None if it is not the first in one.
        fields: header, names in lower case; the first of equal names.
        body: its content block; empty if it was not wanted, or is too long.
        size_bytes: of the block, as far as it is there.
        expected_bytes: of the block, as its header says.
        problem: empty, `too_long`, `broken_record` or `clipped_file`.
        note: what is wrong, for people; the beginning of what is no record.
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

    That is in front of a gzip member that begins with a record, and where the file is damaged;
    `open` goes on behind it.

    Attributes:
        position: of the next byte.
        offset: of the gzip member, as long as the next byte is its first.
        member_position: where the last member begins that was read from.
        damage: why the stream stops early, if it does: something in that member.
        is_clipped: with damage, nothing follows.
    """

    def __init__(self, pieces: Iterator[Piece]) -> None:
        self._pieces = pieces
        self._waiting: Piece | None = None
        self._buffer, self._at = b"", 0
        self.position = self.member_position = 0
        self.offset: int | None = None
        self.damage, self.is_clipped, self._is_stopped = "", False, False
        self.is_at_end = False

    def open(self) -> bool:
        """Go on behind a stop; return whether there is anything."""
        if self.damage:
            self.position += 1  # what is lost has a key of its own
        self.damage, self.is_clipped, self._is_stopped = "", False, False
        self.offset = None
        if self._waiting is None:
            self._more()
        if self._waiting is not None:
            piece, self._waiting = self._waiting, None
            self.offset = piece.offset
            self._append(piece)
        return self._has_bytes() or bool(self.damage)

    def peek(self, size: int) -> bytes:
        """Return the next bytes without taking them: `size`, fewer only before a stop."""
        while len(self._buffer) - self._at < size and self._more():
            pass
        return self._buffer[self._at : self._at + size]

    def skip(self, size: int) -> int:
        """Pass over bytes; return how many there were before a stop."""
        left = size
        while left:
            step = min(left, len(self._buffer) - self._at)
            self._at += step
            left -= step
            if left and not self._more():
                break
        self.position += size - left
        self.offset = self.offset if size == left else None
        return size - left

    def take(self, size: int) -> bytes:
        """Return bytes: `size`, fewer only before a stop."""
        pieces, left = [], size
        while left:
            piece = self._buffer[self._at : self._at + left]
            pieces.append(piece)
            self._at += len(piece)
            left -= len(piece)
            if left and not self._more():
                break
        self.position += size - left
        self.offset = None
        return b"".join(pieces)

    def skip_breaks(self) -> None:
        """Pass over line breaks and blanks."""
        while self._has_bytes() or self._more():
            found = _BREAKS.match(self._buffer, self._at)
            self.skip(found.end() - self._at if found else 0)
            if self._has_bytes():
                return

    def skip_to_record(self) -> int:
        """Pass over bytes up to a line that begins a record, or a stop; return how many."""
        begin = self.position
        while True:
            window = self.peek(HEADER_BYTES)
            found = window.find(b"\n" + START)
            while found >= 0:
                if _VERSION.match(window, found + 1) or len(window) - found < 16:
                    self.skip(found + 1)
                    return self.position - begin
                found = window.find(b"\n" + START, found + 1)
            # The beginning of a record may lie across the end of the window.
            size = len(window) - 16 if len(window) == HEADER_BYTES else len(window)
            if self.skip(size) < size or size < HEADER_BYTES - 16:
                return self.position - begin

    def _has_bytes(self) -> bool:
        return self._at < len(self._buffer)

    def _more(self) -> bool:
        """Append the next piece; return whether there is one before a stop."""
        if self._is_stopped:
            return False
        piece = next(self._pieces, None)
        if piece is None:
            self._is_stopped = self.is_at_end = True
            return False
        # Of a damaged member there may be less than the start of a record, or nothing.
        if piece.is_first and START.startswith(piece.content[: len(START)]):
            self._waiting, self._is_stopped = piece, True
            return False
        self._append(piece)
        return not piece.damage

    def _append(self, piece: Piece) -> None:
        if piece.is_first:
            self.member_position = self.position + len(self._buffer) - self._at
        self._buffer = self._buffer[self._at :] + piece.content
        self._at = 0
        self.damage, self.is_clipped = piece.damage, piece.is_clipped
        self._is_stopped = bool(piece.damage)


def read_records(
    pieces: Iterator[Piece], wanted: Callable[[Mapping[str, str]], bool], most: int
) -> Iterator[Record]:
    """Yield all records, and what lies between them and is none.

    A record whose member turns out to be damaged is `broken_record`, or `clipped_file` if the file
    has nothing more, however much of it came out.

    Args:
        pieces: of the file.
        wanted: fields -> whether the body is asked for.
        most: longer bodies are passed over, in bytes.
    """
    cursor = Cursor(pieces)
    while cursor.open():
        is_accounted = False
        cursor.skip_breaks()
        while cursor.peek(1):
            record = _read_record(cursor, wanted, most)
            end = cursor.position
            cursor.skip_breaks()
            stray = None
            if not record.problem and cursor.peek(1) and cursor.peek(len(START)) != START:
                stray = _read_record(cursor, wanted, most)
                cursor.skip_breaks()
            if cursor.damage and not cursor.peek(1) and not record.problem:
                if end > cursor.member_position:
                    # What follows it in a damaged member may be its own end, garbled.
                    record, stray = _spoiled(record, cursor), None
                elif stray is not None:
                    stray = _spoiled(stray, cursor)
            for one in (record,) if stray is None else (record, stray):
                is_accounted = one.problem in {"broken_record", "clipped_file"}
                yield one
        if cursor.damage and not is_accounted:
            yield _spoiled(Record(cursor.position, cursor.offset, {}), cursor)


def _read_record(cursor: Cursor, wanted: Callable[[Mapping[str, str]], bool], most: int) -> Record:
    position, offset = cursor.position, cursor.offset
    window = cursor.peek(1024)
    end = _BLANK.search(window)
    if end is None:
        window = cursor.peek(HEADER_BYTES)
        end = _BLANK.search(window)
    fields = parse_fields(window[: end.start()]) if end is not None else {}
    length = fields.get("content-length", "")
    is_start = _VERSION.match(window) is not None
    if not is_start or end is None or not _DIGITS.fullmatch(length):
        is_cut = end is None and START.startswith(window[: len(START)])
        if not is_start and not is_cut:
            note = NOT_A_RECORD
        else:
            note = "a header without end" if end is None else f"Content-Length is {length!r}"
        head = window[:HEAD_BYTES].decode("utf-8", "replace")
        return _stray(cursor, Record(position, offset, fields, note=f"{note}: {head}"), is_cut)
    cursor.skip(end.end())
    expected = int(length)
    is_long = expected > most
    if is_long or not wanted(fields):
        body, size = b"", cursor.skip(expected)
    else:
        body = cursor.take(expected)
        size = len(body)
    record = Record(position, offset, fields, body, size, expected)
    if size < expected:
        if cursor.damage:
            return _spoiled(record, cursor)
        problem = "clipped_file" if cursor.is_at_end and offset is None else "broken_record"
        return dataclasses.replace(record, body=b"", problem=problem, note="ends early")
    return dataclasses.replace(record, problem="too_long") if is_long else record


def _stray(cursor: Cursor, record: Record, is_cut: bool) -> Record:
    """Pass over what is no record, up to the next one; at the end of the file it may be cut off."""
    size = cursor.skip(1) + cursor.skip_to_record()
    record = dataclasses.replace(record, size_bytes=size)
    if cursor.damage:
        return _spoiled(record, cursor)
    is_last = cursor.is_at_end and not cursor.peek(1) and record.offset is None
    return dataclasses.replace(
        record, problem="clipped_file" if is_cut and is_last else "broken_record"
    )


def _spoiled(record: Record, cursor: Cursor) -> Record:
    """Return a record as one that the damage behind it took."""
    problem = "clipped_file" if cursor.is_clipped else "broken_record"
    return dataclasses.replace(record, body=b"", problem=problem, note=cursor.damage)


def parse_fields(header: bytes) -> dict[str, str]:
    """Return the fields of a header, names in lower case; the first of equal names counts.

    Source: RFC 9112, section 5; lines that begin with a blank belong to the one before.
    """
    fields: dict[str, str] = {}
    name = ""
    for line in header.decode("utf-8", "replace").split("\n"):
        found = _FIELD.fullmatch(line.rstrip("\r"))
        if found:
            name = found[1].lower()
            fields.setdefault(name, found[2].strip())
        elif name and line[:1] in {" ", "\t"}:
            fields[name] = f"{fields[name]} {line.strip()}"
    return fields

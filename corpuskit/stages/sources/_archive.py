"""Decompresses web archives member by member, and goes on behind a broken one."""

from __future__ import annotations

import contextlib
import io
import os
import re
import zlib
from typing import TYPE_CHECKING, NamedTuple

from corpuskit.errors import DataError
from corpuskit.stages.sources._framing import framing_of
from corpuskit.stages.sources._stream import (
    MAX_POSITION,
    OUTPUT_BYTES,
    READ_BYTES,
    compression,
    compression_of,
    expansion_limit,
    zstd_blocks,
)
from corpuskit.storage import open_input

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from io import BufferedIOBase

    from corpuskit.stages.sources._framing import Framing
    from corpuskit.stages.sources._wacz import Part

PROBE_BYTES = 4096
"""Enough of a gzip member to see how its content starts."""

REPAIR_BYTES = 64
"""What lies this far before the damage in a member may be lost with it."""

_MEMBER = re.compile(rb"\x1f\x8b\x08[\x00-\x1f]")


class Piece(NamedTuple):
    """Decompressed bytes.

    Attributes:
        content: some of them.
        offset: where their gzip member or zstd frame begins in the file; 0 in plain files.
        is_first: they are the first of one; as many as tell whether a record begins, if it has.
        damage: why nothing more of it can be read.
        is_clipped: with damage: nothing that can be read follows.
    """

    content: bytes
    offset: int = 0
    is_first: bool = False
    damage: str = ""
    is_clipped: bool = False


class Archive:
    """The pieces of one file, in bounded memory.

    A file may be plain, gzip (a member per record, or any other way) or zstd. Behind a broken gzip
    member reading goes on at the next that begins with a record; a broken zstd frame ends the file.

    Args:
        part: what to read of it; None: all.

    Attributes:
        framing: how its records begin.
        consumed: bytes of the file that were taken so far.
        end: where its content ends; None in compressed files.

    Raises:
        DataError: name and content of the file disagree about its compression, or it holds more
            than `max_expansion` times its size.
    """

    def __init__(self, path: str, max_expansion: int, part: Part | None = None) -> None:
        self.path = path if part is None else f"{path}: {part.name}"
        self.framing = framing_of(self.path)
        if part is None:
            self._kind = compression(path)
        else:
            with contextlib.closing(_Window(open_input(path), part)) as window:
                self._kind = compression_of(self.path, window.read(6))
        file = open_input(path)
        self._file: BufferedIOBase = file if part is None else _Window(file, part)
        self._size = self._file.seek(0, os.SEEK_END)
        self._file.seek(0)
        limit = expansion_limit(self._size, max_expansion)
        self._most = limit if self._kind else MAX_POSITION
        self.end = None if self._kind else self._size

    @property
    def consumed(self) -> int:
        """Bytes of the file taken so far."""
        return min(self._file.tell(), self._size)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def pieces(self) -> Iterator[Piece]:
        """Yield the content of the file.

        Raises:
            DataError: the file holds too much.
        """
        readers = {"gzip": _gunzip, "zstd": _frames, "": _plain}
        held = 0
        for piece in readers[self._kind](self._file, self.path, self.framing):
            held += len(piece.content)
            if held > self._most:
                raise DataError(
                    f"{self.path}: {self._size:,} bytes hold more than {self._most:,}, which text "
                    "does not compress to: perhaps a decompression bomb. Take the file out, or "
                    "raise max_expansion of the source."
                )
            yield piece


class _Window(io.BufferedIOBase):
    """A part of a file, read as a file."""

    def __init__(self, file: BufferedIOBase, part: Part) -> None:
        self._file, self._begin, self._end = file, part.begin, part.end
        self.seek(0)

    def tell(self) -> int:
        return self._file.tell() - self._begin

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = self._end if whence == os.SEEK_END else self._begin
        return self._file.seek(start + offset) - self._begin

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self._end - self._file.tell())
        return self._file.read(left if size is None or size < 0 else min(size, left))

    def close(self) -> None:
        self._file.close()
        super().close()


def _plain(file: BufferedIOBase, path: str, framing: Framing) -> Iterator[Piece]:
    while content := file.read(READ_BYTES):
        yield Piece(content)


def _frames(file: BufferedIOBase, path: str, framing: Framing) -> Iterator[Piece]:
    frame = -1
    try:
        for begin, content in zstd_blocks(file, path):
            yield Piece(content, begin, begin != frame)
            frame = begin
    except DataError as error:
        reason = str(error).removeprefix(f"{path}: ").removesuffix(" Fetch the file again.")
        yield Piece(b"", 0, damage=reason, is_clipped=True)


def _gunzip(file: BufferedIOBase, path: str, framing: Framing) -> Iterator[Piece]:
    """Yield the content of all gzip members that can be read, of broken ones what comes out."""
    offset: int | None = 0
    while offset is not None:
        file.seek(offset)
        offset = yield from _members(file, offset, framing)


def _members(
    file: BufferedIOBase, offset: int, framing: Framing
) -> Generator[Piece, None, int | None]:
    """Yield members from `offset` on; return where to go on behind damage, None at the end."""
    window = b""
    while True:
        window = window.lstrip(b"\0")  # padding between members
        if not window:
            window = file.read(READ_BYTES)
            if not window:
                return None
            continue
        offset = file.tell() - len(window)
        member = _Member(offset, framing.head_bytes)
        reason = ""
        while not member.is_done:
            try:
                yield from member.decode(window)
            except zlib.error as error:
                yield from member.rescue()
                reason = f"broken gzip member at byte {offset}: {error}"
                break
            window = member.rest
            if not member.is_done:
                window = file.read(READ_BYTES)
                if not window:
                    reason = f"the file ends within the gzip member at byte {offset}"
                    break
        if reason:
            yield from member.flush()
            following = _next_member(file, offset + 1, framing)
            yield Piece(b"", offset, member.is_new, reason, following is None)
            return following


class _Member:
    """Decodes one gzip member; its first piece holds at least the bytes that a record starts with.

    Attributes:
        is_new: nothing of it was given out yet.
        is_done: the member is whole and its checksum right.
        rest: what lies behind it, of the bytes last given.
    """

    def __init__(self, offset: int, head_bytes: int) -> None:
        self._offset, self._head_bytes = offset, head_bytes
        self._decoder = zlib.decompressobj(31)
        self._before = self._decoder.copy()
        self._given = self._held = b""
        self.rest = b""
        self.is_new, self.is_done = True, False

    def decode(self, compressed: bytes) -> Iterator[Piece]:
        """Yield what more bytes of the file hold; at most OUTPUT_BYTES at once."""
        while True:
            # What is decoded up to an error is lost with it, unless it is decoded again.
            self._before, self._given = self._decoder.copy(), compressed
            content = self._decoder.decompress(compressed, OUTPUT_BYTES)
            compressed = self._decoder.unconsumed_tail
            self.is_done = self._decoder.eof
            yield from self._out(content)
            if self.is_done or (not compressed and len(content) < OUTPUT_BYTES):
                break
        if self.is_done:
            self.rest = self._decoder.unused_data
            yield from self.flush()

    def rescue(self) -> Iterator[Piece]:
        """Yield what lies before the error, REPAIR_BYTES at a time."""
        decoder, given = self._before, self._given
        for begin in range(0, len(given), REPAIR_BYTES):
            try:
                yield from self._out(decoder.decompress(given[begin : begin + REPAIR_BYTES]))
            except zlib.error:
                return

    def flush(self) -> Iterator[Piece]:
        """Yield what was held back of a member that is tiny."""
        if self._held:
            yield Piece(self._held, self._offset, self.is_new)
            self.is_new, self._held = False, b""

    def _out(self, content: bytes) -> Iterator[Piece]:
        content = self._held + content
        if self.is_new and len(content) < self._head_bytes:
            self._held = content
        elif content:
            self._held = b""
            yield Piece(content, self._offset, self.is_new)
            self.is_new = False


def _next_member(file: BufferedIOBase, begin: int, framing: Framing) -> int | None:
    """Return where the next gzip member begins that holds a record; O(bytes up to there)."""
    while True:
        file.seek(begin)
        window = file.read(READ_BYTES + PROBE_BYTES)
        for found in _MEMBER.finditer(window):
            place = found.start()
            head = window[place : place + PROBE_BYTES]
            if place < READ_BYTES and _holds_record(head, framing):
                return begin + place
        if len(window) < READ_BYTES + PROBE_BYTES:
            return None
        begin += READ_BYTES


def _holds_record(compressed: bytes, framing: Framing) -> bool:
    decoder = zlib.decompressobj(31)
    try:
        head = decoder.decompress(compressed, framing.head_bytes)
    except zlib.error:
        return False
    is_whole = len(head) >= framing.head_bytes
    return framing.starts(head) or (is_whole and framing.may_start(head))

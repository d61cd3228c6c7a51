"""Cuts a stream into blocks of whole records (lines, paragraphs), in bounded memory."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from corpuskit.formats.batch import POSITION_BITS
from corpuskit.kernels.arrays import Bytes, Int64s, frozen
from corpuskit.kernels.jit import kernel
from corpuskit.stage import InputFile, Slice
from corpuskit.stages.sources._json import mark_width
from corpuskit.stages.sources._stream import (
    MAX_EXPANSION,
    InputStream,
    compression,
    refuse_no_bytes,
)

BLOCK_BYTES = 4 << 20
BLOCK_ROWS = 4096
STEP_BYTES = 1 << 16
"""Read at least, to finish the last record of a slice."""

HEAD_BYTES = 20_000
"""Bytes of a record that is not a document that the ledger keeps."""


class Cutter(NamedTuple):
    """How records are separated.

    Attributes:
        split: (data (B,) uint8, is_last) -> starts (n,), ends (n,), bytes done; the rest of the
            bytes belongs to a record that may continue.
        skip: (data, state) -> first byte after the record under way, or -1; and the new state.
        gap: bytes that end a record and do not belong to it.
    """

    split: Callable[[Bytes, bool], tuple[Int64s, Int64s, int]]
    skip: Callable[[Bytes, int], tuple[int, int]]
    gap: int


@dataclasses.dataclass(frozen=True)
class TooLong:
    """A record longer than the limit: its key, its bytes, and how it begins."""

    position: int
    size_bytes: int
    head: str


@dataclasses.dataclass(frozen=True)
class RecordBlock:
    """Whole records: record i is `data[starts[i]:ends[i]]`.

    Attributes:
        positions: (N,) the key of each record: file and byte offset in it, decompressed.
        too_long: records that are not in the block because they are over the limit.
        size_bytes: bytes of the file that were read for it.
    """

    positions: Int64s
    data: Bytes
    starts: Int64s
    ends: Int64s
    too_long: tuple[TooLong, ...]
    size_bytes: int

    def __len__(self) -> int:
        return len(self.starts)

    def row(self, index: int) -> bytes:
        """Return a copy of one record."""
        return self.data[self.starts[index] : self.ends[index]].tobytes()


def cut_file(file: InputFile, target_bytes: int, *, splittable: bool = True) -> list[Slice]:
    """Cut a plain file into byte ranges of about `target_bytes`; any other is one slice.

    A range owns the records that start in it.

    Raises:
        DataError: name and content of the file disagree about its compression, or a compressed
            file has no bytes.
    """
    size = file.size_bytes
    if size == 0:
        refuse_no_bytes(file.path)
        return []
    if compression(file.path) or not splittable:
        return [Slice(0, size, size)]
    number = max(1, round(size / target_bytes))
    bounds = [size * index // number for index in range(number + 1)]
    return [Slice(a, b, b - a) for a, b in itertools.pairwise(bounds)]


def read_blocks(
    pieces: Iterable[tuple[InputFile, Slice]],
    limit: int,
    cutter: Cutter,
    max_expansion: int = MAX_EXPANSION,
) -> Iterator[RecordBlock]:
    """Yield the records of slices; blocks hold about BLOCK_BYTES and at most BLOCK_ROWS.

    Where blocks end depends on the slices and the bytes alone. Memory: a few times the larger of
    BLOCK_BYTES and `limit`, however long a record is.

    Args:
        pieces: files with slices of them, as `cut_file` gives them.
        limit: longer records, in bytes, are skipped and reported.
        cutter: lines or paragraphs.
        max_expansion: how many times its size a compressed file may hold.

    Raises:
        DataError: the compressed data is broken, or too much.
    """
    return join_blocks(
        block
        for file, piece in pieces
        for block in _read_slice(file, piece, limit, cutter, max_expansion)
    )


def join_blocks(blocks: Iterator[RecordBlock]) -> Iterator[RecordBlock]:
    """Join small blocks, those of neighbouring files, too: each costs as much as 100 KB in it."""
    waiting: list[RecordBlock] = []
    rows = size = 0
    for block in blocks:
        rows, size = rows + len(block), size + len(block.data)
        is_full = rows > BLOCK_ROWS or size > BLOCK_BYTES
        if waiting and (is_full or waiting[-1].ends[-1:].sum() > len(waiting[-1].data)):
            yield _joined(waiting)
            waiting, rows, size = [], len(block), len(block.data)
        waiting.append(block)
    if waiting:
        yield _joined(waiting)


def _joined(blocks: list[RecordBlock]) -> RecordBlock:
    """Return one block, with a line feed between two: half a UTF-8 sequence must end there."""
    if len(blocks) == 1:
        return blocks[0]
    gap = np.array([10], np.uint8)
    firsts = np.cumsum([0, *(len(block.data) + 1 for block in blocks[:-1])]).tolist()
    data = np.concatenate([piece for block in blocks for piece in (block.data, gap)])
    return RecordBlock(
        np.concatenate([block.positions for block in blocks]),
        frozen(data),  # read-only, as blocks that are not joined
        np.concatenate([b.starts + first for b, first in zip(blocks, firsts, strict=True)]),
        np.concatenate([b.ends + first for b, first in zip(blocks, firsts, strict=True)]),
        tuple(itertools.chain.from_iterable(block.too_long for block in blocks)),
        sum(block.size_bytes for block in blocks),
    )


def _read_slice(
    file: InputFile, piece: Slice, limit: int, cutter: Cutter, max_expansion: int
) -> Iterator[RecordBlock]:
    begin, first = piece.begin, file.ordinal << POSITION_BITS
    with InputStream(file.path, max(0, begin - 1), max_expansion) as stream:
        end = None if stream.kind else piece.end
        buffer = b""
        if begin:
            # The byte before the slice may end a record; if not, a record of the slice before
            # continues here.
            skipped, buffer, _ = _skip(stream, b"", cutter)
            begin += skipped - 1
        consumed = 0
        for position, data, starts, ends, long in _runs(stream, buffer, begin, end, limit, cutter):
            size, consumed = stream.consumed - consumed, stream.consumed
            for row in range(0, max(len(starts), 1), BLOCK_ROWS):
                rows = slice(row, row + BLOCK_ROWS)
                if row:
                    size, long = 0, ()
                yield _trimmed(first, position, data, starts[rows], ends[rows], long, size)


def _trimmed(
    first: int,
    position: int,
    data: Bytes,
    starts: Int64s,
    ends: Int64s,
    long: tuple[TooLong, ...],
    size: int,
) -> RecordBlock:
    low, high = (int(starts[0]), int(ends[-1])) if len(starts) else (0, 0)
    long = tuple(dataclasses.replace(record, position=first | record.position) for record in long)
    positions = (first | position) + starts
    return RecordBlock(positions, data[low:high], starts - low, ends - low, long, size)


_Run = tuple[int, "Bytes", "Int64s", "Int64s", tuple[TooLong, ...]]


def _runs(
    stream: InputStream, buffer: bytes, position: int, end: int | None, limit: int, cutter: Cutter
) -> Iterator[_Run]:
    """Yield (position, bytes, starts, ends, records over the limit) until `end` or the file's."""
    is_last = False
    while not is_last and (end is None or position < end):
        size = max(BLOCK_BYTES - len(buffer), len(buffer), STEP_BYTES)
        ahead = None if end is None else end - position - len(buffer)
        if ahead is not None:
            size = min(size, ahead + STEP_BYTES) if ahead > 0 else max(len(buffer), STEP_BYTES)
        size = min(size, max(BLOCK_BYTES, limit + STEP_BYTES) - len(buffer))
        piece = stream.read(size)
        is_last = len(piece) < size
        buffer += piece
        data = np.frombuffer(buffer, np.uint8)
        starts, ends, consumed = cutter.split(data, is_last)
        long: tuple[TooLong, ...] = ()
        if consumed == 0 and len(buffer) > limit:
            head = _head(data)
            consumed, remaining, is_ended = _skip(stream, buffer, cutter)
            long = (TooLong(position, consumed - cutter.gap if is_ended else consumed, head),)
        else:
            remaining = buffer[consumed:]
            if end is not None and position + consumed > end:
                inside = starts + position < end
                starts, ends = starts[inside], ends[inside]
            if len(starts) and (ends - starts).max() > limit:
                starts, ends, long = _without_long(position, data, starts, ends, limit)
        if len(starts) or long:
            yield position, data, starts, ends, long
        position, buffer = position + consumed, remaining


def _without_long(
    position: int, data: Bytes, starts: Int64s, ends: Int64s, limit: int
) -> tuple[Int64s, Int64s, tuple[TooLong, ...]]:
    is_long = ends - starts > limit
    ranges = zip(starts[is_long].tolist(), ends[is_long].tolist(), strict=True)
    too_long = tuple(TooLong(position + a, b - a, _head(data[a:b])) for a, b in ranges)
    return starts[~is_long], ends[~is_long], too_long


def _head(record: Bytes) -> str:
    return record[:HEAD_BYTES].tobytes().decode("utf-8", "replace")


def _skip(stream: InputStream, buffer: bytes, cutter: Cutter) -> tuple[int, bytes, bool]:
    """Skip the record under way.

    Returns:
        How many bytes that were, what was read after them, and whether the record had an end.
    """
    size = state = 0
    step = STEP_BYTES
    while True:
        skipped, state = cutter.skip(np.frombuffer(buffer, np.uint8), state)
        if skipped >= 0:
            return size + skipped, buffer[skipped:], True
        size += len(buffer)
        buffer = stream.read(step)
        step = min(2 * step, BLOCK_BYTES)
        if not buffer:
            return size, b"", False


def split_lines(data: Bytes, is_last: bool) -> tuple[Int64s, Int64s, int]:
    """Split at line feeds, which belong to no record."""
    ends = np.flatnonzero(data == 10).astype(np.int64)
    consumed = int(ends[-1]) + 1 if len(ends) else 0
    if is_last and consumed < len(data):
        ends = np.append(ends, len(data))
        consumed = len(data)
    starts = np.zeros(len(ends), np.int64)
    starts[1:] = ends[:-1] + 1
    return starts, ends, consumed


def skip_line(data: Bytes, state: int) -> tuple[int, int]:
    """Find the byte after the next line feed."""
    end = data.tobytes().find(b"\n")
    return (end + 1 if end >= 0 else -1), 0


@kernel
def split_paragraphs(data: Bytes, is_last: bool) -> tuple[Int64s, Int64s, int]:
    """Split at blank lines: O(B), allocates 16 bytes per paragraph.

    A paragraph goes from its first line that is not blank to the last one's end, its line end not
    included. Blank lines hold nothing but spaces, tabs, form feeds and carriage returns.
    """
    num = 0
    starts, ends = np.empty(64, np.int64), np.empty(64, np.int64)
    size = len(data)
    start = -1
    end = line = pos = 0
    is_blank = True
    while True:
        at_end = pos == size
        if at_end and not is_last:
            break
        if at_end or data[pos] == 10:
            if not is_blank:
                start = line if start < 0 else start
                end = pos - 1 if data[pos - 1] == 13 else pos
            if start >= 0 and (is_blank or at_end):
                if num == len(starts):
                    starts = np.concatenate((starts, np.empty(num, np.int64)))
                    ends = np.concatenate((ends, np.empty(num, np.int64)))
                starts[num], ends[num] = start, end
                num += 1
                start = -1
            if at_end:
                break
            line = pos + 1
            is_blank = True
        elif not _is_space(data[pos]):
            is_blank = False
        pos += 1
    consumed = size if is_last else (start if start >= 0 else line)
    return starts[:num], ends[:num], consumed


@kernel
def skip_paragraph(data: Bytes, state: int) -> tuple[int, int]:
    """Find the byte after the next blank line; `state` 1 = only blanks since the line began."""
    for pos in range(len(data)):
        if data[pos] == 10:
            if state == 1:
                return pos + 1, 0
            state = 1
        elif not _is_space(data[pos]):
            state = 0
    return -1, state


@kernel
def trim_records(data: Bytes, starts: Int64s, ends: Int64s, is_line: bool) -> None:
    """Leave out byte order marks, and the carriage return of a line end; empty blank records.

    Changes `starts` and `ends`; O(n) but for blank records. A record may end after the data.
    """
    size = len(data)
    for row in range(len(starts)):
        start, end = starts[row], ends[row]
        start += mark_width(data, start, end)
        if is_line and start < end <= size and data[end - 1] == 13:
            end -= 1
        pos = start
        while pos < min(end, size) and (data[pos] == 10 or _is_space(data[pos])):
            pos += 1
        starts[row], ends[row] = start, (start if pos == end else end)


@kernel
def gather_records(data: Bytes, starts: Int64s, ends: Int64s) -> tuple[Int64s, Bytes]:
    """Copy records one after another; return their offsets (n + 1,) and bytes."""
    offsets = np.zeros(len(starts) + 1, np.int64)
    for row in range(len(starts)):
        offsets[row + 1] = offsets[row] + ends[row] - starts[row]
    out = np.empty(offsets[-1], np.uint8)
    for row in range(len(starts)):
        shift = offsets[row] - starts[row]
        for pos in range(starts[row], ends[row]):
            out[shift + pos] = data[pos]
    return offsets, out


@kernel
def _is_space(byte: int) -> bool:
    return byte == 32 or byte == 9 or byte == 13 or byte == 12


LINES = Cutter(split_lines, skip_line, 1)
PARAGRAPHS = Cutter(split_paragraphs, skip_paragraph, 2)

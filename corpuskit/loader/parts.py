"""Verified reads of packed token shards: page CRCs checked, one retry, then an error.

Reads are `pread`, never mmap: a mapped page skips the CRC, and a fault on a hung mount can't time
out. Letters: R rows, L = seq_len.

The tokens of a row group are one page: a short header, then the values as they are. Arrow reads
that into fresh memory. `TokenPages` reads it, verified and with one copy, into the memory of the
rows, or, where only some rows are wanted, into the same memory each time, which stays in the L2
cache. Pages that are not exactly what our writer makes are left to Arrow.
"""

from __future__ import annotations

import functools
import json
import threading
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.errors import DataError
from corpuskit.loader.files import FORMAT, Transfers, one_line
from corpuskit.loader.index import ROWS_PER_GROUP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from corpuskit.loader.files import PartSource
    from corpuskit.loader.index import MixPlan

PADDING = 2  # bit 1 of a segment's flags
TOKEN_BYTES, GROUP_BYTES = 32, 1 << 20  # most that a token takes: its own, and those of a segment
SEGMENT_COLUMNS = ("doc_starts", "text_bytes", "flags")
TOKEN_COLUMNS = ("tokens", *SEGMENT_COLUMNS)
# What a read that failed raises: a file that is gone, cut, or whose pages break their CRC.
# UnicodeDecodeError: pyarrow decodes names of columns in Python.
READ_ERRORS = (OSError, pa.ArrowException, UnicodeDecodeError, DataError)

_MOST_HEADER_BYTES = 64

# The CRC's polynomial divides x^_HIGH + x^_LOW + 1 (found by search), so also the same with both
# exponents times 8. A byte at p thus adds to the CRC what it would add at p + _NEAR and at
# p + _HIGH together: the head of a page can be folded into its last _HIGH bytes.
_HIGH, _LOW = 91_639, 41_678
_NEAR = _HIGH - _LOW


class SegmentColumns(NamedTuple):
    """The segments of the rows of a part, as arrays.

    Attributes:
        starts: int32 first token of every segment of every row.
        bounds: (R + 1,) where each row's `starts` begin and end.
        pads: (R,) first token of the padded tail; L + 1 without one.
        text_bytes: (R,) bytes of text in the row.
    """

    starts: NDArray[np.int32]
    bounds: NDArray[np.int32]
    pads: NDArray[np.int32]
    text_bytes: NDArray[np.int64]


class StoredRows(NamedTuple):
    """Rows of a part as arrays.

    Attributes:
        tokens: (R, L + 1) unsigned, as stored.
        starts, bounds, pads, text_bytes: as in `SegmentColumns`.
    """

    tokens: NDArray[np.unsignedinteger]
    starts: NDArray[np.int32]
    bounds: NDArray[np.int32]
    pads: NDArray[np.int32]
    text_bytes: NDArray[np.int64]


class RowSink(Protocol):
    """Takes the tokens of row groups as bytes, (R, row bytes); `number` counts the groups."""

    def destination(self, number: int) -> NDArray[np.uint8] | None:
        """Return contiguous memory that all rows of a group may be read into, if there is any."""

    def put(self, number: int, tokens: NDArray[np.uint8]) -> None:
        """Take rows that were not read into `destination`; they are valid until this returns."""


@dataclass(slots=True, eq=False)
class _OpenPart:
    number: int
    source: PartSource
    file: pq.ParquetFile

    def close(self) -> None:
        self.source.file.close()


class OpenParts:
    """The open parts of a loader: opened at the first read, and shared by its threads.

    At most `max_open`, or one for each thread that reads if those are more. One thread at a time
    uses a part (a Parquet reader keeps state); a second thread that needs it gets a second handle.

    Attributes:
        transfers: what was fetched for them from object storage.
    """

    def __init__(self, plan: MixPlan, max_open: int) -> None:
        self._plan, self._max_open = plan, max_open
        self._row_bytes = (plan.seq_len + 1) * plan.dtype.itemsize
        self.transfers = Transfers()
        sizes = [source.rows for source in plan.sources]
        self._is_read_again = plan.order.taken(plan.order.num_rows) > np.array(sizes, np.int64)
        self._lock = threading.Lock()
        self._idle: OrderedDict[int, _OpenPart] = OrderedDict()  # by id(), the longest idle first
        self._num_open = 0
        self._is_closed = False

    def where(self, part: int, groups: Sequence[int]) -> str:
        """Name row groups the way errors do."""
        index = self._plan.parts
        source = self._plan.sources[int(index.sources[part])].name
        which = f"row group {groups[0]}" + (f" to {groups[-1]}" if len(groups) > 1 else "")
        return f"{self._plan.files.where(index.paths[part])}: {which}: source {source!r}"

    def read(self, part: int, groups: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Return columns of ascending row groups, every page verified.

        Raises:
            OSError, pa.ArrowException, ...: `READ_ERRORS`, without the place; read again.
        """
        opened = self._borrow(part)
        is_sound = False
        try:
            self._check_groups(opened.file, groups)
            with opened.source.ready(opened.file.metadata, groups, columns):
                table = opened.file.read_row_groups(
                    list(groups), columns=list(columns), use_threads=False
                )
                self._check_count(part, groups, table.num_rows)
            is_sound = True
        finally:
            self._give_back(opened, is_sound)
        return table

    def read_rows(
        self,
        part: int,
        groups: Sequence[int],
        pages: TokenPages,
        rows: RowSink,
    ) -> SegmentColumns:
        """Read ascending row groups, every page verified, and pass their tokens on.

        Args:
            part: its number.
            groups: numbers of its row groups.
            pages: what reads a page.
            rows: takes the tokens.

        Raises:
            OSError, pa.ArrowException, ...: `READ_ERRORS`, without the place; read again.
        """
        opened = self._borrow(part)
        is_sound = False
        try:
            self._check_groups(opened.file, groups)
            footer, file = opened.file.metadata, opened.source.file
            with opened.source.ready(footer, groups, TOKEN_COLUMNS):
                table = opened.file.read_row_groups(
                    list(groups), columns=list(SEGMENT_COLUMNS), use_threads=False
                )
                self._check_count(part, groups, table.num_rows)
                for number, group in enumerate(groups):
                    chunk = footer.row_group(group)
                    into, size = rows.destination(number), (chunk.num_rows, self._row_bytes)
                    tokens = pages.read(file, chunk.column(0), *size, into)
                    if tokens is None:
                        by_arrow = opened.file.read_row_group(group, ["tokens"], use_threads=False)
                        self._check_count(part, [group], by_arrow.num_rows)
                        tokens = _values(by_arrow.column(0).chunk(0), self._row_bytes)
                        into = None
                    if into is None:
                        rows.put(number, tokens)
            is_sound = True
        finally:
            self._give_back(opened, is_sound)
        columns = _segments(table, self._plan.seq_len)
        if columns is None:
            raise self._contradiction(part, groups)
        return columns

    def read_again(self, part: int, group: int, columns: Sequence[str]) -> pa.Table:
        """Read a row group again whose first read failed: a bit may have flipped on the way.

        Raises:
            DataError: it failed again; names part, row group and source.
        """
        self._forget(part)  # other handles may be as stale as the one that failed
        try:
            return self.read(part, [group], columns)
        except READ_ERRORS as error:
            raise DataError(
                f"{self.where(part, [group])} can't be read, twice: {one_line(error)}."
                " Restore the part from a copy or run its phase again."
            ) from error

    def decode(self, part: int, groups: Sequence[int], table: pa.Table) -> StoredRows:
        """Return the rows of a table of `TOKEN_COLUMNS`.

        Raises:
            DataError: the columns contradict each other.
        """
        columns = _segments(table, self._plan.seq_len)
        if columns is None:
            raise self._contradiction(part, groups)
        tokens = _values(table.column("tokens").chunk(0), self._row_bytes)
        return StoredRows(tokens.view(self._plan.dtype), *columns)

    def _contradiction(self, part: int, groups: Sequence[int]) -> DataError:
        return DataError(
            f"{self.where(part, groups)}: doc_starts, text_bytes and flags must describe rows"
            f" of {self._plan.seq_len + 1} tokens, and don't. Run its phase again."
        )

    def _check_count(self, part: int, groups: Sequence[int], num_rows: int) -> None:
        """Raise DataError, without the place, unless row groups gave as many rows as they must."""
        left = int(self._plan.parts.rows[part]) - groups[-1] * ROWS_PER_GROUP
        expected = (len(groups) - 1) * ROWS_PER_GROUP + min(ROWS_PER_GROUP, left)
        if num_rows != expected:
            raise DataError(f"{expected} rows were expected, {num_rows} came")

    def close(self) -> None:
        """Close every idle part; one that a thread still reads is closed when it is returned."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = list(self._idle.values()), OrderedDict()
            self._num_open -= len(idle)
        for part in idle:
            part.close()

    def _forget(self, number: int) -> None:
        with self._lock:
            parts = [part for part in self._idle.values() if part.number == number]
            for part in parts:
                del self._idle[id(part)]
            self._num_open -= len(parts)
        for part in parts:
            part.close()

    def _borrow(self, number: int) -> _OpenPart:
        surplus = None
        with self._lock:
            for key, part in reversed(self._idle.items()):
                if part.number == number:
                    return self._idle.pop(key)
            if self._num_open >= self._max_open and self._idle:
                surplus = self._idle.popitem(last=False)[1]
            else:
                self._num_open += 1
        if surplus:
            surplus.close()
        is_open = False
        try:
            part = self._open(number)
            is_open = True
        finally:
            if not is_open:
                with self._lock:
                    self._num_open -= 1
        return part

    def _give_back(self, part: _OpenPart, is_sound: bool) -> None:
        with self._lock:
            keep = is_sound and not self._is_closed and self._num_open <= self._max_open
            if keep:
                self._idle[id(part)] = part
            else:
                self._num_open -= 1
        if not keep:
            part.close()

    def _open(self, number: int) -> _OpenPart:
        index = self._plan.parts
        again = bool(self._is_read_again[index.sources[number]])
        source = self._plan.files.open_part(index.paths[number], self.transfers, again=again)
        is_sound = False
        try:
            size = source.file.size()
            if size != index.sizes[number]:
                raise DataError(f"it has {size} bytes, the index says {index.sizes[number]}")
            # Reading ahead is done here, with a deadline; Arrow's own I/O threads have none.
            file = pq.ParquetFile(source.file, page_checksum_verification=True, pre_buffer=False)
            self._check_footer(number, file)
            is_sound = True
        finally:
            if not is_sound:
                source.file.close()
        return _OpenPart(number, source, file)

    def _check_groups(self, file: pq.ParquetFile, groups: Sequence[int]) -> None:
        """Raise DataError, without the place, if row groups claim more than their rows can hold."""
        most = ROWS_PER_GROUP * (self._plan.seq_len + 1)
        for number in groups:
            group = file.metadata.row_group(number)
            values = max(group.column(leaf).num_values for leaf in range(group.num_columns))
            size = group.total_byte_size
            if values > most or size > most * TOKEN_BYTES + GROUP_BYTES:
                raise DataError(f"its row group {number} claims {values} values in {size} bytes")

    def _check_footer(self, number: int, file: pq.ParquetFile) -> None:
        """Raise DataError, without the place, unless the part is what the plan says."""
        plan, index = self._plan, self._plan.parts
        footer = file.metadata
        text = (footer.metadata or {}).get(b"corpuskit", b"{}")
        expected = {
            "format": FORMAT,
            "source": plan.sources[int(index.sources[number])].name,
            "seq_len": plan.seq_len,
            "dtype": plan.dtype.name,
            "tokenizer": plan.tokenizer.get("hash"),
            "first_row": int(index.first_rows[number]),
        }
        try:
            actual = {key: json.loads(text).get(key) for key in expected}
        except (ValueError, AttributeError):
            raise DataError(f"its footer has {text!r}, which is not a JSON object") from None
        if actual != expected:
            raise DataError(f"its footer has {actual}, the plan says {expected}")
        kinds = {
            field.name: getattr(field.type, "value_type", field.type) for field in file.schema_arrow
        }
        required = {
            "tokens": pa.binary(self._row_bytes),
            "doc_starts": pa.int32(),
            "doc_keys": pa.int64(),
            "text_bytes": pa.int32(),
            "flags": pa.uint8(),
        }
        if any(kinds.get(name) != kind for name, kind in required.items()):
            raise DataError(f"its columns must hold {required}, got {kinds}")
        rows = int(index.rows[number])
        if footer.num_rows != rows or footer.num_row_groups != -(-rows // ROWS_PER_GROUP):
            raise DataError(
                f"it has {footer.num_rows} rows in {footer.num_row_groups} row groups,"
                f" the index says {rows} in groups of {ROWS_PER_GROUP}"
            )


def _segments(table: pa.Table, seq_len: int) -> SegmentColumns | None:
    """Return the arrays of a table of `SEGMENT_COLUMNS`; None if the columns contradict."""
    starts, text_bytes, flags = (table.column(name).chunk(0) for name in SEGMENT_COLUMNS)
    try:
        values, sizes, marks = (column.values.to_numpy() for column in (starts, text_bytes, flags))
    except pa.ArrowException:  # a null
        return None
    bounds = starts.offsets.to_numpy()
    first, last = bounds[:-1], bounds[1:] - 1
    # Pages are verified, so this guards against a wrong writer.
    rising = np.diff(values, append=seq_len + 1) > 0
    rising[last] = values[last] <= seq_len
    if (last < first).any() or values[first].any() or not rising.all():
        return None
    if text_bytes.offsets != starts.offsets or flags.offsets != starts.offsets:
        return None
    return SegmentColumns(
        starts=values,
        bounds=bounds,
        pads=np.where(marks[last] & PADDING, values[last], np.int32(seq_len + 1)),
        text_bytes=np.add.reduceat(sizes, first, dtype=np.int64),
    )


def _values(column: pa.FixedSizeBinaryArray, width: int) -> NDArray[np.uint8]:
    at = column.offset * width
    values = np.frombuffer(column.buffers()[1], np.uint8)[at : at + len(column) * width]
    return values.reshape(len(column), width)


class TokenPages:
    """Reads and verifies pages, into memory of its own; for one thread."""

    def __init__(self) -> None:
        self._header = np.empty(_MOST_HEADER_BYTES, np.uint8)
        self._values = np.empty(0, np.uint8)
        self._folded = np.empty(0, np.uint8)
        self._folds: list[tuple[slice | NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]]

    def read(
        self,
        file: pa.NativeFile,
        chunk: pq.ColumnChunkMetaData,
        num_rows: int,
        row_bytes: int,
        into: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8] | None:
        """Return the rows of a column chunk, (R, row_bytes), until the next call.

        None unless it is the tokens, one page without levels or compression, and its CRC is right.

        Args:
            file: to read it from.
            chunk: where it is.
            num_rows: how many rows it must have (R).
            row_bytes: bytes of each.
            into: contiguous memory for them, (R, row_bytes), to be overwritten and returned.

        Raises:
            OSError: it can't be read.
        """
        num_bytes, size = num_rows * row_bytes, chunk.total_compressed_size
        header_bytes = size - num_bytes
        if not 0 < header_bytes <= _MOST_HEADER_BYTES or chunk.path_in_schema != "tokens":
            return None
        if len(self._folded) != num_bytes:
            self._lay_out(num_bytes)
        values = self._values if into is None else into.reshape(-1)
        header = self._header[:header_bytes]
        file.seek(chunk.data_page_offset)
        if file.readinto(header) != header_bytes or file.readinto(values) != num_bytes:
            return None
        before, after = _header(num_bytes, num_rows)
        if header.tobytes() != before + _coded(_signed(self._crc(values))) + after:
            return None
        return values.reshape(num_rows, row_bytes)

    def _lay_out(self, num_bytes: int) -> None:
        """Allocate memory for pages of `num_bytes`, and plan the steps of their CRC."""
        self._values = np.empty(num_bytes, np.uint8)
        folded = self._folded = np.empty(num_bytes, np.uint8)
        self._folds = []
        end = num_bytes - _HIGH  # bytes from here on are not folded any further
        for first in range(_NEAR, num_bytes if end > _NEAR else 0, _NEAR):
            last = min(first + _NEAR, num_bytes)
            # Each byte and those that are folded into it, at most two.
            near, high = max(first, min(last, end + _NEAR)), min(max(first, _HIGH), last)
            nothing = np.zeros(1, np.uint8)
            shifted, farther = folded[first - _NEAR : near - _NEAR], folded[high - _HIGH :]
            self._folds += [
                (slice(first, near), shifted, folded[first:near]),
                (slice(near, last), nothing, folded[near:last]),
                (folded[high:last], farther[: last - high], folded[high:last]),
            ]
        self._folds = [fold for fold in self._folds if len(fold[2])]

    def _crc(self, values: NDArray[np.uint8]) -> int:
        """Return zlib's CRC-32 of the values, in half of its time for large pages."""
        if not self._folds:
            return zlib.crc32(values.data)
        self._folded[:_NEAR] = values[:_NEAR]
        self._folded[:4] ^= 0xFF  # a CRC begins with all bits set
        for left, right, into in self._folds:
            np.bitwise_xor(values[left] if isinstance(left, slice) else left, right, out=into)
        return zlib.crc32(self._folded[-_HIGH:].data, 0xFFFFFFFF)


@functools.lru_cache(maxsize=16)
def _header(num_bytes: int, num_values: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after the CRC in a page header: Thrift's compact protocol."""
    size = _coded(num_bytes)
    # Type DATA_PAGE, the bytes of the values twice, the CRC; a struct of how many values there are,
    # PLAIN, levels RLE twice, and statistics, which are empty.
    before = b"\x15\x00\x15" + size + b"\x15" + size + b"\x15"
    after = b"\x1c\x15" + _coded(num_values) + b"\x15\x00\x15\x06\x15\x06\x1c\x00\x00\x00"
    return before, after


def _signed(number: int) -> int:
    return number - (1 << 32) if number >> 31 else number


def _coded(number: int) -> bytes:
    """Return an integer as a zigzag varint."""
    number = (number << 1) ^ (number >> 63)
    coded = bytearray()
    while number > 0x7F:
        coded.append(number & 0x7F | 0x80)
        number >>= 7
    coded.append(number)
    return bytes(coded)

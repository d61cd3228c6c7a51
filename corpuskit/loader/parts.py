"""Verified reads of packed token shards: page CRCs checked, one retry, then an error.

Reads are `pread`, never mmap: a mapped page skips the CRC, and a fault on a hung mount can't time
out. Letters: R rows, L = seq_len.

The tokens of a row group are one page: a short header, then the plain values. Arrow would read it
into newly allocated memory. `TokenPages` reads and verifies it with one copy: into the memory of
the rows or, where only some rows are needed, into one buffer, which stays in the L2 cache. Arrow
reads the pages that are not exactly as our writer makes them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
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
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from corpuskit.loader.files import PartSource
    from corpuskit.loader.index import MixPlan

PADDING = 2  # bit 1 of a segment's flags
# Bounds on a row group: for each token, its own bytes and those of a segment; and for the rest.
TOKEN_BYTES, GROUP_BYTES = 32, 1 << 20
SEGMENT_COLUMNS = ("doc_starts", "text_bytes", "flags")
TOKEN_COLUMNS = ("tokens", *SEGMENT_COLUMNS)
# What a failed read raises: the file is gone or cut off, or a page does not match its CRC.
# UnicodeDecodeError: pyarrow decodes names of columns in Python.
READ_ERRORS = (OSError, pa.ArrowException, UnicodeDecodeError, DataError)

_MAX_HEADER_BYTES = 64

# The CRC's polynomial divides x^_HIGH + x^_LOW + 1 (found by search), so also the same with both
# exponents times 8, or 32. A byte at p thus adds to the CRC what it would add at p + _HIGH and at
# p + _HIGH - _LOW together: the head of a page can be folded into its last _HIGH bytes.
_HIGH, _LOW = 91_639, 41_678
# The CRC of these four bytes is 0. So is that of any bytes followed by their CRC XORed with this.
_TO_ZERO = 0x6DD90A9D
_SLAB_BYTES = 320 << 10  # stays in the L2 cache until it is folded; 64 rows of 2,049 tokens


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


class RowSink(Protocol):
    """Takes the tokens of row groups as bytes, (R, row bytes); `number` counts the groups."""

    def destination(self, number: int) -> NDArray[np.uint8] | None:
        """Return contiguous memory for all rows of a group, or None if there is none."""

    def put(self, number: int, tokens: NDArray[np.uint8]) -> None:
        """Copy rows that were not read into `destination`; they are valid until this returns."""


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
        """Return the name of row groups in messages."""
        index = self._plan.parts
        source = self._plan.sources[int(index.sources[part])].name
        groups_named = f"row group {groups[0]}" + (f" to {groups[-1]}" if len(groups) > 1 else "")
        return f"{self._plan.files.where(index.paths[part])}: {groups_named}: source {source!r}"

    def read(self, part: int, groups: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Return columns of ascending row groups, every page verified.

        Raises:
            OSError, pa.ArrowException, ...: `READ_ERRORS`, without naming the part; read again.
        """
        with self._lent(part, groups, columns) as open_part:
            table = open_part.file.read_row_groups(
                list(groups), columns=list(columns), use_threads=False
            )
            self._check_count(part, groups, table.num_rows)
        return table

    def read_rows(
        self,
        part: int,
        groups: Sequence[int],
        columns: Sequence[str],
        pages: TokenPages,
        rows: RowSink,
    ) -> SegmentColumns:
        """Read ascending row groups, every page verified; return segments, pass tokens to `rows`.

        Args:
            part: its number.
            groups: numbers of its row groups.
            columns: which of TOKEN_COLUMNS to read.
            pages: of the calling thread.
            rows: takes the tokens.

        Raises:
            OSError, pa.ArrowException, ...: `READ_ERRORS`, without naming the part; read again.
        """
        segments = [name for name in columns if name != "tokens"]
        with self._lent(part, groups, columns) as open_part:
            if segments:
                table = open_part.file.read_row_groups(
                    list(groups), columns=segments, use_threads=False
                )
                self._check_count(part, groups, table.num_rows)
            if "tokens" in columns:
                num_rows = self._read_tokens(open_part, groups, pages, rows)
                self._check_count(part, groups, num_rows)
        if not segments:
            return _no_segments(num_rows, self._plan.seq_len)
        return self.segments_of(part, groups, table)

    def _read_tokens(
        self, open_part: _OpenPart, groups: Sequence[int], pages: TokenPages, rows: RowSink
    ) -> int:
        """Pass the tokens of row groups to `rows`; return the number of rows."""
        footer, num_rows = open_part.file.metadata, 0
        pages.begin()
        for number, group in enumerate(groups):
            chunk, into = footer.row_group(group), rows.destination(number)
            size = (chunk.num_rows, self._row_bytes)
            tokens = pages.read(open_part.source.file, chunk.column(0), *size, into)
            if tokens is None:
                by_arrow = open_part.file.read_row_group(group, ["tokens"], use_threads=False)
                self._check_count(open_part.number, [group], by_arrow.num_rows)
                tokens, into = self.tokens_of(by_arrow), None
            if into is None:
                rows.put(number, tokens)
            num_rows += len(tokens)
        pages.check()
        return num_rows

    def read_again(self, part: int, group: int, columns: Sequence[str]) -> pa.Table:
        """Read a row group a second time after a failure: a bit may have flipped in transit.

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

    def segments_of(self, part: int, groups: Sequence[int], table: pa.Table) -> SegmentColumns:
        """Return the segments in a table of some of `SEGMENT_COLUMNS`.

        Raises:
            DataError: the columns contradict each other.
        """
        columns = _segments(table, self._plan.seq_len)
        if columns is None:
            raise DataError(
                f"{self.where(part, groups)}: doc_starts, text_bytes and flags must describe rows"
                f" of {self._plan.seq_len + 1} tokens, and don't. Run its phase again."
            )
        return columns

    def tokens_of(self, table: pa.Table) -> NDArray[np.uint8]:
        """Return the bytes of the column `tokens`, (R, row bytes)."""
        return _values(table.column("tokens").chunk(0), self._row_bytes)

    def _check_count(self, part: int, groups: Sequence[int], num_rows: int) -> None:
        """Raise DataError unless row groups gave the expected rows; callers name the part."""
        rows_left = int(self._plan.parts.rows[part]) - groups[-1] * ROWS_PER_GROUP
        expected = (len(groups) - 1) * ROWS_PER_GROUP + min(ROWS_PER_GROUP, rows_left)
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

    @contextlib.contextmanager
    def _lent(
        self, number: int, groups: Sequence[int], columns: Sequence[str]
    ) -> Iterator[_OpenPart]:
        """Lend a part to one thread, ready to read row groups; it is closed if that fails."""
        part = self._borrow(number)
        is_sound = False
        try:
            self._check_groups(part.file, groups)
            with part.source.ready(part.file.metadata, groups, columns):
                yield part
            is_sound = True
        finally:
            self._give_back(part, is_sound)

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
        try:
            return self._open(number)
        except BaseException:
            with self._lock:
                self._num_open -= 1
            raise

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
        is_reread = bool(self._is_read_again[index.sources[number]])
        path = index.paths[number]
        source = self._plan.files.open_part(path, self.transfers, is_reread=is_reread)
        try:
            size = source.file.size()
            if size != index.sizes[number]:
                raise DataError(f"it has {size} bytes, the index says {index.sizes[number]}")
            # No pre_buffer: this loader reads ahead with a deadline, Arrow's I/O threads without.
            file = pq.ParquetFile(source.file, page_checksum_verification=True, pre_buffer=False)
            self._check_footer(number, file)
        except BaseException:
            source.file.close()
            raise
        return _OpenPart(number, source, file)

    def _check_groups(self, file: pq.ParquetFile, groups: Sequence[int]) -> None:
        """Raise DataError if row groups claim more than rows can hold; callers name the part."""
        max_values = ROWS_PER_GROUP * (self._plan.seq_len + 1)
        for number in groups:
            group = file.metadata.row_group(number)
            values = max(group.column(leaf).num_values for leaf in range(group.num_columns))
            size = group.total_byte_size
            if values > max_values or size > max_values * TOKEN_BYTES + GROUP_BYTES:
                raise DataError(f"its row group {number} claims {values} values in {size} bytes")

    def _check_footer(self, number: int, file: pq.ParquetFile) -> None:
        """Raise DataError unless the part is what the plan says; callers name the part."""
        plan, index = self._plan, self._plan.parts
        footer = file.metadata
        text = (footer.metadata or {}).get(b"corpuskit", b"{}")
        expected = {
            "format": FORMAT,
            "source": plan.stored_names[int(index.sources[number])],
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
    """Return the segments in a table of some of `SEGMENT_COLUMNS`; None if columns contradict.

    Without `doc_starts` there are no segments, without `flags` no padding, and without
    `text_bytes` no bytes.
    """
    names = [name for name in SEGMENT_COLUMNS if name in table.column_names]
    lists = [table.column(name).chunk(0) for name in names]
    if not lists:
        return _no_segments(table.num_rows, seq_len)
    bounds = lists[0].offsets.to_numpy()
    first, last = bounds[:-1], bounds[1:] - 1
    if (last < first).any() or any(column.offsets != lists[0].offsets for column in lists[1:]):
        return None
    try:
        columns = dict(zip(names, (column.values.to_numpy() for column in lists), strict=True))
    except pa.ArrowException:  # a null
        return None
    segments = _no_segments(table.num_rows, seq_len)
    if "text_bytes" in columns:
        text_bytes = np.add.reduceat(columns["text_bytes"], first, dtype=np.int64)
        segments = segments._replace(text_bytes=text_bytes)
    if "doc_starts" in columns:
        starts = columns["doc_starts"]
        # Pages are verified, so only a wrong writer fails this.
        rising = starts[1:] > starts[:-1]
        rising[last[:-1]] = True
        if starts[first].any() or (starts[last] > seq_len).any() or not rising.all():
            return None
        segments = segments._replace(starts=starts, bounds=bounds)
        if "flags" in columns:
            pads = np.where(columns["flags"][last] & PADDING, starts[last], segments.pads)
            segments = segments._replace(pads=pads)
    return segments


def _no_segments(num_rows: int, seq_len: int) -> SegmentColumns:
    return SegmentColumns(
        starts=np.empty(0, np.int32),
        bounds=np.zeros(num_rows + 1, np.int32),
        pads=np.full(num_rows, seq_len + 1, np.int32),
        text_bytes=np.zeros(num_rows, np.int64),
    )


def _values(column: pa.FixedSizeBinaryArray, width: int) -> NDArray[np.uint8]:
    offset = column.offset * width
    values = np.frombuffer(column.buffers()[1], np.uint8)[offset : offset + len(column) * width]
    return values.reshape(len(column), width)


class TokenPages:
    """Reads and verifies pages of tokens; one instance for each thread.

    The pages between `begin` and `check` are verified together: by one CRC over all of them, where
    four bytes after each page bring the CRC back to 0. So an error in a page is detected exactly as
    by its own CRC, and zlib computes the CRC of one folded end instead of one for each page.
    """

    def __init__(self) -> None:
        self._header = np.empty(_MAX_HEADER_BYTES, np.uint8)
        self._values = np.empty(0, np.uint8)
        self._crc = FoldedCrc()

    def begin(self) -> None:
        """Start with no pages."""
        self._crc.begin()

    def check(self) -> None:
        """Verify the pages that were read since `begin`.

        Raises:
            DataError: the CRC of one of them differs; does not name the part.
        """
        if self._crc.value():
            raise DataError("the CRC of a page of tokens differs")

    def read(
        self,
        file: pa.NativeFile,
        chunk: pq.ColumnChunkMetaData,
        num_rows: int,
        row_bytes: int,
        into: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8] | None:
        """Return the rows of a column chunk, (R, row_bytes), valid until the next call.

        None unless it is one page of tokens without levels or compression.

        Args:
            file: to read it from.
            chunk: where it is.
            num_rows: how many rows it must have (R).
            row_bytes: bytes of each.
            into: contiguous memory for them, (R, row_bytes), to be overwritten and returned.

        Raises:
            OSError: it can't be read.
            DataError: it ends too early.
        """
        num_bytes, size = num_rows * row_bytes, chunk.total_compressed_size
        header_bytes = size - num_bytes
        if not 0 < header_bytes <= _MAX_HEADER_BYTES or chunk.path_in_schema != "tokens":
            return None
        header = self._header[:header_bytes]
        file.seek(chunk.data_page_offset)
        if file.readinto(header) != header_bytes:
            return None
        page_crc = _crc_in(header.tobytes(), num_bytes, num_rows)
        if page_crc is None:
            return None
        if into is None and len(self._values) != num_bytes:
            self._values = np.empty(num_bytes, np.uint8)
        values = self._values if into is None else into.reshape(-1)
        for first in range(0, num_bytes, _SLAB_BYTES):
            slab = values[first : first + _SLAB_BYTES]
            if file.readinto(slab) != len(slab):
                raise DataError("a page of tokens is cut short")
            self._crc.add(slab)
        self._crc.add(np.frombuffer((page_crc ^ _TO_ZERO).to_bytes(4, "little"), np.uint8))
        return values.reshape(num_rows, row_bytes)


class FoldedCrc:
    """CRC-32 of bytes that come in pieces, several times as fast as zlib.

    A ring holds the last bytes, with all earlier ones folded into them. A new byte replaces the
    oldest one, which is folded into it and into the byte `scale * _LOW` before it.

    Args:
        scale: size of the ring in _HIGH bytes, a power of 2. With a larger one, a NumPy call folds
            more bytes, and `value` has more to do.
    """

    def __init__(self, scale: int = 4) -> None:
        high, low = scale * _HIGH, scale * _LOW
        ring = self._ring = np.empty(high, np.uint8)
        # Cut so that no stretch overlaps with the bytes that it is folded into.
        self._stretches = [
            (begin, end, ring[begin:end], ring[(begin - low) % high :][: end - begin])
            for begin, end in itertools.pairwise((0, low, 2 * low, high))
        ]
        self._rest = FoldedCrc(1) if scale > 1 else None
        self.begin()

    def begin(self, first_bits: int = 0xFF) -> None:
        """Start with no bytes; a CRC begins with all bits set."""
        self._position = self._turn = 0
        self._is_full, self._first_bits = False, first_bits

    def add(self, values: NDArray[np.uint8]) -> None:
        """Add bytes, (n,) contiguous; the first call must add at least four."""
        first, size = 0, len(values)
        while first < size:
            begin, end, oldest, recent = self._stretches[self._turn]
            num = min(end - self._position, size - first)
            if num < end - begin:
                window = slice(self._position - begin, self._position - begin + num)
                oldest, recent = oldest[window], recent[window]
            new = values[first : first + num]
            if self._is_full:
                np.bitwise_xor(recent, oldest, out=recent)
                np.bitwise_xor(oldest, new, out=oldest)
            else:
                oldest[:] = new
                if not self._position:
                    oldest[:4] ^= self._first_bits
            first += num
            self._position += num
            if self._position == end:
                self._turn = (self._turn + 1) % len(self._stretches)
                if not self._turn:
                    self._position, self._is_full = 0, True

    def value(self) -> int:
        """Return the CRC of all bytes; 0 without any."""
        pieces = [self._ring[: self._position]]
        if self._is_full:
            pieces.insert(0, self._ring[self._position :])
        if self._rest:
            self._rest.begin(first_bits=0)
            for piece in pieces:
                self._rest.add(piece)
            return self._rest.value()
        crc = 0xFFFFFFFF if self._is_full or self._position else 0
        for piece in pieces:
            crc = zlib.crc32(piece.data, crc)
        return crc


@functools.lru_cache(maxsize=16)
def _header(num_bytes: int, num_values: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after the CRC in a page header: Thrift's compact protocol."""
    size = _varint(num_bytes)
    # Type DATA_PAGE, the size of the values twice, the CRC; then a struct: the number of values,
    # encoding PLAIN, levels RLE twice, and empty statistics.
    before = b"\x15\x00\x15" + size + b"\x15" + size + b"\x15"
    after = b"\x1c\x15" + _varint(num_values) + b"\x15\x00\x15\x06\x15\x06\x1c\x00\x00\x00"
    return before, after


def _crc_in(header: bytes, num_bytes: int, num_values: int) -> int | None:
    """Return the CRC in a page header; None if its other bytes are not those of `_header`."""
    before, after = _header(num_bytes, num_values)
    coded = header[len(before) : len(header) - len(after)]
    if len(coded) > 5 or not header.startswith(before) or not header.endswith(after):
        return None
    number = 0
    for count, byte in enumerate(coded, 1):
        if (byte < 0x80) != (count == len(coded)):
            return None
        number |= (byte & 0x7F) << 7 * (count - 1)
    return (number >> 1 ^ -(number & 1)) & 0xFFFFFFFF


def _varint(number: int) -> bytes:
    """Return an integer as a zigzag varint."""
    number = (number << 1) ^ (number >> 63)
    coded = bytearray()
    while number > 0x7F:
        coded.append(number & 0x7F | 0x80)
        number >>= 7
    coded.append(number)
    return bytes(coded)

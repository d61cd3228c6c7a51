"""How much memory reading a Parquet row group takes, by the headers of its pages.

A footer may be wrong, but a page cannot decompress to more than its own header says. Two encodings
store repeated values in a few bytes, so that 500 bytes of file become 5 GB: a dictionary, and
DELTA_BYTE_ARRAY, which stores what a value adds to the one before.

Source: Apache Parquet format 2, parquet.thrift; Thrift compact protocol.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.thrift import FIELDS, STRANGE, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from io import BufferedIOBase

    import pyarrow.parquet as pq

    from corpuskit.kernels.arrays import Bytes, Int64s


MAX_PAGE_BYTES = 1 << 30
"""Writers cut pages at 1 MB, but some look at the size only every 1,024 rows: pages of whole books
reach 500 MB."""

REPEATED_BYTES = 1 << 28
"""What repeated values may take at most in the rows that are read at once."""

HEADER_BYTES = 256
MAX_HEADER_BYTES = 16 << 20
VALUE_BYTES = 12
"""A value of a list takes at least this: two levels, and an index or an offset."""

DATA, DICTIONARY, DATA_V2 = 0, 2, 3
BY_INDEX, BY_PREFIX = frozenset({2, 8}), 7
CODECS = {"UNCOMPRESSED": "", "SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli",
          "ZSTD": "zstd", "LZ4_RAW": "lz4_raw"}  # fmt: skip
BYTE_ARRAYS = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")


@dataclasses.dataclass(frozen=True)
class Chunk:
    """The pages of a column of neighbouring row groups.

    Attributes:
        name: path of the column.
        is_list: a row may hold any number of values.
        sizes, values: (P,) bytes and values of each data page, decompressed.
        dictionary_bytes: of the dictionary page, decompressed.
        value_bytes: an upper bound of the longest value that may be stored repeatedly.
        dictionaries: (offset in the file, bytes there, bytes decompressed) of the content of each
            dictionary page, if reading them could make `value_bytes` smaller.
        compressed_bytes: of all pages in the file.
    """

    name: str
    is_list: bool
    sizes: Int64s
    values: Int64s
    dictionary_bytes: int
    value_bytes: int
    compressed_bytes: int
    compression: str
    dictionaries: tuple[tuple[int, int, int], ...]

    def page_bytes(self) -> int:
        """Return what the largest page and the dictionary take."""
        return int(self.sizes.max(initial=0)) + self.dictionary_bytes

    def window_bytes(self, rows: int) -> int:
        """Return the most bytes that the pages of any `rows` consecutive rows take."""
        if len(self.sizes) == 0:
            return 0
        ends = np.cumsum(self.values)
        last = np.searchsorted(ends, ends + rows - 2, side="right")
        totals = np.concatenate([[0], np.cumsum(self.sizes)])
        windows = totals[np.minimum(last, len(ends) - 1) + 1] - totals[:-1]
        return int(windows.max())


def read_chunks(
    file: BufferedIOBase, path: str, reader: pq.ParquetFile, groups: range, names: Sequence[str]
) -> list[Chunk]:
    """Return the chunks of the named columns (all, if none are) of neighbouring row groups.

    Raises:
        DataError: they are not where the footer says, or no pages.
    """
    columns = [reader.schema.column(leaf) for leaf in range(len(reader.schema))]
    leaves = {
        leaf: column
        for leaf, column in enumerate(columns)
        if not names or any(f"{column.path}.".startswith(f"{name}.") for name in names)
    }
    pages: dict[int, list[_ColumnPage]] = {leaf: [] for leaf in leaves}
    sizes = dict.fromkeys(leaves, 0)
    codecs = {leaf: set[str]() for leaf in leaves}
    for group in groups:
        meta = reader.metadata.row_group(group)
        for leaf, column in leaves.items():
            chunk = meta.column(leaf)
            try:
                pages[leaf] += _pages_of(file, chunk)
            except (IndexError, OverflowError, ValueError) as error:
                raise DataError(
                    f"{path}: row group {group}: column {column.path!r} has no whole pages: "
                    f"{error}. Fetch the file again."
                ) from None
            sizes[leaf] += chunk.total_compressed_size
            codecs[leaf].add(chunk.compression)
    return [_chunk(leaves[leaf], pages[leaf], sizes[leaf], codecs[leaf]) for leaf in leaves]


def with_longest_values(file: BufferedIOBase, chunks: Sequence[Chunk]) -> list[Chunk]:
    """Return the chunks with the true length of the longest value of their dictionaries."""
    return [_with_value_bytes(file, chunk) if chunk.dictionaries else chunk for chunk in chunks]


def _with_value_bytes(file: BufferedIOBase, chunk: Chunk) -> Chunk:
    max_bytes, codec = 0, CODECS[chunk.compression]
    for begin, stored, size in chunk.dictionaries:
        file.seek(begin)
        content = file.read(stored)
        try:
            plain = pa.decompress(content, size, codec) if codec else content
        except (OSError, pa.ArrowException):
            return chunk  # broken: reading it will say so
        max_bytes = max(max_bytes, int(longest_string(np.frombuffer(plain, np.uint8))))
    return dataclasses.replace(chunk, value_bytes=max_bytes)


@kernel
def longest_string(data: Bytes) -> int:
    """Return the longest of byte strings, each after its length in 4 bytes: O(number)."""
    longest_bytes, pos, size = 0, 0, len(data)
    while pos + 4 <= size:
        length = 0
        for byte in range(4):
            length |= int(data[pos + byte]) << (8 * byte)
        longest_bytes = max(longest_bytes, min(length, size - pos - 4))
        pos += 4 + length
    return longest_bytes


def rows_at_once(chunks: Sequence[Chunk], max_rows: int) -> int:
    """Return how many rows may be read at once, at most `max_rows`, whatever the pages hold."""
    flat = [chunk for chunk in chunks if not chunk.is_list]
    max_bytes = max(REPEATED_BYTES, 2 * sum(chunk.page_bytes() for chunk in flat))
    value_bytes = sum(chunk.value_bytes for chunk in flat)
    rows = max(1, min(max_rows, REPEATED_BYTES // max(value_bytes, 1)))
    if sum(int(chunk.sizes.sum()) for chunk in flat) <= max_bytes:
        return rows
    while rows > 1 and sum(chunk.window_bytes(rows) for chunk in flat) > max_bytes:
        rows //= 2
    return rows


def check_chunks(
    chunks: Sequence[Chunk], location: str, max_page_bytes: int, max_expansion: int
) -> None:
    """Refuse chunks that cannot be read in bounded memory.

    Raises:
        DataError: pages are too large, or a list may hold far more than the file.
    """
    total = sum(chunk.page_bytes() for chunk in chunks)
    if total > max_page_bytes:
        worst = max(chunks, key=Chunk.page_bytes)
        raise DataError(
            f"{location}: reading one page of each column takes {total:,} bytes, of {worst.name!r} "
            f"{worst.page_bytes():,}; at most {max_page_bytes:,} are allowed. Write the file with "
            "smaller pages, read fewer columns (extra: false), or raise max_page_bytes."
        )
    for chunk in chunks:
        size = int(chunk.values.sum()) * max(VALUE_BYTES, chunk.value_bytes)
        size += int(chunk.sizes.sum())
        if chunk.is_list and size > max(max_page_bytes, max_expansion * chunk.compressed_bytes):
            raise DataError(
                f"{location}: column {chunk.name!r} may hold {size:,} bytes in "
                f"{chunk.compressed_bytes:,} of the file: perhaps a decompression bomb. Set "
                "extra: false, or raise max_expansion."
            )


def _pages_of(file: BufferedIOBase, chunk: Any) -> list[_ColumnPage]:
    """Return the pages of a column of a row group, from its entry in the footer."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    return list(_pages(file, start, start + chunk.total_compressed_size, chunk.num_values))


def _chunk(column: Any, pages: list[_ColumnPage], compressed_bytes: int, codecs: set[str]) -> Chunk:
    is_list = column.max_repetition_level > 0
    stored = [page for page in pages if page.kind in {DATA, DATA_V2}]
    dictionaries = [page for page in pages if page.kind == DICTIONARY]
    largest = max((page.size for page in dictionaries), default=0)
    value_bytes, inside = 0, []
    compression = codecs.pop() if len(codecs) == 1 else ""
    if column.physical_type in BYTE_ARRAYS:
        prefixed = [page.size for page in stored if page.encoding == BY_PREFIX]
        value_bytes = max([column.length, 0, *prefixed])
        is_indexed = any(page.encoding in BY_INDEX for page in stored)
        if is_indexed and not is_list:  # lists are read as indices
            if value_bytes == 0 and compression in CODECS:
                inside = [(page.begin, page.stored, page.size) for page in dictionaries]
            value_bytes = max(value_bytes, largest)
    return Chunk(
        column.path, is_list, np.array([page.size for page in stored], np.int64),
        np.array([page.values for page in stored], np.int64), largest, value_bytes,
        compressed_bytes, compression, tuple(inside),
    )  # fmt: skip


class _ColumnPage(NamedTuple):
    kind: int
    size: int
    stored: int
    begin: int
    values: int
    encoding: int


def _pages(file: BufferedIOBase, offset: int, end: int, num_values: int) -> Iterator[_ColumnPage]:
    """Yield the pages of a column chunk that Arrow would read; their content is not read."""
    if offset < 0:
        raise ValueError(f"it begins at byte {offset}")
    fields = np.empty((FIELDS, FIELDS), np.int64)
    while offset < end and num_values > 0:
        size = _header(file, offset, fields)
        rows = fields.tolist()
        kind = rows[0][1]
        described = rows[{DATA: 5, DICTIONARY: 7, DATA_V2: 8}.get(kind, 6)]
        values, encoding = described[1], described[4 if kind == DATA_V2 else 2]
        if not described[0]:  # an index page: Arrow passes it over
            values = encoding = 0
        page = _ColumnPage(kind, rows[0][2], rows[0][3], offset + size, values, encoding)
        if min(page) < 0 or max(page.size, page.stored, values, encoding) >= 1 << 31:
            raise ValueError(f"the page header at byte {offset} says {page}")
        yield page
        num_values -= page.values if page.kind != DICTIONARY else 0
        offset = page.begin + page.stored


def _header(file: BufferedIOBase, offset: int, fields: Int64s) -> int:
    """Return how many bytes the page header at an offset has; fill its fields by `read_header`."""
    size = HEADER_BYTES
    while True:
        file.seek(offset)
        content = file.read(size)
        num_bytes = read_header(np.frombuffer(content, np.uint8), fields)
        if num_bytes > 0:
            return int(num_bytes)
        if num_bytes == STRANGE:
            raise ValueError(f"byte {offset} is not the start of a page header")
        if len(content) < size or size >= MAX_HEADER_BYTES:
            raise ValueError(f"a page header at byte {offset} does not end")
        size *= 16

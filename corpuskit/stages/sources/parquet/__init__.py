"""Parquet files."""

from __future__ import annotations

import collections
import contextlib
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from corpuskit.errors import DataError, UsageError, reason_of
from corpuskit.formats.batch import Utf8, make_keys, utf8
from corpuskit.stage import InputFile, Reject, Slice, Source, SourceBatch
from corpuskit.stages.sources._columns import (
    BrokenRules,
    ColumnSource,
    as_strings,
    is_textual,
    pick,
)
from corpuskit.stages.sources._records import BLOCK_BYTES, BLOCK_ROWS, HEAD_BYTES
from corpuskit.stages.sources._stream import FREE_BYTES, MAX_POSITION
from corpuskit.stages.sources.parquet.extra import (
    decoded_bytes,
    distinct,
    in_known_zone,
    json_objects,
)
from corpuskit.stages.sources.parquet.pages import (
    MAX_PAGE_BYTES,
    REPEATED_BYTES,
    check_chunks,
    read_chunks,
    rows_at_once,
    with_longest_values,
)
from corpuskit.storage import is_remote, open_input

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow.parquet as pq

    from corpuskit.kernels.arrays import Bools, Int64s


BUFFER_BYTES = 1 << 20
"""Read at once of a column chunk; without it Arrow holds whole chunks, however large."""

SMALL_BYTES = 1 << 18
"""A file of at most this size is read as a whole when it is opened."""

ROW_BYTES = 64
"""What a document takes besides its text."""


class ParquetRows(NamedTuple):
    """Consecutive rows of a file, before they are documents.

    Attributes:
        location: file and row groups (or row), for messages.
        keys: (N,) file ordinal and row.
        batch: N rows.
        max_bytes: how many bytes the documents of these rows may have, together with those of the
            next ones whose `max_bytes` is 0.
        size_bytes: of the file.
    """

    location: str
    keys: Int64s
    batch: pa.RecordBatch
    max_bytes: int
    size_bytes: int

    def slice(self, begin: int, end: int) -> ParquetRows:
        batch = self.batch.slice(begin, end - begin)
        return self._replace(keys=self.keys[begin:end], batch=batch)


class Parquet(ColumnSource):
    """Read Parquet files: one row per document, one column is the text.

    Use it for published datasets. A piece of work is a run of row groups; a row group is never cut,
    so one process reads all of a file with one huge row group.

    The text column may be string, binary that holds UTF-8, or a dictionary of either. A row becomes
    a row of the ledger instead of a document if its text is null (`bad_text`), not UTF-8
    (`invalid_utf8`) or has more than `max_document_bytes` (`too_long`), or if the value of a
    declared column, or the id, is not UTF-8 or not an int64 (`bad_column`). A column that is
    missing, occurs twice or has the wrong type is an error of the file. Other columns may be of any
    type: `extra` writes what JSON cannot express as text. Byte order marks are removed. Page
    checksums are checked where files have them. The number of rows read at once follows from the
    pages of local files, so a file that repeats a long value takes no more memory than others.

    Source: Apache Parquet format 2, read by Arrow.
    """

    text_speed: ClassVar[float] = 400e6
    rules: ClassVar[tuple[str, ...]] = ("bad_text", "bad_column", "invalid_utf8", "too_long")

    max_page_bytes: int = Field(MAX_PAGE_BYTES, ge=1 << 16, lt=1 << 31)
    """A file is refused whose largest pages of the columns read take more, in bytes, together."""

    def libraries(self) -> tuple[str, ...]:
        return ("pyarrow",) if self.extra else ()  # its version decides how `extra` writes numbers

    def text_size(self, file: InputFile, piece: Slice) -> tuple[int, bool]:
        return piece.size_bytes, True

    def for_texts(self) -> Source | None:
        if any(map(is_remote, self.paths)):
            return None
        nothing = dict.fromkeys(self.labels) | {"columns": {}, "extra": False}
        return self.model_copy(update=nothing)

    def slices(self, file: InputFile, target_bytes: int) -> list[Slice]:
        with _open(file, lists=False) as reader:
            self.check_columns(file, reader.schema_arrow)
            sizes = _text_sizes(reader, self.text_column)
            _row_counts(reader, file.path)
        pieces: list[Slice] = []
        begin = waiting = 0
        for group, size in enumerate(sizes):
            if waiting and waiting + size > target_bytes:
                pieces.append(Slice(begin, group, waiting, len(sizes)))
                begin, waiting = group, 0
            waiting += size
        return [*pieces, Slice(begin, len(sizes), waiting, len(sizes))]

    def read_keyed(
        self, pieces: Iterable[tuple[InputFile, Slice]], max_document_bytes: int
    ) -> Iterator[SourceBatch]:
        rows = (rows for file, piece in pieces for rows in self._rows(file, piece))
        bytes_left = 0
        for joined in join_rows(rows):
            bytes_left = joined.max_bytes or bytes_left
            for batch in _checked(self.documents(joined, max_document_bytes), joined.location):
                bytes_left -= batch.size_bytes + ROW_BYTES * len(batch.positions)
                bytes_left -= batch.extra.nbytes if batch.extra is not None else 0
                if bytes_left < 0:
                    raise DataError(
                        f"{joined.location}: {joined.size_bytes:,} bytes of file hold more than "
                        f"{self.max_expansion} times as much: perhaps a decompression bomb. Take "
                        "the file out, or raise max_expansion of the source."
                    )
                yield batch

    def _rows(self, file: InputFile, piece: Slice) -> Iterator[ParquetRows]:
        """Yield the rows of a slice; small row groups are read several at once."""
        with _open(file, lists=self.extra) as reader:
            self.check_schema(file, reader.schema_arrow)
            counts = _row_counts(reader, file.path)
            if piece.whole not in {None, len(counts)}:
                raise DataError(
                    f"{file.path}: {len(counts)} row groups, {piece.whole} were planned."
                )
            sizes = _text_sizes(reader, self.text_column)
            max_bytes = self._max_bytes(reader, file, piece)
            position = sum(counts[: piece.begin])
            # Arrow reads dictionaries inside lists from one row group at a time.
            max_rows = 0 if self.extra and _indexed_lists(reader) else BLOCK_ROWS
            for groups in _runs(counts, sizes, piece, max_rows):
                location, first = _location(file.path, groups), position
                num = sum(counts[group] for group in groups)
                size = sum(sizes[group] for group in groups)
                # As many rows as hold BLOCK_BYTES on average; documents() sees to those that hold
                # more.
                num_rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES * num // (size + 1)))
                for batch in self._batches(reader, file, groups, num_rows):
                    keys = make_keys(file.ordinal, np.arange(position, position + len(batch)))
                    yield ParquetRows(location, keys, batch, max_bytes, file.size_bytes)
                    position += len(batch)
                    max_bytes = 0
                if position != first + num:
                    raise DataError(
                        f"{location}: the footer says {num} rows, {position - first} came. Fetch "
                        "the file again."
                    )

    def _max_bytes(self, reader: pq.ParquetFile, file: InputFile, piece: Slice) -> int:
        """Return how many bytes of documents a piece may hold."""
        stored: int = 0
        for group in range(piece.begin, piece.end):
            meta = reader.metadata.row_group(group)
            leaves = range(meta.num_columns)
            stored += int(sum(meta.column(leaf).total_compressed_size for leaf in leaves))
        share = FREE_BYTES * (piece.end - piece.begin) // max(int(reader.num_row_groups), 1)
        return share + self.max_expansion * min(stored, file.size_bytes)

    def _batches(
        self, reader: pq.ParquetFile, file: InputFile, groups: range, num_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of row groups in batches of `num_rows`, read in bounded memory."""
        rows_read, path = num_rows, file.path
        if not is_remote(path):
            with open_input(path) as pages:
                chunks = read_chunks(pages, path, reader, groups, self._columns_to_read() or ())
                check_chunks(
                    chunks, _location(path, groups), self.max_page_bytes, self.max_expansion
                )
                rows_read = rows_at_once(chunks, num_rows)
                if rows_read < num_rows:
                    rows_read = rows_at_once(with_longest_values(pages, chunks), num_rows)
        batches = _batches(reader, path, groups, rows_read, self._columns_to_read())
        yield from batches if rows_read == num_rows else _joined(batches, num_rows)

    def _columns_to_read(self) -> list[str] | None:
        """Return the columns to read, None for all."""
        return None if self.extra else self._named_columns()

    def _named_columns(self) -> list[str]:
        """Return the columns that parameters name."""
        labels = [name for name in self.labels.values() if name]
        names = [self.text_column, *labels, *self.columns]
        return list(dict.fromkeys(names))

    def check_columns(self, file: InputFile, schema: pa.Schema) -> None:
        """Raise UsageError if a parameter names a column that is missing or of a wrong type."""
        if problem := self._problem(file, schema):
            parameter, message = problem
            raise UsageError(f"{parameter}: {message}")

    def check_schema(self, file: InputFile, schema: pa.Schema) -> None:
        """Raise DataError if a column is missing or of a wrong type."""
        if problem := self._problem(file, schema):
            raise DataError(problem[1])

    def _problem(self, file: InputFile, schema: pa.Schema) -> tuple[str, str] | None:
        """Return the parameter whose column is missing or of a wrong type, and the message."""
        for name, count in collections.Counter(schema.names).items():
            if count > 1 and name in self._named_columns():
                role = "text_column" if name == self.text_column else "columns"
                return role, f"{file.path}: has {count} columns {name!r}. Rename all but one."
        columns = {"text_column": self.text_column, **self.labels}
        roles = [(role, name) for role, name in columns.items() if name is not None]
        for role, name in roles + [("columns", name) for name in self.columns]:
            setting = f"sources.{file.source}.{role}"
            if name not in schema.names:
                has = ", ".join(repr(column) for column in schema.names)
                return role, f"{file.path}: column {name!r} is missing; has {has}. Set {setting}."
            kind = schema.field(name).type
            if not _serves(kind, role, self.columns.get(name, "string")):
                needed_type = {"text_column": "text", "columns": self.columns.get(name)}.get(role)
                needs = needed_type or "a string or an integer"
                problem = f"column {name!r} is {kind}, not {needs}. Set {setting}."
                return role, f"{file.path}: {problem}"
        return None

    def documents(self, rows: ParquetRows, max_bytes: int) -> Iterator[SourceBatch]:
        """Make documents of rows; a batch that holds too many bytes is cut in halves."""
        batch = rows.batch
        extra_columns = self._extra_columns(batch) if self.extra else {}
        extra_bytes = sum(map(decoded_bytes, extra_columns.values()))
        is_long = batch.column(self.text_column).nbytes > 2 * BLOCK_BYTES
        if len(batch) > 1 and (is_long or extra_bytes > REPEATED_BYTES):
            half = len(batch) // 2
            yield from self.documents(rows.slice(0, half), max_bytes)
            yield from self.documents(rows.slice(half, len(batch)), max_bytes)
            return
        if extra_bytes > max(REPEATED_BYTES, self.max_page_bytes):
            raise DataError(
                f"{rows.location}: the other columns of one row hold {extra_bytes:,} bytes. Set "
                "extra: false, or raise max_page_bytes."
            )
        texts, is_broken = as_strings(batch.column(self.text_column))
        content = utf8(texts)
        has_mark = _starts_with_mark(content)
        sizes = content.sizes() - 3 * has_mark
        broken = BrokenRules(self.rules, len(batch))
        broken.mark("bad_text", ~texts.is_valid().to_numpy(zero_copy_only=False))
        broken.mark("invalid_utf8", is_broken)
        broken.mark("too_long", sizes > max_bytes)
        columns: dict[str, pa.Array] = {}
        for name, kind in self.declared().items():
            columns[name], is_bad = _typed(batch.column(name), kind)
            broken.mark("bad_column", is_bad)
        labels: list[pa.Array | None] = [None, None, None]
        for slot, name in enumerate(self.labels.values()):
            if name:
                labels[slot], is_bad = _typed(batch.column(name), pa.string())
                broken.mark("bad_column", is_bad)
        extra = json_objects(extra_columns, len(batch)) if self.extra else None
        is_kept = broken.codes == 0
        kept = pa.array(np.flatnonzero(is_kept))
        ids, urls, dates = (pick(array, kept, len(batch)) for array in labels)
        texts = pick(texts, kept, len(batch))
        if has_mark[is_kept].any():
            bare = pc.utf8_slice_codeunits(texts, 1)
            texts = pc.if_else(pa.array(has_mark[is_kept]), bare, texts)
        yield SourceBatch(
            positions=rows.keys[is_kept],
            texts=texts,
            ids=ids,
            columns={name: pick(array, kept, len(batch)) for name, array in columns.items()},
            urls=urls,
            dates=dates,
            extra=pick(extra, kept, len(batch)) if extra is not None else None,
            rejects=tuple(_rejects(broken, rows.keys, content, sizes, max_bytes, labels[0])),
            size_bytes=int(sizes.sum()),
        )

    def _extra_columns(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the columns of `extra`; the second `a` is called `a_2`."""
        names_used = self._named_columns()
        names = enumerate(distinct(batch.schema.names))
        return {name: batch.column(index) for index, name in names if name not in names_used}


def join_rows(pieces: Iterator[ParquetRows]) -> Iterator[ParquetRows]:
    """Join small pieces, also of neighbouring files: each costs as much as 100 KB in it."""
    waiting: list[ParquetRows] = []
    rows = size = 0
    for piece in pieces:
        size_bytes = sum(map(decoded_bytes, piece.batch.columns))
        rows, size = rows + len(piece.batch), size + size_bytes
        is_full = rows > BLOCK_ROWS or size > BLOCK_BYTES
        if waiting and (is_full or piece.batch.schema != waiting[0].batch.schema):
            yield _concatenate(waiting)
            waiting, rows, size = [], len(piece.batch), size_bytes
        waiting.append(piece)
    if waiting:
        yield _concatenate(waiting)


def _concatenate(pieces: list[ParquetRows]) -> ParquetRows:
    if len(pieces) == 1:
        return pieces[0]
    keys = np.concatenate([piece.keys for piece in pieces])
    batch = pa.concat_batches([piece.batch for piece in pieces])
    return ParquetRows(
        pieces[0].location,
        keys,
        batch,
        sum(piece.max_bytes for piece in pieces),
        pieces[0].size_bytes,
    )


def _rejects(
    broken: BrokenRules, keys: Int64s, content: Utf8, sizes: Int64s, max_bytes: int,
    ids: pa.Array | None,
) -> Iterator[Reject]:  # fmt: skip
    for row, rule in broken.rows():
        value = threshold = np.nan
        text = None if rule == "bad_text" else content.row(row).decode("utf-8", "replace")
        if rule == "too_long":
            text = content.row(row)[:HEAD_BYTES].decode("utf-8", "ignore")
            value, threshold = float(sizes[row]), max_bytes
        own_id = None if ids is None else ids[row].as_py()
        yield Reject(int(keys[row]), rule, value, threshold, text, own_id)


@contextlib.contextmanager
def _open(file: InputFile, *, lists: bool) -> Iterator[pq.ParquetFile]:
    """Open a file; with `lists`, strings in lists come as dictionaries where they are stored so.

    A list may repeat a long string any number of times; as an index that costs four bytes. A small
    file is read at once: one request, and half the time to open it.
    """
    import pyarrow.parquet as pq

    path = file.path
    options: dict[str, Any] = {"buffer_size": BUFFER_BYTES, "page_checksum_verification": True}
    with contextlib.ExitStack() as stack:
        source: Any = path
        content = _small_content(file)
        if content is not None:
            source = stack.enter_context(pa.BufferReader(content))
            options["pre_buffer"] = False
        elif is_remote(path):  # column chunks of a row group in few large requests
            source = stack.enter_context(open_input(path))
            options["pre_buffer"] = True
        else:
            options["pre_buffer"] = False
        try:
            reader = stack.enter_context(pq.ParquetFile(source, **options))
            # Not for texts and ids: Arrow would hash each value, and nearly all differ.
            if lists and (indexed := _indexed_lists(reader)):
                options |= {"read_dictionary": indexed, "metadata": reader.metadata}
                reader = stack.enter_context(pq.ParquetFile(source, **options))
            reader.schema_arrow.names  # noqa: B018 - raises if they are not UTF-8
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise DataError(
                f"{path}: no whole Parquet file: {reason_of(error)}. Fetch it again."
            ) from None
        yield reader


def _small_content(file: InputFile) -> bytes | None:
    """Return the bytes of a small file; None if it is not small, or has grown since."""
    if file.size_bytes > SMALL_BYTES:
        return None
    with open_input(file.path) as stream:
        content = stream.read(SMALL_BYTES + 1)
    return content if len(content) <= SMALL_BYTES else None


def _indexed_lists(reader: pq.ParquetFile) -> list[str]:
    """Return the paths of columns of strings inside lists that have a dictionary somewhere."""
    leaves = [reader.schema.column(leaf) for leaf in range(len(reader.schema))]
    meta = reader.metadata
    return [
        column.path
        for leaf, column in enumerate(leaves)
        if column.max_repetition_level and column.physical_type == "BYTE_ARRAY"
        if any(
            meta.row_group(group).column(leaf).has_dictionary_page
            for group in range(meta.num_row_groups)
        )
    ]


def _runs(counts: list[int], sizes: list[int], piece: Slice, max_rows: int) -> Iterator[range]:
    """Yield the row groups of a slice, small ones joined up to `max_rows` rows and BLOCK_BYTES."""
    # One row group at a time took quadratic time for files with a row in each.
    begin, rows, size = piece.begin, 0, 0
    for group in range(piece.begin, piece.end):
        rows, size = rows + counts[group], size + sizes[group]
        if group > begin and (rows > max_rows or size > BLOCK_BYTES):
            yield range(begin, group)
            begin, rows, size = group, counts[group], sizes[group]
    if begin < piece.end:
        yield range(begin, piece.end)


def _location(path: str, groups: range) -> str:
    if len(groups) == 1:
        return f"{path}: row group {groups[0]}"
    return f"{path}: row groups {groups[0]} to {groups[-1]}"


def _batches(
    reader: pq.ParquetFile, path: str, groups: range, at_once: int, columns: list[str] | None
) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader.iter_batches(at_once, list(groups), columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if len(groups) > 1:  # raises for the group that is broken
            for group in groups:
                for _ in _batches(reader, path, range(group, group + 1), at_once, columns):
                    pass
        location = _location(path, groups)
        if isinstance(error, pa.ArrowNotImplementedError):
            raise DataError(
                f"{location}: Arrow cannot read a column: {error}. Set extra: false, unless a "
                "parameter names that column."
            ) from None
        raise DataError(f"{location}: {reason_of(error)}. Fetch the file again.") from None


def _checked(batches: Iterator[SourceBatch], location: str) -> Iterator[SourceBatch]:
    """Yield batches; an exception of Arrow becomes a DataError of the file."""
    try:
        yield from batches
    except (pa.ArrowException, IndexError, UnicodeDecodeError) as error:
        raise DataError(
            f"{location}: a value cannot be read: {reason_of(error)}. Fetch the file again, or "
            "leave its column out (extra: false)."
        ) from None


def _joined(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Join batches up to `rows` rows or BLOCK_BYTES: stages have a cost per batch, too."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        is_full = sum(map(len, waiting)) >= rows or sum(b.nbytes for b in waiting) >= BLOCK_BYTES
        if is_full:
            yield pa.concat_batches(waiting) if len(waiting) > 1 else batch
            waiting = []
    if waiting:
        yield pa.concat_batches(waiting)


def _row_counts(reader: pq.ParquetFile, path: str) -> list[int]:
    """Return the rows of each row group.

    Raises:
        DataError: rows beyond what a key can hold would get the keys of other documents.
    """
    meta = reader.metadata
    rows = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
    if any(count < 0 for count in rows) or sum(rows) > MAX_POSITION:
        raise DataError(f"{path}: the footer says {sum(rows):,} rows. Fetch the file again.")
    if sum(rows) != meta.num_rows:  # else nobody would notice that a row group is missing
        raise DataError(
            f"{path}: the footer says {meta.num_rows:,} rows, and {sum(rows):,} in its row groups. "
            "Fetch the file again."
        )
    return rows


def _text_sizes(reader: pq.ParquetFile, column: str) -> list[int]:
    """Return the uncompressed bytes of the text of each row group."""
    paths = [reader.schema.column(leaf).path for leaf in range(len(reader.schema))]
    leaf = paths.index(column)
    groups = range(reader.num_row_groups)
    meta = reader.metadata
    sizes = [meta.row_group(group).column(leaf).total_uncompressed_size for group in groups]
    return [max(size, 0) for size in sizes]  # a footer may say anything


def _serves(kind: pa.DataType, role: str, declared: str) -> bool:
    """Return whether a column of this Arrow type fits its parameter."""
    if role == "text_column":
        return is_textual(kind)
    if role == "date_column" and pa.types.is_temporal(kind):
        return True
    if role != "columns":
        return is_textual(kind) or pa.types.is_integer(kind)
    tests = {
        "string": is_textual(kind),
        "int64": pa.types.is_integer(kind),
        "float64": pa.types.is_integer(kind) or pa.types.is_floating(kind),
        "bool": pa.types.is_boolean(kind),
    }
    return bool(tests[declared])


def _typed(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Bools]:
    """Return a column as another type, and (N,) which values are not of that type."""
    is_bad = np.zeros(len(column), np.bool_)
    if is_textual(column.type):
        strings, is_bad = as_strings(column)
        if is_bad.any():
            strings = pc.if_else(pa.array(is_bad), pa.scalar(None, strings.type), strings)
        return strings.cast(kind), is_bad
    if column.type == pa.uint64() and kind == pa.int64():
        fits = pc.less_equal(column, pa.scalar((1 << 63) - 1, pa.uint64()))
        is_bad = ~fits.fill_null(True).to_numpy(zero_copy_only=False)
        column = pc.if_else(fits, column, None)
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    # Integers beyond 2**53 are no float64; the nearest one is what JSON readers give, too.
    return in_known_zone(column).cast(kind, safe=kind != pa.float64()), is_bad


def _starts_with_mark(texts: Utf8) -> Bools:
    """Return (N,) which texts start with a byte order mark."""
    starts = texts.offsets[:-1][texts.sizes() >= 3]
    has_mark = np.zeros(len(texts), np.bool_)
    is_mark = (texts.data[starts] == 0xEF) & (texts.data[starts + 1] == 0xBB)
    has_mark[texts.sizes() >= 3] = is_mark & (texts.data[starts + 2] == 0xBF)
    return has_mark

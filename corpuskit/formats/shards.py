"""Document and token shards as Parquet files: written in scratch, read in bounded batches."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.errors import DataError
from corpuskit.formats.batch import large_strings, list_spans, numbers, utf8
from corpuskit.storage import Stored, open_ranged, open_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import Self

    from numpy.typing import NDArray

    from corpuskit.storage import Readable

    Texts = Iterator[tuple[NDArray[np.int64], pa.LargeStringArray]]
    """Texts of a cell in key order: (N,) keys and texts, batch by batch."""

BATCH_TEXT_BYTES = 8 << 20
"""Text per row group and per batch: bounds the memory of a worker."""

TEXT_HASH = "text_hash"
"""Column of a shard that lacks texts which can be read from the input again: their XXH64."""

TOKEN_GROUP_ROWS = 64


class ShardWriter(ABC):
    """Writes a Parquet file about documents in key order, in row groups of its own size.

    Used as a context manager: left through an exception it closes the file without a footer, so
    nothing that looks whole remains.

    Args:
        options: of the Parquet writer.

    Attributes:
        rows, text_bytes: written so far.
        first, last: keys.
    """

    def __init__(self, path: Path, schema: pa.Schema, **options: Any) -> None:
        self.path, self.schema = path, schema
        self.rows = self.text_bytes = 0
        self.first, self.last = 0, -1
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pq.ParquetWriter(
            self._file, schema, compression="zstd", write_page_checksum=True, **options
        )
        self._waiting: list[pa.RecordBatch] = []

    def _note(self, keys: pa.Array, sizes: NDArray[np.int64]) -> None:
        """Count rows, given by their keys and the bytes of their texts."""
        if self.rows == 0:
            self.first = keys[0].as_py()
        self.last = keys[-1].as_py()
        self.rows += len(keys)
        self.text_bytes += int(sizes.sum())

    @abstractmethod
    def _flush(self) -> None:
        """Write what waits as a row group."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
            self._writer.close()
        else:
            self._writer.is_open = False  # pyarrow would write a footer over half a file
        self._file.close()


class DocumentWriter(ShardWriter):
    """Writes one document shard; row groups hold about BATCH_TEXT_BYTES of text.

    The cut depends on the rows alone, never on how they arrived.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        # Statistics of texts are whole texts, twice; keys find a row group.
        options = {"use_dictionary": _repetitive(schema), "write_statistics": ["key"]}
        super().__init__(path, schema, compression_level=3, **options)
        self._waiting_bytes = 0

    def write(self, batch: pa.RecordBatch, sizes: NDArray[np.int64] | None = None) -> None:
        """Append rows; their columns must be those of the schema.

        Args:
            sizes: (N,) bytes of the texts, where the rows lack some.
        """
        if len(batch) == 0:
            return
        if sizes is None:
            sizes = utf8(batch.column("text")).sizes()
        self._note(batch.column("key"), sizes)
        begin = 0
        for end in _cuts(sizes, self._waiting_bytes):
            self._waiting.append(batch.slice(begin, end - begin))
            self._flush()
            begin = end
        self._waiting.append(batch.slice(begin))
        self._waiting_bytes += int(sizes[begin:].sum())

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._waiting, self.schema).combine_chunks()
        self._waiting, self._waiting_bytes = [], 0
        if table.num_rows:
            self._writer.write_table(table, row_group_size=table.num_rows)


def read_documents(
    path: Readable,
    columns: Sequence[str] | None = None,
    *,
    sidecars: Sequence[Readable] = (),
    keys: NDArray[np.int64] | None = None,
    texts: Callable[[], Texts] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield a document shard batch by batch, masks and cuts applied, sidecar columns appended.

    Args:
        path: the part.
        columns: which to read, sidecar columns included; None reads all.
        sidecars: what global stages decided about this part, oldest first.
        keys: read only row groups that may hold one of these, ascending; None reads all.
        texts: opens the texts that the shard lacks; see TEXT_HASH.

    Raises:
        DataError: it is not a Parquet file, a sidecar does not match it, or a text is not what it
            was when the shard was written.
    """
    keep, sidecar_columns, cuts = read_sidecars(sidecars)
    names = None if columns is None else [name for name in columns if name not in sidecar_columns]
    total = 0
    read, originals = _batches(path, names, keys), _Originals(path, texts)
    for row_numbers, total, batch in _with_texts(read, names, keep, keys, originals):
        rows = pa.array(row_numbers)
        for name, values in sidecar_columns.items():
            if columns is None or name in columns:
                batch = batch.append_column(name, values.take(rows))
        if keep is not None:
            if total != len(keep):
                break
            for spans in cuts if "text" in batch.schema.names else ():
                batch = _cut_texts(batch, spans.take(rows))
            if not keep[row_numbers].all():
                batch = batch.filter(pa.array(keep[row_numbers]))
        if len(batch):
            yield batch
    if keep is not None and total != len(keep) and (total or keys is None):
        raise DataError(f"{path}: {total} rows, but its sidecar has {len(keep)}. Run again.")


class Sidecars(NamedTuple):
    """What global stages decided about the rows of a part.

    Attributes:
        keep: (N,) which rows stay; None = all.
        columns: what they added.
        cuts: per stage that cut, oldest first: lists of SPAN, each in bytes of what the stages
            before left of the text.
    """

    keep: NDArray[np.bool_] | None
    columns: dict[str, pa.Array]
    cuts: tuple[pa.ListArray, ...]


def read_sidecars(sidecars: Sequence[Readable]) -> Sidecars:
    """Return what the sidecars of a part say together."""
    keep: NDArray[np.bool_] | None = None
    columns: dict[str, pa.Array] = {}
    cuts: list[pa.ListArray] = []
    for path in sidecars:
        try:
            with open_whole(path) as file:
                table = pa.ipc.open_file(file).read_all()
        except pa.ArrowInvalid as error:
            raise DataError(f"{path}: not a sidecar: {error}.") from None
        for name in table.column_names:
            values = table.column(name).combine_chunks()
            if name == "cuts":
                cuts.append(values)
            elif name == "keep":
                mask = numbers(values).astype(np.bool_)
                keep = mask if keep is None else keep & mask
            else:
                columns[name] = values
    return Sidecars(keep, columns, tuple(cuts))


def write_sidecar(
    path: Path,
    keep: NDArray[np.bool_],
    columns: dict[str, pa.Array] | None = None,
    cuts: pa.ListArray | None = None,
) -> None:
    """Write what a global stage decided about each row of a part, in the part's order.

    Args:
        cuts: (start, end) in bytes of the text that the stage saw, sorted and disjoint.
    """
    decided = {"keep": pa.array(keep)} | ({} if cuts is None else {"cuts": cuts})
    table = pa.table(decided | (columns or {}))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def token_schema(seq_len: int, dtype: str, footer: dict[str, object]) -> pa.Schema:
    """Return the schema of packed token shards, with the footer metadata in it."""
    width = (seq_len + 1) * np.dtype(dtype).itemsize
    fields = [
        pa.field("tokens", pa.binary(width), nullable=False),
        pa.field("doc_starts", pa.list_(pa.int32())),
        pa.field("doc_keys", pa.list_(pa.int64())),
        pa.field("text_bytes", pa.list_(pa.int32())),
        pa.field("flags", pa.list_(pa.uint8())),
    ]
    content = {"format": 1, "seq_len": seq_len, "dtype": dtype, **footer}
    return pa.schema(fields, metadata={"corpuskit": json.dumps(content, sort_keys=True)})


def write_tokens(path: Path, table: pa.Table) -> None:
    """Write packed rows: plain, uncompressed, 64 rows per row group, page CRCs, one page each."""
    write_token_tables(path, table.schema, [table])


def write_token_tables(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Write packed rows that come table by table, as `write_tokens` would write them at once.

    A table may lie in memory that the next one overwrites.
    """
    options = {
        "compression": "none",
        "use_dictionary": False,
        "write_statistics": False,
        "column_encoding": "PLAIN",
        "write_page_checksum": True,
        "data_page_size": 1 << 28,
    }
    pending = schema.empty_table()
    with pa.OSFile(str(path), "wb") as file, pq.ParquetWriter(file, schema, **options) as writer:
        for table in tables:
            rows = pa.concat_tables([pending, table])
            full_rows = len(rows) - len(rows) % TOKEN_GROUP_ROWS
            if full_rows:
                writer.write_table(rows.slice(0, full_rows), row_group_size=TOKEN_GROUP_ROWS)
            pending = rows.slice(full_rows).take(pa.array(range(len(rows) - full_rows), pa.int64()))
        if len(pending):
            writer.write_table(pending, row_group_size=TOKEN_GROUP_ROWS)


def open_parquet(source: pa.NativeFile, path: Readable) -> pq.ParquetFile:
    """Open a Parquet part whose pages are checked as they are read.

    Over a network the column chunks of a row group are fetched in few large requests.

    Raises:
        pa.ArrowInvalid: it is not a whole Parquet file.
    """
    is_remote = isinstance(path, Stored) and path.is_remote
    return pq.ParquetFile(source, pre_buffer=is_remote, page_checksum_verification=True)


def _batches(
    path: Readable, columns: list[str] | None, keys: NDArray[np.int64] | None
) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """Yield (first row, rows of the file, batch), one batch per row group.

    So memory is bounded by the writer's BATCH_TEXT_BYTES.
    """
    try:
        context = open_whole(path) if keys is None else open_ranged(path)
        with context as source, open_parquet(source, path) as file:
            row, key_column = 0, file.schema_arrow.get_field_index("key")
            if columns and "text" in columns and TEXT_HASH in file.schema_arrow.names:
                columns = list(dict.fromkeys([*columns, "key", TEXT_HASH]))
            for group in range(file.num_row_groups):
                metadata = file.metadata.row_group(group)
                if keys is None or _may_hold(metadata.column(key_column).statistics, keys):
                    table = file.read_row_group(group, columns=columns, use_threads=False)
                    begin = row
                    for batch in table.combine_chunks().to_batches():
                        yield begin, file.metadata.num_rows, batch
                        begin += len(batch)
                row += metadata.num_rows
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(f"{path}: not a whole document shard: {error}.") from None


def _with_texts(
    batches: Iterator[tuple[int, int, pa.RecordBatch]],
    columns: list[str] | None,
    keep: NDArray[np.bool_] | None,
    keys: NDArray[np.int64] | None,
    originals: _Originals,
) -> Iterator[tuple[NDArray[np.int64], int, pa.RecordBatch]]:
    """Yield (row numbers, rows of the file, batch with all texts).

    Where texts are fetched, rows that are not needed are left out first.
    """
    for row, total, batch in batches:
        row_numbers = np.arange(row, row + len(batch))
        if TEXT_HASH in batch.schema.names:
            is_needed = np.ones(len(batch), np.bool_)
            if keys is not None:
                is_needed &= np.isin(numbers(batch.column("key")), keys)
            if keep is not None and len(keep) == total:
                is_needed &= keep[row_numbers]
            if not is_needed.all():
                batch, row_numbers = batch.filter(pa.array(is_needed)), row_numbers[is_needed]
            batch = originals.fill(batch)
            batch = batch.select(columns or [n for n in batch.schema.names if n != TEXT_HASH])
        yield row_numbers, total, batch


class _Originals:
    """Puts texts into the rows of a shard that lacks them.

    Args:
        path: of the shard, for messages.
        texts: opens them, in key order.
    """

    def __init__(self, path: Readable, texts: Callable[[], Texts] | None) -> None:
        self._path, self._open = path, texts
        self._stream: Texts | None = None
        self._keys, self._texts = np.empty(0, np.int64), pa.array([], pa.large_string())

    def fill(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the next rows with their texts."""
        from corpuskit.kernels.hashing import hash_texts  # kernels load numba, the loader does not

        column = batch.schema.get_field_index("text")
        if batch.column(column).null_count == 0:
            return batch
        keys = numbers(batch.column("key"))
        texts = self._texts_of(keys)
        hashes = numbers(batch.column(TEXT_HASH))
        if texts is None or not np.array_equal(hash_texts(*utf8(texts))[0], hashes):
            raise DataError(
                f"{self._path}: documents {keys[0]} to {keys[-1]} are not in the input as they "
                "were read first, although size and time of the file did not change. Touch it and "
                "run again."
            )
        return batch.set_column(column, batch.schema.field(column), texts)

    def _texts_of(self, keys: NDArray[np.int64]) -> pa.LargeStringArray | None:
        """Return the texts of ascending keys; None if one is not there."""
        if self._stream is None:
            if self._open is None:
                raise DataError(f"{self._path}: its texts are in the input files, not here.")
            self._stream = self._open()
        texts = []
        while True:
            num = int(np.searchsorted(keys, self._keys[-1], "right")) if len(self._keys) else 0
            if num:
                rows = np.searchsorted(self._keys, keys[:num])
                if not np.array_equal(self._keys[rows], keys[:num]):
                    return None
                first, end = rows[0], rows[-1] + 1
                is_slice = end - first == num  # which copies nothing
                texts.append(self._texts[first:end] if is_slice else self._texts.take(rows))
                keys = keys[num:]
            if len(keys) == 0:
                return texts[0] if len(texts) == 1 else pa.concat_arrays(texts)
            self._keys, self._texts = next(self._stream, (np.empty(0, np.int64), None))
            if self._texts is None:
                return None


def _cut_texts(batch: pa.RecordBatch, cuts: pa.ListArray) -> pa.RecordBatch:
    """Return the batch with its texts cut; spans of a row are sorted and disjoint."""
    from corpuskit.kernels.spans import replace_spans  # kernels load numba, the loader does not

    rows, starts, ends = list_spans(cuts)
    if len(rows) == 0:
        return batch
    column = batch.schema.get_field_index("text")
    text = utf8(batch.column(column))
    previous_ends = np.where(rows == np.append(-1, rows[:-1]), np.append(0, ends[:-1]), 0)
    if ((starts < previous_ends) | (ends < starts) | (ends > text.sizes()[rows])).any():
        raise DataError("a sidecar cuts outside of a text. Run again.")
    codes = np.zeros(len(rows), np.uint8)
    offsets, data = replace_spans(*text, rows, starts, ends, codes, [b""])
    return batch.set_column(column, "text", large_strings(offsets, data))


def _may_hold(bounds: pq.Statistics | None, keys: NDArray[np.int64]) -> bool:
    if bounds is None or not bounds.has_min_max:
        return True
    return bool(np.searchsorted(keys, bounds.min) < np.searchsorted(keys, bounds.max, "right"))


def _repetitive(schema: pa.Schema) -> list[str]:
    """Return the columns worth a dictionary: texts and ids hardly ever repeat."""
    rarely_repeated = {"key", "id", "text", "origin", "extra"}
    return ["origin.file", *(name for name in schema.names if name not in rarely_repeated)]


def _cuts(sizes: NDArray[np.int64], waiting: int) -> list[int]:
    """Return the rows before which a row group is full: when its text reaches the target."""
    cuts: list[int] = []
    for row, size in enumerate(sizes.tolist()):
        if waiting and waiting + size > BATCH_TEXT_BYTES:
            cuts.append(row)
            waiting = 0
        waiting += size
    return cuts

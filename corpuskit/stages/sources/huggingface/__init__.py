"""Datasets of Hugging Face."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError
from corpuskit.formats.batch import make_keys
from corpuskit.stage import InputFile, Slice, Source, SourceBatch
from corpuskit.stages.sources._columns import ColumnSource
from corpuskit.stages.sources._records import BLOCK_ROWS
from corpuskit.stages.sources._stream import InputStream
from corpuskit.stages.sources.huggingface.files import find_files, format_of
from corpuskit.stages.sources.jsonl import Jsonl
from corpuskit.stages.sources.parquet import Parquet, ParquetRows, join_rows
from corpuskit.storage import FoundFile, open_input

TEXT_SHARE = 0.9
"""Bytes of text per byte of an Arrow file: the rest are ids, URLs and offsets."""


class Huggingface(ColumnSource):
    """Read datasets of Hugging Face: by name from the hub, or from a folder on disk.

    A folder is the output of `save_to_disk`, or a copy of a repository. A name (`owner/name`) is
    looked up on the hub, and its files are fetched into the library's cache (HF_HOME) when a
    command starts; cluster nodes must see that folder. Files in the cache are read without a
    network, also with HF_HUB_OFFLINE=1. Give `revision` a commit: a branch may move between two
    commands, and changed files are then read again. A run's fingerprint has the hashes of the
    files.

    Files are chosen by `pattern`, or by the `configs` in the card (README.md), or by folders and
    words in their names (`train`, `validation`, `test`), a simpler rule than the datasets
    library's. Parquet and JSON lines (plain, .gz, .zst) are read as by the sources `parquet` and
    `jsonl`, with their rules; an Arrow file is one piece of work, with the rules of Parquet. No
    code of a dataset is run.

    Source: huggingface.co/docs: "Structure your repository"; Arrow columnar format, IPC streams.
    """

    rules: ClassVar[tuple[str, ...]] = Jsonl.rules
    text_speed: ClassVar[float] = Jsonl.text_speed

    config: str | None = None
    """Configuration (subset) of the dataset; the only or the default one when absent."""
    split: str = "train"
    """Split of the dataset; `all` takes every one."""
    revision: str = "main"
    """Branch, tag or commit on the hub; a commit is read the same way forever."""
    pattern: str | None = None
    """Pattern of files in the dataset (`data/CC-MAIN-2024-10/*.parquet`), instead of the two."""

    def libraries(self) -> tuple[str, ...]:
        return self._parquet().libraries()

    def find(self) -> list[tuple[FoundFile, str]]:
        all_files = []
        several = len(self.paths) > 1
        for dataset in self.paths:
            files = find_files(dataset, self.revision, self.config, self.split, self.pattern)
            all_files += [(file, f"{dataset}/{name}" if several else name) for file, name in files]
        return all_files

    def text_size(self, file: InputFile, piece: Slice) -> tuple[int, bool]:
        if format_of(file.name) == "arrow":
            return int(piece.size_bytes * TEXT_SHARE), False
        return self._reader(file).text_size(file, piece)

    def check_files(self, paths: Sequence[str]) -> None:
        lines = [path for path in paths if format_of(path) == "jsonl"]
        if lines:
            self._jsonl().check_files(lines)

    def slices(self, file: InputFile, target_bytes: int) -> list[Slice]:
        if format_of(file.name) == "arrow":
            with open_stream(file.path) as reader:
                self._parquet().check_columns(file, reader.schema)
            return [Slice(0, file.size_bytes, file.size_bytes)]
        if format_of(file.name) == "jsonl":
            _check_lines(file)
        return self._reader(file).slices(file, target_bytes)

    def read_keyed(
        self, pieces: Iterable[tuple[InputFile, Slice]], max_document_bytes: int
    ) -> Iterator[SourceBatch]:
        for kind, group in itertools.groupby(pieces, key=lambda pair: format_of(pair[0].name)):
            if kind == "arrow":
                row_groups = (rows for file, _ in group for rows in self._arrow(file))
                for rows in join_rows(row_groups):
                    yield from self._parquet().documents(rows, max_document_bytes)
            else:
                source = self._parquet() if kind == "parquet" else self._jsonl()
                yield from source.read_keyed(group, max_document_bytes)

    def _arrow(self, file: InputFile) -> Iterator[ParquetRows]:
        with open_stream(file.path) as reader:
            self._parquet().check_schema(file, reader.schema)
            position = 0
            for batch in read_batches(file.path, reader):
                for first in range(0, len(batch), BLOCK_ROWS):
                    rows = batch.slice(first, BLOCK_ROWS)
                    keys = make_keys(file.ordinal, np.arange(len(rows)) + (position + first))
                    location = f"{file.path}: row {position + first}"
                    yield ParquetRows(location, keys, rows, 0, file.size_bytes)
                position += len(batch)

    def _reader(self, file: InputFile) -> Source:
        return self._parquet() if format_of(file.name) == "parquet" else self._jsonl()

    def _parquet(self) -> Parquet:
        return Parquet.model_construct(**self._shared())

    def _jsonl(self) -> Jsonl:
        return Jsonl.model_construct(**self._shared())

    def _shared(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in Jsonl.model_fields}


def _check_lines(file: InputFile) -> None:
    """Refuse a file that is one JSON array: none of its lines would be a document."""
    with InputStream(file.path) as stream:
        if stream.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            raise DataError(
                f"{file.path}: a JSON array, not JSON lines. Write one object per line, or Parquet."
            )


# ---------------------------------------------------------------- Arrow streams of save_to_disk


FILE_MAGIC = b"ARROW1"


@contextlib.contextmanager
def open_stream(path: str) -> Iterator[pa.RecordBatchReader]:
    """Open an Arrow IPC stream, or an Arrow file, to be read once from front to back.

    Raises:
        DataError: it is none.
    """
    with contextlib.closing(open_input(path)) as file:
        is_file = file.read(len(FILE_MAGIC)) == FILE_MAGIC
        # A file is a stream between two magic words, padded to eight bytes.
        file.seek(8 if is_file else 0)
        try:
            reader = pa.ipc.open_stream(pa.PythonFile(file, "r"))
        except (pa.ArrowException, OSError) as error:
            raise _broken(path, 0, error) from None
        yield reader


def read_batches(path: str, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a stream, each validated.

    Raises:
        DataError: the stream is broken or ends early; names file and row.
    """
    rows = 0
    while True:
        try:
            batch = reader.read_next_batch()
            batch.validate(full=True)
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as error:
            raise _broken(path, rows, error) from None
        yield batch
        rows += len(batch)


def _broken(path: str, rows: int, error: Exception) -> Exception:
    if isinstance(error, OSError) and error.errno is not None:
        return error
    return DataError(f"{path}: row {rows}: no whole Arrow stream: {error}. Save it again.")

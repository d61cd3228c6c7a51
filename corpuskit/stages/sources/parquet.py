"""Parquet files."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from corpuskit.batch import utf8
from corpuskit.errors import DataError
from corpuskit.stage import Reject, Slice, Source, SourceBatch
from corpuskit.stages.sources._columns import DeclaredColumns, arrow_types, invalid_rows
from corpuskit.stages.sources._extra import json_objects
from corpuskit.stages.sources._records import BLOCK_BYTES, BLOCK_ROWS, HEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    from corpuskit.stage import InputFile

BUFFER_BYTES = 1 << 20
"""Read at once of a column chunk; without it Arrow holds whole chunks, however large."""


class Parquet(Source):
    """Read Parquet files: one row per document, one column is the text.

    Use it for published datasets. A piece of work is a run of row groups; a row group is never cut,
    so files with one huge row group are read by one process.

    The text column may be string, binary that holds UTF-8, or a dictionary of either. A row becomes
    no document, but a row of the ledger, when its text is null (`bad_text`), not UTF-8
    (`invalid_utf8`) or has more than `max_document_bytes` (`too_long`), and when the value of a
    declared column, or the id, is not UTF-8 or no int64 (`bad_column`). A column that is missing or
    of the wrong type is an error of the file. Byte order marks are removed. Page checksums are
    checked where files have them.

    Source: Apache Parquet format 2, read by Arrow.
    """

    rules: ClassVar[tuple[str, ...]] = ("bad_text", "bad_column", "invalid_utf8", "too_long")

    text_column: str = "text"
    """Column that holds the text."""
    id_column: str | None = None
    """Column that holds the document's id; file and row when absent."""
    url_column: str | None = None
    """Column that holds the URL."""
    date_column: str | None = None
    """Column that holds the date."""
    columns: DeclaredColumns = Field(default_factory=dict)
    """Columns that are kept: name to string, int64, float64 or bool."""
    extra: bool = True
    """Keep all other columns as one JSON object in the column `extra`."""

    def declared(self) -> Mapping[str, pa.DataType]:
        return arrow_types(self.columns)

    def libraries(self) -> tuple[str, ...]:
        return ("pyarrow",) if self.extra else ()  # it writes the numbers of `extra`

    def slices(self, file: InputFile, target_bytes: int) -> list[Slice]:
        with _open(file.path) as reader:
            self._check_schema(file, reader.schema_arrow)
            sizes = _text_sizes(reader, self.text_column)
        pieces: list[Slice] = []
        begin = waiting = 0
        for group, size in enumerate(sizes):
            if waiting and waiting + size > target_bytes:
                pieces.append(Slice(begin, group, waiting))
                begin, waiting = group, 0
            waiting += size
        if begin < len(sizes):
            pieces.append(Slice(begin, len(sizes), waiting))
        return pieces

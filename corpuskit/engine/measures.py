"""What stages measured in one cell, as Parquet parts that `corpuskit tune` reads (docs/formats.md).

One file for each stage that measures. Rows are written as they come, a row group at a time, so
memory does not grow with the cell.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    from corpuskit.stage import Outcome, View

GROUP_ROWS = 1 << 16
"""Rows per row group."""

FIXED = {
    "key": pa.int64(),
    "id": pa.string(),
    "source": pa.string(),
    "text_bytes": pa.int64(),
    "code": pa.uint8(),
}
"""The columns before the measures."""

ROLE = "measures:"
"""Role of the parts, in front of the label of the stage."""


class Measured(NamedTuple):
    """A finished file."""

    label: str
    path: Path
    rows: int
    text_bytes: int
    first: int
    last: int


class Measures:
    """Collects what the stages of a cell measured.

    Used as a context manager: left through an exception it closes its files without a footer.

    Args:
        new_path: gives a scratch file, by its suffix.
    """

    def __init__(self, new_path: Callable[[str], Path]) -> None:
        self._new_path = new_path
        self._files: dict[str, _File] = {}
        self._stack = contextlib.ExitStack()

    def add(self, label: str, view: View, outcome: Outcome) -> None:
        """Append a row for every document of the view that the stage saw.

        Raises:
            ValueError: a measure has the name of another column.
        """
        if label not in self._files:
            file = _File(self._new_path(".parquet"), label, outcome.measures)
            self._files[label] = self._stack.enter_context(file)
        self._files[label].write(view, outcome)

    def finished(self) -> list[Measured]:
        """Return the files, after the context was left."""
        return [file.finished() for file in self._files.values()]

    def __enter__(self) -> Measures:
        self._stack.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)


class _File:
    """The file of one stage; row groups are cut at GROUP_ROWS, however batches came."""

    def __init__(self, path: Path, label: str, measures: Mapping[str, object]) -> None:
        taken = sorted(measures.keys() & FIXED.keys())
        if taken:
            raise ValueError(f"{label}: a measure cannot be called {taken[0]!r}. Rename the rule.")
        self.path, self.label = path, label
        self.schema = pa.schema([*FIXED.items(), *((name, pa.float64()) for name in measures)])
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self.rows = self.text_bytes = 0
        self.first, self.last = 0, -1

    def write(self, view: View, outcome: Outcome) -> None:
        sizes = view.text.sizes()
        codes = np.zeros(view.num_docs, np.uint8) if outcome.codes is None else outcome.codes
        columns = {
            **{name: view.column(name) for name in ("key", "id", "source")},
            "text_bytes": pa.array(sizes, pa.int64()),
            "code": pa.array(codes, pa.uint8()),
            **{name: pa.array(values, pa.float64()) for name, values in outcome.measures.items()},
        }
        if self.rows == 0:
            self.first = int(view.keys[0])
        self.last = int(view.keys[-1])
        self.rows += view.num_docs
        self.text_bytes += int(sizes.sum())
        self._waiting.append(pa.record_batch(columns, self.schema))
        self._waiting_rows += view.num_docs
        while self._waiting_rows >= GROUP_ROWS:
            self._flush()

    def finished(self) -> Measured:
        rows, size = self.rows, self.text_bytes
        return Measured(self.label, self.path, rows, size, self.first, self.last)

    def _flush(self) -> None:
        """Write one row group; what is over waits."""
        table = pa.Table.from_batches(self._waiting, self.schema).combine_chunks()
        self._writer.write_table(table.slice(0, GROUP_ROWS), row_group_size=GROUP_ROWS)
        self._waiting = table.slice(GROUP_ROWS).to_batches()
        self._waiting_rows = max(table.num_rows - GROUP_ROWS, 0)

    def __enter__(self) -> _File:
        self._sink = pa.OSFile(str(self.path), "wb")
        self._writer = pq.ParquetWriter(
            self._sink, self.schema, compression="zstd", use_dictionary=["source"],
            use_byte_stream_split=False, write_page_checksum=True,
        )  # fmt: skip
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            if self._waiting_rows:
                self._flush()
            self._writer.close()
        else:
            self._writer.is_open = False  # pyarrow would write a footer over half a file
        self._sink.close()

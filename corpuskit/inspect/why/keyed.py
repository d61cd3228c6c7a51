"""Rows of one document in parts that are sorted by key: one row group of one file is read.

Parts of a role have disjoint ranges of keys, which the seal names; statistics name those of row
groups. So a document is found in a corpus of any size without a scan.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError
from corpuskit.formats.batch import numbers
from corpuskit.formats.shards import open_parquet
from corpuskit.storage import open_place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    from corpuskit.storage import Readable

ROW = "row"
"""What the place of a row in its part is called."""

_STEP_ROWS = {True: 256, False: 1 << 16}
"""Rows in memory while one is looked for, with texts and without."""


def rows_of(
    path: Readable,
    key: int,
    column: str = "key",
    without: Collection[str] = (),
    only: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Return the rows of a part whose key is `key`, each with its place in the part as `row`.

    Args:
        path: Parquet, sorted by `column`.
        without: columns that are left out.
        only: the others are left out, if it names any.

    Raises:
        DataError: the file is no Parquet file, or has no such column.
    """
    try:
        with open_place(path) as source, open_parquet(source, path) as file:
            there = file.schema_arrow.names
            names = [one for one in there if one not in without and (not only or one in only)]
            found: list[dict[str, Any]] = []
            for group, first, keys in _groups(file, column, key, key + 1):
                found += [
                    {ROW: first + place, **_row(file, group, place, names)}
                    for place in np.flatnonzero(keys == key).tolist()
                ]
            return found
    except (pa.ArrowException, KeyError) as error:
        raise DataError(f"{path}: cannot be read: {error}. Run again.") from None


def keys_around(path: Readable, key: int, column: str = "key") -> list[int]:
    """Return the keys of a part next to `key`: the last one below it and the first one above."""
    try:
        with open_place(path) as source, open_parquet(source, path) as file:
            below: list[int] = []
            above: list[int] = []
            for _, _, keys in _groups(file, column, None, None):
                place = int(np.searchsorted(keys, key))
                below = keys[max(place - 1, 0) : place].tolist() or below
                if place < len(keys):
                    above = [int(keys[place])]
                    break
            return [*below, *above]
    except (pa.ArrowException, KeyError) as error:
        raise DataError(f"{path}: cannot be read: {error}. Run again.") from None


def first_values(path: Readable, column: str, num: int) -> list[Any]:
    """Return a column of the first row group of a part, at most `num` values."""
    try:
        with open_place(path) as source, open_parquet(source, path) as file:
            if not file.num_row_groups:
                return []
            table = file.read_row_group(0, columns=[column], use_threads=False)
            return table.column(column).slice(0, num).to_pylist()  # type: ignore[no-any-return]
    except (pa.ArrowException, KeyError) as error:
        raise DataError(f"{path}: cannot be read: {error}. Run again.") from None


def sidecar_row(path: Readable, row: int) -> dict[str, Any]:
    """Return what a sidecar says about a row of its part.

    Raises:
        DataError: it is no sidecar, or has no such row.
    """
    try:
        with open_place(path) as source:
            reader = pa.ipc.open_file(source)
            begin = 0
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                if row < begin + len(batch):
                    return batch.slice(row - begin, 1).to_pylist()[0]  # type: ignore[no-any-return]
                begin += len(batch)
    except pa.ArrowException as error:
        raise DataError(f"{path}: not a sidecar: {error}. Run again.") from None
    raise DataError(f"{path}: has no row {row}. Run again.")


def _groups(
    file: pq.ParquetFile, column: str, low: int | None, high: int | None
) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """Yield (number, first row, keys) of the row groups that may hold keys in `[low, high)`."""
    metadata, first = file.metadata, 0
    place = file.schema_arrow.names.index(column)  # nothing nested stands in front of keys
    for group in range(metadata.num_row_groups):
        stored = metadata.row_group(group)
        bounds = stored.column(place).statistics
        is_known = bounds is not None and bounds.has_min_max
        misses = is_known and (
            (high is not None and bounds.min >= high) or (low is not None and bounds.max < low)
        )
        if not misses:
            table = file.read_row_group(group, columns=[column], use_threads=False)
            yield group, first, numbers(table.column(column))
        first += stored.num_rows


def _row(file: pq.ParquetFile, group: int, place: int, names: list[str]) -> dict[str, Any]:
    """Return one row of a row group; texts are read in steps, up to the one asked for."""
    seen = 0
    step = _STEP_ROWS["text" in names]
    for batch in file.iter_batches(
        batch_size=step, row_groups=[group], columns=names, use_threads=False
    ):
        if place < seen + len(batch):
            return batch.slice(place - seen, 1).to_pylist()[0]  # type: ignore[no-any-return]
        seen += len(batch)
    raise DataError(f"row group {group} has no row {place}.")


def plain(value: Any) -> Any:
    """Return a value of a row as JSON has it."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return str(value)
    return value

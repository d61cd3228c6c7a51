"""Exchange runs: what one pass of a global stage hands to the next (docs/formats.md).

A producer writes one sorted file, whatever the number of consumers; a consumer asks for a range of
the first column and reads only the record batches that can hold it. Keys, hashes and
token rows move; documents stay where they are.
"""

from __future__ import annotations

import bisect
import itertools
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError
from corpuskit.storage import open_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from corpuskit.storage import Readable

BATCH_ROWS = 8192
"""Most rows per record batch."""

BATCH_BYTES = 128 << 10
"""Aim of a record batch's size: a narrow range reads little more than it needs."""


def write_run(
    path: Path, columns: Mapping[str, pa.Array | NDArray[np.generic]], *, is_sorted: bool = False
) -> pa.Table:
    """Write columns as a run, sorted by the first one (ties keep their order).

    Args:
        path: the scratch file to create.
        columns: equally long; the first is int64 or uint64.
        is_sorted: the caller has sorted the rows already.

    Returns:
        The table as written.
    """
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    if not is_sorted:
        order = np.argsort(table.column(0).to_numpy(), kind="stable")
        table = table.take(pa.array(order))
    table = table.combine_chunks()
    first = table.column(0).to_numpy()
    step = max(min(BATCH_ROWS, BATCH_BYTES * len(first) // max(table.nbytes, 1)), 1)
    header = {"format": 1, "rows": len(first), "first": [str(v) for v in first[::step]]}
    schema = table.schema.with_metadata({"corpuskit": json.dumps(header)})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_table(table, max_chunksize=step)
    return table


def read_run(path: Readable, low: int | None = None, high: int | None = None) -> pa.Table:
    """Return the rows of a run whose first column is in `[low, high)`, sorted by it.

    Raises:
        DataError: the file is not a run.
    """
    try:
        with open_place(path) as file:
            reader = pa.ipc.open_file(file)
            header = json.loads(reader.schema.metadata[b"corpuskit"])
            first = [int(value) for value in header["first"]]
            begin, end = _batches(first, low, high)
            table = pa.Table.from_batches(
                [reader.get_batch(i) for i in range(begin, end)],
                reader.schema.remove_metadata(),
            )
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not an exchange run: {error}.") from None
    values = table.column(0).to_numpy()
    lo, hi = _place(values, low, 0), _place(values, high, len(values))
    return table.slice(lo, max(hi - lo, 0))


def read_runs(
    paths: Iterable[Readable], schema: pa.Schema, low: int | None = None, high: int | None = None
) -> pa.Table:
    """Return the rows of many runs in `[low, high)`, run after run; `schema` serves when none."""
    tables = [read_run(path, low, high) for path in paths]
    return pa.concat_tables([schema.empty_table(), *tables]).combine_chunks()


def hash_ranges(num_ranges: int) -> list[tuple[int, int]]:
    """Cut the uint64 line into equal ranges `[low, high)`; the last one ends at 2**64."""
    edges = [(i << 64) // num_ranges for i in range(num_ranges + 1)]
    return list(itertools.pairwise(edges))


def _batches(first: list[int], low: int | None, high: int | None) -> tuple[int, int]:
    """Return the range of batches that may hold values in `[low, high)`.

    Equal values may straddle batches: the batch before the first one that starts at `low` counts.
    """
    begin = 0 if low is None else max(bisect.bisect_left(first, low) - 1, 0)
    end = len(first) if high is None else bisect.bisect_left(first, high)
    return begin, max(begin, end)


def _place(values: NDArray[np.integer[Any]], bound: int | None, default: int) -> int:
    """Return the first position whose value is >= bound; 2**64 lies beyond every uint64."""
    if bound is None:
        return default
    if bound > np.iinfo(values.dtype).max:
        return len(values)
    return int(np.searchsorted(values, values.dtype.type(bound), "left"))

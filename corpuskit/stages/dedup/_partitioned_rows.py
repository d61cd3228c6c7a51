"""What the passes of the partitioned engine hand on, and the cells that they read.

Runs name windows by the document's key and by place in it, so that no number depends on how the
work was cut, nor is there a limit on how much there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError
from corpuskit.formats.batch import numbers
from corpuskit.kernels.substring.contexts import (
    Contexts,
    find_equal,
    group_rows,
    order_keys,
)
from corpuskit.stages._routing import ROUTED
from corpuskit.stages.dedup._spans import DocumentSpans
from corpuskit.stages.dedup._symbols import Symbols, read_symbols, symbol_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from corpuskit.stage import PassContext
    from corpuskit.stages.dedup._symbols import Search

_PLACE = [("start", pa.uint32()), ("at", pa.uint16()), ("last", pa.uint16())]
FINGERPRINTS = pa.schema([("fp", pa.uint64()), ("key", pa.int64()), *_PLACE])
"""One row per fingerprint, as kernels.substring.winnow has them."""

PLACES = pa.schema([("key", pa.int64()), ("fp", pa.uint64()), *_PLACE])
"""Those that are not alone, on their way back."""

REFINED = tuple(f"refine/fingerprints_{number}" for number in range(64))
"""Runs of FINGERPRINTS that stand for hot ones: slices of what a cell has."""

HOT = pa.schema([("fp", pa.uint64())])
CONTEXTS = pa.schema([*FINGERPRINTS, ("rank", pa.uint8()), ("symbols", pa.large_binary())])
SPANS = pa.schema([("key", pa.int64()), ("start", pa.uint32()), ("end", pa.uint32())])
WINDOWS = pa.schema([("key", pa.int64()), ("start", pa.uint32()), ("last", pa.uint16())])
"""Repeated windows `start` to `start + last`."""

_LARGE = 64
"""Rows of a group that is counted as large."""


def context_bytes(search: Search) -> int:
    """Return the memory of a context while it is compared: read, joined, flags, what is found."""
    symbols = search.window + search.window // 4
    held = 2 * symbols * np.dtype(symbol_type(search)).itemsize + search.window // 4 + 300
    return held * 4 // 3  # besides its share a range may have one group of a quarter of the memory


def routed(context: PassContext, run: str) -> str:
    """Return the run to read in place of `<pass>/<run>`: the merged one if there is one."""
    name = run.partition("/")[2]
    via = f"route_{name}"
    return f"{via}/{name}" if context.counters(via).get(f"{ROUTED}/{name}") else run


class Combined(NamedTuple):
    """Contexts of a cell, those of equal text once.

    Attributes:
        columns: of the first of equal ones, as in CONTEXTS, sorted by `fp`.
        begins: their first byte in `values`.
        values: the texts of the cell.
        width: bytes of a symbol.
        repeats: what those that are left out, or all that are not alone, cover.
    """

    columns: dict[str, NDArray[Any]]
    begins: NDArray[np.int64]
    values: NDArray[np.uint8]
    width: int
    repeats: DocumentSpans


def combine(search: Search, context: PassContext, rows: pa.Table) -> Combined:
    """Find contexts of equal text in a cell.

    Args:
        rows: of FINGERPRINTS, or PLACES.

    Raises:
        DataError: a row is of a document that the cell has not.
    """
    cell = _read_cell(search, context)
    column = {name: numbers(rows.column(name)) for name in FINGERPRINTS.names}
    docs = np.minimum(np.searchsorted(cell.keys, column["key"]), len(cell.keys) - 1)
    if not np.array_equal(cell.keys[docs], column["key"]):
        raise DataError(
            f"cell {context.unit.number}: fingerprints of documents that it lacks. Run again."
        )
    column["rank"] = cell.ranks[docs]
    order = group_rows(column["fp"], column["rank"], column["key"], column["start"])
    column = {name: values[order] for name, values in column.items()}
    width = cell.values.itemsize
    begins = (cell.offsets[docs[order]] + column["start"]) * width
    lengths = column["last"].astype(np.int64) + search.window
    ats = column["at"].astype(np.int64) * width
    data = cell.values.view(np.uint8)
    data.flags.writeable = False
    first = find_equal(Contexts(column["fp"], begins, lengths * width, ats), data)
    repeats = repeated_spans(search, first, column["key"], column["start"], lengths)
    is_first = first == np.arange(len(first))
    chosen = {name: values[is_first] for name, values in column.items()}
    return Combined(chosen, begins[is_first], data, width, repeats)


def _read_cell(search: Search, context: PassContext) -> Symbols:
    """Return all documents of a cell; scopes are in the fingerprints already."""
    batches = list(read_symbols(search, context))
    pieces: list[NDArray[Any]] = [b.values[b.offsets[0] : b.offsets[-1]] for b in batches]
    values: Any = np.concatenate(pieces)
    sizes = np.concatenate([np.diff(one.offsets) for one in batches])
    return Symbols(
        np.concatenate([one.keys for one in batches]),
        np.append(0, np.cumsum(sizes)),
        values,
        np.empty(0, np.uint64),
        np.concatenate([one.ranks for one in batches]),
    )


def repeated_spans(
    search: Search,
    first: NDArray[np.int64],
    keys: NDArray[np.int64],
    starts: NDArray[np.uint32],
    lengths: NDArray[np.int64],
) -> DocumentSpans:
    """Return the spans of contexts that are repeated, being equal to another one.

    Args:
        first: (R,) the first context that equals each, as `find_equal` has it.
        keys, starts, lengths: (R,) where they are, in symbols.
    """
    is_repeated = first != np.arange(len(first))
    if search.keep == "none":
        is_repeated[first[is_repeated]] = True
    begins = starts[is_repeated].astype(np.int64)
    return merge_spans(keys[is_repeated], begins, begins + lengths[is_repeated])


def merge_spans(
    keys: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> DocumentSpans:
    """Sort spans and join those that touch. O(S)."""
    order = order_keys(starts)
    order = order[order_keys(keys[order])]
    keys, starts, ends = keys[order], starts[order], ends[order]
    docs = np.cumsum(np.diff(keys, prepend=keys[:1]) != 0)
    # No document is as long as the distance between two, so ends of others don't matter.
    reach = np.maximum.accumulate(docs << 33 | ends) if len(ends) else ends
    opens = np.flatnonzero(np.append(True, (docs << 33 | starts)[1:] > reach[:-1])[: len(keys)])
    closes = np.append(opens[1:], len(keys)) - 1 if len(keys) else opens
    return DocumentSpans(keys[opens], starts[opens], reach[closes] & ((1 << 33) - 1))


def count_groups(context: PassContext, sizes: NDArray[np.int64]) -> None:
    """Count large groups by powers of two; `sizes` has that of its group for each row."""
    groups = np.bincount(sizes[sizes >= _LARGE])
    for size in np.flatnonzero(groups).tolist():
        context.count(f"groups_of_{1 << (size.bit_length() - 1)}", int(groups[size]) // size)


def among(values: NDArray[np.uint64], wanted: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which values occur in `wanted`, which is sorted."""
    if len(wanted) == 0:
        return np.zeros(len(values), np.bool_)
    places = np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)
    return wanted[places] == values  # type: ignore[no-any-return]


def write(
    context: PassContext, run: str, schema: pa.Schema, columns: Sequence[NDArray[Any] | pa.Array]
) -> None:
    """Write a run whose rows are in order."""
    arrays = [pa.array(column, field.type) for field, column in zip(schema, columns, strict=True)]
    context.write_shuffle(run, dict(zip(schema.names, arrays, strict=True)), is_sorted=True)

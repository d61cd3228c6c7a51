"""Shingle sets of documents on their way to those that compare them.

A set is the different 64-bit shingle hashes of a document, ascending, as bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError
from corpuskit.formats.batch import numbers, utf8
from corpuskit.kernels.hashing import hash_texts
from corpuskit.kernels.jaccard import similarities
from corpuskit.kernels.unionfind import first_of_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from corpuskit.stage import PassContext
    from corpuskit.stages.dedup._against import Index

    Keys = NDArray[np.int64]
    Rows = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

COMPONENTS = pa.schema([("key", pa.int64()), ("component", pa.int64())])
"""One row per document that bands join to another; components are called by their smallest key."""

SETS = pa.schema(
    [
        ("place", pa.uint64()),
        ("key", pa.int64()),
        ("line", pa.uint64()),
        ("twin", pa.int64()),
        ("shingles", pa.large_binary()),
    ]
)
"""`place` is the component, spread evenly; `line` where the document stands to be kept; `twin` the
first document of cell and component with the same shingles, and only that one has them here."""

SIZES = pa.schema([("place", pa.uint64()), ("documents", pa.int64()), ("shingles", pa.int64())])
"""Sums by component, of a cell."""

_INDEX = pa.schema([("key", pa.int64()), ("shingles", pa.large_binary())])

_SPREAD, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC4CEB9FE1A85EC53)


class Batch(NamedTuple):
    """Documents with their shingle sets.

    Attributes:
        lines: where they stand in line to be kept; None = all alike.
        offsets, hashes: their shingles, as `_schemes.shingles` gives them.
    """

    keys: Keys
    lines: NDArray[np.uint64] | None
    offsets: NDArray[np.int64]
    hashes: Hashes


def write_sets(
    context: PassContext, wanted: Keys, components: Keys, batches: Iterable[Batch]
) -> None:
    """Write the shingle sets of a cell's documents, equal ones of a component once.

    Args:
        wanted, components: the documents, keys ascending, and their components.
        batches: with their sets, in the same order.

    Raises:
        DataError: they are not the same documents.
    """
    keys, lines, offsets, hashes = _concatenated(batches)
    if not np.array_equal(keys, wanted):
        raise DataError(
            f"unit {context.unit.number}: {len(wanted)} documents should live here, {len(keys)} "
            "do. Run again."
        )
    places = frozen(_spread(components))
    rows = np.arange(len(keys))
    twins = first_twins(places, keys, offsets, hashes, rows)
    sizes = np.where(twins == rows, np.diff(offsets), 0)
    if (twins != rows).any():
        hashes = hashes[np.repeat(twins == rows, np.diff(offsets))]
    columns = {
        "place": places,
        "key": keys,
        "line": lines,
        "twin": keys[twins],
        "shingles": _binary(np.concatenate([[0], np.cumsum(sizes)]), hashes),
    }
    context.count("gathered", len(keys))
    context.count("shingles", int(sizes.sum()))
    context.write_shuffle("sets", columns)
    found, group = np.unique(places, return_inverse=True)
    sums = {
        "place": found,
        "documents": np.bincount(group).astype(np.int64),
        "shingles": np.bincount(group, sizes).astype(np.int64),
    }
    context.write_shuffle("sizes", sums, is_sorted=True)


def write_index(context: PassContext, batches: Iterable[Batch]) -> None:
    """Keep the shingle sets of a cell's documents for later runs to be compared with."""
    keys, _, offsets, hashes = _concatenated(batches)
    columns = {"key": keys, "shingles": _binary(offsets, hashes)}
    context.write_shuffle("sets", columns, is_sorted=True)


def read_index(index: Index, low: int, high: int, wanted: Keys) -> Iterator[Batch]:
    """Yield the sets of some documents of an older run; keys are moved below zero."""
    rows = index.read("sets", low - index.shift, high - index.shift, _INDEX)
    keys = numbers(rows.column("key")) + np.int64(index.shift)
    found = np.isin(keys, wanted)
    if found.any():
        rows = rows.filter(pa.array(found)).combine_chunks()
        yield Batch(keys[found], None, *as_hashes(rows.column("shingles")))


def _concatenated(
    batches: Iterable[Batch],
) -> tuple[Keys, NDArray[np.uint64], NDArray[np.int64], Hashes]:
    """Return keys, lines, offsets and hashes of all batches."""
    nothing = np.empty(0, np.uint64)
    found = [Batch(np.empty(0, np.int64), nothing, np.zeros(1, np.int64), nothing), *batches]
    keys = [batch.keys for batch in found]
    lines = [np.zeros(len(b.keys), np.uint64) if b.lines is None else b.lines for b in found]
    sizes = np.concatenate([np.diff(batch.offsets) for batch in found])
    hashes = [batch.hashes[batch.offsets[0] : batch.offsets[-1]] for batch in found]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    columns = (np.concatenate(keys), np.concatenate(lines), offsets, np.concatenate(hashes))
    first, second, third, fourth = (frozen(column) for column in columns)
    return first, second, third, fourth


def _binary(offsets: NDArray[np.int64], hashes: Hashes) -> pa.LargeBinaryArray:
    """Wrap sets as an Arrow array of bytes, without copying them."""
    buffers = [None, pa.py_buffer(offsets * 8), pa.py_buffer(hashes)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def as_hashes(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], Hashes]:
    """View a column of sets as offsets and hashes."""
    whole = utf8(column.combine_chunks())
    return frozen(whole.offsets // 8), whole.data[: len(whole.data) // 8 * 8].view(np.uint64)


def _spread(components: Keys) -> Hashes:
    """Return other numbers for components, one for one, evenly spread."""
    values = components.view(np.uint64)
    values = (values ^ (values >> np.uint64(32))) * _SPREAD
    values = (values ^ (values >> np.uint64(29))) * _MIX
    return values ^ (values >> np.uint64(32))


def first_twins(
    places: Hashes, keys: Keys, offsets: NDArray[np.int64], hashes: Hashes, rows: Rows
) -> Rows:
    """Return for each row the one of the smallest key, of the same place, with the same set, (N,).

    Args:
        rows: of the sets to compare; all others count as different.
    """
    first = np.arange(len(keys))
    high, low = hash_texts(frozen(offsets * 8), hashes.view(np.uint8))
    columns = (frozen(column) for column in ((high ^ places)[rows], low[rows], keys[rows]))
    found = rows[first_of_group(*columns)]
    same = found != rows
    rows, found = rows[same], found[same]
    same = similarities(offsets, hashes, rows, found) == 1
    first[rows[same]] = found[same]
    return first


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """One array flavour for kernels: Arrow's own buffers are read-only."""
    array.flags.writeable = False
    return array

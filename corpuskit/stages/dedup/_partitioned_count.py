"""The first half of the partitioned engine: which windows may be equal to another one."""

from __future__ import annotations

import bisect
import itertools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError
from corpuskit.formats.batch import numbers
from corpuskit.kernels.substring.contexts import (
    Contexts,
    find_equal,
    group_sizes,
    hash_windows,
    order_hashes,
    order_keys,
)
from corpuskit.kernels.substring.winnow import MAX_SYMBOLS, winnow
from corpuskit.stages.dedup._partitioned_rows import (
    FINGERPRINTS,
    HOT,
    PLACES,
    REFINED,
    SPANS,
    Combined,
    among,
    combine,
    context_bytes,
    count_groups,
    merge_spans,
    repeated_spans,
    routed,
    write,
)
from corpuskit.stages.dedup._symbols import read_symbols

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from corpuskit.stage import PassContext
    from corpuskit.stages.dedup._spans import DocumentSpans
    from corpuskit.stages.dedup._symbols import Search

ROW_BYTES = 110
"""Memory of a fingerprint while it is counted."""

_CHUNK = 16
"""Producers whose fingerprints are read at a time: of hot ones only these are held."""

_HOT_ROWS = 1 << 18
"""The most rows of a fingerprint that are compared as they are."""


def winnow_cell(search: Search, context: PassContext) -> None:
    """Write the fingerprints of a cell's documents, and what repeats within periodic text."""
    rows: list[tuple[NDArray[np.generic], ...]] = []
    spans: list[tuple[NDArray[np.generic], ...]] = []
    for found in read_symbols(search, context):
        sizes = np.diff(found.offsets)
        if len(sizes) and sizes.max() > MAX_SYMBOLS:
            longest = int(sizes.argmax())
            raise DataError(
                f"document {found.keys[longest]}: {sizes[longest]:,} symbols; substring_dedup "
                f"takes {MAX_SYMBOLS:,}. Set max_document_bytes."
            )
        first = search.keep == "first"
        fps, repeats = winnow(
            found.offsets, found.values, found.scopes, search.window, keep_first=first
        )
        rows.append((fps.fps, found.keys[fps.docs], fps.starts, fps.ats, fps.lasts))
        spans.append((found.keys[repeats.docs], repeats.starts, repeats.ends))
    if not rows:
        return
    columns = [np.concatenate(parts) for parts in zip(*rows, strict=True)]
    order = order_hashes(columns[0])
    context.count("fingerprints", len(order))
    write(context, "fingerprints", FINGERPRINTS, [column[order] for column in columns])
    write(context, "spans", SPANS, [np.concatenate(parts) for parts in zip(*spans, strict=True)])


def count_range(search: Search, context: PassContext) -> None:
    """Write the places of fingerprints that occur more than once, and which ones are hot."""
    most = min(_HOT_ROWS, context.memory_bytes // (4 * context_bytes(search)))
    hot = _count(context, [routed(context, "winnow/fingerprints")], max(most, 2))
    context.count("hot", len(hot))
    context.write_shuffle("hot", {"fp": hot}, is_sorted=True)


def refine_cell(search: Search, context: PassContext) -> None:
    """Write a row for each window of a cell whose fingerprint is hot, no text twice.

    A slice of the windows at a time, so that a cell may consist of them.
    """
    unit, run = context.unit, "winnow/fingerprints"
    parts = context.parts(run)
    mine = bisect.bisect_left(parts, unit.number, key=lambda part: part.unit)
    if mine == len(parts) or parts[mine].unit != unit.number:
        return
    rows = context.read_shuffle(run, None, None, FINGERPRINTS, (mine, mine + 1))
    hot = numbers(context.read_shuffle("count/hot", None, None, HOT).column(0))
    rows = rows.filter(pa.array(among(numbers(rows.column("fp")), hot)))
    if rows.num_rows == 0:
        return
    found = combine(search, context, rows)
    ends = np.cumsum(found.columns["last"].astype(np.int64) + 1)
    most = max(context.memory_bytes // (4 * ROW_BYTES), -(-int(ends[-1]) // len(REFINED)), 1)
    cuts = np.searchsorted(ends, np.arange(most, int(ends[-1]), most))
    edges = sorted({0, *(cuts + 1).tolist(), len(ends)})
    spans = [found.repeats]
    for run, (begin, end) in zip(REFINED, itertools.pairwise(edges), strict=False):
        spans.append(_write_windows(search, context, found, slice(begin, end), run))
    merged = merge_spans(*(np.concatenate(columns) for columns in zip(*spans, strict=True)))
    write(context, "spans", SPANS, merged)


def _write_windows(
    search: Search, context: PassContext, found: Combined, rows: slice, run: str
) -> DocumentSpans:
    """Write the windows of some contexts, equal ones once; return the spans of those."""
    width = found.width
    size = search.window * width
    begins, columns = found.begins[rows], {n: c[rows] for n, c in found.columns.items()}
    fps, which, moved = hash_windows(
        begins, columns["last"], found.values, size, width, columns["fp"]
    )
    order = order_hashes(fps)  # stable: of equal windows the first comes first
    fps, which, moved = fps[order], which[order], moved[order]
    keys, starts = columns["key"][which], columns["start"][which] + moved.astype(np.uint32)
    sizes, nothing = np.full(len(order), size), np.zeros(len(order), np.int64)
    windows = Contexts(fps, begins[which] + moved * width, sizes, nothing)
    first = find_equal(windows, found.values)
    chosen = first == np.arange(len(first))
    place = [fps[chosen], keys[chosen], starts[chosen], nothing[chosen], nothing[chosen]]
    write(context, run.removeprefix("refine/"), FINGERPRINTS, place)
    return repeated_spans(search, first, keys, starts, sizes // width)


def recount_range(context: PassContext) -> None:
    """Write the places of windows of hot fingerprints that occur more than once."""
    _count(context, REFINED, None)


def _count(context: PassContext, runs: Sequence[str], most: int | None) -> NDArray[np.uint64]:
    """Write the places of fingerprints with 2 to `most` rows; return those with more."""
    unit = context.unit
    tables, num_rows = [FINGERPRINTS.empty_table()], 0
    limit = context.memory_bytes // ROW_BYTES
    hot = np.empty(0, np.uint64)
    chunks = ((run, at) for run in runs for at in range(0, len(context.parts(run)), _CHUNK))
    for name, begin in chunks:
        table = context.read_shuffle(
            name, unit.low, unit.high, FINGERPRINTS, (begin, begin + _CHUNK)
        )
        if len(hot):
            table = table.filter(pa.array(~among(numbers(table.column("fp")), hot)))
        tables.append(table)
        num_rows += table.num_rows
        if most is not None and num_rows > limit:
            rows, hot = _drop_hot(pa.concat_tables(tables).combine_chunks(), hot, most)
            tables, num_rows = [rows], rows.num_rows
            limit = max(limit, 2 * num_rows)
    rows = pa.concat_tables(tables).combine_chunks()
    if most is not None:
        rows, hot = _drop_hot(rows, hot, most)
    fps = numbers(rows.column("fp"))
    sizes = group_sizes(fps)
    count_groups(context, sizes)
    chosen = np.flatnonzero(sizes > 1)
    column = {name: numbers(rows.column(name))[chosen] for name in rows.column_names}
    order = order_keys(column["key"])
    write(context, "places", PLACES, [column[name][order] for name in PLACES.names])
    return hot


def _drop_hot(
    rows: pa.Table, hot: NDArray[np.uint64], most: int
) -> tuple[pa.Table, NDArray[np.uint64]]:
    """Take out fingerprints with more than `most` rows; return the rest, and all hot ones."""
    fps = numbers(rows.column("fp"))
    is_hot = group_sizes(fps) > most
    if not is_hot.any():
        return rows, hot
    return rows.filter(pa.array(~is_hot)), np.union1d(hot, fps[is_hot])

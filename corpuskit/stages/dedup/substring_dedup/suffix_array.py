"""The published engine of substring_dedup: one suffix array over all that is compared.

    texts (cells)             symbols of documents, sorted by scope
    sort (ranges of scopes)   suffix array, equal windows, spans
    cell_spans                the spans of a cell's documents

All texts of a scope must fit into the memory of one task, about fourteen times.

Source: Lee et al. 2022, "Deduplicating Training Data Makes Language Models Better", section 4.1;
differs in that windows never cross documents, in that windows are found by the permuted
longest-common-prefix array, and in `keep: first`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from corpuskit.distribution import install_command
from corpuskit.errors import TaskError, UsageError
from corpuskit.formats.batch import numbers, utf8
from corpuskit.kernels.arrays import AnyArray, Bytes, Int64s
from corpuskit.kernels.substring.spans import (
    flag_all,
    flag_later,
    flagged_spans,
    link_windows,
    subtract_spans,
)
from corpuskit.stage import Cost, Pass, PassContext, PassPlan, Unit, Volume
from corpuskit.stages._routing import range_units
from corpuskit.stages.dedup._keep import GLOBAL
from corpuskit.stages.dedup.substring_dedup.symbols import (
    ENCODED_PER_SECOND,
    DocumentSpans,
    SubstringParameters,
    read_symbols,
    symbol_type,
)

_TEXTS = pa.schema(
    [
        ("scope", pa.uint64()),
        ("key", pa.int64()),
        ("rank", pa.uint8()),
        ("symbols", pa.large_binary()),
    ]
)
_SIZES = pa.schema([("scope", pa.uint64()), ("symbols", pa.int64())])
_SPANS = pa.schema([("key", pa.int64()), ("start", pa.int64()), ("end", pa.int64())])

_SEPARATOR = 0xFF  # in no UTF-8

_MAX_UNITS = 256


def require_library() -> Any:
    """Return the function that sorts suffixes.

    Raises:
        UsageError: pydivsufsort is not installed.
    """
    try:
        from pydivsufsort import divsufsort
    except ImportError:
        raise UsageError(
            "substring_dedup.engine: suffix_array needs pydivsufsort. "
            f"Run {install_command('suffix-array')}, or set engine: partitioned."
        ) from None
    return divsufsort


def bytes_each(search: SubstringParameters, num_symbols: int) -> int:
    """Return the memory per symbol: text as read, as laid out, suffixes, neighbours, flags."""
    if search.tokenizer is not None:
        return 48 if num_symbols < 1 << 29 else 84  # ids are sorted as four bytes each
    return 14 if num_symbols < 1 << 31 else 22


def passes(search: SubstringParameters) -> tuple[Pass, ...]:
    """Return all passes but the last, which calls `cell_spans`."""
    return (
        Pass("texts", partial(write_texts, search), is_cell_alone=True),
        Pass(
            "sort", partial(sort_range, search), partial(cut_scopes, search), done_with=("texts/",)
        ),
    )


def write_texts(search: SubstringParameters, context: PassContext) -> None:
    """Write the symbols of a cell's documents, but for those shorter than a window."""
    tables, sizes = [_TEXTS.empty_table()], [np.empty(0, np.int64)]
    for batch in read_symbols(search, context):
        lengths = np.diff(batch.offsets)
        rows = pa.array(np.flatnonzero(lengths >= search.window))
        width = batch.values.itemsize
        bounds, content = pa.py_buffer(batch.offsets * width), pa.py_buffer(batch.values)
        symbols = pa.Array.from_buffers(pa.large_binary(), len(lengths), [None, bounds, content])
        columns = [pa.array(batch.scopes), pa.array(batch.keys), pa.array(batch.ranks), symbols]
        tables.append(pa.Table.from_arrays(columns, schema=_TEXTS).take(rows))
        sizes.append(lengths[rows.to_numpy()])
    texts = pa.concat_tables(tables).combine_chunks()
    if texts.num_rows == 0:
        return
    lengths = np.concatenate(sizes)
    context.count("documents", len(lengths))
    context.count("symbols", int(lengths.sum()))
    scopes, scope_rows = np.unique(numbers(texts.column("scope")), return_inverse=True)
    totals = np.zeros(len(scopes), np.int64)
    np.add.at(totals, scope_rows, lengths + 1)
    context.write_shuffle("sizes", {"scope": scopes, "symbols": totals}, is_sorted=True)
    columns_by_name = {name: texts.column(name) for name in _TEXTS.names}
    context.write_shuffle("texts", columns_by_name, is_sorted=len(scopes) == 1)


def cut_scopes(search: SubstringParameters, plan: PassPlan) -> list[Unit]:
    """Return ranges of scopes; one unit if there is but one.

    Raises:
        TaskError: the texts don't fit the memory of a task.
    """
    counters = plan.counters("texts")
    total = counters.get("symbols", 0) + counters.get("documents", 0)
    needed_bytes = total * bytes_each(search, total)
    if search.scope == GLOBAL:
        _check_fits(search, total, plan.memory_bytes)
        return [Unit(0, low=0, high=1)]
    # Each task takes its scopes one after another, so only the largest must fit.
    num = min(max(-(-needed_bytes // plan.memory_bytes), 1), _MAX_UNITS)
    return range_units(num)


def sort_range(search: SubstringParameters, context: PassContext) -> None:
    """Find the spans in a range of scopes, each by a suffix array of its own.

    Raises:
        TaskError: the texts of a scope don't fit the memory of a task.
    """
    unit = context.unit
    sizes = context.read_shuffle("texts/sizes", unit.low, unit.high, _SIZES)
    scopes, scope_rows = np.unique(numbers(sizes.column("scope")), return_inverse=True)
    totals = np.zeros(len(scopes), np.int64)
    np.add.at(totals, scope_rows, numbers(sizes.column("symbols")))
    for total in totals.tolist():
        _check_fits(search, total, context.memory_bytes)
    spans = [DocumentSpans(*(np.empty(0, np.int64) for _ in range(3)))]
    for first, end in _groups(totals, context.memory_bytes // bytes_each(search, 0)):
        low, high = int(scopes[first]), int(scopes[end - 1]) + 1
        spans += _search_scopes(search, context.read_shuffle("texts/texts", low, high, _TEXTS))
    keys, starts, ends = (np.concatenate(arrays) for arrays in zip(*spans, strict=True))
    context.count("spans", len(keys))
    context.write_shuffle("spans", {"key": keys, "start": starts, "end": ends})


def cell_spans(search: SubstringParameters, context: PassContext) -> DocumentSpans:
    """Return the spans of the documents of this cell."""
    del search
    unit = context.unit
    rows = context.read_shuffle("sort/spans", unit.low, unit.high, _SPANS)
    keys, starts, ends = (numbers(column) for column in rows.columns)
    order = np.argsort(keys, kind="stable")  # all spans of a document come from one range
    return DocumentSpans(keys[order], starts[order], ends[order])


def cost(search: SubstringParameters, volume: Volume, pass_name: str) -> Cost:
    """Return what a pass needs."""
    is_text = search.tokenizer is None
    symbols = volume.text_bytes // (1 if is_text else 4)
    width = np.dtype(symbol_type(search)).itemsize
    if pass_name == "texts":
        return Cost(
            cpu_seconds=volume.text_bytes / (130e6 if is_text else ENCODED_PER_SECOND),
            unit_bytes=4 * volume.cell_bytes,
            disk_bytes=symbols * width + 25 * volume.documents,
        )
    size = symbols * bytes_each(search, symbols)
    is_global = search.scope == GLOBAL
    return Cost(
        cpu_seconds=volume.text_bytes / 8e6,
        unit_bytes=size if is_global else min(size, volume.task_memory_bytes),
        disk_bytes=24 * volume.documents,
        units=1 if is_global else min(-(-size // volume.task_memory_bytes), _MAX_UNITS) or 1,
        must_fit=is_global,
    )


def _check_fits(search: SubstringParameters, num_symbols: int, memory_bytes: int) -> None:
    size = num_symbols * bytes_each(search, num_symbols)
    if size > memory_bytes:
        raise TaskError(
            f"substring_dedup.sort: {num_symbols:,} symbols of one scope need {size:,} bytes in "
            f"one task, which may use {memory_bytes:,}. Set engine: partitioned, or "
            f"task_memory_bytes to {size} or more."
        )


def _groups(totals: Int64s, max_symbols: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of scopes that together have at most `max_symbols` symbols, or one scope."""
    first = size = 0
    for scope, total in enumerate(totals.tolist()):
        if scope > first and size + total > max_symbols:
            yield first, scope
            first, size = scope, 0
        size += total
    if len(totals):
        yield first, len(totals)


def _search_scopes(search: SubstringParameters, texts: pa.Table) -> Iterator[DocumentSpans]:
    """Yield the spans of each scope."""
    scopes, keys, ranks = (numbers(texts.column(name)) for name in ("scope", "key", "rank"))
    order = np.lexsort((keys, ranks, scopes))  # of equal windows the first in this order stays
    edges = np.flatnonzero(np.diff(scopes[order], prepend=~scopes[order[:1]]))
    offsets, content = utf8(texts.column("symbols").combine_chunks())
    width = np.dtype(symbol_type(search)).itemsize
    values, offsets = content.view(symbol_type(search)), offsets // width
    for begin, end in itertools.pairwise([*edges.tolist(), len(order)]):
        rows = order[begin:end]
        bounds, symbols = _lay_out(rows, offsets, values)
        flags, whole_flags = _flag_windows(search, bounds, symbols)
        docs, starts, ends = subtract_spans(
            *flagged_spans(flags, bounds, search.window),
            *flagged_spans(whole_flags, bounds, search.window),
        )
        yield DocumentSpans(keys[rows][docs], starts, ends)


def _lay_out(rows: Int64s, offsets: Int64s, values: AnyArray) -> tuple[Int64s, AnyArray]:
    """Return texts one after another, a separator after each: offsets and symbols."""
    separator = _SEPARATOR if values.itemsize == 1 else values.max() + np.uint32(1)
    sizes = np.diff(offsets)[rows] + 1
    bounds = np.append(0, np.cumsum(sizes))
    symbols = np.full(bounds[-1], separator, values.dtype)
    for row, start in zip(rows.tolist(), bounds[:-1].tolist(), strict=True):
        text = values[offsets[row] : offsets[row + 1]]
        symbols[start : start + len(text)] = text
    return bounds, symbols


def _flag_windows(
    search: SubstringParameters, bounds: Int64s, symbols: AnyArray
) -> tuple[Bytes, Bytes]:
    """Return which windows are cut, and which stay whole whatever overlaps them, (M,) each."""
    order = require_library()(symbols)
    flags = link_windows(symbols, bounds, order, search.window)
    whole_flags = np.zeros_like(flags)
    if search.keep == "none":
        flag_all(flags, order)
        return flags, whole_flags
    if search.keep == "whole":
        whole_flags = flags.copy()
        flag_all(whole_flags, order)
    flag_later(flags, order)
    return flags, (whole_flags > flags).view(np.uint8)

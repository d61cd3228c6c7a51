"""The second half of the partitioned engine: which windows are equal, symbol by symbol."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from corpuskit.formats.batch import numbers, utf8
from corpuskit.kernels.substring.compare import flag_windows
from corpuskit.kernels.substring.contexts import (
    Contexts,
    copy_contexts,
    find_equal,
    group_rows,
    group_sizes,
    order_keys,
)
from corpuskit.stages.dedup._partitioned_rows import (
    CONTEXTS,
    PLACES,
    SPANS,
    WINDOWS,
    combine,
    count_groups,
    merge_spans,
    routed,
    write,
)
from corpuskit.stages.dedup._symbols import symbol_type

if TYPE_CHECKING:
    from corpuskit.stage import PassContext
    from corpuskit.stages.dedup._spans import DocumentSpans
    from corpuskit.stages.dedup._symbols import Search


def gather_cell(search: Search, context: PassContext) -> None:
    """Write the contexts of a cell's places, each text once, and which of them repeat."""
    unit = context.unit
    runs = (routed(context, "count/places"), "recount/places")
    tables = [context.read_shuffle(run, unit.low, unit.high, PLACES) for run in runs]
    rows = pa.concat_tables(tables).combine_chunks()
    if rows.num_rows == 0:
        return
    found = combine(search, context, rows)
    write(context, "spans", SPANS, found.repeats)
    sizes = (found.columns["last"].astype(np.int64) + search.window) * found.width
    values = copy_contexts(found.begins, sizes, found.values)
    bounds = pa.py_buffer(np.append(0, np.cumsum(sizes)))
    symbols = pa.Array.from_buffers(
        pa.large_binary(), len(sizes), [None, bounds, pa.py_buffer(values)]
    )
    context.count("places", rows.num_rows)
    context.count("contexts", len(sizes))
    columns = [found.columns[name] for name in CONTEXTS.names[:-1]]
    write(context, "contexts", CONTEXTS, [*columns, symbols])


def compare_range(search: Search, context: PassContext) -> None:
    """Write which windows of a range of fingerprints are repeated."""
    unit = context.unit
    run = routed(context, "gather/contexts")
    rows = context.read_shuffle(run, unit.low, unit.high, CONTEXTS)
    if rows.num_rows == 0:
        return
    column = {name: numbers(rows.column(name)) for name in CONTEXTS.names[:-1]}
    width = np.dtype(symbol_type(search)).itemsize
    offsets, values = utf8(rows.column("symbols").combine_chunks())
    order = group_rows(column["fp"], column["rank"], column["key"], column["start"])
    contexts = Contexts(
        column["fp"][order], offsets[order], np.diff(offsets)[order],
        column["at"][order].astype(np.int64) * width,
    )  # fmt: skip
    count_groups(context, group_sizes(column["fp"]))
    first = find_equal(contexts, values)
    is_first = search.keep == "first"
    places, firsts, counts = flag_windows(
        contexts, first, values, search.window * width, width, is_first
    )
    keys = column["key"][order][places]
    starts = column["start"][order][places] + firsts.astype(np.uint32)
    by_key = order_keys(keys)
    columns = [keys[by_key], starts[by_key], (counts - 1).astype(np.uint16)[by_key]]
    write(context, "windows", WINDOWS, columns)


def cell_spans(search: Search, context: PassContext) -> DocumentSpans:
    """Return the spans of the documents of this cell."""
    unit = context.unit
    run = routed(context, "compare/windows")
    windows = context.read_shuffle(run, unit.low, unit.high, WINDOWS)
    keys, starts, lasts = (numbers(column) for column in windows.columns)
    found = [(keys, starts.astype(np.int64), starts + lasts.astype(np.int64) + search.window)]
    for name in ("winnow", "refine", "gather"):
        spans = context.read_shuffle(f"{name}/spans", unit.low, unit.high, SPANS)
        keys, starts, ends = (numbers(column) for column in spans.columns)
        found.append((keys, starts.astype(np.int64), ends.astype(np.int64)))
    return merge_spans(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

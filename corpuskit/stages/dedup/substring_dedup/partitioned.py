"""The engine of substring_dedup that is bounded in memory: fingerprints choose what to compare.

    winnow (cells)      one fingerprint for some L / 4 windows        fingerprints, spans
    count (ranges)      those that occur twice or more                places, hot
    refine (cells)      of hot ones: one for each window              fingerprints, spans
    recount (ranges)    those that occur twice or more                places
    gather (cells)      the symbols of their windows, no text twice   contexts, spans
    compare (ranges)    which windows are equal, symbol by symbol     windows
    cell_spans          the spans of a cell's documents

Equal windows have equal fingerprints, so all windows that equal one meet it in `compare`, with all
their symbols: spans are those of one suffix array over everything. A task holds one cell, or the
contexts of a range, never all texts.

A fingerprint is *hot* if more rows have it than a task should hold together (half a line that each
page of the web ends with). Hashes of whole windows replace it: windows that share one are equal
but for collisions, and come once per cell.

Between these are passes `route_<rows>` that merge rows if there are very many cells (`_routing`).
Rows name windows by the document's key and the position in it, so no number depends on how the work
was cut.

Source: Schleimer, Wilkerson, Aiken 2003 for the fingerprints; Lee et al. 2022 for the spans.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from corpuskit.errors import DataError
from corpuskit.formats.batch import numbers, utf8
from corpuskit.kernels.arrays import AnyArray, Bytes, Int64s, Uint32s, Uint64s, frozen
from corpuskit.kernels.substring.contexts import (
    Contexts,
    copy_contexts,
    find_equal,
    flag_windows,
    group_rows,
    group_sizes,
    hash_windows,
    order_hashes,
    order_keys,
)
from corpuskit.kernels.substring.spans import subtract_spans
from corpuskit.kernels.substring.winnow import MAX_SYMBOLS, gram_size, winnow
from corpuskit.stage import Cost, Pass, PassContext, PassPlan, Unit, Volume
from corpuskit.stages import _routing
from corpuskit.stages._numbers import among
from corpuskit.stages.dedup.substring_dedup.symbols import (
    DocumentSpans,
    SubstringParameters,
    Symbols,
    read_symbols,
    symbol_type,
)

_WINDOWS_OF = [("start", pa.uint32()), ("at", pa.uint16()), ("last", pa.uint16())]
FINGERPRINTS = pa.schema([("fp", pa.uint64()), ("key", pa.int64()), *_WINDOWS_OF])
"""One row per fingerprint: that of the windows `start` to `start + last` of the document, by a gram
that begins `at` symbols after `start` (kernels.substring.winnow)."""

PLACES = pa.schema([("key", pa.int64()), ("fp", pa.uint64()), *_WINDOWS_OF])
"""Fingerprints that occur twice or more, on their way back to the cells."""

REFINED = tuple(f"refine/fingerprints_{number}" for number in range(64))
"""Shuffle files of FINGERPRINTS that replace hot ones: slices of what a cell has."""

HOT = pa.schema([("fp", pa.uint64())])
CONTEXTS = pa.schema([*FINGERPRINTS, ("rank", pa.uint8()), ("symbols", pa.large_binary())])
SPANS = pa.schema(
    [("key", pa.int64()), ("start", pa.uint32()), ("end", pa.uint32()), ("kind", pa.uint8())]
)
"""Repeated windows: those that begin at `start`, `start + 1`, ... `end - 1`."""

WINDOWS = pa.schema(
    [("key", pa.int64()), ("start", pa.uint32()), ("last", pa.uint16()), ("kind", pa.uint8())]
)
"""Repeated windows `start` to `start + last`."""

_CUT, _ANY = 0, 1
"""Kinds of repeated windows: those that are cut; with `keep: whole`, those and the first ones.
Only `cell_spans` knows which is the first: the first of a cell may be a later one elsewhere."""

_MAX_OPENS = 1 << 27
"""Shuffle files that all ranges together may open without routing: hours of CPU, where there are
100 TB. Routing would write contexts, most of what is written, a second time."""


def passes(search: SubstringParameters) -> tuple[Pass, ...]:
    """Return all passes but the last, which calls `cell_spans`."""
    fingerprints, contexts, size = "winnow/fingerprints", "gather/contexts", context_bytes(search)
    places, windows = "count/places", "compare/windows"
    to_cells = partial(_routing.route_to_cells, row_bytes=ROW_BYTES)

    def route(file: str, schema: pa.Schema, units: Callable[[PassPlan], list[Unit]]) -> Pass:
        # `refine` reads the fingerprints of its cell from the file that `winnow` wrote.
        return _routing.route_pass(
            search, {file: schema}, units, done_with=() if file == fingerprints else None
        )

    return (
        Pass("winnow", partial(winnow_cell, search), is_cell_alone=True),
        route(fingerprints, FINGERPRINTS, partial(_routes_to_ranges, fingerprints, ROW_BYTES)),
        Pass(
            "count",
            partial(count_range, search),
            partial(_ranges, fingerprints, ROW_BYTES),
            done_with=("route_fingerprints/",),
        ),
        Pass(
            "refine",
            partial(refine_cell, search),
            _cells_if_hot,
            done_with=("winnow/fingerprints", "count/hot"),
        ),
        Pass("recount", partial(recount_range, search), _refined_ranges, done_with=REFINED),
        route(places, PLACES, partial(to_cells, file=places)),
        Pass(
            "gather",
            partial(gather_cell, search),
            done_with=("winnow/fingerprints", "count/", "recount/", "route_places/"),
        ),
        route(contexts, CONTEXTS, partial(_routes_to_ranges, contexts, size)),
        Pass(
            "compare",
            partial(compare_range, search),
            partial(_ranges, contexts, size),
            done_with=("gather/contexts", "route_contexts/"),
        ),
        route(windows, WINDOWS, partial(to_cells, file=windows)),
    )


def _ranges(file: str, row_bytes: int, plan: PassPlan) -> list[Unit]:
    """Return ranges of hashes of which a task can hold one; none if there are no rows."""
    return _routing.hash_units(plan, file, row_bytes) if plan.parts(file) else []


def _refined_ranges(plan: PassPlan) -> list[Unit]:
    """Return ranges of window hashes, each small enough for a task; [] without refined rows."""
    rows = sum(part.rows for run in REFINED for part in plan.parts(run))
    return _routing.range_units(-(-rows // max(plan.memory_bytes // ROW_BYTES, 1))) if rows else []


def _cells_if_hot(plan: PassPlan) -> list[Unit]:
    return plan.cells() if plan.counters("count").get("hot") else []


def _routes_to_ranges(file: str, row_bytes: int, plan: PassPlan) -> list[Unit]:
    ranges = _ranges(file, row_bytes, plan)
    return _routing.route_to_ranges(plan, file, ranges, row_bytes, _MAX_OPENS)


_REPEATED, _DISTINCT = 0.35, 0.2
"""Shares of the fingerprints: those that occur twice, and those whose contexts are compared.
113 MB of technical English, a quarter of it in repeats of 250 bytes, have 0.26 and 0.15."""


def cost(search: SubstringParameters, volume: Volume, pass_name: str) -> Cost:
    """Return what one of `passes` needs."""
    has_bytes = search.tokenizer is None
    width = np.dtype(symbol_type(search)).itemsize
    spacing = max((search.window - gram_size(search.window)) // 2, 1)
    rows = volume.text_bytes // (1 if has_bytes else 4) // spacing
    contexts = int(rows * _DISTINCT)
    size = (search.window + spacing) * width + 29
    in_cell = volume.cell_bytes / max(volume.text_bytes, 1)
    reading = volume.text_bytes / (300e6 if has_bytes else 2.2e6)
    if pass_name == "winnow":
        memory = (64 << 20) + int(in_cell * rows * 100)
        return Cost(reading + volume.text_bytes / 160e6, unit_bytes=memory, disk_bytes=24 * rows)
    if pass_name == "count":
        disk = int(24 * rows * _REPEATED)
        return _routing.cost_of_ranges(volume, rows, ROW_BYTES, rows / 7e6, disk)
    if pass_name == "gather":
        cpu = reading + rows * _REPEATED / 1.5e6
        memory = 2 * width * volume.cell_bytes + int(in_cell * rows * _REPEATED * 150)
        memory += int(in_cell * 2 * contexts * size)
        return Cost(cpu, unit_bytes=memory, disk_bytes=contexts * size)
    if pass_name == "compare":
        memory = context_bytes(search)
        return _routing.cost_of_ranges(volume, contexts, memory, contexts / 0.6e6, 4 * contexts)
    return _cost_of_routes(volume, pass_name, rows, contexts, size)


def _cost_of_routes(volume: Volume, pass_name: str, rows: int, contexts: int, size: int) -> Cost:
    """Return what a routing pass needs; nothing for hot fingerprints, whose number is unknown."""
    count_ranges = _routing.num_ranges(rows, ROW_BYTES, volume.task_memory_bytes)
    compare_ranges = _routing.num_ranges(contexts, size * 2 + 200, volume.task_memory_bytes)
    repeated = int(rows * _REPEATED)
    routes = {
        "route_fingerprints": (rows, 24, count_ranges, _MAX_OPENS),
        "route_places": (repeated, 24, count_ranges, _routing.MAX_OPENS),
        "route_contexts": (contexts, size, compare_ranges, _MAX_OPENS),
        "route_windows": (contexts // 2, 14, compare_ranges, _routing.MAX_OPENS),
    }
    rows_moved, row_bytes, ranges, max_opens = routes.get(pass_name, (0, 0, 0, 0))
    disk = rows_moved * row_bytes
    cpu = rows_moved / 3e6 + disk / 300e6
    return _routing.cost_of_route(volume, ranges, 4 * disk, cpu, disk, max_opens)


# ---------------------------------------------------------------- which windows may be equal


ROW_BYTES = 110
"""Memory of a fingerprint while it is counted."""

_CHUNK = 16
"""Producers whose fingerprints are read at a time: of hot ones only these are held."""

_HOT_ROWS = 1 << 18
"""The most rows of a fingerprint that are compared as they are."""


def winnow_cell(search: SubstringParameters, context: PassContext) -> None:
    """Write the fingerprints of a cell's documents, and what repeats within periodic text."""
    rows: list[tuple[NDArray[np.generic], ...]] = []
    spans: list[tuple[NDArray[np.generic], ...]] = []
    for batch in read_symbols(search, context):
        sizes = np.diff(batch.offsets)
        if len(sizes) and sizes.max() > MAX_SYMBOLS:
            longest = int(sizes.argmax())
            raise DataError(
                f"document {batch.keys[longest]}: {sizes[longest]:,} symbols; substring_dedup "
                f"takes {MAX_SYMBOLS:,}. Set max_document_bytes."
            )
        for kind, is_first in _kinds(search):
            fps, repeats = winnow(
                batch.offsets, batch.values, batch.scopes, search.window, keep_first=is_first
            )
            ends = repeats.ends - (search.window - 1)
            kinds = np.full(len(ends), kind, np.uint8)
            spans.append((batch.keys[repeats.docs], repeats.starts, ends, kinds))
        rows.append((fps.fps, batch.keys[fps.docs], fps.starts, fps.gram_offsets, fps.lasts))
    if not rows:
        return
    columns = [np.concatenate(arrays) for arrays in zip(*rows, strict=True)]
    order = order_hashes(columns[0])
    context.count("fingerprints", len(order))
    write(context, "fingerprints", FINGERPRINTS, [column[order] for column in columns])
    columns = [np.concatenate(arrays) for arrays in zip(*spans, strict=True)]
    write(context, "spans", SPANS, _merge_kinds(columns))


def count_range(search: SubstringParameters, context: PassContext) -> None:
    """Write the fingerprints that occur more than once, and which ones are hot."""
    max_rows = min(_HOT_ROWS, context.memory_bytes // (4 * context_bytes(search)))
    hot = _count(context, [_routing.routed_file(context, "winnow/fingerprints")], max(max_rows, 2))
    context.count("hot", len(hot))
    context.write_shuffle("hot", {"fp": hot}, is_sorted=True)


def refine_cell(search: SubstringParameters, context: PassContext) -> None:
    """Write a row for each window of a cell whose fingerprint is hot, no text twice.

    A slice of the windows at a time, so that a cell may consist of them.
    """
    rows = _routing.read_own_rows(context, "winnow/fingerprints", FINGERPRINTS)
    if rows.num_rows == 0:
        return
    hot = numbers(context.read_shuffle("count/hot", None, None, HOT).column(0))
    rows = rows.filter(pa.array(among(numbers(rows.column("fp")), hot)))
    if rows.num_rows == 0:
        return
    combined = combine(search, context, rows)
    ends = np.cumsum(combined.columns["last"].astype(np.int64) + 1)
    max_windows = max(context.memory_bytes // (4 * ROW_BYTES), -(-int(ends[-1]) // len(REFINED)), 1)
    cuts = np.searchsorted(ends, np.arange(max_windows, int(ends[-1]), max_windows))
    edges = sorted({0, *(cuts + 1).tolist(), len(ends)})
    spans = [combined.repeats]
    for file, (begin, end) in zip(REFINED, itertools.pairwise(edges), strict=False):
        spans.append(_write_windows(search, context, combined, slice(begin, end), file))
    columns = [np.concatenate(arrays) for arrays in zip(*spans, strict=True)]
    write(context, "spans", SPANS, _merge_kinds(columns))


def _write_windows(
    search: SubstringParameters, context: PassContext, combined: Combined, rows: slice, file: str
) -> list[AnyArray]:
    """Write the windows of some contexts, equal ones once; return those of them that repeat."""
    width = combined.width
    size = search.window * width
    begins, columns = combined.begins[rows], {n: c[rows] for n, c in combined.columns.items()}
    fps, contexts, shifts = hash_windows(
        begins, columns["last"], combined.values, size, width, columns["fp"]
    )
    order = order_hashes(fps)  # stable: of equal windows the first comes first
    fps, contexts, shifts = fps[order], contexts[order], shifts[order]
    keys, starts = columns["key"][contexts], columns["start"][contexts] + shifts.astype(np.uint32)
    sizes, nothing = np.full(len(order), size), np.zeros(len(order), np.int64)
    windows = Contexts(fps, begins[contexts] + shifts * width, sizes, nothing)
    first = find_equal(windows, combined.values)
    is_first = first == np.arange(len(first))
    rows_of_windows = (fps, keys, starts, nothing, nothing)  # `at` and `last` of one window are 0
    firsts = [column[is_first] for column in rows_of_windows]
    write(context, file.removeprefix("refine/"), FINGERPRINTS, firsts)
    return repeated_spans(search, first, keys, starts, sizes // width)


def recount_range(search: SubstringParameters, context: PassContext) -> None:
    """Write the windows of hot fingerprints that occur more than once."""
    del search
    _count(context, REFINED, None)


def _count(context: PassContext, files: Sequence[str], max_rows: int | None) -> Uint64s:
    """Write the rows of fingerprints with 2 to `max_rows` rows; return fingerprints with more."""
    unit = context.unit
    tables, num_rows = [FINGERPRINTS.empty_table()], 0
    limit = context.memory_bytes // ROW_BYTES
    hot = np.empty(0, np.uint64)
    chunks = ((f, first) for f in files for first in range(0, len(context.parts(f)), _CHUNK))
    for file, first in chunks:
        table = context.read_shuffle(
            file, unit.low, unit.high, FINGERPRINTS, (first, first + _CHUNK)
        )
        if len(hot):
            table = table.filter(pa.array(~among(numbers(table.column("fp")), hot)))
        tables.append(table)
        num_rows += table.num_rows
        if max_rows is not None and num_rows > limit:
            rows, hot = _drop_hot(pa.concat_tables(tables).combine_chunks(), hot, max_rows)
            tables, num_rows = [rows], rows.num_rows
            limit = max(limit, 2 * num_rows)
    rows = pa.concat_tables(tables).combine_chunks()
    if max_rows is not None:
        rows, hot = _drop_hot(rows, hot, max_rows)
    fps = numbers(rows.column("fp"))
    sizes = group_sizes(fps)
    count_groups(context, sizes)
    repeated = np.flatnonzero(sizes > 1)
    column = {name: numbers(rows.column(name))[repeated] for name in rows.column_names}
    order = order_keys(column["key"])
    write(context, "places", PLACES, [column[name][order] for name in PLACES.names])
    return hot


def _drop_hot(rows: pa.Table, hot: Uint64s, max_rows: int) -> tuple[pa.Table, Uint64s]:
    """Take out fingerprints with more than `max_rows` rows; return the rest, and all hot ones."""
    fps = numbers(rows.column("fp"))
    is_hot = group_sizes(fps) > max_rows
    if not is_hot.any():
        return rows, hot
    return rows.filter(pa.array(~is_hot)), np.union1d(hot, fps[is_hot])


# ---------------------------------------------------------------- which windows are equal


def gather_cell(search: SubstringParameters, context: PassContext) -> None:
    """Write the contexts of a cell's fingerprints, each text once, and which of them repeat."""
    unit = context.unit
    files = (_routing.routed_file(context, "count/places"), "recount/places")
    tables = [context.read_shuffle(file, unit.low, unit.high, PLACES) for file in files]
    rows = pa.concat_tables(tables).combine_chunks()
    if rows.num_rows == 0:
        return
    combined = combine(search, context, rows)
    write(context, "spans", SPANS, combined.repeats)
    sizes = (combined.columns["last"].astype(np.int64) + search.window) * combined.width
    values = copy_contexts(combined.begins, sizes, combined.values)
    bounds = pa.py_buffer(np.append(0, np.cumsum(sizes)))
    symbols = pa.Array.from_buffers(
        pa.large_binary(), len(sizes), [None, bounds, pa.py_buffer(values)]
    )
    context.count("places", rows.num_rows)
    context.count("contexts", len(sizes))
    columns = [combined.columns[name] for name in CONTEXTS.names[:-1]]
    write(context, "contexts", CONTEXTS, [*columns, symbols])


def compare_range(search: SubstringParameters, context: PassContext) -> None:
    """Write which windows of a range of fingerprints are repeated."""
    unit = context.unit
    file = _routing.routed_file(context, "gather/contexts")
    rows = context.read_shuffle(file, unit.low, unit.high, CONTEXTS)
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
    rows_of_kinds = []
    for kind, is_first in _kinds(search):
        repeated, firsts, counts = flag_windows(
            contexts, first, values, search.window * width, width, is_first
        )
        starts = column["start"][order][repeated] + firsts.astype(np.uint32)
        lasts = (counts - 1).astype(np.uint16)
        kinds = np.full(len(repeated), kind, np.uint8)
        rows_of_kinds.append((column["key"][order][repeated], starts, lasts, kinds))
    columns = [np.concatenate(arrays) for arrays in zip(*rows_of_kinds, strict=True)]
    key_order = order_keys(columns[0])
    write(context, "windows", WINDOWS, [values[key_order] for values in columns])


def cell_spans(search: SubstringParameters, context: PassContext) -> DocumentSpans:
    """Return the spans of the documents of this cell."""
    unit = context.unit
    file = _routing.routed_file(context, "compare/windows")
    windows = context.read_shuffle(file, unit.low, unit.high, WINDOWS)
    keys, starts, lasts, kinds = (numbers(column) for column in windows.columns)
    pieces = [(keys, starts.astype(np.int64), starts + lasts.astype(np.int64) + 1, kinds)]
    for name in ("winnow", "refine", "gather"):
        spans = context.read_shuffle(f"{name}/spans", unit.low, unit.high, SPANS)
        keys, starts, ends, kinds = (numbers(column) for column in spans.columns)
        pieces.append((keys, starts.astype(np.int64), ends.astype(np.int64), kinds))
    columns = [np.concatenate(arrays) for arrays in zip(*pieces, strict=True)]
    cuts, repeated = (_of_kind(columns, kind) for kind in (_CUT, _ANY))
    first = DocumentSpans(*subtract_spans(*repeated, *cuts))
    cuts, first = (
        merge_spans(runs.keys, runs.starts, runs.ends + search.window - 1) for runs in (cuts, first)
    )
    return DocumentSpans(*subtract_spans(*cuts, *first))


# ---------------------------------------------------------------- rows


_LARGE = 64
"""Fewest rows of a group that is counted as large."""


def context_bytes(search: SubstringParameters) -> int:
    """Return the memory of a context while it is compared: read, joined, flags, outcome."""
    symbols = search.window + search.window // 4
    size = 2 * symbols * np.dtype(symbol_type(search)).itemsize + search.window // 4 + 300
    return size * 4 // 3  # a quarter of the memory is left for one group above the average


class Combined(NamedTuple):
    """Contexts of a cell, those of equal text once.

    Attributes:
        columns: of the first of equal ones, as in CONTEXTS, sorted by `fp`.
        begins: their first byte in `values`.
        values: the texts of the cell.
        width: bytes of a symbol.
        repeats: windows of those that are left out, or of all that are not alone, as in SPANS.
    """

    columns: dict[str, AnyArray]
    begins: Int64s
    values: Bytes
    width: int
    repeats: list[AnyArray]


def combine(search: SubstringParameters, context: PassContext, rows: pa.Table) -> Combined:
    """Find contexts of equal text in a cell.

    Args:
        rows: with the columns of FINGERPRINTS.

    Raises:
        DataError: a row is of a document that the cell does not have.
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
    data = frozen(cell.values.view(np.uint8))
    first = find_equal(Contexts(column["fp"], begins, lengths * width, ats), data)
    repeats = repeated_spans(search, first, column["key"], column["start"], lengths)
    is_first = first == np.arange(len(first))
    first_columns = {name: values[is_first] for name, values in column.items()}
    return Combined(first_columns, begins[is_first], data, width, repeats)


def _read_cell(search: SubstringParameters, context: PassContext) -> Symbols:
    """Return all documents of a cell; scopes are in the fingerprints already."""
    batches = list(read_symbols(search, context))
    pieces: list[AnyArray] = [b.values[b.offsets[0] : b.offsets[-1]] for b in batches]
    values: Any = np.concatenate(pieces)
    sizes = np.concatenate([np.diff(batch.offsets) for batch in batches])
    return Symbols(
        np.concatenate([batch.keys for batch in batches]),
        np.append(0, np.cumsum(sizes)),
        values,
        np.empty(0, np.uint64),
        np.concatenate([batch.ranks for batch in batches]),
    )


def repeated_spans(
    search: SubstringParameters, first: Int64s, keys: Int64s, starts: Uint32s, lengths: Int64s
) -> list[AnyArray]:
    """Return the windows of contexts that equal another one, as in SPANS.

    Args:
        first: (R,) the first context that equals each, as `find_equal` returns it.
        keys, starts, lengths: (R,) document of each context, and its symbols there.
    """
    pieces = []
    for kind, is_first in _kinds(search):
        is_repeated = first != np.arange(len(first))
        if not is_first:
            is_repeated[first[is_repeated]] = True
        begins = starts[is_repeated].astype(np.int64)
        ends = begins + lengths[is_repeated] - (search.window - 1)
        pieces.append((keys[is_repeated], begins, ends, np.full(len(begins), kind, np.uint8)))
    return _merge_kinds([np.concatenate(arrays) for arrays in zip(*pieces, strict=True)])


def _kinds(search: SubstringParameters) -> tuple[tuple[int, bool], ...]:
    """Return the kinds of windows to find, and for each whether it leaves the first one out."""
    if search.keep == "whole":
        return (_CUT, True), (_ANY, False)
    return ((_CUT, search.keep == "first"),)


def _of_kind(columns: Sequence[AnyArray], kind: int) -> DocumentSpans:
    """Return runs of windows of a kind, as in SPANS, sorted and joined."""
    keys, starts, ends, kinds = columns
    is_kind = kinds == kind
    return merge_spans(keys[is_kind], starts[is_kind], ends[is_kind])


def _merge_kinds(columns: Sequence[AnyArray]) -> list[AnyArray]:
    """Return runs of windows sorted and joined, those of each kind apart; columns of SPANS."""
    runs_of_kinds = [_of_kind(columns, kind) for kind in (_CUT, _ANY)]
    kinds = np.repeat(np.array([_CUT, _ANY], np.uint8), [len(runs.keys) for runs in runs_of_kinds])
    runs_joined = [np.concatenate(arrays) for arrays in zip(*runs_of_kinds, strict=True)]
    order = order_keys(runs_joined[0])
    return [values[order] for values in (*runs_joined, kinds)]


def merge_spans(keys: Int64s, starts: Int64s, ends: Int64s) -> DocumentSpans:
    """Sort spans and join those that touch. O(S)."""
    order = order_keys(starts)
    order = order[order_keys(keys[order])]
    keys, starts, ends = keys[order], starts[order], ends[order]
    docs = np.cumsum(np.diff(keys, prepend=keys[:1]) != 0)
    # Documents are 2**33 apart, and none is as long, so ends in other documents don't matter.
    reach = np.maximum.accumulate(docs << 33 | ends) if len(ends) else ends
    opens = np.flatnonzero(np.append(True, (docs << 33 | starts)[1:] > reach[:-1])[: len(keys)])
    closes = np.append(opens[1:], len(keys)) - 1 if len(keys) else opens
    return DocumentSpans(keys[opens], starts[opens], reach[closes] & ((1 << 33) - 1))


def count_groups(context: PassContext, sizes: Int64s) -> None:
    """Count large groups by powers of two; `sizes` has that of its group for each row."""
    groups = np.bincount(sizes[sizes >= _LARGE])
    for size in np.flatnonzero(groups).tolist():
        context.count(f"groups_of_{1 << (size.bit_length() - 1)}", int(groups[size]) // size)


def write(
    context: PassContext, name: str, schema: pa.Schema, columns: Sequence[AnyArray | pa.Array]
) -> None:
    """Write a shuffle file whose rows are sorted."""
    arrays = [pa.array(column, field.type) for field, column in zip(schema, columns, strict=True)]
    context.write_shuffle(name, dict(zip(schema.names, arrays, strict=True)), is_sorted=True)

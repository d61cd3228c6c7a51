"""The engine of substring_dedup that is bounded in memory: fingerprints choose what must meet.

    winnow (cells)      one fingerprint for some L / 4 windows        fingerprints, spans
    count (ranges)      those that occur twice or more                places, hot
    refine (cells)      of hot ones: one for each window              fingerprints, spans
    recount (ranges)    those that occur twice or more                places
    gather (cells)      the symbols of their windows, no text twice   contexts, spans
    compare (ranges)    which windows are equal, symbol by symbol     windows
    cell_spans          what all of these found about a cell

Equal windows have equal fingerprints, so all windows that equal one meet it in `compare`, with all
their symbols: spans are those of one suffix array over everything. A task holds one cell, or the
contexts of a range, never all texts.

A fingerprint is *hot* if more rows have it than a task should hold together (half a line that each
page of the web ends with). Hashes of whole windows stand in for it: what shares one is equal but
for collisions, and comes once per cell.

Between these are passes that have nothing to do but where there are very many cells (`_routing`).
The stage has a method for each function here that `passes` names.

Source: Schleimer, Wilkerson, Aiken 2003 for the fingerprints; Lee et al. 2022 for the spans.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.formats.shuffle_files import hash_ranges
from corpuskit.kernels.substring.winnow import gram_size
from corpuskit.stage import Cost, Pass, Unit
from corpuskit.stages import _routing
from corpuskit.stages.dedup import _clusters
from corpuskit.stages.dedup._partitioned_compare import cell_spans, compare_range, gather_cell
from corpuskit.stages.dedup._partitioned_count import (
    ROW_BYTES,
    count_range,
    recount_range,
    refine_cell,
    winnow_cell,
)
from corpuskit.stages.dedup._partitioned_rows import (
    CONTEXTS,
    FINGERPRINTS,
    PLACES,
    REFINED,
    WINDOWS,
    context_bytes,
)
from corpuskit.stages.dedup._symbols import symbol_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from corpuskit.stage import PassContext, PassPlan, Volume
    from corpuskit.stages.dedup._symbols import Search

__all__ = [
    "cell_spans",
    "compare_range",
    "cost",
    "count_range",
    "gather_cell",
    "passes",
    "recount_range",
    "refine_cell",
    "route_contexts",
    "route_fingerprints",
    "route_places",
    "route_windows",
    "winnow_cell",
]

_MAX_OPENS = 1 << 27
"""Runs that all ranges together may open: hours of CPU, where there are 100 TB. To merge what
cells have for them first is to write contexts, most of what is written, once more."""


def passes(stage: Search) -> tuple[Pass, ...]:
    """Return all passes but the last, which asks for `cell_spans`.

    Args:
        stage: has methods that are named like the functions above, and call them.
    """

    def method(name: str, units: Callable[[PassPlan], list[Unit]] | None = None) -> Pass:
        return Pass(name.removesuffix("_cell").removesuffix("_range"), getattr(stage, name), units)

    cut = functools.partial
    fingerprints = "winnow/fingerprints"
    held = context_bytes(stage)
    return (
        method("winnow_cell"),
        method("route_fingerprints", cut(_routes_to_ranges, fingerprints, ROW_BYTES)),
        method("count_range", cut(_ranges, fingerprints, ROW_BYTES)),
        method("refine_cell", _cells_if_hot),
        method("recount_range", _refined_ranges),
        method("route_places", cut(_routes_to_cells, "count/places")),
        method("gather_cell"),
        method("route_contexts", cut(_routes_to_ranges, "gather/contexts", held)),
        method("compare_range", cut(_ranges, "gather/contexts", held)),
        method("route_windows", cut(_routes_to_cells, "compare/windows")),
    )


def route_fingerprints(context: PassContext) -> None:
    """Merge the fingerprints that some cells have in some ranges."""
    _routing.route(context, "winnow/fingerprints", "fingerprints", FINGERPRINTS)


def route_places(context: PassContext) -> None:
    """Merge the places that some ranges have found in some cells."""
    _routing.route(context, "count/places", "places", PLACES)


def route_contexts(context: PassContext) -> None:
    """Merge the contexts that some cells have in some ranges."""
    _routing.route(context, "gather/contexts", "contexts", CONTEXTS)


def route_windows(context: PassContext) -> None:
    """Merge the windows that some ranges have found in some cells."""
    _routing.route(context, "compare/windows", "windows", WINDOWS)


def _ranges(run: str, row_bytes: int, plan: PassPlan) -> list[Unit]:
    """Return ranges of hashes of which a task can hold one; none if there are no rows."""
    return _clusters.hash_units(plan, run, row_bytes) if plan.parts(run) else []


def _refined_ranges(plan: PassPlan) -> list[Unit]:
    """Return ranges of hashes of windows of which a task can hold one; none if there are none."""
    rows = sum(part.rows for run in REFINED for part in plan.parts(run))
    ranges = hash_ranges(-(-rows // max(plan.memory_bytes // ROW_BYTES, 1))) if rows else []
    return [Unit(number, low=low, high=high) for number, (low, high) in enumerate(ranges)]


def _cells_if_hot(plan: PassPlan) -> list[Unit]:
    """Return all cells if any fingerprint is hot, else none."""
    return plan.cells() if plan.counters("count").get("hot") else []


def _routes_to_ranges(run: str, row_bytes: int, plan: PassPlan) -> list[Unit]:
    """Return the pieces of a second level between cells and ranges, none if it is not worth it."""
    parts, ranges = plan.parts(run), _ranges(run, row_bytes, plan)
    if len(parts) * len(ranges) <= _MAX_OPENS:
        return []
    each = sum(part.rows for part in parts) // len(ranges) + 1
    ranges = [dataclasses.replace(unit, rows=each) for unit in ranges]
    return _routing.cut_routes(parts, ranges, row_bytes, plan.memory_bytes)


def _routes_to_cells(run: str, plan: PassPlan) -> list[Unit]:
    """Return the pieces of a second level between ranges and cells, none if it is not worth it."""
    cells = [Unit(c.number, "", c.low, c.high, c.rows) for c in plan.cells()]
    return _routing.cut_routes(plan.parts(run), cells, ROW_BYTES, plan.memory_bytes)


_REPEATED, _DISTINCT = 0.35, 0.2
"""Shares of the fingerprints: those that occur twice, and those whose contexts are compared.
113 MB of technical English, a quarter of it in repeats of 250 bytes, have 0.26 and 0.15."""


def cost(search: Search, volume: Volume, pass_name: str) -> Cost:
    """Return what one of `passes` needs."""
    has_bytes = search.tokenizer is None
    width = np.dtype(symbol_type(search)).itemsize
    apart = max((search.window - gram_size(search.window)) // 2, 1)
    rows = volume.text_bytes // (1 if has_bytes else 4) // apart
    contexts = int(rows * _DISTINCT)
    size = (search.window + apart) * width + 29
    in_cell = volume.cell_bytes / max(volume.text_bytes, 1)
    reading = volume.text_bytes / (300e6 if has_bytes else 2.2e6)
    if pass_name == "winnow":
        held = (64 << 20) + int(in_cell * rows * 100)
        return Cost(reading + volume.text_bytes / 160e6, unit_bytes=held, disk_bytes=24 * rows)
    if pass_name == "count":
        disk = int(24 * rows * _REPEATED)
        return _cost_of_ranges(volume, rows, ROW_BYTES, rows / 7e6, disk)
    if pass_name == "gather":
        cpu = reading + rows * _REPEATED / 1.5e6
        held = 2 * width * volume.cell_bytes + int(in_cell * rows * _REPEATED * 150)
        held += int(in_cell * 2 * contexts * size)
        return Cost(cpu, unit_bytes=held, disk_bytes=contexts * size)
    if pass_name == "compare":
        held = context_bytes(search)
        return _cost_of_ranges(volume, contexts, held, contexts / 0.6e6, 4 * contexts)
    return _cost_of_routes(volume, pass_name, rows, contexts, size)


def _cost_of_ranges(volume: Volume, rows: int, row_bytes: int, cpu: float, disk: int) -> Cost:
    """Return what a pass over ranges of hashes needs."""
    num = _num_ranges(volume, rows, row_bytes)
    return Cost(cpu, unit_bytes=-(-rows // num) * row_bytes, disk_bytes=disk, units=num)


def _num_ranges(volume: Volume, rows: int, row_bytes: int) -> int:
    each = min(max(volume.task_memory_bytes // row_bytes, 1), _clusters.RANGE_ROWS)
    return max(-(-rows // each), 1)


def _cost_of_routes(volume: Volume, pass_name: str, rows: int, contexts: int, size: int) -> Cost:
    """Return what a second level of the exchange needs, where there is one.

    Nothing for hot fingerprints: how many there will be nobody can know.
    """
    counted = _num_ranges(volume, rows, ROW_BYTES)
    compared = _num_ranges(volume, contexts, size * 2 + 200)
    repeated = int(rows * _REPEATED)
    routes = {
        "route_fingerprints": (rows, 24, counted, _MAX_OPENS),
        "route_places": (repeated, 24, counted, _routing.MAX_OPENS),
        "route_contexts": (contexts, size, compared, _MAX_OPENS),
        "route_windows": (contexts // 2, 14, compared, _routing.MAX_OPENS),
    }
    moved, row_bytes, ranges, most = routes.get(pass_name, (0, 0, 0, 0))
    if volume.cells * ranges <= most:
        return Cost(units=0)
    disk = moved * row_bytes
    held = min(4 * disk, volume.task_memory_bytes)
    return Cost(
        moved / 3e6 + disk / 300e6,
        unit_bytes=held,
        disk_bytes=disk,
        units=max(4 * disk // volume.task_memory_bytes, 1),
    )

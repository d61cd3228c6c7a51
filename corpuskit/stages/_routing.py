"""How global stages cut work: ranges of hashes, and a second level of the shuffle.

A consumer that asks for a narrow range opens every shuffle file that may hold it. With P producers
and C consumers that is P x C small reads: fine for hundreds, hopeless for 100,000 cells, where the
last pass of dedup and the shuffle would open 1e10 files. Above MAX_OPENS a pass in between merges
what a group of producers has in a range of consumers, for G groups and R ranges, as many as the
memory of a task asks for. That takes R x P opens to write and G x C to read, so G and R are about
equal. Below, the pass has nothing to do. The rows that a consumer gets are the same.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.formats.shuffle_files import hash_ranges
from corpuskit.stage import Cost, Parameters, Pass, PassContext, PassPlan, Unit, Volume

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from corpuskit.formats.manifest import Part

MAX_OPENS = 1 << 20
"""Shuffle files that all consumers together may open without a second level: minutes of CPU."""

RANGE_ROWS = 1 << 24
"""The most rows of a hash range, whatever the memory: seconds of work for one task."""

ROUTED = "routed"


def hash_units(plan: PassPlan, run: str, row_bytes: int, reference_rows: int = 0) -> list[Unit]:
    """Cut the rows of a shuffle file into hash ranges that a task can hold; at least one.

    Args:
        run: `<pass>/<file>`, whose first column is an evenly spread uint64.
        row_bytes: memory that a task needs per row.
        reference_rows: of reference runs, which are read by the same ranges.
    """
    rows = sum(part.rows for part in plan.parts(run)) + reference_rows
    rows_each = min(max(plan.memory_bytes // row_bytes, 1), RANGE_ROWS)
    return range_units(max(-(-rows // rows_each), 1))


def range_units(num: int) -> list[Unit]:
    """Return units that divide all hashes into `num` ranges."""
    ranges = hash_ranges(num)
    return [Unit(number, low=low, high=high) for number, (low, high) in enumerate(ranges)]


def cost_of_ranges(volume: Volume, rows: int, row_bytes: int, cpu: float, disk: int) -> Cost:
    """Return what a pass over hash ranges needs.

    Args:
        volume: what is read.
        rows: of all ranges.
        row_bytes: memory of a row.
        cpu: CPU seconds of all.
        disk: bytes written.
    """
    num = num_ranges(volume, rows, row_bytes)
    return Cost(cpu, unit_bytes=-(-rows // num) * row_bytes, disk_bytes=disk, units=num)


def num_ranges(volume: Volume, rows: int, row_bytes: int) -> int:
    """Return how many ranges `hash_units` cuts these rows into."""
    return max(-(-rows // min(max(volume.task_memory_bytes // row_bytes, 1), RANGE_ROWS)), 1)


def cost_of_route(volume: Volume, consumers: int, size: int, cpu: float, disk: int) -> Cost:
    """Return what a second level needs between the cells and some consumers; nothing if it is idle.

    Args:
        volume: what is read.
        consumers: how many there are.
        size: bytes of memory of all rows.
        cpu: CPU seconds of all.
        disk: bytes written.
    """
    if volume.cells * consumers <= MAX_OPENS:
        return Cost(units=0)
    memory = min(volume.task_memory_bytes, size)
    return Cost(cpu, unit_bytes=memory, disk_bytes=disk, units=max(-(-size // max(memory, 1)), 1))


def cut_routes(
    producers: Sequence[Part], consumers: Sequence[Unit], row_bytes: int, memory_bytes: int
) -> list[Unit]:
    """Return the pieces of the second level; none if the first level will do.

    Args:
        producers: parts of the shuffle file.
        consumers: units of one source with `low`, `high` and `rows`, ordered by `low`; the rows
            to route are assumed to be spread over them as theirs are.
        row_bytes: memory of a row while it is routed.
    """
    if len(producers) * len(consumers) <= MAX_OPENS:
        return []
    ends = np.cumsum([part.rows for part in producers])
    pieces = max(-(-int(ends[-1]) * row_bytes // memory_bytes), 1)
    groups = max(math.isqrt(pieces * len(producers) // len(consumers)), 1)
    cuts = np.searchsorted(ends, [int(ends[-1]) * place // groups for place in range(1, groups)])
    edges = sorted({0, *(int(cut) + 1 for cut in cuts), len(producers)})
    return [
        dataclasses.replace(unit, number=number, producers=group)
        for number, (unit, group) in enumerate(
            (unit, group)
            for unit in _ranges(consumers, -(-pieces // groups))
            for group in itertools.pairwise(edges)
        )
    ]


def _ranges(consumers: Sequence[Unit], num: int) -> list[Unit]:
    """Return about `num` ranges of consecutive consumers, about equal in rows."""
    max_rows = sum(unit.rows for unit in consumers) / num
    ranges: list[Unit] = []
    for unit in consumers:
        last = ranges[-1] if ranges else None
        if last is not None and last.rows + unit.rows <= max_rows:
            ranges[-1] = Unit(0, unit.source, last.low, unit.high, last.rows + unit.rows)
        else:
            ranges.append(Unit(0, unit.source, unit.low, unit.high, unit.rows))
    return ranges


def route(context: PassContext, producers: str, run: str, schema: pa.Schema) -> None:
    """Write what some producers have in the range of this unit as one shuffle file.

    Args:
        producers: `<pass>/<file>`.
        run: name of the result.
    """
    context.count(f"{ROUTED}/{run}")
    unit = context.unit
    rows = context.read_shuffle(producers, unit.low, unit.high, schema, unit.producers)
    columns = {name: rows.column(name).combine_chunks() for name in schema.names}
    context.write_shuffle(run, columns)


def routed(context: PassContext, producers: str, run: str) -> str:
    """Return the name of the shuffle file to read: the routed one if there is one."""
    return f"route/{run}" if context.counters("route").get(f"{ROUTED}/{run}") else producers


def merge_pass(
    stage: Parameters,
    files: Mapping[str, pa.Schema],
    units: Callable[[PassPlan], list[Unit]],
    *,
    done_with: tuple[str, ...] | None = None,
) -> Pass:
    """Return the pass `route_<name>` between one that writes shuffle files and one that reads them.

    Args:
        stage: whose pass it is.
        files: `<pass>/<name>` -> schema; the first one names the pass.
        units: cuts it, as `cells_if_many` and `ranges_if_many` do.
        done_with: the files, by default: no other pass reads them.
    """
    names = tuple(files) if done_with is None else done_with
    return Pass(_merging(next(iter(files))), partial(_merge, stage, files), units, done_with=names)


def merged_file(context: PassContext, file: str, first: str = "") -> str:
    """Return the shuffle file to read in place of `<pass>/<name>`: the merged one if there is one.

    Args:
        first: of the files that are merged together with it, if it is not that itself.
    """
    name, via = file.partition("/")[2], _merging(first or file)
    return f"{via}/{name}" if context.counters(via).get(f"{ROUTED}/{name}") else file


def cells_if_many(plan: PassPlan, file: str, row_bytes: int, *other_units: Unit) -> list[Unit]:
    """Return the pieces of a second level before the cells, and more units of the same kind."""
    units = sorted([*other_units, *plan.cells()], key=attrgetter("low"))
    cells = [Unit(cell.number, "", cell.low, cell.high, cell.rows) for cell in units]
    return cut_routes(plan.parts(file), cells, row_bytes, plan.memory_bytes)


def ranges_if_many(
    plan: PassPlan, file: str, ranges: Sequence[Unit], row_bytes: int, max_opens: int | None = None
) -> list[Unit]:
    """Return the pieces of a second level before ranges of hashes.

    Args:
        max_opens: opens that need no second level; MAX_OPENS by default.
    """
    parts = plan.parts(file)
    if max_opens is not None and len(parts) * len(ranges) <= max_opens:
        return []
    rows_each = -(-sum(part.rows for part in parts) // max(len(ranges), 1))
    consumers = [dataclasses.replace(unit, rows=rows_each) for unit in ranges]
    return cut_routes(parts, consumers, row_bytes, plan.memory_bytes)


def _merging(file: str) -> str:
    return f"route_{file.partition('/')[2]}"


def _merge(_stage: Parameters, files: Mapping[str, pa.Schema], context: PassContext) -> None:
    for file, schema in files.items():
        route(context, file, file.partition("/")[2], schema)

"""How global stages cut work: ranges of hashes, and a second level of the shuffle.

A consumer that asks for a narrow range opens every shuffle file that may hold it. With P producers
and C consumers that is P x C small reads: fine for hundreds, hopeless for 100,000 cells, where the
last pass of dedup and the shuffle would open 1e10 files. Above MAX_OPENS a routing pass in between
merges what a group of producers has in a range of consumers, for G groups and R ranges, as many as
the memory of a task asks for. That takes R x P opens to write and G x C to read, so G and R are
about equal. Below MAX_OPENS the routing pass has no units. The rows that a consumer gets are the
same either way. Shuffle files are named `<pass>/<name>`.
"""

from __future__ import annotations

import bisect
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
"""Shuffle files that consumers may open without a second level: 135 us each, 2.4 CPU minutes."""

RANGE_ROWS = 1 << 24
"""The most rows of a hash range, whatever the memory: seconds of work for one task."""

ROUTED = "routed"
"""Begins the name of the counter with which a routing pass records that it wrote a file."""


def one_unit(_plan: PassPlan) -> list[Unit]:
    """Return the unit of a pass that is one task."""
    return [Unit(0)]


def hash_units(plan: PassPlan, file: str, row_bytes: int, reference_rows: int = 0) -> list[Unit]:
    """Cut the rows of a shuffle file into hash ranges that a task can hold; at least one.

    Args:
        file: its first column is an evenly spread uint64.
        row_bytes: memory that a task needs per row.
        reference_rows: of reference runs, which are read by the same ranges.
    """
    rows = sum(part.rows for part in plan.parts(file)) + reference_rows
    return range_units(num_ranges(rows, row_bytes, plan.memory_bytes))


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
    num = num_ranges(rows, row_bytes, volume.task_memory_bytes)
    return Cost(cpu, unit_bytes=-(-rows // num) * row_bytes, disk_bytes=disk, units=num)


def num_ranges(rows: int, row_bytes: int, memory_bytes: int) -> int:
    """Return into how many ranges `hash_units` cuts rows."""
    return max(-(-rows // min(max(memory_bytes // row_bytes, 1), RANGE_ROWS)), 1)


def cost_of_route(
    volume: Volume, consumers: int, size: int, cpu: float, disk: int, max_opens: int = MAX_OPENS
) -> Cost:
    """Return what a routing pass between the cells and some consumers needs; nothing if it is idle.

    Args:
        volume: what is read.
        consumers: how many there are.
        size: bytes of memory of all rows.
        cpu: CPU seconds of all.
        disk: bytes written.
    """
    if volume.cells * consumers <= max_opens:
        return Cost(units=0)
    memory = min(volume.task_memory_bytes, size)
    return Cost(cpu, unit_bytes=memory, disk_bytes=disk, units=max(-(-size // max(memory, 1)), 1))


def cut_routes(
    producers: Sequence[Part], consumers: Sequence[Unit], row_bytes: int, memory_bytes: int
) -> list[Unit]:
    """Return the units of a routing pass; none if consumers can read the first level.

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
    cuts = np.searchsorted(ends, [int(ends[-1]) * number // groups for number in range(1, groups)])
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


def route(context: PassContext, file: str, schema: pa.Schema) -> None:
    """Write what some producers have in the range of this unit as one shuffle file."""
    unit, name = context.unit, file.partition("/")[2]
    context.count(f"{ROUTED}/{name}")
    rows = context.read_shuffle(file, unit.low, unit.high, schema, unit.producers)
    context.write_shuffle(name, {column: rows.column(column) for column in schema.names})


def route_pass(
    stage: Parameters,
    files: Mapping[str, pa.Schema],
    units: Callable[[PassPlan], list[Unit]],
    *,
    name: str = "",
    done_with: tuple[str, ...] | None = None,
) -> Pass:
    """Return the routing pass between one that writes shuffle files and one that reads them.

    Args:
        stage: whose pass it is.
        files: file -> schema.
        units: cuts it, as `route_to_cells` and `route_to_ranges` do.
        name: `route_<name of the first file>` by default.
        done_with: the files, by default: no other pass reads them.
    """
    first = next(iter(files))
    done_with = tuple(files) if done_with is None else done_with
    return Pass(
        name or _pass_name(first), partial(_route_files, stage, files), units, done_with=done_with
    )


def routed_file(context: PassContext, file: str, pass_name: str = "") -> str:
    """Return the shuffle file to read instead of `file`: the routed one if there is one.

    Args:
        pass_name: what routes it; `route_<name>` by default.
    """
    name, pass_name = file.partition("/")[2], pass_name or _pass_name(file)
    is_routed = context.counters(pass_name).get(f"{ROUTED}/{name}")
    return f"{pass_name}/{name}" if is_routed else file


def route_to_cells(plan: PassPlan, file: str, row_bytes: int, *other_units: Unit) -> list[Unit]:
    """Return the units of a routing pass before the cells, and before other ranges of keys."""
    units = sorted([*other_units, *plan.cells()], key=attrgetter("low"))
    cells = [Unit(cell.number, "", cell.low, cell.high, cell.rows) for cell in units]
    return cut_routes(plan.parts(file), cells, row_bytes, plan.memory_bytes)


def route_to_ranges(
    plan: PassPlan, file: str, ranges: Sequence[Unit], row_bytes: int, max_opens: int | None = None
) -> list[Unit]:
    """Return the units of a routing pass before ranges of hashes.

    Args:
        max_opens: opens that need no routing; MAX_OPENS by default.
    """
    parts = plan.parts(file)
    if max_opens is not None and len(parts) * len(ranges) <= max_opens:
        return []
    rows_each = -(-sum(part.rows for part in parts) // max(len(ranges), 1))
    consumers = [dataclasses.replace(unit, rows=rows_each) for unit in ranges]
    return cut_routes(parts, consumers, row_bytes, plan.memory_bytes)


def read_own_rows(context: PassContext, file: str, schema: pa.Schema) -> pa.Table:
    """Return what the unit of this number wrote in an earlier pass; no rows if it wrote none."""
    number, parts = context.unit.number, context.parts(file)
    producer = bisect.bisect_left(parts, number, key=lambda part: part.unit)
    has_written = producer < len(parts) and parts[producer].unit == number
    return context.read_shuffle(file, None, None, schema, (producer, producer + has_written))


def _pass_name(file: str) -> str:
    return f"route_{file.partition('/')[2]}"


def _route_files(_stage: Parameters, files: Mapping[str, pa.Schema], context: PassContext) -> None:
    for file, schema in files.items():
        route(context, file, schema)

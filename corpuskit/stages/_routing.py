"""The second level of the exchange: a pass that merges the runs of many producers by key range.

A consumer that asks for a narrow range opens every run that may hold it. With P producers and C
consumers that is P x C small reads: fine for hundreds, hopeless for 100,000 cells, where the last
pass of dedup and the shuffle would open 1e10 runs. Above MAX_OPENS a pass in between reads wide
ranges, one for each task's memory, and writes one run for each; a consumer then opens one or two.
Below, the pass has nothing to do. The rows that a consumer gets are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corpuskit.stage import Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from corpuskit.stage import PassContext

MAX_OPENS = 1 << 20
"""Runs that all consumers together may open without a second level: minutes of CPU."""

ROUTED = "routed"


def cut_routes(
    producers: int, consumers: Sequence[Unit], row_bytes: int, memory_bytes: int
) -> list[Unit]:
    """Return the ranges of the second level; none if the first level will do.

    Args:
        consumers: units with `low`, `high`, `rows` (at most so many will be asked for), in order of
            source and `low`; a range ends where a source does.
        row_bytes: memory of a row while it is routed.
    """
    if producers * len(consumers) <= MAX_OPENS:
        return []
    most = max(memory_bytes // row_bytes, 1)
    found: list[Unit] = []
    for unit in consumers:
        last = found[-1] if found else None
        if last is not None and last.source == unit.source and last.rows + unit.rows <= most:
            found[-1] = Unit(last.number, last.source, last.low, unit.high, last.rows + unit.rows)
        else:
            found.append(Unit(len(found), unit.source, unit.low, unit.high, unit.rows))
    return found


def route(context: PassContext, producers: str, run: str, schema: pa.Schema) -> None:
    """Write what producers have in the range of this unit as one run.

    Args:
        producers: `<pass>/<run>`.
        run: what to call it.
    """
    context.count(ROUTED)
    rows = context.run_range(producers, context.unit.low, context.unit.high, schema)
    columns = {name: rows.column(name).combine_chunks() for name in schema.names}
    context.write_run(run, columns)


def routed(context: PassContext, producers: str, run: str) -> str:
    """Return the name of the run to read: the routed one if there is one."""
    return f"route/{run}" if context.counters("route").get(ROUTED) else producers

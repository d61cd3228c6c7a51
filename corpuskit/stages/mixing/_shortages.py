"""Why a schedule can't be done, and what could, in words with the numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from corpuskit.loader.order import turn
from corpuskit.stages.mixing._schedule import cap_of, make_schedule, times

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corpuskit.stages.mixing._schedule import Schedule, Shortage


def problem_of(schedule: Schedule, seq_len: int) -> str:
    """Return why the schedule can't be done and what can, with the numbers; "" if it can."""
    # What can't be filled takes too much of what is left, so it comes before all that is behind it.
    unfilled = min(schedule.left, default=len(schedule.stages))
    shortages = [one for one in schedule.shortages if one.stage < unfilled]
    if not shortages:
        return _unimax_problem(schedule, unfilled, seq_len) if schedule.left else ""
    worst = max(shortages, key=lambda one: Fraction(one.taken, one.allowed + 1))
    supply, stage = schedule.supplies[worst.source], schedule.stages[worst.stage]
    total = sum(one.counts[worst.source] for one in schedule.stages)
    what = f"the run takes {total:,} rows of {supply.name!r}"
    cap, taken, named = supply.max_epochs, total, "max_epochs"
    if worst.is_own:
        cap, taken = _own_cap(schedule, worst), worst.taken
        what = f"stage {stage.name!r} takes {taken:,} rows of {supply.name!r}"
        named = f"max_epochs of stage {stage.name!r}"
    gone = turn(worst.source, worst.allowed, stage.weights)
    where = f"stage {stage.name!r}" if len(schedule.stages) > 1 else "the run"
    advice = [
        *_lengths(schedule, worst.stage, seq_len),
        *_weights(schedule, worst),
        f"{named} for {supply.name!r} to {_needed(taken, supply.rows)} or more",
    ]
    others = _others(schedule, shortages, worst)
    return (
        f"mix: {what}, {taken / supply.rows:.2f} epochs, but {named} {cap} allows "
        f"{times(cap, supply.rows):,} (it has {supply.rows:,}). They are used up after {gone:,} of "
        f"the {stage.rows:,} rows of {where}. Set {', or '.join(advice)}.{others}"
    )


def _unimax_problem(schedule: Schedule, number: int, seq_len: int) -> str:
    stage, left = schedule.stages[number], schedule.left[number]
    where = f"stage {stage.name!r}" if len(schedule.stages) > 1 else "the run"
    each = ", ".join(
        f"{supply.name} {rows:,}"
        for supply, rows in zip(schedule.supplies, left, strict=True)
        if schedule.stretches[number].covers(supply.name)
    )
    advice = ["Raise max_epochs", *(f"set {one}" for one in _lengths(schedule, number, seq_len))]
    return (
        f"mix: {where} takes {stage.rows:,} rows, but max_epochs leaves it {sum(left):,} ({each}). "
        f"{', or '.join(advice)}."
    )


def _lengths(schedule: Schedule, number: int, seq_len: int) -> list[str]:
    """Return the largest length of a stage, or of a run whose stages have ratios, that fits."""
    stretches, name = schedule.stretches, schedule.stages[number].name

    def fits(rows: int) -> bool:
        if stretches[number].rows is None:
            return make_schedule(schedule.supplies, stretches, rows).is_possible
        changed = [*stretches]
        changed[number] = dataclasses.replace(changed[number], rows=rows)
        return make_schedule(schedule.supplies, changed).is_possible

    is_of_run = stretches[number].rows is None
    total = sum(one.rows for one in schedule.stages)
    # Less of a stage is less of each of its sources, so bisection is exact.
    rows = _largest(total if is_of_run else schedule.stages[number].rows, fits)
    where = "" if is_of_run else f" of stage {name!r}"
    return [f"rows{where} to {rows:,} or less (tokens to {rows * seq_len:,})"] if rows else []


def _weights(schedule: Schedule, worst: Shortage) -> list[str]:
    """Return the largest weight of the source in the stage that fits, if one does.

    A smaller weight takes less of its source, but more of the others, which may then run out.
    """
    stretch, name = schedule.stretches[worst.stage], schedule.supplies[worst.source].name
    if not isinstance(stretch.weights, Mapping):
        return []
    given = stretch.weights

    def make(weight: int) -> Schedule:
        changed = [*schedule.stretches]
        changed[worst.stage] = dataclasses.replace(stretch, weights={**given, name: weight})
        total = sum(stage.rows for stage in schedule.stages)
        return make_schedule(schedule.supplies, changed, total)

    weight = _largest(
        given[name], lambda w: all(one.source != worst.source for one in make(w).shortages)
    )
    return [f"its weight to {weight:,} or less"] if weight and make(weight).is_possible else []


def _largest(high: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 1 that fits, 0 if none does; `high` does not."""
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _own_cap(schedule: Schedule, shortage: Shortage) -> float:
    cap = cap_of(schedule.stretches[shortage.stage], schedule.supplies[shortage.source])
    assert cap is not None, "it was the smaller one"
    return cap


def _others(schedule: Schedule, shortages: Sequence[Shortage], worst: Shortage) -> str:
    names = [
        f"{schedule.supplies[one.source].name!r} (in stage {schedule.stages[one.stage].name!r})"
        for one in shortages
        if one is not worst
    ]
    return f" Also too often: {', '.join(names)}." if names else ""


def _needed(taken: int, rows: int) -> float:
    """Return epochs, with two decimals, that allow so many rows."""
    return math.ceil(Fraction(100 * taken, rows)) / 100

"""What each source has given up to a point of a run, against what its weights asked for."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from corpuskit.loader.state import consumed_before

if TYPE_CHECKING:
    from corpuskit.loader.index import MixPlan


@dataclass(frozen=True, slots=True)
class SourceShare:
    """One source up to a point of a run.

    Attributes:
        source: its name.
        rows: rows delivered.
        tokens: input positions delivered, padding included.
        epochs: rows delivered / rows there are.
        share: part of all rows delivered.
        planned_share: part that the weights of the stages ask for.
        error_rows: rows delivered beyond what the weights ask for; spans to skip count in both.
    """

    source: str
    rows: int
    tokens: int
    epochs: float
    share: float
    planned_share: float
    error_rows: float


def shares_before(plan: MixPlan, rows: int) -> list[SourceShare]:
    """Return what each source has given in the first `rows` rows of a run, without skipped ones."""
    consumed = consumed_before(plan, rows)
    ideal = dict.fromkeys(consumed, Fraction(0))
    start = 0
    for stage in plan.order.stages:
        end = start + stage.rows
        used = max(0, min(rows, end) - start)
        # What was skipped of a stage takes its share along.
        for first, last in plan.skips.before(rows):
            used -= max(0, min(last, end, rows) - max(first, start))
        total = sum(stage.weights)
        for source, weight in zip(plan.sources, stage.weights, strict=True):
            ideal[source.name] += Fraction(used * weight, total)
        start = end
    delivered = sum(consumed.values()) or 1
    return [
        SourceShare(
            source=source.name,
            rows=consumed[source.name],
            tokens=consumed[source.name] * plan.seq_len,
            epochs=consumed[source.name] / source.rows if source.rows else 0.0,
            share=consumed[source.name] / delivered,
            planned_share=float(ideal[source.name] / delivered),
            error_rows=float(consumed[source.name] - ideal[source.name]),
        )
        for source in plan.sources
    ]

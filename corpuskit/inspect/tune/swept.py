"""One parameter of a stage whose threshold moves, and the thresholds to look at."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from corpuskit.errors import UsageError, suggest
from corpuskit.formats.batch import numbers
from corpuskit.formats.shards import open_parquet
from corpuskit.inspect.tune.measured import check_name, with_changes
from corpuskit.storage import open_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from corpuskit.inspect.tune.measured import Measured
    from corpuskit.stage import StreamingStage

POINTS = 101
"""Thresholds of a curve where nobody asked for a number."""

MOST_POINTS = 10_000
LOOKED_AT_PARTS = 64
"""Parts whose first row group tells about where the values lie."""

Side = Literal["min", "max"]
"""Values below a bound fail, or those above it."""


class Swept:
    """One parameter of a stage, as its threshold moves.

    Args:
        found: what was measured; `names` are the rules that have measures.
        changes: `parameter=value` of the stage, the swept one possibly among them.
        asked: `parameter`, `parameter=first:last` or `parameter=first:last:count`.

    Raises:
        UsageError: it bounds nothing that was measured, or the range is of another form.
    """

    def __init__(self, found: Measured, changes: Sequence[str], asked: str) -> None:
        self._found, self._changes = found, tuple(changes)
        self.target, _, span = asked.removeprefix(f"{found.label}.").partition("=")
        self.name, _, self.entry = self.target.partition(".")
        check_name(found, self.name, f"--curve {asked}")
        self.stage, changed = with_changes(found, changes)
        self.now = self._value_in(found.stage)
        self.then = self._value_in(self.stage) if changed else None
        if self.then == self.now:
            self.then = None
        self.range = _range(asked, span) if span else None
        for value in self.range[:2] if self.range else ():
            text = repr(int(value)) if self.is_whole else repr(value)
            with_changes(found, [*changes, f"{self.target}={text}"])  # refuses what cannot be set
        self.rules = self._rules()
        self.side: Side = "min" if self.name.startswith("min") else "max"

    @property
    def is_whole(self) -> bool:
        """Whether the parameter takes whole numbers only."""
        kinds = {one.get("type") for one in self._schema.get("anyOf", [self._schema])}
        return "integer" in kinds and "number" not in kinds

    def at(self, value: float) -> StreamingStage:
        """Return the stage with this threshold, even if other parameters forbid it.

        `min` may not be above `max`, say: the curve goes on there, and `--set` refuses.
        """
        number = int(value) if self.is_whole else value
        if not self.entry:
            return self.stage.model_copy(update={self.name: number})
        entries = getattr(self.stage, self.name)
        entries = {key: number if str(key) == self.entry else one for key, one in entries.items()}
        return self.stage.model_copy(update={self.name: entries})

    def bounds(self) -> tuple[float, float]:
        """Return the least and the greatest value that the parameter takes."""
        found = [one for one in self._schema.get("anyOf", [self._schema]) if "type" in one]
        lows = [float(one[k]) for one in found for k in ("minimum", "exclusiveMinimum") if k in one]
        tops = [float(one[k]) for one in found for k in ("maximum", "exclusiveMaximum") if k in one]
        return max(lows, default=-np.inf), min(tops, default=np.inf)

    def values_of(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """Return what decides each document: of several rules the value that fails first."""
        join = np.fmin if self.side == "min" else np.fmax
        columns = [numbers(batch.column(rule)) for rule in self.rules]
        values: NDArray[np.float64] = columns[0]
        for column in columns[1:]:
            values = join(values, column)
        return values

    @functools.cached_property
    def _schema(self) -> dict[str, Any]:
        whole: dict[str, Any] = type(self.stage).model_json_schema()["properties"][self.name]
        if not self.entry:
            return whole
        shapes = [one.get("additionalProperties") for one in whole.get("anyOf", [whole])]
        return next((one for one in shapes if isinstance(one, dict)), {})

    def _value_in(self, stage: StreamingStage) -> float | None:
        value = getattr(stage, self.name)
        if isinstance(value, dict):
            entries = {str(key): one for key, one in value.items()}
            if self.entry not in entries:
                names = [f"{self.name}.{key}" for key in entries]
                hint = (
                    suggest(self.target, names) if self.entry else f"Name one: {', '.join(names)}."
                )
                raise UsageError(f"--curve {self.target}: {self.name} has several bounds. {hint}")
            value = entries[self.entry]
        elif self.entry:
            raise UsageError(f"--curve {self.target}: {self.name} is a single value.")
        return float(value) if isinstance(value, int | float) else None

    def _rules(self) -> list[str]:
        """Return the rules with measures that the parameter bounds, and is the bound of."""
        first, last = self.at(1.0), self.at(2.0)
        bounds = {
            rule: (first.threshold(rule), last.threshold(rule))
            for rule in self.stage.rules
            if rule in self._found.names and rule in self.stage.bounds
        }
        # A bound that is off is NaN, which differs from itself.
        moved = {r: pair for r, pair in bounds.items() if not np.array_equal(*pair, equal_nan=True)}
        rules = list(moved)
        wrong = [rule for rule, pair in moved.items() if pair != (1.0, 2.0)]
        if wrong or not rules:
            problem = f"is not the bound of {', '.join(wrong)}" if wrong else "bounds no rule here"
            raise UsageError(f"--curve {self.target}: {problem}. Use --sweep, or --set.")
        return rules


def keeps(measured: NDArray[np.float64], value: float, side: Side) -> NDArray[np.bool_]:
    """Return what a threshold keeps; no number fails nowhere."""
    return ~(measured < value) if side == "min" else ~(measured > value)


def even_values(first: float, last: float, count: int, *, is_whole: bool) -> list[float]:
    """Return evenly spaced thresholds; whole ones are rounded."""
    values = np.linspace(first, last, count)
    if is_whole:
        return [float(value) for value in dict.fromkeys(np.rint(values).astype(int).tolist())]
    return [round(value, 12) for value in values.tolist()]


def quantile_values(
    values: NDArray[np.float64], bounds: tuple[float, float], *, is_whole: bool
) -> list[float]:
    """Return thresholds between the least and the greatest value, each cutting about as much.

    Args:
        values: measured ones, or some of them.
        bounds: what the parameter can be.
    """
    values = values[np.isfinite(values)]
    if not len(values):
        return []
    found = np.quantile(values, np.linspace(0.0, 1.0, POINTS))
    rounded = np.rint(found) if is_whole else [float(f"{value:.4g}") for value in found]
    return sorted({float(value) for value in np.clip(rounded, *bounds)})


def some_values(found: Measured, swept: Swept) -> NDArray[np.float64]:
    """Return values of the rule: of one row group of many parts."""
    step = -(-len(found.parts) // LOOKED_AT_PARTS)
    pieces = []
    for part in list(found.parts)[::step]:
        path = found.run.at(part)
        with open_place(path) as source, open_parquet(source, path) as file:
            table = file.read_row_group(0, columns=swept.rules)
        pieces.append(swept.values_of(table.combine_chunks().to_batches()[0]))
    return np.concatenate(pieces)


def thresholds(found: Measured, swept: Swept) -> list[float]:
    """Return the thresholds of the curve, those that are asked about among them."""
    if swept.range is not None:
        values = even_values(*swept.range, is_whole=swept.is_whole)
    else:
        values = quantile_values(some_values(found, swept), swept.bounds(), is_whole=swept.is_whole)
    asked = [value for value in (swept.now, swept.then) if value is not None]
    if not values and not asked:
        raise UsageError(f"--curve {swept.target}: nothing was measured. Give a range.")
    return sorted({*values, *asked})


def _range(asked: str, span: str) -> tuple[float, float, int]:
    try:
        low, high, *rest = span.split(":")
        first, last = float(low), float(high)
        [count] = [int(one) for one in rest] or [POINTS]
    except ValueError:
        first, last, count = 0.0, 0.0, 0
    if not (first < last < np.inf and first > -np.inf and 2 <= count <= MOST_POINTS):
        raise UsageError(
            f"--curve {asked}: must look like parameter, parameter=first:last or "
            "parameter=first:last:count, as in min_words=20:200; first is below last, count is 2 "
            f"to {MOST_POINTS}."
        )
    return first, last, count

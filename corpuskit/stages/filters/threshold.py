"""Bounds on any column."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
import pyarrow.compute as pc
from pydantic import Field, model_validator

from corpuskit.errors import UsageError, suggest
from corpuskit.kernels.arrays import Bools, Float64s
from corpuskit.stage import Cost, Example, Known, Outcome, StreamingStage, View, Volume
from corpuskit.stages._numbers import check_numbers, check_strings, to_numbers, to_strings

_RULES = {"below_min": "min", "above_max": "max", "missing": ""}
_BELOW, _ABOVE, _MISSING = 1, 2, 3


class Threshold(StreamingStage):
    """Drop documents whose value in a column is out of bounds.

    Use it on columns of annotators, or on a score that came with the data. Values equal to a bound
    pass. A column of strings is read as numbers; no value, NaN, and a string that is not a number
    count as missing. With `by`, documents of some sources or languages have their own bounds.

    Source: none; FineWeb-Edu and DCLM cut at classifiers' scores in this way (Penedo et al. 2024,
    Li et al. 2024).
    """

    rules: ClassVar[tuple[str, ...]] = tuple(_RULES)
    bounds: ClassVar[Mapping[str, str]] = {rule: name for rule, name in _RULES.items() if name}
    # The columns of the examples have the length of the text modulo 8, in sevenths.
    examples: ClassVar[tuple[Example, ...]] = (
        Example("7 of 7.", None, {"column": "my.score", "min": 0.5}),
        Example("3/7", "below_min", {"column": "my.score", "min": 0.5}),
        Example("6 of 7", "above_max", {"column": "my.score", "max": 0.5}),
        Example("no score", "missing", {"column": "my_score", "min": 0.5, "missing": "drop"}),
        Example(
            "3/7", None, {"column": "my.score", "by": "source", "limits": {"books": (0.5, None)}}
        ),
    )

    column: str = Field(min_length=1)
    """Column to compare, as in `quality.score`; an annotation or a declared column."""
    min: float | None = None
    """Least value to keep; null sets no bound."""
    max: float | None = None
    """Largest value to keep; null sets no bound."""
    missing: Literal["keep", "drop"] = "keep"
    """What to do with documents that have no value."""
    by: str | None = None
    """Column of strings whose value chooses the bounds, as in `source` or `language.label`."""
    limits: dict[str, tuple[float | None, float | None]] = Field({})
    """Value of `by` -> least and largest value to keep; others have `min` and `max`."""
    measures: bool = False
    """Also store what was compared, so that bounds can be tuned without another run."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Threshold:
        if self.by is None and self.limits:
            raise ValueError("limits: there is no `by`, which would choose among them")
        if self.measures and self.limits:
            raise ValueError("measures: bounds that depend on `by` cannot be tuned. Leave one out")
        limits = [("", self.min, self.max), *((k, *pair) for k, pair in self.limits.items())]
        for name, low, high in limits:
            where = f"limits of {name!r}: " if name else ""
            if any(bound is not None and math.isnan(bound) for bound in (low, high)):
                raise ValueError(f"{where}min and max must be numbers, not NaN")
            if low is not None and high is not None and low > high:
                raise ValueError(f"{where}min {low} must not be greater than max {high}")
        has_bound = any(bound is not None for _, *bounds in limits for bound in bounds)
        if not (has_bound or self.missing == "drop" or self.measures):
            raise ValueError("must have min, max or limits: nothing would be dropped")
        return self

    def needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name in (self.column, self.by) if name is not None))

    def check(self, known: Known) -> None:
        check_numbers(known, "column", self.column)
        if self.by is None:
            return
        check_strings(known, "by", self.by)
        values = known.values.get(self.by)
        for name in self.limits:
            if values is not None and name not in values:
                hint = suggest(name, values)
                raise UsageError(f"limits: the column {self.by!r} is never {name!r}. {hint}")

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        return Cost(cpu_seconds=volume.documents / 20e6)

    def apply(self, view: View) -> Outcome:
        values = to_numbers(view.column(self.column), self.column)
        lows, highs = self._bounds(view)
        codes = np.zeros(view.num_docs, np.uint8)
        codes[values < lows] = _BELOW
        codes[(values > highs) & (codes == 0)] = _ABOVE
        if self.missing == "drop":
            codes[np.isnan(values)] = _MISSING
        bounds = np.select([codes == _BELOW, codes == _ABOVE], [lows, highs], np.nan)
        measured: dict[str, Float64s] = {}
        if self.measures:
            is_dropped = (codes == _MISSING).astype(np.float64)
            measured = {**dict.fromkeys(self.bounds, values), "missing": is_dropped}
        return Outcome(codes=codes, values=values, bounds=bounds, measures=measured)

    def _bounds(self, view: View) -> tuple[Float64s, Float64s]:
        """Return the bounds of each document, infinite where there is none."""
        lows, highs = np.full(view.num_docs, -np.inf), np.full(view.num_docs, np.inf)
        _set(lows, highs, slice(None), self.min, self.max)
        if self.limits:
            assert self.by is not None, "checked when the stage was made"
            groups = to_strings(view.column(self.by), self.by)
            for name, (low, high) in self.limits.items():
                rows = pc.equal(groups, name).fill_null(False).to_numpy(zero_copy_only=False)
                _set(lows, highs, rows, low, high)
        return lows, highs


def _set(
    lows: Float64s, highs: Float64s, rows: slice | Bools, low: float | None, high: float | None
) -> None:
    lows[rows] = -np.inf if low is None else low
    highs[rows] = np.inf if high is None else high

"""How often each document is packed: good documents more often than others."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator, model_validator

from corpuskit.kernels.arrays import Float64s, Int64s
from corpuskit.stage import Cost, Example, Known, Outcome, Parameters, StreamingStage, View, Volume
from corpuskit.stages._numbers import check_numbers, to_numbers

Value = Annotated[float, Field(allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]


class QualityCurve(Parameters):
    """The curve of Dolma 3 over ranks: `C x**p exp(r x)` above what is discarded, in buckets."""

    discard_below: float = Field(0.4, ge=0, le=0.95)
    """Rank below which documents are dropped."""
    max_factor: float = Field(7.0, gt=0, le=100)
    """Largest factor; the last bucket has it if the mean asks for that."""
    mean: float = Field(1.0, gt=0, le=100)
    """Factor of all together, those that are dropped included: 1 keeps the size."""
    buckets: int = Field(20, ge=2, le=1000)
    """Steps of equal size into which ranks are cut; documents of one have one factor."""

    @model_validator(mode="after")
    def _has_a_solution(self) -> QualityCurve:
        self.points()
        return self

    def points(self) -> Points:
        """Return rank and factor where each bucket begins."""
        return power_exponential(self.discard_below, self.max_factor, self.mean, self.buckets)


class Upsample(StreamingStage):
    """Set how often each document is packed, by a curve over a column.

    Documents with a high score, or with many near duplicates, may be worth several passes, others
    none. A factor f gives floor(f) copies, and one more with probability f - floor(f), by a hash of
    the document's key. `pack` packs the copies, no two in a row; `documents/` has each document
    once, with the column `upsample.copies`. Several `upsample` stages multiply.

    Source: `fineweb2`: rehydration of Penedo et al. 2025, FineWeb2 (README, upsampling weights).
    `dolma3`: quality-aware upsampling of Olmo 3 (arXiv 2512.13961, section 3.4.4), in code
    allenai/dolma3, mixing_utils.py; there one curve per topic, each with its own mean.
    """

    rules: ClassVar[tuple[str, ...]] = ("sampled_out",)
    # The columns of the examples have the length of the text modulo 8, in sevenths.
    examples: ClassVar[tuple[Example, ...]] = (
        Example("7 of 7.", None, {"column": "my.score", "points": [[0, 0], [0.5, 3]]}),
        Example("3/7", "sampled_out", {"column": "my.score", "points": [[0, 0], [0.5, 3]]}),
        Example("5 / 7", None, {"column": "my.score", "preset": "dolma3"}),
        Example("1", "sampled_out", {"column": "my.score", "curve": {"discard_below": 0.2}}),
    )

    column: str = Field(min_length=1)
    """Column of numbers, as in `percentile.rank` or `minhash_dedup.cluster_size`."""
    points: tuple[tuple[Value, Factor], ...] | None = Field(None, min_length=1)
    """Pairs of value and factor, values ascending; values below the first get its factor."""
    interpolation: Literal["step", "linear"] = "step"
    """Between points, `step` takes the factor of the one below, `linear` what lies between."""
    preset: Literal["fineweb2", "dolma3"] | None = None
    """A published curve: `fineweb2` over cluster sizes, `dolma3` over ranks from 0 to 1."""
    curve: QualityCurve | None = None
    """Dolma 3's curve with your discard_below (0.4), max_factor (7), mean (1), buckets (20)."""
    missing: Factor = 1.0
    """Factor of documents that have no value."""
    sources: tuple[str, ...] | None = Field(None, min_length=1)
    """Sources that it applies to, others have factor 1; null means all."""
    seed: int = Field(0, ge=0, lt=2**64)
    """Another seed gives fractions of a factor to other documents."""

    @field_validator("points")
    @classmethod
    def _ascend(cls, points: Points | None) -> Points | None:
        if points is not None and any(low >= high for (low, _), (high, _) in pairwise(points)):
            raise ValueError("values must ascend")
        return points

    @model_validator(mode="after")
    def _has_one_curve(self) -> Upsample:
        if sum(curve is not None for curve in (self.points, self.preset, self.curve)) != 1:
            raise ValueError("must have one of points, preset and curve")
        if self.interpolation == "linear" and self.points is None:
            raise ValueError("interpolation: only points can be linear. Leave it out")
        return self

    def needs(self) -> tuple[str, ...]:
        return (self.column, *(() if self.sources is None else ("source",)))

    def adds(self) -> Mapping[str, pa.DataType]:
        return {"copies": pa.int32()}

    def check(self, known: Known) -> None:
        check_numbers(known, "column", self.column)
        for name in self.sources or ():
            known.check_source("sources", name)

    def provides(self, provided: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the columns of copies so far, and about how much they multiply the tokens."""
        upsampling = provided.get("upsample", {"columns": [], "factor": 1.0})
        columns = upsampling["columns"]
        label = f"upsample_{len(columns) + 1}" if columns else "upsample"
        factor = upsampling["factor"] * self._usual_factor()
        return {"upsample": {"columns": [*columns, f"{label}.copies"], "factor": factor}}

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        return Cost(cpu_seconds=volume.documents / 20e6)

    def apply(self, view: View) -> Outcome:
        values = to_numbers(view.column(self.column), self.column)
        factors = self._factors(values)
        if self.sources is not None:
            is_in = pc.is_in(view.column("source"), pa.array(self.sources, pa.string()))
            factors[~is_in.to_numpy(zero_copy_only=False)] = 1.0
        least = np.floor(factors)
        copies = (least + (_shares(view.keys, self.seed) < factors - least)).astype(np.int32)
        return Outcome(
            codes=(copies == 0).astype(np.uint8),
            values=values,
            bounds=factors,
            columns={"copies": pa.array(copies)},
        )

    def _points(self) -> Points:
        if self.curve is not None:
            return self.curve.points()
        if self.preset is not None:
            return FINEWEB2 if self.preset == "fineweb2" else QualityCurve().points()
        assert self.points is not None, "checked when the stage was made"
        return self.points

    def _factors(self, values: Float64s) -> Float64s:
        """Return the factor of each value, (N,)."""
        xs, factors = np.array(self._points(), np.float64).T
        curve: Float64s
        if self.interpolation == "linear":
            curve = np.interp(values, xs, factors)
        else:
            curve = factors[np.maximum(np.searchsorted(xs, values, side="right") - 1, 0)]
        curve[np.isnan(values)] = self.missing
        return curve

    def _usual_factor(self) -> float:
        """Return how much longer everything becomes, for estimates: the mean of the points."""
        factors = [factor for _, factor in self._points()]
        return sum(factors) / len(factors)


def _shares(keys: Int64s, seed: int) -> Float64s:
    """Return a number in [0, 1) for each key, (N,): SplitMix64 of key and seed.

    It is not the hash that chooses texts for the ledger: of the documents dropped here, the ledger
    would then keep the texts of all, or of none.
    """
    mixed = keys.astype(np.uint64) ^ np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    with np.errstate(over="ignore"):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


# ---------------------------------------------------------------- curves


Points = tuple[tuple[float, float], ...]
"""(value, factor), values ascending."""

FINEWEB2: Points = ((1, 1), (2, 2), (3, 3), (5, 5), (100, 8), (1000, 1))
"""Factor by size of the cluster of near duplicates that a document is kept of."""

_POWERS = tuple(0.01 + number * 1.99 / 19 for number in range(20))  # 0.01 to 2, as solve_fit
_MAX_RATE = 2.0
_TOLERANCE = 1e-6  # of max_factor
_DECIMALS = 9  # of a factor: libraries of mathematics differ in the last bits


def integral(power: float, rate: float, end: float) -> float:
    """Return the integral of `x**power * exp(rate * x)` from 0 to `end`, rate >= 0.

    By the series of the exponential: all its terms are positive, so nothing cancels.
    """
    total, term, count = 0.0, 1.0, 0
    while True:
        summand = term / (power + count + 1)
        total += summand
        if summand <= total * 1e-17:
            return total * float(end ** (power + 1))
        count += 1
        term *= rate * end / count


@functools.lru_cache(maxsize=64)
def power_exponential(discard_below: float, max_factor: float, mean: float, buckets: int) -> Points:
    """Return the factor of each bucket of quantiles: `C x**p exp(r x)` above what is discarded.

    Of the curves whose mean is prescribed and whose last bucket stays below `max_factor` on
    average, it takes the one with the largest p among 20 up to 2, and with that the largest r up to
    2; a bucket has the mean of the curve over it.

    Args:
        discard_below: quantile below which everything is dropped; whole buckets are.
        max_factor: bound on the mean factor of the last bucket.
        mean: factor over all quantiles, what is discarded included.
        buckets: how many; all are of one size.

    Raises:
        ValueError: no such curve has that mean.

    Source: allenai/dolma3, datasets/dolma3_mix/mixes/mixing_utils.py (solve_fit), with integrals by
    series instead of quadrature; Olmo 3 (arXiv 2512.13961), section 3.4.4.
    """
    skipped = math.floor(discard_below * buckets + 1e-9)
    end, width = 1 - skipped / buckets, 1 / buckets

    def top(power: float, rate: float) -> float:
        """Return the mean factor of the last bucket."""
        area = integral(power, rate, end)
        return mean * (area - integral(power, rate, end - width)) / area / width

    power = max((p for p in _POWERS if top(p, 0.0) <= max_factor + _TOLERANCE), default=0.0)
    if not power:
        lowest = math.ceil(top(_POWERS[0], 0.0) * 100) / 100
        raise ValueError(
            f"mean {mean:g} with the lowest {skipped / buckets:.0%} dropped needs a factor of at "
            f"least {lowest:g}, above max_factor {max_factor:g}. Drop less, or change one of them"
        )
    low, high = 0.0, _MAX_RATE
    for _ in range(60):
        middle = (low + high) / 2
        is_below = top(power, middle) <= max_factor + _TOLERANCE
        low, high = (middle, high) if is_below else (low, middle)
    if top(power, _MAX_RATE) <= max_factor + _TOLERANCE:
        low = _MAX_RATE
    area = integral(power, low, end)
    edges = [
        integral(power, low, max(number - skipped, 0) / buckets) for number in range(buckets + 1)
    ]
    return tuple(
        (
            number / buckets,
            round(mean * buckets * (edges[number + 1] - edges[number]) / area, _DECIMALS),
        )
        for number in range(buckets)
    )

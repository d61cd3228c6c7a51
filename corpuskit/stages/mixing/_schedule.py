"""How many rows each stage of a run takes from each source: integers in, integers out.

From what each source has (`Supply`) and what each stage asks for (`StageRequest`), `make_schedule`
computes what each stage takes and what is missing; `problem_of` explains what is missing. Nothing
is read and nothing rounded in binary, so the same rows and parameters give the same schedule on
every machine. Letters: K sources, in the order of the mix plan.
"""

from __future__ import annotations

import dataclasses
import decimal
import math
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, WrapValidator, model_validator

from corpuskit.errors import DataError, UsageError, suggest
from corpuskit.loader.order import apportion, turn
from corpuskit.stage import Parameters

Counts = Sequence[int]


WEIGHT_SUM = 10**9
"""What computed weights that are no row counts add up to: half a row off in 1e9 rows."""


class Supply(NamedTuple):
    """A source as the schedule sees it: `max_epochs` bounds what the run takes of its rows."""

    name: str
    rows: int
    max_epochs: float

    @property
    def cap(self) -> int:
        """The most rows that the run may take."""
        return epoch_rows(self.max_epochs, self.rows)


@dataclasses.dataclass(frozen=True)
class StageRequest:
    """The settings of one mixture stage of the run.

    Attributes:
        rows: its length; None = `ratio` is its share of the run.
        weights: source -> integer, or how they are computed.
        temperature: flattens proportional weights.
        sources: that computed weights cover; None = all.
        max_epochs: of this stage alone; sources that it leaves out have the cap of the run only.
    """

    name: str
    rows: int | None = None
    ratio: int | None = None
    weights: Mapping[str, int] | Literal["proportional", "unimax"] = "proportional"
    temperature: float = 1.0
    sources: Sequence[str] | None = None
    max_epochs: Mapping[str, float] | float | None = None

    def covers(self, source: str) -> bool:
        """Say whether computed weights give the source a share."""
        return self.sources is None or source in self.sources


@dataclasses.dataclass(frozen=True)
class StageSchedule:
    """A stage of the run, as it is scheduled: rows; weight and rows of each source, (K,)."""

    name: str
    rows: int
    weights: tuple[int, ...]
    counts: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Shortage:
    """A source of which a stage takes more rows than are left.

    Attributes:
        stage, source: their numbers.
        rows: that the stage takes.
        max_rows: rows that are left to it, or that its own cap allows (`is_own`).
    """

    stage: int
    source: int
    rows: int
    max_rows: int
    is_own: bool


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What a run takes, stage after stage.

    Attributes:
        shortages: the first of each source.
        available: number of a stage that UniMax can't fill -> rows that each source has left, (K,).
    """

    supplies: tuple[Supply, ...]
    requests: tuple[StageRequest, ...]
    stages: tuple[StageSchedule, ...]
    shortages: tuple[Shortage, ...]
    available: Mapping[int, tuple[int, ...]]

    @property
    def is_possible(self) -> bool:
        """Whether no source gives more than it may."""
        return not self.shortages and not self.available


def make_schedule(
    supplies: Sequence[Supply], requests: Sequence[StageRequest], rows: int | None = None
) -> Schedule:
    """Return what a run takes from sources that all have rows.

    Weights that are given or proportional come first; UniMax spreads what those leave of the caps,
    stage after stage.

    Args:
        rows: of the run, where stages have ratios; None = as many as the caps allow, which UniMax
            cannot compute.

    Raises:
        DataError: a stage has no source with rows, or the caps leave none.
    """
    caps = [supply.cap for supply in supplies]
    limits = [_limits(request, supplies) for request in requests]
    shares = [_weights(request, supplies) for request in requests]
    for request, share in zip(requests, shares, strict=True):
        if not any(share):
            raise DataError(
                f"mix: stage {request.name!r} has no source with rows. See the report for what "
                "dropped them, or weigh other sources."
            )
    if requests[0].rows is None:
        ratios = [request.ratio or 0 for request in requests]
        num = _max_rows(ratios, shares, caps, limits) if rows is None else rows
        sizes = apportion(num, ratios).tolist() if num else []
    else:
        sizes = [request.rows or 0 for request in requests]
    if not sizes:
        raise DataError("mix: max_epochs leaves no row to take. Raise it.")
    stages, left = _count_stages(requests, sizes, shares, caps, limits)
    shortages = _find_shortages(stages, caps, limits)
    return Schedule(tuple(supplies), tuple(requests), tuple(stages), shortages, left)


def temper(rows: Counts, temperature: float) -> list[int]:
    """Return weights in proportion to rows ** (1 / temperature), for rows of at least 1.

    Temperature 1 gives the rows themselves. Other weights are parts in 10**9, at least 1, from
    correctly rounded decimals: a power of binary floats differs between machines.

    Source: Xue et al. 2021, mT5 (section 3.1), Conneau et al. 2020, XLM-R: their exponent alpha is
    1 / temperature.
    """
    if temperature == 1:
        return list(rows)
    with decimal.localcontext(decimal.Context(prec=50, rounding=decimal.ROUND_HALF_EVEN)):
        power = 1 / decimal.Decimal(str(temperature))
        sizes = [(decimal.Decimal(count).ln() * power).exp() for count in rows]
        unit = WEIGHT_SUM / sum(sizes, decimal.Decimal(0))
        return [max(1, int((size * unit).to_integral_value())) for size in sizes]


def spread_evenly(budget: int, limits: Counts) -> list[int]:
    """Return how many rows UniMax takes of each source: (K,), none above its limit.

    The budget is divided evenly; what a small source can't give is divided among the larger ones.
    They sum to the budget, or to the limits where those are less.

    Source: Chung et al. 2023, UniMax, Algorithm 1, in rows instead of characters.
    """
    counts = [0] * len(limits)
    order = sorted((k for k, limit in enumerate(limits) if limit), key=lambda k: (limits[k], k))
    for num_served, k in enumerate(order):
        counts[k] = min(limits[k], budget // (len(order) - num_served))
        budget -= counts[k]
    return counts


def epoch_rows(epochs: float, rows: int) -> int:
    """Return the rows of a number of epochs, rounded down: 29 of 0.29 x 100, in floats 28."""
    return int(Fraction(str(epochs)) * rows)


def rows_of(tokens: int, seq_len: int, where: str) -> int:
    """Return the rows of a token budget, rounded down: a row trains on `seq_len` tokens.

    Args:
        where: what errors call the budget.

    Raises:
        UsageError: it is less than one row.
    """
    if tokens < seq_len:
        raise UsageError(
            f"{where}: {tokens:,} tokens are less than a row, which has {seq_len:,}. Raise it."
        )
    return tokens // seq_len


def _weights(request: StageRequest, supplies: Sequence[Supply]) -> list[int]:
    """Return the weights of a stage; of UniMax, which sources it may take."""
    if isinstance(request.weights, Mapping):
        return [request.weights.get(supply.name, 0) for supply in supplies]
    covered = [request.covers(supply.name) for supply in supplies]
    if request.weights == "unimax":
        return [int(is_covered) for is_covered in covered]
    rows = [s.rows for s, is_covered in zip(supplies, covered, strict=True) if is_covered]
    tempered = iter(temper(rows, request.temperature))
    return [next(tempered) if is_covered else 0 for is_covered in covered]


def cap_of(request: StageRequest, supply: Supply) -> float | None:
    """Return how many epochs of a source a stage may take; None = no bound of its own."""
    caps = request.max_epochs
    return caps.get(supply.name) if isinstance(caps, Mapping) else caps


def _limits(request: StageRequest, supplies: Sequence[Supply]) -> list[int]:
    """Return the most rows that a stage may take of each source, whatever the others take."""
    caps = [cap_of(request, supply) for supply in supplies]
    return [
        s.cap if cap is None else min(s.cap, epoch_rows(cap, s.rows))
        for s, cap in zip(supplies, caps, strict=True)
    ]


def _count_stages(
    requests: Sequence[StageRequest],
    sizes: Counts,
    shares: Sequence[Counts],
    caps: Counts,
    limits: Sequence[Counts],
) -> tuple[list[StageSchedule], dict[int, tuple[int, ...]]]:
    """Return the stages, and the rows available to those that UniMax can't fill."""
    lacking: dict[int, tuple[int, ...]] = {}
    counts: dict[int, list[int]] = {}
    weights = [list(share) for share in shares]
    by_unimax = [request.weights == "unimax" for request in requests]
    # False sorts before True: the others first, then UniMax, each in the order of the run.
    for i in sorted(range(len(requests)), key=lambda i: (by_unimax[i], i)):
        if by_unimax[i]:
            used = [sum(row) for row in zip(*counts.values(), strict=True)] or [0] * len(caps)
            available = [
                max(min(limit, cap - use), 0) if share else 0
                for limit, cap, use, share in zip(limits[i], caps, used, shares[i], strict=True)
            ]
            rows = spread_evenly(sizes[i], available)
            weights[i] = rows if any(rows) else weights[i]
            if sum(rows) < sizes[i]:
                lacking[i] = tuple(available)
        counts[i] = apportion(sizes[i], weights[i]).tolist()
    stages = [
        StageSchedule(request.name, sizes[i], tuple(weights[i]), tuple(counts[i]))
        for i, request in enumerate(requests)
    ]
    return stages, lacking


def _find_shortages(
    stages: Sequence[StageSchedule], caps: Counts, limits: Sequence[Counts]
) -> tuple[Shortage, ...]:
    """Return the first shortage of each source."""
    shortages: dict[int, Shortage] = {}
    rows_taken = [0] * len(caps)
    for i, stage in enumerate(stages):
        for k, count in enumerate(stage.counts):
            rows_left = max(caps[k] - rows_taken[k], 0)
            rows_taken[k] += count
            if count > min(rows_left, limits[i][k]) and k not in shortages:
                is_own = limits[i][k] < rows_left
                shortages[k] = Shortage(i, k, count, min(rows_left, limits[i][k]), is_own)
    return tuple(shortages.values())


def _max_rows(
    ratios: Counts, shares: Sequence[Counts], caps: Counts, limits: Sequence[Counts]
) -> int:
    """Return the most rows that a run can have with no source over a cap.

    Counts are monotone in the length of the run, so bisection is exact.
    """

    def fits(rows: int) -> bool:
        sizes = apportion(rows, ratios).tolist()
        counts = [apportion(size, share) for size, share in zip(sizes, shares, strict=True)]
        inside = all((count <= limit).all() for count, limit in zip(counts, limits, strict=True))
        return inside and bool((sum(counts[1:], counts[0]) <= caps).all())

    high = 1
    while fits(high):
        high *= 2
    return _largest(high, fits)


# ---------------------------------------------------------------- parameters


UNITS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_BUDGET = r"^[0-9]+(\.[0-9]+)?[KMBT]$"
_METHODS = ("proportional", "unimax")


def _check_weights(value: Any, check: Callable[[Any], Any]) -> Any:
    """Refuse wrong weights in one sentence: for a union, pydantic has one for each member."""
    if isinstance(value, str) and value not in _METHODS:
        hint = suggest(value, _METHODS)
        raise ValueError(f"{value!r} is not a way to compute weights. {hint}")
    for name, weight in value.items() if isinstance(value, dict) else ():
        if not isinstance(weight, int) or isinstance(weight, bool) or weight < 1:
            raise ValueError(
                f"the weight of {name!r} must be an integer of at least 1, got {weight!r}. "
                "Multiply all weights by the same number, or leave the source out."
            )
    if not isinstance(value, str | dict | None) or value == {}:
        raise ValueError("must be source -> integer, 'proportional' or 'unimax'")
    return check(value)


def _check_budget(value: Any, check: Callable[[Any], Any]) -> Any:
    """Refuse what is not a budget, in one sentence."""
    if isinstance(value, str):
        is_budget = bool(re.match(_BUDGET, value)) and num_tokens(value) > 0
    else:
        is_budget = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if value is not None and not is_budget:
        raise ValueError("must be a number of tokens, as in 10_000_000, 500M or 1.5B")
    return check(value)


MOST_EPOCHS = 1e9
"""With it the rows of a run fit into 63 bits."""


def _check_epochs(value: Any, check: Callable[[Any], Any]) -> Any:
    """Refuse wrong caps, in one sentence that names the source."""
    if isinstance(value, dict):
        for name, cap in value.items():
            if not _is_cap(cap):
                raise ValueError(
                    f"that of {name!r} must be a number above 0, at most 1e9, got {cap!r}."
                )
    elif value is not None and not _is_cap(value):
        raise ValueError("must be a number above 0, at most 1e9, or source -> number")
    return check(value)


def _is_cap(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= MOST_EPOCHS  # type: ignore[operator]


GivenWeights = dict[str, Annotated[int, Field(ge=1)]]
Weights = Annotated[
    GivenWeights | Literal["proportional", "unimax"] | None, WrapValidator(_check_weights)
]
Budget = Annotated[
    Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern=_BUDGET)] | None,
    WrapValidator(_check_budget),
]
Cap = Annotated[float, Field(gt=0, le=MOST_EPOCHS)]
Epochs = Annotated[Cap | dict[str, Cap], WrapValidator(_check_epochs)]
StageEpochs = Annotated[Cap | dict[str, Cap] | None, WrapValidator(_check_epochs)]
Temperature = Annotated[float, Field(ge=1, le=1000)]


def num_tokens(budget: int | str) -> int:
    """Return the tokens of a budget: an integer, or a decimal number with K, M, B or T."""
    if isinstance(budget, int):
        return budget
    return int(Fraction(budget[:-1]) * UNITS[budget[-1]])


def check_weighing(
    weights: Weights, temperature: float | None, sources: tuple[str, ...] | None = None
) -> None:
    """Check that only one thing decides the weights.

    Raises:
        ValueError: two do.
    """
    if temperature is not None and weights not in (None, "proportional"):
        kind = "unimax" if weights == "unimax" else "weights that are given"
        raise ValueError(
            f"temperature computes weights from rows, it can't go with {kind}. Remove one of them."
        )
    if sources is not None and isinstance(weights, dict):
        raise ValueError("sources can't go with weights that are given: they name theirs.")


class StageWeights(Parameters):
    """A part of the run with its own weights."""

    name: str
    """What reports call it."""
    weights: Weights = None
    """As for the run; a source left out gives none."""
    temperature: Temperature | None = None
    """As for the run."""
    sources: tuple[str, ...] | None = Field(None, min_length=1)
    """Those that computed weights cover; null takes all."""
    max_epochs: StageEpochs = None
    """How often this stage may take a source's rows; the cap of the run holds besides."""
    rows: int | None = Field(None, ge=1)
    """Packed rows; all stages have `rows` or `tokens`, or all have `ratio`."""
    tokens: Budget = None
    """Instead of `rows`: tokens to train on, as for the run."""
    ratio: int | None = Field(None, ge=1)
    """Integer share of all rows of the run."""

    @model_validator(mode="after")
    def _has_one_size(self) -> StageWeights:
        if sum(size is not None for size in (self.rows, self.tokens, self.ratio)) != 1:
            raise ValueError(f"stage {self.name!r} must have one of rows, tokens and ratio")
        try:
            check_weighing(self.weights, self.temperature, self.sources)
        except ValueError as error:
            raise ValueError(f"stage {self.name!r}: {error}") from None
        return self


# ---------------------------------------------------------------- shortages


def problem_of(schedule: Schedule, seq_len: int) -> str:
    """Return why a schedule is not possible and what would be, with the numbers; "" if it is."""
    # A stage that UniMax can't fill takes all that is left: later shortages follow from it.
    unfilled = min(schedule.available, default=len(schedule.stages))
    shortages = [shortage for shortage in schedule.shortages if shortage.stage < unfilled]
    if not shortages:
        return _unimax_problem(schedule, unfilled, seq_len) if schedule.available else ""
    worst = max(shortages, key=lambda shortage: Fraction(shortage.rows, shortage.max_rows + 1))
    supply, stage = schedule.supplies[worst.source], schedule.stages[worst.stage]
    total = sum(scheduled.counts[worst.source] for scheduled in schedule.stages)
    subject = f"the run takes {total:,} rows of {supply.name!r}"
    cap, rows_taken, parameter = supply.max_epochs, total, "max_epochs"
    if worst.is_own:
        cap, rows_taken = _own_cap(schedule, worst), worst.rows
        subject = f"stage {stage.name!r} takes {rows_taken:,} rows of {supply.name!r}"
        parameter = f"max_epochs of stage {stage.name!r}"
    row = turn(worst.source, worst.max_rows, stage.weights)
    where = f"stage {stage.name!r}" if len(schedule.stages) > 1 else "the run"
    advice = [
        *_advise_length(schedule, worst.stage, seq_len),
        *_advise_weight(schedule, worst),
        f"{parameter} for {supply.name!r} to {_needed_epochs(rows_taken, supply.rows)} or more",
    ]
    further = _other_shortages(schedule, shortages, worst)
    allowed = epoch_rows(cap, supply.rows)
    return (
        f"mix: {subject}, {rows_taken / supply.rows:.2f} epochs, but {parameter} {cap} allows "
        f"{allowed:,} (it has {supply.rows:,}). They are used up after {row:,} of "
        f"the {stage.rows:,} rows of {where}. Set {', or '.join(advice)}.{further}"
    )


def _unimax_problem(schedule: Schedule, number: int, seq_len: int) -> str:
    stage, rows_left = schedule.stages[number], schedule.available[number]
    where = f"stage {stage.name!r}" if len(schedule.stages) > 1 else "the run"
    rows_by_source = ", ".join(
        f"{supply.name} {rows:,}"
        for supply, rows in zip(schedule.supplies, rows_left, strict=True)
        if schedule.requests[number].covers(supply.name)
    )
    advice = [
        "Raise max_epochs",
        *(f"set {fix}" for fix in _advise_length(schedule, number, seq_len)),
    ]
    return (
        f"mix: {where} takes {stage.rows:,} rows, but max_epochs leaves it {sum(rows_left):,} "
        f"({rows_by_source}). {', or '.join(advice)}."
    )


def _advise_length(schedule: Schedule, number: int, seq_len: int) -> list[str]:
    """Return the largest length of a stage, or of a run whose stages have ratios, that fits.

    As the end of a sentence, in a list; empty if no length fits.
    """
    requests, name = schedule.requests, schedule.stages[number].name

    def fits(rows: int) -> bool:
        if requests[number].rows is None:
            return make_schedule(schedule.supplies, requests, rows).is_possible
        stages = [*requests]
        stages[number] = dataclasses.replace(stages[number], rows=rows)
        return make_schedule(schedule.supplies, stages).is_possible

    is_of_run = requests[number].rows is None
    total = sum(stage.rows for stage in schedule.stages)
    # Less of a stage is less of each of its sources, so bisection is exact.
    rows = _largest(total if is_of_run else schedule.stages[number].rows, fits)
    where = "" if is_of_run else f" of stage {name!r}"
    return [f"rows{where} to {rows:,} or less (tokens to {rows * seq_len:,})"] if rows else []


def _advise_weight(schedule: Schedule, worst: Shortage) -> list[str]:
    """Return the largest weight of the source in the stage that fits, if one does, in a list.

    A smaller weight takes less of its source, but more of the others, which may then run out.
    """
    request, name = schedule.requests[worst.stage], schedule.supplies[worst.source].name
    if not isinstance(request.weights, Mapping):
        return []
    weights = request.weights

    def make(weight: int) -> Schedule:
        stages = [*schedule.requests]
        stages[worst.stage] = dataclasses.replace(request, weights={**weights, name: weight})
        total = sum(stage.rows for stage in schedule.stages)
        return make_schedule(schedule.supplies, stages, total)

    weight = _largest(
        weights[name], lambda w: all(s.source != worst.source for s in make(w).shortages)
    )
    return [f"its weight to {weight:,} or less"] if weight and make(weight).is_possible else []


def _largest(high: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 1 on that fits, 0 if none does; `high` does not fit."""
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _own_cap(schedule: Schedule, shortage: Shortage) -> float:
    cap = cap_of(schedule.requests[shortage.stage], schedule.supplies[shortage.source])
    assert cap is not None, "it was the smaller one"
    return cap


def _other_shortages(schedule: Schedule, shortages: Sequence[Shortage], worst: Shortage) -> str:
    names = [
        f"{schedule.supplies[s.source].name!r} (in stage {schedule.stages[s.stage].name!r})"
        for s in shortages
        if s is not worst
    ]
    return f" Also too often: {', '.join(names)}." if names else ""


def _needed_epochs(rows_taken: int, rows: int) -> float:
    """Return the fewest epochs, with two decimals, that allow that many rows."""
    return math.ceil(Fraction(100 * rows_taken, rows)) / 100

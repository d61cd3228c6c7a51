"""How many rows each stage of a run takes from each source: integers in, integers out.

Nothing is read and nothing rounded in binary, so the same rows and parameters give the same
schedule on every machine. Letters: K sources, in the order of the mix plan.
"""

from __future__ import annotations

import dataclasses
import decimal
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NamedTuple

from corpuskit.errors import DataError, UsageError
from corpuskit.loader.order import apportion

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        return times(self.max_epochs, self.rows)


@dataclasses.dataclass(frozen=True)
class Stretch:
    """What is asked of a stage of the run.

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
class Taking:
    """A stage of the schedule: its rows, and per source (K,) its weight and the rows it gives."""

    name: str
    rows: int
    weights: tuple[int, ...]
    counts: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Shortage:
    """A source of which a stage takes more rows than are left.

    Attributes:
        stage, source: their numbers.
        taken: rows that the stage takes.
        allowed: rows that are left to it, or that its own cap allows (`is_own`).
    """

    stage: int
    source: int
    taken: int
    allowed: int
    is_own: bool


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What a run takes, stage after stage; it can be done if there are no shortages.

    Attributes:
        shortages: of each source the first.
        left: stages by number that UniMax can't fill -> rows (K,) that it may take of each source.
    """

    supplies: tuple[Supply, ...]
    stretches: tuple[Stretch, ...]
    stages: tuple[Taking, ...]
    shortages: tuple[Shortage, ...]
    left: Mapping[int, tuple[int, ...]]

    @property
    def is_possible(self) -> bool:
        """Whether no source gives more than it may."""
        return not self.shortages and not self.left


def make_schedule(
    supplies: Sequence[Supply], stretches: Sequence[Stretch], rows: int | None = None
) -> Schedule:
    """Return what a run takes from sources that all have rows.

    Weights that are given or proportional come first; UniMax spreads what those leave of the caps,
    stage after stage.

    Args:
        rows: of the run, where stages have ratios; None = as many as the caps allow, which must not
            be asked of UniMax.

    Raises:
        DataError: a stage has no source with rows, or the caps leave none.
    """
    caps = [supply.cap for supply in supplies]
    limits = [_limits(stretch, supplies) for stretch in stretches]
    shares = [_weights(stretch, supplies) for stretch in stretches]
    for stretch, share in zip(stretches, shares, strict=True):
        if not any(share):
            raise DataError(
                f"mix: stage {stretch.name!r} has no source with rows. See the report for what "
                "dropped them, or weigh other sources."
            )
    if stretches[0].rows is None:
        ratios = [stretch.ratio or 0 for stretch in stretches]
        num = _longest(ratios, shares, caps, limits) if rows is None else rows
        sizes = apportion(num, ratios).tolist() if num else []
    else:
        sizes = [stretch.rows or 0 for stretch in stretches]
    if not sizes:
        raise DataError("mix: max_epochs leaves no row to take. Raise it.")
    stages, left = _take(stretches, sizes, shares, caps, limits)
    shortages = _find_shortages(stages, caps, limits)
    return Schedule(tuple(supplies), tuple(stretches), tuple(stages), shortages, left)


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


def spread(budget: int, limits: Counts) -> list[int]:
    """Return how many rows UniMax takes of each source: (K,), none above its limit.

    The budget is divided evenly; what a small source can't give is divided among the larger ones.
    They sum to the budget, or to the limits where those are less.

    Source: Chung et al. 2023, UniMax, Algorithm 1, in rows instead of characters.
    """
    taken = [0] * len(limits)
    order = sorted((k for k, limit in enumerate(limits) if limit), key=lambda k: (limits[k], k))
    for place, k in enumerate(order):
        taken[k] = min(limits[k], budget // (len(order) - place))
        budget -= taken[k]
    return taken


def times(epochs: float, rows: int) -> int:
    """Return the whole rows of so many epochs: 1.1 x 10 rows are 11, not 11.000000000000002."""
    return int(Fraction(str(epochs)) * rows)


def rows_of(tokens: int, seq_len: int, where: str) -> int:
    """Return the rows of a token budget: a row trains on `seq_len` tokens, a rest is left out.

    Raises:
        UsageError: it is less than one row.
    """
    if tokens < seq_len:
        raise UsageError(
            f"{where}: {tokens:,} tokens are less than a row, which has {seq_len:,}. Raise it."
        )
    return tokens // seq_len


def _weights(stretch: Stretch, supplies: Sequence[Supply]) -> list[int]:
    """Return the weights of a stage; of UniMax, which sources it may take."""
    if isinstance(stretch.weights, Mapping):
        return [stretch.weights.get(supply.name, 0) for supply in supplies]
    covered = [stretch.covers(supply.name) for supply in supplies]
    if stretch.weights == "unimax":
        return [int(is_covered) for is_covered in covered]
    rows = [s.rows for s, is_covered in zip(supplies, covered, strict=True) if is_covered]
    found = iter(temper(rows, stretch.temperature))
    return [next(found) if is_covered else 0 for is_covered in covered]


def cap_of(stretch: Stretch, supply: Supply) -> float | None:
    """Return how many epochs of a source a stage may take; None = no bound of its own."""
    own = stretch.max_epochs
    return own.get(supply.name) if isinstance(own, Mapping) else own


def _limits(stretch: Stretch, supplies: Sequence[Supply]) -> list[int]:
    """Return the most rows that a stage may take of each source, whatever the others take."""
    caps = [cap_of(stretch, supply) for supply in supplies]
    return [
        s.cap if cap is None else min(s.cap, times(cap, s.rows))
        for s, cap in zip(supplies, caps, strict=True)
    ]


def _take(
    stretches: Sequence[Stretch],
    sizes: Counts,
    shares: Sequence[Counts],
    caps: Counts,
    limits: Sequence[Counts],
) -> tuple[list[Taking], dict[int, tuple[int, ...]]]:
    """Return the stages, and what is left for those of UniMax that it can't fill."""
    lacking: dict[int, tuple[int, ...]] = {}
    taken: dict[int, list[int]] = {}
    weights = [list(share) for share in shares]
    by_unimax = [stretch.weights == "unimax" for stretch in stretches]
    # False sorts before True: the others first, then UniMax, each in the order of the run.
    for i in sorted(range(len(stretches)), key=lambda i: (by_unimax[i], i)):
        if by_unimax[i]:
            used = [sum(counts) for counts in zip(*taken.values(), strict=True)] or [0] * len(caps)
            able = [
                max(min(limit, cap - use), 0) if share else 0
                for limit, cap, use, share in zip(limits[i], caps, used, shares[i], strict=True)
            ]
            found = spread(sizes[i], able)
            weights[i] = found if any(found) else weights[i]
            if sum(found) < sizes[i]:
                lacking[i] = tuple(able)
        taken[i] = apportion(sizes[i], weights[i]).tolist()
    stages = [
        Taking(stretch.name, sizes[i], tuple(weights[i]), tuple(taken[i]))
        for i, stretch in enumerate(stretches)
    ]
    return stages, lacking


def _find_shortages(
    stages: Sequence[Taking], caps: Counts, limits: Sequence[Counts]
) -> tuple[Shortage, ...]:
    """Return the first shortage of each source."""
    found: dict[int, Shortage] = {}
    before = [0] * len(caps)
    for i, stage in enumerate(stages):
        for k, count in enumerate(stage.counts):
            left = max(caps[k] - before[k], 0)
            before[k] += count
            if count > min(left, limits[i][k]) and k not in found:
                is_own = limits[i][k] < left
                found[k] = Shortage(i, k, count, min(left, limits[i][k]), is_own)
    return tuple(found.values())


def _longest(
    ratios: Counts, shares: Sequence[Counts], caps: Counts, limits: Sequence[Counts]
) -> int:
    """Return the most rows that a run can have with no source over a cap.

    Counts are monotone in the length of the run, so bisection is exact.
    """

    def fits(rows: int) -> bool:
        sizes = apportion(rows, ratios).tolist()
        counts = [apportion(size, share) for size, share in zip(sizes, shares, strict=True)]
        within = all((count <= limit).all() for count, limit in zip(counts, limits, strict=True))
        return within and bool((sum(counts[1:], counts[0]) <= caps).all())

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low

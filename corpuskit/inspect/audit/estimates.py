"""Rates with intervals: shares of documents, from some of the pieces of the data, or from all."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Z = 1.959964  # of the normal distribution, for 95 %


@dataclasses.dataclass(frozen=True)
class Rate:
    """A share of documents.

    Attributes:
        found, of: documents with it, and documents looked at.
        value: the share.
        low, high: its 95 % interval; equal if every document was looked at; `high` is None where
            the share can only be bounded from below.
        how: `counted`: of every document; `sampled`; or `at least`: the true share is larger than
            what can be seen in a sample.
    """

    found: int
    of: int
    value: float
    low: float
    high: float | None
    how: str = "sampled"

    @classmethod
    def unknown(cls) -> Rate:
        """Return what is known where there is no document: nothing."""
        return cls(0, 0, 0.0, 0.0, 1.0)


def estimate(
    hits: NDArray[np.float64], sizes: NDArray[np.float64], piece_share: float, kept_share: float,
    deff: float = 1.0,
) -> Rate:  # fmt: skip
    """Return a rate from the documents of pieces drawn at random, and drawn again from those.

    Documents of a piece are alike, so the variance between pieces counts, of the ratio estimator
    with its finite population correction; plus that of drawing documents within them. From both
    follows how many independent documents would say as much, and for that number the interval is
    Wilson's, with Student's quantile for the number of pieces.

    Args:
        hits, sizes: (P,) documents with the property, and all that were analysed, by piece.
        piece_share, kept_share: of the pieces, and of the documents in them.
        deff: how many times the variance of drawing documents is that of independent ones.

    Source: Cochran 1977, Sampling Techniques, sections 6.3 and 11.3; Wilson 1927; effective sample
    size as in Korn and Graubard 1998.
    """
    num = float(sizes.sum())
    num_hits = round(float(hits.sum()))
    if num == 0:
        return Rate.unknown()
    rate = num_hits / num
    if piece_share >= 1 and kept_share >= 1:
        return Rate(num_hits, int(num), rate, rate, rate, "counted")
    spread = rate * (1 - rate) / num
    pieces = int(np.count_nonzero(sizes))
    between, quantile = 0.0, Z
    if piece_share < 1:
        quantile = student_quantile(pieces - 1)
        residuals = hits - rate * sizes
        squares = float((residuals**2).sum()) / num**2
        between = squares * pieces / max(pieces - 1, 1) if pieces > 1 else spread * num
    variance = (1 - piece_share) * max(between, spread)
    variance += piece_share * (1 - kept_share) * spread * max(deff, 1.0)
    effective = num / (1 - piece_share * kept_share)
    if variance > 0:
        effective = min(rate * (1 - rate) / variance, effective)
    low, high = wilson(rate, effective, quantile)
    return Rate(num_hits, int(num), rate, low, high)


def wilson(rate: float, number: float, quantile: float = Z) -> tuple[float, float]:
    """Return Wilson's interval of a rate that `number` independent documents gave."""
    squared = quantile**2
    center = (rate + squared / (2 * number)) / (1 + squared / number)
    reach = rate * (1 - rate) / number + squared / (4 * number**2)
    half = quantile * float(np.sqrt(reach)) / (1 + squared / number)
    return max(center - half, 0.0) * (rate > 0), min(center + half, 1.0) if rate < 1 else 1.0


def student_quantile(freedom: int) -> float:
    """Return the quantile of Student's distribution for 95 %, of 2 degrees of freedom at least."""
    from scipy.special import stdtrit  # 0.33 CPU s to import, and only samples of pieces need it

    return float(stdtrit(max(freedom, 2), 0.975))


def at_least(rate: Rate, share: float) -> Rate:
    """Return a rate of duplicates among a share of the data as a bound of that in all of it.

    Of a document with copies elsewhere, one is met with a chance of `share` or more: the share
    found is at most the true one, and at least `share` times it.
    """
    high = None if rate.high is None else min(rate.high / share, 1.0)
    return dataclasses.replace(rate, high=high, how="at least")

"""Upsampling factors as functions of a value: tables, and the curve of Dolma 3."""

from __future__ import annotations

import functools
import math

Points = tuple[tuple[float, float], ...]
"""(value, factor), values ascending."""

FINEWEB2: Points = ((1, 1), (2, 2), (3, 3), (5, 5), (100, 8), (1000, 1))
"""Factor by size of the cluster of near-duplicates that a document stands for."""

_POWERS = tuple(0.01 + number * 1.99 / 19 for number in range(20))
_MAX_RATE = 2.0
_TOLERANCE = 1e-6
_DECIMALS = 9  # of a factor: libraries of mathematics differ in the last bits


def integral(power: float, rate: float, end: float) -> float:
    """Return the integral of `x**power * exp(rate * x)` from 0 to `end`, rate >= 0.

    By the series of the exponential: all its terms are positive, so nothing cancels.
    """
    total, term, count = 0.0, 1.0, 0
    while True:
        part = term / (power + count + 1)
        total += part
        if part <= total * 1e-17:
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
    dropped = math.floor(discard_below * buckets + 1e-9)
    end, width = 1 - dropped / buckets, 1 / buckets

    def top(power: float, rate: float) -> float:
        """Return the mean factor of the last bucket."""
        whole = integral(power, rate, end)
        return mean * (whole - integral(power, rate, end - width)) / whole / width

    power = max((p for p in _POWERS if top(p, 0.0) <= max_factor + _TOLERANCE), default=0.0)
    if not power:
        least = math.ceil(top(_POWERS[0], 0.0) * 100) / 100
        raise ValueError(
            f"mean {mean:g} with the lowest {dropped / buckets:.0%} dropped needs a factor of at "
            f"least {least:g}, above max_factor {max_factor:g}. Drop less, or change one of them"
        )
    low, high = 0.0, _MAX_RATE
    for _ in range(60):
        middle = (low + high) / 2
        is_below = top(power, middle) <= max_factor + _TOLERANCE
        low, high = (middle, high) if is_below else (low, middle)
    if top(power, _MAX_RATE) <= max_factor + _TOLERANCE:
        low = _MAX_RATE
    whole = integral(power, low, end)
    edges = [
        integral(power, low, max(number - dropped, 0) / buckets) for number in range(buckets + 1)
    ]
    return tuple(
        (
            number / buckets,
            round(mean * buckets * (edges[number + 1] - edges[number]) / whole, _DECIMALS),
        )
        for number in range(buckets)
    )

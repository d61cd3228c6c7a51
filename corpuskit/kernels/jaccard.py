"""Jaccard similarity of sets of numbers, and the bounds that follow from a least similarity.

|A & B| / |A | B| >= t means an overlap of at least t / (1 + t) (|A| + |B|). All bounds compare
the quotient that `similarities` gives, so that they agree with it in every last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Offsets = NDArray[np.int64]
    Rows = NDArray[np.int64]
    Hashes = NDArray[np.uint64]


@kernel
def least_overlap(one: int, other: int, threshold: float) -> int:
    """Return how many elements sets of these sizes, at least 1, must share."""
    shared = max(int(threshold * (one + other) / (1 + threshold)) - 1, 0)
    while shared / (one + other - shared) < threshold:
        shared += 1
    return shared


@kernel
def least_size(size: int, threshold: float) -> int:
    """Return how small a set may be, at least 1, to be similar to a larger one."""
    other = max(int(threshold * size) - 1, 1)
    while other / size < threshold:
        other += 1
    return other


@kernel
def most_size(size: int, shared: int, threshold: float) -> int:
    """Return how large a set may be that is similar to one with which it shares so many elements.

    Less than `shared` if none is.
    """
    other = int((shared + shared / threshold) - size) + 1
    while other >= shared and shared / (size + other - shared) < threshold:
        other -= 1
    return other


@kernel
def overlap(
    elements: NDArray[Any], one: int, one_end: int, other: int, other_end: int, least: int
) -> int:
    """Return how many elements two ascending ranges of `elements` share, -1 if under `least`.

    O(W) for W elements, 2 ns each whatever they are; stops when too many are missing.
    """
    shared = 0
    while one < one_end and other < other_end:
        left = min(one_end - one, other_end - other)
        if shared + left < least:
            return -1
        # Nothing to predict, and no end to look for: neither side moves on by more than `left`.
        for _ in range(min(left, 64)):
            a, b = elements[one], elements[other]
            shared += a == b
            one += a <= b
            other += a >= b
    return shared if shared >= least else -1


@kernel
def similarities(offsets: Offsets, hashes: Hashes, left: Rows, right: Rows) -> NDArray[np.float64]:
    """Return the Jaccard similarity of pairs of sets, (P,); NaN for two empty ones.

    Args:
        offsets, hashes: set i is `hashes[offsets[i]:offsets[i + 1]]`, ascending, no two equal.
        left, right: (P,) sets.
    """
    found = np.full(len(left), np.nan)
    for pair in range(len(left)):
        one, one_end = offsets[left[pair]], offsets[left[pair] + 1]
        other, other_end = offsets[right[pair]], offsets[right[pair] + 1]
        both = one_end - one + other_end - other
        if both > 0:
            shared = overlap(hashes, one, one_end, other, other_end, 0)
            found[pair] = shared / (both - shared)
    return found

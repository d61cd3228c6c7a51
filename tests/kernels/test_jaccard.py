from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.kernels.singlelink import least_overlap, least_size, most_size, overlap, similarities
from tests.shingles import similarity

THRESHOLDS = (0.01, 0.1, 0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99, 1.0)

numbers = st.sets(st.integers(0, 60) | st.sampled_from([2**63, 2**64 - 1]), max_size=40)


def packed(sets: list[set[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets and ascending elements, read-only as the stage has them."""
    offsets = np.cumsum([0, *map(len, sets)])
    elements = np.array([value for one in sets for value in sorted(one)], np.uint64)
    offsets.flags.writeable = elements.flags.writeable = False
    return offsets, elements


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_the_least_overlap_is_the_smallest_that_is_similar(threshold: float) -> None:
    for one in range(1, 24):
        for other in range(one, 24):
            least = least_overlap(one, other, threshold)
            fits = [s for s in range(one + 1) if s / (one + other - s) >= threshold]
            assert least == min(fits, default=least)
            assert fits or least > one


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_sizes_are_bounded_as_pairs_are_similar(threshold: float) -> None:
    for size in range(1, 40):
        least = least_size(size, threshold)
        assert least == min(s for s in range(1, size + 1) if s / size >= threshold)
        for shared in range(size + 1):
            fits = [
                other
                for other in range(max(shared, 1), math.ceil(size / threshold) + 2)
                if shared / (size + other - shared) >= threshold
            ]
            most = most_size(size, shared, threshold)
            assert most == max(fits) if fits else most < max(shared, 1)


@given(st.integers(1, 10**7), st.integers(1, 10**7), st.fractions(0, 1))
def test_the_least_overlap_of_large_sets_is_right_to_the_element(one, other, ratio) -> None:
    threshold = float(max(ratio, Fraction(1, 1000)))
    least = least_overlap(one, other, threshold)
    assert least / (one + other - least) >= threshold
    assert least == 0 or (least - 1) / (one + other - least + 1) < threshold


@given(numbers, numbers, st.integers(0, 40))
def test_overlaps_equal_those_of_sets(one: set[int], other: set[int], least: int) -> None:
    offsets, elements = packed([one, other])
    shared = len(one & other)
    found = overlap(elements, offsets[0], offsets[1], offsets[1], offsets[2], least)
    assert found == (shared if shared >= least else -1)


@given(st.lists(numbers, min_size=1, max_size=6), st.data())
def test_similarities_equal_those_of_sets(sets: list[set[int]], data) -> None:
    places = st.lists(st.integers(0, len(sets) - 1), min_size=4, max_size=4)
    left, right = (np.array(data.draw(places)) for _ in range(2))
    found = similarities(*packed(sets), left, right)
    for a, b, value in zip(left.tolist(), right.tolist(), found.tolist(), strict=True):
        if sets[a] or sets[b]:
            assert value == similarity(sets[a], sets[b])
        else:
            assert math.isnan(value)

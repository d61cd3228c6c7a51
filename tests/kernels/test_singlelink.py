from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.kernels.singlelink import (
    FEW,
    least_overlap,
    least_size,
    most_size,
    overlap,
    shared_ranks,
    similarities,
    single_link,
)
from tests.shingles import similarity
from tests.shingles import single_link as plain

THRESHOLDS = (0.01, 0.1, 0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99, 1.0)


small = st.sets(st.integers(0, 12), max_size=8)


def clusters(sets: list[set[int]], threshold: float, components=None, **known) -> list[int]:
    numbers = np.array([0] * len(sets) if components is None else components, np.int64)
    return single_link(numbers, *packed(sets), threshold, **known).tolist()


def grown(source: random.Random, num_sets: int, universe: int, changes: int) -> list[set[int]]:
    """Return sets of which most are edited copies of others: chains, families and strangers."""
    sets: list[set[int]] = []
    for _ in range(num_sets):
        if not sets or source.random() < 0.2:
            sets.append({source.randrange(universe) for _ in range(source.randrange(universe))})
        else:
            copy = set(source.choice(sets))
            for _ in range(source.randint(0, changes)):
                copy ^= {source.randrange(universe)}
            sets.append(copy)
    return sets


@settings(max_examples=50)
@given(st.lists(small, max_size=FEW), st.sampled_from(THRESHOLDS), st.data())
def test_few_sets_are_connected_as_all_pairs_say(sets, threshold: float, data) -> None:
    components = [data.draw(st.integers(0, 1)) for _ in sets]
    assert clusters(sets, threshold, components) == plain(sets, threshold, components)


@settings(max_examples=50)
@given(
    st.integers(0, 2**32), st.integers(FEW + 1, 40), st.integers(2, 40), st.integers(0, 5),
    st.sampled_from(THRESHOLDS),
)  # fmt: skip
def test_many_sets_are_connected_as_all_pairs_say(
    seed: int, num_sets: int, universe: int, changes: int, threshold: float
) -> None:
    source = random.Random(seed)
    sets = grown(source, num_sets, universe, changes)
    components = [source.randrange(2) for _ in sets]
    assert clusters(sets, threshold, components) == plain(sets, threshold, components)


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from(THRESHOLDS))
def test_what_is_known_to_be_connected_stays_so(seed: int, threshold: float) -> None:
    source = random.Random(seed)
    sets = grown(source, 20, 20, 2)
    rows = [row for row in range(20) if source.random() < 0.8]
    labels = [source.randrange(12) for _ in sets]
    found = clusters(sets, threshold, rows=np.array(rows, np.int64), labels=np.array(labels))
    # Sets that share a label share an element of their own, which makes them similar.
    compared = [one if row in rows else set() for row, one in enumerate(sets)]
    expected = list(range(20))
    for _ in sets:
        for row, label in enumerate(plain(compared, threshold)):
            expected[row] = expected[label] = min(expected[row], expected[label])
        for row in range(20):
            first = labels.index(labels[row])
            expected[row] = expected[first] = min(expected[row], expected[first])
    assert found == expected


@pytest.mark.parametrize("num_sets", [2, FEW + 1, 60])
def test_a_chain_is_one_cluster_though_its_ends_share_nothing(num_sets: int) -> None:
    sets = [set(range(start, start + 9)) for start in range(num_sets)]
    order = random.Random(0).sample(range(num_sets), num_sets)
    assert set(clusters([sets[place] for place in order], 0.8)) == {0}
    assert len(set(clusters(sets, 0.81))) == num_sets


def test_pairs_just_below_the_threshold_stay_apart() -> None:
    template = set(range(80))
    sets = [template | {1000 * number + more for more in range(11)} for number in range(1, 41)]
    assert len(set(clusters(sets, 80 / 102))) == 1
    assert len(set(clusters(sets, 80 / 102 + 1e-12))) == 40


def test_two_near_families_stay_apart() -> None:
    source = random.Random(1)
    shared, one, other = set(range(86)), set(range(100, 114)), set(range(200, 214))
    sets = [shared | family for family in (one, other) for _ in range(20)]
    sets = [members - {source.choice(sorted(members))} for members in sets]
    assert set(clusters(sets, 0.8)) == {0, 20}


def plain_ranks(sets: list[set[int]]) -> list[list[int]]:
    counts = {value: sum(value in one for one in sets) for one in sets for value in one}
    return [sorted(counts[value] for value in one if counts[value] > 1) for one in sets]


@settings(max_examples=40)
@given(st.lists(st.sets(st.integers(0, 2**64 - 1) | st.integers(0, 9)), max_size=9))
def test_shared_elements_are_ranked_by_how_many_sets_have_them(sets: list[set[int]]) -> None:
    starts, ranks, num = shared_ranks(np.arange(len(sets)), *packed(sets))
    lists = [ranks[a:b].tolist() for a, b in itertools.pairwise(starts)]
    counts = np.bincount(ranks, minlength=num)
    assert (np.diff(counts) >= 0).all()
    assert [[counts[rank] for rank in ranked] for ranked in lists] == plain_ranks(sets)
    assert all(ranked == sorted(set(ranked)) for ranked in lists)
    shared = {value for one in sets for value in one if sum(value in other for other in sets) > 1}
    assert len({rank for ranked in lists for rank in ranked}) == num == len(shared)


def test_tables_grow_with_what_they_hold() -> None:
    sets = [set(range(3000)), set(range(1000, 4000))]
    starts, ranks, num = shared_ranks(np.arange(2), *packed(sets))
    assert (starts.tolist(), num) == ([0, 2000, 4000], 2000)
    assert (ranks[:2000] == ranks[2000:]).all()


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

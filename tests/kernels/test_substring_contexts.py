from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.kernels.substring.contexts import (
    FEW,
    Contexts,
    copy_contexts,
    find_equal,
    flag_windows,
    group_rows,
    group_sizes,
    hash_windows,
    order_hashes,
    order_keys,
)

GRAM = "xyxxy"


def frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


hashes = st.lists(st.integers(0, 12) | st.integers(0, (1 << 64) - 1), max_size=40)


@settings(max_examples=60)
@given(hashes)
def test_the_order_of_hashes_is_that_of_a_stable_sort(values):
    array = np.array(values, np.uint64)
    assert order_hashes(array).tolist() == np.argsort(array, kind="stable").tolist()


@settings(max_examples=60)
@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 5000), max_size=40))
def test_the_order_of_keys_is_that_of_a_stable_sort(values):
    array = np.array(values, np.int64)
    assert order_keys(array).tolist() == np.argsort(array, kind="stable").tolist()


@settings(max_examples=30)
@given(hashes)
def test_the_size_of_a_group_is_how_often_its_hash_occurs(values):
    array = frozen(np.array(values, np.uint64))
    assert group_sizes(array).tolist() == [values.count(value) for value in values]


rows = st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(5, 8), st.integers(0, 9))


@settings(max_examples=60)
@given(st.lists(rows, max_size=30, unique=True))
def test_rows_come_by_fingerprint_then_rank_then_key_then_start(found):
    columns = np.array(found, np.int64).reshape(-1, 4).T
    types = (np.uint64, np.uint8, np.int64, np.uint32)
    order = group_rows(*(frozen(c.astype(t)) for c, t in zip(columns, types, strict=True)))
    assert [found[row] for row in order] == sorted(found)


class Laid(tuple):
    """Contexts of texts: (fingerprint, text before the gram, behind it)."""

    def contexts(self, width: int = 1) -> tuple[Contexts, np.ndarray]:
        texts = [before + GRAM + behind for _, before, behind in self]
        symbols = np.frombuffer("".join(texts).encode(), np.uint8).astype(f"u{width}")
        sizes = np.array([len(text) for text in texts], np.int64) * width
        ats = np.array([len(before) for _, before, _ in self], np.int64) * width
        fps = np.array([fp for fp, _, _ in self], np.uint64)
        return Contexts(fps, np.cumsum(sizes) - sizes, sizes, ats), frozen(symbols.view(np.uint8))


sides = st.text("ab", max_size=9)
laid = st.lists(st.tuples(st.integers(0, 1), sides, sides), min_size=1, max_size=24).map(
    lambda found: Laid(sorted(found, key=lambda one: one[0]))
)


@settings(max_examples=80)
@given(laid)
def test_equal_contexts_point_to_the_first_of_them(found):
    wanted: dict[tuple[int, str, str], int] = {}
    for number, one in enumerate(found):
        wanted.setdefault(one, number)
    assert find_equal(*found.contexts()).tolist() == [wanted[one] for one in found]


def plain_flags(found: Laid, window: int, keep_first: bool) -> set[tuple[int, int]]:
    """Return (context, window in it) of all windows with the gram in them that are repeated."""
    places = defaultdict(list)
    for number, (fp, before, behind) in enumerate(found):
        text = before + GRAM + behind
        for start in range(len(text) - window + 1):
            places[fp, len(before) - start, text[start : start + window]].append((number, start))
    groups = [group for group in places.values() if len(group) > 1]
    return {place for group in groups for place in group[keep_first:]}


@settings(max_examples=150)
@given(laid, st.booleans(), st.sampled_from([1, 4]))
def test_flagged_windows_are_those_of_a_dictionary(found, keep_first, width):
    # A context owns windows that hold its gram: as many symbols on each side at the most.
    window = len(GRAM) + 9
    found = Laid(one for one in found if len(one[1]) + len(one[2]) >= 9)
    if not found:
        return
    contexts, data = found.contexts(width)
    first = find_equal(contexts, data)
    runs = flag_windows(contexts, first, data, window * width, width, keep_first)
    flagged = {
        (row, place)
        for row, start, count in zip(*(column.tolist() for column in runs), strict=True)
        for place in range(start, start + count)
    }
    assert flagged == plain_flags(found, window, keep_first)


@pytest.mark.parametrize("keep_first", [True, False])
@pytest.mark.parametrize("num", [2, FEW, FEW + 1, 64])
def test_pairs_and_sweeps_find_the_same(num, keep_first):
    # All differ, far left or far right, and share what lies between.
    sides = ["".join(pair) for pair in itertools.product("ab", repeat=6)]
    found = Laid((7, sides[n], "bbb" + sides[-n]) for n in range(num))
    window = len(GRAM) + 9
    contexts, data = found.contexts()
    first = find_equal(contexts, data)
    runs = flag_windows(contexts, first, data, window, 1, keep_first)
    flagged = {
        (row, place)
        for row, start, count in zip(*(column.tolist() for column in runs), strict=True)
        for place in range(start, start + count)
    }
    assert flagged == plain_flags(found, window, keep_first)


@settings(max_examples=50)
@given(laid, st.sampled_from([1, 4]))
def test_windows_have_equal_hashes_when_they_and_their_seeds_are_equal(found, width):
    window = 5
    contexts, data = found.contexts(width)
    lasts = (contexts.sizes // width - window).astype(np.uint16)
    values, which, places = hash_windows(
        contexts.begins, lasts, data, window * width, width, contexts.fps
    )
    texts = [before + GRAM + behind for _, before, behind in found]
    named = [
        (found[row][0], texts[row][place : place + window])
        for row, place in zip(which.tolist(), places.tolist(), strict=True)
    ]
    assert len(named) == sum(len(text) - window + 1 for text in texts)
    assert len(set(values.tolist())) == len(set(named))
    assert len(set(zip(values.tolist(), named, strict=True))) == len(set(named))


def test_contexts_are_copied_one_after_another():
    data = frozen(np.frombuffer(b"hello world", np.uint8).copy())
    copy = copy_contexts(np.array([6, 0, 4]), np.array([5, 0, 2]), data)
    assert copy.tobytes() == b"worldo "

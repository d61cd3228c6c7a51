from __future__ import annotations

import numpy as np
import pytest

from corpuskit.kernels.spans import add_cut, close_gap, fill_gap

SPACE = 9


def cuts(*given):
    starts, ends, codes = np.zeros(9, np.int64), np.zeros(9, np.int64), np.zeros(9, np.uint8)
    num = 0
    for start, end, code in given:
        num = add_cut(starts, ends, codes, 0, num, start, end, code)
    return starts, ends, codes, num


def listed(starts, ends, codes, num):
    return list(zip(starts[:num].tolist(), ends[:num].tolist(), codes[:num].tolist(), strict=True))


def filled(given, low, high):
    *arrays, num = cuts(*given)
    return listed(*arrays, fill_gap(*arrays, 0, num, low, high, SPACE))


def test_a_cut_that_touches_one_of_its_code_joins_it():
    assert listed(*cuts((1, 3, 4), (3, 5, 4), (5, 6, 7), (7, 8, 7))) == [
        (1, 5, 4),
        (5, 6, 7),
        (7, 8, 7),
    ]


def test_an_empty_cut_is_none():
    assert listed(*cuts((2, 2, 4))) == []


@pytest.mark.parametrize(
    ("given", "low", "high", "expected"),
    [
        ([], 2, 5, [(2, 5, SPACE)]),
        ([], 5, 5, []),
        ([(3, 4, 1)], 2, 6, [(2, 6, 1)]),
        ([(3, 4, 1), (5, 6, 2)], 2, 8, [(2, 5, 1), (5, 8, 2)]),
        ([(0, 1, 1), (4, 5, 2)], 2, 5, [(0, 1, 1), (2, 5, 2)]),
    ],
)
def test_a_gap_is_covered_without_holes(given, low, high, expected):
    assert filled(given, low, high) == expected


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        (b"a\nb", [], []),
        (b"a \nb", [], [(1, 3, SPACE)]),
        (b"a\n b", [], [(2, 3, SPACE)]),
        (b"a\nxx\nb", [(2, 5, 4)], [(2, 5, 4)]),
        (b"a\r\nxx\nb", [(3, 6, 4)], [(1, 6, 4)]),
    ],
)
def test_the_joining_character_between_lines_stays_where_it_is(text, given, expected):
    *arrays, num = cuts(*given)
    data = np.frombuffer(text, np.uint8)
    num = close_gap(data, *arrays, 0, num, 1, len(text) - 1, 10, SPACE)
    assert listed(*arrays, num) == expected

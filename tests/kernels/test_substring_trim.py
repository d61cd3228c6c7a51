from __future__ import annotations

import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.formats.batch import utf8
from corpuskit.kernels.substring.spans import CHAR, LINE, WORD, char_kinds, trim_spans
from tests.contract.strategies import PIECES

mixed = st.lists(st.sampled_from([*PIECES, " ", "word", "\u4f60\u597d", "\n"]), max_size=8)
UNSPACED = range(0x2E80, 0x3130), range(0x3190, 0xA000), range(0xFF00, 0xFFA0)


def trimmed(text: str, start: int, end: int, trim: int) -> tuple[int, int]:
    one = np.array([0]), np.array([start]), np.array([end])
    starts, ends = trim_spans(*utf8(pa.array([text], pa.large_string())), *one, char_kinds(), trim)
    return int(starts[0]), int(ends[0])


def plain_edges(text: str, trim: int) -> tuple[set[int], set[int]]:
    """Return where cuts may start and where they may end, in bytes."""
    starts, ends = {0}, set()
    at = 0
    for number, char in enumerate(text):
        last = text[number - 1] if number else ""
        extends = unicodedata.category(char)[0] == "M" or char in "\u200c\u200d"
        if number and trim == LINE:
            starts |= {at} if last == "\n" else set()
            ends |= {at} if "\n" in (last, char) else set()
        elif number and not extends:
            starts |= {at} if trim == CHAR or parts(last) else set()
            ends |= {at} if trim == CHAR or parts(last) or parts(char) else set()
        at += len(char.encode())
    return starts, ends | {0, at}


def parts(char: str) -> bool:
    """Return whether a character is no part of a longer word."""
    return char.isspace() or any(ord(char) in block for block in UNSPACED)


@settings(max_examples=150)
@given(mixed.map("".join), st.data())
def test_spans_shrink_to_the_nearest_edges_within(text: str, data: st.DataObject) -> None:
    size = len(text.encode())
    start, end = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
    trim = data.draw(st.sampled_from([CHAR, WORD, LINE]))
    starts, ends = plain_edges(text, trim)
    low = min((at for at in starts if start <= at <= end), default=end)
    high = max((at for at in ends if low <= at <= end), default=low)
    if low == end:
        high = end
    assert trimmed(text, start, end, trim) == (low, high)


@pytest.mark.parametrize(
    ("text", "start", "end", "stays"),
    [
        ("some words here", 5, 11, "some here"),
        ("some words here", 4, 11, "some here"),
        ("some words here", 2, 13, "some here"),
        ("somewords", 2, 6, "somewords"),
        ("words at the end", 9, 16, "words at "),
        ("\u4f60\u597d\u5417\u6211", 3, 9, "\u4f60\u6211"),
        ("foo\u4f60\u597dbar", 3, 9, "foo\u4f60bar"),
    ],
)
def test_words_are_neither_cut_nor_glued(text: str, start: int, end: int, stays: str) -> None:
    low, high = trimmed(text, start, end, WORD)
    whole = text.encode()
    assert (whole[:low] + whole[high:]).decode() == stays


@pytest.mark.parametrize("mark", ["\u0301", "\u093f", "\u200c", "\u200d"])
def test_a_combining_mark_stays_with_its_letter(mark: str) -> None:
    text = f"xe{mark}y"
    size = len(text.encode())
    assert trimmed(text, 2, size, CHAR) == (size - 1, size)
    assert trimmed(text, 0, 2, CHAR) == (0, 1)


def test_whole_lines_go() -> None:
    text = "one\ntwo\nthree\nfour"
    assert trimmed(text, 1, 16, LINE) == (4, 14)
    assert trimmed(text, 4, 7, LINE) == (4, 7)
    assert trimmed(text, 5, 7, LINE) == (7, 7)

from __future__ import annotations

import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.formats.batch import utf8
from corpuskit.kernels.substring.spans import (
    CHAR,
    LINE,
    WORD,
    char_kinds,
    flag_all,
    flag_later,
    flagged_spans,
    join_spans,
    link_windows,
    trim_spans,
)
from tests.contract.strategies import PIECES

Spans = list[tuple[int, int, int]]


def as_spans(arrays: tuple[np.ndarray, ...]) -> Spans:
    return list(zip(*(part.tolist() for part in arrays), strict=True))


def runs(cells: set[tuple[int, int]]) -> Spans:
    """Return runs of (text, position) as spans."""
    spans: Spans = []
    for text, at in sorted(cells):
        if spans and spans[-1][0] == text and spans[-1][2] == at:
            spans[-1] = (text, spans[-1][1], at + 1)
        else:
            spans.append((text, at, at + 1))
    return spans


@settings(max_examples=60)
@given(st.lists(st.lists(st.booleans(), max_size=12), min_size=1, max_size=4), st.integers(1, 5))
def test_spans_are_the_union_of_flagged_windows(flagged: list[list[bool]], window: int) -> None:
    cells = {
        (text, at + step)
        for text, flags in enumerate(flagged)
        for at, flag in enumerate(flags)
        for step in range(window)
        if flag
    }
    # A window fits into its text, and a separator follows.
    padded = [[*flags, *[False] * window] for flags in flagged]
    offsets = np.append(0, np.cumsum([len(flags) for flags in padded]))
    found = flagged_spans(np.concatenate(padded).astype(np.uint8), offsets, window)
    assert as_spans(found) == runs(cells)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 4)), max_size=8),
    st.integers(0, 5),
)
def test_what_lies_between_near_spans_is_taken_in(drawn: Spans, fragment: int) -> None:
    spans: Spans = []
    for row, start, size in sorted(drawn):
        if not spans or spans[-1][0] < row or spans[-1][2] <= start:
            spans.append((row, start, start + size))
    plain: Spans = []
    for row, start, end in spans:
        if start == end:
            continue
        if plain and plain[-1][0] == row and start - plain[-1][2] < fragment:
            plain[-1] = (row, plain[-1][1], end)
        else:
            plain.append((row, start, end))
    rows, starts, ends = np.array(spans, np.int64).reshape(-1, 3).T.copy()
    assert as_spans(join_spans(rows, starts, ends, fragment)) == plain


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


corpora = st.lists(st.text("ab", max_size=20) | st.text("abc", max_size=9), min_size=1, max_size=5)


def lay_out(texts: list[str], kind: type = np.uint8) -> tuple[np.ndarray, np.ndarray]:
    symbols = np.frombuffer("".join(text + "\x7f" for text in texts).encode(), np.uint8)
    offsets = np.append(0, np.cumsum([len(text) + 1 for text in texts]))
    return symbols.astype(kind), offsets


def suffix_array(symbols: np.ndarray, kind: type = np.int32) -> np.ndarray:
    whole = symbols.tolist()
    return np.array(sorted(range(len(whole)), key=lambda at: whole[at:]), kind)


def plain_flags(texts: list[str], window: int, keep: str) -> list[int]:
    """Flag windows that occur twice, all or all but the first."""
    places: dict[str, list[int]] = {}
    at = 0
    for text in texts:
        for start in range(len(text) - window + 1):
            places.setdefault(text[start : start + window], []).append(at + start)
        at += len(text) + 1
    flags = [0] * at
    for found in places.values():
        for place in found if keep == "none" and len(found) > 1 else found[1:]:
            flags[place] = 1
    return flags


@settings(max_examples=60)
@given(corpora, st.integers(1, 6))
def test_flags_equal_a_dictionary(texts: list[str], window: int) -> None:
    symbols, offsets = lay_out(texts)
    order = suffix_array(symbols)
    for settle, keep in ((flag_later, "first"), (flag_all, "none")):
        flags = link_windows(symbols, offsets, order, window)
        settle(flags, order)
        assert flags.tolist() == plain_flags(texts, window, keep)


@pytest.mark.slow
def test_ids_and_wide_suffix_arrays_give_the_same_flags() -> None:
    texts = ["abcabcab", "", "xabcab", "bcabc"]
    narrow = link_windows(*lay_out(texts), suffix_array(lay_out(texts)[0]), 4)
    symbols, offsets = lay_out(texts, np.uint32)
    wide = link_windows(symbols, offsets, suffix_array(symbols, np.int64), 4)
    assert narrow.tolist() == wide.tolist()
    assert narrow.any()


def test_of_equal_windows_all_but_one_are_linked() -> None:
    symbols, offsets = lay_out(["abab", "abab", "ab"])
    links = link_windows(symbols, offsets, suffix_array(symbols), 4)
    assert links.sum() == 1

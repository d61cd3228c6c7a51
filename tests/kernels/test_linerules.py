from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.kernels.filters.linerules import (
    COUNTER,
    MAY_COUNT,
    MAY_HOLD_PHRASE,
    NUMERIC,
    TOO_FEW_WORDS,
    UPPERCASE,
    WHITESPACE,
    count_words,
    judge_lines,
    list_cuts,
    measure_lines,
)
from tests.contract.strategies import texts, view


def lines_of(documents, max_phrase_words=10):
    return measure_lines(*view(documents).text, max_phrase_words)


@given(texts())
def test_counts_of_lines_equal_plain_python(documents):
    found = lines_of(documents)
    expected = [
        (len(line), sum(map(str.isupper, line)), sum(map(str.isdigit, line)), len(line.split()))
        for document in documents
        for line in document.split("\n")
    ]
    assert [tuple(counts) for counts in found.counts.T.tolist()] == expected


@given(texts())
def test_words_are_counted_as_by_plain_python(documents):
    expected = [
        sum(bool(word) and word[0].isalnum() for word in re.split(r"[ \n\r\t\v\f\0]", document))
        for document in documents
    ]
    text = view(documents).text
    assert count_words(*text).tolist() == expected


def test_words_of_chosen_texts_are_counted_again():
    text = view(["a b", "c", "d e f"]).text
    known = np.full(3, 7)
    assert count_words(*text, known, np.array([0, 2])).tolist() == [2, 7, 3]


@pytest.mark.parametrize(
    ("line", "gate"),
    [
        ("3 likes", MAY_COUNT),
        ("3 bookmar\u212as \u2665", MAY_COUNT),
        ("no digit likes", 0),
        ("3likes", 0),
        ("2 Items in CART", MAY_HOLD_PHRASE),
        ("Read More...", MAY_HOLD_PHRASE),
        ("\u017fign-in", MAY_HOLD_PHRASE),
        ("in art, more or less", 0),
        ("word " * 11 + "cart", 0),
    ],
)
def test_gates_let_through_what_could_match(line, gate):
    assert lines_of([line]).gates.tolist() == [gate]


def judged(text, **changes):
    """Return codes of lines, and what is left of the page by the cuts alone."""
    rules = {
        "max_uppercase_ratio": 0.5,
        "max_numeric_ratio": 0.999999,
        "min_words": 2,
        "drops_counters": True,
        "strips_phrases": True,
        **changes,
    }
    buffers = view([text]).text
    lines = lines_of([text])
    is_counter = lines.gates & MAY_COUNT
    codes, has_text = judge_lines(buffers.data, lines, is_counter, **rules)
    data, at, left = text.encode(), 0, b""
    for _, start, end, _ in zip(*list_cuts(*buffers, lines, codes), strict=True):
        left, at = left + data[at:start], end
    return codes.tolist(), (left + data[at:]).decode() if has_text[0] else None


def test_each_rule_takes_its_lines():
    text = "MENU X\n2024\n3 likes\nHome\na line stays\n \nto the end"
    codes, left = judged(text)
    assert codes == [UPPERCASE, NUMERIC, COUNTER, TOO_FEW_WORDS, 0, TOO_FEW_WORDS, 0]
    assert left == "a line stays\nto the end"


def test_a_page_is_stripped_between_rules():
    # Only without its leading spaces is the first line all digits.
    assert judged("  12\nwords stay") == ([NUMERIC, 0], "words stay")
    assert judged("a b\n  12\nwords stay")[0] == [0, TOO_FEW_WORDS, 0]


def test_a_page_without_anything_left_has_no_text():
    assert judged("HOME\n\n") == ([UPPERCASE, WHITESPACE, WHITESPACE], None)
    assert judged("one\ntwo")[1] is None


def test_a_rule_that_is_off_does_not_strip():
    off = {"max_uppercase_ratio": None, "max_numeric_ratio": None, "drops_counters": False}
    text = " a b \n\n"
    assert judged(text, **off, min_words=None, strips_phrases=False) == ([0, 0, 0], text)
    assert judged(text, **off, strips_phrases=False)[1] == text


@given(st.lists(st.sampled_from(["AB", "a b", "12", "one", "", " ", " x y "]), max_size=6))
def test_empty_lines_between_lines_that_stay_are_kept(parts):
    _, left = judged("\n".join(parts))
    kept = [part for part in parts if part in {"", "a b", " x y "}]
    assert (left or "") == "\n".join(kept).strip()

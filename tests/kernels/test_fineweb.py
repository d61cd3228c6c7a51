from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.formats.batch import utf8
from corpuskit.kernels.filters.fineweb import MEASURES, count_newlines, measure_lines
from corpuskit.kernels.utf8 import TERMINAL
from tests.contract.strategies import texts, view

SHORT = 5


def measure_plainly(text, stop_chars=TERMINAL, short=SHORT):
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return (0, math.nan, math.nan, math.nan, text.count("\n"))
    repeated = sum(len(line) for at, line in enumerate(lines) if line in lines[:at])
    return (
        len(lines),
        sum(line[-1] in stop_chars for line in lines) / len(lines),
        sum(len(line) <= short for line in lines) / len(lines),
        repeated / len(text.replace("\n", "")),
        text.count("\n"),
    )


def measure(text, stop_chars=TERMINAL, short=SHORT):
    table = measure_lines(text.offsets, text.data, stop_chars, short)
    assert table.shape == (len(MEASURES), len(text))
    return table.T.tolist()


def same(found, expected):
    return repr(found) == repr([[float(value) for value in row] for row in expected])


@given(texts())
def test_measures_equal_plain_python(documents):
    assert same(measure(view(documents).text), map(measure_plainly, documents))


@given(st.lists(st.text("a\n ", max_size=12), max_size=5))
def test_repeated_lines_equal_plain_python(documents):
    assert same(measure(view(documents).text), map(measure_plainly, documents))


def test_a_slice_measures_as_the_whole():
    documents = ["a\na", "b.\n\xe9\nb.", "c\n"]
    text = utf8(view(documents).batch.column("text").slice(1))
    assert same(measure(text), map(measure_plainly, documents[1:]))


def test_lines_of_another_document_are_no_repetition():
    assert [row[3] for row in measure(view(["same line"] * 3).text)] == [0, 0, 0]


@pytest.mark.parametrize("line", ["a.", "a. ", "a.\r", "a\u3002", "a.\u3000", "\U00011a42"])
def test_the_end_of_a_line_is_not_stripped(line):
    assert same(measure(view([line]).text), [measure_plainly(line)])


def test_stop_characters_may_be_chosen():
    documents = ["a\xe9\nb.", "\U0001d4b3"]
    for chars in ((), ("\xe9",), ("\U0001d4b3", ".")):
        expected = [measure_plainly(text, chars) for text in documents]
        assert same(measure(view(documents).text, chars), expected)


def test_line_ends_are_counted_in_every_text():
    text = view(["", "\n", "a\n\nb", "\r"]).text
    assert count_newlines(text.offsets, text.data).tolist() == [0, 1, 2, 0]

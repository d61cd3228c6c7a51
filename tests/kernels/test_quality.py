from __future__ import annotations

import math

import pytest
from hypothesis import given

from corpuskit.batch import utf8
from corpuskit.kernels.punctuation import PUNCTUATION, TERMINAL
from corpuskit.kernels.quality import MEASURES, measure_quality, vocabulary
from corpuskit.kernels.words import whitespace_words
from tests.contract.strategies import WORLD, texts, view

STOP_WORDS = ("the", "of", "a", "to", "\xe9", "word", "x" * 31)
SYMBOLS = PUNCTUATION | TERMINAL


def ratio(part, whole):
    return part / whole if whole else math.nan


def measure_plainly(text):
    words = text.split()
    solid = [word for word in words if any(char not in SYMBOLS for char in word)]
    lines = text.splitlines()
    return (
        len(solid),
        ratio(sum(map(len, solid)), len(solid)),
        ratio(text.count("#"), len(words)),
        ratio(text.count("...") + text.count("\u2026"), len(words)),
        ratio(sum(line.lstrip().startswith(("-", "\u2022")) for line in lines), len(lines)),
        ratio(sum(line.rstrip().endswith(("...", "\u2026")) for line in lines), len(lines)),
        ratio(sum(any(map(str.isalpha, word)) for word in words), len(words)),
        len(set(words) & set(STOP_WORDS)),
    )


def measure(text):
    words = whitespace_words(text.offsets, text.data)
    table = measure_quality(text.offsets, text.data, words, vocabulary(STOP_WORDS))
    assert table.shape == (len(MEASURES), len(text))
    return table.T.tolist()


def same(found, expected):
    return repr(found) == repr([[float(value) for value in row] for row in expected])


@given(texts())
def test_measures_equal_plain_python(documents):
    assert same(measure(view(documents).text), map(measure_plainly, documents))


def test_measures_of_every_small_text():
    assert same(measure(view(WORLD).text), map(measure_plainly, WORLD))


def test_a_slice_measures_as_the_whole():
    documents = ["the #end...", "- \u2026\n\u2022 a", "\xe9 of " * 3]
    text = utf8(view(documents).batch.column("text").slice(1))
    assert same(measure(text), map(measure_plainly, documents[1:]))


@pytest.mark.parametrize("line", ["- a", " \u2022 a", "\x1f- a", "a-", "\u2023 a", "\u3000-"])
def test_bullets_may_stand_behind_any_space(line):
    assert same(measure(view([line]).text), [measure_plainly(line)])


@pytest.mark.parametrize(
    "line", ["a...", "a\u2026 ", "a..", "....", "a. ..", "\u2026\u2003", ".. ."]
)
def test_ellipses_may_stand_before_any_space(line):
    assert same(measure(view([line]).text), [measure_plainly(line)])


def test_a_stop_word_counts_once_in_each_document():
    table = measure(view(["the the of", "the the", "The"]).text)
    assert [row[MEASURES.index("num_stop_words")] for row in table] == [2, 1, 0]


def test_words_that_share_a_prefix_with_a_stop_word_are_others():
    table = measure(view(["th", "them", "tha", "xhe", "x" * 30, "x" * 32]).text)
    assert {row[MEASURES.index("num_stop_words")] for row in table} == {0}


def test_long_stop_words_are_found():
    assert measure(view(["x" * 31]).text)[0][MEASURES.index("num_stop_words")] == 1
    table = vocabulary(["y" * 80])
    text = view(["y" * 80, "y" * 79, "y" * 70]).text
    words = whitespace_words(text.offsets, text.data)
    assert measure_quality(text.offsets, text.data, words, table)[-1].tolist() == [1, 0, 0]


def test_punctuation_is_that_of_the_reference():
    reference = pytest.importorskip("datatrove.utils.text")
    assert reference.PUNCTUATION_SET == PUNCTUATION | TERMINAL
    assert set(reference.PUNCTUATION) == PUNCTUATION
    assert reference.TERMINAL_PUNCTUATION == TERMINAL

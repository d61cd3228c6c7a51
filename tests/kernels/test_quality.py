from __future__ import annotations

import math

import pytest
from hypothesis import given

from corpuskit.kernels.filters.quality import (
    MEASURES,
    measure_dclm_quality,
    measure_dolma_quality,
    measure_quality,
    measure_spaced_quality,
)
from corpuskit.kernels.utf8 import PUNCTUATION, TERMINAL
from tests.contract.strategies import WORLD, texts
from tests.kernels.word_lists import given_texts, given_words, same, sliced
from tests.oracles.gopher import dclm_quality, dolma_quality

STOP_WORDS = ("the", "of", "a", "to", "\xe9", "word", "x" * 31)
ASCII_WORDS = ("the", "of", "a", "to", "make", "k")
SYMBOLS = PUNCTUATION | TERMINAL
SMALL = [text for text in WORLD if len(text) < 5]
RULES = (  # in the order of MEASURES
    "gopher_short_doc",
    "gopher_below_avg_threshold",
    "gopher_too_many_hashes",
    "gopher_too_many_ellipsis",
    "gopher_too_many_bullets",
    "gopher_too_many_end_ellipsis",
    "gopher_below_alpha_threshold",
    "gopher_enough_stop_words",
)


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


def measure(documents, of=measure_quality, stop_words=STOP_WORDS):
    text = given_texts(documents)
    table = of(text.offsets, text.data, given_words(documents), stop_words)
    assert table.shape == (len(MEASURES), len(documents))
    return table.T.tolist()


def expected_of(plain, documents, stop_words):
    measured = [plain(text, stop_words) for text in documents]
    return [[found.get(rule, math.nan) for rule in RULES] for found in measured]


def measure_both(documents, stop_words=STOP_WORDS):
    """Return the measures of a scan without words, which are those of the words of str.split()."""
    text = given_texts(documents)
    scanned = measure_spaced_quality(text.offsets, text.data, stop_words).T.tolist()
    assert same(scanned, measure(documents, stop_words=stop_words))
    return scanned


@given(texts())
def test_measures_equal_plain_python(documents):
    assert same(measure_both(documents), [*map(measure_plainly, documents)])


def test_measures_of_every_small_text():
    assert same(measure_both(SMALL), [*map(measure_plainly, SMALL)])


def test_measures_of_every_byte_between_words():
    documents = [f"a{chr(code)}b.{chr(code)}" for code in (*range(0x180), 0x2026, 0x2028, 0x3000)]
    assert same(measure_both(documents), [*map(measure_plainly, documents)])


def test_a_slice_measures_as_the_whole():
    documents = ["the #end...", "- \u2026\n\u2022 a", "\xe9 of " * 3]
    text = sliced(documents, 1)
    table = measure_quality(text.offsets, text.data, given_words(documents[1:]), STOP_WORDS)
    assert same(table.T, [*map(measure_plainly, documents[1:])])
    assert same(measure_spaced_quality(text.offsets, text.data, STOP_WORDS).T, table.T)


@pytest.mark.parametrize("line", ["- a", " \u2022 a", "\x1f- a", "a-", "\u2023 a", "\u3000-"])
def test_bullets_may_stand_behind_any_space(line):
    assert same(measure_both([line]), [measure_plainly(line)])


@pytest.mark.parametrize(
    "line", ["a...", "a\u2026 ", "a..", "....", "a. ..", "\u2026\u2003", ".. ."]
)
def test_ellipses_may_stand_before_any_space(line):
    assert same(measure_both([line]), [measure_plainly(line)])


def test_a_stop_word_counts_once_in_each_document():
    table = measure_both(["the the of", "the the", "The", "them th"])
    assert [row[MEASURES.index("num_stop_words")] for row in table] == [2, 1, 0, 0]


def test_long_stop_words_are_found():
    documents = ["y" * 80, "y" * 79, "y" * 70]
    table = measure_both(documents, stop_words=("y" * 80,))
    assert [row[-1] for row in table] == [1, 0, 0]


@given(texts())
def test_dolma_measures_equal_plain_python(documents):
    found = measure(documents, measure_dolma_quality)
    assert same(found, expected_of(dolma_quality, documents, STOP_WORDS))


@given(texts())
def test_dclm_measures_equal_plain_python(documents):
    found = measure(documents, measure_dclm_quality, ASCII_WORDS)
    assert same(found, expected_of(dclm_quality, documents, ASCII_WORDS))


def test_variants_measure_every_small_text():
    found = measure(SMALL, measure_dolma_quality)
    assert same(found, expected_of(dolma_quality, SMALL, STOP_WORDS))
    found = measure(SMALL, measure_dclm_quality, ASCII_WORDS)
    assert same(found, expected_of(dclm_quality, SMALL, ASCII_WORDS))


@pytest.mark.parametrize(
    "text",
    [
        "The OF ma\u212ae \u212a mak to\u0130",
        ". . . . . . .",
        "... . . . #.... .",
        "\u25cf a\n* b\n  - c\n\u2022\n\u2026\n. . .",
        "a\0b\x1cc\x85d",
        "\xe9. 12 -3 _x",
    ],
)
def test_traps_of_dclm(text):
    found = measure([text], measure_dclm_quality, ASCII_WORDS)
    assert same(found, expected_of(dclm_quality, [text], ASCII_WORDS))


@pytest.mark.parametrize("text", ["a bb", "a bb ccc dddd", "a", "aa bb c", "a a\u2026 #b# \u2026#"])
def test_medians_and_symbols_of_dolma(text):
    found = measure([text], measure_dolma_quality)
    assert same(found, expected_of(dolma_quality, [text], STOP_WORDS))


def test_a_ratio_decides_as_the_products_that_dclm_compares():
    for lines in range(1, 400):
        for count in range(lines + 1):
            for bound in (0.9, 0.3):
                assert (count > bound * lines) == (count / lines > bound)
            assert ((lines - count) / lines <= 0.2) == (count / lines >= 0.8)


def test_punctuation_is_that_of_the_reference():
    reference = pytest.importorskip("datatrove.utils.text")
    assert reference.PUNCTUATION_SET == PUNCTUATION | TERMINAL
    assert set(reference.PUNCTUATION) == PUNCTUATION
    assert reference.TERMINAL_PUNCTUATION == TERMINAL

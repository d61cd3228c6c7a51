from __future__ import annotations

import os
import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from corpuskit.kernels.filters.wordlist import compile_words, count_entries

LENGTH = 100 if os.environ.get("NUMBA_DISABLE_JIT") == "1" else 100_000

# Small alphabets: letters of one, two and three bytes, and what belongs to no word.
ALPHABET = "ab_0 '-\u00e9\u0436\u65e5\u2019\u00a0\u0301\U0001f595"
entries = st.lists(st.text(alphabet=ALPHABET, min_size=1, max_size=5), min_size=1, max_size=6)
documents = st.lists(st.text(alphabet=ALPHABET, max_size=24), max_size=5)


def counts(wanted, texts, whole_words=True, rows=None):
    data = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, data)], dtype=np.int64)
    offsets.flags.writeable = False
    words = compile_words(wanted, whole_words=whole_words)
    chosen = np.arange(len(texts)) if rows is None else np.array(rows, np.int64)
    buffer = np.frombuffer(b"".join(data) + b"\0", np.uint8)
    return count_entries(offsets, buffer, chosen, words).tolist()


def plain_counts(wanted, texts, whole_words=True):
    either = "|".join(map(re.escape, wanted))
    pattern = rf"(?<!\w)(?=(?:{either})(?!\w))" if whole_words else f"(?={either})"
    return [sum(1 for _ in re.finditer(pattern, text)) for text in texts]


@given(entries, documents)
@example(["a", "a b", "a b a"], ["a b a b a", "a  b", "a b"])
@example(["'a", "-"], ["'a", "b'a", "- a", "a-", "--", "\u2019'a"])
@example(["\U0001f595"], ["\U0001f595", "a\U0001f595", "\U0001f595\U0001f595"])
def test_places_are_those_of_the_regular_expression(wanted, texts):
    assert counts(wanted, texts) == plain_counts(wanted, texts)


@given(entries, documents)
@example(["\u65e5"], ["\u65e5\u65e5 \u65e5"])
def test_anywhere_is_anywhere(wanted, texts):
    assert counts(wanted, texts, False) == plain_counts(wanted, texts, False)


@given(entries, documents)
def test_a_place_exists_where_the_reference_matches(wanted, texts):
    either = "|".join(map(re.escape, wanted))
    matched = [re.search(rf"(?:\W|^)({either})(?:\W|$)", text) is not None for text in texts]
    assert [number > 0 for number in counts(wanted, texts)] == matched


def test_rows_choose_texts():
    assert counts(["a"], ["a", "b", "a a", "a"], rows=[2, 1]) == [2, 0]


def test_an_empty_entry_matches_nothing():
    assert counts(["", "b"], ["a b", ""]) == [1, 0]


@pytest.mark.parametrize("text", ["x", " ", "\u0301", "ab "])
def test_odd_documents_hold_nothing_and_take_linear_time(text):
    assert counts(["ab ab x", "-"], [text * LENGTH]) == [0]


def test_a_large_list_costs_memory_by_its_bytes():
    wanted = [f"word{number} of many" for number in range(3000)]
    words = compile_words(wanted, whole_words=True)
    assert sum(array.nbytes for array in words.table) < 120 * len(wanted) * 2
    assert counts(wanted, ["a word12 of many", "word12 of", "word2999 of many"]) == [1, 0, 1]

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.batch import utf8
from corpuskit.kernels.words import whitespace_words
from tests.contract.strategies import WORLD, texts, view


def words_of(text, table):
    found = []
    for row in range(len(text)):
        document = text.row(row)
        edges = table.edges[2 * table.offsets[row] : 2 * table.offsets[row + 1]].reshape(-1, 2)
        found.append([document[start:end].decode() for start, end in edges])
    return found


@given(texts())
def test_words_are_those_of_split(documents):
    text = view(documents).text
    table = whitespace_words(text.offsets, text.data)
    assert words_of(text, table) == [document.split() for document in documents]


def test_words_of_every_small_text():
    text = view(WORLD).text
    assert words_of(text, whitespace_words(text.offsets, text.data)) == [t.split() for t in WORLD]


@given(texts(), st.integers(0, 8))
def test_a_slice_splits_as_the_whole(documents, cut):
    text = utf8(view(documents).batch.column("text").slice(cut))
    table = whitespace_words(text.offsets, text.data)
    assert words_of(text, table) == [document.split() for document in documents[cut:]]


@given(texts(), st.data())
def test_select_takes_the_words_along(documents, data):
    rows = [row for row in range(len(documents)) if data.draw(st.booleans())]
    given_view = view(documents)
    given_view.fact(whitespace_words)
    selected = given_view.select(np.array(rows, np.int64))
    table = selected.fact(whitespace_words)
    assert words_of(selected.text, table) == [documents[row].split() for row in rows]


def test_select_does_not_split_again():
    given_view = view(["a b", "c"])
    given_view.fact(whitespace_words)
    selected = given_view.select(np.array([1]))

    def never(offsets, data):
        raise AssertionError

    selected._facts[never] = selected._facts.pop(whitespace_words)
    assert len(selected.fact(never).edges) == 2

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.kernels.filters.c4 import UNKNOWN, count_breaks, sentence_edges
from corpuskit.text.words import splitter
from tests.contract.strategies import view

pytestmark = pytest.mark.slow  # loads spaCy

PARTS = (
    *("a", "word", ".", "..", "...", "?", "!)", '."', "\u3002", "\u0964", "U.S.", "3.5", "b.C"),
    *(" ", "  ", "\t", "\u2003", "\x1f", " \xa0", "\xe9", "it's", ":)", "e.g."),
)
few = settings(max_examples=60, deadline=None)


@pytest.fixture(scope="module")
def sentencizer():
    spacy = pytest.importorskip("spacy")
    pipeline = spacy.blank("en")
    pipeline.add_pipe("sentencizer")
    return lambda text: [(s.start_char, s.end_char) for s in pipeline(text).sents]


@few
@given(texts=st.lists(st.lists(st.sampled_from(PARTS), max_size=10).map("".join), max_size=4))
def test_breaks_are_those_of_the_sentencizer_in_each_line(sentencizer, texts):
    text = view(["\n".join(texts)]).text
    words = splitter("spacy", "en")(text.offsets, text.data)
    expected = sum(max(len(sentencizer(line)) - 1, 0) for line in texts)
    assert count_breaks(text.offsets, text.data, words).tolist() == [expected]


@few
@given(documents=st.lists(st.lists(st.sampled_from((*PARTS, "\n")), max_size=10).map("".join)))
def test_sentences_end_where_those_of_the_sentencizer_end(sentencizer, documents):
    text = view(documents).text
    bounds, edges = sentence_edges(*text, splitter("spacy", "en")(*text))
    for row, document in enumerate(documents):
        ends = [end for _, end in sentencizer(document)][:-1]
        expected = [len(document[:end].encode()) for end in ends] + [len(document.encode())]
        assert edges[bounds[row] : bounds[row + 1]].tolist() == expected


def test_words_that_do_not_fill_the_text_are_noticed():
    text = view(["one two", "a. b"]).text
    words = splitter("spacy", "en")(*text)
    fewer = np.array([0, 1, 4])
    broken = type(words)(fewer, np.delete(words.tokens, 1), words.lexicon)
    assert count_breaks(*text, broken).tolist() == [UNKNOWN, 0]
    bounds, edges = sentence_edges(*text, broken)
    assert edges[: bounds[-1]].tolist() == [UNKNOWN, 4]

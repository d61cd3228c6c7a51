"""Words of texts as kernels get them, split by the test itself."""

from __future__ import annotations

import numpy as np

from corpuskit.formats.batch import utf8
from corpuskit.kernels.words.lexicon import Lexicon, Words
from tests.contract.strategies import view


def given_texts(documents):
    """Return texts as buffers."""
    return view(documents).text


def given_words(documents, split=str.split):
    """Return the words of texts, each occurrence a record of its own."""
    lexicon = Lexicon()
    lists = [split(text) for text in documents]
    firsts = [lexicon.append(words) for words in lists]
    tokens = [
        first + place
        for first, words in zip(firsts, lists, strict=True)
        for place in range(len(words))
    ]
    offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    arrays = offsets, np.array(tokens, np.int32)
    for array in arrays:
        array.flags.writeable = False
    return Words(*arrays, lexicon)


def sliced(documents, first):
    """Return the texts from `first` on, cut from the batch of all."""
    return utf8(view(documents).batch.column("text").slice(first))


def same(found, expected):
    """Return whether tables of floats, one row for each document, are equal; NaN equals NaN."""
    if not len(expected):
        return not len(found)
    return np.array_equal(np.array(found, float), np.array(expected, float), equal_nan=True)

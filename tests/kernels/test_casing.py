from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.kernels.folding import lower_texts
from tests.contract.strategies import texts


def lower(documents):
    given_bytes = [text.encode() for text in documents]
    offsets = np.cumsum([0, *map(len, given_bytes)], dtype=np.int64)
    data = np.frombuffer(b"".join(given_bytes) + b"\0", np.uint8)
    bounds, out = lower_texts(offsets, data)
    return [out[low:high].tobytes().decode() for low, high in itertools.pairwise(bounds)]


@given(texts())
def test_texts_are_as_python_lowers_them(documents):
    assert lower(documents) == [text.lower() for text in documents]


@given(st.lists(st.text(alphabet="AaZz[@`{\u03a3\u03c3\u0130\u0307. \u0391\u00ad", max_size=20)))
def test_what_depends_on_neighbours_is_as_in_python(documents):
    assert lower(documents) == [text.lower() for text in documents]


@pytest.mark.slow
def test_every_character_beside_others_and_between_letters():
    every = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    rows = ["".join(every[at : at + 999]) for at in range(0, len(every), 999)]
    documents = rows + ["A".join(row) for row in rows]
    assert lower(documents) == [text.lower() for text in documents]


def test_a_slice_of_the_buffer_is_enough():
    data = np.frombuffer("XXABC\u00c9YY".encode(), np.uint8)
    bounds, out = lower_texts(np.array([2, 5, 7]), data)
    assert (bounds.tolist(), out.tobytes().decode()) == ([0, 3, 5], "abc\u00e9")

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.formats.batch import utf8
from corpuskit.kernels.spans import replace_spans
from tests.contract.strategies import view

PIECES = [b"", b"<>", b"long piece"]


def plainly(documents, spans):
    coded = [document.encode() for document in documents]
    for row, start, end, code in reversed(spans):
        coded[row] = coded[row][:start] + PIECES[code] + coded[row][end:]
    return coded


def replaced(text, spans):
    rows, starts, ends, codes = (
        np.array([span[part] for span in spans], np.int64) for part in range(4)
    )
    offsets, data = replace_spans(
        text.offsets, text.data, rows, starts, ends, codes.astype(np.uint8), PIECES
    )
    assert offsets[0] == 0
    assert offsets[-1] == len(data)
    return [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)]


@given(st.data())
def test_replacing_equals_plain_python(data):
    documents = data.draw(st.lists(st.text(alphabet="abc", max_size=9), max_size=5))
    spans = []
    for row, document in enumerate(documents):
        edges = data.draw(st.lists(st.integers(0, len(document)), unique=True, max_size=6))
        edges = sorted(edges)[: len(edges) // 2 * 2]
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            spans.append((row, start, end, data.draw(st.integers(0, 2))))
    assert replaced(view(documents).text, spans) == plainly(documents, spans)


def test_adjacent_spans():
    spans = [(0, 0, 2, 1), (0, 2, 4, 1), (1, 0, 1, 2)]
    assert replaced(view(["abcd", "e"]).text, spans) == [b"<><>", b"long piece"]


def test_a_slice_is_replaced_as_the_whole():
    text = utf8(view(["skipped", "ab", "cd"]).batch.column("text").slice(1, 1))
    assert replaced(text, [(0, 1, 2, 1)]) == [b"a<>"]


def test_no_spans_copy_the_texts():
    assert replaced(view(["ab", "", "c"]).text, []) == [b"ab", b"", b"c"]

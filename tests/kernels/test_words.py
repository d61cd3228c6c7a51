from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings

from corpuskit.kernels.words.split import SPACE_KINDS, split_spaces
from tests.contract.strategies import WORLD, texts, view


def chunks(documents):
    """The chunks of all documents, through the kernel, from buffers."""
    text = view(documents).text
    data, found = text.data.tobytes(), []
    for begin, end in itertools.pairwise(text.offsets.tolist()):
        edges = np.empty(end - begin + 2, np.int32)
        num = split_spaces(text.data, begin, end, SPACE_KINDS, edges)
        pairs = (edges[: 2 * num] + begin).reshape(-1, 2).tolist()
        found.append([data[start:stop].decode() for start, stop in pairs])
    return found


@settings(max_examples=40)
@given(texts())
def test_chunks_are_those_of_split(documents):
    assert chunks(documents) == [document.split() for document in documents]


def test_chunks_of_every_small_text():
    assert chunks(WORLD) == [document.split() for document in WORLD]


def test_every_whitespace_character_separates():
    spaces = [chr(code) for code in range(0x3100) if chr(code).isspace()]
    assert chunks([f"a{space}b" for space in spaces]) == [["a", "b"]] * len(spaces)

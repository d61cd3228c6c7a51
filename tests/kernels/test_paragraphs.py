from __future__ import annotations

import pytest
from hypothesis import given

from corpuskit.kernels.filters.c4 import count_long_lines
from tests.contract.strategies import texts, view


@pytest.mark.parametrize("min_chars", [0, 1, 3, 20])
@given(documents=texts())
def test_long_lines_equal_plain_python(min_chars, documents):
    text = view(documents).text
    expected = [sum(len(line) >= min_chars for line in d.split("\n")) for d in documents]
    assert count_long_lines(text.offsets, text.data, min_chars).tolist() == expected

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.kernels import utf8 as kernels
from tests.contract.strategies import texts, view

# All that begins with one of the four lead bytes of wide whitespace, all of two bytes, and some
# of four bytes; any other character is told from its lead byte alone.
CHARS = [*map(chr, range(0x4000)), "\ud7ff", "\ue000", "\ufeff", "\U00010000", "\U0010ffff"]


def as_bytes(text: str):
    data = np.frombuffer(text.encode(), np.uint8)
    return data, 0, len(data)


def test_whitespace_is_what_python_calls_so():
    for char in CHARS:
        data, start, end = as_bytes(char)
        assert kernels.space_width(data, start) == (end if char.isspace() else 0), repr(char)


def test_line_boundaries_are_those_of_splitlines():
    for char in [*CHARS, "\r\n"]:
        data, start, end = as_bytes(char + "x")
        width = end - 1 if len(f"a{char}b".splitlines()) == 2 else 0
        assert kernels.line_break_width(data, start, end) == width, repr(char)


def test_a_carriage_return_does_not_see_behind_the_end():
    data, _, _ = as_bytes("\r\n")
    assert kernels.line_break_width(data, 0, 1) == 1


def test_code_points_and_widths():
    for char in CHARS:
        data, start, end = as_bytes(char)
        assert kernels.code_point(data, start) == ord(char)
        assert kernels.char_width(data[start]) == end


@given(st.text(alphabet=" \t\x85\u2003\u3000\xe9a", max_size=8))
def test_skipping_space_is_strip(text):
    data, start, end = as_bytes(text)
    first = kernels.skip_space(data, start, end)
    last = kernels.skip_space_back(data, start, end)
    assert data[first:end].tobytes().decode() == text.lstrip()
    assert data[start:last].tobytes().decode() == text.rstrip()


@given(texts())
def test_count_chars_is_len(documents):
    text = view(documents).text
    bounds = itertools.pairwise(text.offsets.tolist())
    assert [kernels.count_chars(text.data, *b) for b in bounds] == [len(d) for d in documents]


def test_char_table_has_a_bit_per_test():
    table = kernels.char_table(str.isalpha, str.isdecimal)
    for char in "a1 \xe9\u0660\xb2\u65e5":
        assert table[ord(char)] == char.isalpha() + 2 * char.isdecimal()


def test_char_tables_are_built_once_and_read_only():
    table = kernels.char_table(str.isalpha)
    assert table is kernels.char_table(str.isalpha)
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 1

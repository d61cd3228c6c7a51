"""Lists of what was cut from a text, kept in order while a kernel walks through it.

A list is three arrays: starts and ends in bytes of the whole buffer, and codes; `num` says how far
they are filled. A gap is what lies between two pieces of text that stay; its cuts begin at `first`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corpuskit.kernels.jit import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]


@kernel
def add_cut(
    starts: Offsets,
    ends: Offsets,
    codes: Bytes,
    first: int,
    num: int,
    start: int,
    end: int,
    code: int,
) -> int:
    """Append a cut to the gap, joined to the one before if that touches it and has its code."""
    if start >= end:
        return num
    if num > first and ends[num - 1] == start and codes[num - 1] == code:
        ends[num - 1] = end
        return num
    starts[num], ends[num], codes[num] = start, end, code
    return num + 1


@kernel
def fill_gap(
    starts: Offsets,
    ends: Offsets,
    codes: Bytes,
    first: int,
    num: int,
    low: int,
    high: int,
    code: int,
) -> int:
    """Stretch the cuts that lie within `low` to `high` so that they cover it without holes.

    Where there is none, one with `code` is added.
    """
    if low >= high:
        return num
    begin = num
    while begin > first and ends[begin - 1] > low:
        begin -= 1
    if begin == num:
        return add_cut(starts, ends, codes, num, num, low, high, code)
    starts[begin] = low
    for place in range(begin, num - 1):
        ends[place] = starts[place + 1]
    ends[num - 1] = high
    return num


@kernel
def close_gap(
    data: Bytes,
    starts: Offsets,
    ends: Offsets,
    codes: Bytes,
    first: int,
    num: int,
    low: int,
    high: int,
    joiner: int,
    code: int,
) -> int:
    """Cut what lies between two lines that stay, but for the character that will join them."""
    if low < high and data[low] == joiner and (num == first or ends[first] > low + 1):
        low += 1
    return fill_gap(starts, ends, codes, first, num, low, high, code)

"""Spans of a text, as byte ranges: lists of what was cut, and texts rewritten by them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from corpuskit.kernels.arrays import Bytes, Int64s, frozen
from corpuskit.kernels.hashing import copy
from corpuskit.kernels.jit import kernel


def replace_spans(
    offsets: Int64s,
    data: Bytes,
    rows: Int64s,
    starts: Int64s,
    ends: Int64s,
    codes: Bytes,
    replacements: Sequence[bytes],
) -> tuple[Int64s, Bytes]:
    """Return the texts with span i replaced by `replacements[codes[i]]`, read-only; O(B).

    Args:
        offsets, data: the texts, N of them.
        rows, starts, ends: (n,) the spans: document, bytes from its beginning; sorted, disjoint.
        codes: (n,) uint8 into `replacements`.
        replacements: an empty one cuts.
    """
    sizes = np.array([len(piece) for piece in replacements], np.int64)
    begins = np.cumsum(sizes) - sizes
    pieces = np.frombuffer(b"".join(replacements), np.uint8)
    change = np.zeros(len(offsets), np.int64)
    np.add.at(change, rows + 1, sizes[codes] - (ends - starts))
    moved = offsets - offsets[0] + np.cumsum(change)
    output = np.empty(moved[-1], np.uint8)
    _splice(offsets, data, rows, starts, ends, codes, begins, sizes, pieces, moved, output)
    return frozen(moved), frozen(output)


@kernel
def _splice(
    offsets: Int64s,
    data: Bytes,
    rows: Int64s,
    starts: Int64s,
    ends: Int64s,
    codes: Bytes,
    begins: Int64s,
    sizes: Int64s,
    pieces: Bytes,
    moved: Int64s,
    output: Bytes,
) -> None:
    """Copy the text between two spans at once, whole documents between them included."""
    read, write = offsets[0], moved[0]
    for span in range(len(rows)):
        begin = offsets[rows[span]]
        write = _copy(data, read, begin + starts[span], output, write)
        first = begins[codes[span]]
        write = _copy(pieces, first, first + sizes[codes[span]], output, write)
        read = begin + ends[span]
    _copy(data, read, offsets[-1], output, write)


@kernel
def _copy(data: Bytes, start: int, end: int, output: Bytes, to: int) -> int:
    """Copy bytes, return where the copy ends."""
    copy(data[start:end], output[to : to + end - start])
    return to + end - start


# ----------------------------------------------------------------------
# Lists of what was cut from a text, kept in order while a kernel walks through it.
#
# A list is three arrays: starts and ends in bytes of the whole buffer, and codes; the first `num`
# entries are in use. A gap is the text between two pieces that stay; its cuts begin at `first`.


@kernel
def add_cut(
    starts: Int64s,
    ends: Int64s,
    codes: Bytes,
    first: int,
    num: int,
    start: int,
    end: int,
    code: int,
) -> int:
    """Append a cut to the gap; join it to the one before if they touch and have one code."""
    if start >= end:
        return num
    if num > first and ends[num - 1] == start and codes[num - 1] == code:
        ends[num - 1] = end
        return num
    starts[num], ends[num], codes[num] = start, end, code
    return num + 1


@kernel
def fill_gap(
    starts: Int64s, ends: Int64s, codes: Bytes, first: int, num: int, low: int, high: int, code: int
) -> int:
    """Extend the cuts between `low` and `high` so that they cover all of it.

    If there is none, a cut with `code` is added.
    """
    if low >= high:
        return num
    begin = num
    while begin > first and ends[begin - 1] > low:
        begin -= 1
    if begin == num:
        return add_cut(starts, ends, codes, num, num, low, high, code)
    starts[begin] = low
    for cut in range(begin, num - 1):
        ends[cut] = starts[cut + 1]
    ends[num - 1] = high
    return num


@kernel
def close_gap(
    data: Bytes,
    starts: Int64s,
    ends: Int64s,
    codes: Bytes,
    first: int,
    num: int,
    low: int,
    high: int,
    joiner: int,
    code: int,
) -> int:
    """Cut the text between two lines that stay, except the character that will join them."""
    if low < high and data[low] == joiner and (num == first or ends[first] > low + 1):
        low += 1
    return fill_gap(starts, ends, codes, first, num, low, high, code)

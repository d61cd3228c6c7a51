"""Kernels that take JSON objects apart, one per line, without a Python object per document.

They answer for what is plainly well formed; any other line is `ODD` and left to Python's json
module, which decides. Letters: N lines, B bytes, K wanted members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.jit import kernel
from corpuskit.stages.sources._scan import (
    FLOAT,
    INTEGER,
    MISSING,
    NULL,
    STRIDE,
    STRING,
    hex4,
    skip_space,
    skip_value,
    string_end,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

OK, BLANK, ODD = 0, 1, 2
"""State of a line."""


@kernel
def parse_lines(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    names: NDArray[np.uint8],
    name_offsets: NDArray[np.int64],
    extra: NDArray[np.uint8],
    extra_offsets: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    spans: NDArray[np.int64],
) -> NDArray[np.uint8]:
    """Find the wanted members of every line and copy the others: O(B), allocates N bytes.

    Args:
        data: (B,) holding line i at `starts[i]:ends[i]`.
        starts, ends: (N,).
        names: the wanted members' names, k at `name_offsets[k]:name_offsets[k + 1]`.
        name_offsets: (K + 1,).
        extra: (>= B,) filled with one JSON object per line of the members not wanted, values as
            they are written; empty (0,) = not wanted either.
        extra_offsets: (N + 1,) filled; an empty range where there are no such members.
        kinds: (N, K) filled with the kind of each wanted value.
        spans: (N, K, 2) filled with its place in `data`, quotes of a string not included.

    Returns:
        (N,) OK, BLANK or ODD; the rows of lines that are not OK hold nothing.
    """
    states = np.zeros(len(starts), np.uint8)
    used = np.int64(0)
    for row in range(len(starts)):
        extra_offsets[row] = used
        kinds[row, :] = MISSING
        states[row], filled = _parse_line(
            data, starts[row], ends[row], names, name_offsets, extra, used, kinds[row], spans[row]
        )
        if states[row] == OK:
            used = filled
        else:
            kinds[row, :] = MISSING
    extra_offsets[len(starts)] = used
    return states


@kernel
def _parse_line(
    data: NDArray[np.uint8],
    start: int,
    end: int,
    names: NDArray[np.uint8],
    name_offsets: NDArray[np.int64],
    extra: NDArray[np.uint8],
    used: int,
    kinds: NDArray[np.uint8],
    spans: NDArray[np.int64],
) -> tuple[int, int]:
    """Take one line apart; return its state and how far `extra` is filled."""
    first = used
    if end - start >= 3 and data[start] == 0xEF and data[start + 1] == 0xBB and data[start + 2] == 0xBF:
        start += 3
    pos = skip_space(data, start, end)
    if pos == end:
        return BLANK, first
    if data[pos] != 123:
        return ODD, first
    pos = skip_space(data, pos + 1, end)
    is_more = not (pos < end and data[pos] == 125)
    if not is_more:
        pos += 1
    while is_more:
        if pos >= end or data[pos] != 34:
            return ODD, first
        key = pos + 1
        key_end = string_end(data, key, end)
        if key_end < 0 or _has_escape(data, key, key_end):
            return ODD, first
        pos = skip_space(data, key_end + 1, end)
        if pos >= end or data[pos] != 58:
            return ODD, first
        value = skip_space(data, pos + 1, end)
        pos, kind = skip_value(data, value, end)
        if pos < 0:
            return ODD, first
        wanted = _find_name(data, key, key_end, names, name_offsets)
        if wanted >= 0:
            if kinds[wanted] != MISSING:
                return ODD, first
            quote = 1 if kind == STRING else 0
            kinds[wanted] = kind
            spans[wanted, 0], spans[wanted, 1] = value + quote, pos - quote
        elif len(extra):
            extra[used] = 123 if used == first else 44
            used = _copy(data, key - 1, key_end + 1, extra, used + 1)
            extra[used] = 58
            used = _copy(data, value, pos, extra, used + 1)
        pos = skip_space(data, pos, end)
        if pos >= end or (data[pos] != 44 and data[pos] != 125):
            return ODD, first
        is_more = data[pos] == 44
        pos += 1
        if is_more:
            pos = skip_space(data, pos, end)
    if skip_space(data, pos, end) != end:
        return ODD, first
    if used > first:
        extra[used] = 125
        used += 1
    return OK, used


@kernel
def unescape(
    data: NDArray[np.uint8],
    spans: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    is_text: bool,
    out: NDArray[np.uint8],
    offsets: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Write the values of one member as UTF-8: strings unescaped, numbers as they are written.

    O(B), allocates N bytes. Lone surrogates become U+FFFD.

    Args:
        data: (B,).
        spans: (N, 2) places of the values.
        kinds: (N,); neither string nor number gives an empty range.
        is_text: leave out a byte order mark at the start.
        out: (>= sum of spans,) filled.
        offsets: (N + 1,) filled.

    Returns:
        (N,) whether a lone surrogate was replaced.
    """
    replaced = np.zeros(len(kinds), np.bool_)
    used = np.int64(0)
    for row in range(len(kinds)):
        offsets[row] = used
        if kinds[row] == INTEGER or kinds[row] == FLOAT:
            used = _copy(data, spans[row, 0], spans[row, 1], out, used)
        elif kinds[row] == STRING:
            begin = used
            used, replaced[row] = _write_string(data, spans[row, 0], spans[row, 1], out, used)
            if (
                is_text
                and used - begin >= 3
                and out[begin] == 0xEF
                and out[begin + 1] == 0xBB
                and out[begin + 2] == 0xBF
            ):
                for pos in range(begin + 3, used):
                    out[pos - 3] = out[pos]
                used -= 3
    offsets[len(kinds)] = used
    return replaced


@kernel
def read_integers(
    data: NDArray[np.uint8],
    spans: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    values: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Fill `values` (N,) from INTEGER members; return (N,) whether each other one is no int64."""
    is_bad = np.zeros(len(kinds), np.bool_)
    for row in range(len(kinds)):
        values[row] = 0
        if kinds[row] != INTEGER:
            is_bad[row] = kinds[row] != NULL and kinds[row] != MISSING
            continue
        pos, end = spans[row, 0], spans[row, 1]
        is_negative = data[pos] == 45
        if is_negative:
            pos += 1
        total = np.uint64(0)
        for digit in range(pos, min(end, pos + 19)):
            total = total * np.uint64(10) + np.uint64(data[digit] - 48)
        bound = np.uint64(9223372036854775808) if is_negative else np.uint64(9223372036854775807)
        is_bad[row] = end - pos > 19 or total > bound
        if not is_bad[row]:
            # Two's complement: the one value without a positive twin is -2**63.
            values[row] = -np.int64(total - np.uint64(1)) - 1 if is_negative and total else np.int64(total)
    return is_bad


@kernel
def _write_string(
    data: NDArray[np.uint8], pos: int, end: int, out: NDArray[np.uint8], used: int
) -> tuple[int, bool]:
    replaced = False
    while pos < end:
        stop = _find_escape(data, pos, end)
        used = _copy(data, pos, stop, out, used)
        pos = stop
        if pos == end:
            break
        letter = data[pos + 1]
        if letter != 117:
            out[used] = _plain_escape(letter)
            used += 1
            pos += 2
            continue
        code = hex4(data, pos + 2)
        pos += 6
        if 0xD800 <= code < 0xDC00 and pos + 6 <= end and data[pos] == 92 and data[pos + 1] == 117:
            low = hex4(data, pos + 2)
            if 0xDC00 <= low < 0xE000:
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                pos += 6
        if 0xD800 <= code < 0xE000:
            code = 0xFFFD
            replaced = True
        used = _write_code(code, out, used)
    return used, replaced


@kernel
def _write_code(code: int, out: NDArray[np.uint8], used: int) -> int:
    if code < 0x80:
        out[used] = code
        return used + 1
    if code < 0x800:
        out[used] = 0xC0 | (code >> 6)
        out[used + 1] = 0x80 | (code & 0x3F)
        return used + 2
    if code < 0x10000:
        out[used] = 0xE0 | (code >> 12)
        out[used + 1] = 0x80 | ((code >> 6) & 0x3F)
        out[used + 2] = 0x80 | (code & 0x3F)
        return used + 3
    out[used] = 0xF0 | (code >> 18)
    out[used + 1] = 0x80 | ((code >> 12) & 0x3F)
    out[used + 2] = 0x80 | ((code >> 6) & 0x3F)
    out[used + 3] = 0x80 | (code & 0x3F)
    return used + 4


@kernel
def _plain_escape(letter: int) -> int:
    if letter == 110:
        return 10
    if letter == 116:
        return 9
    if letter == 114:
        return 13
    if letter == 98:
        return 8
    if letter == 102:
        return 12
    return letter


@kernel
def _find_escape(data: NDArray[np.uint8], pos: int, end: int) -> int:
    while pos + STRIDE <= end:
        found = False
        for step in range(STRIDE):
            found |= data[pos + step] == 92
        if found:
            break
        pos += STRIDE
    while pos < end and data[pos] != 92:
        pos += 1
    return pos


@kernel
def _has_escape(data: NDArray[np.uint8], pos: int, end: int) -> bool:
    while pos < end:
        if data[pos] == 92:
            return True
        pos += 1
    return False


@kernel
def _find_name(
    data: NDArray[np.uint8],
    key: int,
    key_end: int,
    names: NDArray[np.uint8],
    name_offsets: NDArray[np.int64],
) -> int:
    """Return which of the K names stands at `key:key_end`, or -1."""
    for index in range(len(name_offsets) - 1):
        begin = name_offsets[index]
        if name_offsets[index + 1] - begin != key_end - key:
            continue
        is_same = True
        for step in range(key_end - key):
            if data[key + step] != names[begin + step]:
                is_same = False
                break
        if is_same:
            return index
    return -1


@kernel
def _copy(data: NDArray[np.uint8], begin: int, end: int, out: NDArray[np.uint8], used: int) -> int:
    for pos in range(begin, end):
        out[used + pos - begin] = data[pos]
    return used + end - begin

"""Kernels that take JSON objects apart, one per line, without a Python object per document.

They answer for what is plainly well formed; any other line is `ODD` and left to Python's json
module, which decides. Letters: N lines, B bytes, K wanted members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from corpuskit.kernels.jit import kernel
from corpuskit.stages.sources._scan import (
    FLOAT,
    INTEGER,
    MISSING,
    NULL,
    STRING,
    skip_key,
    skip_space,
    skip_value,
    string_end,
    write_string,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

OK, BLANK, ODD = 0, 1, 2
"""State of a line."""


class Taken(NamedTuple):
    """What the lines are taken apart into; the kernel fills it.

    Attributes:
        texts: (>= B,) the first wanted member of every line, unescaped, no byte order mark.
        text_offsets: (N + 1,).
        replaced: (N,) whether a lone surrogate in the text became U+FFFD.
        extra: (>= B,) one JSON object per line of the members not wanted, values as they are
            written; empty (0,) = not wanted either.
        extra_offsets: (N + 1,) an empty range where a line has no such members.
        kinds: (N, K) kinds of the wanted values.
        spans: (N, K, 2) their places in the data, quotes of a string not included.
    """

    texts: NDArray[np.uint8]
    text_offsets: NDArray[np.int64]
    replaced: NDArray[np.bool_]
    extra: NDArray[np.uint8]
    extra_offsets: NDArray[np.int64]
    kinds: NDArray[np.uint8]
    spans: NDArray[np.int64]


@kernel
def parse_lines(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    names: NDArray[np.uint8],
    name_offsets: NDArray[np.int64],
    is_plain: bool,
    taken: Taken,
) -> NDArray[np.uint8]:
    """Take every line apart: O(B), allocates N bytes.

    Args:
        data: (B,) holding line i at `starts[i]:ends[i]`.
        starts, ends: (N,).
        names: of the wanted members, k at `name_offsets[k]:name_offsets[k + 1]`, with no escapes
            but those that JSON demands; 0 is the text.
        name_offsets: (K + 1,).
        is_plain: names in the lines have no other escapes either; else a line with any is odd.
        taken: filled.

    Returns:
        (N,) OK, BLANK or ODD; lines that are not OK have no members.
    """
    states = np.zeros(len(starts), np.uint8)
    text_used = extra_used = 0
    for row in range(len(starts)):
        taken.text_offsets[row], taken.extra_offsets[row] = text_used, extra_used
        taken.kinds[row, :] = MISSING
        taken.replaced[row] = False
        state, text_end, extra_end = _parse_line(
            data, starts[row], ends[row], names, name_offsets, is_plain, taken, row
        )
        states[row] = state
        if state == OK:
            text_used, extra_used = text_end, extra_end
        else:
            taken.kinds[row, :] = MISSING
    taken.text_offsets[len(starts)], taken.extra_offsets[len(starts)] = text_used, extra_used
    return states


@kernel
def _parse_line(
    data: NDArray[np.uint8],
    start: int,
    end: int,
    names: NDArray[np.uint8],
    name_offsets: NDArray[np.int64],
    is_plain: bool,
    taken: Taken,
    row: int,
) -> tuple[int, int, int]:
    """Take one line apart; return its state, and how far texts and extra are filled."""
    text_used, first = taken.text_offsets[row], taken.extra_offsets[row]
    used = first
    pos = skip_space(data, start + _mark_width(data, start, end), end)
    if pos == end:
        return BLANK, text_used, used
    if data[pos] != 123:
        return ODD, text_used, used
    pos = skip_space(data, pos + 1, end)
    is_more = not (pos < end and data[pos] == 125)
    if not is_more:
        pos += 1
    while is_more:
        pos, text_used, used = _parse_member(
            data, pos, end, names, name_offsets, is_plain, taken, row, text_used, used
        )
        pos = skip_space(data, pos, end) if pos >= 0 else end
        if pos == end or (data[pos] != 44 and data[pos] != 125):
            return ODD, text_used, used
        is_more = data[pos] == 44
        pos = skip_space(data, pos + 1, end) if is_more else pos + 1
    if skip_space(data, pos, end) != end:
        return ODD, text_used, used
    if used > first:
        taken.extra[used] = 125
        used += 1
    return OK, _without_mark(taken.texts, taken.text_offsets[row], text_used), used


@kernel
def _parse_member(
    data: NDArray[np.uint8],
    pos: int,
    end: int,
    names: NDArray[np.uint8],
    name_offsets: NDArray[np.int64],
    is_plain: bool,
    taken: Taken,
    row: int,
    text_used: int,
    used: int,
) -> tuple[int, int, int]:
    """Take one member; return the byte behind it or -1, and how far texts and extra are filled."""
    key, value = pos + 1, skip_key(data, pos, end)
    if value < 0:
        return -1, text_used, used
    key_end = string_end(data, key, end)
    wanted = _find_name(data, key, key_end, names, name_offsets)
    if wanted >= 0 and taken.kinds[row, wanted] != MISSING:
        return -1, text_used, used
    if wanted < 0 and not is_plain and _has_escape(data, key, key_end):
        return -1, text_used, used
    if wanted == 0 and value < end and data[value] == 34:
        pos, text_used, replaced = write_string(data, value + 1, end, taken.texts, text_used)
        taken.replaced[row] = replaced
        pos, kind = (pos + 1 if 0 <= pos < end else -1), STRING
    else:
        pos, kind = skip_value(data, value, end)
    if wanted >= 0:
        quote = 1 if kind == STRING else 0
        taken.kinds[row, wanted] = kind
        taken.spans[row, wanted, 0], taken.spans[row, wanted, 1] = value + quote, pos - quote
    elif pos >= 0 and len(taken.extra):
        taken.extra[used] = 123 if used == taken.extra_offsets[row] else 44
        used = _copy(data, key - 1, key_end + 1, taken.extra, used + 1)
        taken.extra[used] = 58
        used = _copy(data, value, pos, taken.extra, used + 1)
    return pos, text_used, used


@kernel
def _mark_width(data: NDArray[np.uint8], start: int, end: int) -> int:
    """Return 3 where a byte order mark stands, else 0."""
    if end - start < 3 or data[start] != 0xEF:
        return 0
    return 3 if data[start + 1] == 0xBB and data[start + 2] == 0xBF else 0


@kernel
def _without_mark(texts: NDArray[np.uint8], start: int, end: int) -> int:
    """Close the gap of a byte order mark; return the new end."""
    width = _mark_width(texts, start, end)
    if width:
        for pos in range(start, end - width):
            texts[pos] = texts[pos + width]
    return end - width


@kernel
def unescape(
    data: NDArray[np.uint8],
    spans: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    out: NDArray[np.uint8],
    offsets: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Write the values of one member as UTF-8: strings unescaped, numbers as they are written.

    O(B), allocates N bytes.

    Args:
        data: (B,).
        spans: (N, 2) places of the values.
        kinds: (N,); neither string nor number gives an empty range.
        out: (>= sum of spans,) filled.
        offsets: (N + 1,) filled.

    Returns:
        (N,) whether a lone surrogate became U+FFFD.
    """
    replaced = np.zeros(len(kinds), np.bool_)
    used = 0
    for row in range(len(kinds)):
        offsets[row] = used
        if kinds[row] == INTEGER or kinds[row] == FLOAT:
            used = _copy(data, spans[row, 0], spans[row, 1], out, used)
        elif kinds[row] == STRING:
            _, used, replaced[row] = write_string(data, spans[row, 0], spans[row, 1], out, used)
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
            values[row] = (
                -np.int64(total - np.uint64(1)) - 1 if is_negative and total else np.int64(total)
            )
    return is_bad


@kernel
def _find_name(
    data: NDArray[np.uint8],
    key: int,
    key_end: int,
    names: NDArray[np.uint8],
    name_offsets: NDArray[np.int64],
) -> int:
    """Return which of the K names stands at `key:key_end`, -1 for none."""
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
def _has_escape(data: NDArray[np.uint8], pos: int, end: int) -> bool:
    while pos < end:
        if data[pos] == 92:
            return True
        pos += 1
    return False


@kernel
def _copy(data: NDArray[np.uint8], begin: int, end: int, out: NDArray[np.uint8], used: int) -> int:
    for pos in range(begin, end):
        out[used + pos - begin] = data[pos]
    return used + end - begin

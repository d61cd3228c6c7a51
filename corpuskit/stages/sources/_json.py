"""Kernels that take JSON objects apart, one per line, without a Python object per document.

They parse what is plainly well formed; any other line is `UNPARSED` and left to Python's json
module. Letters: N lines, B bytes, K requested members.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from corpuskit.kernels.arrays import Bools, Bytes, Int64s
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.utf8 import write_char

OK, BLANK, UNPARSED = 0, 1, 2
"""State of a line."""


class LineFields(NamedTuple):
    """The members of N lines; `parse_lines` fills it.

    Attributes:
        texts: (>= B,) the first requested member of every line, unescaped, no byte order mark.
        text_offsets: (N + 1,).
        replaced: (N,) whether a lone surrogate in the text became U+FFFD.
        extra: (>= B,) one JSON object per line of all other members, values as they are written;
            (0,) leaves them out.
        extra_offsets: (N + 1,) an empty range where a line has no other members.
        kinds: (N, K) kinds of the requested values.
        spans: (N, K, 2) begin and end of the values in the data, without the quotes of a string.
    """

    texts: Bytes
    text_offsets: Int64s
    replaced: Bools
    extra: Bytes
    extra_offsets: Int64s
    kinds: Bytes
    spans: Int64s


@kernel
def parse_lines(
    data: Bytes,
    starts: Int64s,
    ends: Int64s,
    names: Bytes,
    name_offsets: Int64s,
    is_plain: bool,
    fields: LineFields,
) -> Bytes:
    """Parse every line: O(B), allocates N bytes.

    Args:
        data: (B,) holding line i at `starts[i]:ends[i]`.
        starts, ends: (N,).
        names: of the requested members, k at `name_offsets[k]:name_offsets[k + 1]`, with no
            escapes but those that JSON demands; 0 is the text.
        name_offsets: (K + 1,).
        is_plain: names in the lines have no other escapes either; else a line that has one is
            UNPARSED.
        fields: filled.

    Returns:
        (N,) OK, BLANK or UNPARSED; lines that are not OK have no members.
    """
    states = np.zeros(len(starts), np.uint8)
    text_used = extra_used = 0
    for row in range(len(starts)):
        fields.text_offsets[row], fields.extra_offsets[row] = text_used, extra_used
        fields.kinds[row, :] = MISSING
        fields.replaced[row] = False
        state, text_end, extra_end = _parse_line(
            data, starts[row], ends[row], names, name_offsets, is_plain, fields, row
        )
        states[row] = state
        if state == OK:
            text_used, extra_used = text_end, extra_end
        else:
            fields.kinds[row, :] = MISSING
    fields.text_offsets[len(starts)], fields.extra_offsets[len(starts)] = text_used, extra_used
    return states


@kernel
def _parse_line(
    data: Bytes,
    start: int,
    end: int,
    names: Bytes,
    name_offsets: Int64s,
    is_plain: bool,
    fields: LineFields,
    row: int,
) -> tuple[int, int, int]:
    """Parse one line; return its state, and how far texts and extra are filled."""
    text_used, first = fields.text_offsets[row], fields.extra_offsets[row]
    used = first
    pos = skip_space(data, start + mark_width(data, start, end), end)
    if pos == end:
        return BLANK, text_used, used
    if data[pos] != 123:
        return UNPARSED, text_used, used
    pos = skip_space(data, pos + 1, end)
    is_more = not (pos < end and data[pos] == 125)
    if not is_more:
        pos += 1
    while is_more:
        pos, text_used, used = _parse_member(
            data, pos, end, names, name_offsets, is_plain, fields, row, text_used, used
        )
        pos = skip_space(data, pos, end) if pos >= 0 else end
        if pos == end or (data[pos] != 44 and data[pos] != 125):
            return UNPARSED, text_used, used
        is_more = data[pos] == 44
        pos = skip_space(data, pos + 1, end) if is_more else pos + 1
    if skip_space(data, pos, end) != end:
        return UNPARSED, text_used, used
    if used > first:
        fields.extra[used] = 125
        used += 1
    return OK, _without_mark(fields.texts, fields.text_offsets[row], text_used), used


@kernel
def _parse_member(
    data: Bytes,
    pos: int,
    end: int,
    names: Bytes,
    name_offsets: Int64s,
    is_plain: bool,
    fields: LineFields,
    row: int,
    text_used: int,
    used: int,
) -> tuple[int, int, int]:
    """Parse one member; return the byte after it or -1, and how far texts and extra are filled."""
    key, value = pos + 1, skip_key(data, pos, end)
    if value < 0:
        return -1, text_used, used
    key_end = string_end(data, key, end)
    slot = _find_name(data, key, key_end, names, name_offsets)
    if slot >= 0 and fields.kinds[row, slot] != MISSING:
        return -1, text_used, used
    if slot < 0 and not is_plain and _has_escape(data, key, key_end):
        return -1, text_used, used
    if slot == 0 and value < end and data[value] == 34:
        pos, text_used, replaced = write_string(data, value + 1, end, fields.texts, text_used)
        fields.replaced[row] = replaced
        pos, kind = (pos + 1 if 0 <= pos < end else -1), STRING
    else:
        pos, kind = skip_value(data, value, end)
    if slot >= 0:
        quote = 1 if kind == STRING else 0
        fields.kinds[row, slot] = kind
        fields.spans[row, slot, 0], fields.spans[row, slot, 1] = value + quote, pos - quote
    elif pos >= 0 and len(fields.extra):
        fields.extra[used] = 123 if used == fields.extra_offsets[row] else 44
        used = _copy(data, key - 1, key_end + 1, fields.extra, used + 1)
        fields.extra[used] = 58
        used = _copy(data, value, pos, fields.extra, used + 1)
    return pos, text_used, used


@kernel
def mark_width(data: Bytes, start: int, end: int) -> int:
    """Return 3 where there is a byte order mark, else 0."""
    if end - start < 3 or data[start] != 0xEF:
        return 0
    return 3 if data[start + 1] == 0xBB and data[start + 2] == 0xBF else 0


@kernel
def _without_mark(texts: Bytes, start: int, end: int) -> int:
    """Move a text over its byte order mark; return the new end."""
    width = mark_width(texts, start, end)
    if width:
        for pos in range(start, end - width):
            texts[pos] = texts[pos + width]
    return end - width


@kernel
def unescape(data: Bytes, spans: Int64s, kinds: Bytes, out: Bytes, offsets: Int64s) -> Bools:
    """Write the values of one member as UTF-8: strings unescaped, numbers as they are written.

    O(B), allocates N bytes.

    Args:
        data: (B,).
        spans: (N, 2) begin and end of the values.
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
def read_integers(data: Bytes, spans: Int64s, kinds: Bytes, values: Int64s) -> Bools:
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
def _find_name(data: Bytes, key: int, key_end: int, names: Bytes, name_offsets: Int64s) -> int:
    """Return the index among K names of the one at `key:key_end`, -1 for none."""
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
def _has_escape(data: Bytes, pos: int, end: int) -> bool:
    while pos < end:
        if data[pos] == 92:
            return True
        pos += 1
    return False


@kernel
def _copy(data: Bytes, begin: int, end: int, out: Bytes, used: int) -> int:
    for pos in range(begin, end):
        out[used + pos - begin] = data[pos]
    return used + end - begin


# ---------------------------------------------------------------- where values end
#
# Each kernel takes a position in `data (B,) uint8` and the end of the line, returns the position
# after the value or -1, and costs O(bytes read). Source: RFC 8259, sections 2-7.


MISSING, STRING, INTEGER, FLOAT, BOOL, NULL, NESTED = range(7)
"""Kind of a member's value."""

MAX_DEPTH = 60
"""Deeper nesting is refused: one bit per level, in 64 bits with room to spare."""

PLAIN = np.array([byte >= 32 and byte not in b'"\\' for byte in range(256)])
"""Bytes of a string that need no escape. Runs are short: the table finds ends of strings at 1,296
MB/s, vectors of 32 bytes at 352."""

TRUE = np.frombuffer(b"true", np.uint8)
FALSE = np.frombuffer(b"false", np.uint8)
NOTHING = np.frombuffer(b"null", np.uint8)


@kernel
def string_end(data: Bytes, pos: int, end: int) -> int:
    """Return the position of the closing quote of a well-formed string, or -1."""
    while pos < end:
        while pos < end and PLAIN[data[pos]]:
            pos += 1
        if pos >= end or data[pos] < 32:
            return -1
        if data[pos] == 34:
            return pos
        if pos + 1 >= end:
            return -1
        letter = data[pos + 1]
        if letter == 117:
            if pos + 6 > end or hex4(data, pos + 2) < 0:
                return -1
            pos += 6
        elif _plain_escape(letter) >= 0:
            pos += 2
        else:
            return -1
    return -1


@kernel
def skip_value(data: Bytes, pos: int, end: int) -> tuple[int, int]:
    """Return the byte after a well-formed value, or -1, and its kind."""
    if pos < end and (data[pos] == 123 or data[pos] == 91):
        return _skip_nested(data, pos, end), NESTED
    return _skip_scalar(data, pos, end)


@kernel
def _skip_nested(data: Bytes, pos: int, end: int) -> int:
    """Return the byte after a well-formed object or array, or -1."""
    depth = 0
    is_object = np.uint64(0)  # bit 0: what is open now; bit 1: what encloses it; ...
    while pos >= 0:
        # A value starts at pos.
        byte = data[pos] if pos < end else 0
        is_first = False
        if byte == 123 or byte == 91:
            depth += 1
            is_object = (is_object << np.uint64(1)) | np.uint64(byte == 123)
            pos = skip_space(data, pos + 1, end) if depth <= MAX_DEPTH else end
            is_first = True
        else:
            pos, _ = _skip_scalar(data, pos, end)
        pos, depth, is_object = _close(data, pos, end, depth, is_object, is_first)
        if depth == 0:
            return pos
        if pos >= 0 and is_object & np.uint64(1):
            pos = skip_key(data, pos, end)
    return -1


@kernel
def _close(
    data: Bytes, pos: int, end: int, depth: int, is_object: np.uint64, is_first: bool
) -> tuple[int, int, np.uint64]:
    """Go from after a value, or from after an opening bracket, to the next value or key.

    Returns:
        The next byte or -1, the depth, and what is open.
    """
    while pos >= 0:
        pos = skip_space(data, pos, end)
        byte = data[pos] if pos < end else 0
        if byte == (125 if is_object & np.uint64(1) else 93):
            depth -= 1
            is_object >>= np.uint64(1)
            if depth == 0:
                return pos + 1, depth, is_object
            pos += 1
        elif is_first:
            return (pos if pos < end else -1), depth, is_object
        else:
            return (skip_space(data, pos + 1, end) if byte == 44 else -1), depth, is_object
        is_first = False
    return -1, depth, is_object


@kernel
def skip_key(data: Bytes, pos: int, end: int) -> int:
    """Return where the value of a member starts, or -1."""
    if pos >= end or data[pos] != 34:
        return -1
    pos = string_end(data, pos + 1, end)
    if pos < 0:
        return -1
    pos = skip_space(data, pos + 1, end)
    if pos >= end or data[pos] != 58:
        return -1
    return skip_space(data, pos + 1, end)


@kernel
def _skip_scalar(data: Bytes, pos: int, end: int) -> tuple[int, int]:
    """Return the byte after a string, a number, true, false or null, or -1, and its kind."""
    if pos >= end:
        return -1, MISSING
    byte = data[pos]
    if byte == 34:
        pos = string_end(data, pos + 1, end)
        return (pos + 1 if pos >= 0 else -1), STRING
    if byte == 116:
        return _skip_word(data, pos, end, TRUE), BOOL
    if byte == 102:
        return _skip_word(data, pos, end, FALSE), BOOL
    if byte == 110:
        return _skip_word(data, pos, end, NOTHING), NULL
    return _skip_number(data, pos, end)


@kernel
def _skip_word(data: Bytes, pos: int, end: int, word: Bytes) -> int:
    """Return the byte after `word`, or -1 if something else is there."""
    if end - pos < len(word):
        return -1
    for step in range(len(word)):
        if data[pos + step] != word[step]:
            return -1
    return pos + len(word)


@kernel
def _skip_number(data: Bytes, pos: int, end: int) -> tuple[int, int]:
    kind = INTEGER
    if pos < end and data[pos] == 45:
        pos += 1
    if pos < end and data[pos] == 48:
        pos += 1
    else:
        pos = _skip_digits(data, pos, end)
        if pos < 0:
            return -1, kind
    if pos < end and data[pos] == 46:
        kind = FLOAT
        pos = _skip_digits(data, pos + 1, end)
        if pos < 0:
            return -1, kind
    if pos < end and (data[pos] | 32) == 101:
        kind = FLOAT
        pos += 1
        if pos < end and (data[pos] == 43 or data[pos] == 45):
            pos += 1
        pos = _skip_digits(data, pos, end)
    return pos, kind


@kernel
def _skip_digits(data: Bytes, pos: int, end: int) -> int:
    """Return the byte after at least one digit, or -1."""
    begin = pos
    while pos < end and 48 <= data[pos] <= 57:
        pos += 1
    return pos if pos > begin else -1


@kernel
def skip_space(data: Bytes, pos: int, end: int) -> int:
    while pos < end and (data[pos] == 32 or data[pos] == 9 or data[pos] == 13 or data[pos] == 10):
        pos += 1
    return pos


@kernel
def hex4(data: Bytes, pos: int) -> int:
    """Return the value of four hexadecimal digits, or -1."""
    code = 0
    for index in range(pos, pos + 4):
        byte = np.int64(data[index])
        if 48 <= byte <= 57:
            digit = byte - 48
        elif 97 <= (byte | 32) <= 102:
            digit = (byte | 32) - 87
        else:
            return -1
        code = code * 16 + digit
    return code


@kernel
def write_string(data: Bytes, pos: int, end: int, out: Bytes, used: int) -> tuple[int, int, bool]:
    """Unescape a string up to its closing quote or `end`; lone surrogates become U+FFFD.

    Returns:
        The position of the quote, `end` or -1, how far `out` is filled, and whether anything was
        replaced.
    """
    replaced = False
    while pos < end:
        byte = data[pos]
        if PLAIN[byte]:
            out[used] = byte
            used += 1
            pos += 1
            continue
        if byte == 34:
            break
        if byte < 32 or pos + 1 >= end:
            return -1, used, replaced
        letter = data[pos + 1]
        pos += 2
        if letter != 117:
            plain = _plain_escape(letter)
            if plain < 0:
                return -1, used, replaced
            out[used] = plain
            used += 1
            continue
        pos, code = _read_unit(data, pos, end)
        if pos < 0:
            return -1, used, replaced
        if 0xD800 <= code < 0xE000:
            code = 0xFFFD
            replaced = True
        used = write_char(code, out, used)
    return pos, used, replaced


@kernel
def _read_unit(data: Bytes, pos: int, end: int) -> tuple[int, int]:
    """Read a code unit, with the second half of its pair; return the byte after and the code."""
    code = hex4(data, pos) if pos + 4 <= end else -1
    if code < 0:
        return -1, code
    pos += 4
    if 0xD800 <= code < 0xDC00 and pos + 6 <= end and data[pos] == 92 and data[pos + 1] == 117:
        low = hex4(data, pos + 2)
        if 0xDC00 <= low < 0xE000:
            return pos + 6, 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
    return pos, code


@kernel
def _plain_escape(letter: int) -> int:
    """Return the byte that a backslash and `letter` stand for, or -1."""
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
    return letter if letter in (34, 47, 92) else -1

"""Kernels that find where JSON values end, and refuse what is not well formed.

Every one takes a place in `data (B,) uint8` and the end of the line, returns the byte behind the
value or -1, and costs O(bytes passed). Source: RFC 8259, sections 2-7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

MISSING, STRING, INTEGER, FLOAT, BOOL, NULL, NESTED = range(7)
"""Kind of a member's value."""

MAX_DEPTH = 60
"""Deeper nesting is refused: one bit per level, in 64 bits with room to spare."""

PLAIN = np.array([byte >= 32 and byte not in b'"\\' for byte in range(256)])
"""Bytes that stand for themselves in a string. A table beats vector code here: runs are short."""

TRUE = np.frombuffer(b"true", np.uint8)
FALSE = np.frombuffer(b"false", np.uint8)
NOTHING = np.frombuffer(b"null", np.uint8)


@kernel
def string_end(data: NDArray[np.uint8], pos: int, end: int) -> int:
    """Return the place of the closing quote of a well-formed string, or -1."""
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
def skip_value(data: NDArray[np.uint8], pos: int, end: int) -> tuple[int, int]:
    """Return the byte behind a well-formed value, or -1, and its kind."""
    if pos < end and (data[pos] == 123 or data[pos] == 91):
        return _skip_nested(data, pos, end), NESTED
    return _skip_scalar(data, pos, end)


@kernel
def _skip_nested(data: NDArray[np.uint8], pos: int, end: int) -> int:
    """Return the byte behind a well-formed object or array, or -1."""
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
    data: NDArray[np.uint8], pos: int, end: int, depth: int, is_object: np.uint64, is_first: bool
) -> tuple[int, int, np.uint64]:
    """Go from behind a value, or from behind an opening bracket, to the next value or key.

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
def skip_key(data: NDArray[np.uint8], pos: int, end: int) -> int:
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
def _skip_scalar(data: NDArray[np.uint8], pos: int, end: int) -> tuple[int, int]:
    """Return the byte behind a string, a number, true, false or null, or -1, and its kind."""
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
def _skip_word(data: NDArray[np.uint8], pos: int, end: int, word: NDArray[np.uint8]) -> int:
    """Return the byte behind `word`, or -1 if something else stands there."""
    if end - pos < len(word):
        return -1
    for step in range(len(word)):
        if data[pos + step] != word[step]:
            return -1
    return pos + len(word)


@kernel
def _skip_number(data: NDArray[np.uint8], pos: int, end: int) -> tuple[int, int]:
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
def _skip_digits(data: NDArray[np.uint8], pos: int, end: int) -> int:
    """Return the byte behind at least one digit, or -1."""
    begin = pos
    while pos < end and 48 <= data[pos] <= 57:
        pos += 1
    return pos if pos > begin else -1


@kernel
def skip_space(data: NDArray[np.uint8], pos: int, end: int) -> int:
    while pos < end and (data[pos] == 32 or data[pos] == 9 or data[pos] == 13 or data[pos] == 10):
        pos += 1
    return pos


@kernel
def hex4(data: NDArray[np.uint8], pos: int) -> int:
    """Return the value of four hexadecimal digits, or -1."""
    code = 0
    for place in range(pos, pos + 4):
        byte = np.int64(data[place])
        if 48 <= byte <= 57:
            digit = byte - 48
        elif 97 <= (byte | 32) <= 102:
            digit = (byte | 32) - 87
        else:
            return -1
        code = code * 16 + digit
    return code


@kernel
def write_string(
    data: NDArray[np.uint8], pos: int, end: int, out: NDArray[np.uint8], used: int
) -> tuple[int, int, bool]:
    """Unescape a string up to its closing quote or `end`; lone surrogates become U+FFFD.

    Returns:
        The place of the quote, `end` or -1, how far `out` is filled, and whether anything was
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
        used = _write_code(code, out, used)
    return pos, used, replaced


@kernel
def _read_unit(data: NDArray[np.uint8], pos: int, end: int) -> tuple[int, int]:
    """Read a code unit, with the second half of its pair; return the byte behind and the code."""
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

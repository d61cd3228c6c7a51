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

STRIDE = 32
"""Bytes that are searched at once; the compiler makes vector code of a loop of fixed length."""


@kernel
def string_end(data: NDArray[np.uint8], pos: int, end: int) -> int:
    """Return the place of the closing quote of a well-formed string, or -1."""
    while pos < end:
        while pos + STRIDE <= end:
            found = False
            for step in range(STRIDE):
                byte = data[pos + step]
                found |= (byte == 34) | (byte == 92) | (byte < 32)
            if found:
                break
            pos += STRIDE
        while pos < end and data[pos] != 34 and data[pos] != 92 and data[pos] >= 32:
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
        elif letter in (34, 92, 47, 98, 102, 110, 114, 116):
            pos += 2
        else:
            return -1
    return -1


@kernel
def skip_value(data: NDArray[np.uint8], pos: int, end: int) -> tuple[int, int]:
    """Return the byte behind a well-formed value, or -1, and its kind."""
    if pos >= end:
        return -1, MISSING
    byte = data[pos]
    if byte == 34:
        pos = string_end(data, pos + 1, end)
        return (pos + 1 if pos >= 0 else -1), STRING
    if byte == 123 or byte == 91:
        return _skip_nested(data, pos, end), NESTED
    return _skip_scalar(data, pos, end)


@kernel
def _skip_nested(data: NDArray[np.uint8], pos: int, end: int) -> int:
    """Return the byte behind a well-formed object or array, or -1."""
    depth = 0
    is_object = np.uint64(0)  # bit d: what is open at depth d
    while True:
        # A value starts at pos.
        if pos >= end:
            return -1
        byte = data[pos]
        is_opened = byte == 123 or byte == 91
        if is_opened:
            if depth == MAX_DEPTH:
                return -1
            depth += 1
            is_object = (is_object << np.uint64(1)) | np.uint64(byte == 123)
            pos = skip_space(data, pos + 1, end)
            if pos >= end:
                return -1
            is_opened = data[pos] != (125 if byte == 123 else 93)
        else:
            if byte == 34:
                pos = string_end(data, pos + 1, end) + 1
            else:
                pos, _ = _skip_scalar(data, pos, end)
            if pos <= 0:
                return -1
        # Behind a value, or at the end of an empty container.
        while not is_opened:
            pos = skip_space(data, pos, end)
            if pos >= end:
                return -1
            byte = data[pos]
            pos += 1
            if byte == 44:
                pos = skip_space(data, pos, end)
                break
            if byte != (125 if is_object & np.uint64(1) else 93):
                return -1
            is_object >>= np.uint64(1)
            depth -= 1
            if depth == 0:
                return pos
        if is_object & np.uint64(1):
            pos = _skip_key(data, pos, end)
            if pos < 0:
                return -1


@kernel
def _skip_key(data: NDArray[np.uint8], pos: int, end: int) -> int:
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
    """Return the byte behind a number, true, false or null, or -1, and its kind."""
    byte = data[pos]
    left = end - pos
    if byte == 116 and left >= 4:
        is_so = data[pos + 1] == 114 and data[pos + 2] == 117 and data[pos + 3] == 101
        return (pos + 4 if is_so else -1), BOOL
    if byte == 110 and left >= 4:
        is_so = data[pos + 1] == 117 and data[pos + 2] == 108 and data[pos + 3] == 108
        return (pos + 4 if is_so else -1), NULL
    if byte == 102 and left >= 5:
        is_so = data[pos + 1] == 97 and data[pos + 2] == 108
        is_so = is_so and data[pos + 3] == 115 and data[pos + 4] == 101
        return (pos + 5 if is_so else -1), BOOL
    return _skip_number(data, pos, end)


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

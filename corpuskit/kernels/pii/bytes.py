"""Classes of bytes and small parsers for the kernels that find personal data."""

from __future__ import annotations

import numpy as np

from corpuskit.kernels.arrays import Bytes, Uint64s
from corpuskit.kernels.jit import kernel

DIGIT, HEX, WORD, LOCAL, LABEL, LETTER, TOKEN, SEPARATOR = 1, 2, 4, 8, 16, 32, 64, 128


def _classes() -> Bytes:
    """Byte -> bits of the classes that it is in."""
    table = np.zeros(256, np.uint8)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    for bit, chars in (
        (DIGIT, "0123456789"),
        (HEX, "0123456789ABCDEFabcdef"),
        (WORD, letters + "0123456789_"),
        (LOCAL, letters + "0123456789._%+'-"),
        (LABEL, letters + "0123456789-"),
        (LETTER, letters),
        (TOKEN, letters + "0123456789_-"),
        (SEPARATOR, " -./"),
    ):
        table[list(chars.encode())] |= bit
    return table


CLASS = _classes()

SPACE, DASH, DOT, SLASH, PLUS, OPEN, CLOSE, COMMA, COLON, AT, UNDERSCORE = b" -./+(),:@_"


def packed(text: str) -> Uint64s:
    """Return words as numbers: the last seven letters and the length."""
    words = [word.encode() for word in text.split()]
    return np.array([int.from_bytes(w[-7:], "big") << 8 | len(w) for w in words], np.uint64)


@kernel
def is_in(data: Bytes, pos: int, end: int, bits: int) -> bool:
    """Return whether the byte at `pos` exists and is of a class."""
    return pos < end and CLASS[data[pos]] & bits != 0


@kernel
def digits_at(data: Bytes, pos: int, end: int, max_digits: int) -> int:
    """Return how many digits there are at `pos`, at most `max_digits`."""
    stop = min(end, pos + max_digits)
    count = 0
    while pos + count < stop and CLASS[data[pos + count]] & DIGIT:
        count += 1
    return count


@kernel
def is_group(data: Bytes, pos: int, end: int, mark: int, size: int) -> bool:
    """Return whether a separator and exactly `size` digits are at `pos`."""
    return pos < end and data[pos] == mark and digits_at(data, pos + 1, end, size + 1) == size


@kernel
def may_end(data: Bytes, pos: int, end: int, is_spaced: bool, is_strict: bool) -> bool:
    """Return whether a number may end before `pos`: no word or further group of digits follows.

    After a strict one no dash and letter may follow, either.
    """
    if pos >= end:
        return True
    byte = data[pos]
    if CLASS[byte] & WORD or byte == 64:
        return False
    if CLASS[byte] & SEPARATOR and byte != SLASH and (is_spaced or byte != SPACE):
        if is_in(data, pos + 1, end, DIGIT):
            return False
        return not (is_strict and byte == DASH and is_in(data, pos + 1, end, WORD))
    return True


@kernel
def follows_digit(data: Bytes, begin: int, pos: int) -> bool:
    """Return whether a digit and a space precede `pos`."""
    return pos - 2 >= begin and data[pos - 1] == SPACE and CLASS[data[pos - 2]] & DIGIT != 0


@kernel
def word_before(data: Bytes, begin: int, pos: int) -> tuple[int, np.uint64]:
    """Return where the letters that end at `pos` begin, at most 12, and their `packed` number."""
    word, size = np.uint64(0), 0
    while pos > begin and size < 12 and CLASS[data[pos - 1]] & LETTER:
        pos, size = pos - 1, size + 1
        if size < 8:
            word |= np.uint64(data[pos] | 0x20) << np.uint64(8 * size)
    return pos, word | np.uint64(size)

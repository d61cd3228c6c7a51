"""Texts normalised for comparison: lower case, single spaces, without marks and punctuation."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from corpuskit.kernels.arrays import Bools, Bytes, Int64s, Uint32s, frozen, join_bytes
from corpuskit.kernels.hashing import HIGH_BITS, load64, store64
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.utf8 import (
    CHAR_LOWER,
    CHAR_SPACE,
    char_width,
    characters,
    code_point,
    lower64,
    write_char,
)


def lower_texts(offsets: Int64s, data: Bytes) -> tuple[Int64s, Bytes]:
    """Return texts in lower case, exactly as str.lower(); read-only, as Arrow's buffers are.

    A text that holds U+0130, whose lower case is two characters, or a capital sigma, whose lower
    case depends on its neighbours, is left to Python.
    """
    bounds, lower, needs_python = _lower(offsets, data, characters())
    lower = lower[: bounds[-1]]
    if needs_python.any():
        pieces = [lower[begin:end].tobytes() for begin, end in itertools.pairwise(bounds)]
        for row in np.flatnonzero(needs_python).tolist():
            text = data[offsets[row] : offsets[row + 1]].tobytes().decode()
            pieces[row] = text.lower().encode()
        return join_bytes(pieces)
    return frozen(bounds), frozen(lower)


@kernel
def _lower(offsets: Int64s, data: Bytes, characters: Uint32s) -> tuple[Int64s, Bytes, Bools]:
    """O(B), above 2 GB/s for ASCII; allocates 1.5 B bytes: U+023A is 2 bytes, its lower case 3."""
    num_docs = len(offsets) - 1
    out = np.empty((offsets[num_docs] - offsets[0]) * 3 // 2 + 4, np.uint8)
    bounds = np.zeros(num_docs + 1, np.int64)
    needs_python = np.zeros(num_docs, np.bool_)
    size = int(np.int64(0))  # typed: for a literal the function it is passed to is compiled again
    for doc in range(num_docs):
        size = _lower_text(data, offsets[doc], offsets[doc + 1], characters, out, size)
        needs_python[doc] = size < 0
        size = max(size, bounds[doc])
        bounds[doc + 1] = size
    return bounds, out, needs_python


@kernel
def _lower_text(
    data: Bytes, begin: int, end: int, characters: Uint32s, out: Bytes, size: int
) -> int:
    """Write a text from `out[size]` on; return where it ends, -1 if it must be left to Python."""
    pos = begin
    while pos < end:
        if pos + 8 <= end:
            group = load64(data, pos)
            if group & HIGH_BITS == 0:
                store64(lower64(group), out, size)
                size += 8
                pos += 8
                continue
        byte = data[pos]
        if byte < 0x80:
            out[size] = byte + 32 if 65 <= byte <= 90 else byte
            size += 1
            pos += 1
            continue
        code = code_point(data, pos)
        if code == 0x130 or code == 0x3A3:
            return -1
        width = char_width(byte)
        lower = np.int64(characters[code] & CHAR_LOWER) if code < len(characters) else code
        if lower == code:
            for index in range(width):
                out[size + index] = data[pos + index]
            size += width
        else:
            size = write_char(int(lower), out, size)
        pos += width
    return size


def fold_texts(offsets: Int64s, data: Bytes) -> tuple[Int64s, Bytes]:
    """Return texts in lower case, runs of whitespace as one space, stripped.

    Lower case is that of `characters`: U+0130 becomes a plain i, a final sigma one like any other.
    Read-only, as Arrow's buffers are.
    """
    bounds, folded = _fold(offsets, data, characters())
    return frozen(bounds), frozen(folded)


@kernel
def _fold(offsets: Int64s, data: Bytes, characters: Uint32s) -> tuple[Int64s, Bytes]:
    """O(B), about 350 MB/s; allocates 1.5 B bytes: U+023A is 2 bytes, its lower case 3."""
    num_docs = len(offsets) - 1
    out = np.empty((offsets[num_docs] - offsets[0]) * 3 // 2 + 4, np.uint8)
    bounds = np.zeros(num_docs + 1, np.int64)
    size = 0
    for doc in range(num_docs):
        pos = offsets[doc]
        waiting = False
        while pos < offsets[doc + 1]:
            code = code_point(data, pos)
            pos += char_width(data[pos])
            entry = int(characters[code]) if code < len(characters) else int(code)
            if entry & CHAR_SPACE:
                waiting = size > bounds[doc]
                continue
            if waiting:
                out[size] = 32
                size += 1
                waiting = False
            size = write_char(entry & CHAR_LOWER, out, size)
        bounds[doc + 1] = size
    return bounds, out[:size]


# ----------------------------------------------------------------------
# Texts simplified for comparison: numbers, punctuation, whitespace and accents unified.

SAME, BECOMES, SPACE, DIGIT, NEEDS_PYTHON = range(5)
"""Kinds of characters: kept; replaced; space; digit; only Python can simplify the text."""

SEPARATES = 8
"""Bit of a kind: the character may be between the digits of one number."""


class Simple(NamedTuple):
    """What becomes of each character.

    Attributes:
        kinds: (C,) uint8, see SAME; characters beyond the table are NEEDS_PYTHON.
        replacements: (C,) uint16: number of the replacement, for BECOMES.
        starts: (R + 1,) int64: replacement r is `content[starts[r]:starts[r + 1]]`.
        content: uint8.
    """

    kinds: Bytes
    replacements: NDArray[np.uint16]
    starts: Int64s
    content: Bytes


@kernel
def simplify(offsets: Int64s, data: Bytes, simple: Simple) -> tuple[Int64s, Bytes, Bools]:
    """Return simplified texts, and which were left out: they hold NEEDS_PYTHON characters. O(B).

    A number (digits, which a separator and more digits may follow) becomes 0; a run of spaces one
    space, none at either end; the table replaces other characters. Reserves 3 B bytes, as a Hangul
    syllable of 3 bytes becomes 9, and writes to what it uses.
    """
    num_docs = len(offsets) - 1
    out = np.empty(3 * (offsets[num_docs] - offsets[0]) + 16, np.uint8)
    bounds = np.zeros(num_docs + 1, np.int64)
    needs_python = np.zeros(num_docs, np.bool_)
    size = np.int64(0)
    for doc in range(num_docs):
        size = _simplify_text(data, offsets[doc], offsets[doc + 1], simple, out, size)
        needs_python[doc] = size < 0
        size = max(size, bounds[doc])
        bounds[doc + 1] = size
    return bounds, out, needs_python


@kernel
def _simplify_text(
    data: Bytes, begin: int, end: int, simple: Simple, out: Bytes, size: np.int64
) -> np.int64:
    """Write a text from `out[size]` on; return where it ends, -1 if only Python can simplify it.

    A space is written at once, and a space after it overwrites it. A dropped mark separates two
    spaces: both stay, except at the ends of the text.
    """
    first, pos = size, begin
    is_inside = np.int64(0)
    while pos < end:
        byte = data[pos]
        if byte < 0x80 and simple.kinds[byte] & 7 != DIGIT:
            # Without branches: each of 139,000 words per MB has two edges.
            is_kept = np.int64(simple.kinds[byte] & 7 != SPACE)
            out[size] = byte if is_kept else 32
            size += is_kept | is_inside
            is_inside = is_kept
            pos += 1
            continue
        code = code_point(data, pos)
        kind = simple.kinds[code] & 7 if code < len(simple.kinds) else NEEDS_PYTHON
        if kind == DIGIT:
            pos = _after_number(data, pos, end, simple.kinds)
            out[size] = ord("0")
            size += 1
        elif kind == NEEDS_PYTHON:
            return np.int64(-1)
        else:
            width = char_width(byte)
            if kind == SPACE:
                out[size] = 32
                size += is_inside
            elif kind == SAME:
                for index in range(width):
                    out[size + index] = data[pos + index]
                size += width
            else:
                replacement = simple.replacements[code]
                for index in range(simple.starts[replacement], simple.starts[replacement + 1]):
                    out[size] = simple.content[index]
                    size += 1
            pos += width
        is_inside = np.int64(kind != SPACE)
    while size > first and out[size - 1] == 32:
        size -= 1
    spaces = np.int64(0)
    while first + spaces < size and out[first + spaces] == 32:
        spaces += 1
    if spaces:
        for index in range(first, size - spaces):
            out[index] = out[index + spaces]
    return size - spaces


@kernel
def _after_number(data: Bytes, pos: int, end: int, kinds: Bytes) -> int:
    """Return where the number that begins at `pos` ends."""
    pos = _after_digits(data, pos, end, kinds)
    if pos < end:
        code = code_point(data, pos)
        if code < len(kinds) and kinds[code] & SEPARATES:
            next_at = pos + char_width(data[pos])
            digits_end = _after_digits(data, next_at, end, kinds)
            if digits_end > next_at:
                return digits_end
    return pos


@kernel
def _after_digits(data: Bytes, pos: int, end: int, kinds: Bytes) -> int:
    while pos < end:
        code = code_point(data, pos)
        if code >= len(kinds) or kinds[code] & 7 != DIGIT:
            break
        pos += char_width(data[pos])
    return pos

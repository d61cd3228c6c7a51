"""What the Gopher quality rules measure about each document."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from corpuskit.kernels.jit import kernel
from corpuskit.kernels.punctuation import PUNCTUATION, TERMINAL
from corpuskit.kernels.utf8 import (
    char_table,
    char_width,
    code_point,
    count_chars,
    line_break_width,
    skip_space,
    skip_space_back,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from corpuskit.kernels.words import WordTable

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]

MEASURES = (
    "num_words",
    "mean_word_length",
    "hash_ratio",
    "ellipsis_ratio",
    "bullet_lines_ratio",
    "ellipsis_lines_ratio",
    "alpha_words_ratio",
    "num_stop_words",
)


class Vocabulary(NamedTuple):
    """A small set of words that a kernel can look up.

    Attributes:
        gate: (256,) uint64, first byte -> bit set of the lengths in bytes (63 = longer) that occur.
        offsets, data: the words, K of them, as buffers.
    """

    gate: NDArray[np.uint64]
    offsets: Offsets
    data: Bytes


def vocabulary(words: Sequence[str]) -> Vocabulary:
    """Build a Vocabulary; repeated words count once."""
    coded = [word.encode() for word in dict.fromkeys(words)]
    gate = np.zeros(256, np.uint64)
    for word in coded:
        gate[word[0]] |= np.uint64(1 << min(len(word), 63))
    offsets = np.cumsum([0, *map(len, coded)], dtype=np.int64)
    return Vocabulary(gate, offsets, np.frombuffer(b"".join(coded) + b"\0", np.uint8))


def measure_quality(
    offsets: Offsets, data: Bytes, words: WordTable, stop_words: Vocabulary
) -> NDArray[np.float64]:
    """Return (8, N) float64, rows as in MEASURES; NaN where a denominator is zero."""
    return _measure(
        offsets, data, words.offsets, words.edges, _char_kinds(), _BYTE_KINDS, *stop_words
    )


_SOLID, _ALPHA = 1, 2
"""Bits of a character: not punctuation; alphabetic."""

_SYMBOLS = PUNCTUATION | TERMINAL


def _is_solid(char: str) -> bool:
    return char not in _SYMBOLS


def _char_kinds() -> NDArray[np.uint8]:
    return char_table(_is_solid, str.isalpha)


def _byte_kinds() -> NDArray[np.uint8]:
    """Byte -> whether it may be a hash, a part of an ellipsis or of a line boundary."""
    table = np.zeros(256, np.uint8)
    table[[10, 11, 12, 13, 28, 29, 30, ord("#"), ord("."), 0xC2, 0xE2]] = 1
    table.flags.writeable = False
    return table


_BYTE_KINDS = _byte_kinds()


@kernel
def _ratio(count: int, of: int) -> float:
    return count / of if of > 0 else np.nan


@kernel
def _measure(
    offsets: Offsets,
    data: Bytes,
    word_offsets: Offsets,
    edges: NDArray[np.int32],
    char_kinds: Bytes,
    byte_kinds: Bytes,
    gate: NDArray[np.uint64],
    stop_offsets: Offsets,
    stop_data: Bytes,
) -> NDArray[np.float64]:
    """O(B + W K'), K' stop words of a word's first letter and length; allocates 64 N bytes."""
    num_docs = len(offsets) - 1
    measured = np.empty((len(MEASURES), num_docs))
    seen = np.full(len(stop_offsets) - 1, -1, np.int64)
    for row in range(num_docs):
        begin = offsets[row]
        first, last = word_offsets[row], word_offsets[row + 1]
        solid, chars, alpha, stops = 0, 0, 0, 0
        for word in range(first, last):
            start, end = begin + edges[2 * word], begin + edges[2 * word + 1]
            kinds = _word_kinds(data, start, end, char_kinds)
            if kinds & _SOLID:
                solid += 1
                chars += count_chars(data, start, end)
            if kinds & _ALPHA:
                alpha += 1
            if gate[data[start]] >> np.uint64(min(end - start, 63)) & np.uint64(1):
                at = _find(data, start, end, stop_offsets, stop_data)
                if at >= 0 and seen[at] != row:
                    seen[at] = row
                    stops += 1
        hashes, dots, lines, bullets, trailing = _lines(data, begin, offsets[row + 1], byte_kinds)
        measured[0, row] = solid
        measured[1, row] = _ratio(chars, solid)
        measured[2, row] = _ratio(hashes, last - first)
        measured[3, row] = _ratio(dots, last - first)
        measured[4, row] = _ratio(bullets, lines)
        measured[5, row] = _ratio(trailing, lines)
        measured[6, row] = _ratio(alpha, last - first)
        measured[7, row] = stops
    return measured


@kernel
def _word_kinds(data: Bytes, start: int, end: int, char_kinds: Bytes) -> int:
    """Return the kinds of characters in a word; most words answer with their first."""
    kinds = 0
    while start < end and kinds != 3:
        kinds |= char_kinds[code_point(data, start)]
        start += char_width(data[start])
    return kinds


@kernel
def _find(data: Bytes, start: int, end: int, stop_offsets: Offsets, stop_data: Bytes) -> int:
    """Return the number of the stop word `data[start:end]`, -1 if it is none."""
    for number in range(len(stop_offsets) - 1):
        at = stop_offsets[number]
        if stop_offsets[number + 1] - at != end - start:
            continue
        same = 0
        while same < end - start and data[start + same] == stop_data[at + same]:
            same += 1
        if same == end - start:
            return number
    return -1


@kernel
def _is_dots(data: Bytes, at: int) -> bool:
    return bool(data[at] == 46 and data[at + 1] == 46 and data[at + 2] == 46)


@kernel
def _is_ellipsis(data: Bytes, at: int) -> bool:
    return bool(data[at] == 0xE2 and data[at + 1] == 0x80 and data[at + 2] == 0xA6)


@kernel
def _line(data: Bytes, start: int, end: int) -> tuple[int, int]:
    """Return whether a line begins with a bullet, and whether it ends in an ellipsis, as 0 or 1."""
    first = skip_space(data, start, end)
    if first == end:
        return 0, 0
    bullet = data[first] == 45 or (
        data[first] == 0xE2 and data[first + 1] == 0x80 and data[first + 2] == 0xA2
    )
    last = skip_space_back(data, first, end) - 3
    trailing = last >= first and (_is_dots(data, last) or _is_ellipsis(data, last))
    return int(bullet), int(trailing)


@kernel
def _lines(data: Bytes, begin: int, end: int, byte_kinds: Bytes) -> tuple[int, int, int, int, int]:
    """Count hashes, ellipses, lines, lines that begin with a bullet, that end in an ellipsis."""
    hashes, dots, lines, bullets, trailing = 0, 0, 0, 0, 0
    line = at = begin
    while at < end:
        if byte_kinds[data[at]] == 0:
            at += 1
            continue
        width = line_break_width(data, at, end)
        if width > 0:
            bullet, trail = _line(data, line, at)
            lines, bullets, trailing = lines + 1, bullets + bullet, trailing + trail
            at += width
            line = at
        elif data[at] == 35:
            hashes += 1
            at += 1
        elif at + 3 <= end and (_is_dots(data, at) or _is_ellipsis(data, at)):
            dots += 1
            at += 3
        else:
            at += 1
    if line < end:
        bullet, trail = _line(data, line, end)
        lines, bullets, trailing = lines + 1, bullets + bullet, trailing + trail
    return hashes, dots, lines, bullets, trailing

"""What the Gopher quality rules measure about each document, as datatrove measures it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.jit import kernel
from corpuskit.kernels.utf8 import line_break_width, skip_space, skip_space_back
from corpuskit.kernels.words.lexicon import ALPHA, SOLID

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corpuskit.kernels.words.lexicon import Words

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]

MEASURES = (
    "num_words",
    "word_length",
    "hash_ratio",
    "ellipsis_ratio",
    "bullet_lines_ratio",
    "ellipsis_lines_ratio",
    "alpha_words_ratio",
    "num_stop_words",
)


def measure_quality(
    offsets: Offsets, data: Bytes, words: Words, stop_words: tuple[str, ...]
) -> NDArray[np.float64]:
    """Return (8, N) float64, rows as in MEASURES; NaN where a denominator is zero.

    Words of symbols alone are left out of `num_words` and of `word_length`, the mean in characters.
    """
    lexicon = words.lexicon
    return _measure(
        offsets, data, words.offsets, words.tokens, lexicon.kinds, lexicon.chars,
        lexicon.marks(stop_words), len(stop_words), _BYTE_KINDS,
    )  # fmt: skip


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
    offsets: Offsets, data: Bytes, word_offsets: Offsets, tokens: NDArray[np.int32], kinds: Bytes,
    chars: NDArray[np.int32], marks: Bytes, num_marks: int, byte_kinds: Bytes,
) -> NDArray[np.float64]:  # fmt: skip
    """O(B + W + K N), K stop words; allocates 64 N bytes."""
    num_docs = len(offsets) - 1
    measured = np.empty((len(MEASURES), num_docs))
    seen = np.full(256, -1, np.int64)
    for row in range(num_docs):
        first, last = word_offsets[row], word_offsets[row + 1]
        solid, length, alpha, stops = 0, 0, 0, 0
        for word in range(first, last):
            token = tokens[word]
            kind = kinds[token]
            is_solid = np.int64(kind & SOLID != 0)
            solid += is_solid
            length += is_solid * chars[token]
            alpha += np.int64(kind & ALPHA != 0)
            seen[marks[token]] = row
        for mark in range(1, num_marks + 1):
            stops += seen[mark] == row
        hashes, dots, lines, bullets, trailing = _lines(
            data, offsets[row], offsets[row + 1], byte_kinds
        )
        measured[0, row] = solid
        measured[1, row] = _ratio(length, solid)
        measured[2, row] = _ratio(hashes, last - first)
        measured[3, row] = _ratio(dots, last - first)
        measured[4, row] = _ratio(bullets, lines)
        measured[5, row] = _ratio(trailing, lines)
        measured[6, row] = _ratio(alpha, last - first)
        measured[7, row] = stops
    return measured


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

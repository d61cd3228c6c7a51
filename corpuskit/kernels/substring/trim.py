"""Spans of bytes shrunk to whole characters, words or lines."""

from __future__ import annotations

import functools
import unicodedata
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.jit import kernel
from corpuskit.kernels.utf8 import char_table, code_point

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]

CHAR, WORD, LINE = 0, 1, 2
"""What a cut leaves whole."""

_SPACE, _UNSPACED, _EXTENDS = 1, 2, 4
"""Kinds of characters; what extends belongs to the one before."""

_UNSPACED_SCRIPTS = (
    *((0x0E00, 0x109F), (0x1780, 0x17FF), (0x1980, 0x19DF), (0x1A20, 0x1AAF)),  # Thai to Khmer
    *((0x2E80, 0x312F), (0x3190, 0x9FFF), (0xF900, 0xFAFF), (0xFE30, 0xFE4F)),  # Han, kana
    *((0xFF00, 0xFF9F), (0x20000, 0x3FFFF)),
)
"""Blocks of scripts that put no space between words, and their punctuation."""


@functools.cache
def char_kinds() -> NDArray[np.uint8]:
    """Return what `trim_spans` has to know of each code point; 0.2 s on first use, read-only."""
    kinds = char_table(str.isspace) * np.uint8(_SPACE)
    for low, high in _UNSPACED_SCRIPTS:
        kinds[low : high + 1] |= _UNSPACED
    marks = [unicodedata.category(char)[0] == "M" for char in map(chr, range(len(kinds)))]
    kinds[marks] |= _EXTENDS
    kinds[[0x200C, 0x200D]] |= _EXTENDS  # joiners
    kinds.flags.writeable = False
    return kinds


@kernel
def trim_spans(
    offsets: Offsets,
    data: Bytes,
    rows: Offsets,
    starts: Offsets,
    ends: Offsets,
    kinds: Bytes,
    trim: int,
) -> tuple[Offsets, Offsets]:
    """Return starts and ends of spans shrunk until the text around them stays whole, (S,) each.

    CHAR: no character is cut, nor a combining mark from what it stands on. WORD: nor a word, and
    what is left of the text before and behind a span never becomes one word; in scripts without
    spaces each character counts as a word. LINE: whole lines go. A span may become empty. O(B) of
    the spans at most.

    Args:
        offsets, data: the texts, valid UTF-8.
        rows, starts, ends: (S,) the spans: text, bytes from its beginning.
        kinds: of `char_kinds()`.
        trim: CHAR, WORD or LINE.
    """
    new_starts, new_ends = np.empty_like(starts), np.empty_like(ends)
    for span in range(len(rows)):
        begin, end = offsets[rows[span]], offsets[rows[span] + 1]
        low, high = begin + starts[span], begin + ends[span]
        while low < high and not (low == begin or _may_start(data, low, kinds, trim)):
            low += 1
        while high > low and not (high == end or _may_end(data, high, kinds, trim)):
            high -= 1
        new_starts[span], new_ends[span] = low - begin, high - begin
    return new_starts, new_ends


@kernel
def _may_start(data: Bytes, at: int, kinds: Bytes, trim: int) -> bool:
    """Return whether a cut may start at `at`, which is not where the text begins."""
    if trim == LINE:
        return bool(data[at - 1] == 10)
    if data[at] & 0xC0 == 0x80 or kinds[code_point(data, at)] & _EXTENDS:
        return False
    # That a word begins here is not enough: were it glued to the one behind the cut, if ...
    return trim == CHAR or _kind_before(data, at, kinds) & (_SPACE | _UNSPACED) != 0


@kernel
def _may_end(data: Bytes, at: int, kinds: Bytes, trim: int) -> bool:
    """Return whether a cut may end at `at`, which is not where the text ends."""
    if trim == LINE:
        return bool(data[at - 1] == 10 or data[at] == 10)
    if data[at] & 0xC0 == 0x80 or kinds[code_point(data, at)] & _EXTENDS:
        return False
    near = kinds[code_point(data, at)] | _kind_before(data, at, kinds)
    return trim == CHAR or near & (_SPACE | _UNSPACED) != 0


@kernel
def _kind_before(data: Bytes, at: int, kinds: Bytes) -> int:
    """Return the kind of the character that ends at `at`."""
    lead = at - 1
    while data[lead] & 0xC0 == 0x80:
        lead -= 1
    return int(kinds[code_point(data, lead)])

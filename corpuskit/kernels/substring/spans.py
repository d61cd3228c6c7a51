"""Spans of flagged windows: united, subtracted, joined, trimmed; windows of a suffix array."""

from __future__ import annotations

import functools
import unicodedata

import numpy as np

from corpuskit.kernels.arrays import Bytes, Int32s, Int64s, Uint32s, frozen
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.utf8 import char_table, code_point

Symbols = Bytes | Uint32s
Order = Int32s | Int64s


@kernel
def flagged_spans(flags: Bytes, offsets: Int64s, window: int) -> tuple[Int64s, Int64s, Int64s]:
    """Return the union of the flagged windows of each text: texts, starts, ends, (S,) each.

    Sorted, disjoint, and none touch. O(M), allocates 48 bytes per window length of text.

    Args:
        flags: (M,) whether the window that begins here is flagged.
        offsets: (N + 1,) where texts begin; a separator is the last symbol before the next one.
        window: symbols of a window; no flagged one reaches beyond its text.
    """
    max_spans = len(flags) // window + 1
    texts, starts, ends = (
        np.empty(max_spans, np.int64),
        np.empty(max_spans, np.int64),
        np.empty(max_spans, np.int64),
    )
    num = 0
    for text in range(len(offsets) - 1):
        begin, end = offsets[text], np.int64(-1)
        for pos in range(begin, offsets[text + 1] - window):
            if not flags[pos]:
                continue
            if pos > end:
                texts[num], starts[num] = text, pos - begin
                num += 1
            end = pos + window
            ends[num - 1] = end - begin
    return texts[:num].copy(), starts[:num].copy(), ends[:num].copy()


@kernel
def subtract_spans(
    rows: Int64s, starts: Int64s, ends: Int64s,
    other_rows: Int64s, other_starts: Int64s, other_ends: Int64s
) -> tuple[Int64s, Int64s, Int64s]:  # fmt: skip
    """Return what the first spans cover and the others do not. O(S + T).

    Args:
        rows, starts, ends: (S,) sorted and disjoint.
        other_rows, other_starts, other_ends: (T,) as well.
    """
    spans = np.empty((len(rows) + len(other_rows), 3), np.int64)
    num = index = 0
    for span in range(len(rows)):
        row, start, end = rows[span], starts[span], ends[span]
        while index < len(other_rows) and (
            other_rows[index] < row or (other_rows[index] == row and other_starts[index] < end)
        ):
            if other_rows[index] == row and other_ends[index] > start:
                if other_starts[index] > start:
                    spans[num, 0], spans[num, 1], spans[num, 2] = row, start, other_starts[index]
                    num += 1
                start = other_ends[index]
                if start >= end:
                    break  # this span of the others may reach into the next span
            index += 1
        if start < end:
            spans[num, 0], spans[num, 1], spans[num, 2] = row, start, end
            num += 1
    return spans[:num, 0].copy(), spans[:num, 1].copy(), spans[:num, 2].copy()


@kernel
def join_spans(
    rows: Int64s, starts: Int64s, ends: Int64s, fragment: int
) -> tuple[Int64s, Int64s, Int64s]:
    """Join spans of a row with less than `fragment` in between; leave out empty ones. O(S).

    Args:
        rows, starts, ends: (S,) sorted and disjoint.
    """
    kept_rows, kept_starts, kept_ends = rows.copy(), starts.copy(), ends.copy()
    num = 0
    for span in range(len(rows)):
        if starts[span] == ends[span]:
            continue
        is_near = num > 0 and kept_rows[num - 1] == rows[span]
        if is_near and starts[span] - kept_ends[num - 1] < fragment:
            kept_ends[num - 1] = ends[span]
        else:
            kept_rows[num], kept_starts[num], kept_ends[num] = rows[span], starts[span], ends[span]
            num += 1
    return kept_rows[:num].copy(), kept_starts[:num].copy(), kept_ends[:num].copy()


# ---------------------------------------------------------------- trimming


CHAR, WORD, LINE = 0, 1, 2
"""What a cut must not split."""

_SPACE, _UNSPACED, _EXTENDS = 1, 2, 4
"""Kinds of characters: whitespace; of a script without spaces; extends the one before."""

_UNSPACED_SCRIPTS = (
    *((0x0E00, 0x109F), (0x1780, 0x17FF), (0x1980, 0x19DF), (0x1A20, 0x1AAF)),  # Thai to Khmer
    *((0x2E80, 0x312F), (0x3190, 0x9FFF), (0xF900, 0xFAFF), (0xFE30, 0xFE4F)),  # Han, kana
    *((0xFF00, 0xFF9F), (0x20000, 0x3FFFF)),
)
"""Blocks of scripts that put no space between words, and their punctuation."""


@functools.cache
def char_kinds() -> Bytes:
    """Return the kinds of each code point for `trim_spans`; 0.2 s on first use, read-only."""
    kinds = char_table(str.isspace) * np.uint8(_SPACE)
    for low, high in _UNSPACED_SCRIPTS:
        kinds[low : high + 1] |= _UNSPACED
    marks = [unicodedata.category(char)[0] == "M" for char in map(chr, range(len(kinds)))]
    kinds[marks] |= _EXTENDS
    kinds[[0x200C, 0x200D]] |= _EXTENDS  # joiners
    return frozen(kinds)


@kernel
def trim_spans(
    offsets: Int64s,
    data: Bytes,
    rows: Int64s,
    starts: Int64s,
    ends: Int64s,
    kinds: Bytes,
    trim: int,
) -> tuple[Int64s, Int64s]:
    """Return starts and ends of spans, shrunk to keep the text around them undamaged, (S,) each.

    CHAR: no character is split, nor a combining mark from its base character. WORD: nor a word, and
    the text before and after a span is never joined to one word; in scripts without spaces each
    character counts as a word. LINE: only full lines are cut. A span may become empty. O(B) of the
    spans at most.

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
def _may_start(data: Bytes, pos: int, kinds: Bytes, trim: int) -> bool:
    """Return whether a cut may start at `pos`, which is not where the text begins."""
    if trim == LINE:
        return bool(data[pos - 1] == 10)
    if data[pos] & 0xC0 == 0x80 or kinds[code_point(data, pos)] & _EXTENDS:
        return False
    # The text before the cut must not be joined to a word after it: it must end in a space, too.
    return trim == CHAR or _kind_before(data, pos, kinds) & (_SPACE | _UNSPACED) != 0


@kernel
def _may_end(data: Bytes, pos: int, kinds: Bytes, trim: int) -> bool:
    """Return whether a cut may end at `pos`, which is not where the text ends."""
    if trim == LINE:
        return bool(data[pos - 1] == 10 or data[pos] == 10)
    if data[pos] & 0xC0 == 0x80 or kinds[code_point(data, pos)] & _EXTENDS:
        return False
    kinds_around = kinds[code_point(data, pos)] | _kind_before(data, pos, kinds)
    return trim == CHAR or kinds_around & (_SPACE | _UNSPACED) != 0


@kernel
def _kind_before(data: Bytes, pos: int, kinds: Bytes) -> int:
    """Return the kind of the character that ends at `pos`."""
    lead = pos - 1
    while data[lead] & 0xC0 == 0x80:
        lead -= 1
    return int(kinds[code_point(data, lead)])


# ---------------------------------------------------------------- longest common prefixes
#
# All texts are in one array, each with a separator after it that occurs in no text. Letters: M
# symbols, separators included; N texts; L symbols of a window.


@kernel
def link_windows(symbols: Symbols, offsets: Int64s, order: Order, window: int) -> Bytes:
    """Flag each window that equals the one before it in the suffix array, (M,).

    Equal windows are neighbours there, so all but one of them are flagged. Texts are read in their
    own order: from one position to the next the prefix shared with the neighbour shrinks by one
    symbol at most, and it need not grow beyond L. To compare neighbours in suffix order costs six
    times as much, in cache misses. O(M), allocates M bytes and, on the way, an array
    like `order`.

    Args:
        symbols: (M,) texts and separators.
        offsets: (N + 1,) where texts begin; a separator is the last symbol before the next one.
        order: (M,) the suffix array.
        window: L.

    Source: Karkkainen, Manzini, Puglisi 2009, "Permuted Longest-Common-Prefix Array".
    """
    linked = np.zeros(len(symbols), np.uint8)
    previous = np.empty_like(order)
    previous[order[0]] = -1
    for index in range(1, len(order)):
        previous[order[index]] = order[index - 1]
    for text in range(len(offsets) - 1):
        shared = 0
        for pos in range(offsets[text], offsets[text + 1] - window):
            neighbour = np.int64(previous[pos])
            if neighbour < 0:
                continue  # the first suffix has no neighbour; `shared` is 0
            # Ends at the latest at a separator of the neighbour: this window has none.
            while shared < window and symbols[pos + shared] == symbols[neighbour + shared]:
                shared += 1
            linked[pos] = shared == window
            shared = max(shared - 1, 0)
    return linked


@kernel
def flag_later(linked: Bytes, order: Order) -> None:
    """Turn links into flags of the windows that also occur at a smaller position. O(M)."""
    least = np.int64(order[0])
    for index in range(1, len(order)):
        pos = np.int64(order[index])
        if not linked[pos]:
            least = pos
        elif pos < least:
            linked[least], linked[pos] = 1, 0
            least = pos


@kernel
def flag_all(linked: Bytes, order: Order) -> None:
    """Turn links into flags of the windows that also occur elsewhere. O(M)."""
    for index in range(1, len(order)):
        if linked[order[index]]:
            linked[order[index - 1]] = 1

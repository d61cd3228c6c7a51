"""Which lines of a page are menus, counters, numbers or in upper case, and go."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from corpuskit.kernels.arrays import Bytes, Float64s, Int64s
from corpuskit.kernels.filters.fineweb import count_newlines
from corpuskit.kernels.filters.quality import count_tokens
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.spans import add_cut, close_gap, fill_gap
from corpuskit.kernels.utf8 import (
    char_table,
    char_width,
    code_point,
    count_chars,
    skip_space,
    skip_space_back,
)

UPPERCASE, NUMERIC, COUNTER, TOO_FEW_WORDS, PHRASE, WHITESPACE = 1, 2, 3, 4, 5, 6
"""Codes of lines that are cut."""

MAY_COUNT, MAY_HOLD_PHRASE = 1, 2
"""Bits of a line's gates: only lines with the bit can match the regular expression."""

_GN, _CART, _READ_MORE = (np.frombuffer(word, np.uint8) for word in (b"gn-", b"cart", b"ead more"))

_NO_ROWS = np.empty(0, np.int64)

_UPPER, _DIGIT, _SPACE = 1, 2, 4


class MeasuredLines(NamedTuple):
    r"""The lines of N documents, split at \n; L of them.

    Attributes:
        bounds: (N + 1,) int64: the lines of document i are `bounds[i]:bounds[i + 1]`.
        begins: (L,) int64, where a line begins in the buffer.
        edges: (2, L) int64, where its text begins and ends, once pages are stripped.
        counts: (4, L) int64: characters, upper-case ones, digits, words between whitespace.
        gates: (L,) uint8, bits as above.
    """

    bounds: Int64s
    begins: Int64s
    edges: Int64s
    counts: Int64s
    gates: Bytes

    def rows(self, numbers: Int64s) -> Int64s:
        """Return the documents of some lines."""
        return np.searchsorted(self.bounds, numbers, side="right") - 1


def measure_lines(offsets: Int64s, data: Bytes, max_phrase_words: int) -> MeasuredLines:
    """Measure what the rules compare; O(B), allocates 57 bytes a line."""
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(count_newlines(offsets, data) + 1)])
    num = int(bounds[-1])
    begins, edges = np.empty(num, np.int64), np.empty((2, num), np.int64)
    counts, gates = np.empty((4, num), np.int64), np.empty(num, np.uint8)
    _measure(offsets, data, _kinds(), max_phrase_words, bounds, begins, edges, counts, gates)
    return MeasuredLines(bounds, begins, edges, counts, gates)


def judge_lines(
    data: Bytes,
    lines: MeasuredLines,
    is_counter: Bytes,
    max_uppercase_ratio: float | None,
    max_numeric_ratio: float | None,
    min_words: int | None,
    drops_counters: bool,
    strips_phrases: bool,
) -> tuple[Bytes, Bytes]:
    """Return (L,) codes of lines (0 stays) and (N,) whether anything is left of a page.

    The rules are applied to a page one after the other. After each of the first three the page is
    stripped, which moves `lines.edges` of its first and last line. `None` turns a rule off. Blank
    lines are cut with the phrases, which the caller cuts.
    """
    steps = np.array(
        [
            max_uppercase_ratio is not None,
            max_numeric_ratio is not None,
            drops_counters,
            strips_phrases,
        ],
        np.uint8,
    )
    limits = np.array([max_uppercase_ratio or 0.0, max_numeric_ratio or 0.0])
    codes = np.zeros(len(lines.begins), np.uint8)
    has_text = np.ones(len(lines.bounds) - 1, np.uint8)
    _judge(
        *(data, lines.bounds, lines.edges, lines.counts, is_counter, steps, limits),
        *(-1 if min_words is None else min_words, codes, has_text),
    )
    return codes, has_text


def list_cuts(
    offsets: Int64s, data: Bytes, lines: MeasuredLines, codes: Bytes
) -> tuple[Int64s, Int64s, Int64s, Bytes]:
    """Return the cuts, (n,) each: rows, starts and ends in bytes of the document, codes."""
    max_cuts = len(codes) * 2 + 2 * len(offsets)
    starts, ends = np.empty(max_cuts, np.int64), np.empty(max_cuts, np.int64)
    cut_codes, cut_bounds = np.empty(max_cuts, np.uint8), np.zeros(len(offsets), np.int64)
    _list_cuts(
        *(offsets, data, lines.bounds, lines.begins, lines.edges, codes),
        *(starts, ends, cut_codes, cut_bounds),
    )
    num = cut_bounds[-1]
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(cut_bounds))
    begins = offsets[rows]
    return rows, starts[:num] - begins, ends[:num] - begins, cut_codes[:num]


def count_words(
    offsets: Int64s, data: Bytes, known_counts: Int64s | None = None, rows: Int64s = _NO_ROWS
) -> Int64s:
    r"""Return how many words begin with a letter or digit, (N,); as DCLM counts them.

    Words are split as fastText splits text: at space, \n, \r, \t, \v, \f and NUL only. O(B).

    Args:
        offsets, data: the texts.
        known_counts: (N,) counts of all texts but `rows`.
        rows: texts to count; only with `known_counts`.
    """
    if known_counts is None:
        known_counts, rows = np.empty(len(offsets) - 1, np.int64), np.arange(len(offsets) - 1)
    counts = known_counts.copy()
    _count_words(offsets, data, rows, char_table(str.isalnum), counts)
    return counts


def _kinds() -> Bytes:
    return char_table(str.isupper, str.isdigit, str.isspace)


@kernel
def _measure(
    offsets: Int64s,
    data: Bytes,
    kinds: Bytes,
    max_phrase_words: int,
    bounds: Int64s,
    begins: Int64s,
    edges: Int64s,
    counts: Int64s,
    gates: Bytes,
) -> None:
    """Fill the arrays after `bounds`."""
    for row in range(len(offsets) - 1):
        pos, end = offsets[row], offsets[row + 1]
        for line in range(bounds[row], bounds[row + 1]):
            start, chars, upper, digits, words, in_word = pos, 0, 0, 0, 0, 0
            while pos < end and data[pos] != 10:
                if data[pos] < 0x80:
                    kind, width = np.int64(kinds[data[pos]]), 1
                else:
                    kind, width = np.int64(kinds[code_point(data, pos)]), char_width(data[pos])
                chars += 1
                upper += kind & _UPPER
                digits += kind >> 1 & 1
                solid = 1 - (kind >> 2 & 1)
                words += solid & (1 - in_word)
                in_word = solid
                pos += width
            begins[line], edges[0, line], edges[1, line] = start, start, pos
            counts[0, line], counts[1, line] = chars, upper
            counts[2, line], counts[3, line] = digits, words
            gate = 0
            if digits > 0 and words > 1 and _ends_as_counter(data, start, pos):
                gate = MAY_COUNT
            if words <= max_phrase_words and _may_hold_phrase(data, start, pos):
                gate |= MAY_HOLD_PHRASE
            gates[line] = gate
            pos += 1


@kernel
def _is_word_byte(byte: int) -> bool:
    return 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122 or byte == 95


@kernel
def _ends_as_counter(data: Bytes, start: int, end: int) -> bool:
    """Return whether the last ASCII letter or digit of a line is an s, as in `3 likes`."""
    while end > start and not _is_word_byte(data[end - 1]):
        end -= 1
    return end > start and data[end - 1] | 32 == 115


@kernel
def _word_at(data: Bytes, start: int, pos: int, end: int, word: Bytes) -> bool:
    """Return whether a word of lower-case ASCII, in any case, begins at `pos` within a line."""
    if pos < start or pos + len(word) > end:
        return False
    equal = 0
    while equal < len(word) and data[pos + equal] | 32 == word[equal]:
        equal += 1
    return equal == len(word)


@kernel
def _may_hold_phrase(data: Bytes, start: int, end: int) -> bool:
    """Return whether `cart`, `ead more` or `gn-` may be in a line, in any case.

    Letters that match other characters without case in `re` (i, s, k) are not compared.
    """
    for pos in range(start, end):
        byte = data[pos]
        if byte == 45 and _word_at(data, start, pos - 2, end, _GN):
            return True
        if byte | 32 == 116 and _word_at(data, start, pos - 3, end, _CART):
            return True
        if byte == 32 and _word_at(data, start, pos - 3, end, _READ_MORE):
            return True
    return False


@kernel
def _strip_page(
    data: Bytes, edges: Int64s, counts: Int64s, codes: Bytes, first: int, last: int
) -> bool:
    """Strip a page: cut blank lines at its ends; return whether any line is left."""
    while first < last:
        start, end = edges[0, first], edges[1, first]
        if codes[first] == 0:
            edges[0, first] = skip_space(data, start, end)
            counts[0, first] -= count_chars(data, start, edges[0, first])
            if edges[0, first] < end:
                break
            codes[first] = WHITESPACE
        first += 1
    while first < last:
        start, end = edges[0, last - 1], edges[1, last - 1]
        if codes[last - 1] == 0:
            edges[1, last - 1] = skip_space_back(data, start, end)
            counts[0, last - 1] -= count_chars(data, edges[1, last - 1], end)
            if edges[1, last - 1] > start:
                break
            codes[last - 1] = WHITESPACE
        last -= 1
    return first < last


@kernel
def _judge(
    data: Bytes,
    bounds: Int64s,
    edges: Int64s,
    counts: Int64s,
    is_counter: Bytes,
    steps: Bytes,
    limits: Float64s,
    min_words: int,
    codes: Bytes,
    has_text: Bytes,
) -> None:
    """Fill `codes` and `has_text`; O(L) and what is stripped."""
    for row in range(len(has_text)):
        first, last = bounds[row], bounds[row + 1]
        for step in range(3):
            if steps[step] == 0 or has_text[row] == 0:
                continue
            for line in range(first, last):
                if codes[line] != 0 or counts[0, line] == 0:
                    continue
                if step == 2:
                    is_hit = is_counter[line] != 0
                else:
                    is_hit = counts[1 + step, line] / counts[0, line] > limits[step]
                if is_hit:
                    codes[line] = UPPERCASE + step
            has_text[row] = _strip_page(data, edges, counts, codes, first, last)
        if has_text[row] == 0 or (min_words < 0 and steps[3] == 0):
            continue
        staying, chars = 0, 0
        for line in range(first, last):
            if codes[line] == 0 and counts[0, line] > 0:
                if counts[3, line] < min_words:
                    codes[line] = TOO_FEW_WORDS
                elif steps[3] and counts[3, line] == 0:
                    codes[line] = WHITESPACE
            if codes[line] == 0:
                staying += 1
                chars += counts[0, line]
        has_text[row] = chars > 0 or staying > 1  # empty lines are joined by line ends
        if steps[3] and has_text[row]:
            has_text[row] = _strip_page(data, edges, counts, codes, first, last)


@kernel
def _list_cuts(
    offsets: Int64s,
    data: Bytes,
    bounds: Int64s,
    begins: Int64s,
    edges: Int64s,
    line_codes: Bytes,
    starts: Int64s,
    ends: Int64s,
    codes: Bytes,
    cut_bounds: Int64s,
) -> None:
    """Fill the arrays from `starts` on; O(L)."""
    for row in range(len(offsets) - 1):
        low, end = offsets[row], offsets[row + 1]
        first = num = cut_bounds[row]
        is_open = True
        for line in range(bounds[row], bounds[row + 1]):
            if line_codes[line] != 0:
                next_start = begins[line + 1] if line + 1 < bounds[row + 1] else end
                num = add_cut(
                    starts, ends, codes, first, num, begins[line], next_start, line_codes[line]
                )
                continue
            start = edges[0, line]
            if is_open:
                num = fill_gap(starts, ends, codes, first, num, low, start, WHITESPACE)
            else:
                num = close_gap(data, starts, ends, codes, first, num, low, start, 10, WHITESPACE)
            first, low, is_open = num, edges[1, line], False
        cut_bounds[row + 1] = fill_gap(starts, ends, codes, first, num, low, end, WHITESPACE)


@kernel
def _count_words(offsets: Int64s, data: Bytes, rows: Int64s, alnum: Bytes, counts: Int64s) -> None:
    for row in rows:
        counts[row] = count_tokens(data, offsets[row], offsets[row + 1], alnum)

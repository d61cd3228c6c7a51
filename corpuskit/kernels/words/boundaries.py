"""Words between the word boundaries of Unicode (UAX #29), and hashes of their n-grams."""

from __future__ import annotations

import numpy as np

from corpuskit.kernels.arrays import Bytes, Int64s, Uint32s, Uint64s
from corpuskit.kernels.hashing import mix64, polynomials, xxh64
from corpuskit.kernels.jit import inline, kernel
from corpuskit.kernels.utf8 import char_width, code_point

CLASSES = (
    "Other", "ALetter", "HL", "NU", "Katakana", "EX", "CR", "LF", "Newline", "Extend", "Format",
    "ZWJ", "MidLetter", "MN", "MB", "SQ", "DQ", "RI", "WSegSpace",
)  # fmt: skip
"""Classes of characters: aliases of the values of Unicode's property Word_Break."""

(
    _OTHER, _LETTER, _HEBREW, _NUMBER, _KATAKANA, _JOINER, _CR, _LF, _NEWLINE, _EXTEND, _FORMAT,
    _ZWJ, _MID_LETTER, _MID_NUMBER, _MID_BOTH, _QUOTE, _DOUBLE, _REGIONAL, _SPACE,
) = range(19)  # fmt: skip

IS_PICTOGRAPH, IS_SPACE = 32, 64
"""Bits of an entry besides the class: Extended_Pictographic; whitespace."""

_CLASS = 31
_NOTHING = 31
"""The class before the text, and after it."""

_PART_ROWS, _BUCKET_ROWS = 4096, 2
"""About how many n-grams are sorted together, so that they stay in the caches; and of a bucket."""


@inline
def _class_at(data: Bytes, pos: int, classes: Bytes) -> int:
    return int(classes[code_point(data, pos)])


@kernel
def _next_class(data: Bytes, pos: int, end: int, classes: Bytes) -> int:
    """Return the class of the next character that rule WB4 does not skip."""
    while pos < end:
        char_class = _class_at(data, pos, classes) & _CLASS
        if not _EXTEND <= char_class <= _ZWJ:
            return int(char_class)
        pos += char_width(data[pos])
    return _NOTHING


@inline
def _is_letter(char_class: int) -> bool:
    return _LETTER <= char_class <= _HEBREW


@kernel
def _is_joined(before_last: int, last: int, current: int, following: int, regionals: int) -> bool:
    """Return whether there is no boundary before a character, by rules WB5 to WB16.

    Args:
        before_last, last, current, following: classes of the two characters before it, of itself
            and of the next one, without those that rule WB4 skips.
        regionals: how many regional indicators precede it.
    """
    if _LETTER <= last <= _NUMBER and _LETTER <= current <= _NUMBER:
        return True
    if _is_letter(last):
        if current in (_MID_LETTER, _MID_BOTH, _QUOTE) and _is_letter(following):
            return True
        if last == _HEBREW and (current == _QUOTE or (current == _DOUBLE and following == _HEBREW)):
            return True
    if _is_letter(current) and _is_letter(before_last):
        if last in (_MID_LETTER, _MID_BOTH, _QUOTE):
            return True
        if last == _DOUBLE and current == _HEBREW and before_last == _HEBREW:
            return True
    if last == _NUMBER and current in (_MID_NUMBER, _MID_BOTH, _QUOTE) and following == _NUMBER:
        return True
    if last in (_MID_NUMBER, _MID_BOTH, _QUOTE) and before_last == _NUMBER and current == _NUMBER:
        return True
    if current == _JOINER and _LETTER <= last <= _JOINER:
        return True
    if last == _JOINER and _LETTER <= current <= _KATAKANA:
        return True
    if last == _KATAKANA and current == _KATAKANA:
        return True
    return last == _REGIONAL and current == _REGIONAL and regionals % 2 == 1


@kernel
def hash_boundary_words(data: Bytes, begin: int, end: int, classes: Bytes, words: Uint64s) -> int:
    """Fill `words` with XXH64 of each word that is not whitespace; return how many. O(B).

    Args:
        data, begin, end: the text.
        classes: class and bits of each code point.
        words: at least one entry per character.
    """
    num, start, pos = 0, begin, begin
    is_solid = False
    before_last, last, previous, regionals = _NOTHING, _NOTHING, _NOTHING, 0
    while pos < end:
        entry = _class_at(data, pos, classes)
        char_class = entry & _CLASS
        stop = pos + char_width(data[pos])
        is_passed = _EXTEND <= char_class <= _ZWJ
        if previous == _NOTHING:
            is_joined = True
        elif _CR <= previous <= _NEWLINE or _CR <= char_class <= _NEWLINE:
            is_joined = previous == _CR and char_class == _LF
        elif is_passed or (previous == _ZWJ and entry & IS_PICTOGRAPH):
            is_joined = True
        elif previous == _SPACE:
            is_joined = char_class == _SPACE
        else:
            following = _NOTHING
            if _MID_LETTER <= char_class <= _DOUBLE:
                following = _next_class(data, stop, end, classes)
            is_joined = _is_joined(before_last, last, char_class, following, regionals)
        if not is_joined:
            if is_solid:
                words[num] = xxh64(data, start, pos, np.uint64(0))
                num += 1
            start, is_solid = pos, False
        is_solid |= entry & IS_SPACE == 0
        previous = char_class
        if not is_passed or _CR <= last <= _NEWLINE or last == _NOTHING:
            before_last, last = last, char_class
            regionals = regionals + 1 if char_class == _REGIONAL else 0
        pos = stop
        if char_class == _LETTER:
            while pos < end and data[pos] < 0x80 and classes[data[pos]] == _LETTER:
                pos += 1
    if is_solid:
        words[num] = xxh64(data, start, end, np.uint64(0))
        num += 1
    return num


@kernel
def unit_ngrams(
    data: Bytes, starts: Int64s, ends: Int64s, scopes: Uint64s, classes: Bytes, ngram: int,
    min_words: int
) -> tuple[Int64s, Uint64s]:  # fmt: skip
    """Return the n-grams of units as 64-bit hashes, in order: offsets (U + 1,), hashes.

    A unit of `min_words` or more words, but fewer than `ngram`, is one n-gram; a shorter one has
    none. O(B), about 250 MB/s; reserves 8 bytes per byte of text and uses 8 per n-gram.

    Args:
        data, starts, ends: the units, (U,).
        scopes: (U,) mixed into the hashes.
        classes: as `hash_boundary_words` takes them.
        ngram, min_words: words of an n-gram, and of a shorter one.
    """
    size = np.int64(1)
    for unit in range(len(starts)):
        size += ends[unit] - starts[unit]
    hashes = np.empty(size, np.uint64)
    offsets = np.zeros(len(starts) + 1, np.int64)
    for unit in range(len(starts)):
        unit_hashes = hashes[offsets[unit] :]
        num_words = hash_boundary_words(data, starts[unit], ends[unit], classes, unit_hashes)
        num = 0
        if num_words >= min_words:
            num = polynomials(unit_hashes, num_words, ngram)
            for gram in range(num):
                unit_hashes[gram] = mix64(unit_hashes[gram]) ^ scopes[unit]
        offsets[unit + 1] = offsets[unit] + num
    return offsets, hashes[: offsets[len(starts)]]


@kernel
def _sort_part(
    hashes: Uint64s, owners: Uint32s, bits: int, out: Uint64s, out_owners: Uint32s
) -> None:
    """Sort hashes whose top `bits + 1` bits are equal, and their owners; equal ones keep order."""
    inner = 0
    while len(hashes) >> inner > _BUCKET_ROWS:
        inner += 1
    left_shift, right_shift = np.uint64(bits + 1), np.uint64(63 - inner)
    starts = np.zeros((2 << inner) + 1, np.int64)
    for value in hashes:
        starts[np.int64((value << left_shift) >> right_shift) + 1] += 1
    for bucket in range(len(starts) - 1):
        starts[bucket + 1] += starts[bucket]
    cursors = starts.copy()
    for row in range(len(hashes)):
        value = hashes[row]
        bucket = np.int64((value << left_shift) >> right_shift)
        pos = cursors[bucket]
        cursors[bucket] += 1
        while pos > starts[bucket] and out[pos - 1] > value:
            out[pos], out_owners[pos] = out[pos - 1], out_owners[pos - 1]
            pos -= 1
        out[pos], out_owners[pos] = value, owners[row]


@kernel
def group_ngrams(offsets: Int64s, hashes: Uint64s) -> tuple[Uint64s, Uint32s, Bytes, Int64s]:
    """Return the distinct n-grams of a cell, the first unit of each, and what later units repeat.

    O(G), about 40 ns an n-gram; allocates 17 bytes for each.

    Args:
        offsets: (U + 1,) where the n-grams of each unit begin.
        hashes: (G,) evenly spread, apart from repeats.

    Returns:
        Hashes, sorted; the first unit of each; how often it occurs there (a row counts to 255 at
        most, further occurrences have further rows). And (U,): how many n-grams of each unit occur
        in an earlier one.
    """
    num = len(hashes)
    bits = 0
    while num >> bits > _PART_ROWS:
        bits += 1
    shift = np.uint64(63 - bits)
    starts = np.zeros((2 << bits) + 1, np.int64)
    for value in hashes:
        starts[np.int64(value >> shift) + 1] += 1
    for part in range(2 << bits):
        starts[part + 1] += starts[part]
    dealt, owners = np.empty(num, np.uint64), np.empty(num, np.uint32)
    for unit in range(len(offsets) - 1):
        for row in range(offsets[unit], offsets[unit + 1]):
            part = np.int64(hashes[row] >> shift)
            dealt[starts[part]], owners[starts[part]] = hashes[row], unit
            starts[part] += 1  # after the loop: where the next part begins
    sorted_hashes, units = np.empty(num, np.uint64), np.empty(num, np.uint32)
    begin = np.int64(0)
    for part in range(2 << bits):
        end = starts[part]
        _sort_part(
            dealt[begin:end], owners[begin:end], bits, sorted_hashes[begin:end], units[begin:end]
        )
        begin = end
    times, num_repeated = np.empty(num, np.uint8), np.zeros(len(offsets) - 1, np.int64)
    rows = begin = np.int64(0)
    while begin < num:
        value, first = sorted_hashes[begin], units[begin]
        count = 0
        while begin < num and sorted_hashes[begin] == value:
            if units[begin] == first:
                count += 1
            else:
                num_repeated[units[begin]] += 1
            begin += 1
        while count > 0:
            sorted_hashes[rows], units[rows], times[rows] = value, first, min(count, 255)
            rows += 1
            count -= 255
    return sorted_hashes[:rows], units[:rows], times[:rows], num_repeated

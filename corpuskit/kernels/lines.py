"""Lines and paragraphs of texts: where they are, how they are compared, what a cut leaves.

Letters: N documents, B bytes, U units (lines or paragraphs).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.hashing import load64, store64
from corpuskit.kernels.jit import inline, kernel
from corpuskit.kernels.utf8 import (
    char_table,
    char_width,
    characters,
    code_point,
    lower64,
    skip_space,
    skip_space_back,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]

_ONES, _SEVENS = np.uint64(0x0101010101010101), np.uint64(0x7F7F7F7F7F7F7F7F)
_HIGHS = np.uint64(0x8080808080808080)
_NEWLINES = np.uint64(0x0A0A0A0A0A0A0A0A)

_WIDTH, _SPACE = np.uint64(32), np.uint64(40)
"""Fields of an entry of a folding table, behind the bytes of the character: how many; a space."""

_CCNET_DROPS = (
    "\uff0c\u3002\u3001\u201e\u201d\u201c\u00ab\u00bb\uff11\u300d\u300c\u300a\u300b\u00b4\u2236"
    "\uff1a\uff1f\uff01\uff08\uff09\uff1b\u2013\u2014\uff0e\uff5e\u2019\u2026\u2501\u3008\u3009"
    "\u3010\u3011\uff05\u25ba"
)
"""Punctuation that CCNet ignores; ASCII's it compares."""


@kernel
def find_units(
    offsets: Offsets, data: Bytes, paragraphs: bool
) -> tuple[NDArray[np.int32], Offsets, Offsets]:
    r"""Return document, start and end of each line that is not blank, or of each paragraph.

    A line ends with \n, and \r\n counts as one line end; no other character ends one. A blank
    line is whitespace and nothing else (as str.isspace). A paragraph is a run of lines that are
    not blank. A unit is without the line end behind it. O(B); allocates 20 bytes per line.

    Returns:
        Three (U,) arrays; starts and ends are into `data`.
    """
    num_docs = len(offsets) - 1
    places = find_newlines(data, offsets[0], offsets[num_docs])
    most = num_docs + len(places)
    docs = np.empty(most, np.int32)
    starts, ends = np.empty(most, np.int64), np.empty(most, np.int64)
    num, newline = 0, 0
    for doc in range(num_docs):
        at, end = offsets[doc], offsets[doc + 1]
        is_open = False
        while at < end:
            stop = min(places[newline], end)
            newline += stop < end
            last = stop - 1 if stop > at and data[stop - 1] == 13 else stop
            is_blank = last == at or (
                not 32 < data[at] < 127 and skip_space(data, at, last) == last
            )
            if not is_blank:
                if not (is_open and paragraphs):
                    docs[num], starts[num] = doc, at
                    num += 1
                ends[num - 1] = last
            is_open = not is_blank
            at = stop + 1
    return docs[:num], starts[:num], ends[:num]


@kernel
def find_newlines(data: Bytes, begin: int, end: int) -> Offsets:
    """Return where newlines are, and something behind them. O(B), about 3 GB/s."""
    num = np.int64(1)
    at = begin
    while at + 8 <= end:
        num += np.int64((_matches(data, at) >> np.uint64(7)) * _ONES >> np.uint64(56))
        at += 8
    while at < end:
        num += data[at] == 10
        at += 1
    places = np.empty(num, np.int64)
    found = 0
    at = begin
    while at + 8 <= end:
        matches = _matches(data, at)
        while matches:
            # All bytes below the lowest match, and its own lowest bit, are ones.
            below = matches & (~matches + np.uint64(1))
            nth = ((below - np.uint64(1)) & _ONES) * _ONES >> np.uint64(56)
            places[found] = at + np.int64(nth) - 1
            found += 1
            matches ^= below
        at += 8
    while at < end:
        if data[at] == 10:
            places[found] = at
            found += 1
        at += 1
    places[found] = np.int64(1) << np.int64(62)
    return places


@inline
def _matches(data: Bytes, at: int) -> np.uint64:
    """Return 8 bytes of which the highest bit is set where there is a newline."""
    mixed = load64(data, at) ^ _NEWLINES
    return ~(((mixed & _SEVENS) + _SEVENS) | mixed | _SEVENS)


def fold_units(
    data: Bytes, starts: Offsets, ends: Offsets, table: NDArray[np.uint64]
) -> tuple[Bytes, Offsets, Offsets]:
    """Return units as a folding table has them: bytes (read-only), starts and ends, (U,).

    O(B), allocates 1.5 B bytes; whitespace at either end is left out first.
    """
    folded, bounds = _fold_units(data, starts, ends, table)
    folded.flags.writeable = False
    return folded, bounds[:-1], bounds[1:]


@kernel
def _fold_units(
    data: Bytes, starts: Offsets, ends: Offsets, table: NDArray[np.uint64]
) -> tuple[Bytes, Offsets]:
    """Fold 8 letters, marks and single spaces at a time, other characters one by one.

    Of these every one stores and the position moves by what it counts: little to predict.
    """
    size = np.int64(8)
    for unit in range(len(starts)):
        size += (ends[unit] - starts[unit]) * 3 // 2 + 1
    out = np.empty(size, np.uint8)
    bounds = np.zeros(len(starts) + 1, np.int64)
    collapses = table[32] >> _SPACE
    size = np.int64(0)
    for unit in range(len(starts)):
        at = skip_space(data, starts[unit], ends[unit])
        end = skip_space_back(data, at, ends[unit])
        before = np.uint64(1)  # the last character that was kept is a space
        while at < end:
            if at + 8 <= end:
                group = load64(data, at)
                if _is_easy(group, before):
                    store64(lower64(group), out, int(size))
                    before = collapses * np.uint64(group >> np.uint64(56) == np.uint64(32))
                    size += 8
                    at += 8
                    continue
            lead = data[at]
            if lead < 0x80:
                entry = table[lead]
                out[size] = np.uint8(entry & np.uint64(0xFF))
                at += 1
            else:
                code = code_point(data, at)
                entry = table[code] if code < len(table) else _as_it_is(data, at)
                for place in range(4):
                    out[size + place] = np.uint8(entry >> np.uint64(8 * place) & np.uint64(0xFF))
                at += char_width(lead)
            width, is_space = entry >> _WIDTH & np.uint64(7), entry >> _SPACE
            size += np.int64(width * (np.uint64(1) - (is_space & before)))
            before = is_space if width else before
        if before and size > bounds[unit]:
            size -= 1
        bounds[unit + 1] = size
    return out[:size], bounds


@inline
def _is_easy(group: np.uint64, before: np.uint64) -> bool:
    """Return whether 8 bytes are ASCII letters, marks and single spaces: no digit, no control.

    A byte below 0x80 is at least n if adding 0x80 - n sets its highest bit.
    """
    if group & _HIGHS:
        return False
    odd = ~(group + np.uint64(0x6060606060606060)) | (group + _ONES)
    odd |= (group + np.uint64(0x5050505050505050)) & ~(group + np.uint64(0x4646464646464646))
    spaces = ~(group + np.uint64(0x5F5F5F5F5F5F5F5F)) & _HIGHS
    odd |= spaces & (spaces << np.uint64(8) | before << np.uint64(7))
    return bool(odd & _HIGHS == 0)


@kernel
def _as_it_is(data: Bytes, at: int) -> np.uint64:
    """Return the entry of a character beyond the table: itself, of 4 bytes."""
    entry = np.uint64(4) << _WIDTH
    for place in range(4):
        entry |= np.uint64(data[at + place]) << np.uint64(8 * place)
    return entry


@functools.cache
def case_digits_table() -> NDArray[np.uint64]:
    """Return the folding table that has texts in lower case, without digits, whitespace as a space.

    Each run of whitespace is one space. Digits are those of str.isdecimal; `lower` is str.lower
    but for U+0130, which becomes a plain i, and a final sigma, which is one like any other.
    """
    codes, is_space, is_digit = _classes()
    codes = np.where(is_space, 32, codes)
    return _table(codes, drops=np.flatnonzero(is_digit), spaces=is_space)


@functools.cache
def ccnet_table() -> NDArray[np.uint64]:
    """Return the folding table of CCNet: lower case, digits as 0, some punctuation left out.

    Control characters are left out, too; whitespace stays. `lower` as above.

    Source: Wenzek et al. 2020, CCNet, section 3.1; cc_net/text_normalizer.py, normalize_for_dedup.
    """
    codes, _, is_digit = _classes()
    controls = [*range(32), *range(127, 160)]
    codes = np.where(is_digit, ord("0"), codes)
    drops = [*controls, *(ord(char) for char in _CCNET_DROPS if not char.isdecimal())]
    return _table(codes, drops=drops, spaces=np.zeros(len(codes), np.bool_))


def _classes() -> tuple[NDArray[np.uint32], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the lower case of each character, whether it is a space, whether it is a digit."""
    entries = characters()
    codes = entries & np.uint32(0x1FFFFF)
    codes[0x3C2] = 0x3C3
    is_digit = char_table(str.isdecimal)[: len(codes)] != 0
    return codes, entries & np.uint32(1 << 22) != 0, is_digit


def _table(
    codes: NDArray[np.uint32], drops: Iterable[int], spaces: NDArray[np.bool_]
) -> NDArray[np.uint64]:
    """Return the entries of characters: bytes 0-3 are their UTF-8, then how many; read-only."""
    c = codes.astype(np.uint64)
    tail = [(c >> np.uint64(6 * k) & np.uint64(0x3F)) | np.uint64(0x80) for k in range(3)]
    two = [c >> np.uint64(6) | np.uint64(0xC0), tail[0]]
    three = [c >> np.uint64(12) | np.uint64(0xE0), tail[1], tail[0]]
    four = [c >> np.uint64(18) | np.uint64(0xF0), tail[2], tail[1], tail[0]]
    forms = [[c], two, three, four]
    widths = 1 + (c >= 0x80).astype(np.uint64) + (c >= 0x800) + (c >= 0x10000)
    table = widths << _WIDTH | spaces.astype(np.uint64) << _SPACE
    for width, form in enumerate(forms, start=1):
        for place, byte in enumerate(form):
            table |= np.where(widths == width, byte << np.uint64(8 * place), np.uint64(0))
    table[list(drops)] = 0
    table.flags.writeable = False
    return table


@kernel
def cut_units(
    offsets: Offsets,
    data: Bytes,
    docs: NDArray[np.int32],
    starts: Offsets,
    ends: Offsets,
    is_cut: NDArray[np.bool_],
) -> tuple[Offsets, Offsets, Offsets, NDArray[np.int64]]:
    r"""Return the spans to cut so that the other units stay, and what each document has of both.

    Between two units that stay with others cut between them, the longer of the first and the last
    separator stays, the first if they are equally long. At the beginning of a text nothing stays
    before the first unit, at its end the line end if there was one.

    Args:
        docs, starts, ends: as `find_units` returns them.
        is_cut: (U,).

    Returns:
        Rows, starts, ends of spans, sorted and disjoint, in bytes from the beginning of the text;
        and (N, 4): units cut, their bytes, bytes of all units, bytes of the spans.
    """
    rows, begins = np.empty(len(docs), np.int64), np.empty(len(docs), np.int64)
    stops = np.empty(len(docs), np.int64)
    found = np.zeros((len(offsets) - 1, 4), np.int64)
    num, unit = 0, 0
    while unit < len(docs):
        doc = docs[unit]
        found[doc, 2] += ends[unit] - starts[unit]
        if not is_cut[unit]:
            unit += 1
            continue
        first = unit
        while unit < len(docs) and docs[unit] == doc and is_cut[unit]:
            found[doc, 0] += 1
            found[doc, 1] += ends[unit] - starts[unit]
            found[doc, 2] += ends[unit] - starts[unit] if unit > first else 0
            unit += 1
        has_before = first > 0 and docs[first - 1] == doc
        has_after = unit < len(docs) and docs[unit] == doc
        begin = offsets[doc]
        stop = starts[unit] if has_after else offsets[doc + 1]
        if has_before:
            begin = starts[first]
            if has_after and begin - ends[first - 1] < stop - ends[unit - 1]:
                begin, stop = ends[first - 1], ends[unit - 1]
            if not has_after:
                begin = ends[first - 1]
                if data[stop - 1] == 10:
                    begin += 2 if data[begin] == 13 else 1
        rows[num], begins[num], stops[num] = doc, begin - offsets[doc], stop - offsets[doc]
        found[doc, 3] += stop - begin
        num += 1
    return rows[:num], begins[:num], stops[:num], found

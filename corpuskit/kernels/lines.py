"""Lines and paragraphs of texts: where they are, how they are compared, what remains after a cut.

Letters: N documents, B bytes, U units (lines or paragraphs).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np

from corpuskit.kernels.arrays import Bools, Bytes, Int32s, Int64s, Uint32s, Uint64s, frozen
from corpuskit.kernels.hashing import HIGH_BITS, LOW_BITS, load64, store64, table_size, xxh64
from corpuskit.kernels.jit import inline, kernel
from corpuskit.kernels.utf8 import (
    CHAR_LOWER,
    CHAR_SPACE,
    char_table,
    char_width,
    characters,
    code_point,
    lower64,
    skip_space,
    skip_space_back,
    space_width,
)

_ONES = np.uint64(0x0101010101010101)
_NEWLINES = np.uint64(0x0A0A0A0A0A0A0A0A)

_WIDTH, _SPACE = np.uint64(32), np.uint64(40)
"""Fields of an entry of a folding table after the bytes of the character: how many; is a space."""

_CCNET_DROPS = (
    "\uff0c\u3002\u3001\u201e\u201d\u201c\u00ab\u00bb\uff11\u300d\u300c\u300a\u300b\u00b4\u2236"
    "\uff1a\uff1f\uff01\uff08\uff09\uff1b\u2013\u2014\uff0e\uff5e\u2019\u2026\u2501\u3008\u3009"
    "\u3010\u3011\uff05\u25ba"
)
"""Punctuation that CCNet ignores; ASCII's it compares."""


@kernel
def find_units(offsets: Int64s, data: Bytes, paragraphs: bool) -> tuple[Int32s, Int64s, Int64s]:
    r"""Return document, start and end of each line that is not blank, or of each paragraph.

    A line ends with \n, and \r\n counts as one line end; no other character ends one. A blank
    line is whitespace and nothing else (as str.isspace). A paragraph is a run of lines that are
    not blank. A unit is without the line end after it. O(B); allocates 20 bytes per line.

    Returns:
        Three (U,) arrays; starts and ends are into `data`.
    """
    num_docs = len(offsets) - 1
    newlines = find_newlines(data, offsets[0], offsets[num_docs])
    max_units = num_docs + len(newlines)
    docs = np.empty(max_units, np.int32)
    starts, ends = np.empty(max_units, np.int64), np.empty(max_units, np.int64)
    num, newline = 0, 0
    for doc in range(num_docs):
        pos, end = offsets[doc], offsets[doc + 1]
        is_open = False
        while pos < end:
            stop = min(newlines[newline], end)
            newline += stop < end
            last = stop - 1 if stop > pos and data[stop - 1] == 13 else stop
            is_blank = last == pos or (
                not 32 < data[pos] < 127 and skip_space(data, pos, last) == last
            )
            if not is_blank:
                if not (is_open and paragraphs):
                    docs[num], starts[num] = doc, pos
                    num += 1
                ends[num - 1] = last
            is_open = not is_blank
            pos = stop + 1
    return docs[:num], starts[:num], ends[:num]


@kernel
def find_newlines(data: Bytes, begin: int, end: int) -> Int64s:
    """Return the positions of newlines, and one beyond all texts. O(B), about 3 GB/s."""
    num = np.int64(1)
    pos = begin
    while pos + 8 <= end:
        num += np.int64((_matches(data, pos) >> np.uint64(7)) * _ONES >> np.uint64(56))
        pos += 8
    while pos < end:
        num += data[pos] == 10
        pos += 1
    newlines = np.empty(num, np.int64)
    count = 0
    pos = begin
    while pos + 8 <= end:
        matches = _matches(data, pos)
        while matches:
            # All bytes below the lowest match, and its own lowest bit, are ones.
            lowest = matches & (~matches + np.uint64(1))
            nth = ((lowest - np.uint64(1)) & _ONES) * _ONES >> np.uint64(56)
            newlines[count] = pos + np.int64(nth) - 1
            count += 1
            matches ^= lowest
        pos += 8
    while pos < end:
        if data[pos] == 10:
            newlines[count] = pos
            count += 1
        pos += 1
    newlines[count] = np.int64(1) << np.int64(62)
    return newlines


@inline
def _matches(data: Bytes, pos: int) -> np.uint64:
    """Return 8 bytes whose highest bit is set where there is a newline."""
    mixed = load64(data, pos) ^ _NEWLINES
    return ~(((mixed & LOW_BITS) + LOW_BITS) | mixed | LOW_BITS)


def fold_units(
    data: Bytes, starts: Int64s, ends: Int64s, table: Uint64s
) -> tuple[Bytes, Int64s, Int64s]:
    """Return units as a folding table has them: bytes (read-only), starts and ends, (U,).

    O(B), allocates 1.5 B bytes; whitespace at either end is left out first.
    """
    folded, bounds = _fold_units(data, starts, ends, table)
    return frozen(folded), bounds[:-1], bounds[1:]


@kernel
def _fold_units(data: Bytes, starts: Int64s, ends: Int64s, table: Uint64s) -> tuple[Bytes, Int64s]:
    """Fold 8 letters, marks and single spaces at a time, other characters one by one.

    Each character is stored, and the position moves by its width, which may be 0: few branches.
    """
    size = np.int64(8)
    for unit in range(len(starts)):
        size += (ends[unit] - starts[unit]) * 3 // 2 + 1
    out = np.empty(size, np.uint8)
    bounds = np.zeros(len(starts) + 1, np.int64)
    collapses = table[32] >> _SPACE
    size = np.int64(0)
    for unit in range(len(starts)):
        pos = skip_space(data, starts[unit], ends[unit])
        end = skip_space_back(data, pos, ends[unit])
        after_space = np.uint64(1)  # the last character that was kept is a space
        while pos < end:
            if pos + 8 <= end:
                group = load64(data, pos)
                if _is_easy(group, after_space):
                    store64(lower64(group), out, int(size))
                    after_space = collapses * np.uint64(group >> np.uint64(56) == np.uint64(32))
                    size += 8
                    pos += 8
                    continue
            lead = data[pos]
            if lead < 0x80:
                entry = table[lead]
                out[size] = np.uint8(entry & np.uint64(0xFF))
                pos += 1
            else:
                code = code_point(data, pos)
                entry = table[code] if code < len(table) else _encoded_char(data, pos)
                for index in range(4):
                    out[size + index] = np.uint8(entry >> np.uint64(8 * index) & np.uint64(0xFF))
                pos += char_width(lead)
            width, is_space = entry >> _WIDTH & np.uint64(7), entry >> _SPACE
            size += np.int64(width * (np.uint64(1) - (is_space & after_space)))
            after_space = is_space if width else after_space
        if after_space and size > bounds[unit]:
            size -= 1
        bounds[unit + 1] = size
    return out[:size], bounds


@inline
def _is_easy(group: np.uint64, after_space: np.uint64) -> bool:
    """Return whether 8 bytes are ASCII letters, marks and single spaces: no digit, no control.

    A byte below 0x80 is at least n if adding 0x80 - n sets its highest bit.
    """
    if group & HIGH_BITS:
        return False
    hard = ~(group + np.uint64(0x6060606060606060)) | (group + _ONES)
    hard |= (group + np.uint64(0x5050505050505050)) & ~(group + np.uint64(0x4646464646464646))
    spaces = ~(group + np.uint64(0x5F5F5F5F5F5F5F5F)) & HIGH_BITS
    hard |= spaces & (spaces << np.uint64(8) | after_space << np.uint64(7))
    return bool(hard & HIGH_BITS == 0)


@kernel
def _encoded_char(data: Bytes, pos: int) -> np.uint64:
    """Return the entry of a character beyond the table: itself, of 4 bytes."""
    entry = np.uint64(4) << _WIDTH
    for index in range(4):
        entry |= np.uint64(data[pos + index]) << np.uint64(8 * index)
    return entry


@functools.cache
def case_digits_table() -> Uint64s:
    """Return the folding table for lower case without digits, with whitespace as a space.

    A run of whitespace is one space. Digits are those of str.isdecimal. Lower case is str.lower,
    except that U+0130 becomes a plain i, and a final sigma an ordinary one.
    """
    codes, is_space, is_digit = _classes()
    codes = np.where(is_space, 32, codes)
    return _table(codes, drops=np.flatnonzero(is_digit), spaces=is_space)


@functools.cache
def ccnet_table() -> Uint64s:
    """Return the folding table of CCNet: lower case, digits as 0, some punctuation left out.

    Control characters are left out, too; whitespace stays. Lower case is as in
    `case_digits_table`.

    Source: Wenzek et al. 2020, CCNet, section 3.1; cc_net/text_normalizer.py, normalize_for_dedup.
    """
    codes, _, is_digit = _classes()
    controls = [*range(32), *range(127, 160)]
    codes = np.where(is_digit, ord("0"), codes)
    drops = [*controls, *(ord(char) for char in _CCNET_DROPS if not char.isdecimal())]
    return _table(codes, drops=drops, spaces=np.zeros(len(codes), np.bool_))


def _classes() -> tuple[Uint32s, Bools, Bools]:
    """Return the lower case of each character, whether it is a space, whether it is a digit."""
    entries = characters()
    codes = entries & np.uint32(CHAR_LOWER)
    codes[0x3C2] = 0x3C3
    is_digit = char_table(str.isdecimal)[: len(codes)] != 0
    return codes, entries & np.uint32(CHAR_SPACE) != 0, is_digit


def _table(codes: Uint32s, drops: Iterable[int], spaces: Bools) -> Uint64s:
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
        for index, byte in enumerate(form):
            table |= np.where(widths == width, byte << np.uint64(8 * index), np.uint64(0))
    table[list(drops)] = 0
    return frozen(table)


@kernel
def cut_units(
    offsets: Int64s, data: Bytes, docs: Int32s, starts: Int64s, ends: Int64s, is_cut: Bools
) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    r"""Return the spans to cut so that the other units stay, and sums per document.

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
    sums = np.zeros((len(offsets) - 1, 4), np.int64)
    num, unit = 0, 0
    while unit < len(docs):
        doc = docs[unit]
        sums[doc, 2] += ends[unit] - starts[unit]
        if not is_cut[unit]:
            unit += 1
            continue
        first = unit
        while unit < len(docs) and docs[unit] == doc and is_cut[unit]:
            sums[doc, 0] += 1
            sums[doc, 1] += ends[unit] - starts[unit]
            sums[doc, 2] += ends[unit] - starts[unit] if unit > first else 0
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
                if data[stop - 1] == 10:  # a line end, unless the units are sentences
                    line_feed = begin + 1 if data[begin] == 13 else begin
                    begin = line_feed + 1 if data[line_feed] == 10 else begin
        rows[num], begins[num], stops[num] = doc, begin - offsets[doc], stop - offsets[doc]
        sums[doc, 3] += stop - begin
        num += 1
    return rows[:num], begins[:num], stops[:num], sums


# ---------------------------------------------------------------- counting segments
#
# A unit is identified by 96 bits: XXH64 with the seed 0, and 32 bits of another XXH64. Letters: U
# units, N documents, K distinct units.


_SEED_HIGH = np.uint64(0)
_SEED_LOW = np.uint64(0x5851F42D4C957F2D)

_PART_ROWS = 1024
"""Units per part, so that its table stays in the nearest cache."""

_MOST = np.int64(0xFFFFFFFF)


@kernel
def is_short(data: Bytes, start: int, end: int, min_bytes: int, min_words: int) -> bool:
    """Return whether `data[start:end]` has too few bytes, or words between whitespace."""
    if end - start < min_bytes:
        return True
    words = 0
    pos = start
    in_word = False
    while pos < end and words < min_words:
        width = space_width(data, pos)
        if width == 0 and not in_word:
            words += 1
        in_word = width == 0
        pos += width if width else char_width(data[pos])
    return words < min_words


@kernel
def hash_units(
    data: Bytes,
    starts: Int64s,
    ends: Int64s,
    docs: Int32s,
    scopes: Uint64s,
    min_bytes: int,
    min_words: int,
) -> tuple[Uint64s, Uint32s, Int32s]:
    """Return hash and document of each unit that is long enough, in order. O(B).

    Args:
        data, starts, ends: (U,) the units as they are compared.
        docs: (U,) document in the batch.
        scopes: (N,) number of the scope of each document.
    """
    num_units = len(starts)
    high, low = np.empty(num_units, np.uint64), np.empty(num_units, np.uint32)
    owners = np.empty(num_units, np.int32)
    num = 0
    for unit in range(num_units):
        start, end = starts[unit], ends[unit]
        if not is_short(data, start, end, min_bytes, min_words):
            high[num] = xxh64(data, start, end, _SEED_HIGH) ^ scopes[docs[unit]]
            low[num] = np.uint32(xxh64(data, start, end, _SEED_LOW) & np.uint64(0xFFFFFFFF))
            owners[num] = docs[unit]
            num += 1
    return high[:num], low[:num], owners[:num]


@kernel
def count_units(
    high: Uint64s, low: Uint32s, docs: Int32s, counts: Uint32s, by_document: bool
) -> tuple[Uint64s, Uint32s, Uint32s]:
    """Return the distinct units, sorted by hash, and the sum of the counts of each, (K,).

    Units are dealt by leading bits into parts that fit the cache; the table of a part is in the
    order of the hashes, or nearly. O(U), about 30 ns a unit; allocates 40 U bytes.

    Args:
        high, low: (U,) hashes, evenly spread.
        docs: (U,) their documents; units of one document follow one another.
        counts: (U,) what each counts.
        by_document: count a unit once per document.
    """
    num_units = len(high)
    bits = 1
    while num_units >> bits > _PART_ROWS:
        bits += 1
    shift = np.uint64(64 - bits)
    cursors = np.zeros((1 << bits) + 1, np.int64)
    for value in high:
        cursors[np.int64(value >> shift) + 1] += 1
    widest = np.int64(0)
    for rows in cursors:  # not cursors.max(): its code loads scipy.linalg, 0.15 CPU s
        widest = max(widest, rows)
    for part in range(1 << bits):
        cursors[part + 1] += cursors[part]
    order, dealt = np.empty(num_units, np.int32), np.empty(num_units, np.uint64)
    for unit in range(num_units):
        value = high[unit]
        part = np.int64(value >> shift)
        index = cursors[part]
        order[index], dealt[index] = unit, value
        cursors[part] = index + 1  # after the loop: where the next part begins
    slot_bits = 1
    while 1 << slot_bits < 2 * widest:
        slot_bits += 1
    # Slots do not wrap: at worst all rows of the part follow the last hashed slot.
    table = np.full((1 << slot_bits) + widest + 1, -1, np.int32)
    last, sums = np.empty(len(table), np.int32), np.empty(len(table), np.int64)
    keys, low_keys = np.empty(len(table), np.uint64), np.empty(len(table), np.uint32)
    high_out, low_out = np.empty(num_units, np.uint64), np.empty(num_units, np.uint32)
    counts_out = np.empty(num_units, np.uint32)
    num = 0
    begin = 0
    for part in range(1 << bits):
        end = cursors[part]
        reach = 0
        for index in range(begin, end):
            value, row = dealt[index], order[index]
            slot = np.int64((value << np.uint64(bits)) >> np.uint64(64 - slot_bits))
            while table[slot] >= 0 and (keys[slot] != value or low_keys[slot] != low[row]):
                slot += 1
            if table[slot] < 0:
                table[slot], last[slot], sums[slot] = row, docs[row], counts[row]
                keys[slot], low_keys[slot] = value, low[row]
            elif not by_document or last[slot] != docs[row]:
                last[slot] = docs[row]
                sums[slot] += counts[row]
            reach = max(reach, slot + 1)
        first = num
        for slot in range(reach):
            if table[slot] < 0:
                continue
            table[slot] = -1
            value, low_key = keys[slot], low_keys[slot]
            pos = num
            while pos > first and (
                high_out[pos - 1] > value
                or (high_out[pos - 1] == value and low_out[pos - 1] > low_key)
            ):
                high_out[pos], low_out[pos] = high_out[pos - 1], low_out[pos - 1]
                counts_out[pos] = counts_out[pos - 1]
                pos -= 1
            high_out[pos], low_out[pos] = value, low_key
            counts_out[pos] = np.uint32(min(sums[slot], _MOST))
            num += 1
        begin = end
    return high_out[:num].copy(), low_out[:num].copy(), counts_out[:num].copy()


@kernel
def index_hashes(high: Uint64s) -> Int32s:
    """Return a table of rows by hash for `find_repeated`, at least half empty; -1 is empty."""
    size = table_size(len(high))
    table = np.full(size, -1, np.int32)
    for row in range(len(high)):
        slot = np.int64(high[row] & np.uint64(size - 1))
        while table[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        table[slot] = row
    return table


@kernel
def find_repeated(
    data: Bytes,
    starts: Int64s,
    ends: Int64s,
    docs: Int32s,
    scopes: Uint64s,
    min_bytes: int,
    min_words: int,
    high: Uint64s,
    low: Uint32s,
    table: Int32s,
    holders: Int64s,
    first_doc: int,
    by_document: bool,
    compares_low: bool,
) -> Bools:
    """Return which units are repeated and do not stay, (U,). O(B).

    Args:
        data, starts, ends, docs, scopes, min_bytes, min_words: as `hash_units` takes them.
        high, low: (K,) the repeated units.
        table: `index_hashes(high)`.
        holders: (K,) which copy stays: -2 none, -1 the next one, else the number of the document
            that had the first; filled in.
        first_doc: number of the first document of the batch; numbers ascend.
        by_document: that document keeps all its copies.
        compares_low: False compares the first hash only, in half the time: enough if it differs for
            all units of this cell.
    """
    repeated = np.zeros(len(starts), np.bool_)
    long_units, values = np.empty(len(starts), np.int32), np.empty(len(starts), np.uint64)
    num = 0
    for unit in range(len(starts)):
        start, end = starts[unit], ends[unit]
        if not is_short(data, start, end, min_bytes, min_words):
            long_units[num] = unit
            values[num] = xxh64(data, start, end, _SEED_HIGH) ^ scopes[docs[unit]]
            num += 1
    # In a loop of its own, so that the cache misses of several units overlap.
    low_hash = np.uint32(0)
    for index in range(num):
        unit, value = long_units[index], values[index]
        slot = np.int64(value & np.uint64(len(table) - 1))
        row = table[slot]
        if row < 0:
            continue
        if compares_low:
            low_hash = np.uint32(
                xxh64(data, starts[unit], ends[unit], _SEED_LOW) & np.uint64(0xFFFFFFFF)
            )
        while row >= 0 and (high[row] != value or (compares_low and low[row] != low_hash)):
            slot = (slot + 1) & (len(table) - 1)
            row = table[slot]
        if row < 0:
            continue
        number = first_doc + docs[unit]
        if holders[row] == -1:
            holders[row] = number
        else:
            repeated[unit] = not (by_document and holders[row] == number)
    return repeated

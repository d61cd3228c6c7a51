"""Units of text as hashes: counted within a cell, and found again among those that are repeated.

A unit is known by 96 bits: XXH64 with the seed 0, and 32 bits of another XXH64. Letters: U units,
N documents, K distinct units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.hashing import xxh64
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.utf8 import char_width, space_width

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]
    Documents = NDArray[np.int32]
    Highs = NDArray[np.uint64]
    Lows = NDArray[np.uint32]

_SEED_HIGH = np.uint64(0)
_SEED_LOW = np.uint64(0x5851F42D4C957F2D)

_PART_ROWS = 1024
"""Units per part: its table stays in the nearest cache."""

_MOST = np.int64(0xFFFFFFFF)


@kernel
def is_short(data: Bytes, start: int, end: int, min_bytes: int, min_words: int) -> bool:
    """Return whether `data[start:end]` has too few bytes, or words between whitespace."""
    if end - start < min_bytes:
        return True
    words = 0
    at = start
    in_word = False
    while at < end and words < min_words:
        width = space_width(data, at)
        if width == 0 and not in_word:
            words += 1
        in_word = width == 0
        at += width if width else char_width(data[at])
    return words < min_words


@kernel
def hash_units(
    data: Bytes,
    starts: Offsets,
    ends: Offsets,
    docs: Documents,
    scopes: Highs,
    min_bytes: int,
    min_words: int,
) -> tuple[Highs, Lows, Documents]:
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
    high: Highs, low: Lows, docs: Documents, counts: Lows, by_document: bool
) -> tuple[Highs, Lows, Lows]:
    """Return the distinct units, sorted by hash, and the sum of the counts of each, (K,).

    Units are dealt by leading bits into parts that fit the cache; the table of a part is in the
    order of the hashes, or nearly. O(U), about 30 ns a unit; allocates 40 U bytes.

    Args:
        high, low: (U,) hashes, evenly spread.
        docs: (U,) their documents; units of one document follow one another.
        counts: (U,) what each counts.
        by_document: a unit counts once in a document.
    """
    num_units = len(high)
    bits = 1
    while num_units >> bits > _PART_ROWS:
        bits += 1
    shift = np.uint64(64 - bits)
    places = np.zeros((1 << bits) + 1, np.int64)
    for value in high:
        places[np.int64(value >> shift) + 1] += 1
    widest = places.max()
    for part in range(1 << bits):
        places[part + 1] += places[part]
    order, dealt = np.empty(num_units, np.int32), np.empty(num_units, np.uint64)
    for unit in range(num_units):
        value = high[unit]
        part = np.int64(value >> shift)
        place = places[part]
        order[place], dealt[place] = unit, value
        places[part] = place + 1  # in the end where the next part begins
    slot_bits = 1
    while 1 << slot_bits < 2 * widest:
        slot_bits += 1
    # No slot is beyond the table: at worst all rows stand behind the last one.
    table = np.full((1 << slot_bits) + widest + 1, -1, np.int32)
    last, sums = np.empty(len(table), np.int32), np.empty(len(table), np.int64)
    keys, others = np.empty(len(table), np.uint64), np.empty(len(table), np.uint32)
    found_high, found_low = np.empty(num_units, np.uint64), np.empty(num_units, np.uint32)
    found = np.empty(num_units, np.uint32)
    num = 0
    begin = 0
    for part in range(1 << bits):
        end = places[part]
        reach = 0
        for place in range(begin, end):
            value, row = dealt[place], order[place]
            slot = np.int64((value << np.uint64(bits)) >> np.uint64(64 - slot_bits))
            while table[slot] >= 0 and (keys[slot] != value or others[slot] != low[row]):
                slot += 1
            if table[slot] < 0:
                table[slot], last[slot], sums[slot] = row, docs[row], counts[row]
                keys[slot], others[slot] = value, low[row]
            elif not by_document or last[slot] != docs[row]:
                last[slot] = docs[row]
                sums[slot] += counts[row]
            reach = max(reach, slot + 1)
        first = num
        for slot in range(reach):
            if table[slot] < 0:
                continue
            table[slot] = -1
            value, other = keys[slot], others[slot]
            at = num
            while at > first and (
                found_high[at - 1] > value
                or (found_high[at - 1] == value and found_low[at - 1] > other)
            ):
                found_high[at], found_low[at] = found_high[at - 1], found_low[at - 1]
                found[at] = found[at - 1]
                at -= 1
            found_high[at], found_low[at] = value, other
            found[at] = np.uint32(min(sums[slot], _MOST))
            num += 1
        begin = end
    return found_high[:num].copy(), found_low[:num].copy(), found[:num].copy()


@kernel
def index_hashes(high: Highs) -> NDArray[np.int32]:
    """Return a table of rows by hash for `find_repeated`, at least half empty; -1 is empty."""
    size = 2
    while size < 2 * len(high):
        size *= 2
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
    starts: Offsets,
    ends: Offsets,
    docs: Documents,
    scopes: Highs,
    min_bytes: int,
    min_words: int,
    high: Highs,
    low: Lows,
    table: NDArray[np.int32],
    holders: Offsets,
    first_doc: int,
    by_document: bool,
    compares_low: bool,
) -> NDArray[np.bool_]:
    """Return which units are repeated and not the ones that stay, (U,). O(B).

    Args:
        data, starts, ends, docs, scopes, min_bytes, min_words: as `hash_units` takes them.
        high, low: (K,) the repeated units.
        table: `index_hashes(high)`.
        holders: (K,) what stays: -2 nothing, -1 the first to come, else the number of the document
            that came first; filled in.
        first_doc: number of the first document of the batch; numbers ascend.
        by_document: that document keeps all its places.
        compares_low: False takes the first hash alone, which a cell has seen to tell its units
            apart: half the time.
    """
    repeated = np.zeros(len(starts), np.bool_)
    chosen, values = np.empty(len(starts), np.int32), np.empty(len(starts), np.uint64)
    num = 0
    for unit in range(len(starts)):
        start, end = starts[unit], ends[unit]
        if not is_short(data, start, end, min_bytes, min_words):
            chosen[num] = unit
            values[num] = xxh64(data, start, end, _SEED_HIGH) ^ scopes[docs[unit]]
            num += 1
    # Apart from hashing: so several units wait for memory at a time.
    other = np.uint32(0)
    for place in range(num):
        unit, value = chosen[place], values[place]
        slot = np.int64(value & np.uint64(len(table) - 1))
        row = table[slot]
        if row < 0:
            continue
        if compares_low:
            other = np.uint32(
                xxh64(data, starts[unit], ends[unit], _SEED_LOW) & np.uint64(0xFFFFFFFF)
            )
        while row >= 0 and (high[row] != value or (compares_low and low[row] != other)):
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

"""Lines and paragraphs of a text: where they are, and how many were met before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.hashing import load64, xxh64
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.twins import slot_of, table_bits
from corpuskit.kernels.utf8 import count_chars

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Hashes = NDArray[np.uint64]

_SEED = np.uint64(0)
_ONES, _HIGHS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_NEWLINES = np.uint64(0x0A0A0A0A0A0A0A0A)


@kernel
def find_newlines(data: Bytes, begin: int, end: int, places: NDArray[np.int32]) -> int:
    """List where newlines are, from `begin` on, and `end`; return how many. O(B)."""
    found = np.uint64(0)
    at = begin
    while at + 8 <= end:
        mixed = load64(data, at) ^ _NEWLINES
        if (mixed - _ONES) & ~mixed & _HIGHS == 0:
            at += 8
            continue
        for near in range(at, at + 8):
            places[found] = near - begin
            found += np.uint64(data[near] == 10)
        at += 8
    while at < end:
        places[found] = at - begin
        found += np.uint64(data[at] == 10)
        at += 1
    places[found] = end - begin
    return int(found)


@kernel
def repeated_blocks(
    data: Bytes, origin: int, begin: int, end: int, places: NDArray[np.int32], newlines: int,
    table: Hashes,
) -> tuple[int, int, int]:  # fmt: skip
    """Return the blocks between runs of newlines, those met before, and their characters. O(B).

    Args:
        data, begin, end: the text.
        origin, places: where newlines are, from `origin` on, and something behind them.
        newlines: 1 or 2, the newlines in a run at least.
        table: scratch, a power of two, more than twice as long as there are blocks.
    """
    bits = table_bits(len(table))
    for slot in range(len(table)):
        table[slot] = 0
    num, dup, dup_chars = 0, 0, 0
    start, next_place, last = begin, 0, len(places) - 1
    while next_place < last and origin + places[next_place] < begin:
        next_place += 1
    while True:
        first = next_place
        at = stop = end
        while first < last and origin + places[first] < end:
            behind = first + 1
            while behind < last and places[behind] == places[behind - 1] + 1:
                behind += 1
            if behind - first >= newlines:
                at = origin + places[first]
                stop = origin + places[behind - 1] + 1
                next_place = behind
                break
            first = behind
        num += 1
        key = xxh64(data, start, at, _SEED) | np.uint64(1)
        slot = slot_of(key, bits)
        while table[slot] != 0 and table[slot] != key:
            slot = (slot + np.uint64(1)) & np.uint64(len(table) - 1)
        if table[slot] == key:
            dup += 1
            dup_chars += count_chars(data, start, at)
        table[slot] = key
        if at == end:
            break
        start = stop
    return num, dup, dup_chars

"""Equal keys among many: which can have a twin, and how many copies there are of each.

Keys are 64-bit hashes. Counting them first in a small table of bytes, one per slot, shows which
have no twin for certain: in most texts nearly all. Only the others are compared in full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.jit import inline, kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Places = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

FULL = 255
"""A slot counts no further."""

# Keys may be an arithmetic progression (lines that count); the product spreads them over a table.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@kernel
def table_bits(num: int) -> int:
    """Return the bits of a table of at least `num` places, and of 16."""
    bits = 4
    while 1 << bits < num:
        bits += 1
    return bits


@inline
def slot_of(key: np.uint64, bits: int) -> np.uint64:
    """Return the place of a key in a table of 2 ** bits."""
    return (key * _SPREAD) >> np.uint64(64 - bits)


@kernel
def count_slots(keys: Hashes, num: int, slots: Bytes, bits: int) -> None:
    """Count the first `num` keys in 2 ** bits slots, to FULL. O(num), nothing to predict."""
    for place in range(1 << bits):
        slots[place] = 0
    for at in range(num):
        slot = slot_of(keys[at], bits)
        held = slots[slot]
        slots[slot] = held + np.uint8(held < FULL)


@kernel
def find_twins(keys: Hashes, num: int, slots: Bytes, bits: int, places: Places) -> int:
    """List which keys share their slot, return how many. O(num), nothing to predict.

    Args:
        keys, num, slots, bits: as they were counted.
        places: room for `num + 1`.
    """
    found = np.uint64(0)
    for at in range(num):
        places[found] = at
        found += np.uint64(slots[slot_of(keys[at], bits)] > 1)
    return int(found)


@kernel
def table_for(table: Hashes, num: int) -> Hashes:
    """Return a table of at least `num` places: this one, if it does."""
    return table if len(table) >= num else np.empty(num, np.uint64)


@kernel
def count_copies(keys: Hashes, places: Places, num: int, table: Hashes, copies: Places) -> None:
    """Fill copies[k] with how often the key of places[k] is among those of all places. O(num).

    Args:
        keys: by place.
        places, num: those to look at.
        table: scratch, `4 << table_bits(num)` entries.
        copies: room for `num`.
    """
    bits = table_bits(num) + 1
    mask = np.uint64((1 << bits) - 1)
    for entry in range(2 << bits):
        table[entry] = 0
    for turn in range(2):
        for number in range(num):
            key = keys[places[number]]
            slot = slot_of(key, bits)
            entry = slot + slot
            while table[entry + np.uint64(1)] != 0 and table[entry] != key:
                slot = (slot + np.uint64(1)) & mask
                entry = slot + slot
            if turn == 0:
                table[entry] = key
                table[entry + np.uint64(1)] += np.uint64(1)
            else:
                copies[number] = table[entry + np.uint64(1)]

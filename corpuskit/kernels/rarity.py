"""Elements of sets as small numbers, the rarest first, without those that only one set has.

Letters: N sets, T elements of all of them, D distinct ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Offsets = NDArray[np.int64]
    Rows = NDArray[np.int64]
    Hashes = NDArray[np.uint64]
    Ranks = NDArray[np.int32]

RANK_BYTES = 44
"""Memory of `shared_ranks` per element of all sets, at most; a third of it where elements recur."""

_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@kernel
def shared_ranks(sets: Rows, offsets: Offsets, hashes: Hashes) -> tuple[Offsets, Ranks, int]:
    """Return the shared elements of each set as ranks: starts (N + 1,), ranks, how many there are.

    Ranks number the elements that at least two of the sets have, those of fewest sets first; each
    set's ascend. O(T), about 25 ns an element; allocates up to RANK_BYTES T.

    Args:
        sets: (N,) rows.
        offsets, hashes: set of row r is `hashes[offsets[r]:offsets[r + 1]]`, no two equal.
    """
    ids, counts = _number(sets, offsets, hashes)
    ranks, num_ranks, firsts = _rank(counts, len(sets))
    starts = np.zeros(len(sets) + 1, np.int64)
    at = 0
    for row in range(len(sets)):
        num = 0
        for _ in range(offsets[sets[row] + 1] - offsets[sets[row]]):
            num += ranks[ids[at]] >= 0
            at += 1
        starts[row + 1] = starts[row] + num
    # Deal sets to the elements they have, then elements, in order, to their sets: no sorting.
    owners = np.empty(starts[-1], np.int32)
    at = 0
    for row in range(len(sets)):
        for _ in range(offsets[sets[row] + 1] - offsets[sets[row]]):
            rank = ranks[ids[at]]
            if rank >= 0:
                owners[firsts[rank]] = row
                firsts[rank] += 1
            at += 1
    found = np.empty(len(owners), np.int32)
    places = starts[:-1].copy()
    rank = 0
    for place in range(len(owners)):
        while place >= firsts[rank]:
            rank += 1
        row = owners[place]
        found[places[row]] = rank
        places[row] += 1
    return starts, found, num_ranks


@kernel
def _number(sets: Rows, offsets: Offsets, hashes: Hashes) -> tuple[Ranks, Ranks]:
    """Number the distinct elements as they come; return each one's number, and how many have it."""
    total = 0
    for row in sets:
        total += offsets[row + 1] - offsets[row]
    ids = np.empty(total, np.int32)
    slots = 1 << 10
    table = np.full(slots, -1, np.int32)
    values, counts = np.empty(slots // 2, np.uint64), np.empty(slots // 2, np.int32)
    num = at = 0
    for row in sets:
        for place in range(offsets[row], offsets[row + 1]):
            slot = _find(table, values, hashes[place])
            if table[slot] < 0:
                if num == len(values):
                    table, values, counts = _grown(values, counts)
                    slot = _find(table, values, hashes[place])
                table[slot], values[num], counts[num] = num, hashes[place], 0
                num += 1
            ids[at] = table[slot]
            counts[table[slot]] += 1
            at += 1
    return ids, counts[:num].copy()


@kernel
def _find(table: Ranks, values: Hashes, value: np.uint64) -> int:
    """Return the slot that holds a value, or the empty one where it belongs."""
    mask = len(table) - 1
    slot = np.int64((value * _SPREAD) >> np.uint64(32)) & mask
    while table[slot] >= 0 and values[table[slot]] != value:
        slot = (slot + 1) & mask
    return int(slot)


@kernel
def _grown(values: Hashes, counts: Ranks) -> tuple[Ranks, Hashes, Ranks]:
    """Return a table and columns of twice the size."""
    num = len(values)
    table = np.full(4 * num, -1, np.int32)
    more, counted = np.empty(2 * num, np.uint64), np.empty(2 * num, np.int32)
    more[:num] = values
    counted[:num] = counts
    for place in range(num):
        table[_find(table, more, values[place])] = place
    return table, more, counted


@kernel
def _rank(counts: Ranks, num_sets: int) -> tuple[Ranks, int, Offsets]:
    """Return ranks by count, -1 for 1, how many there are, and where owners of each begin."""
    places = np.zeros(num_sets + 2, np.int64)
    for count in counts:
        places[count + 1] += count > 1
    for count in range(1, num_sets + 2):
        places[count] += places[count - 1]
    ranks = np.full(len(counts), -1, np.int32)
    num_ranks = places[num_sets + 1]
    firsts = np.zeros(num_ranks + 1, np.int64)
    for place in range(len(counts)):
        if counts[place] > 1:
            ranks[place] = places[counts[place]]
            places[counts[place]] += 1
            firsts[ranks[place] + 1] = counts[place]
    for rank in range(num_ranks):
        firsts[rank + 1] += firsts[rank]
    return ranks, num_ranks, firsts

"""Groups of equal hashes, and connected components, labelled by their smallest key.

Labels do not depend on the order of rows, hence not on how the work was cut. Letters: R rows, E
edges, M nodes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from corpuskit.kernels.arrays import Int64s, Uint64s, frozen
from corpuskit.kernels.hashing import table_size
from corpuskit.kernels.jit import inline, kernel

_PART_ROWS = 2048
"""Rows per part, so that its table of 4,096 slots and its hashes stay in the nearest caches."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@kernel
def first_of_group(high: Uint64s, low: NDArray[np.unsignedinteger], keys: Int64s) -> Int64s:
    """Return, for each row, the row with the smallest key among rows of equal (high, low), (R,).

    Rows are distributed by leading bits of `high`, which should be spread evenly over its range,
    into parts that fit the cache; each part goes through a small hash table. O(R), about
    20 ns a row (np.argsort alone: 80); allocates 16 R bytes.
    """
    num_rows = len(high)
    first = np.empty(num_rows, np.int64)
    if num_rows == 0:
        return first
    order, starts = _deal(high)
    widest = 0
    for bucket in range(len(starts) - 1):
        widest = max(widest, starts[bucket + 1] - starts[bucket])
    table = np.empty(table_size(widest), np.int64)
    for bucket in range(len(starts) - 1):
        rows = order[starts[bucket] : starts[bucket + 1]]
        num_slots = table_size(len(rows))
        table[:num_slots] = -1
        for row in rows:
            slot = _find_slot(table, num_slots, high, low, row)
            if table[slot] < 0 or keys[row] < keys[table[slot]]:
                table[slot] = row
            first[row] = slot
        for row in rows:
            first[row] = table[first[row]]
    return first


@kernel
def _deal(high: Uint64s) -> tuple[Int64s, Int64s]:
    """Return rows ordered by part, and where each part starts."""
    smallest, largest = high[0], high[0]
    for value in high:
        smallest, largest = min(smallest, value), max(largest, value)
    # At least 2, because a shift by 64 bits is undefined.
    min_buckets = np.uint64(max(len(high) // _PART_ROWS, 2))
    shift = np.uint64(0)
    while shift < np.uint64(63) and (largest - smallest) >> shift >= min_buckets:  # >> 64 is >> 0
        shift += np.uint64(1)
    num_buckets = np.int64((largest - smallest) >> shift) + 1
    starts = np.zeros(num_buckets + 1, np.int64)
    for value in high:
        starts[np.int64((value - smallest) >> shift) + 1] += 1
    for bucket in range(num_buckets):
        starts[bucket + 1] += starts[bucket]
    order = np.empty(len(high), np.int64)
    cursors = starts[:-1].copy()
    for row in range(len(high)):
        bucket = np.int64((high[row] - smallest) >> shift)
        order[cursors[bucket]] = row
        cursors[bucket] += 1
    return order, starts


@inline
def _find_slot(
    table: Int64s, num_slots: int, high: Uint64s, low: NDArray[np.unsignedinteger], row: int
) -> int:
    """Return the slot that holds an equal row, or the empty one where it belongs."""
    mixed = (high[row] ^ np.uint64(low[row]) * _GOLDEN) * _GOLDEN
    slot = np.int64(mixed >> np.uint64(32)) & (num_slots - 1)
    while table[slot] >= 0 and (high[table[slot]] != high[row] or low[table[slot]] != low[row]):
        slot = (slot + 1) & (num_slots - 1)
    return int(slot)


def connect(left: Int64s, right: Int64s) -> tuple[Int64s, Int64s]:
    """Return the ends of edges, (M,), sorted, and the smallest key of the component of each.

    O(E log E) for sorting; allocates up to 16 E + 56 M bytes.
    """
    ends = np.concatenate([left, right])
    ends.sort()
    nodes = _distinct(ends)
    del ends
    # Read-only, as edges out of Arrow are: each kind of array compiles the kernel once more.
    return nodes, components(nodes, frozen(left), frozen(right))


@kernel
def _distinct(values: Int64s) -> Int64s:
    """Return sorted values without repeats; `values` is scratch afterwards."""
    num = 0
    for value in values:
        if num == 0 or values[num - 1] != value:
            values[num] = value
            num += 1
    return values[:num].copy()


@kernel
def components(nodes: Int64s, left: Int64s, right: Int64s) -> Int64s:
    """Return the smallest node of each node's connected component, (M,). O(E), some 50 ns an edge.

    Args:
        nodes: (M,) ascending, no two equal: every end of an edge.
        left, right: (E,) ends of the edges.

    Returns:
        Labels; allocates 32 to 48 M bytes.
    """
    table = np.full(table_size(len(nodes)), -1, np.int64)
    for node in range(len(nodes)):
        table[_find_node(table, nodes, nodes[node])] = node
    parents = np.arange(len(nodes))
    for edge in range(len(left)):
        left_root = root(parents, table[_find_node(table, nodes, left[edge])])
        right_root = root(parents, table[_find_node(table, nodes, right[edge])])
        # Parents always come before their children: the root is the smallest node.
        if left_root < right_root:
            parents[right_root] = left_root
        else:
            parents[left_root] = right_root
    labels = np.empty(len(nodes), np.int64)
    for node in range(len(nodes)):
        parents[node] = parents[parents[node]]
        labels[node] = nodes[parents[node]]
    return labels


@inline
def _find_node(table: Int64s, nodes: Int64s, key: int) -> int:
    """Return the slot that holds a node, or the empty one where it belongs."""
    slot = np.int64((np.uint64(key) * _GOLDEN) >> np.uint64(32)) & (len(table) - 1)
    while table[slot] >= 0 and nodes[table[slot]] != key:
        slot = (slot + 1) & (len(table) - 1)
    return int(slot)


@inline
def root(parents: Int64s, node: int) -> int:
    """Return the root of a node in a union-find forest; halves the path to it."""
    while parents[node] != node:
        parents[node] = parents[parents[node]]
        node = np.int64(parents[node])
    return node

"""Single-link clusters of sets at a Jaccard similarity, exactly.

Similar sets are about equal in size, and of elements in any common order the first
(1 - t) |A| + 1 of A meet those of B; with the rarest first that leaves few pairs to compare.
Pairs that are connected already are skipped. Letters: N sets, T elements of all of them.

Source: Bayardo, Ma, Srikant 2007 (prefixes, rarest first); Xiao, Wang, Lin, Yu 2008 (shorter ones
in the index); Mann, Augsten 2014 (bounds of size by position). Ours: the index keeps sets in groups
around leaders. A group is skipped if it is connected already, or too far away by the triangle
inequality, which 1 - Jaccard obeys.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from corpuskit.kernels.arrays import AnyArray, Float64s, Int32s, Int64s, Uint64s
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.unionfind import root

FEW = 12
"""Up to this many sets, all pairs are compared without an index."""

LINK_BYTES = 64
"""Memory of `single_link` per element of its largest component, besides the sets."""

_ROUNDING = 1e-9
"""Far more than the rounding of three distances, far less than a difference of one element."""


class _Sets(NamedTuple):
    """Sets of one component, ascending in size.

    Attributes:
        rows: (N,) their indices in `parents`, a union-find forest.
        sizes: (N,) of the full sets; starts: (N + 1,) into `elements`, the shared ones, as ranks.
    """

    rows: Int64s
    parents: Int64s
    sizes: Int64s
    starts: Int64s
    elements: Int32s


class _SetIndex(NamedTuple):
    """Which sets have an element early: a list per element and group of sets.

    Attributes:
        begins, ends: (D,) the range of an element's lists.
        lists: (E, 3) leader of the group, first entry, last entry.
        entries: (E, 2) set, next entry or -1; the sets of a list ascend.
        leaders: (N,) the set around which a set's group is.
        distances: (N,) of a set to its leader; radii: (N,) the largest in a leader's group.
        compared_by: (N,) the last set that a set was compared with.
        settled_by: (N,) the last set that has finished with a leader's group.
        measured_by: (N,) the last set whose distance to a leader was computed; gaps: (N,) that
            distance.
    """

    begins: Int64s
    ends: Int64s
    lists: Int32s
    entries: Int32s
    leaders: Int32s
    distances: Float64s
    radii: Float64s
    compared_by: Int32s
    settled_by: Int32s
    measured_by: Int32s
    gaps: Float64s


def single_link(
    components: Int64s,
    offsets: Int64s,
    hashes: Uint64s,
    threshold: float,
    *,
    rows: Int64s | None = None,
    labels: Int64s | None = None,
) -> Int64s:
    """Return for each set the first row of its cluster, (N,).

    Clusters connect sets of one component, directly or through others, whose Jaccard similarity is
    `threshold` or more. An empty set is a cluster. Near O(T) where the sets of a component are
    mostly similar or mostly different; pairs just below the threshold are compared one by one.
    Memory: 16 bytes per set, and up to LINK_BYTES per element of the largest component.

    Args:
        components: (N,) any numbers.
        offsets, hashes: set i is `hashes[offsets[i]:offsets[i + 1]]`, ascending, no two equal.
        threshold: in (0, 1].
        rows: sets to compare; None = all. The others are connected by `labels` only.
        labels: (N,) equal for sets of a component that are known to be connected.
    """
    sizes = np.diff(offsets)
    parents = np.arange(len(sizes))
    if labels is not None:
        _, first, group = np.unique(labels, return_index=True, return_inverse=True)
        parents = first[group]
    order = np.flatnonzero(sizes > 0) if rows is None else rows[sizes[rows] > 0]
    order = order[np.lexsort((sizes[order], components[order]))]
    grouped = components[order]
    begins = np.flatnonzero(grouped[1:] != grouped[:-1]) + 1
    bounds = np.concatenate([[0], begins, [len(order)]])
    _link(order, bounds, offsets, hashes, parents, float(threshold))
    return parents


@kernel
def _link(
    order: Int64s,
    bounds: Int64s,
    offsets: Int64s,
    hashes: Uint64s,
    parents: Int64s,
    threshold: float,
) -> None:
    for component in range(len(bounds) - 1):
        rows = order[bounds[component] : bounds[component + 1]]
        if len(rows) <= FEW:
            _link_few(rows, offsets, hashes, parents, threshold)
        else:
            _link_many(rows, offsets, hashes, parents, threshold)
    for row in range(len(parents)):
        parents[row] = parents[parents[row]]  # a parent comes before its children


@kernel
def _connect(parents: Int64s, left: int, right: int) -> None:
    left, right = root(parents, left), root(parents, right)
    parents[max(left, right)] = min(left, right)


@kernel
def _link_few(
    rows: Int64s, offsets: Int64s, hashes: Uint64s, parents: Int64s, threshold: float
) -> None:
    """Compare all pairs that are not connected yet."""
    for index in range(1, len(rows)):
        row = rows[index]
        begin, end = offsets[row], offsets[row + 1]
        smallest = least_size(end - begin, threshold)
        for earlier in range(index - 1, -1, -1):
            other_begin, other_end = offsets[rows[earlier]], offsets[rows[earlier] + 1]
            if other_end - other_begin < smallest:
                break
            if root(parents, row) != root(parents, rows[earlier]):
                least = least_overlap(end - begin, other_end - other_begin, threshold)
                if overlap(hashes, begin, end, other_begin, other_end, least) >= 0:
                    _connect(parents, row, rows[earlier])


@kernel
def _link_many(
    rows: Int64s, offsets: Int64s, hashes: Uint64s, parents: Int64s, threshold: float
) -> None:
    """Compare each set with those before it that may be similar, found through the index."""
    starts, elements, num_ranks = shared_ranks(rows, offsets, hashes)
    sizes = offsets[rows + 1] - offsets[rows]
    sets = _Sets(rows, parents, sizes, starts, elements)
    index = _empty_index(sets, num_ranks, threshold)
    num_entries = 0
    for current in range(len(rows)):
        neighbour = _find_similar(current, sets, index, threshold)
        _join_group(current, neighbour, sets, index, threshold)
        for pos in range(starts[current], _indexed_end(current, sets, threshold)):
            _add_entry(current, elements[pos], num_entries, index)
            num_entries += 1


@kernel
def _add_entry(current: int, element: int, entry: int, index: _SetIndex) -> None:
    """Put a set at the end of the list of its group."""
    leader, list_row, end = index.leaders[current], index.begins[element], index.ends[element]
    if leader == current:
        list_row = end
    while list_row < end and index.lists[list_row, 0] != leader:
        list_row += 1
    index.entries[entry, 0], index.entries[entry, 1] = current, -1
    if list_row < end:
        index.entries[index.lists[list_row, 2], 1] = entry
    else:
        index.lists[list_row, 0], index.lists[list_row, 1] = leader, entry
        index.ends[element] += 1
    index.lists[list_row, 2] = entry


@kernel
def _indexed_end(current: int, sets: _Sets, threshold: float) -> int:
    """Return the end of the prefix in which similar sets, as large or larger, share an element."""
    size = sets.sizes[current]
    begin, end = sets.starts[current], sets.starts[current + 1]
    # Elements that no other set has are the rarest: they precede all others, and are left out.
    unshared = size - (end - begin)
    return int(begin + max(size - least_overlap(size, size, threshold) + 1 - unshared, 0))


@kernel
def _empty_index(sets: _Sets, num_ranks: int, threshold: float) -> _SetIndex:
    num_sets = len(sets.rows)
    begins = np.zeros(num_ranks + 1, np.int64)
    for current in range(num_sets):
        for pos in range(sets.starts[current], _indexed_end(current, sets, threshold)):
            begins[sets.elements[pos] + 1] += 1
    for rank in range(num_ranks):
        begins[rank + 1] += begins[rank]
    return _SetIndex(
        begins,
        begins.copy(),
        np.empty((begins[-1], 3), np.int32),
        np.empty((begins[-1], 2), np.int32),
        np.empty(num_sets, np.int32),
        np.zeros(num_sets),
        np.zeros(num_sets),
        np.full(num_sets, -1, np.int32),
        np.full(num_sets, -1, np.int32),
        np.full(num_sets, -1, np.int32),
        np.empty(num_sets),
    )


@kernel
def _find_similar(current: int, sets: _Sets, index: _SetIndex, threshold: float) -> int:
    """Connect a set with similar earlier ones that are not connected yet; return one of them."""
    size, begin = sets.sizes[current], sets.starts[current]
    end = sets.starts[current + 1]
    unshared = size - (end - begin)
    smallest = least_size(size, threshold)
    neighbour = -1
    for pos in range(begin, begin + max(size - smallest + 1 - unshared, 0)):
        # A pair is compared at its first shared element: it shares at most those from here on.
        largest = most_size(size, end - pos, threshold)
        if largest < smallest:
            break
        element = sets.elements[pos]
        list_row = index.begins[element]
        while list_row < index.ends[element]:
            leader = index.lists[list_row, 0]
            if index.settled_by[leader] != current:
                similar = _search_list(current, list_row, smallest, largest, sets, index, threshold)
                neighbour = similar if similar >= 0 else neighbour
                if index.lists[list_row, 1] < 0:
                    # Sets ascend in size: a list of sets that are too small is never needed again.
                    index.ends[element] -= 1
                    index.lists[list_row] = index.lists[index.ends[element]]
                    continue
            list_row += 1
    return neighbour


@kernel
def _search_list(
    current: int,
    list_row: int,
    smallest: int,
    largest: int,
    sets: _Sets,
    index: _SetIndex,
    threshold: float,
) -> int:
    """Connect a set with the first similar one of a list; return that one, or -1.

    Removes sets under `smallest` from the list.
    """
    leader = index.lists[list_row, 0]
    # All sets of a group are connected, so its leader represents them.
    if root(sets.parents, sets.rows[leader]) == root(sets.parents, sets.rows[current]):
        index.settled_by[leader] = current
        return -1
    slack = 1 - threshold + _ROUNDING
    entry = np.int64(index.lists[list_row, 1])
    while entry >= 0 and sets.sizes[index.entries[entry, 0]] < smallest:
        entry = np.int64(index.entries[entry, 1])
    index.lists[list_row, 1] = entry
    while entry >= 0:
        candidate = np.int64(index.entries[entry, 0])
        entry = np.int64(index.entries[entry, 1])
        if sets.sizes[candidate] > largest:
            break
        if index.compared_by[candidate] == current:
            continue
        index.compared_by[candidate] = current
        if index.radii[leader] > 0 and index.measured_by[leader] != current:
            index.measured_by[leader] = current
            index.gaps[leader] = _gap(current, leader, sets, threshold - index.radii[leader])
            if index.gaps[leader] > index.radii[leader] + slack:
                index.settled_by[leader] = current
                break
        if index.radii[leader] > 0 and abs(index.gaps[leader] - index.distances[candidate]) > slack:
            continue
        if _is_similar(current, int(candidate), sets, threshold):
            _connect(sets.parents, sets.rows[current], sets.rows[candidate])
            index.settled_by[leader] = current
            return int(candidate)
        if index.radii[leader] == 0:
            index.settled_by[leader] = current
    return -1


@kernel
def _is_similar(left: int, right: int, sets: _Sets, threshold: float) -> bool:
    starts = sets.starts
    least = least_overlap(sets.sizes[left], sets.sizes[right], threshold)
    return (
        overlap(
            sets.elements, starts[left], starts[left + 1], starts[right], starts[right + 1], least
        )
        >= 0
    )


@kernel
def _gap(left: int, right: int, sets: _Sets, similarity: float) -> float:
    """Return 1 - Jaccard of two sets, or 2 if that is under `similarity`."""
    starts = sets.starts
    total = sets.sizes[left] + sets.sizes[right]
    least = 0
    if similarity > _ROUNDING:
        least = least_overlap(sets.sizes[left], sets.sizes[right], similarity - _ROUNDING)
    shared = overlap(
        sets.elements, starts[left], starts[left + 1], starts[right], starts[right + 1], least
    )
    return 2.0 if shared < 0 else 1 - shared / (total - shared)


@kernel
def _join_group(current: int, near: int, sets: _Sets, index: _SetIndex, threshold: float) -> None:
    """Put a set into the group of a similar one, unless its leader is far away."""
    index.leaders[current] = current
    if near < 0:
        return
    leader = index.leaders[near]
    gap = index.gaps[leader]
    if index.measured_by[leader] != current:
        gap = _gap(current, leader, sets, 0.0)
    # Larger groups are skipped at once where they are connected, smaller ones where not.
    if gap <= 2 * (1 - threshold):
        index.leaders[current] = leader
        index.distances[current] = gap
        index.radii[leader] = max(index.radii[leader], gap)


# ---------------------------------------------------------------- rare elements first
#
# Letters: N sets, T elements of all of them, D distinct ones.


RANK_BYTES = 44
"""Memory of `shared_ranks` per element of all sets, at most; a third of it where elements recur."""

_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@kernel
def shared_ranks(sets: Int64s, offsets: Int64s, hashes: Uint64s) -> tuple[Int64s, Int32s, int]:
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
    pos = 0
    for row in range(len(sets)):
        num = 0
        for _ in range(offsets[sets[row] + 1] - offsets[sets[row]]):
            num += ranks[ids[pos]] >= 0
            pos += 1
        starts[row + 1] = starts[row] + num
    # Distribute sets to their elements, then elements, in order, to their sets: no sorting.
    owners = np.empty(starts[-1], np.int32)
    pos = 0
    for row in range(len(sets)):
        for _ in range(offsets[sets[row] + 1] - offsets[sets[row]]):
            rank = ranks[ids[pos]]
            if rank >= 0:
                owners[firsts[rank]] = row
                firsts[rank] += 1
            pos += 1
    result = np.empty(len(owners), np.int32)
    cursors = starts[:-1].copy()
    rank = 0
    for index in range(len(owners)):
        while index >= firsts[rank]:
            rank += 1
        row = owners[index]
        result[cursors[row]] = rank
        cursors[row] += 1
    return starts, result, num_ranks


@kernel
def _number(sets: Int64s, offsets: Int64s, hashes: Uint64s) -> tuple[Int32s, Int32s]:
    """Number the distinct elements in order of occurrence; return numbers, and sets per element."""
    total = 0
    for row in sets:
        total += offsets[row + 1] - offsets[row]
    ids = np.empty(total, np.int32)
    slots = 1 << 10
    table = np.full(slots, -1, np.int32)
    values, counts = np.empty(slots // 2, np.uint64), np.empty(slots // 2, np.int32)
    num = pos = 0
    for row in sets:
        for index in range(offsets[row], offsets[row + 1]):
            slot = _find(table, values, hashes[index])
            if table[slot] < 0:
                if num == len(values):
                    table, values, counts = _grown(values, counts)
                    slot = _find(table, values, hashes[index])
                table[slot], values[num], counts[num] = num, hashes[index], 0
                num += 1
            ids[pos] = table[slot]
            counts[table[slot]] += 1
            pos += 1
    return ids, counts[:num].copy()


@kernel
def _find(table: Int32s, values: Uint64s, value: np.uint64) -> int:
    """Return the slot that holds a value, or the empty one where it belongs."""
    mask = len(table) - 1
    slot = np.int64((value * _SPREAD) >> np.uint64(32)) & mask
    while table[slot] >= 0 and values[table[slot]] != value:
        slot = (slot + 1) & mask
    return int(slot)


@kernel
def _grown(values: Uint64s, counts: Int32s) -> tuple[Int32s, Uint64s, Int32s]:
    """Return a table and columns of twice the size."""
    num = len(values)
    table = np.full(4 * num, -1, np.int32)
    grown_values, grown_counts = np.empty(2 * num, np.uint64), np.empty(2 * num, np.int32)
    grown_values[:num] = values
    grown_counts[:num] = counts
    for number in range(num):
        table[_find(table, grown_values, values[number])] = number
    return table, grown_values, grown_counts


@kernel
def _rank(counts: Int32s, num_sets: int) -> tuple[Int32s, int, Int64s]:
    """Return ranks by count, -1 for 1, how many there are, and where owners of each begin."""
    cursors = np.zeros(num_sets + 2, np.int64)
    for count in counts:
        cursors[count + 1] += count > 1
    for count in range(1, num_sets + 2):
        cursors[count] += cursors[count - 1]
    ranks = np.full(len(counts), -1, np.int32)
    num_ranks = cursors[num_sets + 1]
    firsts = np.zeros(num_ranks + 1, np.int64)
    for element in range(len(counts)):
        if counts[element] > 1:
            ranks[element] = cursors[counts[element]]
            cursors[counts[element]] += 1
            firsts[ranks[element] + 1] = counts[element]
    for rank in range(num_ranks):
        firsts[rank + 1] += firsts[rank]
    return ranks, num_ranks, firsts


# ---------------------------------------------------------------- Jaccard similarity
#
# |A & B| / |A | B| >= t means an overlap of at least t / (1 + t) (|A| + |B|). All bounds compare
# the quotient that `similarities` gives, so that they agree with it in every last bit.


@kernel
def least_overlap(size: int, other_size: int, threshold: float) -> int:
    """Return how many elements sets of these sizes, at least 1, must share."""
    shared = max(int(threshold * (size + other_size) / (1 + threshold)) - 1, 0)
    while shared / (size + other_size - shared) < threshold:
        shared += 1
    return shared


@kernel
def least_size(size: int, threshold: float) -> int:
    """Return how small a set may be, at least 1, to be similar to a larger one."""
    smaller = max(int(threshold * size) - 1, 1)
    while smaller / size < threshold:
        smaller += 1
    return smaller


@kernel
def most_size(size: int, shared: int, threshold: float) -> int:
    """Return how large a set may be that is similar to one with which it shares `shared` elements.

    Less than `shared` if none is.
    """
    larger = int((shared + shared / threshold) - size) + 1
    while larger >= shared and shared / (size + larger - shared) < threshold:
        larger -= 1
    return larger


@kernel
def overlap(
    elements: AnyArray, left: int, left_end: int, right: int, right_end: int, least: int
) -> int:
    """Return how many elements two ascending ranges of `elements` share, -1 if under `least`.

    O(W) for W elements, 2 ns each whatever they are; stops when too many are missing.
    """
    shared = 0
    while left < left_end and right < right_end:
        remaining = min(left_end - left, right_end - right)
        if shared + remaining < least:
            return -1
        # Without branches or tests for the end: neither side advances further than `remaining`.
        for _ in range(min(remaining, 64)):
            a, b = elements[left], elements[right]
            shared += a == b
            left += a <= b
            right += a >= b
    return shared if shared >= least else -1


@kernel
def similarities(offsets: Int64s, hashes: Uint64s, left: Int64s, right: Int64s) -> Float64s:
    """Return the Jaccard similarity of pairs of sets, (P,); NaN for two empty ones.

    Args:
        offsets, hashes: set i is `hashes[offsets[i]:offsets[i + 1]]`, ascending, no two equal.
        left, right: (P,) sets.
    """
    values = np.full(len(left), np.nan)
    for pair in range(len(left)):
        begin, end = offsets[left[pair]], offsets[left[pair] + 1]
        other_begin, other_end = offsets[right[pair]], offsets[right[pair] + 1]
        total = end - begin + other_end - other_begin
        if total > 0:
            shared = overlap(hashes, begin, end, other_begin, other_end, 0)
            values[pair] = shared / (total - shared)
    return values

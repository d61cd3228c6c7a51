"""Which sets survive: each of the others is similar to a survivor that has most of its elements.

Sets are processed in an order. A set goes if an earlier survivor is similar to it and has all but a
share of its elements; otherwise it survives. So only survivors are indexed, and a set with more
elements of its own than it may lose is compared with none. Letters: N sets, T elements.

Source: prefixes as in `singlelink`; sets that stay are the first maximal independent set in the
order (Blelloch, Fineman, Shun 2012), with edges that need not hold both ways.
"""

from __future__ import annotations

import numpy as np

from corpuskit.kernels.arrays import Bools, Float64s, Int32s, Int64s, Uint64s
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.singlelink import FEW, least_overlap, least_size, overlap, shared_ranks


def first_holders(
    components: Int64s, offsets: Int64s, hashes: Uint64s, order: Int64s,
    bounds: tuple[float, float], *, stays: Bools, decides_all: bool = True
) -> tuple[Int64s, Int64s]:  # fmt: skip
    """Return for each set the first survivor that holds it, -1 for none, (N,).

    One set holds another of its component if their Jaccard similarity is `bounds[0]` or more, and
    if the share of the other's elements that it lacks is `bounds[1]` or less. Near O(T) where few
    sets stay that share rare elements. Memory: up to LINK_BYTES of `singlelink` per element of the
    largest component.

    Args:
        components: (N,) any numbers.
        offsets, hashes: set i is `hashes[offsets[i]:offsets[i + 1]]`, ascending, no two equal.
        order: sets to compare, preferred survivors first.
        stays: (N,) sets that survive in any case.
        decides_all: other sets that nothing holds survive, too; False = those hold no set.

    Returns:
        The sets' holders, and how many elements they share with them, (N,).
    """
    num_sets = len(offsets) - 1
    holders, shared = np.full(num_sets, -1), np.zeros(num_sets, np.int64)
    order = order[np.diff(offsets)[order] > 0]
    order = order[np.argsort(components[order], kind="stable")]
    grouped = components[order]
    begins = np.flatnonzero(grouped[1:] != grouped[:-1]) + 1
    ends = np.concatenate([[0], begins, [len(order)]])
    _hold(order, ends, offsets, hashes, np.array(bounds), stays, decides_all, holders, shared)
    return holders, shared


@kernel
def _hold(
    order: Int64s, ends: Int64s, offsets: Int64s, hashes: Uint64s, bounds: Float64s,
    stays: Bools, decides_all: bool, holders: Int64s, shared: Int64s
) -> None:  # fmt: skip
    for component in range(len(ends) - 1):
        rows = order[ends[component] : ends[component + 1]]
        if len(rows) <= FEW:
            _hold_few(rows, offsets, hashes, bounds, stays, decides_all, holders, shared)
        else:
            _hold_many(rows, offsets, hashes, bounds, stays, decides_all, holders, shared)


@kernel
def least_held(size: int, max_lost: float) -> int:
    """Return how many elements of a set of this size another must have to hold it."""
    num_shared = max(int(size - max_lost * size) - 1, 0)
    while (size - num_shared) / size > max_lost:
        num_shared += 1
    return num_shared


@kernel
def _min_shared(size: int, other_size: int, bounds: Float64s) -> int:
    """Return how many elements a set of a size must share with another to be held by it."""
    if min(size, other_size) / max(size, other_size) < bounds[0]:
        return size + 1
    return max(least_overlap(size, other_size, bounds[0]), least_held(size, bounds[1]))


@kernel
def _hold_few(
    rows: Int64s, offsets: Int64s, hashes: Uint64s, bounds: Float64s, stays: Bools,
    decides_all: bool, holders: Int64s, shared: Int64s
) -> None:  # fmt: skip
    """Compare all pairs whose first one stays."""
    for index in range(1, len(rows)):
        row = rows[index]
        begin, end = offsets[row], offsets[row + 1]
        for earlier in range(0 if stays[row] else index):
            holder = rows[earlier]
            if holders[holder] >= 0 or not (decides_all or stays[holder]):
                continue
            least = _min_shared(end - begin, offsets[holder + 1] - offsets[holder], bounds)
            if least > end - begin:
                continue
            num = overlap(hashes, begin, end, offsets[holder], offsets[holder + 1], least)
            if num >= 0:
                holders[row], shared[row] = holder, num
                break


@kernel
def _hold_many(
    rows: Int64s, offsets: Int64s, hashes: Uint64s, bounds: Float64s, stays: Bools,
    decides_all: bool, holders: Int64s, shared: Int64s
) -> None:  # fmt: skip
    """Compare each set with those that stay and share one of its rarest elements."""
    starts, elements, num_ranks = shared_ranks(rows, offsets, hashes)
    sizes = offsets[rows + 1] - offsets[rows]
    # Elements that no other set has precede all others, and are not in `elements`.
    unshared = sizes - (starts[1:] - starts[:-1])
    begins = np.zeros(num_ranks + 1, np.int64)
    lasts = np.empty(len(rows), np.int64)
    for index in range(len(rows)):
        prefix = sizes[index] - least_size(sizes[index], bounds[0]) + 1 - unshared[index]
        lasts[index] = starts[index] + max(prefix, 0)
        for pos in range(starts[index], lasts[index]):
            begins[elements[pos] + 1] += 1
    for rank in range(num_ranks):
        begins[rank + 1] += begins[rank]
    ends = begins.copy()
    entries = np.empty(begins[-1], np.int32)
    stamps = np.full(len(rows), -1, np.int32)
    for index in range(len(rows)):
        if not stays[rows[index]]:
            first, num = _first_holder(
                index, sizes, starts, elements, unshared, bounds, begins, ends, entries, stamps
            )
            if first >= 0:
                holders[rows[index]], shared[rows[index]] = rows[first], num
            if first >= 0 or not decides_all:
                continue
        for pos in range(starts[index], lasts[index]):
            entries[ends[elements[pos]]] = index
            ends[elements[pos]] += 1


@kernel
def _first_holder(
    index: int, sizes: Int64s, starts: Int64s, elements: Int32s, unshared: Int64s,
    bounds: Float64s, begins: Int64s, ends: Int64s, entries: Int32s, stamps: Int32s,
) -> tuple[int, int]:  # fmt: skip
    """Return the first set in the index that holds a set, -1 for none, and what they share."""
    size, begin, end = sizes[index], starts[index], starts[index + 1]
    least = max(least_size(size, bounds[0]), least_held(size, bounds[1]))
    first, shared = len(starts), 0
    for pos in range(begin, begin + max(size - least + 1 - unshared[index], 0)):
        element = elements[pos]
        for entry in range(begins[element], ends[element]):
            holder = np.int64(entries[entry])
            if holder >= first:  # a list ascends
                break
            if stamps[holder] == index:
                continue
            stamps[holder] = index
            min_shared = _min_shared(size, sizes[holder], bounds)
            # A pair is compared at its first shared element: it shares at most those from here on.
            if min_shared > end - pos:
                continue
            num = overlap(elements, begin, end, starts[holder], starts[holder + 1], min_shared)
            if num >= 0:
                first, shared = holder, num
                break
    return (first, shared) if first < len(starts) else (-1, 0)

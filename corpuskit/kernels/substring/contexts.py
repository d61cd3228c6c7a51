"""Contexts of fingerprints (`winnow`): grouped, compared byte by byte, copied.

Letters: R rows, G rows of a group (one fingerprint). Positions and sizes are in bytes; a symbol has
`width` bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from corpuskit.kernels.arrays import Bytes, Int64s, Uint32s, Uint64s
from corpuskit.kernels.hashing import copy, load64, mix64, same_bytes, table_size
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.substring.winnow import extend, power, roll

_RADIX = np.uint64(0x9FB21C651E98DF25)

_FEW = 8
"""Up to this many contexts of a group are compared in pairs, more by a hash table."""


class Contexts(NamedTuple):
    """Contexts in the order of `order`, (R,) each: by fingerprint, then (rank, key, start).

    Attributes:
        fps: of rows in this order.
        begins, sizes: bytes of the context.
        gram_offsets: from `begins` to the common gram.
    """

    fps: Uint64s
    begins: Int64s
    sizes: Int64s
    gram_offsets: Int64s


def group_rows(fps: Uint64s, ranks: Bytes, keys: Int64s, starts: Uint32s) -> Int64s:
    """Return the order of rows by fingerprint, then (rank, key, start), (R,). O(R).

    Args:
        fps: (R,) evenly spread over their range.
        ranks, keys, starts: (R,); fast where rows of equal rank come by (key, start) already.
    """
    order: Int64s = np.argsort(ranks, kind="stable") if ranks.any() else np.arange(len(fps))
    order = order[order_hashes(fps[order])]
    _sort_ties(order, fps, ranks, keys, starts)
    return order


@kernel
def order_hashes(values: Uint64s) -> Int64s:
    """Return the stable order of hashes, (R,). O(R), about 20 ns a row; allocates 24 R bytes.

    Args:
        values: evenly spread over their range, apart from repeats.
    """
    num = len(values)
    order = np.empty(num, np.int64)
    if num == 0:
        return order
    smallest, largest = values[0], values[0]
    for value in values:
        smallest, largest = min(smallest, value), max(largest, value)
    shift = np.uint64(0)
    while shift < np.uint64(63) and (largest - smallest) >> shift >= np.uint64(max(num, 2)):
        shift += np.uint64(1)
    starts = np.zeros(np.int64((largest - smallest) >> shift) + 2, np.int64)
    for value in values:
        starts[np.int64((value - smallest) >> shift) + 1] += 1
    for bucket in range(1, len(starts)):
        starts[bucket] += starts[bucket - 1]
    cursors = starts.copy()
    sorted_values = np.empty(num, np.uint64)
    for row in range(num):
        value = values[row]
        bucket = np.int64((value - smallest) >> shift)
        pos = cursors[bucket]
        cursors[bucket] += 1
        while pos > starts[bucket] and sorted_values[pos - 1] > value:
            sorted_values[pos], order[pos] = sorted_values[pos - 1], order[pos - 1]
            pos -= 1
        sorted_values[pos], order[pos] = value, row
    return order


@kernel
def group_sizes(values: Uint64s) -> Int64s:
    """Return for each hash how many are equal to it, (R,). O(R), as `order_hashes`."""
    order, sizes = order_hashes(values), np.empty(len(values), np.int64)
    begin = 0
    while begin < len(order):
        end = begin + 1
        while end < len(order) and values[order[end]] == values[order[begin]]:
            end += 1
        for index in range(begin, end):
            sizes[order[index]] = end - begin
        begin = end
    return sizes


@kernel
def order_keys(values: Int64s) -> Int64s:
    """Return the stable order of integers, (R,). O(R), 5 ns a row for each 11 bits they span."""
    num = len(values)
    order, buffer = np.arange(num), np.empty(num, np.int64)
    if num == 0:
        return order
    smallest, largest = values[0], values[0]
    for value in values:
        smallest, largest = min(smallest, value), max(largest, value)
    spread = np.uint64(largest - smallest)
    shift = np.uint64(0)
    while shift < np.uint64(64) and spread >> shift:
        starts = np.zeros(2049, np.int64)
        for value in values:
            starts[np.int64((np.uint64(value - smallest) >> shift) & np.uint64(2047)) + 1] += 1
        for digit in range(1, 2049):
            starts[digit] += starts[digit - 1]
        for row in order:
            digit = np.int64((np.uint64(values[row] - smallest) >> shift) & np.uint64(2047))
            buffer[starts[digit]] = row
            starts[digit] += 1
        order, buffer = buffer, order
        shift += np.uint64(11)
    return order


@kernel
def _sort_ties(order: Int64s, fps: Uint64s, ranks: Bytes, keys: Int64s, starts: Uint32s) -> None:
    """Sort the rows of each fingerprint by (rank, key, start), in place; most are."""
    for index in range(1, len(order)):
        row, pos = order[index], index
        while pos > 0 and fps[order[pos - 1]] == fps[row]:
            previous = order[pos - 1]
            if ranks[previous] != ranks[row]:
                if ranks[previous] < ranks[row]:
                    break
            elif keys[previous] != keys[row]:
                if keys[previous] < keys[row]:
                    break
            elif starts[previous] <= starts[row]:
                break
            order[pos] = previous
            pos -= 1
        order[pos] = row


@kernel
def find_equal(contexts: Contexts, data: Bytes) -> Int64s:
    """Return for each context the first of its group that equals it, (R,), itself if none does.

    O(B + R); two contexts are equal if their fingerprints, bytes and gram offsets are.
    """
    fps = contexts.fps
    first = np.arange(len(fps))
    begin = 0
    while begin < len(fps):
        end = begin + 1
        while end < len(fps) and fps[end] == fps[begin]:
            end += 1
        if end - begin > _FEW:
            _find_by_hash(contexts, data, begin, end, first)
        else:
            for context in range(begin + 1, end):
                for earlier in range(begin, context):
                    if first[earlier] == earlier and _is_same(contexts, data, earlier, context):
                        first[context] = earlier
                        break
        begin = end
    return first


@kernel
def _is_same(contexts: Contexts, data: Bytes, left: int, right: int) -> bool:
    sizes, begins = contexts.sizes, contexts.begins
    return bool(
        sizes[left] == sizes[right]
        and contexts.gram_offsets[left] == contexts.gram_offsets[right]
        and same_bytes(data, begins[left], data, begins[right], sizes[left])
    )


@kernel
def _find_by_hash(contexts: Contexts, data: Bytes, begin: int, end: int, first: Int64s) -> None:
    num_slots = table_size(end - begin)
    table = np.full(num_slots, -1, np.int64)
    hashes = np.empty(end - begin, np.uint64)
    for context in range(begin, end):
        hashed = _hash_bytes(data, contexts.begins[context], contexts.sizes[context])
        hashes[context - begin] = hashed
        slot = np.int64(hashed & np.uint64(num_slots - 1))
        while table[slot] >= 0:
            earlier = table[slot]
            if hashes[earlier - begin] == hashed and _is_same(contexts, data, earlier, context):
                break
            slot = (slot + 1) & (num_slots - 1)
        if table[slot] < 0:
            table[slot] = context
        first[context] = table[slot]


@kernel
def _hash_bytes(data: Bytes, begin: int, size: int) -> np.uint64:
    """Return a hash of the context, without the last bytes that are no full 8. O(B)."""
    value = np.uint64(size)
    for pos in range(begin, begin + size - 7, 8):
        value = (value ^ load64(data, pos)) * _RADIX
        value ^= value >> np.uint64(29)
    return mix64(value)


@kernel
def copy_contexts(begins: Int64s, sizes: Int64s, data: Bytes) -> Bytes:
    """Return contexts one after another. O(B), allocates the copy."""
    total = 0
    for size in sizes:
        total += size
    contexts = np.empty(total, np.uint8)
    end = 0
    for row in range(len(sizes)):
        copy(data[begins[row] : begins[row] + sizes[row]], contexts[end : end + sizes[row]])
        end += sizes[row]
    return contexts


@kernel
def hash_windows(
    begins: Int64s, lasts: NDArray[np.uint16], data: Bytes, window: int, width: int, seeds: Uint64s
) -> tuple[Uint64s, Int64s, Int64s]:
    """Return each window of contexts: hash, context, position in it, (W,) each. O(B + W).

    Args:
        begins: (R,) where contexts begin.
        lasts: (R,) windows of each, less one.
        window: bytes of a window.
        width: bytes of a symbol.
        seeds: (R,) equal windows under different seeds have different hashes.
    """
    total = 0
    for last in lasts:
        total += last + 1
    hashes, rows = np.empty(total, np.uint64), np.empty(total, np.int64)
    positions = np.empty(total, np.int64)
    leaving = power(window)
    num = 0
    for row in range(len(begins)):
        begin = begins[row]
        value = np.uint64(0)
        for pos in range(begin, begin + window):
            value = extend(value, np.uint64(data[pos]))
        for position in range(lasts[row] + 1):
            if position > 0:
                for pos in range(begin + (position - 1) * width, begin + position * width):
                    value = roll(value, data[pos + window], data[pos], leaving)
            hashes[num], rows[num], positions[num] = mix64(mix64(value) ^ seeds[row]), row, position
            num += 1
    return hashes, rows, positions


# ---------------------------------------------------------------- comparing windows
#
# Equal windows have their gram at the same offset. So two contexts are aligned at their grams: they
# share the windows within the stretch of equal bytes around it.


FEW = 6
"""Up to this many contexts of a group are compared in pairs; larger groups are swept."""


def flag_windows(
    contexts: Contexts, first: Int64s, data: Bytes, window: int, width: int, keep_first: bool
) -> tuple[Int64s, Int64s, Int64s]:
    """Return runs of repeated windows: context, first window, windows, (S,) each.

    O(B) for pairs and for sweeps; allocates 24 bytes per run, and 256 per context of the largest
    group.

    Args:
        contexts: (R,) in order: the first of equal windows is in the first of their contexts.
        first: (R,) from `find_equal`.
        data: what contexts point into.
        window: bytes of a window.
        width: bytes of a symbol.
        keep_first: the first of equal windows is not repeated.
    """
    runs = _flag_groups(contexts, first, data, window, width, keep_first)
    return runs[::3], runs[1::3], runs[2::3]


@kernel
def _flag_groups(
    contexts: Contexts, first: Int64s, data: Bytes, window: int, width: int, keep_first: bool
) -> Int64s:
    """Return runs as triples, (3 S,)."""
    num_rows, num = len(first), 0
    triples = np.empty(3 * num_rows + 48, np.int64)
    begin = 0
    while begin < num_rows:
        end = begin + 1
        while end < num_rows and contexts.fps[end] == contexts.fps[begin]:
            end += 1
        if end - begin > 1:
            offsets = _window_offsets(contexts, window, width, begin, end)
            flags = np.zeros(offsets[-1], np.uint8)
            _flag_group(contexts, first, data, window, width, keep_first, begin, offsets, flags)
            runs = _list_runs(begin, offsets, flags, triples, len(triples))
            if num + 3 * runs > len(triples):
                larger = np.empty(2 * num + 3 * runs, np.int64)
                for index in range(num):
                    larger[index] = triples[index]
                triples = larger
            num += 3 * _list_runs(begin, offsets, flags, triples, num)
        begin = end
    return triples[:num].copy()


@kernel
def _window_offsets(contexts: Contexts, window: int, width: int, begin: int, end: int) -> Int64s:
    """Return where the flags of each context of a group are, (G + 1,)."""
    offsets = np.zeros(end - begin + 1, np.int64)
    for row in range(begin, end):
        windows = (contexts.sizes[row] - window) // width + 1
        offsets[row - begin + 1] = offsets[row - begin] + windows
    return offsets


@kernel
def _flag_group(
    contexts: Contexts, first: Int64s, data: Bytes, window: int, width: int, keep_first: bool,
    begin: int, offsets: Int64s, flags: Bytes
) -> None:  # fmt: skip
    """Flag the repeated windows of one group."""
    distinct = np.empty(len(offsets) - 1, np.int64)
    num = 0
    for index in range(len(distinct)):
        row = begin + index
        if first[row] == row:
            distinct[num] = index
            num += 1
            continue
        for flag in range(offsets[index], offsets[index + 1]):
            flags[flag] = 1
        if not keep_first:
            original = first[row] - begin
            for flag in range(offsets[original], offsets[original + 1]):
                flags[flag] = 1
    if num > FEW:
        _sweep(contexts, data, window, width, keep_first, begin, distinct[:num], offsets, flags)
        return
    for later in range(1, num):
        for earlier in range(later):
            _flag_pair(
                contexts, data, window, width, keep_first,
                begin, distinct[earlier], distinct[later], offsets, flags,
            )  # fmt: skip


@kernel
def _flag_pair(
    contexts: Contexts, data: Bytes, window: int, width: int, keep_first: bool,
    begin: int, first: int, second: int, offsets: Int64s, flags: Bytes
) -> None:  # fmt: skip
    """Flag the windows that two contexts share in `second`, which comes after `first`."""
    first_offset, second_offset = (
        contexts.gram_offsets[begin + first],
        contexts.gram_offsets[begin + second],
    )
    first_gram = contexts.begins[begin + first] + first_offset
    second_gram = contexts.begins[begin + second] + second_offset
    max_shared = min(
        contexts.sizes[begin + first] - first_offset, contexts.sizes[begin + second] - second_offset
    )
    right = 0
    while right < max_shared and data[first_gram + right] == data[second_gram + right]:
        right += 1
    max_shared = min(first_offset, second_offset)
    left = 0
    while left < max_shared and data[first_gram - left - 1] == data[second_gram - left - 1]:
        left += 1
    # Windows begin `low` to `high` symbols after the gram.
    low = max(-(left // width), -(first_offset // width), -(second_offset // width))
    high = min(
        (right - window) // width,
        offsets[first + 1] - offsets[first] - 1 - first_offset // width,
        offsets[second + 1] - offsets[second] - 1 - second_offset // width,
    )
    for shift in range(low, high + 1):
        flags[offsets[second] + second_offset // width + shift] = 1
        if not keep_first:
            flags[offsets[first] + first_offset // width + shift] = 1


@kernel
def _sweep(
    contexts: Contexts, data: Bytes, window: int, width: int, keep_first: bool,
    begin: int, distinct: Int64s, offsets: Int64s, flags: Bytes
) -> None:  # fmt: skip
    """Flag the windows that many contexts share, compared by hash, then by bytes.

    Windows with the gram at the same offset are compared, one offset after the other.

    Linear in the windows of the group: if the window before equals one of the same context, only
    one more symbol is compared. Allocates 48 to 64 bytes per context.
    """
    num = len(distinct)
    num_slots = table_size(num)
    table, stamps = np.empty(num_slots, np.int64), np.zeros(num_slots, np.int64)
    hashes = np.zeros(num, np.uint64)
    matched = np.full(num, -1, np.int64)
    leaving = power(window)
    max_ahead = 0
    for context in distinct:
        max_ahead = max(max_ahead, contexts.gram_offsets[begin + context] // width)
    for stamp in range(1, max_ahead + 2):
        ahead = max_ahead + 1 - stamp  # symbols from a window's beginning to its gram
        for index in range(num):
            row = begin + distinct[index]
            position = contexts.gram_offsets[row] // width - ahead
            flag = offsets[distinct[index]] + position
            if position < 0 or flag >= offsets[distinct[index] + 1]:
                continue
            start = contexts.begins[row] + position * width
            hashes[index] = _move(hashes[index], data, start, window, width, position == 0, leaving)
            slot = np.int64(mix64(hashes[index]) & np.uint64(num_slots - 1))
            is_met = False
            while stamps[slot] == stamp:
                candidate = table[slot]
                is_met = hashes[candidate] == hashes[index]
                if is_met:
                    twin = begin + distinct[candidate]
                    origin = contexts.begins[twin] + contexts.gram_offsets[twin] - ahead * width
                    equal = window - width if matched[index] == candidate and position > 0 else 0
                    is_met = same_bytes(data, origin + equal, data, start + equal, window - equal)
                if is_met:
                    break
                slot = (slot + 1) & (num_slots - 1)
            matched[index] = -1
            if is_met:
                matched[index] = table[slot]
                flags[flag] = 1
                if not keep_first:
                    earlier = distinct[table[slot]]
                    gram = contexts.gram_offsets[begin + earlier] // width
                    flags[offsets[earlier] + gram - ahead] = 1
            else:
                table[slot], stamps[slot] = index, stamp


@kernel
def _move(
    value: np.uint64, data: Bytes, start: int, window: int, width: int, is_new: bool,
    leaving: np.uint64
) -> np.uint64:  # fmt: skip
    """Return the hash of the window at `start`, from that of the one before if there is one."""
    if is_new:
        value = np.uint64(0)
        for pos in range(start, start + window):
            value = extend(value, np.uint64(data[pos]))
        return value
    for pos in range(start - width, start):
        value = roll(value, data[pos + window], data[pos], leaving)
    return value


@kernel
def _list_runs(begin: int, offsets: Int64s, flags: Bytes, triples: Int64s, num: int) -> int:
    """Append the runs of flags of each context from `triples[num]` on if they fit; count them."""
    runs = 0
    for index in range(len(offsets) - 1):
        pos = offsets[index]
        while pos < offsets[index + 1]:
            if not flags[pos]:
                pos += 1
                continue
            start = pos
            while pos < offsets[index + 1] and flags[pos]:
                pos += 1
            if num + 3 * runs + 2 < len(triples):
                triples[num + 3 * runs] = begin + index
                triples[num + 3 * runs + 1] = start - offsets[index]
                triples[num + 3 * runs + 2] = pos - start
            runs += 1
    return runs

"""Contexts of fingerprints: put into groups, compared byte by byte, copied.

Letters: R rows, G rows of a group (one fingerprint). Symbols of `width` bytes; all else is bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from corpuskit.kernels.arrays import Bytes, Int64s, Uint32s, Uint64s
from corpuskit.kernels.hashing import load64, mix64
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.substring.winnow import extend, power, roll

_RADIX = np.uint64(0x9FB21C651E98DF25)

_FEW = 8
"""Distinct contexts of a group that are compared one with another; beyond, a table finds them."""


class Contexts(NamedTuple):
    """Contexts in the order of `order`, (R,) each: by fingerprint, then (rank, key, start).

    Attributes:
        fps: of rows in this order.
        begins: where the context's bytes are.
        sizes: how many there are.
        ats: bytes from there to the common gram.
    """

    fps: Uint64s
    begins: Int64s
    sizes: Int64s
    ats: Int64s


def group_rows(fps: Uint64s, ranks: Bytes, keys: Int64s, starts: Uint32s) -> Int64s:
    """Return the order of rows by fingerprint, then (rank, key, start), (R,). O(R).

    Args:
        fps: (R,) evenly spread over the range that occurs.
        ranks, keys, starts: (R,); fast where rows of equal rank come by (key, start) already.
    """
    order: Int64s = np.argsort(ranks, kind="stable") if ranks.any() else np.arange(len(fps))
    order = order[order_hashes(fps[order])]
    _tidy(order, fps, ranks, keys, starts)
    return order


@kernel
def order_hashes(values: Uint64s) -> Int64s:
    """Return the stable order of hashes, (R,). O(R), about 20 ns a row; allocates 24 R bytes.

    Args:
        values: evenly spread over the range that occurs, but for repeats.
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
    places = starts.copy()
    sorted_values = np.empty(num, np.uint64)
    for row in range(num):
        value = values[row]
        bucket = np.int64((value - smallest) >> shift)
        at = places[bucket]
        places[bucket] += 1
        while at > starts[bucket] and sorted_values[at - 1] > value:
            sorted_values[at], order[at] = sorted_values[at - 1], order[at - 1]
            at -= 1
        sorted_values[at], order[at] = value, row
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
        for place in range(begin, end):
            sizes[order[place]] = end - begin
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
def _tidy(order: Int64s, fps: Uint64s, ranks: Bytes, keys: Int64s, starts: Uint32s) -> None:
    """Sort the rows of each fingerprint by (rank, key, start), in place; mostly they are."""
    for place in range(1, len(order)):
        row, at = order[place], place
        while at > 0 and fps[order[at - 1]] == fps[row]:
            previous = order[at - 1]
            if ranks[previous] != ranks[row]:
                if ranks[previous] < ranks[row]:
                    break
            elif keys[previous] != keys[row]:
                if keys[previous] < keys[row]:
                    break
            elif starts[previous] <= starts[row]:
                break
            order[at] = previous
            at -= 1
        order[at] = row


@kernel
def same_bytes(left: Bytes, a: int, right: Bytes, b: int, size: int) -> bool:
    """Return whether `size` bytes are equal. O(B)."""
    at = 0
    while at + 8 <= size:
        if load64(left, a + at) != load64(right, b + at):
            return False
        at += 8
    while at < size and left[a + at] == right[b + at]:
        at += 1
    return at >= size


@kernel
def find_equal(contexts: Contexts, data: Bytes) -> Int64s:
    """Return the first context of its group that equals each one, (R,), itself if none before.

    O(B + R); two contexts are equal if fingerprint, bytes and the gram's place are.
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
        and contexts.ats[left] == contexts.ats[right]
        and same_bytes(data, begins[left], data, begins[right], sizes[left])
    )


@kernel
def _find_by_hash(contexts: Contexts, data: Bytes, begin: int, end: int, first: Int64s) -> None:
    num_slots = 2
    while num_slots < 2 * (end - begin):
        num_slots *= 2
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
    """Return a hash of all whole words of a context. O(B)."""
    value = np.uint64(size)
    for at in range(begin, begin + size - 7, 8):
        value = (value ^ load64(data, at)) * _RADIX
        value ^= value >> np.uint64(29)
    return mix64(value)


@kernel
def copy_contexts(begins: Int64s, sizes: Int64s, data: Bytes) -> Bytes:
    """Return contexts one after another. O(B), allocates the copy."""
    total = 0
    for size in sizes:
        total += size
    copy = np.empty(total, np.uint8)
    end = 0
    for row in range(len(sizes)):
        source, target = data[begins[row] : begins[row] + sizes[row]], copy[end : end + sizes[row]]
        for at in range(len(source)):
            target[at] = source[at]
        end += len(source)
    return copy


@kernel
def hash_windows(
    begins: Int64s, lasts: NDArray[np.uint16], data: Bytes, window: int, width: int, seeds: Uint64s
) -> tuple[Uint64s, Int64s, Int64s]:
    """Return each window of contexts: hash, context, place in it, (W,) each. O(B + W).

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
    places = np.empty(total, np.int64)
    leaving = power(window)
    num = 0
    for row in range(len(begins)):
        begin = begins[row]
        value = np.uint64(0)
        for at in range(begin, begin + window):
            value = extend(value, np.uint64(data[at]))
        for place in range(lasts[row] + 1):
            if place > 0:
                for at in range(begin + (place - 1) * width, begin + place * width):
                    value = roll(value, data[at + window], data[at], leaving)
            hashes[num], rows[num], places[num] = mix64(mix64(value) ^ seeds[row]), row, place
            num += 1
    return hashes, rows, places


# ---------------------------------------------------------------- comparing windows
#
# Equal windows have their gram at the same place, so contexts are laid over each other gram on
# gram: two of them share the windows that lie within the stretch of equal bytes around it.


FEW = 6
"""Contexts of a group that are compared pair by pair; larger groups are swept."""


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
                for at in range(num):
                    larger[at] = triples[at]
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
    for place in range(len(distinct)):
        row = begin + place
        if first[row] == row:
            distinct[num] = place
            num += 1
            continue
        for at in range(offsets[place], offsets[place + 1]):
            flags[at] = 1
        if not keep_first:
            original = first[row] - begin
            for at in range(offsets[original], offsets[original + 1]):
                flags[at] = 1
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
    first_at, second_at = contexts.ats[begin + first], contexts.ats[begin + second]
    first_gram = contexts.begins[begin + first] + first_at
    second_gram = contexts.begins[begin + second] + second_at
    room = min(contexts.sizes[begin + first] - first_at, contexts.sizes[begin + second] - second_at)
    right = 0
    while right < room and data[first_gram + right] == data[second_gram + right]:
        right += 1
    room = min(first_at, second_at)
    left = 0
    while left < room and data[first_gram - left - 1] == data[second_gram - left - 1]:
        left += 1
    # Windows begin `low` to `high` symbols after the gram.
    low = max(-(left // width), -(first_at // width), -(second_at // width))
    high = min(
        (right - window) // width,
        offsets[first + 1] - offsets[first] - 1 - first_at // width,
        offsets[second + 1] - offsets[second] - 1 - second_at // width,
    )
    for place in range(low, high + 1):
        flags[offsets[second] + second_at // width + place] = 1
        if not keep_first:
            flags[offsets[first] + first_at // width + place] = 1


@kernel
def _sweep(
    contexts: Contexts, data: Bytes, window: int, width: int, keep_first: bool,
    begin: int, distinct: Int64s, offsets: Int64s, flags: Bytes
) -> None:  # fmt: skip
    """Flag the windows that many contexts share: gram's place by place, by hash, then by bytes.

    Linear in the windows of the group: a window that follows one which equalled the same context
    has but one more symbol to compare. Allocates 48 to 64 bytes per context.
    """
    num, num_slots = len(distinct), 4
    while num_slots < 2 * num:
        num_slots *= 2
    table, stamps = np.empty(num_slots, np.int64), np.zeros(num_slots, np.int64)
    hashes = np.zeros(num, np.uint64)
    matched = np.full(num, -1, np.int64)
    leaving = power(window)
    max_ahead = 0
    for context in distinct:
        max_ahead = max(max_ahead, contexts.ats[begin + context] // width)
    for stamp in range(1, max_ahead + 2):
        ahead = max_ahead + 1 - stamp  # symbols from a window's beginning to its gram
        for index in range(num):
            row = begin + distinct[index]
            place = contexts.ats[row] // width - ahead
            flag = offsets[distinct[index]] + place
            if place < 0 or flag >= offsets[distinct[index] + 1]:
                continue
            start = contexts.begins[row] + place * width
            hashes[index] = _move(hashes[index], data, start, window, width, place == 0, leaving)
            slot = np.int64(mix64(hashes[index]) & np.uint64(num_slots - 1))
            is_met = False
            while stamps[slot] == stamp:
                other = table[slot]
                is_met = hashes[other] == hashes[index]
                if is_met:
                    twin = begin + distinct[other]
                    origin = contexts.begins[twin] + contexts.ats[twin] - ahead * width
                    equal = window - width if matched[index] == other and place > 0 else 0
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
                    at = contexts.ats[begin + earlier] // width
                    flags[offsets[earlier] + at - ahead] = 1
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
        for at in range(start, start + window):
            value = extend(value, np.uint64(data[at]))
        return value
    for at in range(start - width, start):
        value = roll(value, data[at + window], data[at], leaving)
    return value


@kernel
def _list_runs(begin: int, offsets: Int64s, flags: Bytes, triples: Int64s, num: int) -> int:
    """Put the runs of flags of each context after `num` numbers if they fit; return how many."""
    runs = 0
    for place in range(len(offsets) - 1):
        at = offsets[place]
        while at < offsets[place + 1]:
            if not flags[at]:
                at += 1
                continue
            start = at
            while at < offsets[place + 1] and flags[at]:
                at += 1
            if num + 3 * runs + 2 < len(triples):
                triples[num + 3 * runs] = begin + place
                triples[num + 3 * runs + 1] = start - offsets[place]
                triples[num + 3 * runs + 2] = at - start
            runs += 1
    return runs

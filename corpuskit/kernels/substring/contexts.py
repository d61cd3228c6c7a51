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
    least, most = values[0], values[0]
    for value in values:
        least, most = min(least, value), max(most, value)
    shift = np.uint64(0)
    while shift < np.uint64(63) and (most - least) >> shift >= np.uint64(max(num, 2)):
        shift += np.uint64(1)
    starts = np.zeros(np.int64((most - least) >> shift) + 2, np.int64)
    for value in values:
        starts[np.int64((value - least) >> shift) + 1] += 1
    for bucket in range(1, len(starts)):
        starts[bucket] += starts[bucket - 1]
    places = starts.copy()
    sorted_values = np.empty(num, np.uint64)
    for row in range(num):
        value = values[row]
        bucket = np.int64((value - least) >> shift)
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
    order, other = np.arange(num), np.empty(num, np.int64)
    if num == 0:
        return order
    least, most = values[0], values[0]
    for value in values:
        least, most = min(least, value), max(most, value)
    spread = np.uint64(most - least)
    shift = np.uint64(0)
    while shift < np.uint64(64) and spread >> shift:
        starts = np.zeros(2049, np.int64)
        for value in values:
            starts[np.int64((np.uint64(value - least) >> shift) & np.uint64(2047)) + 1] += 1
        for digit in range(1, 2049):
            starts[digit] += starts[digit - 1]
        for row in order:
            digit = np.int64((np.uint64(values[row] - least) >> shift) & np.uint64(2047))
            other[starts[digit]] = row
            starts[digit] += 1
        order, other = other, order
        shift += np.uint64(11)
    return order


@kernel
def _tidy(order: Int64s, fps: Uint64s, ranks: Bytes, keys: Int64s, starts: Uint32s) -> None:
    """Sort the rows of each fingerprint by (rank, key, start), in place; mostly they are."""
    for place in range(1, len(order)):
        row, at = order[place], place
        while at > 0 and fps[order[at - 1]] == fps[row]:
            other = order[at - 1]
            if ranks[other] != ranks[row]:
                if ranks[other] < ranks[row]:
                    break
            elif keys[other] != keys[row]:
                if keys[other] < keys[row]:
                    break
            elif starts[other] <= starts[row]:
                break
            order[at] = other
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
            for one in range(begin + 1, end):
                for other in range(begin, one):
                    if first[other] == other and _is_same(contexts, data, other, one):
                        first[one] = other
                        break
        begin = end
    return first


@kernel
def _is_same(contexts: Contexts, data: Bytes, one: int, other: int) -> bool:
    sizes, begins = contexts.sizes, contexts.begins
    return bool(
        sizes[one] == sizes[other]
        and contexts.ats[one] == contexts.ats[other]
        and same_bytes(data, begins[one], data, begins[other], sizes[one])
    )


@kernel
def _find_by_hash(contexts: Contexts, data: Bytes, begin: int, end: int, first: Int64s) -> None:
    num_slots = 2
    while num_slots < 2 * (end - begin):
        num_slots *= 2
    table = np.full(num_slots, -1, np.int64)
    hashes = np.empty(end - begin, np.uint64)
    for one in range(begin, end):
        hashed = _hash_bytes(data, contexts.begins[one], contexts.sizes[one])
        hashes[one - begin] = hashed
        slot = np.int64(hashed & np.uint64(num_slots - 1))
        while table[slot] >= 0:
            other = table[slot]
            if hashes[other - begin] == hashed and _is_same(contexts, data, other, one):
                break
            slot = (slot + 1) & (num_slots - 1)
        if table[slot] < 0:
            table[slot] = one
        first[one] = table[slot]


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
    for one in range(1, num):
        for other in range(one):
            _flag_pair(
                contexts, data, window, width, keep_first,
                begin, distinct[other], distinct[one], offsets, flags,
            )  # fmt: skip


@kernel
def _flag_pair(
    contexts: Contexts, data: Bytes, window: int, width: int, keep_first: bool,
    begin: int, one: int, other: int, offsets: Int64s, flags: Bytes
) -> None:  # fmt: skip
    """Flag the windows that two contexts share in `other`, which comes after `one`."""
    at_one, at_other = contexts.ats[begin + one], contexts.ats[begin + other]
    gram_one = contexts.begins[begin + one] + at_one
    gram_other = contexts.begins[begin + other] + at_other
    room = min(contexts.sizes[begin + one] - at_one, contexts.sizes[begin + other] - at_other)
    right = 0
    while right < room and data[gram_one + right] == data[gram_other + right]:
        right += 1
    room = min(at_one, at_other)
    left = 0
    while left < room and data[gram_one - left - 1] == data[gram_other - left - 1]:
        left += 1
    # Windows begin `low` to `high` symbols after the gram.
    low = max(-(left // width), -(at_one // width), -(at_other // width))
    high = min(
        (right - window) // width,
        offsets[one + 1] - offsets[one] - 1 - at_one // width,
        offsets[other + 1] - offsets[other] - 1 - at_other // width,
    )
    for place in range(low, high + 1):
        flags[offsets[other] + at_other // width + place] = 1
        if not keep_first:
            flags[offsets[one] + at_one // width + place] = 1


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
    most = 0
    for one in distinct:
        most = max(most, contexts.ats[begin + one] // width)
    for stamp in range(1, most + 2):
        ahead = most + 1 - stamp  # symbols from a window's beginning to its gram
        for one in range(num):
            row = begin + distinct[one]
            place = contexts.ats[row] // width - ahead
            flag = offsets[distinct[one]] + place
            if place < 0 or flag >= offsets[distinct[one] + 1]:
                continue
            start = contexts.begins[row] + place * width
            hashes[one] = _move(hashes[one], data, start, window, width, place == 0, leaving)
            slot = np.int64(mix64(hashes[one]) & np.uint64(num_slots - 1))
            is_met = False
            while stamps[slot] == stamp:
                other = table[slot]
                is_met = hashes[other] == hashes[one]
                if is_met:
                    before = begin + distinct[other]
                    there = contexts.begins[before] + contexts.ats[before] - ahead * width
                    known = window - width if matched[one] == other and place > 0 else 0
                    is_met = same_bytes(data, there + known, data, start + known, window - known)
                if is_met:
                    break
                slot = (slot + 1) & (num_slots - 1)
            matched[one] = -1
            if is_met:
                matched[one] = table[slot]
                flags[flag] = 1
                if not keep_first:
                    earlier = distinct[table[slot]]
                    at = contexts.ats[begin + earlier] // width
                    flags[offsets[earlier] + at - ahead] = 1
            else:
                table[slot], stamps[slot] = one, stamp


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
def _list_runs(begin: int, offsets: Int64s, flags: Bytes, found: Int64s, num: int) -> int:
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
            if num + 3 * runs + 2 < len(found):
                found[num + 3 * runs] = begin + place
                found[num + 3 * runs + 1] = start - offsets[place]
                found[num + 3 * runs + 2] = at - start
            runs += 1
    return runs

"""Windows that contexts of a fingerprint have in common, each equality decided on bytes.

Equal windows have their gram at the same place, so contexts are laid over each other gram on gram:
two of them share the windows that lie within the stretch of equal bytes around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.hashing import mix64
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.substring.contexts import Contexts, same_bytes
from corpuskit.kernels.substring.winnow import extend, power, roll

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

FEW = 6
"""Contexts of a group that are compared pair by pair; larger groups are swept."""


def flag_windows(
    contexts: Contexts, first: Offsets, data: Bytes, window: int, width: int, keep_first: bool
) -> tuple[Offsets, Offsets, Offsets]:
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
    found = _flag_groups(contexts, first, data, window, width, keep_first)
    return found[::3], found[1::3], found[2::3]


@kernel
def _flag_groups(
    contexts: Contexts, first: Offsets, data: Bytes, window: int, width: int, keep_first: bool
) -> Offsets:
    """Return runs as triples, (3 S,)."""
    num_rows, num = len(first), 0
    found = np.empty(3 * num_rows + 48, np.int64)
    begin = 0
    while begin < num_rows:
        end = begin + 1
        while end < num_rows and contexts.fps[end] == contexts.fps[begin]:
            end += 1
        if end - begin > 1:
            offsets = _window_offsets(contexts, window, width, begin, end)
            flags = np.zeros(offsets[-1], np.uint8)
            _flag_group(contexts, first, data, window, width, keep_first, begin, offsets, flags)
            runs = _list_runs(begin, offsets, flags, found, len(found))
            if num + 3 * runs > len(found):
                larger = np.empty(2 * num + 3 * runs, np.int64)
                for at in range(num):
                    larger[at] = found[at]
                found = larger
            num += 3 * _list_runs(begin, offsets, flags, found, num)
        begin = end
    return found[:num].copy()


@kernel
def _window_offsets(contexts: Contexts, window: int, width: int, begin: int, end: int) -> Offsets:
    """Return where the flags of each context of a group are, (G + 1,)."""
    offsets = np.zeros(end - begin + 1, np.int64)
    for row in range(begin, end):
        windows = (contexts.sizes[row] - window) // width + 1
        offsets[row - begin + 1] = offsets[row - begin] + windows
    return offsets


@kernel
def _flag_group(
    contexts: Contexts, first: Offsets, data: Bytes, window: int, width: int, keep_first: bool,
    begin: int, offsets: Offsets, flags: Bytes,
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
    begin: int, one: int, other: int, offsets: Offsets, flags: Bytes,
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
    # Windows begin `low` to `high` symbols behind the gram.
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
    begin: int, distinct: Offsets, offsets: Offsets, flags: Bytes,
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
    leaving: np.uint64,
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
def _list_runs(begin: int, offsets: Offsets, flags: Bytes, found: Offsets, num: int) -> int:
    """Put the runs of flags of each context behind `num` numbers if they fit; return how many."""
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

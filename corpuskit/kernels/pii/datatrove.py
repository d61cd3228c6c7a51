"""E-mail and IPv4 addresses exactly as the expressions of datatrove's PIIFormatter match them.

First all e-mail addresses, then addresses in what lies between. Why one look at each `@` and each
first dot gives what backtracking gives: no expression can run over an `@` but where it asks for
one, so each `@` has one stretch that may stand before it and one domain; the leftmost place in that
stretch where a word begins or ends wins. datatrove's own run over `a-a-a-a` takes time quadratic in
its length, this does not.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.jit import kernel
from corpuskit.kernels.pii.bytes import DIGIT, LABEL, digits_at, is_in
from corpuskit.kernels.pii.scan import Found

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_LAST_LETTER = 0x40000  # beyond are marks and private characters only
_AT, _DOT, _DASH, _COLON, _OPEN, _CLOSE = b"@.-:[]"


def find_datatrove(
    offsets: Offsets, data: Bytes, *, has_email: bool = True, has_ipv4: bool = True
) -> Found:
    """Return what the two expressions match, addresses that are not valid ones included; O(B)."""
    room = int(offsets[-1] - offsets[0]) // 256 + 16
    while True:
        spans, kinds = np.empty((3, room), np.int64), np.empty(room, np.uint8)
        num = _find(offsets, data, _word_characters(), has_email, has_ipv4, spans, kinds)
        if num <= room:
            return Found(spans[0, :num], spans[1, :num], spans[2, :num], kinds[:num])
        room = num


@functools.cache
def _word_characters() -> Flags:
    r"""Return which code points `\w` matches in this Python's `re`."""
    found = np.fromiter((chr(code).isalnum() for code in range(_LAST_LETTER)), np.bool_)
    found[ord("_")] = True
    return found


def _local_characters() -> Flags:
    table = np.zeros(256, np.bool_)
    letters = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    table[list(letters + b"!#$%&'*+/=?^_`{|}~-")] = True
    return table


_LOCAL = _local_characters()


@kernel
def _is_word_before(data: Bytes, begin: int, at: int, words: Flags) -> bool:
    """Return whether a word character ends before `at`."""
    if at == begin:
        return False
    at -= 1
    byte = np.int64(data[at])
    if byte < 128:
        return bool(words[byte])
    code, shift = 0, 0
    while byte < 192 and at > begin:
        code |= (byte & 63) << shift
        shift += 6
        at -= 1
        byte = np.int64(data[at])
    code |= (byte & (31 if byte < 224 else 15 if byte < 240 else 7)) << shift
    return bool(code < len(words) and words[code])


@kernel
def _email_begin(data: Bytes, begin: int, free: int, at: int, words: Flags) -> int:
    """Return the leftmost place from which the `@` at `at` is reached, -1 if there is none."""
    found, place = -1, at
    while place > free:
        byte = data[place - 1]
        if _LOCAL[byte]:
            place -= 1
            if bool(words[byte]) != _is_word_before(data, begin, place, words):
                found = place
        elif byte == _DOT and place < at and data[place] != _DOT:
            place -= 1
        else:
            break
    return found


@kernel
def _email_end(data: Bytes, at: int, end: int) -> int:
    """Return the end of the domain or literal at `at`, 0 if there is none."""
    if at < end and data[at] == _OPEN:
        return _literal_end(data, at + 1, end)
    stop, labels = 0, 0
    while is_in(data, at, end, LABEL) and data[at] != _DASH:
        after = at
        while is_in(data, after, end, LABEL):
            after += 1
        last = after
        while data[last - 1] == _DASH:
            last -= 1
        stop, labels = last, labels + 1
        if last < after or not (after < end and data[after] == _DOT):
            break
        at = after + 1
    return stop if labels > 1 else 0


@kernel
def _literal_end(data: Bytes, at: int, end: int) -> int:
    """Return the end of `1.2.3.4]` or `1.2.3.tag:]` at `at`, 0 if there is none."""
    for _ in range(3):
        size = digits_at(data, at, end, 4)
        if not _is_octet(data, at, size) or not (at + size < end and data[at + size] == _DOT):
            return 0
        at += size + 1
    after = at
    while is_in(data, after, end, LABEL):
        after += 1
    if after == at or after >= end:
        return 0
    if data[after] == _COLON and data[after - 1] != _DASH:
        return after + 2 if after + 1 < end and data[after + 1] == _CLOSE else 0
    size = digits_at(data, at, end, 4)
    is_number = size == after - at and _is_octet(data, at, size)
    return after + 1 if is_number and data[after] == _CLOSE else 0


@kernel
def _is_octet(data: Bytes, at: int, size: int) -> bool:
    """Return whether `size` digits at `at` are a number up to 255, leading zeros allowed."""
    if size == 3:
        return bool((np.int64(data[at]) * 10 + data[at + 1]) * 10 + data[at + 2] <= 5328 + 255)
    return size == 1 or size == 2


@kernel
def _last_octet(data: Bytes, at: int, end: int) -> int:
    """Return how many digits at `at` the last octet takes: the first alternative that matches."""
    size = digits_at(data, at, end, 3)
    if size == 3 and not _is_octet(data, at, 3):
        return 2
    return size


@kernel
def _next_address(data: Bytes, free: int, end: int) -> tuple[int, int]:
    """Return the first dotted number between `free` and `end`, (0, 0) if there is none."""
    for dot in range(free + 1, end):
        if data[dot] != _DOT or not is_in(data, dot + 1, end, DIGIT):
            continue
        at = dot + 1
        for _ in range(2):
            size = digits_at(data, at, end, 4)
            if not _is_octet(data, at, size) or not (at + size < end and data[at + size] == _DOT):
                at = 0
                break
            at += size + 1
        last = _last_octet(data, at, end) if at else 0
        if last == 0:
            continue
        for size in range(3, 0, -1):
            start = dot - size
            is_run = start >= free and digits_at(data, start, dot, 3) == size
            if is_run and _is_octet(data, start, size):
                return start, at + last
    return 0, 0


@kernel
def _next_email(data: Bytes, begin: int, free: int, end: int, words: Flags) -> tuple[int, int]:
    """Return the first e-mail address from `free` on, (end, end) if there is none."""
    for at in range(free, end):
        if data[at] == _AT:
            stop = _email_end(data, at + 1, end)
            if stop:
                start = _email_begin(data, begin, free, at, words)
                if start >= 0:
                    return start, stop
    return end, end


@kernel
def _find(
    offsets: Offsets,
    data: Bytes,
    words: Flags,
    has_email: bool,
    has_ipv4: bool,
    spans: Offsets,
    kinds: Bytes,
) -> int:
    """Fill `spans` (3, room) and `kinds` (room,), return how many there are, also beyond the room.

    Kind 0 is an e-mail address, 1 an IPv4 address.
    """
    num = 0
    for row in range(len(offsets) - 1):
        begin, end = offsets[row], offsets[row + 1]
        free = begin
        while free < end:
            mail, after = _next_email(data, begin, free, end, words) if has_email else (end, end)
            while has_ipv4:
                start, stop = _next_address(data, free, mail)
                if stop == 0:
                    break
                if num < len(kinds):
                    spans[0, num], spans[1, num], spans[2, num] = row, start - begin, stop - begin
                    kinds[num] = 1
                num, free = num + 1, stop
            if mail < end:
                if num < len(kinds):
                    spans[0, num], spans[1, num], spans[2, num] = row, mail - begin, after - begin
                    kinds[num] = 0
                num += 1
            free = after
    return num

"""Finds personal data that has a form: one scan, which looks around at a few bytes only.

An `@` may be in an e-mail address, the first `.` in an IPv4 address or a web token, the first `:`
in an IPv6 address; a run of digits may begin a number, and `_`, `-` or `I` is in each key.
What is found is said again with `re` in stages/rewriters/_pii_reference.py; the tests hold the two
together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from corpuskit.kernels.jit import kernel
from corpuskit.kernels.pii.addresses import find_email, find_ipv4, find_ipv6
from corpuskit.kernels.pii.bytes import CLASS, DIGIT
from corpuskit.kernels.pii.numbers import CARD, IBAN, PHONE, SSN, find_number
from corpuskit.kernels.pii.secrets import find_secret

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]

KINDS = ("email", "ipv4", "ipv6", "phone", "credit_card", "iban", "us_ssn", "secret")

_NUMBERS = {"phone": PHONE, "credit_card": CARD, "iban": IBAN, "us_ssn": SSN}
_EMAIL, _IPV4, _IPV6, _PHONE, _CARD, _IBAN, _SSN, _SECRET = range(8)


class Found(NamedTuple):
    """Spans sorted by row, then start: (n,) each.

    Attributes:
        rows, starts, ends: int64: document, bytes from its beginning.
        kinds: uint8 into KINDS.
    """

    rows: Offsets
    starts: Offsets
    ends: Offsets
    kinds: Bytes


def find_pii(
    offsets: Offsets,
    data: Bytes,
    kinds: Collection[str] = KINDS,
    *,
    only_public: bool = True,
    min_ipv4_part: int = 64,
) -> Found:
    """Find personal data of some kinds; O(B).

    Args:
        offsets, data: the texts.
        kinds: of KINDS.
        only_public: leave IP addresses that are not globally reachable alone.
        min_ipv4_part: leave dotted numbers alone whose parts are all smaller.
    """
    anchors = np.zeros(256, np.uint8)
    marks = {"email": "@", "ipv4": ".", "ipv6": ":", "secret": "._-I"}
    for kind in kinds:
        anchors[list(marks.get(kind, "0123456789").encode())] = 1
    numbers = sum(_NUMBERS[kind] for kind in _NUMBERS if kind in kinds)
    has_ipv4, has_secret = "ipv4" in kinds, "secret" in kinds
    room = int(offsets[-1] - offsets[0]) // 256 + 16
    while True:
        spans, codes = np.empty((3, room), np.int64), np.empty(room, np.uint8)
        num = _find(
            offsets, data, anchors, numbers, has_ipv4, has_secret, only_public, min_ipv4_part,
            spans, codes,
        )  # fmt: skip
        if num <= room:
            return Found(spans[0, :num], spans[1, :num], spans[2, :num], codes[:num])
        room = num


@kernel
def _next(data: Bytes, at: int, end: int, anchors: Bytes) -> int:
    """Return where the next anchor is, `end` if there is none."""
    while at < end and anchors[data[at]] == 0:
        at += 1
    return at


@kernel
def _look(
    data: Bytes,
    begin: int,
    free: int,
    at: int,
    end: int,
    numbers: int,
    has_ipv4: bool,
    has_secret: bool,
    only_public: bool,
    min_part: int,
    groups: NDArray[np.uint64],
) -> tuple[int, int, int]:
    """Return (start, end, kind) of what is around the anchor at `at`; end 0 if nothing is."""
    byte = data[at]
    if CLASS[byte] & DIGIT:
        start, stop, bit = find_number(data, begin, free, at, end, numbers)
        kind = _PHONE if bit == PHONE else _CARD if bit == CARD else _IBAN if bit == IBAN else _SSN
        return start, stop, kind
    if byte == 64:
        start, stop = find_email(data, free, at, end)
        return start, stop, _EMAIL
    if byte == 58:
        start, stop = find_ipv6(data, begin, free, at, end, only_public, groups)
        return start, stop, _IPV6
    if byte == 46 and has_ipv4:
        start, stop = find_ipv4(data, begin, free, at, end, only_public, min_part)
        if stop:
            return start, stop, _IPV4
    if has_secret:
        start, stop = find_secret(data, begin, free, at, end)
        return start, stop, _SECRET
    return 0, 0, 0


@kernel
def _find(
    offsets: Offsets,
    data: Bytes,
    anchors: Bytes,
    numbers: int,
    has_ipv4: bool,
    has_secret: bool,
    only_public: bool,
    min_part: int,
    spans: Offsets,
    kinds: Bytes,
) -> int:
    """Scan texts left to right; what one span took, the next cannot use.

    Fills `spans` (3, room) and `kinds` (room,), returns how many there are, also beyond the room.
    """
    groups = np.zeros(8, np.uint64)
    num = 0
    for row in range(len(offsets) - 1):
        begin, end = offsets[row], offsets[row + 1]
        free = begin
        at = _next(data, begin, end, anchors)
        while at < end:
            start, stop, kind = _look(
                data, begin, free, at, end, numbers, has_ipv4, has_secret, only_public, min_part,
                groups,
            )  # fmt: skip
            if stop == 0:
                is_digit = CLASS[data[at]] & DIGIT
                at += 1
                while is_digit and at < end and CLASS[data[at]] & DIGIT:
                    at += 1  # one look at each run of digits
                at = _next(data, at, end, anchors)
                continue
            if num < len(kinds):
                spans[0, num], spans[1, num], spans[2, num] = row, start - begin, stop - begin
                kinds[num] = kind
            num += 1
            free = stop
            at = _next(data, stop, end, anchors)
    return num

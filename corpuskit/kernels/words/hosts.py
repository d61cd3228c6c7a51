"""spaCy's pattern of URLs: scheme, user, host name or address, port, path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corpuskit.kernels.jit import kernel
from corpuskit.kernels.words.specials import DIGIT, HOST, LOWER, SCHEME

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int32]


@kernel
def is_url(codes: Ints, bits: Ints, begin: int, end: int) -> bool:
    """Return whether spaCy's URL pattern matches: scheme, user, host or address, port, path."""
    dots = 0
    for at in range(begin, end):
        dots += codes[at] == 46
    if dots == 0:
        return False
    at = begin
    while at < end and bits[at] & SCHEME:
        at += 1
    host = -1
    if (
        at - begin >= 2
        and at + 3 < end
        and codes[at] == 58
        and codes[at + 1] == 47
        and codes[at + 2] == 47
    ):
        host = at + 3
    for at in range(begin, end):
        is_behind_user = at > begin + 1 and codes[at - 1] == 64
        if (at in (begin, host) or is_behind_user) and _is_host(codes, bits, at, end):
            return True
    return False


@kernel
def _is_host(codes: Ints, bits: Ints, begin: int, end: int) -> bool:
    """Return whether a host name or an address, a port and a path fill `begin:end`."""
    at = _host_end(codes, bits, begin, end)
    if at < 0:
        at = _address_end(codes, bits, begin, end)
    if at < 0:
        return False
    if at < end and codes[at] == 58:
        port = at + 1
        while port < end and port - at <= 6 and bits[port] & DIGIT:
            port += 1
        if port - at < 3 or port - at > 6:
            return False
        at = port
    return bool(at == end or codes[at] == 47 or codes[at] == 63 or codes[at] == 35)


@kernel
def _host_end(codes: Ints, bits: Ints, begin: int, end: int) -> int:
    """Return where a host name ends, -1 if there is none: labels, and small letters at last."""
    label = at = begin
    labels = 0
    letters = True
    while True:
        if at < end and (bits[at] & HOST or codes[at] == 45 or codes[at] == 95):
            letters = letters and bool(bits[at] & LOWER)
            at += 1
            continue
        if at < end and codes[at] == 46:
            if at == label or at - label > 64 or not bits[label] & HOST or not bits[at - 1] & HOST:
                return -1
            labels += 1
            letters = True
            at += 1
            label = at
            continue
        if labels > 0 and letters and 2 <= at - label <= 63:
            return at
        return -1


@kernel
def _address_end(codes: Ints, bits: Ints, begin: int, end: int) -> int:
    """Return where an IPv4 address ends, -1 if there is none or it is a private one."""
    at = begin
    first = second = 0
    for group in range(4):
        if group > 0:
            if at >= end or codes[at] != 46:
                return -1
            at += 1
        start, value = at, 0
        while at < end and at - start < 3 and bits[at] & DIGIT:
            value = value * 10 + (codes[at] - 48)
            at += 1
        length = at - start
        if length == 0 or (at < end and bits[at] & DIGIT):
            return -1
        if length == 3 and value < 100:
            return -1
        if (group == 0 or group == 3) and codes[start] == 48:
            return -1
        if value > (223 if group == 0 else 254 if group == 3 else 255):
            return -1
        if group == 0:
            first = value
        elif group == 1:
            second = value
    if first == 10 or first == 127:
        return -1
    if (first == 169 and second == 254) or (first == 192 and second == 168):
        return -1
    if first == 172 and 16 <= second <= 31:
        return -1
    return at

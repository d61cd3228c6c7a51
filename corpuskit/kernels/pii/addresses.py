"""E-mail and IP addresses around an `@`, the first `.` or the first `:`, in bytes.

tests/oracles/pii.py defines the same addresses with `re` and `ipaddress`; tests compare the two.
"""

from __future__ import annotations

import ipaddress

import numpy as np

from corpuskit.kernels.arrays import Bytes, Uint64s
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.pii.bytes import (
    CLASS,
    DIGIT,
    HEX,
    LABEL,
    LETTER,
    LOCAL,
    WORD,
    is_in,
    packed,
    word_before,
)

IMAGES = ("png", "jpg", "jpeg", "gif", "svg", "webp")
"""Not top-level domains: `icon@2x.png` is a file."""

LONGEST_TLD = 24

VERSION_CUES = "version ver v release build revision"
"""Words before a dotted number that make it a version; the first one also ends such a word
(`FileVersion`)."""

VERSION_GAP = b" \t:=\"'(>"
"""At most twelve of these bytes may be between the word and the number."""

# Addresses that ipaddress of CPython (at 0189152dc50e) does not call global; `!` marks exceptions
# from these. Copied, since ipaddress differs between the Python versions that we support.
RESERVED_V4 = """!192.0.0.9/32 !192.0.0.10/32 0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8
169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.168.0.0/16 198.18.0.0/15
198.51.100.0/24 203.0.113.0/24 240.0.0.0/4"""
RESERVED_V6 = """!2001:1::1/128 !2001:1::2/128 !2001:3::/32 !2001:4:112::/48 !2001:20::/28
!2001:30::/28 ::/127 ::ffff:0:0/96 64:ff9b:1::/48 100::/64 2001::/23 2001:db8::/32 2002::/16
3fff::/20 fc00::/7 fe80::/10"""


def _networks(text: str, bits: int) -> Uint64s:
    """Return (n, 5) uint64: address and mask in two halves each, and whether it is reachable."""
    rows, half = [], (1 << 64) - 1
    for entry in text.split():
        net = ipaddress.ip_network(entry.lstrip("!"))
        value, mask = int(net.network_address), int(net.netmask)
        assert net.max_prefixlen == bits, "a network of the other family"
        rows.append((value >> 64, value & half, mask >> 64, mask & half, entry[0] == "!"))
    return np.array(rows, np.uint64)


_VERSION_CUES, _GIT = packed(VERSION_CUES), packed("git")[0]
_IS_GAP, _IS_INDENT = np.zeros(256, np.bool_), np.zeros(256, np.bool_)
_IS_GAP[list(VERSION_GAP)], _IS_INDENT[list(b" \t#*")] = True, True
_NETS_V4, _NETS_V6 = _networks(RESERVED_V4, 32), _networks(RESERVED_V6, 128)
_SUFFIXES = np.array([int.from_bytes(name.encode(), "big") for name in IMAGES], np.uint64)


@kernel
def _is_public(high: np.uint64, low: np.uint64, nets: Uint64s) -> bool:
    """Return whether an address is globally reachable; the first network that holds it decides."""
    for row in range(len(nets)):
        if high & nets[row, 2] == nets[row, 0] and low & nets[row, 3] == nets[row, 1]:
            return bool(nets[row, 4] == 1)
    return True


@kernel
def find_email(data: Bytes, free: int, at_sign: int, end: int) -> tuple[int, int]:
    """Return the address around the `@` at `at_sign`, from `free` on; (0, 0) if there is none."""
    start = at_sign
    while start > free and CLASS[data[start - 1]] & LOCAL:
        start -= 1
    while start < at_sign and not CLASS[data[start]] & (LETTER | DIGIT):
        start += 1
    if start == at_sign:
        return 0, 0
    stop, labels, is_image = 0, 0, False
    label = at_sign + 1
    while True:
        label_end, letters, name = label, 0, np.uint64(0)
        while is_in(data, label_end, end, LABEL):
            if CLASS[data[label_end]] & LETTER:
                letters += 1
            name = name << np.uint64(8) | np.uint64(data[label_end] | 0x20)
            label_end += 1
        last = label_end
        while last > label and data[last - 1] == 45:
            last -= 1
            name >>= np.uint64(8)
        if last == label or data[label] == 45:
            break
        labels += 1
        if labels > 1 and 2 <= last - label <= LONGEST_TLD and letters == last - label:
            stop, is_image = last, False
            for suffix in _SUFFIXES:
                is_image |= name == suffix
        if last < label_end or not (label_end < end and data[label_end] == 46):
            break
        label = label_end + 1
    if stop == 0 or is_image:
        return 0, 0
    if stop < end and data[stop] == 40 and CLASS[data[stop - 4]] & LETTER:
        return 0, 0  # query@key.transpose(1, 2), unlike jo@x.org(Jo)
    if at_sign - start == 3 and word_before(data, start, at_sign)[1] == _GIT:
        return 0, 0  # git@github.com:owner/name.git
    return start, stop


@kernel
def _dotted(data: Bytes, start: int, end: int) -> tuple[int, int, int]:
    """Return (end, value, largest part) of four dotted numbers 0..255 at `start`; end 0 if none.

    As ipaddress: no leading zeros. The number must end there: no letter, digit, `_`, `@` and no
    fifth part may follow.
    """
    pos, value, largest = start, 0, 0
    for part in range(4):
        first, number = pos, 0
        while is_in(data, pos, end, DIGIT) and pos - first < 3:
            number = number * 10 + np.int64(data[pos]) - 48
            pos += 1
        if pos == first or number > 255 or (pos - first > 1 and data[first] == 48):
            return 0, 0, 0
        value, largest = value << 8 | number, max(largest, number)
        if part < 3:
            if not (pos < end and data[pos] == 46):
                return 0, 0, 0
            pos += 1
    if is_in(data, pos, end, WORD) or (pos < end and data[pos] == 64):
        return 0, 0, 0
    if pos < end and data[pos] == 46 and is_in(data, pos + 1, end, DIGIT):
        return 0, 0, 0
    return pos, value, largest


@kernel
def find_ipv4(
    data: Bytes, begin: int, free: int, dot: int, end: int, only_public: bool, min_part: int
) -> tuple[int, int]:
    """Return the address whose first dot is at `dot`, (0, 0) if there is none."""
    start = dot
    while start > free and dot - start < 4 and CLASS[data[start - 1]] & DIGIT:
        start -= 1
    if start == dot or not is_in(data, dot + 1, end, DIGIT):
        return 0, 0
    if start > begin:
        before = data[start - 1]
        if CLASS[before] & WORD:
            return 0, 0
        if before == 46 and start - 2 >= begin and CLASS[data[start - 2]] & WORD:
            return 0, 0
    stop, value, largest = _dotted(data, start, end)
    if stop == 0 or largest < min_part:
        return 0, 0
    if only_public and (
        value >> 28 == 14 or not _is_public(np.uint64(0), np.uint64(value), _NETS_V4)
    ):
        return 0, 0  # 14: multicast groups, not the address of a person
    is_small = value >> 24 < min_part and value >> 16 & 255 < min_part
    if is_small and value >> 8 & 255 < min_part and _is_heading(data, begin, start, stop, end):
        return 0, 0
    return (0, 0) if _is_version(data, begin, start) else (start, stop)


@kernel
def _is_heading(data: Bytes, begin: int, start: int, stop: int, end: int) -> bool:
    """Return whether a number begins a line, and a dot and a space follow: 6.1.8.64. TV."""
    if not (stop + 1 < end and data[stop] == 46 and data[stop + 1] == 32):
        return False
    fewest = max(begin, start - 16)
    while start > fewest and _IS_INDENT[data[start - 1]]:
        start -= 1
    return start == begin or data[start - 1] == 10


@kernel
def _is_version(data: Bytes, begin: int, pos: int) -> bool:
    """Return whether one of VERSION_CUES precedes `pos`."""
    gap = 0
    while gap < 12 and pos > begin and _IS_GAP[data[pos - 1]]:
        pos, gap = pos - 1, gap + 1
    pos, word = word_before(data, begin, pos)
    if gap == 0 or word >> np.uint64(8) == _VERSION_CUES[0] >> np.uint64(8):
        return gap > 0
    if pos > begin and CLASS[data[pos - 1]] & WORD:
        return False
    is_cue = False
    for cue in _VERSION_CUES:
        is_cue |= word == cue
    return is_cue


@kernel
def _read_ipv6(data: Bytes, start: int, end: int, groups: Uint64s) -> tuple[int, int, int]:
    """Read groups of an address; return (end, groups read, group that follows `::`, or -1).

    End 0: not an address, or not likely one. With `::` it needs a decimal digit, and three groups
    or four digits in the first; groups that all have two digits are bytes.
    """
    pos, count, gap, lead = start, 0, -1, 0
    pairs, digits = True, False
    if data[pos] == 58:
        if not (pos + 1 < end and data[pos + 1] == 58):
            return 0, 0, 0
        gap, pos = 0, pos + 2
    while count < 8 and is_in(data, pos, end, HEX):
        first, value = pos, np.uint64(0)
        while is_in(data, pos, end, HEX) and pos - first < 5:
            digit = np.uint64(data[pos] | 0x20)
            is_decimal = data[pos] <= 57
            value = value << np.uint64(4) | (digit - np.uint64(48 if is_decimal else 87))
            digits |= is_decimal
            pos += 1
        if pos - first > 4:
            return 0, 0, 0
        if count <= 6 and pos < end and data[pos] == 46 and is_in(data, pos + 1, end, DIGIT):
            pos, number, _ = _dotted(data, first, end)
            if pos == 0:
                return 0, 0, 0
            groups[count] = np.uint64(number >> 16)
            groups[count + 1] = np.uint64(number & 0xFFFF)
            pairs, count = False, count + 2
            break
        pairs &= pos - first == 2
        lead = pos - first if first == start else lead
        groups[count] = value
        count += 1
        if pos + 1 < end and data[pos] == 58 and data[pos + 1] == 58:
            if gap >= 0:
                return 0, 0, 0
            gap, pos = count, pos + 2
        elif pos < end and data[pos] == 58 and is_in(data, pos + 1, end, HEX):
            pos += 1
        else:
            break
    if pairs or not digits or (count != 8 if gap < 0 else count > 7):
        return 0, 0, 0
    if count < 3 and lead < 4:
        return 0, 0, 0
    return pos, count, gap


@kernel
def find_ipv6(
    data: Bytes, begin: int, free: int, colon: int, end: int, only_public: bool, groups: Uint64s
) -> tuple[int, int]:
    """Return the address whose first colon is at `colon`, (0, 0) if there is none."""
    start = colon
    while start > free and colon - start < 5 and CLASS[data[start - 1]] & HEX:
        start -= 1
    if start > begin:
        before = data[start - 1]
        if before == 58 or before == 46 or CLASS[before] & WORD:
            return 0, 0
    stop, count, gap = _read_ipv6(data, start, end, groups)
    if stop == 0 or is_in(data, stop, end, WORD):
        return 0, 0
    if stop < end and data[stop] == 58:
        if data[stop - 1] == 58 or (stop + 1 < end and data[stop + 1] == 58):
            return 0, 0
        if is_in(data, stop + 1, end, HEX):
            return 0, 0
    if stop < end and data[stop] == 46 and is_in(data, stop + 1, end, DIGIT):
        return 0, 0
    if only_public:
        high, low = np.uint64(0), np.uint64(0)
        for group in range(8):
            value = np.uint64(0)
            if gap < 0 or group < gap:
                value = groups[group]
            elif group >= 8 - (count - gap):
                value = groups[group - 8 + count]
            high = high << np.uint64(16) | low >> np.uint64(48)
            low = low << np.uint64(16) | value
        if high == 0 and low >> np.uint64(32) == 0xFFFF:
            if not _is_public(high, low & np.uint64(0xFFFFFFFF), _NETS_V4):
                return 0, 0
        elif not _is_public(high, low, _NETS_V6) or not _is_assigned(high, count, gap, groups):
            return 0, 0
    return start, stop


@kernel
def _is_assigned(high: np.uint64, count: int, gap: int, groups: Uint64s) -> bool:
    """Return whether the address may be assigned to somebody.

    IANA assigns only 2000::/3 and 64:ff9b::/96. Others are multicast groups (ff02::1), identifiers
    and examples: they count if written in full with no group below 0x100.
    """
    if high >> np.uint64(61) == 1 or high == np.uint64(0x64FF9B) << np.uint64(32):
        return True
    is_full = gap < 0 and count == 8
    for group in range(count):
        is_full &= groups[group] >= 0x100
    return is_full

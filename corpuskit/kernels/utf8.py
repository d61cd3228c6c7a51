"""UTF-8: code points, whitespace and line ends as Python has them, classes of characters.

All expect valid UTF-8, which readers guarantee: the bytes after a lead byte are read unchecked.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable

import numpy as np

from corpuskit.kernels.arrays import Bools, Bytes, Int64s, Uint32s, frozen
from corpuskit.kernels.jit import inline, kernel


@kernel
def char_width(lead: int) -> int:
    """Return the bytes of the character that begins with `lead`."""
    if lead < 0x80:
        return 1
    if lead < 0xE0:
        return 2
    return 3 if lead < 0xF0 else 4


@kernel
def code_point(data: Bytes, pos: int) -> np.int64:
    """Return the code point of the character that begins at `pos`."""
    lead = np.int64(data[pos])
    if lead < 0x80:
        return lead
    second = np.int64(data[pos + 1]) & 0x3F
    if lead < 0xE0:
        return (lead & 0x1F) << 6 | second
    third = np.int64(data[pos + 2]) & 0x3F
    if lead < 0xF0:
        return (lead & 0x0F) << 12 | second << 6 | third
    return (lead & 0x07) << 18 | second << 12 | third << 6 | (np.int64(data[pos + 3]) & 0x3F)


@kernel
def write_char(code: int, out: Bytes, pos: int) -> int:
    """Write a code point as UTF-8; return where it ends."""
    if code < 0x80:
        out[pos] = code
        return pos + 1
    if code < 0x800:
        out[pos] = 0xC0 | code >> 6
        out[pos + 1] = 0x80 | code & 0x3F
        return pos + 2
    if code < 0x10000:
        out[pos] = 0xE0 | code >> 12
        out[pos + 1] = 0x80 | code >> 6 & 0x3F
        out[pos + 2] = 0x80 | code & 0x3F
        return pos + 3
    out[pos] = 0xF0 | code >> 18
    out[pos + 1] = 0x80 | code >> 12 & 0x3F
    out[pos + 2] = 0x80 | code >> 6 & 0x3F
    out[pos + 3] = 0x80 | code & 0x3F
    return pos + 4


@inline
def lower64(group: np.uint64) -> np.uint64:
    """Return 8 ASCII characters in lower case: a capital is at least A and not after Z."""
    from_a = group + np.uint64(0x3F3F3F3F3F3F3F3F)
    after_z = group + np.uint64(0x2525252525252525)
    return group | ((from_a ^ after_z) & np.uint64(0x8080808080808080)) >> np.uint64(2)


@kernel
def wide_space_width(data: Bytes, pos: int) -> int:
    """Return the bytes of the non-ASCII whitespace character at `pos`, 0 if it is none.

    As str.isspace: U+0085 U+00A0 U+1680 U+2000..200A U+2028 U+2029 U+202F U+205F U+3000.
    """
    lead = data[pos]
    if lead == 0xC2:
        return 2 if data[pos + 1] == 0x85 or data[pos + 1] == 0xA0 else 0
    if lead < 0xE1 or lead > 0xE3:
        return 0
    second, third = data[pos + 1], data[pos + 2]
    if lead == 0xE1:
        return 3 if second == 0x9A and third == 0x80 else 0
    if lead == 0xE3:
        return 3 if second == 0x80 and third == 0x80 else 0
    if second == 0x80:
        return 3 if third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF else 0
    return 3 if second == 0x81 and third == 0x9F else 0


@kernel
def space_width(data: Bytes, pos: int) -> int:
    """Return the bytes of the whitespace character at `pos`, 0 if it is none, as str.isspace."""
    lead = data[pos]
    if lead < 0x80:
        return 1 if lead == 32 or 9 <= lead <= 13 or 28 <= lead <= 31 else 0
    return wide_space_width(data, pos)


@kernel
def skip_space(data: Bytes, start: int, end: int) -> int:
    """Return where str.lstrip of `data[start:end]` begins."""
    while start < end:
        width = space_width(data, start)
        if width == 0:
            break
        start += width
    return start


@kernel
def skip_space_back(data: Bytes, start: int, end: int) -> int:
    """Return where str.rstrip of `data[start:end]` ends."""
    while end > start:
        lead = end - 1
        while data[lead] & 0xC0 == 0x80:
            lead -= 1
        if space_width(data, lead) == 0:
            break
        end = lead
    return end


@kernel
def line_break_width(data: Bytes, pos: int, end: int) -> int:
    r"""Return the bytes of the line boundary at `pos`, 0 if it is none, as str.splitlines.

    \n \v \f \r \r\n \x1c \x1d \x1e U+0085 U+2028 U+2029; `end` is where the text ends.
    """
    lead = data[pos]
    if lead < 0x80:
        if lead == 13 and pos + 1 < end and data[pos + 1] == 10:
            return 2
        return 1 if 10 <= lead <= 13 or 28 <= lead <= 30 else 0
    if lead == 0xC2:
        return 2 if data[pos + 1] == 0x85 else 0
    if lead == 0xE2 and data[pos + 1] == 0x80:
        return 3 if data[pos + 2] == 0xA8 or data[pos + 2] == 0xA9 else 0
    return 0


@kernel
def count_chars(data: Bytes, start: int, end: int) -> int:
    """Return the code points in `data[start:end]`."""
    chars = 0
    for pos in range(start, end):
        chars += data[pos] & 0xC0 != 0x80
    return chars


@functools.cache
def char_table(*tests: Callable[[str], bool]) -> Bytes:
    """Tabulate tests of single characters: bit k of entry c says whether `tests[k](chr(c))`.

    Built on first use (20 ms for a method of str, 0.1 s for others) and kept: 1.1 MB, one entry per
    code point, read-only. By the Unicode version of the running Python.
    """
    table = np.zeros(sys.maxunicode + 1, np.uint8)
    chars = np.arange(len(table), dtype=np.uint32).view("<U1")
    for bit, test in enumerate(tests):
        name = test.__name__
        if test is getattr(str, name, None) and hasattr(np.strings, name):
            hits = getattr(np.strings, name)(chars)
        else:
            hits = np.fromiter(map(test, map(chr, range(len(table)))), np.bool_, len(table))
        table[hits] |= 1 << bit
    return frozen(table)


NUM_CODES = 0x40000
"""Planes 0 to 3: nothing beyond is a letter, a digit or whitespace."""

CHAR_LOWER, CHAR_WORD, CHAR_SPACE, CHAR_ENDS = 0x1FFFFF, 1 << 21, 1 << 22, 1 << 23
"""Fields of an entry of `characters()`."""


@functools.cache
def characters() -> Uint32s:
    """Tabulate characters, (262144,) uint32, read-only; built on first use (10 ms) and kept.

    Bits 0-20: the lower-case code point; 21: part of a word; 22: whitespace; 23: the word ends
    after it. The last is for U+0130, the one character whose lower case is two, of which the
    second is no part of a word.
    """
    text = np.arange(NUM_CODES, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    lower = text.replace("\u0130", "i").replace("\u03a3", "\u03c3").lower()
    table = np.frombuffer(lower.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint32)
    for pattern, bit in ((r"\w+", CHAR_WORD), (r"\s+", CHAR_SPACE)):
        for match in re.finditer(pattern, lower):
            table[match.start() : match.end()] |= bit
    table[0x130] |= CHAR_ENDS
    return frozen(table)


# ----------------------------------------------------------------------
# Which texts hold any of some bytes: a fast test that spares most texts a closer look.


@kernel
def hold_any(offsets: Int64s, data: Bytes, byte_mask: Bytes) -> Bools:
    """Return (N,) whether a text holds a byte of `byte_mask`: O(B), stops at the first.

    Args:
        offsets, data: the texts.
        byte_mask: (256,) not zero for bytes to look for.
    """
    holds = np.zeros(len(offsets) - 1, np.bool_)
    for row in range(len(holds)):
        for pos in range(offsets[row], offsets[row + 1]):
            if byte_mask[data[pos]] != 0:
                holds[row] = True
                break
    return holds


# ----------------------------------------------------------------------
# The punctuation sets of the reference filters, character for character as datatrove 0.10.1.


def _chars(ranges: str) -> frozenset[str]:
    """Return the characters of hexadecimal ranges such as `21 2E 61D-61F`."""
    characters: list[str] = []
    for range_text in ranges.split():
        low, _, high = range_text.partition("-")
        characters += map(chr, range(int(low, 16), int(high or low, 16) + 1))
    return frozenset(characters)


TERMINAL = _chars("""
21 2E 3F 589 61D-61F 6D4 700-702 7F9 837 839 83D-83E 964-965 104A-104B 1362 1367-1368 166E 1735-1736
17D4-17D6 17D9-17DA 1803 1809 1944-1945 1AA8-1AAB 1B5A-1B5B 1B5E-1B5F 1B7D-1B7E 1C3B-1C3C 1C7E-1C7F
203C-203D 2047-2049 2E2E 2E3C 2E53-2E54 3002 A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F
A9C8-A9C9 AA5D-AA5F AAF0-AAF1 ABEB FE52 FE56-FE57 FF01 FF0E FF1F FF61 10A56-10A57 10F55-10F59
10F86-10F89 11047-11048 110BE-110C1 11141-11143 111C5-111C6 111CD 111DE-111DF 11238-11239
1123B-1123C 112A9 1144B-1144C 115C2-115C3 115C9-115D7 11641-11642 1173C-1173E 11944 11946
11A42-11A43 11A9B-11A9C 11C41-11C42 11EF7-11EF8 11F43-11F44 16A6E-16A6F 16AF5 16B37-16B38 16B44
16E98 1BC9F 1DA88
""")
"""Marks that end a sentence, in any script."""

PUNCTUATION = _chars("""
0-8 B-1F 21-2F 3A-40 5B-60 7B-9F AB B4 BB 2013-2014 2019 201C-201E 2026 2236 2501 25BA 3001-3002
3008-300D 3010-3011 FF01 FF05 FF08-FF09 FF0C FF0E FF11 FF1A-FF1B FF1F FF5E
""")
"""ASCII and CJK punctuation, controls, and (as in the reference) the full-width digit one."""

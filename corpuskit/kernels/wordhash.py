r"""Words as near-duplicate detection sees them, as 64-bit hashes; and texts folded for comparison.

A word is a match of `re.findall(r"\w+", lower(text))`: letters, digits of any script and
underscores. `lower` is str.lower() without its one rule that looks at neighbours: a capital sigma
always becomes the ordinary small sigma, also at the end of a word. Answers are those of the running
Python's Unicode version.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.hashing import load64, load_tail, mix64
from corpuskit.kernels.jit import inline, kernel
from corpuskit.kernels.utf8 import char_width, code_point

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

_NUM_CODES = 0x40000
"""Planes 0 to 3: nothing beyond is a letter, a digit or whitespace."""

_CODE, _WORD, _SPACE, _ENDS = 0x1FFFFF, 1 << 21, 1 << 22, 1 << 23
"""Fields of an entry of `characters()`."""

_HIGH_BITS = np.uint64(0x8080808080808080)
_LOWER_BITS = np.uint64(0x2020202020202020)
_ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)

_FROM_A = np.uint64(0x1F1F1F1F1F1F1F1F)
_BEHIND_Z = np.uint64(0x0505050505050505)
_FROM_0 = np.uint64(0x5050505050505050)
_BEHIND_9 = np.uint64(0x4646464646464646)
_UNDERSCORES = np.uint64(0x5F5F5F5F5F5F5F5F)
_GATHER = np.uint64(0x0102040810204080)
"""Times this, bit 0 of byte i becomes bit 56 + i."""


@functools.cache
def characters() -> NDArray[np.uint32]:
    """Tabulate characters, (262144,) uint32, read-only; built on first use (10 ms) and kept.

    Bits 0-20: the lower-case code point; 21: part of a word; 22: whitespace; 23: the word ends
    behind it. The last is for U+0130, the one character whose lower case is two, of which the
    second is no part of a word.
    """
    given = np.arange(_NUM_CODES, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    lower = given.replace("\u0130", "i").replace("\u03a3", "\u03c3").lower()
    table = np.frombuffer(lower.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint32)
    for pattern, bit in ((r"\w+", _WORD), (r"\s+", _SPACE)):
        for match in re.finditer(pattern, lower):
            table[match.start() : match.end()] |= bit
    table[0x130] |= _ENDS
    table.flags.writeable = False
    return table


def _byte_kinds() -> Bytes:
    """Byte -> 1 if it may be a part of a word, as is every byte of a wide character."""
    table = np.zeros(256, np.uint8)
    table[[ord("_"), *range(ord("0"), ord("9") + 1), *range(0x80, 0x100)]] = 1
    for first in (ord("a"), ord("A")):
        table[first : first + 26] = 1
    table.flags.writeable = False
    return table


BYTE_KINDS = _byte_kinds()


@inline
def _word_bits(group: np.uint64) -> np.uint64:
    """Return a bit for each of 8 bytes, set for those that may be a part of a word.

    Each comparison is an addition that carries into the top bit of the byte from a bound on.
    """
    low = group & ~_HIGH_BITS
    small = low | _LOWER_BITS
    letters = (small + _FROM_A) & ~(small + _BEHIND_Z)
    digits = (low + _FROM_0) & ~(low + _BEHIND_9)
    found = (letters | digits | (_HIGH_BITS - (low ^ _UNDERSCORES)) | group) & _HIGH_BITS
    return ((found >> np.uint64(7)) * _GATHER) >> np.uint64(56)


@inline
def _count_bits(value: np.uint64) -> np.uint64:
    """Return how many bits are set; compiles to one instruction."""
    value -= (value >> np.uint64(1)) & np.uint64(0x5555555555555555)
    pairs = np.uint64(0x3333333333333333)
    value = (value & pairs) + ((value >> np.uint64(2)) & pairs)
    value = (value + (value >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (value * np.uint64(0x0101010101010101)) >> np.uint64(56)


@kernel
def word_edges(data: Bytes, begin: int, end: int, kinds: Bytes, edges: NDArray[np.int32]) -> int:
    """Fill `edges` with where runs of word bytes begin and end; return how many runs. O(B).

    About 2.4 GB/s: 64 bytes become a bit each, and bits that differ from the one before are
    written out eight at a time. There is little to predict, half of the time of a byte-wise loop.

    Args:
        data, begin, end: the text.
        kinds: BYTE_KINDS.
        edges: room for `end - begin + 2`; run r is `edges[2 * r]:edges[2 * r + 1]`, in bytes from
            `begin`. A run may hold several words where wide characters separate them.
    """
    one = np.uint64(1)
    num = before = np.uint64(0)
    whole = begin + (end - begin) // 64 * 64
    for at in range(begin, whole, 64):
        bits = np.uint64(0)
        for part in range(0, 64, 8):
            bits |= _word_bits(load64(data, at + part)) << np.uint64(part)
        changes = bits ^ ((bits << one) | before)
        before = bits >> np.uint64(63)
        behind = num + _count_bits(changes)
        while num < behind:
            # Those beyond the last bit are written over; they are within the room, as `num` is at
            # most the bytes before these 64.
            for part in range(8):
                lowest = changes & (~changes + one)
                edges[num + np.uint64(part)] = at - begin + np.int64(_count_bits(lowest - one))
                changes &= changes - one
            num += np.uint64(8)
        num = behind
    for at in range(whole, end):
        kind = np.uint64(kinds[data[at]])
        edges[num] = at - begin
        num += kind ^ before
        before = kind
    edges[num] = end - begin
    return int(num + one) >> 1


@kernel
def word_hashes(
    data: Bytes,
    begin: int,
    end: int,
    characters: NDArray[np.uint32],
    kinds: Bytes,
    edges: NDArray[np.int32],
    words: Hashes,
) -> int:
    """Fill `words` with the hash of each word, in order; return how many. O(B), about 900 MB/s.

    The hash of a lower-cased word: h = 0, then h = mix64(h ^ c) over its c's, which are groups of 8
    bytes (little endian, underscores as 0x7F) for an ASCII word and code points for others.

    Args:
        data, begin, end: the text.
        characters, kinds: `characters()`, BYTE_KINDS.
        edges: scratch, `end - begin + 2` entries.
        words: (W,), W at most `(end - begin + 1) // 2`.
    """
    runs = word_edges(data, begin, end, kinds, edges)
    num = 0
    for run in range(runs):
        at, stop = begin + edges[2 * run], begin + edges[2 * run + 1]
        value = seen = np.uint64(0)
        while stop - at > 8:
            group = load64(data, at)
            seen |= group
            value = mix64(value ^ (group | _LOWER_BITS))
            at += 8
        kept = _ALL_BITS >> np.uint64(64 - 8 * (stop - at))
        group = load64(data, at) & kept if at + 8 <= len(data) else load_tail(data, at, stop)
        seen |= group
        if seen & _HIGH_BITS:
            num = _wide_words(data, begin + edges[2 * run], stop, characters, words, num)
        else:
            # 0x20 makes capitals small, leaves digits as they are, and turns _ into DEL.
            words[num] = mix64(value ^ (group | (_LOWER_BITS & kept)))
            num += 1
    return num


@kernel
def _wide_words(
    data: Bytes, begin: int, end: int, characters: NDArray[np.uint32], words: Hashes, num: int
) -> int:
    """Append the hashes of the words of a run that holds wide characters; return the new `num`.

    Whether a word is ASCII shows at its end only, so both of its hashes are carried along.
    """
    narrow = group = wide = seen = np.uint64(0)
    length = 0
    at = begin
    while at <= end:
        entry = np.uint32(0)
        if at < end:
            code = code_point(data, at)
            if code < len(characters):
                entry = characters[code]
            at += char_width(data[at])
        else:
            at += 1
        if entry & _WORD:
            lower = np.uint64(entry & _CODE)
            seen |= lower
            wide = mix64(wide ^ lower)
            group |= (lower | np.uint64(0x20)) << np.uint64(8 * (length & 7))
            length += 1
            if length & 7 == 0:
                narrow = mix64(narrow ^ group)
                group = np.uint64(0)
            if not entry & _ENDS:
                continue
        if length:
            if seen >= np.uint64(0x80):
                words[num] = wide
            else:
                words[num] = mix64(narrow ^ group) if length & 7 else narrow
            num += 1
            narrow = group = wide = seen = np.uint64(0)
            length = 0
    return num


@inline
def write_char(code: int, out: Bytes, at: int) -> int:
    """Write a code point as UTF-8; return where it ends."""
    if code < 0x80:
        out[at] = code
        return at + 1
    if code < 0x800:
        out[at] = 0xC0 | code >> 6
        out[at + 1] = 0x80 | code & 0x3F
        return at + 2
    if code < 0x10000:
        out[at] = 0xE0 | code >> 12
        out[at + 1] = 0x80 | code >> 6 & 0x3F
        out[at + 2] = 0x80 | code & 0x3F
        return at + 3
    out[at] = 0xF0 | code >> 18
    out[at + 1] = 0x80 | code >> 12 & 0x3F
    out[at + 2] = 0x80 | code >> 6 & 0x3F
    out[at + 3] = 0x80 | code & 0x3F
    return at + 4


def fold_texts(offsets: Offsets, data: Bytes) -> tuple[Offsets, Bytes]:
    """Return texts in lower case, each run of whitespace one space, none at either end.

    `lower` as above, but U+0130 becomes a plain i. Read-only, as Arrow's buffers are.
    """
    folded = _fold(offsets, data, characters())
    for array in folded:
        array.flags.writeable = False
    return folded


@kernel
def _fold(offsets: Offsets, data: Bytes, characters: NDArray[np.uint32]) -> tuple[Offsets, Bytes]:
    """O(B), about 350 MB/s; allocates 1.5 B bytes: U+023A is 2 bytes, its lower case 3."""
    num_docs = len(offsets) - 1
    out = np.empty((offsets[num_docs] - offsets[0]) * 3 // 2 + 4, np.uint8)
    bounds = np.zeros(num_docs + 1, np.int64)
    size = 0
    for doc in range(num_docs):
        at = offsets[doc]
        waiting = False
        while at < offsets[doc + 1]:
            code = code_point(data, at)
            at += char_width(data[at])
            entry = int(characters[code]) if code < len(characters) else int(code)
            if entry & _SPACE:
                waiting = size > bounds[doc]
                continue
            if waiting:
                out[size] = 32
                size += 1
                waiting = False
            size = write_char(entry & _CODE, out, size)
        bounds[doc + 1] = size
    return bounds, out[:size]

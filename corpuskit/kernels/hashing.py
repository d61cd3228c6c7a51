"""Byte ranges: read 8 bytes at a time, compared, copied, hashed (XXH64, and two of them, 128 bits).

The hashes are not cryptographic: texts that nobody made for the purpose do not collide in 128 bits,
but a text that passes for another can be built.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from corpuskit.kernels.arrays import Bytes, Int64s, Uint64s
from corpuskit.kernels.jit import inline, kernel

_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5 = np.uint64(0x27D4EB2F165667C5)

_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)

_SEED_HIGH = np.uint64(0)
_SEED_LOW = np.uint64(0x5851F42D4C957F2D)

HIGH_BITS, LOW_BITS = np.uint64(0x8080808080808080), np.uint64(0x7F7F7F7F7F7F7F7F)
"""Of 8 bytes: their top bits, and all others."""

ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)

_RADIX = np.uint64(0x9E3779B97F4A7C13)
"""Radix of the polynomial over word hashes: 3 mod 8, so that swapped words lose at most 4 bits."""


@inline
def load64(data: Bytes, pos: int | np.int64) -> np.uint64:
    """Return the 8 bytes from `pos` on, little endian; compiles to one unaligned load."""
    # Unsigned: Numba tests whether a signed index is negative, and that splits the load up.
    i = np.uint64(pos)
    return (
        np.uint64(data[i])
        | np.uint64(data[i + np.uint64(1)]) << np.uint64(8)
        | np.uint64(data[i + np.uint64(2)]) << np.uint64(16)
        | np.uint64(data[i + np.uint64(3)]) << np.uint64(24)
        | np.uint64(data[i + np.uint64(4)]) << np.uint64(32)
        | np.uint64(data[i + np.uint64(5)]) << np.uint64(40)
        | np.uint64(data[i + np.uint64(6)]) << np.uint64(48)
        | np.uint64(data[i + np.uint64(7)]) << np.uint64(56)
    )


@inline
def store64(value: np.uint64, out: Bytes, pos: int) -> None:
    """Write 8 bytes, little endian; compiles to one store."""
    i = np.uint64(pos)
    for byte in range(8):
        out[i + np.uint64(byte)] = np.uint8(value >> np.uint64(8 * byte) & np.uint64(0xFF))


@inline
def load_tail(data: Bytes, begin: int, end: int) -> np.uint64:
    """Return the up to 8 bytes `data[begin:end]`, little endian, zeros after them."""
    value = np.uint64(0)
    for pos in range(begin, end):
        value |= np.uint64(data[pos]) << np.uint64(8 * (pos - begin))
    return value


@inline
def count_before(flags: np.uint64) -> np.int64:
    """Return how many of 8 bytes precede the first flagged one, 8 if none is.

    Args:
        flags: the top bit of a byte is set if it is flagged, all other bits are 0.
    """
    mask = (flags - np.uint64(1)) & ~flags & HIGH_BITS
    return np.int64(((mask >> np.uint64(7)) * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel
def same_bytes(
    left: Bytes,
    left_start: int | np.int64,
    right: Bytes,
    right_start: int | np.int64,
    size: int | np.int64,
) -> bool:
    """Return whether `size` bytes are equal, from a start in each array on. O(size)."""
    pos = 0
    while pos + 8 <= size:
        if load64(left, left_start + pos) != load64(right, right_start + pos):
            return False
        pos += 8
    while pos < size and left[left_start + pos] == right[right_start + pos]:
        pos += 1
    return bool(pos >= size)


@inline
def copy(source: NDArray[np.generic], target: NDArray[np.generic]) -> None:
    """Copy an array into one of the same length.

    A plain loop from zero becomes a memcpy, three times as fast as assigning the slice, which also
    takes 2 s to compile.
    """
    for index in range(len(target)):
        target[index] = source[index]


@kernel
def table_size(num_keys: int | np.int64) -> int:
    """Return the size of a hash table that `num_keys` keys fill to one half at most."""
    size = 2
    while size < 2 * num_keys:
        size *= 2
    return size


@inline
def mix64(value: np.uint64) -> np.uint64:
    """Return MurmurHash3's 64-bit finaliser: a bijection; each bit affects all others."""
    value = (value ^ (value >> np.uint64(33))) * _MIX_1
    value = (value ^ (value >> np.uint64(33))) * _MIX_2
    return value ^ (value >> np.uint64(33))


@inline
def _rotate(value: np.uint64, bits: int) -> np.uint64:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@inline
def _round(lane: np.uint64, word: np.uint64) -> np.uint64:
    return _rotate(lane + word * _PRIME_2, 31) * _PRIME_1


@inline
def _merge(value: np.uint64, lane: np.uint64) -> np.uint64:
    return (value ^ _round(np.uint64(0), lane)) * _PRIME_1 + _PRIME_4


@kernel
def xxh64(data: Bytes, begin: int, end: int, seed: np.uint64) -> np.uint64:
    """Return XXH64 of `data[begin:end]`. O(B), about 9 GB/s.

    Source: the xxHash specification, section XXH64; equals xxhash.xxh64_intdigest.
    """
    pos = begin
    if end - begin >= 32:
        lane_1, lane_2 = seed + _PRIME_1 + _PRIME_2, seed + _PRIME_2
        lane_3, lane_4 = seed, seed - _PRIME_1
        while pos + 32 <= end:
            lane_1 = _round(lane_1, load64(data, pos))
            lane_2 = _round(lane_2, load64(data, pos + 8))
            lane_3 = _round(lane_3, load64(data, pos + 16))
            lane_4 = _round(lane_4, load64(data, pos + 24))
            pos += 32
        value = _rotate(lane_1, 1) + _rotate(lane_2, 7) + _rotate(lane_3, 12) + _rotate(lane_4, 18)
        value = _merge(_merge(_merge(_merge(value, lane_1), lane_2), lane_3), lane_4)
    else:
        value = seed + _PRIME_5
    value += np.uint64(end - begin)
    while pos + 8 <= end:
        value ^= _round(np.uint64(0), load64(data, pos))
        value = _rotate(value, 27) * _PRIME_1 + _PRIME_4
        pos += 8
    if pos + 4 <= end:
        value ^= load_tail(data, pos, pos + 4) * _PRIME_1
        value = _rotate(value, 23) * _PRIME_2 + _PRIME_3
        pos += 4
    while pos < end:
        value ^= np.uint64(data[pos]) * _PRIME_5
        value = _rotate(value, 11) * _PRIME_1
        pos += 1
    value = (value ^ (value >> np.uint64(33))) * _PRIME_2
    value = (value ^ (value >> np.uint64(29))) * _PRIME_3
    return value ^ (value >> np.uint64(32))


@kernel
def hash_texts(offsets: Int64s, data: Bytes) -> tuple[Uint64s, Uint64s]:
    """Return 128 bits of each text as two (N,) arrays: XXH64 under two seeds, one of them 0.

    O(B), about 4 GB/s; allocates 16 N bytes.
    """
    num_docs = len(offsets) - 1
    high, low = np.empty(num_docs, np.uint64), np.empty(num_docs, np.uint64)
    for doc in range(num_docs):
        high[doc] = xxh64(data, offsets[doc], offsets[doc + 1], _SEED_HIGH)
        low[doc] = xxh64(data, offsets[doc], offsets[doc + 1], _SEED_LOW)
    return high, low


@kernel
def polynomials(words: Uint64s, num_words: int, ngram: int) -> int:
    """Turn word hashes into numbers of word n-grams, in place; return how many. O(W).

    A number is the polynomial in _RADIX with the word hashes as coefficients: mix it before you use
    its bits. Fewer words than `ngram` are one n-gram; there must be at least one word.
    """
    ngram = min(ngram, num_words)
    value, leaving = np.uint64(0), np.uint64(1)
    for word in range(ngram - 1):
        value = value * _RADIX + words[word]
        leaving *= _RADIX
    num_shingles = num_words - ngram + 1
    for shingle in range(num_shingles):
        value = value * _RADIX + words[shingle + ngram - 1]
        first = words[shingle]
        words[shingle] = value
        value -= first * leaving
    return num_shingles

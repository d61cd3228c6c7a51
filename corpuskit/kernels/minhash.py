"""Shingles as 64-bit hashes, and the MinHash signatures of datatrove.

A signature is the smallest value of a set's hashes under each of K permutations
x -> (a x + b mod 2**64) mod (2**61 - 1). K is bands * rows: a band is `rows` consecutive values,
and two documents whose Jaccard similarity is J agree in at least one band with probability
1 - (1 - J**rows)**bands.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from corpuskit.kernels.arrays import AnyArray, Bools, Bytes, Int32s, Int64s, Uint32s, Uint64s
from corpuskit.kernels.hashing import ALL_BITS, mix64, polynomials, xxh64
from corpuskit.kernels.jit import inline, kernel
from corpuskit.kernels.utf8 import char_width, characters, code_point
from corpuskit.kernels.wordhash import BYTE_KINDS, word_hashes

PRIME = (1 << 61) - 1
"""A Mersenne prime: the remainder needs no division."""

_TOP = np.uint64(7 << 61)


def permutations(num_hashes: int, seed: int) -> tuple[Uint64s, Uint64s]:
    """Return a in [1, PRIME) and b in [0, PRIME), (K,) each.

    Source: datatrove 0.10.1 MinhashDedupSignature.parameters (all of a first, then b).
    """
    random = np.random.RandomState(seed)  # a stream that NumPy has frozen
    a = random.randint(1, PRIME, dtype=np.uint64, size=num_hashes)
    return a, random.randint(0, PRIME, dtype=np.uint64, size=num_hashes)


def distinct_shingles(
    offsets: Int64s, data: Bytes, *, ngram: int, by_character: bool = False
) -> tuple[Int64s, Uint64s]:
    """Return the distinct shingle hashes of each text, ascending: offsets (N + 1,), hashes.

    Shingles are n-grams of words (see wordhash), or of characters; a text with fewer words than
    `ngram` is one shingle. O(B + W log W), allocates 8 bytes per word twice.
    """
    bounds, hashes = _shingle_texts(offsets, data, characters(), BYTE_KINDS, ngram, by_character)
    for begin, end in itertools.pairwise(bounds.tolist()):
        hashes[begin:end].sort()
    return _distinct(bounds, hashes)


@kernel
def _part_hashes(
    data: Bytes,
    begin: int,
    end: int,
    characters: Uint32s,
    kinds: Bytes,
    edges: Int32s,
    by_character: bool,
    out: Uint64s,
) -> int:
    """Fill `out` with the hashes of a text's words, or of its characters; return how many."""
    if not by_character:
        return int(word_hashes(data, begin, end, characters, kinds, edges, out))
    num = 0
    while begin < end:
        out[num] = mix64(np.uint64(code_point(data, begin) + 1))
        begin += char_width(data[begin])
        num += 1
    return num


@kernel
def _shingle_texts(
    offsets: Int64s, data: Bytes, characters: Uint32s, kinds: Bytes, ngram: int, by_character: bool
) -> tuple[Int64s, Uint64s]:
    num_docs = len(offsets) - 1
    longest = 0
    for doc in range(num_docs):
        longest = max(longest, offsets[doc + 1] - offsets[doc])
    edges = np.empty(longest + 2, np.int32)
    max_shingles = offsets[num_docs] - offsets[0] + num_docs
    hashes = np.empty(max_shingles + 1 if by_character else max_shingles // 2 + 1, np.uint64)
    bounds = np.zeros(num_docs + 1, np.int64)
    for doc in range(num_docs):
        doc_hashes = hashes[bounds[doc] :]
        num_words = _part_hashes(
            data, offsets[doc], offsets[doc + 1], characters, kinds, edges, by_character, doc_hashes
        )
        count = shingle_hashes(doc_hashes, num_words, ngram) if num_words else 0
        bounds[doc + 1] = bounds[doc] + count
    return bounds, hashes[: bounds[num_docs]]


@kernel
def _distinct(bounds: Int64s, hashes: Uint64s) -> tuple[Int64s, Uint64s]:
    """Return sorted rows without repeats; overwrites `hashes`."""
    out_bounds = np.zeros(len(bounds), np.int64)
    num = 0
    for row in range(len(bounds) - 1):
        for index in range(bounds[row], bounds[row + 1]):
            if index == bounds[row] or hashes[index] != hashes[num - 1]:
                hashes[num] = hashes[index]
                num += 1
        out_bounds[row + 1] = num
    return out_bounds, hashes[:num].copy()


@kernel
def shingle_hashes(words: Uint64s, num_words: int, ngram: int) -> int:
    """Turn word hashes into hashes of word n-grams, in place; return how many. O(W).

    mix64 of `polynomials`.
    """
    num_shingles = polynomials(words, num_words, ngram)
    for shingle in range(num_shingles):
        words[shingle] = mix64(words[shingle])
    return num_shingles


@inline
def _value(shingle: np.uint64, a: np.uint64, b: np.uint64) -> np.uint64:
    """Return the permuted shingle plus `_TOP + 1`; `b` is that of the permutation, plus 1.

    With x = q * 2**61 + r, x mod PRIME is q + r, or q + r - PRIME once in 2**58. Adding 1 before
    and _TOP by `|` makes that rare case fall to `_TOP` or below, so the test for it can wait until
    the minimum is known: 6 vector instructions instead of 8.
    """
    value = shingle * a + b
    return (value | _TOP) + (value >> np.uint64(61))


@kernel
def smallest(shingles: Uint64s, num_shingles: int, a: Uint64s, b: Uint64s, out: Uint64s) -> None:
    """Fill `out`, (K,), with the smallest permuted value of the shingles. O(W K), 0.1 ns each.

    Args:
        shingles: the first `num_shingles` count, at least 1.
        a, b: the permutations.
        out: the signature.
    """
    one = np.uint64(1)
    for k in range(len(out)):
        out[k] = _value(shingles[0], a[k], b[k] + one)
    end = num_shingles - num_shingles % 8
    # Eight shingles for each load of a, b and out.
    for i in range(0, end, 8):
        s0, s1, s2, s3 = shingles[i], shingles[i + 1], shingles[i + 2], shingles[i + 3]
        s4, s5, s6, s7 = shingles[i + 4], shingles[i + 5], shingles[i + 6], shingles[i + 7]
        for k in range(len(out)):
            ak, bk = a[k], b[k] + one
            m0 = min(_value(s0, ak, bk), _value(s1, ak, bk))
            m1 = min(_value(s2, ak, bk), _value(s3, ak, bk))
            m2 = min(_value(s4, ak, bk), _value(s5, ak, bk))
            m3 = min(_value(s6, ak, bk), _value(s7, ak, bk))
            out[k] = min(out[k], m0, m1, m2, m3)
    for i in range(end, num_shingles):
        for k in range(len(out)):
            out[k] = min(out[k], _value(shingles[i], a[k], b[k] + one))
    for k in range(len(out)):
        if out[k] > _TOP:
            out[k] -= _TOP + one
        else:
            out[k] = _smallest_exactly(shingles, num_shingles, a[k], b[k])


@kernel
def _smallest_exactly(
    shingles: Uint64s, num_shingles: int, a: np.uint64, b: np.uint64
) -> np.uint64:
    least = np.uint64(PRIME)
    for i in range(num_shingles):
        least = min(least, (shingles[i] * a + b) % np.uint64(PRIME))
    return least


# ---------------------------------------------------------------- Fast Similarity Sketches
#
# The signature of a set has K slots. In round 0 each shingle goes to the slot that its hash names,
# and each slot keeps its smallest. If slots are left empty, all shingles are hashed and distributed
# again, in round 1, 2 ...; a slot keeps what an earlier round left in it. From round K on all
# shingles go to slot round - K, so there are at most 2 K rounds. Two sets of Jaccard similarity J
# agree in a slot with probability J, whatever their sizes, and slots are nearly independent.
# The number of hashes is W where W is far above K ln K, and about K ln K below.
#
# Source: Dahlgaard, Knudsen, Thorup: Fast Similarity Sketching, FOCS 2017 (their rounds end by
# the same rule). Unlike one-permutation hashing with densification no slot is a copy of
# another: those of small sets are as independent as those of large ones.


HASH_BITS = 40
"""Bits of a hash that are compared inside a slot; those above hold the round."""

_EMPTY = ALL_BITS
_KEPT = np.uint64((1 << HASH_BITS) - 1)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def sketch_texts(
    offsets: Int64s,
    data: Bytes,
    *,
    ngram: int,
    bands: int,
    rows: int,
    seed: int,
    by_character: bool = False,
    values: bool = False,
) -> tuple[Uint64s, Bools, Uint64s | None]:
    """Return band keys (N, bands), which texts have any (N,), and on request the signatures.

    Shingles are those of `distinct_shingles`. O(B) where texts are longer than K words; allocates
    8 N bands bytes (with `values` 8 N K more) and for the longest text of b bytes 8 b.
    """
    num_docs, width = len(offsets) - 1, bands * rows
    signatures = np.empty((num_docs if values else 1, width), np.uint64)
    salt = np.uint64((seed * int(_GOLDEN)) & int(_EMPTY))
    keys, signed = _sketch_texts(
        *(offsets, data, characters(), BYTE_KINDS, ngram, by_character),
        *(bands, salt, signatures, values),
    )
    return keys, signed, signatures if values else None


@kernel
def _sketch_texts(
    offsets: Int64s,
    data: Bytes,
    characters: Uint32s,
    kinds: Bytes,
    ngram: int,
    by_character: bool,
    bands: int,
    salt: np.uint64,
    values: Uint64s,
    keeps_values: bool,
) -> tuple[Uint64s, Bools]:
    num_docs = len(offsets) - 1
    longest = 0
    for doc in range(num_docs):
        longest = max(longest, offsets[doc + 1] - offsets[doc])
    edges = np.empty(longest + 2, np.int32)
    hashes = np.empty(longest + 1 if by_character else longest // 2 + 1, np.uint64)
    keys = np.zeros((num_docs, bands), np.uint64)
    signed = np.zeros(num_docs, np.bool_)
    for doc in range(num_docs):
        signature = values[doc if keeps_values else 0]
        num_words = _part_hashes(
            data, offsets[doc], offsets[doc + 1], characters, kinds, edges, by_character, hashes
        )
        signed[doc] = num_words > 0
        if num_words == 0:
            signature[:] = _EMPTY
            continue
        sketch(hashes, polynomials(hashes, num_words, ngram), salt, signature)
        band_keys(signature.view(np.uint8), keys[doc])
    return keys, signed


@kernel
def band_keys(content: Bytes, out: Uint64s) -> None:
    """Fill `out`, (bands,), with XXH64 of each band's values, from the bytes of a signature."""
    size = len(content) // len(out)
    for band in range(len(out)):
        out[band] = xxh64(content, band * size, (band + 1) * size, np.uint64(0))


@kernel
def sketch(shingles: Uint64s, num_shingles: int, salt: np.uint64, out: Uint64s) -> None:
    """Fill `out`, (K,), with the signature of a set. O(W + K log K), 2.5 ns a shingle.

    Args:
        shingles: the first `num_shingles` count, at least 1. Need not be well mixed: they are
            hashed here, in round r as mix64(shingle + salt + r * golden).
        salt: of round 0.
        out: the smallest `round << HASH_BITS | low bits of the hash` of each slot.
    """
    width = np.uint64(len(out))
    out[:] = _EMPTY
    for turn in range(2 * len(out)):
        first = np.uint64(turn) << np.uint64(HASH_BITS)
        for i in range(num_shingles):
            mixed = mix64(shingles[i] + salt)
            slot = (mixed >> np.uint64(32)) * width >> np.uint64(32)
            if turn >= len(out):
                slot = np.uint64(turn - len(out))
            out[slot] = min(out[slot], first | (mixed & _KEPT))
        is_full = True
        for value in out:  # not out.max(): its code loads scipy.linalg, 0.15 CPU s
            is_full &= value != _EMPTY
        if is_full:
            break
        salt += _GOLDEN


# ---------------------------------------------------------------- datasketch


_MIX_1 = np.uint32(0x85EBCA6B)
_MIX_2 = np.uint32(0xC2B2AE35)
_LOW = np.uint64(0xFFFFFFFF)


def affine_permutations(num_hashes: int, seed: int, width: int) -> tuple[AnyArray, AnyArray]:
    """Return odd a and any b below 2**width, (K,) each, of uint32 or uint64.

    Source: datasketch 2.0.0 MinHash._init_permutations, schemes affine32 and affine64.
    """
    kind: Any = np.uint32 if width == 32 else np.uint64
    random = np.random.RandomState(seed)  # a stream that NumPy has frozen
    a = random.randint(0, 1 << (width - 1), num_hashes, dtype=kind) * kind(2) + kind(1)
    return a, random.randint(0, 1 << width, num_hashes, dtype=kind)


@inline
def _mix32(value: np.uint32) -> np.uint32:
    """Return MurmurHash3's 32-bit finaliser."""
    value = np.uint32((value ^ (value >> np.uint32(16))) * _MIX_1)
    value = np.uint32((value ^ (value >> np.uint32(13))) * _MIX_2)
    return np.uint32(value ^ (value >> np.uint32(16)))


@kernel
def sign_mersenne(bounds: Int64s, hashes: Uint64s, a: Uint64s, b: Uint64s, out: Uint64s) -> None:
    """Fill `out`, (N, K), as `smallest` does; rows without a hash stay unchanged. O(W K)."""
    for doc in range(len(bounds) - 1):
        num = bounds[doc + 1] - bounds[doc]
        if num:
            smallest(hashes[bounds[doc] : bounds[doc + 1]], num, a, b, out[doc])


@kernel
def sign_mersenne32(bounds: Int64s, hashes: Uint64s, a: Uint64s, b: Uint64s, out: Uint32s) -> None:
    """Fill `out`, (N, K), with the smallest low halves of (hash a + b) mod PRIME. O(W K).

    Source: datatrove 0.10.1 MinhashDedupSignature.get_signature with 32 bits.
    """
    prime = np.uint64(PRIME)
    least = np.empty(len(a), np.uint64)
    for doc in range(len(bounds) - 1):
        least[:] = _LOW
        for i in range(bounds[doc], bounds[doc + 1]):
            hashed = hashes[i]
            for k in range(len(a)):
                value = hashed * a[k] + b[k]
                value = (value & prime) + (value >> np.uint64(61))
                value = value - prime if value >= prime else value
                least[k] = min(least[k], value & _LOW)
        out[doc] = least


@kernel
def sign_affine32(bounds: Int64s, hashes: Uint64s, a: Uint32s, b: Uint32s, out: Uint32s) -> None:
    """Fill `out`, (N, K), with the smallest a mix(hash) + b mod 2**32. O(W K), 5 ns a shingle.

    Source: datasketch 2.0.0 MinHash.update_batch, scheme affine32.
    """
    least = np.empty(len(a), np.uint32)
    for doc in range(len(bounds) - 1):
        least[:] = np.uint32(_LOW)
        first, last = bounds[doc], bounds[doc + 1]
        # Four shingles for each load of a, b and least; the last one again at the end.
        for i in range(first, last, 4):
            h0 = _mix32(np.uint32(hashes[i] & _LOW))
            h1 = _mix32(np.uint32(hashes[min(i + 1, last - 1)] & _LOW))
            h2 = _mix32(np.uint32(hashes[min(i + 2, last - 1)] & _LOW))
            h3 = _mix32(np.uint32(hashes[min(i + 3, last - 1)] & _LOW))
            for k in range(len(a)):
                v0, v1 = np.uint32(h0 * a[k] + b[k]), np.uint32(h1 * a[k] + b[k])
                v2, v3 = np.uint32(h2 * a[k] + b[k]), np.uint32(h3 * a[k] + b[k])
                least[k] = min(least[k], v0, v1, v2, v3)
        out[doc] = least


@kernel
def sign_affine64(bounds: Int64s, hashes: Uint64s, a: Uint64s, b: Uint64s, out: Uint64s) -> None:
    """Fill `out`, (N, K), with the smallest a mix(hash) + b mod 2**64. O(W K).

    Source: datasketch 2.0.0 MinHash.update_batch, scheme affine64.
    """
    for doc in range(len(bounds) - 1):
        least = out[doc]
        least[:] = ALL_BITS
        for i in range(bounds[doc], bounds[doc + 1]):
            mixed = mix64(hashes[i])
            for k in range(len(a)):
                least[k] = min(least[k], mixed * a[k] + b[k])


@kernel
def keys_of_bands(content: Bytes, bands: int) -> Uint64s:
    """Return XXH64 of each band's values, (N, bands), from the bytes of signatures, (N, bytes)."""
    keys = np.empty((len(content), bands), np.uint64)
    for doc in range(len(content)):
        band_keys(content[doc], keys[doc])
    return keys

"""Shingles as 64-bit hashes, and the MinHash signatures of datatrove.

A signature is the smallest value of a set's hashes under each of K permutations
x -> (a x + b mod 2**64) mod (2**61 - 1). K is bands * rows: a band is `rows` consecutive values,
and two documents whose Jaccard similarity is J agree in at least one band with probability
1 - (1 - J**rows)**bands.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.hashing import mix64
from corpuskit.kernels.jit import inline, kernel
from corpuskit.kernels.utf8 import characters
from corpuskit.kernels.wordhash import BYTE_KINDS, word_hashes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

PRIME = (1 << 61) - 1
"""A Mersenne prime: the remainder needs no division."""

_TOP = np.uint64(7 << 61)
_RADIX = np.uint64(0x9E3779B97F4A7C13)
"""Of the polynomial over word hashes. 3 mod 8, so that swapped words cost at most 4 of 64 bits."""


def permutations(num_hashes: int, seed: int) -> tuple[Hashes, Hashes]:
    """Return a in [1, PRIME) and b in [0, PRIME), (K,) each.

    Source: datatrove 0.10.1 MinhashDedupSignature.parameters (all of a first, then b).
    """
    random = np.random.RandomState(seed)  # a stream that NumPy has frozen
    a = random.randint(1, PRIME, dtype=np.uint64, size=num_hashes)
    return a, random.randint(0, PRIME, dtype=np.uint64, size=num_hashes)


def distinct_shingles(offsets: Offsets, data: Bytes, *, ngram: int) -> tuple[Offsets, Hashes]:
    """Return the different shingle hashes of each text, ascending: offsets (N + 1,), hashes.

    Shingles are n-grams of words (see wordhash); a text with fewer than `ngram` words has one
    shingle, all of them. O(B + W log W), allocates 8 bytes per word twice.
    """
    bounds, hashes = _shingle_texts(offsets, data, characters(), BYTE_KINDS, ngram)
    for begin, end in itertools.pairwise(bounds.tolist()):
        hashes[begin:end].sort()
    return _distinct(bounds, hashes)


@kernel
def _shingle_texts(
    offsets: Offsets, data: Bytes, characters: NDArray[np.uint32], kinds: Bytes, ngram: int
) -> tuple[Offsets, Hashes]:
    num_docs = len(offsets) - 1
    longest = 0
    for doc in range(num_docs):
        longest = max(longest, offsets[doc + 1] - offsets[doc])
    edges = np.empty(longest + 2, np.int32)
    hashes = np.empty((offsets[num_docs] - offsets[0] + num_docs) // 2 + 1, np.uint64)
    bounds = np.zeros(num_docs + 1, np.int64)
    for doc in range(num_docs):
        here = hashes[bounds[doc] :]
        num_words = word_hashes(
            data, offsets[doc], offsets[doc + 1], characters, kinds, edges, here
        )
        found = shingle_hashes(here, num_words, ngram) if num_words else 0
        bounds[doc + 1] = bounds[doc] + found
    return bounds, hashes[: bounds[num_docs]]


@kernel
def _distinct(bounds: Offsets, hashes: Hashes) -> tuple[Offsets, Hashes]:
    """Return sorted rows without repeats; `hashes` is written over."""
    kept = np.zeros(len(bounds), np.int64)
    num = 0
    for row in range(len(bounds) - 1):
        for at in range(bounds[row], bounds[row + 1]):
            if at == bounds[row] or hashes[at] != hashes[num - 1]:
                hashes[num] = hashes[at]
                num += 1
        kept[row + 1] = num
    return kept, hashes[:num].copy()


@kernel
def polynomials(words: Hashes, num_words: int, ngram: int) -> int:
    """Turn word hashes into numbers of word n-grams, in place; return how many. O(W).

    The polynomial in _RADIX whose coefficients are the word hashes: to be mixed before its bits are
    used. Fewer words than `ngram` make one n-gram of all of them; there must be one.
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


@kernel
def shingle_hashes(words: Hashes, num_words: int, ngram: int) -> int:
    """Turn word hashes into hashes of word n-grams, in place; return how many. O(W).

    mix64 of `polynomials`.
    """
    num_shingles = polynomials(words, num_words, ngram)
    for shingle in range(num_shingles):
        words[shingle] = mix64(words[shingle])
    return num_shingles


@inline
def _value(shingle: np.uint64, a: np.uint64, b: np.uint64) -> np.uint64:
    """Return the permuted shingle plus `_TOP + 1`; `b` is one more than it says.

    With x = q * 2**61 + r, x mod PRIME is q + r, or q + r - PRIME once in 2**58. Adding 1 before
    and _TOP by `|` makes that rare case fall to `_TOP` or below, so the test for it can wait until
    the minimum is known: 6 vector instructions instead of 8.
    """
    value = shingle * a + b
    return (value | _TOP) + (value >> np.uint64(61))


@kernel
def smallest(shingles: Hashes, num_shingles: int, a: Hashes, b: Hashes, out: Hashes) -> None:
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
def _smallest_exactly(shingles: Hashes, num_shingles: int, a: np.uint64, b: np.uint64) -> np.uint64:
    least = np.uint64(PRIME)
    for i in range(num_shingles):
        least = min(least, (shingles[i] * a + b) % np.uint64(PRIME))
    return least

"""Word n-grams of texts, looked up in a table of n-grams.

A bitmap turns nearly all of them away before the table is asked. N-grams are 63-bit hashes: of 1e12
n-grams of text about two are taken for one of 2e7 known ones that they are not. Who needs more than
a hint compares the words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from corpuskit.kernels.hashing import mix64
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.wordhash import hash_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Hashes = NDArray[np.uint64]
    Offsets = NDArray[np.int64]
    Places = NDArray[np.int32]

GRAM_FACTOR = np.uint64(0xD6E8FEB86659FD93)


class Grams(NamedTuple):
    """A hash table of n-grams, read-only.

    Attributes:
        bitmap: (2**b / 64,) uint64: bit `hash >> (64 - b)` is set.
        slots: (2**k,) uint64: hashes, 0 where there is none.
        numbers: (2**k,) int32: which n-gram it is.
        starts: (G + 1,) int64 into the places of n-gram g.
    """

    bitmap: Hashes
    slots: Hashes
    numbers: Places
    starts: Offsets


@kernel
def _gram_power(ngram: int) -> np.uint64:
    """Return GRAM_FACTOR to the power of n."""
    factor = np.uint64(1)
    for _ in range(ngram):
        factor *= GRAM_FACTOR
    return factor


@kernel
def _bit_shift(bitmap: Hashes) -> np.uint64:
    """Return by how much a hash is shifted to be the number of a bit."""
    shift = np.uint64(58)
    size = len(bitmap)
    while size > 1:
        size >>= 1
        shift -= np.uint64(1)
    return shift


@kernel
def gram_hashes(starts: Offsets, words: Hashes, ngram: int, parts: Places) -> Hashes:
    """Return the hash of the n-gram that begins at each word, 0 where a part ends before it does.

    O(W), allocates 8 W bytes; fills `parts` (W,) with which part a word belongs to.
    """
    found = np.zeros(len(words), np.uint64)
    for part in range(len(starts) - 1):
        first, last = starts[part], starts[part + 1]
        for at in range(first, last):
            parts[at] = part
            if at + ngram <= last:
                value = np.uint64(0)
                for word in range(at, at + ngram):
                    value = value * GRAM_FACTOR + words[word]
                found[at] = mix64(value) | np.uint64(1)
    return found


@kernel
def fill_table(hashes: Hashes, bitmap: Hashes, slots: Hashes, numbers: Places) -> None:
    """Put n-grams, all different, into an empty table and bitmap."""
    mask, shift = np.uint64(len(slots) - 1), _bit_shift(bitmap)
    for number in range(len(hashes)):
        value = hashes[number]
        bit = value >> shift
        bitmap[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))
        slot = value >> np.uint64(1) & mask
        while slots[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = value
        numbers[slot] = number


@kernel
def scan(
    offsets: Offsets,
    data: Bytes,
    table: Hashes,
    kinds: Bytes,
    ngram: int,
    bitmap: Hashes,
    slots: Hashes,
    numbers: Places,
) -> tuple[Offsets, Offsets]:
    """Look up all n-grams of texts: O(B), about 150 MB/s where few are found.

    Allocates 16 bytes a byte of the longest text.

    Args:
        offsets, data: the texts, N of them.
        table, kinds: `folded_characters()`, BYTE_KINDS.
        ngram: words of an n-gram.
        bitmap, slots, numbers: of `Grams`.

    Returns:
        (N,) words of each text; and (3 n,) text, first word and number of each n-gram found, one
        behind the other, in order.
    """
    num_docs = len(offsets) - 1
    longest = 0
    for doc in range(num_docs):
        longest = max(longest, offsets[doc + 1] - offsets[doc])
    words, edges = np.empty(longest, np.uint64), np.empty(longest + 2, np.int32)
    begins = np.empty(longest, np.int32)
    counts = np.zeros(num_docs, np.int64)
    found = np.empty(3 << 12, np.int64)
    factor, shift = _gram_power(ngram), _bit_shift(bitmap)
    num = 0
    for doc in range(num_docs):
        count = hash_words(data, offsets[doc], offsets[doc + 1], table, kinds, edges, words, begins)
        counts[doc] = count
        value = np.uint64(0)
        for at in range(count):
            value = value * GRAM_FACTOR + words[at]
            if at >= ngram:
                value -= words[at - ngram] * factor
            mixed = mix64(value) | np.uint64(1)
            bit = mixed >> shift
            if bitmap[bit >> np.uint64(6)] >> (bit & np.uint64(63)) & np.uint64(1) == 0:
                continue
            gram = _find(mixed, slots, numbers)
            if gram < 0 or at < ngram - 1:
                continue
            if num == len(found):
                found = _doubled(found)
            found[num], found[num + 1], found[num + 2] = doc, at - ngram + 1, gram
            num += 3
    return counts, found[:num]


@kernel
def _find(value: np.uint64, slots: Hashes, numbers: Places) -> int:
    """Return the number of an n-gram, -1 if there is none."""
    mask = np.uint64(len(slots) - 1)
    slot = value >> np.uint64(1) & mask
    while slots[slot] != 0:
        if slots[slot] == value:
            return int(numbers[slot])
        slot = (slot + np.uint64(1)) & mask
    return -1


@kernel
def _doubled(numbers: Offsets) -> Offsets:
    """Return an array of twice the size that begins with another."""
    larger = np.empty(2 * len(numbers), np.int64)
    for at in range(len(numbers)):
        larger[at] = numbers[at]
    return larger

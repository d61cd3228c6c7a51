"""One-permutation signatures: each shingle is hashed once, and goes to one place of K.

The signature of a set has K places. In round 0 each shingle goes to the place that its hash names,
and the smallest of a place stays. If places are left empty, all shingles are hashed anew and
distributed again, in round 1, 2 ...; what an earlier round left in a place stays. From round K on
all shingles go to the place round - K, so there are at most 2 K rounds. Two sets of Jaccard
similarity J agree in a place with probability J, whatever their sizes, and places are nearly
independent. The number of hashes is W where W is far above K ln K, and about K ln K below.

Source: Dahlgaard, Knudsen, Thorup: Fast Similarity Sketching, FOCS 2017 (their rounds are cut short
by the same rule). Unlike one-permutation hashing with densification no place is a copy of another:
those of small sets are as independent as those of large ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.hashing import mix64, xxh64
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.minhash import polynomials
from corpuskit.kernels.utf8 import characters
from corpuskit.kernels.wordhash import BYTE_KINDS, word_hashes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

HASH_BITS = 40
"""Bits of a hash that are compared inside a place; those above hold the round."""

_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_KEPT = np.uint64((1 << HASH_BITS) - 1)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def sketch_texts(
    offsets: Offsets,
    data: Bytes,
    *,
    ngram: int,
    bands: int,
    rows: int,
    seed: int,
    values: bool = False,
) -> tuple[Hashes, NDArray[np.bool_], Hashes | None]:
    """Return band keys (N, bands), which texts have any (N,), and on request the signatures.

    Shingles are n-grams of words (see wordhash); a text with fewer than `ngram` words has one
    shingle, all of them. O(B) where texts are longer than K words; allocates 8 N bands bytes (with
    `values` 8 N K more) and for the longest text of b bytes 8 b.
    """
    num_docs, width = len(offsets) - 1, bands * rows
    found = np.empty((num_docs if values else 1, width), np.uint64)
    salt = np.uint64((seed * int(_GOLDEN)) & int(_EMPTY))
    keys, signed = _sketch_texts(
        offsets, data, characters(), BYTE_KINDS, ngram, bands, salt, found, values
    )
    return keys, signed, found if values else None


@kernel
def _sketch_texts(
    offsets: Offsets,
    data: Bytes,
    characters: NDArray[np.uint32],
    kinds: Bytes,
    ngram: int,
    bands: int,
    salt: np.uint64,
    values: Hashes,
    keeps_values: bool,
) -> tuple[Hashes, NDArray[np.bool_]]:
    num_docs = len(offsets) - 1
    longest = 0
    for doc in range(num_docs):
        longest = max(longest, offsets[doc + 1] - offsets[doc])
    edges = np.empty(longest + 2, np.int32)
    hashes = np.empty(longest // 2 + 1, np.uint64)
    keys = np.zeros((num_docs, bands), np.uint64)
    signed = np.zeros(num_docs, np.bool_)
    for doc in range(num_docs):
        signature = values[doc if keeps_values else 0]
        num_words = word_hashes(
            data, offsets[doc], offsets[doc + 1], characters, kinds, edges, hashes
        )
        signed[doc] = num_words > 0
        if num_words == 0:
            signature[:] = _EMPTY
            continue
        sketch(hashes, polynomials(hashes, num_words, ngram), salt, signature)
        band_keys(signature, keys[doc])
    return keys, signed


@kernel
def band_keys(signature: Hashes, out: Hashes) -> None:
    """Fill `out`, (bands,), with XXH64 of each band's values."""
    content = signature.view(np.uint8)
    size = len(content) // len(out)
    for band in range(len(out)):
        out[band] = xxh64(content, band * size, (band + 1) * size, np.uint64(0))


@kernel
def sketch(shingles: Hashes, num_shingles: int, salt: np.uint64, out: Hashes) -> None:
    """Fill `out`, (K,), with the signature of a set. O(W + K log K), 2.5 ns a shingle.

    Args:
        shingles: the first `num_shingles` count, at least 1. Need not be well mixed: they are
            hashed here, in round r as mix64(shingle + salt + r * golden).
        salt: of round 0.
        out: the smallest `round << HASH_BITS | low bits of the hash` of each place.
    """
    width = np.uint64(len(out))
    out[:] = _EMPTY
    for turn in range(2 * len(out)):
        first = np.uint64(turn) << np.uint64(HASH_BITS)
        for i in range(num_shingles):
            mixed = mix64(shingles[i] + salt)
            place = (mixed >> np.uint64(32)) * width >> np.uint64(32)
            if turn >= len(out):
                place = np.uint64(turn - len(out))
            out[place] = min(out[place], first | (mixed & _KEPT))
        if out.max() != _EMPTY:
            break
        salt += _GOLDEN

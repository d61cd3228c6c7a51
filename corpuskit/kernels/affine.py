"""The permutations of 32-bit signatures, and datasketch's: from shingle hashes to signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.kernels.hashing import mix64, xxh64
from corpuskit.kernels.jit import inline, kernel
from corpuskit.kernels.minhash import PRIME, smallest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Offsets = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

_MIX_1 = np.uint32(0x85EBCA6B)
_MIX_2 = np.uint32(0xC2B2AE35)
_LOW = np.uint64(0xFFFFFFFF)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


def affine_permutations(
    num_hashes: int, seed: int, width: int
) -> tuple[NDArray[Any], NDArray[Any]]:
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
def sign_mersenne(bounds: Offsets, hashes: Hashes, a: Hashes, b: Hashes, out: Hashes) -> None:
    """Fill `out`, (N, K), as `smallest` does; rows without a hash as they are. O(W K)."""
    for doc in range(len(bounds) - 1):
        num = bounds[doc + 1] - bounds[doc]
        if num:
            smallest(hashes[bounds[doc] : bounds[doc + 1]], num, a, b, out[doc])


@kernel
def sign_mersenne32(
    bounds: Offsets, hashes: Hashes, a: Hashes, b: Hashes, out: NDArray[np.uint32]
) -> None:
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
def sign_affine32(
    bounds: Offsets,
    hashes: Hashes,
    a: NDArray[np.uint32],
    b: NDArray[np.uint32],
    out: NDArray[np.uint32],
) -> None:
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
def sign_affine64(bounds: Offsets, hashes: Hashes, a: Hashes, b: Hashes, out: Hashes) -> None:
    """Fill `out`, (N, K), with the smallest a mix(hash) + b mod 2**64. O(W K).

    Source: datasketch 2.0.0 MinHash.update_batch, scheme affine64.
    """
    for doc in range(len(bounds) - 1):
        least = out[doc]
        least[:] = _ALL
        for i in range(bounds[doc], bounds[doc + 1]):
            mixed = mix64(hashes[i])
            for k in range(len(a)):
                least[k] = min(least[k], mixed * a[k] + b[k])


@kernel
def keys_of_bands(content: NDArray[np.uint8], bands: int) -> Hashes:
    """Return XXH64 of each band's values, (N, bands), from the bytes of signatures, (N, bytes)."""
    keys = np.empty((len(content), bands), np.uint64)
    size = content.shape[1] // bands
    for doc in range(len(content)):
        for band in range(bands):
            keys[doc, band] = xxh64(content[doc], band * size, (band + 1) * size, np.uint64(0))
    return keys

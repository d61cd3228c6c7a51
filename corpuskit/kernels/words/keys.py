"""Keys of chunks: the bytes of short ones, 120 bits of hash of long ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.hashing import load64, load_tail
from corpuskit.kernels.jit import inline, kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

_MULTIPLY = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xC2B2AE3D27D4EB4F),
    np.uint64(0xD6E8FEB86659FD93),
)
_LONG = np.uint64(0xFF << 56)


@inline
def mix_key(low: np.uint64, high: np.uint64) -> np.uint64:
    """Return where a chunk is looked for first."""
    value = (low ^ (high * _MULTIPLY[1])) * _MULTIPLY[0]
    value ^= value >> np.uint64(32)
    return (value * _MULTIPLY[2]) >> np.uint64(20)


@kernel
def long_key(data: Bytes, start: int, stop: int) -> tuple[np.uint64, np.uint64]:
    """Return 120 bits of hash of a chunk of 16 bytes and more, its high byte 255."""
    low, high = _MULTIPLY[0] ^ np.uint64(stop - start), _MULTIPLY[1]
    at = start
    while at < stop:
        group = load64(data, at) if at + 8 <= stop else load_tail(data, at, stop)
        low = (low ^ group) * _MULTIPLY[2]
        low ^= low >> np.uint64(32)
        high = (high + group) * _MULTIPLY[0]
        high ^= high >> np.uint64(31)
        at += 8
    low *= _MULTIPLY[1]
    return low ^ (low >> np.uint64(32)), (high >> np.uint64(8)) | _LONG


def _kept_bytes() -> NDArray[np.uint64]:
    """Size of a chunk -> which bytes of its first and its second group of 8 are its own."""
    masks = [(1 << 8 * size) - 1 for size in range(16)]
    return np.array([[mask & (1 << 64) - 1, mask >> 64] for mask in masks], np.uint64)


_KEPT = _kept_bytes()


@inline
def short_key(data: Bytes, start: int, stop: int) -> tuple[np.uint64, np.uint64]:
    """Return the bytes of a chunk of at most 15 bytes and, in the high byte, how many they are."""
    size = np.uint64(stop - start)
    if start + 16 <= len(data):
        low = load64(data, start) & _KEPT[size, 0]
        high = load64(data, start + 8) & _KEPT[size, 1]
    else:
        low = load_tail(data, start, min(stop, start + 8))
        high = load_tail(data, start + 8, stop)
    return low, high | size << np.uint64(56)

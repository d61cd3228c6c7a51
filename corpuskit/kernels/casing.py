"""Texts in lower case, as str.lower() has them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.hashing import load64
from corpuskit.kernels.jit import inline, kernel
from corpuskit.kernels.utf8 import char_width, code_point
from corpuskit.kernels.wordhash import characters

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]

_CODE = 0x1FFFFF
"""Bits of an entry of `characters()`: the lower-case code point."""

_HIGH_BITS = np.uint64(0x8080808080808080)
_FROM_A = np.uint64(0x3F3F3F3F3F3F3F3F)
_BEHIND_Z = np.uint64(0x2525252525252525)


def lower_texts(offsets: Offsets, data: Bytes) -> tuple[Offsets, Bytes]:
    """Return texts in lower case, exactly as str.lower(); read-only, as Arrow's buffers are.

    A text that holds U+0130, whose lower case is two characters, or a capital sigma, whose lower
    case depends on its neighbours, is left to Python.
    """
    bounds, lower, odd = _lower(offsets, data, characters())
    lower = lower[: bounds[-1]]
    if odd.any():
        pieces = [lower[begin:end].tobytes() for begin, end in itertools.pairwise(bounds)]
        for row in np.flatnonzero(odd).tolist():
            text = data[offsets[row] : offsets[row + 1]].tobytes().decode()
            pieces[row] = text.lower().encode()
        bounds = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
        lower = np.frombuffer(b"".join(pieces), np.uint8)
    bounds.flags.writeable = lower.flags.writeable = False
    return bounds, lower


@kernel
def _lower(
    offsets: Offsets, data: Bytes, characters: NDArray[np.uint32]
) -> tuple[Offsets, Bytes, NDArray[np.bool_]]:
    """O(B), above 2 GB/s for ASCII; allocates 1.5 B bytes: U+023A is 2 bytes, its lower case 3."""
    num_docs = len(offsets) - 1
    out = np.empty((offsets[num_docs] - offsets[0]) * 3 // 2 + 4, np.uint8)
    bounds = np.zeros(num_docs + 1, np.int64)
    odd = np.zeros(num_docs, np.bool_)
    size = int(np.int64(0))  # typed: a literal compiles what it is given to once more
    for doc in range(num_docs):
        size = _lower_text(data, offsets[doc], offsets[doc + 1], characters, out, size)
        odd[doc] = size < 0
        size = max(size, bounds[doc])
        bounds[doc + 1] = size
    return bounds, out, odd


@kernel
def _lower_text(
    data: Bytes, begin: int, end: int, characters: NDArray[np.uint32], out: Bytes, size: int
) -> int:
    """Write a text from `out[size]` on; return where it ends, -1 if it must be left to Python."""
    at = begin
    while at < end:
        if at + 8 <= end:
            group = load64(data, at)
            if group & _HIGH_BITS == 0:
                _store64(_lower_group(group), out, size)
                size += 8
                at += 8
                continue
        byte = data[at]
        if byte < 0x80:
            out[size] = byte + 32 if 65 <= byte <= 90 else byte
            size += 1
            at += 1
            continue
        code = code_point(data, at)
        if code == 0x130 or code == 0x3A3:
            return -1
        width = char_width(byte)
        lower = np.int64(characters[code] & _CODE) if code < len(characters) else code
        if lower == code:
            for place in range(width):
                out[size + place] = data[at + place]
            size += width
        else:
            size = _write(int(lower), out, size)
        at += width
    return size


@inline
def _lower_group(group: np.uint64) -> np.uint64:
    """Return 8 ASCII characters in lower case: a capital is at least A and not behind Z."""
    capitals = ((group + _FROM_A) ^ (group + _BEHIND_Z)) & _HIGH_BITS
    return group | capitals >> np.uint64(2)


@inline
def _store64(value: np.uint64, out: Bytes, at: int) -> None:
    """Write 8 bytes, little endian; compiles to one store."""
    place = np.uint64(at)
    for byte in range(8):
        out[place + np.uint64(byte)] = np.uint8(value >> np.uint64(8 * byte) & np.uint64(0xFF))


@kernel
def _write(code: int, out: Bytes, at: int) -> int:
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

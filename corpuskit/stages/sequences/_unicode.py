"""Code points on which tokenizer engines may differ, for they know different Unicode versions."""

from __future__ import annotations

import functools
import unicodedata
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.jit import inline, kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray


PLANES = (*range(0x40000), *range(0xE0000, 0xE1000))
"""Where code points have been assigned so far."""
PRIVATE = 0xF0000
"""From here on code points are for private use, in every version."""


@functools.cache
def disputed(*, normalizes: bool) -> NDArray[np.uint8]:
    """Return a bitmap, (0x22000,) uint8, of the code points on which the engines may differ.

    Those that the reference's Unicode has not assigned. Its normalizers are older still (they don't
    compose U+11935 U+11930, of Unicode 13), so with one all letters and marks newer than Unicode
    3.2 count, the one older version that every Python knows. Takes about 0.05 CPU seconds.
    """
    marked = np.ones(0x110000, np.uint8)
    marked[[*PLANES]] = marked[PRIVATE:] = 0
    marked[_matching(r"[^\p{Cn}]")] = 1
    if normalizes:
        recent = _matching(r"[^\p{L}\p{M}]")
        old = unicodedata.ucd_3_2_0
        marked[[point for point in recent if old.category(chr(point)) == "Cn"]] = 1
    return np.packbits(marked, bitorder="little")


def _matching(others: str) -> list[int]:
    """Return the code points that Hugging Face's regular expressions do not put in `others`."""
    from tokenizers import Regex, normalizers

    remove = normalizers.Replace(Regex(others), "")
    # In pieces: one text of all code points costs 1 CPU second, and 0.7 GB.
    blocks = (PLANES[at : at + 2048] for at in range(0, len(PLANES), 2048) if at != 0xD800)
    texts = ("".join(map(chr, block)) for block in blocks)
    return [ord(char) for text in texts for char in remove.normalize_str(text)]


@kernel
def find_disputed(
    offsets: NDArray[np.int64], data: NDArray[np.uint8], marked: NDArray[np.uint8]
) -> NDArray[np.bool_]:
    """Return which texts hold a marked code point, (N,). O(B), stops at the first in each text.

    Args:
        offsets, data: (N + 1,), (B,) valid UTF-8.
        marked: bitmap over code points, lowest bit first.
    """
    found = np.zeros(len(offsets) - 1, np.bool_)
    for text in range(len(found)):
        place, end = offsets[text], offsets[text + 1]
        while place < end:
            if place + 32 <= end and _is_ascii(data[place : place + 32]):
                place += 32
                continue
            point, size = np.int64(data[place]), 1
            if point >= 0x80:
                size = 2 if point < 0xE0 else 3 if point < 0xF0 else 4
                point &= 0x7F >> size
                for follow in range(place + 1, place + size):
                    point = point << 6 | np.int64(data[follow]) & 0x3F
                if marked[point >> 3] >> (point & 7) & 1:
                    found[text] = True
                    break
            place += size
    return found


@inline
def _is_ascii(block: NDArray[np.uint8]) -> bool:
    """Say whether 32 bytes are all ASCII, without a branch per byte."""
    together = np.uint8(0)
    for place in range(32):
        together |= block[place]
    return bool(together < np.uint8(0x80))

"""Rewriting texts by byte ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.jit import kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]


def replace_spans(
    offsets: Offsets,
    data: Bytes,
    rows: Offsets,
    starts: Offsets,
    ends: Offsets,
    codes: Bytes,
    replacements: Sequence[bytes],
) -> tuple[Offsets, Bytes]:
    """Return the texts with span i replaced by `replacements[codes[i]]`; O(B), allocates the copy.

    Args:
        offsets, data: the texts, N of them.
        rows, starts, ends: (n,) the spans: document, bytes from its beginning; sorted, disjoint.
        codes: (n,) uint8 into `replacements`.
        replacements: an empty one cuts.
    """
    sizes = np.array([len(piece) for piece in replacements], np.int64)
    begins = np.cumsum(sizes) - sizes
    pieces = np.frombuffer(b"".join(replacements), np.uint8)
    change = np.zeros(len(offsets), np.int64)
    np.add.at(change, rows + 1, sizes[codes] - (ends - starts))
    moved = offsets - offsets[0] + np.cumsum(change)
    output = np.empty(moved[-1], np.uint8)
    _splice(offsets, data, rows, starts, ends, codes, begins, sizes, pieces, moved, output)
    return moved, output


@kernel
def _splice(
    offsets: Offsets,
    data: Bytes,
    rows: Offsets,
    starts: Offsets,
    ends: Offsets,
    codes: Bytes,
    begins: Offsets,
    sizes: Offsets,
    pieces: Bytes,
    moved: Offsets,
    output: Bytes,
) -> None:
    """Copy what lies between spans in one go, spans of other rows or none at all in between."""
    read, write = offsets[0], moved[0]
    for span in range(len(rows)):
        begin = offsets[rows[span]]
        kept = begin + starts[span] - read
        output[write : write + kept] = data[read : read + kept]
        write += kept
        first, size = begins[codes[span]], sizes[codes[span]]
        output[write : write + size] = pieces[first : first + size]
        write += size
        read = begin + ends[span]
    output[write:] = data[read : offsets[-1]]

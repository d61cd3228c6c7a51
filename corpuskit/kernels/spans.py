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
        write = _copy(data, read, begin + starts[span], output, write)
        first = begins[codes[span]]
        write = _copy(pieces, first, first + sizes[codes[span]], output, write)
        read = begin + ends[span]
    _copy(data, read, offsets[-1], output, write)


@kernel
def _copy(data: Bytes, start: int, end: int, output: Bytes, to: int) -> int:
    """Copy bytes, return where the copy ends. Assigning the slices would compile for 2 s."""
    source, target = data[start:end], output[to : to + end - start]
    for at in range(len(source)):
        target[at] = source[at]
    return to + len(source)

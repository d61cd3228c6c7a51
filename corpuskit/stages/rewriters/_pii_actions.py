"""Rewriting what was found: stand-ins, masks and tags."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.formats.batch import Utf8
from corpuskit.kernels.pii.scan import Found
from corpuskit.kernels.spans import replace_spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def select(found: Found, rows: NDArray[np.bool_]) -> Found:
    """Return some of the spans."""
    return Found(found.rows[rows], found.starts[rows], found.ends[rows], found.kinds[rows])


def turns(found: Found) -> NDArray[np.int64]:
    """Return of each span how many of its kind stand before it in its document."""
    order = np.lexsort((found.starts, found.rows, found.kinds))
    rows, kinds = found.rows[order], found.kinds[order]
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (rows[1:] != rows[:-1]) | (kinds[1:] != kinds[:-1])
    places = np.arange(len(rows))
    turn = np.empty(len(rows), np.int64)
    turn[order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return turn


def put(text: Utf8, found: Found, pieces: Sequence[Sequence[bytes]]) -> Utf8:
    """Replace spans by the pieces of their kind, in turn, beginning anew with each document."""
    sizes = np.array([len(options) for options in pieces], np.int64)
    firsts = np.cumsum(sizes) - sizes
    codes = firsts[found.kinds] + turns(found) % sizes[found.kinds]
    flat = [piece for options in pieces for piece in options]
    assert len(flat) <= 256, "codes are bytes"
    place = (found.rows, found.starts, found.ends, codes.astype(np.uint8))
    return _frozen(*replace_spans(text.offsets, text.data, *place, flat))


def mask(text: Utf8, found: Found, character: str) -> Utf8:
    """Write a character over all bytes of the spans, which are ASCII."""
    first, last = text.offsets[0], text.offsets[-1]
    output = text.data[first:last].copy()
    sizes = found.ends - found.starts
    begins = text.offsets[found.rows] - first + found.starts
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    output[np.repeat(begins, sizes) + within] = ord(character)
    return _frozen(text.offsets - first, output)


def _frozen(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> Utf8:
    """Kernels are compiled for read-only arrays, as Arrow's are."""
    offsets.flags.writeable = data.flags.writeable = False
    return Utf8(offsets, data)

"""Special cases that a chunk loses to a longer one that reaches into its neighbour."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from corpuskit.kernels.jit import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]


class Seams(NamedTuple):
    """Where a special case of one chunk gives way to one that reaches into a neighbour.

    Attributes:
        firsts: (n,) int64, ascending: first words of chunks that may lose a special case.
        groups: (n,) int64: their rows of `bounds`.
        bounds: (G + 1,) int64: group g loses it to the texts `bounds[g]:bounds[g + 1]`.
        sides: (E,) uint8: 1 if the text stands behind the chunk, 0 before; plus 2 if a letter or
            digit beyond it would be part of the same word.
        starts, data: text e is `data[starts[e]:starts[e + 1]]`.
        forbidden: a text that holds these bytes is a question as a whole; empty for none.
    """

    firsts: Offsets
    groups: Offsets
    bounds: Offsets
    sides: Bytes
    starts: Offsets
    data: Bytes
    forbidden: Bytes


@kernel
def place_of(values: Offsets, wanted: int | np.int64) -> int:
    """Return where the first of ascending values stands that is not below the wanted one.

    As np.searchsorted, which takes 0.4 s to compile.
    """
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def is_touched(
    data: Bytes, begin: int, end: int, start: int, stop: int, seams: Seams, token: int | np.int64
) -> bool:
    """Return whether the chunk whose first word is `token` loses a special case."""
    group = seams.groups[place_of(seams.firsts, token)]
    for entry in range(seams.bounds[group], seams.bounds[group + 1]):
        first, last = seams.starts[entry], seams.starts[entry + 1]
        if seams.sides[entry] & 1:
            step, at, place, stop_place, limit = 1, stop, first, last, end
        else:
            step, at, place, stop_place, limit = -1, start - 1, last - 1, first - 1, begin - 1
        if at == limit or data[at] != 32:
            continue
        while place != stop_place:
            if at != limit and data[at] == 32:
                at += step
            if at == limit or data[at] != seams.data[place]:
                break
            at += step
            place += step
        if place == stop_place and (
            not seams.sides[entry] & 2 or at == limit or not _same_word(data[at], data[at - step])
        ):
            return True
    return False


@kernel
def _same_word(left: int, right: int) -> bool:
    """Return whether spaCy never splits between these two bytes: two letters, two digits."""
    if 48 <= left <= 57:
        return bool(48 <= right <= 57)
    return bool(97 <= (left | 32) <= 122 and 97 <= (right | 32) <= 122)

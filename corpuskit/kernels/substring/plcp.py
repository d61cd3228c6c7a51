"""From a suffix array to the windows that occur more than once.

All texts stand in one array, each with a separator behind it that occurs in no text. Letters: M
symbols, separators included; N texts; L symbols of a window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Symbols = NDArray[np.uint8] | NDArray[np.uint32]
    Order = NDArray[np.int32] | NDArray[np.int64]
    Offsets = NDArray[np.int64]
    Flags = NDArray[np.uint8]


@kernel
def link_windows(symbols: Symbols, offsets: Offsets, order: Order, window: int) -> Flags:
    """Flag each window that equals the one before it in the suffix array, (M,).

    Equal windows are neighbours there, so all but one of them are flagged. Texts are walked in
    their own order: from one position to the next the part shared with the neighbour loses one
    symbol at most, and it never has to grow beyond L. Comparing neighbours in suffix order instead
    costs six times as much, in cache misses. O(M), allocates M bytes and, on the way, an array
    like `order`.

    Args:
        symbols: (M,) texts and separators.
        offsets: (N + 1,) where texts begin; a separator is the last symbol before the next one.
        order: (M,) the suffix array.
        window: L.

    Source: Karkkainen, Manzini, Puglisi 2009, "Permuted Longest-Common-Prefix Array".
    """
    linked = np.zeros(len(symbols), np.uint8)
    before = np.empty_like(order)
    before[order[0]] = -1
    for place in range(1, len(order)):
        before[order[place]] = order[place - 1]
    for text in range(len(offsets) - 1):
        shared = 0
        for at in range(offsets[text], offsets[text + 1] - window):
            other = np.int64(before[at])
            if other < 0:
                continue  # nothing is shared with nothing: `shared` is 0
            # Stops at a separator at the latest: there is none in this window.
            while shared < window and symbols[at + shared] == symbols[other + shared]:
                shared += 1
            linked[at] = shared == window
            shared = max(shared - 1, 0)
    return linked


@kernel
def flag_later(linked: Flags, order: Order) -> None:
    """Turn links into flags on all windows that occur at a smaller position, too. O(M)."""
    least = np.int64(order[0])
    for place in range(1, len(order)):
        at = np.int64(order[place])
        if not linked[at]:
            least = at
        elif at < least:
            linked[least], linked[at] = 1, 0
            least = at


@kernel
def flag_all(linked: Flags, order: Order) -> None:
    """Turn links into flags on all windows that occur elsewhere, too. O(M)."""
    for place in range(1, len(order)):
        if linked[order[place]]:
            linked[order[place - 1]] = 1

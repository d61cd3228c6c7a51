"""Which texts hold any of some bytes: what lets most texts pass without a closer look."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray


@kernel
def hold_any(
    offsets: NDArray[np.int64], data: NDArray[np.uint8], wanted: NDArray[np.uint8]
) -> NDArray[np.bool_]:
    """Return (N,) whether a text holds a byte that is wanted: O(B), stops at the first.

    Args:
        offsets, data: the texts.
        wanted: (256,) not zero for bytes that are wanted.
    """
    found = np.zeros(len(offsets) - 1, np.bool_)
    for row in range(len(found)):
        for pos in range(offsets[row], offsets[row + 1]):
            if wanted[data[pos]] != 0:
                found[row] = True
                break
    return found

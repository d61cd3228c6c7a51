"""Lines long enough to be paragraphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.jit import kernel
from corpuskit.kernels.utf8 import count_chars

if TYPE_CHECKING:
    from numpy.typing import NDArray


@kernel
def count_long_lines(
    offsets: NDArray[np.int64], data: NDArray[np.uint8], min_chars: int
) -> NDArray[np.int64]:
    r"""Return how many lines of each text have at least `min_chars` code points, (N,). O(B).

    Lines are what str.split("\n") gives: there is always one.
    """
    counts = np.zeros(len(offsets) - 1, np.int64)
    for row in range(len(counts)):
        start, end = offsets[row], offsets[row + 1]
        while start <= end:
            stop = start
            while stop < end and data[stop] != 10:
                stop += 1
            if stop - start >= min_chars and count_chars(data, start, stop) >= min_chars:
                counts[row] += 1
            start = stop + 1
    return counts

"""From flagged windows to spans, and spans that lie close together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Offsets = NDArray[np.int64]
    Flags = NDArray[np.uint8]


@kernel
def flagged_spans(flags: Flags, offsets: Offsets, window: int) -> tuple[Offsets, Offsets, Offsets]:
    """Return the union of the flagged windows of each text: texts, starts, ends, (S,) each.

    Sorted, disjoint, and none touch. O(M), allocates 48 bytes per window length of text.

    Args:
        flags: (M,) whether the window that begins here is flagged.
        offsets: (N + 1,) where texts begin; a separator is the last symbol before the next one.
        window: symbols of a window; no flagged one reaches beyond its text.
    """
    most = len(flags) // window + 1
    texts, starts, ends = (
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
    )
    num = 0
    for text in range(len(offsets) - 1):
        begin, end = offsets[text], np.int64(-1)
        for at in range(begin, offsets[text + 1] - window):
            if not flags[at]:
                continue
            if at > end:
                texts[num], starts[num] = text, at - begin
                num += 1
            end = at + window
            ends[num - 1] = end - begin
    return texts[:num].copy(), starts[:num].copy(), ends[:num].copy()


@kernel
def join_spans(
    rows: Offsets, starts: Offsets, ends: Offsets, fragment: int
) -> tuple[Offsets, Offsets, Offsets]:
    """Join spans of a row with less than `fragment` in between; leave out empty ones. O(S).

    Args:
        rows, starts, ends: (S,) sorted and disjoint.
    """
    kept_rows, kept_starts, kept_ends = rows.copy(), starts.copy(), ends.copy()
    num = 0
    for span in range(len(rows)):
        if starts[span] == ends[span]:
            continue
        is_near = num > 0 and kept_rows[num - 1] == rows[span]
        if is_near and starts[span] - kept_ends[num - 1] < fragment:
            kept_ends[num - 1] = ends[span]
        else:
            kept_rows[num], kept_starts[num], kept_ends[num] = rows[span], starts[span], ends[span]
            num += 1
    return kept_rows[:num].copy(), kept_starts[:num].copy(), kept_ends[:num].copy()

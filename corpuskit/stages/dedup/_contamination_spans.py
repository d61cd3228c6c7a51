"""Spans of texts: joined where they meet, widened to sentences or lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corpuskit.batch import Utf8

    Numbers = NDArray[np.int64]

_STOPS = b".?!"
_CLOSING = b"\"')]}"
_SPACES = b" \t\r\n"


def merge_spans(
    rows: Numbers, starts: Numbers, ends: Numbers, codes: NDArray[np.integer]
) -> tuple[Numbers, Numbers, Numbers, NDArray[np.uint8]]:
    """Join spans of a text that overlap or touch; the smallest code of each stays.

    Returns:
        Rows, starts, ends and codes, sorted by row and start; empty spans are left out.
    """
    order = np.lexsort((ends, starts, rows))
    order = order[starts[order] < ends[order]]
    merged: list[list[int]] = []
    columns = (rows[order], starts[order], ends[order], codes[order])
    for row, start, end, code in zip(*(column.tolist() for column in columns), strict=True):
        if merged and merged[-1][0] == row and start <= merged[-1][2]:
            last = merged[-1]
            last[2], last[3] = max(last[2], end), min(last[3], code)
        else:
            merged.append([row, start, end, code])
    table = np.array(merged, np.int64).reshape(-1, 4)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(np.uint8)


def widen_spans(
    text: Utf8, rows: Numbers, starts: Numbers, ends: Numbers, to: Literal["sentence", "line"]
) -> tuple[Numbers, Numbers]:
    """Return spans widened to whole lines, or to sentences within their lines.

    A sentence ends with a full stop, question mark or exclamation mark, closing marks behind it,
    before a space. A whole line is cut with its line feed.
    """
    new_starts, new_ends = starts.copy(), ends.copy()
    for at, row in enumerate(rows.tolist()):
        content = text.row(row)
        start, end = int(starts[at]), int(ends[at])
        low = content.rfind(b"\n", 0, start) + 1
        high = content.find(b"\n", end)
        high = len(content) if high < 0 else high
        if to == "sentence":
            low, high = _sentence(content, start, end, low, high)
        elif high < len(content):
            high += 1
        new_starts[at], new_ends[at] = low, high
    return new_starts, new_ends


def _sentence(content: bytes, start: int, end: int, low: int, high: int) -> tuple[int, int]:
    """Return where the sentences around a span begin and end, within a line."""
    at = start
    while at > low and not _ends_before(content, at, low):
        at -= 1
    stop = end
    while stop < high and not _ends_before(content, stop, low):
        stop += 1
    while stop < high and content[stop] in _SPACES:
        stop += 1
    return at, stop


def _ends_before(content: bytes, at: int, low: int) -> bool:
    """Return whether a sentence ends right before `at`, spaces behind it included."""
    behind = at
    while behind > low and content[behind - 1] in _SPACES:
        behind -= 1
    if behind == at and at < len(content) and content[at] not in _SPACES:
        return False
    while behind > low and content[behind - 1] in _CLOSING:
        behind -= 1
    return behind > low and content[behind - 1] in _STOPS

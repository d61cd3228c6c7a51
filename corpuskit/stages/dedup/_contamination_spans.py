"""Spans of texts: joined where they meet, widened to sentences or lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corpuskit.formats.batch import Utf8

    Numbers = NDArray[np.int64]

REACH_BYTES = 500
"""Sentences are cut at most so far before and behind what was found."""

_LONGEST = 4
"""Bytes of a character: the span may end with a full stop."""

_STOPS = (".", "?", "!", "\u2026", "\uff0e")
"""End a sentence before a space: they are in numbers and names, too."""

_LONE_STOPS = (
    "\u3002", "\uff01", "\uff1f", "\uff61",  # Chinese and Japanese
    "\u0964", "\u0965",  # Hindi, Bengali and others
    "\u061f", "\u06d4",  # Arabic, Urdu
    "\u0589", "\u0f0d", "\u104b", "\u1362", "\u1367", "\u17d4",  # hy, bo, my, am, km
    "\u203c", "\u2047", "\u2048", "\u2049",
)  # fmt: skip
"""End a sentence whatever follows."""

_CLOSING = (
    "\"", "'", ")", "]", "}", "\u2019", "\u201d", "\xbb", "\u203a", "\u3009", "\u300b",
    "\u300d", "\u300f", "\u3011", "\uff09", "\uff3d",
)  # fmt: skip
_SPACES = (" ", "\t", "\r", "\xa0", "\u3000")


def _any(characters: tuple[str, ...]) -> bytes:
    return b"(?:" + b"|".join(re.escape(one.encode()) for one in characters) + b")"


_CLOSED = _any(_CLOSING) + b"*+"
_BEFORE_SPACE = _any(_STOPS) + _CLOSED + b"(?=" + _any(_SPACES) + rb"|\n|\Z)"
_ALONE = _any(_LONE_STOPS) + _CLOSED
_END = re.compile(b"(?:" + _BEFORE_SPACE + b"|" + _ALONE + b")" + _any(_SPACES) + b"*+")
"""The end of a sentence, with the spaces behind it."""


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
    before a space; with those of scripts that put none, without. It is followed for `REACH_BYTES`
    each way, no further than to the border of a character. A whole line is cut with its line feed.
    The time grows with the text and the number of spans, not with their product.

    Args:
        text: the texts.
        rows, starts, ends: spans as `merge_spans` returns them: sorted, apart from one another.
        to: how far.
    """
    new_starts, new_ends = starts.copy(), ends.copy()
    last, content, seen, low, high = -1, b"", 0, 0, -1
    for at, row in enumerate(rows.tolist()):
        start, end = int(starts[at]), int(ends[at])
        if row != last:
            content, last = text.row(row), row
            seen, low, high = 0, 0, -1
        feed = content.rfind(b"\n", seen, start)
        seen, low = start, low if feed < 0 else feed + 1
        if end > high:
            high = content.find(b"\n", end)
            high = len(content) if high < 0 else high
        if to == "sentence":
            new_starts[at], new_ends[at] = _sentence(content, start, end, low, high)
        else:
            new_starts[at], new_ends[at] = low, min(high + 1, len(content))
    return new_starts, new_ends


def _sentence(content: bytes, start: int, end: int, low: int, high: int) -> tuple[int, int]:
    """Return where the sentences around a span begin and end, within a line and reach."""
    low, high = max(low, start - REACH_BYTES), min(high, end + REACH_BYTES)
    while low < start and content[low] & 0xC0 == 0x80:
        low += 1
    while end < high < len(content) and content[high] & 0xC0 == 0x80:
        high -= 1
    # One byte more than is looked at: the end of what is searched counts as the end of the text.
    for found in _END.finditer(content, low, start + 1):
        if found.end() <= start:
            low = found.end()
    for found in _END.finditer(content, max(start, end - _LONGEST), high + 1):
        if end <= found.end() <= high:
            return low, found.end()
    return low, high

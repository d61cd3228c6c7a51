"""C4's line rules: which lines stay, and the text that is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from corpuskit.kernels.cuts import add_cut, close_gap, fill_gap
from corpuskit.kernels.filters.c4lines import (
    BRACKET,
    BYTE_KINDS,
    CURLY,
    LOREM,
    SPACE,
    LineTests,
    cut_citations,
    next_line,
    test_line,
)
from corpuskit.kernels.filters.phrases import ANCHORS, PHRASE_BOUNDS, PHRASES
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.utf8 import (
    char_table,
    skip_space,
    skip_space_back,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]


class Draft(NamedTuple):
    """What the line rules left of N documents.

    Attributes:
        offsets, data: texts of the lines that stay, joined; ends not yet stripped. Empty where the
            document is dropped.
        codes: (N,) uint8 into RULES: what dropped a document so far.
        num_lines: (N,) lines that stay, blank ones at the beginning included.
        rows, starts, ends: (n,) cuts: document, bytes from its beginning.
        cut_codes: (n,) uint8 into RULES.
    """

    offsets: Offsets
    data: Bytes
    codes: Bytes
    num_lines: Offsets
    rows: Offsets
    starts: Offsets
    ends: Offsets
    cut_codes: Bytes


def rewrite_lines(
    offsets: Offsets,
    data: Bytes,
    tests: LineTests,
    sentences: tuple[Offsets, Offsets] | None = None,
) -> Draft:
    r"""Test each line as str.splitlines gives it, and join those that stay with \n.

    O(B), allocates the copy and 17 bytes for each cut there could be.

    Args:
        offsets, data: the texts.
        tests: what lines have to pass.
        sentences: test these instead (`sentences.sentence_edges`) and join them with a space.
    """
    num_docs = len(offsets) - 1
    pieces, edges = sentences if sentences is not None else (_NONE, _NONE)
    room = _count_marks(offsets, data) * 2 + len(edges) * 2 + 4 * num_docs
    starts, ends = np.empty(room, np.int64), np.empty(room, np.int64)
    cut_codes = np.empty(room, np.uint8)
    # Sentences that touch each other are joined by a space that was not there.
    text = np.empty(int(offsets[-1] - offsets[0]) + len(edges), np.uint8)
    moved, cut_bounds = np.zeros(num_docs + 1, np.int64), np.zeros(num_docs + 1, np.int64)
    codes, num_lines = np.zeros(num_docs, np.uint8), np.zeros(num_docs, np.int64)
    _rewrite(
        offsets, data, pieces, edges, np.array(tests, np.int64), BYTE_KINDS, _digits(), PHRASES,
        PHRASE_BOUNDS, ANCHORS, text, moved, codes, num_lines, starts, ends, cut_codes, cut_bounds,
    )  # fmt: skip
    num = cut_bounds[-1]
    rows = np.repeat(np.arange(num_docs), np.diff(cut_bounds))
    begins = offsets[rows]
    used = text[: moved[-1]]
    moved.flags.writeable = used.flags.writeable = False
    return Draft(
        moved, used, codes, num_lines, rows, starts[:num] - begins, ends[:num] - begins,
        cut_codes[:num],
    )  # fmt: skip


def strip_texts(offsets: Offsets, data: Bytes) -> tuple[Offsets, Bytes]:
    """Return the texts as str.rstrip leaves them; those given where that changes nothing."""
    ends = _right_ends(offsets, data)
    if np.array_equal(ends, offsets[1:]):
        return offsets, data
    moved = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - offsets[:-1])])
    text = np.empty(moved[-1], np.uint8)
    for row in range(len(ends)):
        text[moved[row] : moved[row + 1]] = data[offsets[row] : ends[row]]
    moved.flags.writeable = text.flags.writeable = False
    return moved, text


_NONE = np.empty(0, np.int64)


def _digits() -> Bytes:
    return char_table(str.isdecimal)


@kernel
def _count_marks(offsets: Offsets, data: Bytes) -> int:
    """Return how many lines and citations there can be at most, documents aside."""
    num = 0
    for at in range(offsets[0], offsets[-1]):
        byte = data[at]
        num += (9 < byte < 14) | (27 < byte < 31) | (byte == 0xC2) | (byte == 0xE2) | (byte == 91)
    return num


@kernel
def _right_ends(offsets: Offsets, data: Bytes) -> Offsets:
    """Return where each text ends without the whitespace at its end, (N,)."""
    ends = np.empty(len(offsets) - 1, np.int64)
    for row in range(len(ends)):
        ends[row] = skip_space_back(data, offsets[row], offsets[row + 1])
    return ends


@kernel
def _strip_left(text: Bytes, start: int, end: int) -> int:
    """Move a copied line to the left over the whitespace it begins with, return its new end."""
    lead = skip_space(text, start, end) - start
    if lead > 0:
        for at in range(start, end - lead):
            text[at] = text[at + lead]
    return end - lead


@kernel
def _rewrite(
    offsets: Offsets,
    data: Bytes,
    pieces: Offsets,
    edges: Offsets,
    tests: Offsets,
    byte_kinds: Bytes,
    digits: Bytes,
    phrase: Bytes,
    bounds: Offsets,
    anchors: Bytes,
    text: Bytes,
    moved: Offsets,
    doc_codes: Bytes,
    num_lines: Offsets,
    starts: Offsets,
    ends: Offsets,
    codes: Bytes,
    cut_bounds: Offsets,
) -> None:
    """Fill the arrays from `text` on; O(B).

    `low` is where the last line that stays ends, `solid` its last character that is no whitespace.
    """
    by_line = len(pieces) == 0
    joiner = 10 if by_line else 32
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        base, num = moved[row], cut_bounds[row]
        first = before = num
        size, low, solid, lines, dropped = base, at, at, 0, 0
        piece = np.int64(0) if by_line else pieces[row]
        while (at < end) if by_line else (piece < pieces[row + 1]):
            if by_line:
                stop, after, seen = next_line(data, at, end, byte_kinds)
            else:
                stop = after = offsets[row] + edges[piece]
                piece, seen = piece + 1, BRACKET
            a = skip_space(data, at, stop)
            b = skip_space_back(data, a, stop)
            has_brackets = tests[2] != 0 and seen & BRACKET != 0
            is_open = size == base
            to = size if is_open else size + 1
            code, last = test_line(
                data, a, b, has_brackets, tests, digits, phrase, bounds, anchors, text, to
            )
            if code in (LOREM, CURLY):
                dropped = code
                break
            if code == 0:
                lines += 1
                if is_open:
                    last = _strip_left(text, to, last)
                    if last == to:
                        code = SPACE  # blank lines count as sentences, but do not begin a text
            if code != 0:
                num = add_cut(starts, ends, codes, first, num, at, after, code)
                at = after
                continue
            if not is_open:
                text[size] = joiner
                num = close_gap(data, starts, ends, codes, first, num, low, a, joiner, SPACE)
                first = num
            size = last
            if has_brackets:
                num, first, tail = cut_citations(
                    data, a, b, digits, is_open, starts, ends, codes, first, num, low
                )
                solid = max(solid, tail)
            else:
                if is_open:
                    num = fill_gap(starts, ends, codes, first, num, low, a, SPACE)
                    first = num
                solid = b if b > a else solid
            low, at = b, after
        if dropped:
            size, num, lines = base, before, 0
        else:
            num = fill_gap(starts, ends, codes, before, num, solid, end, SPACE)
        moved[row + 1], cut_bounds[row + 1] = size, num
        doc_codes[row], num_lines[row] = dropped, lines

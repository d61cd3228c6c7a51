"""Packing: documents are cut into pieces, pieces are assigned to rows, rows are filled.

Letters: N documents, P pieces, S rows, G segments (pieces and padded tails), T tokens. `width` is
the number of tokens in a row, `seq_len + 1`. All pieces of a document but its last end where a row
ends, so no two of them share a row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from corpuskit.kernels.arrays import Bytes, Int32s, Int64s, Uint32s, Uint64s
from corpuskit.kernels.hashing import ALL_BITS, copy
from corpuskit.kernels.jit import inline, kernel

CONTINUES = 1
"""Flag: the document began in another row."""
PADDING = 2
"""Flag: padding, no document."""
GOES_ON = 4
"""Flag: the document continues in another row."""

_ONE = np.uint64(1)


@kernel
def add_ends(ids: Uint32s, offsets: Int64s, first: int, last: int) -> tuple[Uint32s, Int64s]:
    """Put `first` before and `last` after the ids of each document; -1 adds none. O(T).

    Args:
        ids: (T,) token ids.
        offsets: (N + 1,) into `ids`, not starting at zero for a slice.
        first, last: ids to add.

    Returns:
        New ids, and new offsets that start at zero.
    """
    num_docs = len(offsets) - 1
    extra = (1 if first >= 0 else 0) + (1 if last >= 0 else 0)
    out = np.empty(offsets[num_docs] - offsets[0] + num_docs * extra, np.uint32)
    bounds = np.empty(num_docs + 1, np.int64)
    bounds[0] = size = 0
    for doc in range(num_docs):
        if first >= 0:
            out[size] = first
            size += 1
        begin, end = offsets[doc], offsets[doc + 1]
        copy(ids[begin:end], out[size : size + end - begin])
        size += end - begin
        if last >= 0:
            out[size] = last
            size += 1
        bounds[doc + 1] = size
    return out, bounds


@kernel
def cut_documents(
    num_tokens: Int64s, num_bytes: Int64s, width: int, used_tokens: int, joined: bool
) -> tuple[Int64s, Int64s, Int64s, Bytes]:
    """Cut documents where rows end. O(N + P).

    Args:
        num_tokens, num_bytes: (N,) tokens of each document, and bytes of its text.
        width: tokens per row.
        used_tokens: tokens already in the row where the first document begins, below `width`.
        joined: documents follow each other in one stream; otherwise each begins a row.

    Returns:
        Per piece, each (P,): the document, its tokens, its share of the document's bytes (rounded
        cumulatively, so that shares add up to the document), and its flags.
    """
    num_pieces = 0
    used = used_tokens
    for doc in range(len(num_tokens)):
        if not joined:
            used = 0
        if num_tokens[doc] > 0:
            num_pieces += (used + num_tokens[doc] - 1) // width + 1
        used = (used + num_tokens[doc]) % width
    docs = np.empty(num_pieces, np.int64)
    lengths = np.empty(num_pieces, np.int64)
    sizes = np.empty(num_pieces, np.int64)
    flags = np.empty(num_pieces, np.uint8)
    piece = 0
    used = used_tokens
    for doc in range(len(num_tokens)):
        if not joined:
            used = 0
        total, size = num_tokens[doc], num_bytes[doc]
        begin = 0
        while begin < total:
            end = min(begin + width - used, total)
            docs[piece] = doc
            lengths[piece] = end - begin
            sizes[piece] = size * end // total - size * begin // total
            flags[piece] = (CONTINUES if begin > 0 else 0) | (GOES_ON if end < total else 0)
            used = (used + end - begin) % width
            begin = end
            piece += 1
    return docs, lengths, sizes, flags


@kernel
def best_fit(lengths: Int64s, width: int) -> tuple[Int64s, int]:
    """Place pieces, longest first, each in the fullest row that still has room.

    Rows with the same free space form a stack (the row touched last is taken first), and a bitmap
    says which stacks hold rows, so that the best fit is the next bit set. O(P + width) steps, with
    a scan of at most `width / 64` words each; allocates 24 P + 16 width bytes.

    Args:
        lengths: (P,) tokens of each piece, 1 to `width`.
        width: tokens per row.

    Returns:
        (P,) row of each piece, and the number of rows.

    Source: Ding et al. 2024, Fewer Truncations Improve Language Modeling, section 3 (best-fit
    decreasing; there with a segment tree).
    """
    order = _longest_first(lengths, width)
    rows = np.empty(len(lengths), np.int64)
    top = np.full(width + 1, -1, np.int64)
    below = np.empty(len(lengths), np.int64)
    words = np.zeros((width >> 6) + 1, np.uint64)
    num_rows = 0
    for piece in order:
        length = lengths[piece]
        space = _next_bit(words, length)
        if space < 0:
            row, space = num_rows, width
            num_rows += 1
        else:
            row = top[space]
            top[space] = below[row]
            if top[space] < 0:
                words[space >> 6] ^= _ONE << np.uint64(space & 63)
        rows[piece] = row
        free = space - length
        if free > 0:
            below[row] = top[free]
            top[free] = row
            words[free >> 6] |= _ONE << np.uint64(free & 63)
    return rows, num_rows


@kernel
def _longest_first(lengths: Int64s, width: int) -> Int64s:
    """Return the pieces sorted by length, longest first, ties in their order: a counting sort."""
    cursors = np.zeros(width + 2, np.int64)
    for length in lengths:
        cursors[width - length + 1] += 1
    for space in range(width + 1):
        cursors[space + 1] += cursors[space]
    order = np.empty(len(lengths), np.int64)
    for piece in range(len(lengths)):
        space = width - lengths[piece]
        order[cursors[space]] = piece
        cursors[space] += 1
    return order


@inline
def _lowest_bit(word: np.uint64) -> int:
    """Return the number of the lowest bit set; the word is not zero."""
    bit = 0
    for half in (32, 16, 8, 4, 2, 1):
        if word & ((_ONE << np.uint64(half)) - _ONE) == np.uint64(0):
            word >>= np.uint64(half)
            bit += half
    return bit


@kernel
def _next_bit(words: Uint64s, first: int) -> int:
    """Return the first bit set at or after `first`, -1 if there is none."""
    index = first >> 6
    word = words[index] & (ALL_BITS << np.uint64(first & 63))
    while word == np.uint64(0):
        index += 1
        if index == len(words):
            return -1
        word = words[index]
    return (index << 6) + _lowest_bit(word)


@kernel
def lay_out(
    rows: Int64s, lengths: Int64s, num_rows: int, width: int
) -> tuple[Int32s, Int32s, Int64s]:
    """Lay pieces into their rows in the order given, padding after them. O(P + S).

    Args:
        rows: (P,) row of each piece.
        lengths: (P,) tokens of each piece; those of a row add up to at most `width`.
        num_rows: S.
        width: tokens per row.

    Returns:
        (S + 1,) bounds of each row's segments; per segment, each (G,): its first token in the row,
        and its piece, -1 for padding.
    """
    used_tokens = np.zeros(num_rows, np.int64)
    bounds = np.zeros(num_rows + 1, np.int32)
    for piece in range(len(rows)):
        used_tokens[rows[piece]] += lengths[piece]
        bounds[rows[piece] + 1] += 1
    for row in range(num_rows):
        bounds[row + 1] += bounds[row] + (1 if used_tokens[row] < width else 0)
    starts = np.empty(bounds[num_rows], np.int32)
    pieces = np.full(bounds[num_rows], -1, np.int64)
    for row in range(num_rows):
        if used_tokens[row] < width:
            starts[bounds[row + 1] - 1] = used_tokens[row]
    used_tokens[:] = 0
    cursors = bounds[:num_rows].copy()
    for piece in range(len(rows)):
        row = rows[piece]
        starts[cursors[row]] = used_tokens[row]
        pieces[cursors[row]] = piece
        cursors[row] += 1
        used_tokens[row] += lengths[piece]
    return bounds, starts, pieces


@kernel
def fill_rows(
    tokens: NDArray[np.generic],
    begins: Int64s,
    lengths: Int64s,
    bounds: Int32s,
    starts: Int32s,
    pieces: Int64s,
    pad: int,
    out: NDArray[np.generic],
) -> None:
    """Copy each piece's tokens into its row. O(S * width), allocates 8 P bytes.

    In the order of the pieces, so that tokens are read sequentially: a fifth faster than row by
    row.

    Args:
        tokens: of all pieces.
        begins, lengths: (P,) first token of each piece, and how many.
        bounds, starts, pieces: as `lay_out` returns them.
        pad: id that fills padding.
        out: (S, width), overwritten; of the type of `tokens`.
    """
    width = out.shape[1]
    flat = out.reshape(-1)
    targets = np.empty(len(lengths), np.int64)
    for row in range(len(bounds) - 1):
        for segment in range(bounds[row], bounds[row + 1]):
            if pieces[segment] < 0:
                flat[row * width + starts[segment] : (row + 1) * width] = pad
            else:
                targets[pieces[segment]] = row * width + starts[segment]
    for piece in range(len(lengths)):
        begin, target, length = begins[piece], targets[piece], lengths[piece]
        copy(tokens[begin : begin + length], flat[target : target + length])

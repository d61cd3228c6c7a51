"""Winnowing: each window of a text gets a fingerprint that depends on its content alone.

A window is L consecutive symbols, a gram K of them, W = L - K + 1. The gram with the smallest hash
in a window, the rightmost one on ties, is its fingerprint: equal windows have the same one at the
same offset. Neighbouring windows mostly share it, so there is one row for about W / 2 of them:

    row      windows `start .. start + last` of a document that all have the gram that begins
             at `start + gram_offset`
    context  symbols `start .. start + last + L`, all that these windows consist of

Source: Schleimer, Wilkerson, Aiken 2003, "Winnowing". Differs on ties: robust winnowing depends
on the selection to the left, which equal windows need not share.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from corpuskit.kernels.arrays import Bytes, Int32s, Int64s, Uint32s, Uint64s
from corpuskit.kernels.hashing import mix64
from corpuskit.kernels.jit import inline, kernel

Symbols = Bytes | Uint32s
Counts = NDArray[np.uint16]

MAX_WINDOWS = 1 << 16
"""The most windows of a row: `gram_offset` and `last` have 16 bits."""

MAX_SYMBOLS = (1 << 32) - 1
"""The longest document: `start` has 32 bits."""

_RADIX = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)
_CHUNK = 2048
"""Grams hashed at a time, so that their hashes stay in the nearest cache."""


class FingerprintRows(NamedTuple):
    """Fingerprints of documents, (R,) each, in the order of texts.

    Attributes:
        fps: spread evenly over 64 bits; different in different scopes.
        docs, starts: document and first window.
        gram_offsets: the gram's distance from there.
        lasts: windows, less one.
    """

    fps: Uint64s
    docs: Int32s
    starts: Uint32s
    gram_offsets: Counts
    lasts: Counts


class Repeats(NamedTuple):
    """Spans that repeat within their document, (S,) each, sorted.

    All windows of a span are repeated. Two spans may overlap if a window between them is not.
    """

    docs: Int64s
    starts: Int64s
    ends: Int64s


def gram_size(window: int) -> int:
    """Return K for windows of L symbols: about half of them.

    A smaller one gives fewer and longer contexts, but more that share nothing beyond a gram.
    """
    return max(window // 2, window - MAX_WINDOWS + 1, 4)


def winnow(
    offsets: Int64s, data: Symbols, scopes: Uint64s, window: int, *, keep_first: bool
) -> tuple[FingerprintRows, Repeats]:
    """Return the rows of all documents, and spans known to be repeated. O(B), some ns a symbol.

    In periodic text each row equals the one before: only the first of such a series is returned,
    the others become spans (spaces would be one row per symbol). Reserves 32 bytes of address space
    per symbol, and uses 20 bytes per row and 24 per span.

    Args:
        offsets, data: (N + 1,) and (B,) the documents.
        scopes: (N,) only windows of documents with equal numbers are compared.
        window: L.
        keep_first: the first position of a window is not a repetition.
    """
    sizes = np.diff(offsets)
    max_rows = int(np.maximum(sizes - window + 1, 0).sum())
    rows = FingerprintRows(
        np.empty(max_rows, np.uint64), np.empty(max_rows, np.int32), np.empty(max_rows, np.uint32),
        np.empty(max_rows, np.uint16), np.empty(max_rows, np.uint16),
    )  # fmt: skip
    spans = np.empty((max_rows // 2 + 1, 3), np.int64)  # a span takes two rows or more
    gram = gram_size(window)
    num, num_spans = _winnow(offsets, data, scopes, window, gram, keep_first, rows, spans)
    fingerprints = FingerprintRows(
        rows.fps[:num].copy(), rows.docs[:num].copy(), rows.starts[:num].copy(),
        rows.gram_offsets[:num].copy(), rows.lasts[:num].copy(),
    )  # fmt: skip
    return fingerprints, Repeats(*(spans[:num_spans, column].copy() for column in range(3)))


@inline
def extend(value: np.uint64, symbol: np.uint64) -> np.uint64:
    """Return the polynomial hash of a string that is one symbol longer."""
    return value * _RADIX + symbol + _ONE


@inline
def roll(value: np.uint64, enters: np.uint64, leaves: np.uint64, leaving: np.uint64) -> np.uint64:
    """Return the hash of a string moved on by a symbol; `leaving` is `power` of its length."""
    return extend(value, np.uint64(enters)) - (np.uint64(leaves) + _ONE) * leaving


@kernel
def power(length: int) -> np.uint64:
    """Return the weight of a symbol in a polynomial once `length` more have followed."""
    value = np.uint64(1)
    for _ in range(length):
        value *= _RADIX
    return value


@kernel
def _winnow(
    offsets: Int64s,
    data: Symbols,
    scopes: Uint64s,
    window: int,
    gram: int,
    keep_first: bool,
    rows: FingerprintRows,
    spans: Int64s,
) -> tuple[int, int]:
    """Fill `rows` and `spans`; return how many there are of each."""
    hashes = np.empty(window - gram + 1 + _CHUNK, np.uint64)
    num = num_spans = 0
    for doc in range(len(offsets) - 1):
        text = data[offsets[doc] : offsets[doc + 1]]
        if len(text) < window:
            continue
        end = _select(text, window, gram, hashes, rows, num)
        begin = num
        num, num_spans = _fold(text, window, keep_first, rows, begin, end, doc, spans, num_spans)
        for row in range(begin, num):
            rows.fps[row] = mix64(rows.fps[row] ^ scopes[doc])
            rows.docs[row] = doc
    return num, num_spans


@kernel
def _select(
    text: Symbols, window: int, gram: int, hashes: Uint64s, rows: FingerprintRows, num: int
) -> int:
    """Append all rows of a document; return the new number of rows."""
    width = window - gram + 1
    num_grams = len(text) - gram + 1
    first, best, least = num, -1, ~np.uint64(0)
    origin = num_hashes = 0  # hashes[0] is of gram `origin`; `num_hashes` are filled
    value, alike = np.uint64(0), np.zeros(2, np.int64)
    for chunk in range(0, num_grams, _CHUNK):
        stop = min(chunk + _CHUNK, num_grams)
        if num_hashes > width:  # the current window needs no earlier ones
            for slot in range(width):
                hashes[slot] = hashes[num_hashes - width + slot]
            origin, num_hashes = origin + num_hashes - width, width
        value = _hash_grams(text, gram, chunk, stop, value, alike, hashes[num_hashes:])
        num_hashes += stop - chunk
        pos = chunk
        while pos < stop:
            limit = min(stop, best + width) if pos >= width else min(stop, width - 1)
            slot = np.uint64(pos - origin)
            while slot < np.uint64(limit - origin) and hashes[slot] > least:
                slot += np.uint64(1)
            pos = np.int64(slot) + origin
            if pos == stop:
                break
            if hashes[slot] <= least:
                best, least = pos, hashes[slot]
            elif best <= pos - width:
                least = hashes[slot]
                for index in range(slot - np.uint64(width - 1), slot):
                    least = min(least, hashes[index])
                while hashes[slot] != least:
                    slot -= np.uint64(1)
                best = np.int64(slot) + origin
            start = pos - width + 1
            pos += 1
            if start < 0:
                continue
            if num > first:
                rows.lasts[num - 1] = start - np.int64(rows.starts[num - 1]) - 1
            rows.fps[num], rows.starts[num], rows.gram_offsets[num] = least, start, best - start
            num += 1
    rows.lasts[num - 1] = num_grams - width - np.int64(rows.starts[num - 1])
    return num


@kernel
def _hash_grams(
    text: Symbols, gram: int, begin: int, end: int, value: np.uint64, alike: Int64s, hashes: Uint64s
) -> np.uint64:
    """Fill `hashes` with those of grams `begin` to `end`; the top bit marks repetitive ones.

    Args:
        value: polynomial of the gram at `begin`, unless that is the first one.
        alike: of that gram, symbols equal to the one 3 before, and 4 before (which counts periods
            1 and 2, too); changed in place.

    Returns:
        The polynomial of the gram at `end`, if there is one.
    """
    leaving = power(gram)
    if begin == 0:
        for pos in range(gram):
            value = extend(value, np.uint64(text[pos]))
            alike[0] += pos >= 3 and text[pos] == text[pos - 3]
            alike[1] += pos >= 4 and text[pos] == text[pos - 4]
    threes, fours = alike[0], alike[1]
    max_equal = 6 * gram // 10
    for pos in range(np.uint64(begin), np.uint64(end)):
        repetitive = np.uint64(max(threes, fours) > max_equal)
        hashes[pos - np.uint64(begin)] = value & ~_ONE | repetitive
        entering = pos + np.uint64(gram)
        if entering >= np.uint64(len(text)):
            break
        value = roll(value, text[entering], text[pos], leaving)
        threes += np.int64(text[entering] == text[entering - np.uint64(3)])
        threes -= np.int64(text[pos] == text[pos + np.uint64(3)])
        fours += np.int64(text[entering] == text[entering - np.uint64(4)])
        fours -= np.int64(text[pos] == text[pos + np.uint64(4)])
    for pos in range(end - begin):  # a loop of its own is vectorised
        mark = hashes[pos] << np.uint64(63)
        hashes[pos] = mix64(hashes[pos]) >> _ONE | mark
    alike[0], alike[1] = threes, fours
    return value


@kernel
def _fold(
    text: Symbols,
    window: int,
    keep_first: bool,
    rows: FingerprintRows,
    begin: int,
    end: int,
    doc: int,
    spans: Int64s,
    num_spans: int,
) -> tuple[int, int]:
    """Turn rows of a document that equal the row before into spans; return rows and spans."""
    num_rows, first_span = begin, num_spans
    is_series = False
    fp, start, gram_offset, last = np.uint64(0), np.int64(0), np.uint16(0), np.uint16(0)
    for row in range(begin, end):
        previous, previous_last = start, last
        shift = np.int64(rows.starts[row]) - start
        is_alike = row > begin and rows.fps[row] == fp and rows.gram_offsets[row] == gram_offset
        fp, start = rows.fps[row], np.int64(rows.starts[row])
        gram_offset, last = rows.gram_offsets[row], rows.lasts[row]
        stop = start + last + window
        if is_alike and previous_last == last:
            # In a series all but the last few symbols were compared already.
            position = stop - shift if is_series else start
            while position < stop and text[position] == text[position - shift]:
                position += 1
            is_alike = position == stop
        else:
            is_alike = False
        if is_alike:
            opens = start if is_series or keep_first else previous
            if num_spans == first_span or spans[num_spans - 1, 2] < opens + window - 1:
                spans[num_spans, 0], spans[num_spans, 1] = doc, opens
                num_spans += 1
            spans[num_spans - 1, 2] = stop
        else:
            rows.fps[num_rows], rows.starts[num_rows] = fp, start
            rows.gram_offsets[num_rows], rows.lasts[num_rows] = gram_offset, last
            num_rows += 1
        is_series = is_alike
    return num_rows, num_spans

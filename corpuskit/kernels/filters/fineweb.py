"""What the FineWeb rules measure about the lines of each document."""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection

import numpy as np

from corpuskit.kernels.arrays import Bytes, Float64s, Int64s, Uint64s, frozen
from corpuskit.kernels.hashing import same_bytes, table_size, xxh64
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.utf8 import code_point, count_chars, skip_space

MEASURES = ("num_lines", "line_punct_ratio", "short_line_ratio", "char_dup_ratio", "num_newlines")


def measure_lines(
    offsets: Int64s, data: Bytes, stop_chars: Collection[str], short_line_chars: int
) -> Float64s:
    r"""Return (5, N) float64, rows as in MEASURES; NaN where there are no lines.

    Lines are what lies between \n, blank ones (str.strip leaves nothing) left out.

    Args:
        offsets, data: the texts.
        stop_chars: single characters that end a sentence.
        short_line_chars: a line of at most this many code points is short.
    """
    table = _stop_table(frozenset(stop_chars))
    newlines = count_newlines(offsets, data)
    max_newlines = int(newlines.max()) if len(newlines) else 0
    slots = table_size(max_newlines + 1)
    lines = np.zeros((3, slots), np.int64)
    return _measure(
        offsets, data, newlines, table, short_line_chars, lines, np.empty(slots, np.uint64)
    )


@functools.cache
def _stop_table(chars: frozenset[str]) -> Bytes:
    """Code point -> whether it is one of `chars`; 1.1 MB, read-only."""
    table = np.zeros(sys.maxunicode + 1, np.uint8)
    table[[ord(char) for char in chars]] = 1
    return frozen(table)


@kernel
def count_newlines(offsets: Int64s, data: Bytes) -> Int64s:
    r"""Return how many \n each text has, (N,). O(B)."""
    counts = np.zeros(len(offsets) - 1, np.int64)
    for row in range(len(counts)):
        num = 0
        for pos in range(offsets[row], offsets[row + 1]):
            num += data[pos] == 10
        counts[row] = num
    return counts


@kernel
def _is_new(
    data: Bytes, start: int, end: int, row: int, mask: int, lines: Int64s, hashes: Uint64s
) -> bool:
    """Return whether a line is the first of its kind in this document, and add it to the table.

    Lines are equal if their bytes are; hashes only find the slot.

    Args:
        lines: (3, slots): number of the document, plus 1, that wrote the slot; start and end of its
            line.
        hashes: (slots,) of those lines.
    """
    value = xxh64(data, start, end, np.uint64(0))
    slot = np.int64(value & np.uint64(mask))
    while lines[0, slot] == row + 1:
        first, size = lines[1, slot], lines[2, slot] - lines[1, slot]
        is_equal = hashes[slot] == value and size == end - start
        if is_equal and same_bytes(data, first, data, start, size):
            return False
        slot = (slot + 1) & mask
    lines[0, slot], lines[1, slot], lines[2, slot] = row + 1, start, end
    hashes[slot] = value
    return True


@kernel
def _measure(
    offsets: Int64s,
    data: Bytes,
    newlines: Int64s,
    stop_table: Bytes,
    short_line_chars: int,
    line_table: Int64s,
    hashes: Uint64s,
) -> Float64s:
    """O(B); allocates 40 N bytes."""
    num_docs = len(offsets) - 1
    measured = np.full((len(MEASURES), num_docs), np.nan)
    for row in range(num_docs):
        start, end = offsets[row], offsets[row + 1]
        # As small a table as the document allows, so that it stays in the cache.
        mask = table_size(newlines[row] + 1) - 1
        lines, stopped, short, chars, repeated = 0, 0, 0, 0, 0
        while start < end:
            stop = start
            while stop < end and data[stop] != 10:
                stop += 1
            size = count_chars(data, start, stop)
            chars += size
            if skip_space(data, start, stop) < stop:
                lines += 1
                lead = stop - 1
                while data[lead] & 0xC0 == 0x80:
                    lead -= 1
                stopped += np.int64(stop_table[code_point(data, lead)])
                short += size <= short_line_chars
                if not _is_new(data, start, stop, row, mask, line_table, hashes):
                    repeated += size
            start = stop + 1
        measured[0, row] = lines
        measured[4, row] = newlines[row]
        if lines > 0:
            measured[1, row] = stopped / lines
            measured[2, row] = short / lines
            measured[3, row] = repeated / chars
    return measured

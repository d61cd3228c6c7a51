"""What the rules for source code and for tables measure."""

from __future__ import annotations

import functools

import numpy as np

from corpuskit.kernels.arrays import Bytes, Float64s, Int64s, frozen
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.utf8 import char_table, char_width, code_point, line_break_width

MEASURES = (
    *("num_chars", "num_lines", "line_chars", "mean_line_chars", "alnum_ratio", "alpha_ratio"),
    *("alpha_per_token", "encoded_kinds", "digit_ratio", "table_line_ratio"),
)
BASE64, HEXADECIMAL, ESCAPES = 1, 2, 4
"""Bits of `encoded_kinds`."""

_ALNUM, _ALPHA, _SPACE, _DIGIT = 1, 2, 4, 8
_OF_BASE64, _OF_DIGITS, _OF_PAIRS = 1, 2, 4
_MIN_BASE64, _MIN_PAIRS, _MIN_ESCAPES = 64, 8, 8
"""Shortest match: characters of base64, pairs of hexadecimal digits, escapes \\uXXXX."""


def measure_code(offsets: Int64s, data: Bytes) -> Float64s:
    r"""Return (10, N) float64, rows as in MEASURES; NaN for a share of no characters.

    Lines are those of str.splitlines, lengths are in characters. A token is a run of letters,
    digits and underscores, or of other characters without whitespace; the count is one more than
    those of the text. `encoded_kinds` has the bits of what a text may hold that is long enough for
    `code_quality`. `digit_ratio` is the mean over lines, `table_line_ratio` the share of lines
    between two pipes, blank lines left out; 0 where there are none.
    """
    kinds = char_table(str.isalnum, str.isalpha, str.isspace, str.isdigit)
    return _measure(offsets, data, kinds, _encoded_bytes())


@functools.cache
def _encoded_bytes() -> Bytes:
    """Byte -> bits: of base64; a hexadecimal digit; in a run of pairs of hexadecimal digits."""
    table = np.zeros(256, np.uint8)
    letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    table[[*letters, *b"0123456789+/\n="]] |= _OF_BASE64
    table[[*b"0123456789abcdefABCDEF"]] |= _OF_DIGITS | _OF_PAIRS
    table[[*b"x\\, \t\n\v\f\r\x1c\x1d\x1e\x1f", *range(128, 256)]] |= _OF_PAIRS
    return frozen(table)


@kernel
def _measure(offsets: Int64s, data: Bytes, kinds: Bytes, encoded: Bytes) -> Float64s:
    """O(B); allocates 80 N bytes."""
    num_docs = len(offsets) - 1
    measured = np.full((len(MEASURES), num_docs), np.nan)
    for row in range(num_docs):
        pos, end = offsets[row], offsets[row + 1]
        chars, alnum, alpha, tokens, previous = 0, 0, 0, 1, 0
        lines, line, longest, total = 0, 0, 0, 0
        filled, tables, digits, first, last, shares = 0, 0, 0, 0, 0, 0.0
        base64, hexes, pairs, escapes, escape, encodings = 0, 0, 0, 0, np.int64(-9), 0
        while pos <= end:
            broken = 0
            if pos < end:
                byte = data[pos]
                kind = kinds[byte] if byte < 0x80 else kinds[code_point(data, pos)]
                broken = line_break_width(data, pos, end) if kind & _SPACE else 0
            if broken or (pos == end and line):
                lines, longest, total = lines + 1, max(longest, line), total + line
                if first:
                    filled += 1
                    tables += np.int64(first == 124 and last == 124)
                    shares += digits / line
                line, digits, first, last = 0, 0, 0, 0
            if pos == end:
                break
            # whitespace, part of a word, other
            current = 0 if kind & _SPACE else 1 if kind & _ALNUM or byte == 95 else 2
            chars += 2 if broken == 2 and byte == 13 else 1
            alnum += np.int64(kind & _ALNUM)
            alpha += np.int64(kind & _ALPHA != 0)
            tokens += np.int64(current != previous and current != 0)
            previous = current
            if not broken:
                line += 1
                digits += np.int64(kind & _DIGIT != 0)
            if current:
                last = np.int64(byte)
                first = last if first == 0 else first
            bits = encoded[byte]
            base64 = base64 + 1 if bits & _OF_BASE64 else 0
            pairs = pairs + np.int64(hexes == 2 and not bits & _OF_DIGITS)
            pairs = pairs if bits & _OF_PAIRS else 0
            hexes = hexes + 1 if bits & _OF_DIGITS else 0
            if byte == 92 and pos + 1 < end and data[pos + 1] == 117:
                escapes = escapes + 1 if pos - escape == 6 else 1
                escape = pos
            encodings |= BASE64 * np.int64(base64 >= _MIN_BASE64)
            encodings |= HEXADECIMAL * np.int64(pairs >= _MIN_PAIRS - 1)
            encodings |= ESCAPES * np.int64(escapes >= _MIN_ESCAPES)
            pos += broken if broken else char_width(byte)
        measured[0, row], measured[1, row], measured[2, row] = chars, lines, longest
        if chars:
            measured[3, row], measured[4, row] = total / lines, alnum / chars
            measured[5, row] = alpha / chars
        measured[6, row], measured[7, row] = alpha / tokens, encodings
        measured[8, row], measured[9, row] = shares / max(filled, 1), tables / max(filled, 1)
    return measured

"""Features of a linear classifier: texts are normalised, then their hashed n-grams are counted.

Normalising writes a new text: lower case, punctuation as words of its own, digits as one symbol.
Counting hashes words, runs of words and runs of characters in words to 2**n buckets. Nearly all
time is spent in the table from buckets to counts: one access per n-gram, in 1 MB for the 2 ** 18
buckets of a small model.
"""

from __future__ import annotations

import functools
import math
import unicodedata
from typing import NamedTuple

import numpy as np

from corpuskit.kernels.arrays import Bools, Bytes, Float32s, Float64s, Int32s, Int64s, Uint32s
from corpuskit.kernels.hashing import mix64
from corpuskit.kernels.jit import inline, kernel
from corpuskit.kernels.stringset import HASH_PRIME, HASH_START
from corpuskit.kernels.utf8 import (
    CHAR_LOWER,
    CHAR_SPACE,
    NUM_CODES,
    char_table,
    char_width,
    characters,
    code_point,
    write_char,
)

LOWER, PUNCTUATION, DIGITS = 1, 2, 4
"""Bits of what is normalised."""

GROWTH = 3
"""Bytes that one byte becomes at most: punctuation between spaces."""

MOST_WORDS = 8
"""Words of a run, at most."""

_RUN_SEED = np.uint64(0x9E3779B97F4A7C15)
_OPEN, _CLOSE = np.uint8(ord("<")), np.uint8(ord(">"))


def _is_mark(char: str) -> bool:
    return unicodedata.category(char)[0] in "PS"


@functools.cache
def kinds_of_characters() -> Bytes:
    """Tabulate PUNCTUATION (categories P and S) and DIGITS (Nd) by code point; kept, 0.2 s."""
    table = char_table(_is_mark, str.isdecimal)[:NUM_CODES]
    return (table << 1).astype(np.uint8)


@kernel
def _normalize(
    begins: Int64s,
    ends: Int64s,
    data: Bytes,
    modes: int,
    lower: Uint32s,
    kinds: Bytes,
    bounds: Int64s,
    out: Bytes,
) -> None:
    size = int(np.int64(0))
    for row in range(len(begins)):
        pos = begins[row]
        while pos < ends[row]:
            byte = data[pos]
            code = np.int64(byte) if byte < 0x80 else code_point(data, pos)
            width = 1 if byte < 0x80 else char_width(byte)
            pos += width
            kind = kinds[code] & modes if code < len(kinds) else 0
            if kind & PUNCTUATION:
                out[size] = 32
                size = write_char(int(code), out, size + 1)
                out[size] = 32
                size += 1
            elif kind & DIGITS:
                out[size] = 48
                size += 1
            elif byte < 0x80:
                out[size] = byte + 32 if modes & LOWER and 65 <= byte <= 90 else byte
                size += 1
            elif code >= len(lower):
                size = write_char(int(code), out, size)
            elif lower[code] & CHAR_SPACE:
                out[size] = 32
                size += 1
            else:
                code = np.int64(lower[code] & CHAR_LOWER) if modes & LOWER else code
                size = write_char(int(code), out, size)
        bounds[row + 1] = size


def normalize(
    begins: Int64s, ends: Int64s, data: Bytes, modes: int
) -> tuple[Int64s, Int64s, Bytes]:
    """Return texts normalised, as begins, ends and data; unchanged if `modes` is 0.

    O(B), about 400 MB/s. Characters change one by one, so a capital sigma never becomes a final
    one; white space beyond ASCII becomes a space.

    Args:
        begins, ends, data: N texts of valid UTF-8.
        modes: LOWER, PUNCTUATION and DIGITS, added.
    """
    if modes == 0:
        return begins, ends, data
    bounds = np.zeros(len(begins) + 1, np.int64)
    out = np.empty(GROWTH * int((ends - begins).sum()) + 8, np.uint8)
    _normalize(begins, ends, data, modes, characters(), kinds_of_characters(), bounds, out)
    return bounds[:-1], bounds[1:], out[: bounds[-1]]


class GramSettings(NamedTuple):
    """What is counted of a text.

    Attributes:
        words: longest run of words; 0 for none.
        minn, maxn: shortest and longest run of characters within `<word>`, except a bracket alone;
            no runs if maxn is 0.
        bits: the number of buckets is 2 to the power of this.
    """

    words: int
    minn: int
    maxn: int
    bits: int


class Counted(NamedTuple):
    """Hashed n-grams of N texts: sparse rows, one after another.

    Attributes:
        bounds: (N + 1,) int64, where each row begins.
        buckets: (M,) int32.
        weights: (M,) float32, 1 + log of the count.
    """

    bounds: Int64s
    buckets: Int32s
    weights: Float32s


@inline
def _count(
    value: np.uint64,
    bits: int,
    slots: Int32s,
    first: int,
    num: int,
    buckets: Int32s,
    counts: Float32s,
) -> int:
    """Count an n-gram; a slot of an earlier row points elsewhere, so slots need no clearing."""
    bucket = np.int64(mix64(value) >> np.uint64(64 - bits))
    index = slots[bucket]
    if first <= index < num and buckets[index] == bucket:
        counts[index] += np.float32(1)
        return num
    slots[bucket], buckets[num], counts[num] = num, bucket, 1
    return num + 1


@kernel
def _count_grams(
    begins: Int64s,
    ends: Int64s,
    data: Bytes,
    grams: GramSettings,
    slots: Int32s,
    bounds: Int64s,
    buckets: Int32s,
    counts: Float32s,
) -> None:
    runs = np.empty(MOST_WORDS + 1, np.uint64)
    num = int(np.int64(0))
    for row in range(len(begins)):
        first = num
        words = 0
        end = begins[row]
        while end < ends[row]:
            if data[end] <= 32:
                end += 1
                continue
            begin = end
            value = HASH_START
            while end < ends[row] and data[end] > 32:
                value = (value ^ np.uint64(data[end])) * HASH_PRIME
                end += 1
            value = mix64(value)
            words += 1
            for length in range(min(words, grams.words), 1, -1):
                runs[length] = (runs[length - 1] ^ value) * _RUN_SEED + np.uint64(length)
                num = _count(runs[length], grams.bits, slots, first, num, buckets, counts)
            if grams.words > 0:
                runs[1] = value
                num = _count(value, grams.bits, slots, first, num, buckets, counts)
            if grams.maxn > 0:
                for start in range(begin - 1, end):
                    if start >= begin and data[start] & 0xC0 == 0x80:
                        continue
                    value = _RUN_SEED
                    pos = start
                    width = 0
                    while width < grams.maxn and pos <= end:
                        if pos < begin or pos == end:
                            bracket = np.uint64(_OPEN if pos < begin else _CLOSE)
                            value = (value ^ bracket) * HASH_PRIME
                            pos += 1
                        else:
                            value = (value ^ np.uint64(data[pos])) * HASH_PRIME
                            pos += 1
                            while pos < end and data[pos] & 0xC0 == 0x80:
                                value = (value ^ np.uint64(data[pos])) * HASH_PRIME
                                pos += 1
                        width += 1
                        if width >= grams.minn and (width > 1 or start >= begin):
                            num = _count(value, grams.bits, slots, first, num, buckets, counts)
        for index in range(first, num):
            if counts[index] > 1:
                counts[index] = 1 + math.log(counts[index])
        bounds[row + 1] = num


def count_grams(begins: Int64s, ends: Int64s, data: Bytes, grams: GramSettings) -> Counted:
    """Count the n-grams of texts; O(B times n-grams per byte).

    Words are the runs between bytes up to 0x20: normalise first. Memory is 8 bytes for each
    different n-gram of a text, and 4 per bucket.
    """
    sizes = ends - begins
    per_text = (sizes // 2 + 1) * grams.words
    if grams.maxn:
        per_text += (sizes + sizes // 2 + 2) * (grams.maxn - grams.minn + 1)
    max_grams = int(np.minimum(per_text, 1 << grams.bits).sum()) + 1
    bounds = np.zeros(len(begins) + 1, np.int64)
    buckets, counts = np.empty(max_grams, np.int32), np.empty(max_grams, np.float32)
    slots = np.full(1 << grams.bits, -1, np.int32)
    _count_grams(begins, ends, data, grams, slots, bounds, buckets, counts)
    return Counted(bounds, buckets[: bounds[-1]], counts[: bounds[-1]])


@kernel
def score_rows(rows: Counted, table: Float32s, bias: Float64s, logits: Float64s) -> Bools:
    """Fill `logits` (N, C) and return which texts have a known n-gram.

    Args:
        rows: N texts.
        table: (buckets, 1 + C): the inverse document frequency, 0 of unknown n-grams, and the
            weights, already multiplied by it.
        bias: (C,).
    """
    has_known = np.zeros(len(logits), np.bool_)
    for row in range(len(logits)):
        square = 0.0
        logits[row] = 0
        for entry in range(rows.bounds[row], rows.bounds[row + 1]):
            bucket, weight = rows.buckets[entry], np.float64(rows.weights[entry])
            scaled = weight * table[bucket, 0]
            square += scaled * scaled
            for column in range(len(bias)):
                logits[row, column] += weight * table[bucket, 1 + column]
        has_known[row] = square > 0
        length = math.sqrt(square) if square > 0 else 1.0
        for column in range(len(bias)):
            logits[row, column] = logits[row, column] / length + bias[column]
    return has_known

"""fastText prediction: the rows of a text, their mean, and the labels with the best scores.

The vector of a text is the mean of the rows of its words, of the runs of characters in them, and of
its word n-grams. Rows are added in fastText's order and in float32, so scores equal those of the
library to the last bit.

Nearly all time is spent in two loops: hashing runs of characters, which a small table of common
words avoids for three words of four, and adding rows, which are read from all over the matrix.

Source: fastText 0.9.3, `getLine` of dictionary.cc, loss.cc.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from corpuskit.kernels.arrays import Bytes, Float32s, Float64s, Int32s, Int64s, Uint32s, Uint64s
from corpuskit.kernels.hashing import (
    HIGH_BITS,
    LOW_BITS,
    count_before,
    load64,
    load_tail,
    same_bytes,
    store64,
)
from corpuskit.kernels.jit import inline, kernel, packed_kernel
from corpuskit.kernels.utf8 import skip_space, skip_space_back

ROWS = 8192
"""Rows that are collected before they are added: 32 KB, which stay in the fastest cache."""

LONGEST_RUN = 100
"""Characters of a run, at most."""

_KNOWN_BITS = 12
KNOWN = 1 << _KNOWN_BITS
"""Words that are cached with their rows, in 128 bytes each: half of a second-level cache."""

_BASIS, _PRIME = np.uint32(2166136261), np.uint32(16777619)
_WIDE = np.uint32(0xFFFFFF00)
"""Set in a byte from 0x80 on, as the library hashes signed bytes."""

_OPEN, _CLOSE = np.uint8(ord("<")), np.uint8(ord(">"))
_NGRAM_FACTOR = np.uint64(116049371)
_END = np.uint64(int.from_bytes(b"</s>", "little"))
_END_HASH = np.uint32(3617362777)
_LABEL = np.uint64(int.from_bytes(b"__label_", "little"))

_ABOVE_SPACE = np.uint64(0x5F5F5F5F5F5F5F5F)
_MIX_1, _MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)

_SHORT = 16
"""Bytes of a cached word, at most."""

_LINE = 32
"""Numbers of a cached word: 16 bytes of the word, its hash, number of rows, rows."""

_HASH, _COUNT, _FIRST = 4, 5, 6
_MOST_KNOWN = 24
"""Rows of a cached word, at most."""


class Features(NamedTuple):
    """What determines which rows a text has.

    Attributes:
        words: the dictionary: words, then labels.
        spans: (E, 2) int64, where each entry begins and ends in `words`.
        table: (2 ** n,) uint64, the dictionary by hash: hash << 32 | entry + 1; 0 is empty. More
            than half of it is empty.
        num_words: how many entries are words; the others, after them, are labels.
        min_run, max_run: characters of a run; no runs if `max_run` is 0.
        word_ngrams: words of a word n-gram, at most; 1 for none.
        buckets: hashes of runs and of word n-grams are taken modulo this.
        bucket_rows: (ceil(buckets / 32),) uint64: the low half has a bit for each bucket, set if it
            has a row; the high half is the number of rows of buckets before. (0,) if all have one.
        end_row: row of the word that ends a text, -1 if it has none.
    """

    words: Bytes
    spans: Int64s
    table: Uint64s
    num_words: int
    min_run: int
    max_run: int
    word_ngrams: int
    buckets: int
    bucket_rows: Uint64s
    end_row: int


class RowScratch(NamedTuple):
    """Memory that `mean_rows` writes to; `word_cache` is kept between calls.

    Attributes:
        word_cache: (KNOWN, 32) uint32, the latest word of each hash; see `_LINE`.
        rows: (ROWS + 32,) int32, those not yet added.
        letters: a word, or a part of it, between brackets.
        hashes: (W,) uint32 of the words of the longest text, if there are word n-grams.
    """

    word_cache: Uint32s
    rows: Int32s
    letters: Bytes
    hashes: Uint32s


def make_scratch(features: Features, longest: int, word_cache: Uint32s | None = None) -> RowScratch:
    """Return memory for texts of up to `longest` bytes."""
    return RowScratch(
        np.zeros((KNOWN, _LINE), np.uint32) if word_cache is None else word_cache,
        np.empty(ROWS + _LINE, np.int32),
        np.empty(_window(features.max_run) + 4 * features.max_run + 16, np.uint8),
        np.empty(longest // 2 + 2 if features.word_ngrams > 1 else 0, np.uint32),
    )


@kernel
def _window(max_run: int) -> int:
    """Return the bytes of a word that are processed together: the rows of their runs fit."""
    return ROWS // max(max_run, 2)


@inline
def _hash_byte(value: np.uint32, byte: int) -> np.uint32:
    letter = np.uint32(byte)
    if letter >= np.uint32(0x80):
        letter |= _WIDE
    return np.uint32((value ^ letter) * _PRIME)


@inline
def _is_end(data: Bytes, begin: int, end: int) -> bool:
    return end - begin == 4 and load_tail(data, begin, end) == _END


@kernel
def fnv(data: Bytes, begin: int, end: int) -> np.uint32:
    """Return fastText's hash of a word: FNV-1a of signed bytes."""
    value = _BASIS
    for pos in range(begin, end):
        value = _hash_byte(value, data[pos])
    return value


@kernel
def index_words(features: Features, tail: int) -> int:
    """Fill `spans` and `table`; return the row of the word that ends a text, -1 if it has none.

    Of equal entries the last one counts, as in the library. After an entry come a zero byte and
    `tail` bytes more.
    """
    pos = 0
    end_row = -1
    for entry in range(len(features.spans)):
        begin = pos
        while features.words[pos] != 0:
            pos += 1
        features.spans[entry, 0], features.spans[entry, 1] = begin, pos
        value = fnv(features.words, begin, pos)
        slot, _ = _find(features, features.words, begin, pos, value)
        features.table[slot] = np.uint64(value) << np.uint64(32) | np.uint64(entry + 1)
        if _is_end(features.words, begin, pos) and entry < features.num_words:
            end_row = entry
        pos += 1 + tail
    return end_row


@kernel
def _find(
    features: Features, data: Bytes, begin: int, end: int, value: np.uint32
) -> tuple[int, int]:
    """Return the slot of a word in the table, and its entry, -1 if it has none."""
    mask = len(features.table) - 1
    slot = int(value) & mask
    while features.table[slot] != 0:
        packed = features.table[slot]
        if packed >> np.uint64(32) == value:
            entry = int(packed & np.uint64(0xFFFFFFFF)) - 1
            first, last = features.spans[entry]
            if last - first == end - begin and same_bytes(
                features.words, first, data, begin, end - begin
            ):
                return slot, entry
        slot = (slot + 1) & mask
    return slot, -1


@inline
def _inverse(features: Features) -> np.uint64:
    """Return 2**32 / buckets: to multiply by it gives a quotient that is right or one too small."""
    return np.uint64(1 << 32) // np.uint64(max(features.buckets, 1))


@inline
def _bucket_row(bucket: np.uint64, features: Features) -> tuple[np.int64, np.int64]:
    """Return the row of a bucket, and 1, or 0 if it has none."""
    if len(features.bucket_rows) == 0:
        return features.num_words + np.int64(bucket), np.int64(1)
    entry = features.bucket_rows[bucket >> np.uint64(5)]
    bit = bucket & np.uint64(31)
    rank = entry & ((np.uint64(1) << bit) - np.uint64(1))
    rank -= (rank >> np.uint64(1)) & np.uint64(0x55555555)
    rank = (rank & np.uint64(0x33333333)) + ((rank >> np.uint64(2)) & np.uint64(0x33333333))
    rank = (rank + (rank >> np.uint64(4))) & np.uint64(0x0F0F0F0F)
    rank = ((rank * np.uint64(0x01010101)) & np.uint64(0xFFFFFFFF)) >> np.uint64(24)
    row = features.num_words + np.int64((entry >> np.uint64(32)) + rank)
    return row, np.int64(entry >> bit & np.uint64(1))


@inline
def _hash_bucket(value: np.uint32, inverse: np.uint64, features: Features) -> np.uint64:
    """Return the bucket of a hash."""
    buckets = np.uint64(features.buckets)
    bucket = np.uint64(value) - ((np.uint64(value) * inverse) >> np.uint64(32)) * buckets
    if bucket >= buckets:
        bucket -= buckets
    return bucket


@inline
def _has_row(bucket: np.uint64, bucket_rows: Uint64s) -> np.int64:
    """Return 1 if a bucket has a row, else 0."""
    if len(bucket_rows) == 0:
        return np.int64(1)
    return np.int64(bucket_rows[bucket >> np.uint64(5)] >> (bucket & np.uint64(31)) & np.uint64(1))


@kernel
def _find_rows(rows: Int32s, first: int, num: int, features: Features) -> None:
    """Replace buckets by their rows; every bucket must have one.

    Not when a bucket is found: of a pruned model nine of ten have no row, and to compute the row
    takes three times as long as to see that there is one.
    """
    for index in range(first, num):
        rows[index], _ = _bucket_row(np.uint64(rows[index]), features)


@kernel
def _narrow_runs(
    letters: Bytes, first: int, last: int, size: int, features: Features, rows: Int32s, num: int
) -> int:
    """Append the rows of runs of ASCII that begin in `letters[first:last]`; return the new `num`.

    A bracket alone, at `letters[0]` or `letters[size - 1]`, is not a run.
    """
    inverse, bucket_rows, first_row = _inverse(features), features.bucket_rows, num
    for begin in range(first, last):
        value = _BASIS
        # The same number for each, to avoid branches; runs beyond the word are overwritten.
        for width in range(1, features.max_run + 1):
            value = np.uint32((value ^ np.uint32(letters[begin + width - 1])) * _PRIME)
            if width >= features.min_run:
                bucket = _hash_bucket(value, inverse, features)
                rows[num] = bucket
                is_bracket = (width == 1) & ((begin == 0) | (begin == size - 1))
                num += _has_row(bucket, bucket_rows) & (begin + width <= size) & ~is_bracket
    _find_rows(rows, first_row, num, features)
    return num


@kernel
def _wide_runs(
    letters: Bytes, first: int, last: int, size: int, features: Features, rows: Int32s, num: int
) -> int:
    """As `_narrow_runs`, for any characters."""
    inverse, bucket_rows, first_row = _inverse(features), features.bucket_rows, num
    letters[size] = 0
    for begin in range(first, last):
        if letters[begin] & 0xC0 == 0x80:
            continue
        value = _BASIS
        pos = begin
        width = 1
        while width <= features.max_run and pos < size:
            value = _hash_byte(value, letters[pos])
            pos += 1
            while letters[pos] & 0xC0 == 0x80:
                value = _hash_byte(value, letters[pos])
                pos += 1
            if width >= features.min_run:
                bucket = _hash_bucket(value, inverse, features)
                rows[num] = bucket
                is_bracket = (width == 1) & ((begin == 0) | (pos == size))
                num += _has_row(bucket, bucket_rows) & ~is_bracket
            width += 1
    _find_rows(rows, first_row, num, features)
    return num


@kernel
def _add_16(rows: Int32s, num: int, matrix: Float32s, stride: np.uint64, sums: Float32s) -> None:
    """Add 16 columns of rows to `sums`, row by row.

    Written out, with a variable for each sum: `packed_kernel` makes vector operations of them.
    """
    s0, s1, s2, s3 = sums[0], sums[1], sums[2], sums[3]
    s4, s5, s6, s7 = sums[4], sums[5], sums[6], sums[7]
    s8, s9, s10, s11 = sums[8], sums[9], sums[10], sums[11]
    s12, s13, s14, s15 = sums[12], sums[13], sums[14], sums[15]
    for index in range(num):
        first = np.uint64(rows[index]) * stride
        s0 += matrix[first]
        s1 += matrix[first + np.uint64(1)]
        s2 += matrix[first + np.uint64(2)]
        s3 += matrix[first + np.uint64(3)]
        s4 += matrix[first + np.uint64(4)]
        s5 += matrix[first + np.uint64(5)]
        s6 += matrix[first + np.uint64(6)]
        s7 += matrix[first + np.uint64(7)]
        s8 += matrix[first + np.uint64(8)]
        s9 += matrix[first + np.uint64(9)]
        s10 += matrix[first + np.uint64(10)]
        s11 += matrix[first + np.uint64(11)]
        s12 += matrix[first + np.uint64(12)]
        s13 += matrix[first + np.uint64(13)]
        s14 += matrix[first + np.uint64(14)]
        s15 += matrix[first + np.uint64(15)]
    sums[0], sums[1], sums[2], sums[3] = s0, s1, s2, s3
    sums[4], sums[5], sums[6], sums[7] = s4, s5, s6, s7
    sums[8], sums[9], sums[10], sums[11] = s8, s9, s10, s11
    sums[12], sums[13], sums[14], sums[15] = s12, s13, s14, s15


@kernel
def _add_4(rows: Int32s, num: int, matrix: Float32s, stride: np.uint64, sums: Float32s) -> None:
    """Add 4 columns of rows to `sums`, row by row."""
    s0, s1, s2, s3 = sums[0], sums[1], sums[2], sums[3]
    for index in range(num):
        first = np.uint64(rows[index]) * stride
        s0 += matrix[first]
        s1 += matrix[first + np.uint64(1)]
        s2 += matrix[first + np.uint64(2)]
        s3 += matrix[first + np.uint64(3)]
    sums[0], sums[1], sums[2], sums[3] = s0, s1, s2, s3


@kernel
def _add(rows: Int32s, num: int, matrix: Float32s, sums: Float32s) -> None:
    """Add rows to `sums`, in their order."""
    stride = np.uint64(len(sums))
    first = 0
    while first + 16 <= len(sums):
        # Slices: with an offset instead, LLVM does not use vectors, at a third of the speed.
        _add_16(rows, num, matrix[first:], stride, sums[first : first + 16])
        first += 16
    while first < len(sums):
        _add_4(rows, num, matrix[first:], stride, sums[first : first + 4])
        first += 4


@kernel
def _add_runs(
    data: Bytes,
    begin: int,
    end: int,
    features: Features,
    scratch: RowScratch,
    num: int,
    matrix: Float32s,
    sums: Float32s,
) -> tuple[int, int]:
    """Append the rows of the runs of a word; return the new `num`, and how many were added to sums.

    The word between brackets is read in windows with enough bytes after each for its last runs;
    `letters[0]` is the byte before a window.
    """
    window, total = _window(features.max_run), end - begin + 2
    letters = scratch.letters
    added = 0
    pos = 0
    while pos < total:
        base = max(pos - 1, 0)
        size = min(window + 4 * features.max_run + 8, total - base)
        byte_bits = np.uint8(0)
        for index in range(size):
            source = min(max(begin + base + index - 1, begin), end - 1)
            byte_bits |= data[source]
            letters[index] = data[source]
        if base == 0:
            letters[0] = _OPEN
        if base + size == total:
            letters[size - 1] = _CLOSE
        stop = min(pos + window - 1, total)
        if num + (stop - pos) * features.max_run > ROWS:
            _add(scratch.rows, num, matrix, sums)
            added += num
            num = 0
        runs = (letters, pos - base, stop - base, size, features, scratch.rows, num)
        num = _wide_runs(*runs) if byte_bits >= 0x80 else _narrow_runs(*runs)
        pos = stop
    return num, added


@inline
def _add_short_runs(
    low: np.uint64, high: np.uint64, size: int, features: Features, scratch: RowScratch, num: int
) -> int:
    """Append the rows of the runs of an ASCII word of up to 16 bytes; return the new `num`."""
    letters = scratch.letters
    letters[0] = _OPEN
    store64(low, letters, 1)
    store64(high, letters, 9)
    letters[size + 1] = _CLOSE
    return _narrow_runs(letters, 0, size + 2, size + 2, features, scratch.rows, num)


@inline
def _spaces(group: np.uint64) -> np.uint64:
    """Return the top bit of each of 8 bytes that is a space or a control character."""
    return ~(((group & LOW_BITS) + _ABOVE_SPACE) | group) & HIGH_BITS


@inline
def _copy_8(source: Uint32s, first: int, rows: Int32s, num: int) -> None:
    """Copy 8 rows; all are read before one is written, so this is one load and one store."""
    r0, r1, r2, r3 = source[first], source[first + 1], source[first + 2], source[first + 3]
    r4, r5, r6, r7 = source[first + 4], source[first + 5], source[first + 6], source[first + 7]
    rows[num], rows[num + 1], rows[num + 2], rows[num + 3] = r0, r1, r2, r3
    rows[num + 4], rows[num + 5], rows[num + 6], rows[num + 7] = r4, r5, r6, r7


@inline
def _is_space(byte: int) -> bool:
    return byte == 32 or 9 <= byte <= 13 or byte == 0


@inline
def _short_word(data: Bytes, begin: int, end: int) -> tuple[np.int64, np.uint64, np.uint64]:
    """Return the size of a word and its bytes; size above `_SHORT` if the word may be longer.

    A short word has up to 16 bytes and a space after it, with 16 bytes to load.
    """
    low = high = np.uint64(0)
    size = np.int64(_SHORT + 1)
    if begin + 16 <= len(data):
        low, high = load64(data, begin), load64(data, begin + 8)
        spaces = _spaces(low)
        if spaces:
            size = count_before(spaces)
            high = np.uint64(0)
            low &= (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
        else:
            spaces = _spaces(high)
            if spaces:
                size = 8 + count_before(spaces)
                high &= (np.uint64(1) << np.uint64(8 * (size - 8))) - np.uint64(1)
    pos = begin + size
    if size > _SHORT or pos >= end or not _is_space(data[pos]):
        size = np.int64(_SHORT + 1)
    return size, low, high


@inline
def _word_end(data: Bytes, pos: int, end: int) -> int:
    while pos < end and not _is_space(data[pos]):
        pos += 1
    return pos


@inline
def _slot(low: np.uint64, high: np.uint64) -> np.int64:
    """Return the slot of a short word in the cache."""
    return np.int64((low * _MIX_1 ^ high * _MIX_2) >> np.uint64(64 - _KNOWN_BITS))


@kernel
def _word_rows(
    data: Bytes,
    begin: int,
    end: int,
    low: np.uint64,
    high: np.uint64,
    features: Features,
    scratch: RowScratch,
    num: int,
    matrix: Float32s,
    sums: Float32s,
) -> tuple[int, int, np.uint32, bool]:
    """Append the rows of a word; return the new `num`, rows added to sums, hash, is it a word.

    A label is not a word. `low` is 0 if the word is not in `low` and `high`.
    """
    value = np.uint32(0)
    added = 0
    if len(features.spans) > 0 or features.word_ngrams > 1:
        value = fnv(data, begin, end)
    entry = -1
    if len(features.spans) > 0:
        _, entry = _find(features, data, begin, end, value)
    if entry >= features.num_words:
        return num, 0, value, False
    if entry < 0 and end - begin >= 9 and data[begin + 8] == 95 and load64(data, begin) == _LABEL:
        return num, 0, value, False
    if num + 18 * features.max_run + 1 > ROWS:
        _add(scratch.rows, num, matrix, sums)
        added, num = num, 0
    if entry >= 0:
        scratch.rows[num] = entry
        num += 1
    if features.max_run == 0:
        pass
    elif low != 0 and (low | high) & HIGH_BITS == 0:
        num = _add_short_runs(low, high, end - begin, features, scratch, num)
    else:
        num, num_added = _add_runs(data, begin, end, features, scratch, num, matrix, sums)
        added += num_added
    return num, added, value, True


@kernel
def _text_rows(
    data: Bytes,
    pos: int,
    end: int,
    features: Features,
    scratch: RowScratch,
    matrix: Float32s,
    sums: Float32s,
) -> tuple[int, int, int]:
    """Add the rows of the words of a text; return how many, how many are pending, and the words."""
    rows, word_cache, hashes = scratch.rows, scratch.word_cache, scratch.hashes
    keys = word_cache.view(np.uint64)
    num = added = words = 0
    while True:
        while pos < end and _is_space(data[pos]):
            pos += 1
        if pos >= end:
            break
        begin = pos
        size, low, high = _short_word(data, begin, end)
        pos = begin + size
        if size > _SHORT:
            pos = _word_end(data, begin, end)
        elif high == 0 and low == _END:
            break
        slot = 0
        if size <= _SHORT:
            slot = _slot(low, high)
            if keys[slot, 0] == low and keys[slot, 1] == high:
                count = np.int64(word_cache[slot, _COUNT])
                for first in range(0, count, 8):  # nearly always once
                    _copy_8(word_cache[slot], _FIRST + first, rows, num + first)
                num += count
                if features.word_ngrams > 1:
                    hashes[words] = word_cache[slot, _HASH]
                    words += 1
                if num > ROWS - _LINE:
                    _add(rows, num, matrix, sums)
                    added += num
                    num = 0
                continue
        if _is_end(data, begin, pos):
            break
        first_row = num
        num, num_added, value, is_word = _word_rows(
            data,
            begin,
            pos,
            low if size <= _SHORT else np.uint64(0),
            high,
            features,
            scratch,
            num,
            matrix,
            sums,
        )
        if is_word and features.word_ngrams > 1:
            hashes[words] = value
            words += 1
        if num_added > 0:
            added += num_added
        elif size <= _SHORT and is_word and num - first_row <= _MOST_KNOWN:
            keys[slot, 0], keys[slot, 1] = low, high
            word_cache[slot, _HASH], word_cache[slot, _COUNT] = value, num - first_row
            for index in range(num - first_row):
                word_cache[slot, _FIRST + index] = rows[first_row + index]
        if num > ROWS - _LINE:
            _add(rows, num, matrix, sums)
            added += num
            num = 0
    return added, num, words


@kernel
def _end_rows(
    features: Features, scratch: RowScratch, num: int, words: int, matrix: Float32s, sums: Float32s
) -> tuple[int, int]:
    """Append the rows of the word that ends a text, and of word n-grams; return as `_text_rows`."""
    rows, hashes = scratch.rows, scratch.hashes
    added = 0
    if features.end_row >= 0:
        rows[num] = features.end_row
        num += 1
    if features.word_ngrams > 1:
        hashes[words] = _END_HASH
        words += 1
        buckets = np.uint64(features.buckets)
        for first in range(words):
            value = np.uint64(np.int64(np.int32(hashes[first])))
            for last in range(first + 1, min(first + features.word_ngrams, words)):
                value = value * _NGRAM_FACTOR + np.uint64(np.int64(np.int32(hashes[last])))
                rows[num], has_row = _bucket_row(value % buckets, features)
                num += has_row
                if num > ROWS - _LINE:
                    _add(rows, num, matrix, sums)
                    added += num
                    num = 0
    return added, num


@packed_kernel
def mean_rows(
    begins: Int64s,
    ends: Int64s,
    data: Bytes,
    features: Features,
    matrix: Float32s,
    scratch: RowScratch,
    hidden: Float32s,
    counts: Int64s,
) -> None:
    """Fill `hidden` with the mean of the rows of each text.

    O(B); 30 to 150 MB/s.

    Args:
        begins, ends, data: N texts; newlines count as spaces.
        matrix: rows of `stride` numbers, one after the other.
        scratch: `scratch`.
        hidden: (N, stride), zeros.
        counts: (N,) rows of each text; without any its mean is zero.
    """
    for row in range(len(begins)):
        sums = hidden[row]
        added, num, words = _text_rows(
            data, begins[row], ends[row], features, scratch, matrix, sums
        )
        num_added, num = _end_rows(features, scratch, num, words, matrix, sums)
        added += num_added
        _add(scratch.rows, num, matrix, sums)
        counts[row] = added + num
        if counts[row] > 0:
            factor = np.float32(1.0 / counts[row])
            for column in range(len(sums)):
                sums[column] *= factor


# ----------------------------------------------------------------------
# Labels by score. All arithmetic is the library's: the same operations on the same types.

HIERARCHICAL, SOFTMAX = 1, 3
"""Losses, numbered as in models; the others, 2 and 4, score each label by itself."""

_SIGMOID_STEPS, _SIGMOID_MAX = 512, 8
_TINY = 1e-5

_LOG2_E = np.float32(1.44269504)
_LN_2 = (np.float32(0.693359375), np.float32(-2.12194440e-4))
"""ln 2 in two parts, the first of few bits."""
_EXP = (
    np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3),
    np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1),
)  # fmt: skip


class Output(NamedTuple):
    """What turns the mean of a text's rows into scores.

    Attributes:
        loss: see HIERARCHICAL.
        matrix: (dim, L) float32, or (L, dim) with hierarchical softmax.
        norms: (L,) float32, by which products are multiplied.
        left, right: (2 * L - 1,) int32, nodes of the tree; -1 at leaves, which come first.
        sigmoid: (513,) float32, `sigmoid_table()`.
        scales: (K,) float32, a calibration of softmax: factors of differences of logits in a text
            of 4, 8, ... 2 ** (K + 1) rows, interpolated in between. 1 leaves scores unchanged.
    """

    loss: int
    matrix: Float32s
    norms: Float32s
    left: Int32s
    right: Int32s
    sigmoid: Float32s
    scales: Float32s = np.ones(1, np.float32)


def sigmoid_table() -> Float32s:
    """Return 1 / (1 + exp(-x)) for x from -8 to 8, (513,) float32."""
    steps = np.arange(_SIGMOID_STEPS + 1, dtype=np.float32)
    inputs = steps * np.float32(2 * _SIGMOID_MAX) / np.float32(_SIGMOID_STEPS) - _SIGMOID_MAX
    powers = np.exp(-inputs.astype(np.float64)).astype(np.float32)
    return (1.0 / (1.0 + powers.astype(np.float64))).astype(np.float32)


@kernel
def build_tree(counts: Int64s) -> tuple[Int32s, Int32s]:
    """Return the left and right nodes of the Huffman tree of labels, (2 * L - 1,) each."""
    labels = len(counts)
    left, right = np.full(2 * labels - 1, -1, np.int32), np.full(2 * labels - 1, -1, np.int32)
    sums = np.full(2 * labels - 1, 10**15, np.int64)
    sums[:labels] = counts
    leaf, node = labels - 1, labels
    for parent in range(labels, 2 * labels - 1):
        for side in (left, right):
            if leaf >= 0 and sums[leaf] < sums[node]:
                side[parent] = leaf
                leaf -= 1
            else:
                side[parent] = node
                node += 1
        sums[parent] = sums[left[parent]] + sums[right[parent]]
    return left, right


@inline
def _log(value: np.float32) -> np.float32:
    return np.float32(math.log(np.float64(value) + _TINY))


@kernel
def _scale(scales: Float32s, count: int) -> np.float32:
    """Return the factor of `Output.scales` for a text of `count` rows."""
    position = min(max(math.log2(np.float64(count)) - 2.0, 0.0), len(scales) - 1.0)
    low = int(position)
    high = min(low + 1, len(scales) - 1)
    return np.float32(scales[low] + (scales[high] - scales[low]) * (position - low))


@kernel
def _sift_up(
    scores: Float32s, labels: Int32s, node: int, top: int, score: np.float32, label: int
) -> None:
    """Move a label from `node` up the heap, to `top` at most: std::push_heap."""
    parent = (node - 1) // 2
    while node > top and scores[parent] > score:
        scores[node], labels[node] = scores[parent], labels[parent]
        node = parent
        parent = (node - 1) // 2
    scores[node], labels[node] = score, label


@kernel
def _pop(scores: Float32s, labels: Int32s, size: int) -> None:
    """Move the smallest of a heap to its end: std::pop_heap of GCC, with its order of ties."""
    last = size - 1
    score, label = scores[last], labels[last]
    scores[last], labels[last] = scores[0], labels[0]
    node = child = 0
    while child < (last - 1) // 2:
        child = 2 * (child + 1)
        if scores[child] > scores[child - 1]:
            child -= 1
        scores[node], labels[node] = scores[child], labels[child]
        node = child
    if last & 1 == 0 and last >= 2 and child == (last - 2) // 2:
        child = 2 * (child + 1)
        scores[node], labels[node] = scores[child - 1], labels[child - 1]
        node = child - 1
    _sift_up(scores, labels, node, 0, score, label)


@kernel
def _offer(
    scores: Float32s, labels: Int32s, size: int, max_labels: int, score: np.float32, label: int
) -> int:
    """Add a label to the heap of the `max_labels` best if it is one; return the heap's size."""
    _sift_up(scores, labels, size, 0, score, label)
    size += 1
    if size > max_labels:
        _pop(scores, labels, size)
        size -= 1
    return size


@kernel
def _best_in_tree(
    mean: Float32s, output: Output, max_labels: int, scores: Float32s, labels: Int32s,
    nodes: Int32s, sums: Float32s,
) -> int:  # fmt: skip
    """Collect the best labels of a tree; return how many, -1 if a score is NaN."""
    num_labels, dim = output.matrix.shape
    size, num = 0, 1
    nodes[0], sums[0] = 2 * num_labels - 2, np.float32(0)
    while num > 0:
        num -= 1
        node, score = nodes[num], sums[num]
        if score < _log(np.float32(0)) or (size == max_labels and score < scores[0]):
            continue
        if output.left[node] < 0:
            size = _offer(scores, labels, size, max_labels, score, node)
            continue
        product = np.float32(0)
        for column in range(dim):
            product += output.matrix[node - num_labels, column] * mean[column]
        product *= output.norms[node - num_labels]
        if math.isnan(product):
            return -1
        chance = np.float32(1.0 / np.float64(np.float32(1) + math.exp(-product)))
        complement = np.float32(1.0 - np.float64(chance))
        nodes[num], sums[num] = output.right[node], np.float32(score + _log(chance))
        nodes[num + 1], sums[num + 1] = output.left[node], np.float32(score + _log(complement))
        num += 2
    return size


@kernel
def _best_by_value(values: Float32s, max_labels: int, scores: Float32s, labels: Int32s) -> int:
    """Collect the best labels by their values; return how many."""
    size, bar = 0, -1.0
    for label in range(len(values)):
        if values[label] < bar:
            continue
        score = _log(values[label])
        if size < max_labels or score >= scores[0]:
            size = _offer(scores, labels, size, max_labels, score, label)
            if (
                size == max_labels
            ):  # values that are less by more than a rounding have a smaller score
                bar = math.exp(scores[0]) * (1 - 2e-6) - _TINY
    return size


@kernel
def _fill_logits(mean: Float32s, output: Output, values: Float32s) -> np.float32:
    """Fill `values` with the logits of all labels, (L,); return the largest, NaN if one is NaN."""
    dim, num_labels = output.matrix.shape
    values[:] = 0
    for column in range(dim):
        factor = mean[column]
        for label in range(num_labels):
            values[label] += output.matrix[column, label] * factor
    largest = np.float32(-np.inf)
    for label in range(num_labels):
        values[label] *= output.norms[label]
        if math.isnan(values[label]):
            return np.float32(np.nan)
        largest = max(largest, values[label])
    return largest


@kernel
def _best_by_logit(
    mean: Float32s, count: int, output: Output, max_labels: int, scores: Float32s, labels: Int32s,
    values: Float32s,
) -> int:  # fmt: skip
    """Collect the best labels; return how many, -1 if a score is NaN."""
    num_labels = len(output.norms)
    largest = _fill_logits(mean, output, values)
    if math.isnan(largest):
        return -1
    total = np.float32(0)
    if output.loss == SOFTMAX:
        scale = _scale(output.scales, count)  # 1 without a calibration: changes no bit
        for label in range(num_labels):
            power = np.float32(np.float32(values[label] - largest) * scale)
            values[label] = math.exp(np.float64(power))  # in double precision, as the library
            total += values[label]
        for label in range(num_labels):
            values[label] /= total
    else:
        for label in range(num_labels):
            value = values[label]
            if value < -_SIGMOID_MAX:
                values[label] = 0
            elif value > _SIGMOID_MAX:
                values[label] = 1
            else:
                step = np.float32(np.float32(value + np.float32(8)) * np.float32(512))
                values[label] = output.sigmoid[int(step / np.float32(8) / np.float32(2))]
    return -1 if math.isnan(total) else _best_by_value(values, max_labels, scores, labels)


@kernel
def _write_best(heap: Float32s, labels: Int32s, size: int, ranks: Int32s, scores: Float64s) -> None:
    """Write the labels of a heap, best first."""
    for heap_size in range(size, 1, -1):
        _pop(heap, labels, heap_size)
    for rank in range(size):
        ranks[rank] = labels[rank]
        scores[rank] = math.exp(heap[rank])


@kernel
def best_labels(
    hidden: Float32s, counts: Int64s, output: Output, ranks: Int32s, scores: Float64s
) -> int:
    """Fill `ranks` and `scores` with the best labels of each text, best first; there may be fewer.

    O(N L dim); with a tree only the labels that it visits.

    Args:
        hidden, counts: see `mean_rows`. A text without rows has no labels. Nor has one with one row
            in a calibrated model: it is the row of the word that ends a text, for which the library
            returns labels.
        output: of the model.
        ranks, scores: (N, k).

    Returns:
        The first text with a score that is NaN, -1 if there is none.
    """
    num, max_labels = ranks.shape
    num_labels = len(output.norms)
    heap, labels = np.empty(max_labels + 1, np.float32), np.empty(max_labels + 1, np.int32)
    nodes, values = np.empty(2 * num_labels, np.int32), np.empty(2 * num_labels, np.float32)
    fewest = 2 if len(output.scales) > 1 else 1
    for row in range(num):
        if counts[row] < fewest:
            continue
        if output.loss == HIERARCHICAL:
            size = _best_in_tree(hidden[row], output, max_labels, heap, labels, nodes, values)
        else:
            arguments = (output, max_labels, heap, labels, values[:num_labels])
            size = _best_by_logit(hidden[row], counts[row], *arguments)
        if size < 0:
            return row
        _write_best(heap, labels, size, ranks[row], scores[row])
    return -1


@inline
def _exp(power: np.float32) -> np.float32:
    """Return e to a power from -87 to 0, within 2e-7 of it: unlike math.exp, eight at a time.

    Source: expf of Cephes.
    """
    power = max(power, np.float32(-87))
    halvings = np.int32(np.float32(0.5) - power * _LOG2_E)
    remainder = power + np.float32(halvings) * _LN_2[0] + np.float32(halvings) * _LN_2[1]
    value = (_EXP[0] * remainder + _EXP[1]) * remainder + _EXP[2]
    value = ((value * remainder + _EXP[3]) * remainder + _EXP[4]) * remainder + _EXP[5]
    value = value * remainder * remainder + remainder + np.float32(1)
    return value * np.int32((127 - halvings) << 23).view(np.float32)


@kernel
def label_values(hidden: Float32s, counts: Int64s, output: Output, values: Float32s) -> bool:
    """Fill `values` with the share of each label, for `rank_values`; return whether none is NaN.

    O(N L dim). Equal to those of `best_labels` but for rounding, in half the time.

    Args:
        hidden, counts, output: see `best_labels`; the loss is softmax.
        values: (N, L), zeros; they stay so for a text of fewer than two rows.
    """
    for row in range(len(values)):
        logits = values[row]
        if counts[row] < 2:
            continue
        largest = _fill_logits(hidden[row], output, logits)
        if not math.isfinite(largest):
            return False
        scale, total = _scale(output.scales, counts[row]), np.float32(0)
        for label in range(len(logits)):
            logits[label] = _exp((logits[label] - largest) * scale)
        for label in range(len(logits)):
            total += logits[label]
        for label in range(len(logits)):
            logits[label] /= total
    return True


@kernel
def rank_values(values: Float32s, counts: Int64s, ranks: Int32s, scores: Float64s) -> None:
    """Fill `ranks` and `scores`, (N, k), as `best_labels`, from the result of `label_values`."""
    max_labels = ranks.shape[1]
    heap, labels = np.empty(max_labels + 1, np.float32), np.empty(max_labels + 1, np.int32)
    for row in range(len(values)):
        if counts[row] > 1:
            size = _best_by_value(values[row], max_labels, heap, labels)
            _write_best(heap, labels, size, ranks[row], scores[row])


# ----------------------------------------------------------------------
# With a calibrated model: which windows of a text are in another language?

WINDOW = 256
"""Bytes of a window, at least; it ends where a word does."""

LEAST_WINDOW = 64
"""Bytes of a window of a short text, at least: 0.06 % of sentences lose a right label with a score
of 0.65, with 48 bytes 0.17 %."""

MOST_WINDOWS = 64
"""Windows of a text; those of a longer one are spread evenly over it."""

_PARTS = 8
"""Windows of a short text, at most."""

_LETTERS = 0.7
"""Share of letters among characters that are not white space, at least: code, addresses and
checksums have fewer, and their language says nothing."""

_CLEARLY = 3.0
"""Logarithm of the odds above which a window is clearly in another language."""

_SUM = 8
"""Column where the sums of a remembered word begin: after its 16 bytes and `_COUNT`."""


def sum_scratch(stride: int, cache: Uint32s | None = None) -> Uint32s:
    """Return the cache of words of `sum_windows`: (KNOWN + 1, 8 + stride) uint32."""
    return np.zeros((KNOWN + 1, _SUM + stride), np.uint32) if cache is None else cache


@kernel
def _next_start(data: Bytes, pos: int, end: int) -> int:
    """Return where the word ends, or a character begins after WINDOW bytes without such an end."""
    stop = _word_end(data, pos, min(pos + WINDOW, end))
    if stop == pos + WINDOW:
        while stop < end and data[stop] & 0xC0 == 0x80:
            stop += 1
    return stop


@kernel
def cut_windows(begins: Int64s, ends: Int64s, data: Bytes) -> tuple[Int64s, Int64s, Int64s]:
    """Cut texts into windows at white space; of a long one MOST_WINDOWS are taken, spread evenly.

    A text shorter than two windows is one. Up to MOST_WINDOWS windows cover all of a text.

    Args:
        begins, ends, data: N texts.

    Returns:
        where windows begin and end, (W,) each, and the first window of each text, (N + 1,).
    """
    max_windows = 0
    for row in range(len(begins)):
        max_windows += min((ends[row] - begins[row]) // LEAST_WINDOW, MOST_WINDOWS) + 1
    starts, stops = np.empty(max_windows, np.int64), np.empty(max_windows, np.int64)
    firsts = np.zeros(len(begins) + 1, np.int64)
    num = 0
    for row in range(len(begins)):
        begin, end = begins[row], ends[row]
        length = end - begin
        size = min(WINDOW, max(LEAST_WINDOW, length // _PARTS))
        start, sampled = begin, length > WINDOW * MOST_WINDOWS
        while True:
            if sampled:
                target = begin + (num - firsts[row]) * (length - WINDOW) // (MOST_WINDOWS - 1)
                start = max(start, _next_start(data, target, end) if target > begin else begin)
                stop = _next_start(data, min(start + size, end), end)
            else:
                stop = _word_end(data, min(start + size, end), end)
                if end - stop < size // 2 or length < 2 * LEAST_WINDOW:
                    stop = end
            starts[num], stops[num] = start, stop
            num += 1
            start = stop
            if start >= end or (sampled and num - firsts[row] == MOST_WINDOWS):
                break
        firsts[row + 1] = num
    return starts[:num], stops[:num], firsts


@packed_kernel
def sum_windows(
    begins: Int64s,
    ends: Int64s,
    data: Bytes,
    features: Features,
    matrix: Float32s,
    scratch: RowScratch,
    cache: Uint32s,
    sums: Float32s,
    counts: Int64s,
) -> None:
    """Fill `sums` with the sum of the rows of each window, `counts` with how many rows it has.

    The rows of a word are added first, and the sums of common words are cached: one row is added
    for a word instead of about twenty. So sums differ from the library's in the last bits.
    A word `</s>` ends a window. The model has no word n-grams.

    Args:
        begins, ends, data: W windows.
        cache: `sum_scratch`; its contents change no result.
        sums: (W, stride), zeros.
        counts: (W,).
    """
    keys, floats = cache.view(np.uint64), cache.view(np.float32)
    for row in range(len(begins)):
        total, end = sums[row], ends[row]
        pos, num = begins[row], 0
        while True:
            while pos < end and _is_space(data[pos]):
                pos += 1
            if pos >= end:
                break
            begin = pos
            size, low, high = _short_word(data, begin, end)
            is_short = size <= _SHORT
            pos = begin + size if is_short else _word_end(data, begin, end)
            slot = _slot(low, high) if is_short else np.int64(KNOWN)
            if not is_short or keys[slot, 0] != low or keys[slot, 1] != high:
                if _is_end(data, begin, pos):
                    break
                line = floats[slot, _SUM:]
                line[:] = 0
                head = low if is_short else np.uint64(0)
                word = (data, begin, pos, head, high, features, scratch, 0, matrix, line)
                num_rows, added, _, _ = _word_rows(*word)
                _add(scratch.rows, num_rows, matrix, line)
                keys[slot, 0], keys[slot, 1] = low, high
                cache[slot, _COUNT] = added + num_rows
            num += np.int64(cache[slot, _COUNT])
            for column in range(len(total)):
                total[column] += floats[slot, _SUM + column]
        counts[row] = num


@kernel
def join_windows(
    firsts: Int64s,
    sums: Float32s,
    counts: Int64s,
    end_row: Float32s,
    hidden: Float32s,
    nums: Int64s,
) -> None:
    """Fill `hidden` with the mean of the rows of each text, and `nums` with how many they are.

    Args:
        firsts: (N + 1,) of `cut_windows`.
        sums, counts: of `sum_windows`.
        end_row: row of the word that ends a text; (0,) if it has none.
        hidden: (N, stride).
        nums: (N,).
    """
    for row in range(len(nums)):
        total = hidden[row]
        total[:] = 0
        num = 0
        for window in range(firsts[row], firsts[row + 1]):
            num += counts[window]
            for column in range(len(total)):
                total[column] += sums[window, column]
        if len(end_row) > 0:
            num += 1
            for column in range(len(total)):
                total[column] += end_row[column]
        nums[row] = num
        for column in range(len(total)):
            total[column] /= np.float32(max(num, 1))


@kernel
def _is_prose(data: Bytes, begin: int, end: int) -> bool:
    letters = symbols = 0
    for pos in range(begin, end):
        byte = data[pos]
        is_letter = (byte >= 0x80) | ((byte | 0x20) - 97 < 26) & (byte >= 65)
        letters += is_letter
        symbols += (not is_letter) & (not _is_space(byte))
    return letters >= _LETTERS * (letters + symbols)


@kernel
def _odds(
    mean: Float32s, output: Output, groups: Int32s, group: int, values: Float32s
) -> np.float32:
    """Return the logarithm of the odds of the best label against the best of a group."""
    best, group_best = _fill_logits(mean, output, values), np.float32(-np.inf)
    for label in range(len(values)):
        if groups[label] == group:
            group_best = max(group_best, values[label])
    return best - group_best


@kernel
def other_shares(
    firsts: Int64s,
    begins: Int64s,
    ends: Int64s,
    data: Bytes,
    sums: Float32s,
    counts: Int64s,
    output: Output,
    groups: Int32s,
    best: Int32s,
) -> Float64s:
    """Return the share of each text's bytes that is clearly in another language, (N,).

    O(W L dim). Bytes are those of windows; neighbours and code do not count as another language.

    Args:
        firsts, begins, ends, data: of `cut_windows`.
        sums, counts: of `sum_windows`, (W, dim) here.
        groups: (L,) the group of neighbours of each label.
        best: (N,) labels of the texts, -1 for none.
    """
    shares = np.zeros(len(best))
    values, mean = np.empty(len(output.norms), np.float32), np.empty(sums.shape[1], np.float32)
    for row in range(len(best)):
        first, last = firsts[row], firsts[row + 1]
        if best[row] < 0 or last - first < 2:
            continue
        total = other_bytes = 0
        for window in range(first, last):
            total += ends[window] - begins[window]
            if counts[window] == 0:
                continue
            for column in range(len(mean)):
                mean[column] = sums[window, column] / np.float32(counts[window])
            odds = _odds(mean, output, groups, groups[best[row]], values)
            if odds * _scale(output.scales, counts[window]) > _CLEARLY and _is_prose(
                data, begins[window], ends[window]
            ):
                other_bytes += ends[window] - begins[window]
        shares[row] = other_bytes / max(total, 1)
    return shares


# ----------------------------------------------------------------------
# Which bytes of a text count.


@kernel
def cut_texts(offsets: Int64s, data: Bytes, max_bytes: int, strips: bool) -> tuple[Int64s, Int64s]:
    """Return where texts begin and end, (N,) each, cut to whole characters and stripped.

    Args:
        offsets, data: N texts.
        max_bytes: at most this many bytes from the beginning; -1 for all.
        strips: whether whitespace at both ends is left out, as by str.strip.
    """
    begins, ends = offsets[:-1].copy(), offsets[1:].copy()
    for row in range(len(begins)):
        if 0 <= max_bytes < ends[row] - begins[row]:
            ends[row] = begins[row] + max_bytes
            while ends[row] > begins[row] and data[ends[row]] & 0xC0 == 0x80:
                ends[row] -= 1
        if strips:
            begins[row] = skip_space(data, begins[row], ends[row])
            ends[row] = skip_space_back(data, begins[row], ends[row])
    return begins, ends

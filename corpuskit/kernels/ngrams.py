"""Word n-grams as bytes, words joined by one space, hashed as other libraries hash them."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from corpuskit.kernels.arrays import Bytes, Int32s, Int64s, Uint32s, Uint64s
from corpuskit.kernels.hashing import load64, store64, xxh64
from corpuskit.kernels.jit import inline, kernel
from corpuskit.kernels.utf8 import (
    CHAR_ENDS,
    CHAR_LOWER,
    CHAR_WORD,
    char_width,
    characters,
    code_point,
    write_char,
)


class JoinedWords(NamedTuple):
    """The words of N texts, each with a space after it.

    Attributes:
        bounds: (N + 1,) int64: text i has the words `bounds[i]` to `bounds[i + 1]`.
        starts: (W + 1,) int64: word w is `data[starts[w]:starts[w + 1] - 1]`.
        data: (B,) uint8.
    """

    bounds: Int64s
    starts: Int64s
    data: Bytes


def lower_words(offsets: Int64s, data: Bytes) -> JoinedWords:
    """Return the words of texts in lower case, as wordhash has them."""
    return JoinedWords(*_lower_words(offsets, data, characters()))


@kernel
def _lower_words(offsets: Int64s, data: Bytes, characters: Uint32s) -> tuple[Int64s, Int64s, Bytes]:
    """O(B), about 500 MB/s for ASCII; reserves 6 B bytes and writes to what it uses."""
    num_docs = len(offsets) - 1
    size_bytes = offsets[num_docs] - offsets[0]
    # U+023A is 2 bytes, its lower case 3; a word needs no byte between it and the next text.
    out = np.empty(size_bytes * 3 // 2 + num_docs + 8, np.uint8)
    starts = np.zeros((size_bytes + num_docs) // 2 + 3, np.int64)
    bounds = np.zeros(num_docs + 1, np.int64)
    plain = np.full(128, 32, np.uint8)
    for code in range(128):
        if characters[code] & CHAR_WORD:
            plain[code] = characters[code] & 0x7F
    one = np.uint64(1)
    num = size = np.uint64(0)
    for doc in range(num_docs):
        pos, end = offsets[doc], offsets[doc + 1]
        is_inside = np.uint64(0)
        while pos < end:
            byte = data[pos]
            if byte < 0x80:
                byte = plain[byte]
                pos += 1
            else:
                code = code_point(data, pos)
                entry = characters[code] if code < len(characters) else np.uint32(0)
                pos += char_width(byte)
                byte = np.uint8(32)
                if entry & CHAR_WORD:
                    size = np.uint64(write_char(int(entry & CHAR_LOWER), out, int(size)))
                    is_inside = one
                    if not entry & CHAR_ENDS:
                        continue
            # Without branches: a space overwrites the one before it, and what is stored after the
            # current word stays when it ends. Unsigned, so that no sign is tested.
            is_word = np.uint64(byte != 32)
            out[size] = byte
            size += is_word | is_inside
            starts[num + one] = size
            num += is_inside & ~is_word
            is_inside = is_word
        if is_inside:
            out[size] = 32
            size += one
            num += one
            starts[num] = size
        bounds[doc + 1] = num
    return bounds, starts[: num + one].copy(), out[:size]


@kernel
def join_words(
    bounds: Int64s, tokens: Int32s, word_starts: Int64s, word_data: Bytes
) -> tuple[Int64s, Bytes]:
    """Return `starts` and `data` of `JoinedWords` for words of a lexicon. O(B).

    Args:
        bounds: (N + 1,) where the words of each text begin among `tokens`.
        tokens: numbers of words.
        word_starts, word_data: the lexicon's, whose data have 8 bytes of slack.
    """
    first, num_words = bounds[0], bounds[len(bounds) - 1] - bounds[0]
    starts = np.zeros(num_words + 1, np.int64)
    for word in range(num_words):
        token = tokens[first + word]
        starts[word + 1] = starts[word] + word_starts[token + 1] - word_starts[token] + 1
    out = np.empty(starts[num_words] + 16, np.uint8)
    for word in range(num_words):
        source, pos = word_starts[tokens[first + word]], starts[word]
        end = starts[word + 1] - 1
        while pos < end:
            # This also copies bytes after the word, which the next word overwrites.
            store64(load64(word_data, source), out, pos)
            pos += 8
            source += 8
        out[end] = 32
    return starts, out


def hash_ngrams(
    words: JoinedWords,
    ngram: int,
    function: Literal["sha1", "xxhash"],
    precision: Literal[32, 64],
    *,
    keeps_short: bool,
) -> tuple[Int64s, Uint64s]:
    """Return the hashes of the n-grams of texts, in order: offsets (N + 1,), hashes.

    Args:
        words: of N texts.
        function, precision: XXH32, XXH64, or the first 4 or 8 bytes of SHA-1, little endian.
        keeps_short: a text with fewer than `ngram` words has one n-gram, of all; else it has none.
    """
    bounds, begins, ends = _ngram_spans(words.bounds, words.starts, ngram, keeps_short)
    hashes = np.empty(len(begins), np.uint64)
    if function == "sha1":
        sha1_each(words.data, begins, ends, hashes)
        if precision == 32:
            hashes &= np.uint64(0xFFFFFFFF)
    else:
        _xxhash_each(words.data, begins, ends, precision == 64, hashes)
    return bounds, hashes


@kernel
def _ngram_spans(
    bounds: Int64s, starts: Int64s, ngram: int, keeps_short: bool
) -> tuple[Int64s, Int64s, Int64s]:
    """Return which n-grams each text has, and where they begin and end; allocates 16 B a word."""
    num_docs = len(bounds) - 1
    offsets = np.zeros(num_docs + 1, np.int64)
    begins = np.empty(len(starts), np.int64)
    ends = np.empty(len(starts), np.int64)
    num = np.int64(0)
    for doc in range(num_docs):
        num_words = bounds[doc + 1] - bounds[doc]
        width = min(ngram, num_words) if keeps_short else ngram
        if width > 0:
            for word in range(bounds[doc], bounds[doc + 1] - width + 1):
                begins[num], ends[num] = starts[word], starts[word + width] - 1
                num += 1
        offsets[doc + 1] = num
    return offsets, begins[:num], ends[:num]


@kernel
def _xxhash_each(data: Bytes, begins: Int64s, ends: Int64s, is_64: bool, out: Uint64s) -> None:
    for i in range(len(begins)):
        if is_64:
            out[i] = xxh64(data, begins[i], ends[i], np.uint64(0))
        else:
            out[i] = xxh32(data, begins[i], ends[i])


# ---------------------------------------------------------------- digests


_PRIME_1 = np.uint32(0x9E3779B1)
_PRIME_2 = np.uint32(0x85EBCA77)
_PRIME_3 = np.uint32(0xC2B2AE3D)
_PRIME_4 = np.uint32(0x27D4EB2F)
_PRIME_5 = np.uint32(0x165667B1)

_START = np.array([0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0], np.uint32)

LANES = 16
"""Messages that are hashed at a time: as many 32-bit numbers as a vector register holds."""


@inline
def _rotate(value: np.uint32, bits: int) -> np.uint32:
    return np.uint32(value << np.uint32(bits)) | np.uint32(value >> np.uint32(32 - bits))


@inline
def _load32(data: Bytes, pos: int) -> np.uint32:
    i = np.uint64(pos)
    return np.uint32(
        np.uint32(data[i])
        | np.uint32(data[i + np.uint64(1)]) << np.uint32(8)
        | np.uint32(data[i + np.uint64(2)]) << np.uint32(16)
        | np.uint32(data[i + np.uint64(3)]) << np.uint32(24)
    )


@inline
def _round(lane: np.uint32, word: np.uint32) -> np.uint32:
    return np.uint32(_rotate(np.uint32(lane + np.uint32(word * _PRIME_2)), 13) * _PRIME_1)


@kernel
def xxh32(data: Bytes, begin: int, end: int) -> np.uint32:
    """Return XXH32 of `data[begin:end]`, seed 0. O(B).

    Source: the xxHash specification, section XXH32; equals xxhash.xxh32_intdigest.
    """
    pos = begin
    if end - begin >= 16:
        lane_1, lane_2 = np.uint32(_PRIME_1 + _PRIME_2), _PRIME_2
        lane_3, lane_4 = np.uint32(0), np.uint32(np.uint32(0) - _PRIME_1)
        while pos + 16 <= end:
            lane_1 = _round(lane_1, _load32(data, pos))
            lane_2 = _round(lane_2, _load32(data, pos + 4))
            lane_3 = _round(lane_3, _load32(data, pos + 8))
            lane_4 = _round(lane_4, _load32(data, pos + 12))
            pos += 16
        value = np.uint32(
            _rotate(lane_1, 1) + _rotate(lane_2, 7) + _rotate(lane_3, 12) + _rotate(lane_4, 18)
        )
    else:
        value = _PRIME_5
    value = np.uint32(value + np.uint32(end - begin))
    while pos + 4 <= end:
        value = np.uint32(value + np.uint32(_load32(data, pos) * _PRIME_3))
        value = np.uint32(_rotate(value, 17) * _PRIME_4)
        pos += 4
    while pos < end:
        value = np.uint32(value + np.uint32(np.uint32(data[pos]) * _PRIME_5))
        value = np.uint32(_rotate(value, 11) * _PRIME_1)
        pos += 1
    value = np.uint32((value ^ (value >> np.uint32(15))) * _PRIME_2)
    value = np.uint32((value ^ (value >> np.uint32(13))) * _PRIME_3)
    return np.uint32(value ^ (value >> np.uint32(16)))


@kernel
def sha1_each(data: Bytes, begins: Int64s, ends: Int64s, out: Uint64s) -> None:
    """Fill `out` with the first 8 bytes of SHA-1 of `data[begins[i]:ends[i]]`, little endian.

    Messages are taken LANES at a time, whose blocks are hashed side by side in vector registers.
    About 65 ns for a message of less than 56 bytes, hashlib from Python 550.

    Source: FIPS 180-4, section 6.1; equals int.from_bytes(hashlib.sha1(..).digest()[:8], "little").
    """
    words = np.zeros(80 * LANES, np.uint32)
    past = np.zeros(85 * LANES, np.uint32)
    state = np.zeros(5 * LANES, np.uint32)
    block = np.zeros(64, np.uint8)
    for first in range(0, len(begins), LANES):
        lanes = min(LANES, len(begins) - first)
        longest = np.int64(0)
        for lane in range(lanes):
            longest = max(longest, ends[first + lane] - begins[first + lane])
        for k in range(5):
            state[k * LANES : (k + 1) * LANES] = _START[k]
        for number in range((longest + 8) // 64 + 1):
            for lane in range(lanes):
                _fill_block(data, begins[first + lane], ends[first + lane], number, block)
                for word in range(16):
                    words[word * LANES + lane] = _swap(_load32(block, 4 * word))
            _hash_blocks(words, past, state)
            for lane in range(lanes):
                if number == (ends[first + lane] - begins[first + lane] + 8) // 64:
                    high, low = _swap(state[LANES + lane]), _swap(state[lane])
                    out[first + lane] = np.uint64(high) << np.uint64(32) | np.uint64(low)


@inline
def _swap(value: np.uint32) -> np.uint32:
    """Return a number with its bytes in the other order."""
    return np.uint32(
        value << np.uint32(24)
        | (value & np.uint32(0xFF00)) << np.uint32(8)
        | (value >> np.uint32(8)) & np.uint32(0xFF00)
        | value >> np.uint32(24)
    )


@kernel
def _fill_block(data: Bytes, begin: int, end: int, number: int, out: Bytes) -> None:
    """Write block `number` of a padded message; undefined after its last one."""
    begin += 64 * number
    size = min(max(end - begin, 0), 64)
    out[:] = 0
    for index in range(size):
        out[index] = data[begin + index]
    if size < 64 and end >= begin:
        out[size] = 0x80
    if size < 56:
        bits = np.uint64(end - begin + 64 * number) << np.uint64(3)
        for index in range(8):
            out[56 + index] = np.uint8(bits >> np.uint64(56 - 8 * index) & np.uint64(0xFF))


@kernel
def _hash_blocks(words: Uint32s, past: Uint32s, state: Uint32s) -> None:
    """Hash one block in each lane.

    Row t + 4 of `past` is what FIPS calls `a` after t rounds; b, c, d and e are rows before it, all
    but b rotated. One array with fixed distances lets the compiler use vectors.

    Args:
        words: rows 0 to 15 hold the blocks, the other 64 are filled.
        past: scratch of 85 rows.
        state: a to e, 5 rows; what the blocks add to it is added.
    """
    for pos in range(16 * LANES, 80 * LANES):
        mixed = words[pos - 3 * LANES] ^ words[pos - 8 * LANES]
        mixed ^= words[pos - 14 * LANES] ^ words[pos - 16 * LANES]
        words[pos] = _rotate(mixed, 1)
    for lane in range(LANES):
        past[4 * LANES + lane], past[3 * LANES + lane] = state[lane], state[LANES + lane]
        for k in range(2, 5):
            past[(4 - k) * LANES + lane] = _rotate(state[k * LANES + lane], 2)
    for pos in range(20 * LANES):
        b, c = past[pos + 3 * LANES], _rotate(past[pos + 2 * LANES], 30)
        d = _rotate(past[pos + LANES], 30)
        past[pos + 5 * LANES] = _next(past, words, pos, (d ^ (b & (c ^ d))), np.uint32(0x5A827999))
    for pos in range(20 * LANES, 40 * LANES):
        b, c = past[pos + 3 * LANES], _rotate(past[pos + 2 * LANES], 30)
        d = _rotate(past[pos + LANES], 30)
        past[pos + 5 * LANES] = _next(past, words, pos, b ^ c ^ d, np.uint32(0x6ED9EBA1))
    for pos in range(40 * LANES, 60 * LANES):
        b, c = past[pos + 3 * LANES], _rotate(past[pos + 2 * LANES], 30)
        d = _rotate(past[pos + LANES], 30)
        mixed = (b & c) | (d & (b | c))
        past[pos + 5 * LANES] = _next(past, words, pos, mixed, np.uint32(0x8F1BBCDC))
    for pos in range(60 * LANES, 80 * LANES):
        b, c = past[pos + 3 * LANES], _rotate(past[pos + 2 * LANES], 30)
        d = _rotate(past[pos + LANES], 30)
        past[pos + 5 * LANES] = _next(past, words, pos, b ^ c ^ d, np.uint32(0xCA62C1D6))
    for lane in range(LANES):
        state[lane] += past[84 * LANES + lane]
        state[LANES + lane] += past[83 * LANES + lane]
        for k in range(2, 5):
            state[k * LANES + lane] += _rotate(past[(84 - k) * LANES + lane], 30)


@inline
def _next(
    past: Uint32s, words: Uint32s, pos: int, mixed: np.uint32, constant: np.uint32
) -> np.uint32:
    return np.uint32(
        _rotate(past[pos + 4 * LANES], 5) + mixed + _rotate(past[pos], 30) + constant + words[pos]
    )

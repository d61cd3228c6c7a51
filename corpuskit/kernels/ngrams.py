"""Word n-grams as bytes, words joined by one space, hashed as other libraries hash them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from corpuskit.kernels.digests import sha1_each, xxh32
from corpuskit.kernels.hashing import load64, store64, xxh64
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.utf8 import (
    CHAR_ENDS,
    CHAR_LOWER,
    CHAR_WORD,
    char_width,
    characters,
    code_point,
    write_char,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]
    Hashes = NDArray[np.uint64]


class Joined(NamedTuple):
    """The words of N texts, each with a space behind it.

    Attributes:
        bounds: (N + 1,) int64: text i has the words `bounds[i]` to `bounds[i + 1]`.
        starts: (W + 1,) int64: word w is `data[starts[w]:starts[w + 1] - 1]`.
        data: (B,) uint8.
    """

    bounds: Offsets
    starts: Offsets
    data: Bytes


def lower_words(offsets: Offsets, data: Bytes) -> Joined:
    """Return the words of texts in lower case, as wordhash has them."""
    return Joined(*_lower_words(offsets, data, characters()))


@kernel
def _lower_words(
    offsets: Offsets, data: Bytes, characters: NDArray[np.uint32]
) -> tuple[Offsets, Offsets, Bytes]:
    """O(B), about 500 MB/s for ASCII; allocates 6 B bytes, of which what is used is written to."""
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
        at, end = offsets[doc], offsets[doc + 1]
        is_inside = np.uint64(0)
        while at < end:
            byte = data[at]
            if byte < 0x80:
                byte = plain[byte]
                at += 1
            else:
                code = code_point(data, at)
                entry = characters[code] if code < len(characters) else np.uint32(0)
                at += char_width(byte)
                byte = np.uint8(32)
                if entry & CHAR_WORD:
                    size = np.uint64(write_char(int(entry & CHAR_LOWER), out, int(size)))
                    is_inside = one
                    if not entry & CHAR_ENDS:
                        continue
            # Nothing to predict: a space is written over the one before it, and what is stored
            # behind the current word stays when it ends. Unsigned, so that no sign is tested.
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
    bounds: Offsets, tokens: NDArray[np.int32], word_starts: Offsets, word_data: Bytes
) -> tuple[Offsets, Bytes]:
    """Return `starts` and `data` of Joined for words that are numbers of a lexicon. O(B).

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
        source, at = word_starts[tokens[first + word]], starts[word]
        end = starts[word + 1] - 1
        while at < end:
            # Also what is behind the word, which the next one is written over.
            store64(load64(word_data, source), out, at)
            at += 8
            source += 8
        out[end] = 32
    return starts, out


def hash_ngrams(
    words: Joined,
    ngram: int,
    function: Literal["sha1", "xxhash"],
    precision: Literal[32, 64],
    *,
    keeps_short: bool,
) -> tuple[Offsets, Hashes]:
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
    bounds: Offsets, starts: Offsets, ngram: int, keeps_short: bool
) -> tuple[Offsets, Offsets, Offsets]:
    """Return which n-grams each text has, and where they begin and end; allocates 16 B a word."""
    num_docs = len(bounds) - 1
    found = np.zeros(num_docs + 1, np.int64)
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
        found[doc + 1] = num
    return found, begins[:num], ends[:num]


@kernel
def _xxhash_each(data: Bytes, begins: Offsets, ends: Offsets, is_64: bool, out: Hashes) -> None:
    for i in range(len(begins)):
        if is_64:
            out[i] = xxh64(data, begins[i], ends[i], np.uint64(0))
        else:
            out[i] = xxh32(data, begins[i], ends[i])

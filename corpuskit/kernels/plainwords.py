"""Words for n-gram overlap: as papers on contamination define them, and folded words with marks.

In papers a word is what is between whitespace, in lower case and without punctuation (ASCII only).
"""

from __future__ import annotations

import string

import numpy as np
from numpy.typing import NDArray

from corpuskit.kernels.arrays import Bools, Bytes, Int64s, Uint64s, frozen
from corpuskit.kernels.hashing import mix64
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.wordhash import BYTE_KINDS, folded_characters, hash_words
from corpuskit.kernels.words.split import SPACE_KINDS, split_spaces


def _kept_bytes() -> NDArray[np.int16]:
    """Byte -> byte in lower case, -1 for punctuation."""
    table = np.arange(256, dtype=np.int16)
    table[list(map(ord, string.ascii_uppercase))] += 32
    table[list(map(ord, string.punctuation))] = -1
    return frozen(table)


_KEPT = _kept_bytes()


def plain_words(offsets: Int64s, data: Bytes, *, keeps_empty: bool) -> tuple[Int64s, Uint64s]:
    """Return where the words of texts begin, (N + 1,), and their hashes, (W,). O(B).

    Args:
        offsets, data: N texts.
        keeps_empty: punctuation alone is an empty word; otherwise it is no word.
    """
    return _plain_words(offsets, data, SPACE_KINDS, _KEPT, keeps_empty)


@kernel
def _plain_words(
    offsets: Int64s, data: Bytes, kinds: Bytes, kept: NDArray[np.int16], keeps_empty: bool
) -> tuple[Int64s, Uint64s]:
    """Allocates 4 bytes a byte of the longest text, and 4 a byte of all."""
    num_docs = len(offsets) - 1
    bounds = np.zeros(num_docs + 1, np.int64)
    longest = 0
    for doc in range(num_docs):
        longest = max(longest, offsets[doc + 1] - offsets[doc])
    edges = np.empty(longest + 2, np.int32)
    max_words = (offsets[num_docs] - offsets[0] + num_docs) // 2 + 1
    words = np.empty(max_words, np.uint64)
    num = 0
    for doc in range(num_docs):
        begin = offsets[doc]
        for chunk in range(split_spaces(data, begin, offsets[doc + 1], kinds, edges)):
            value = group = np.uint64(0)
            length = 0
            for pos in range(begin + edges[2 * chunk], begin + edges[2 * chunk + 1]):
                letter = kept[data[pos]]
                if letter < 0:
                    continue
                group |= np.uint64(letter) << np.uint64(8 * (length & 7))
                length += 1
                if length & 7 == 0:
                    value = mix64(value ^ group)
                    group = np.uint64(0)
            if length or keeps_empty:
                # With the length: a word may end in a NUL character.
                words[num] = mix64(mix64(value ^ group) + np.uint64(length))
                num += 1
        bounds[doc + 1] = num
    return bounds, words[:num].copy()


MARK = string.punctuation.replace("_", "")
"""Characters of a mark: punctuation but the underscore, a part of words (`kernels.wordhash`)."""


def _mark_bytes() -> Bools:
    table = np.zeros(256, np.bool_)
    table[list(map(ord, MARK))] = True
    return frozen(table)


_IS_MARK = _mark_bytes()


def marked_words(offsets: Int64s, data: Bytes) -> tuple[Int64s, Uint64s, Bools]:
    """Return where the words of texts begin, (N + 1,), hashes and which are marks, (W,). O(B).

    Words are those of `wordhash.fold_words`, and marks: ASCII punctuation alone between whitespace.
    So `a == b` has three words, `a==b` two.

    Args:
        offsets, data: N texts.
    """
    return _marked_words(offsets, data, folded_characters(), BYTE_KINDS, SPACE_KINDS, _IS_MARK)


@kernel
def _marked_words(
    offsets: Int64s, data: Bytes, table: Uint64s, byte_kinds: Bytes, space_kinds: Bytes,
    is_mark: Bools,
) -> tuple[Int64s, Uint64s, Bools]:  # fmt: skip
    """Allocates 24 bytes a byte of the longest text, and 5 a byte of all."""
    num_docs = len(offsets) - 1
    bounds = np.zeros(num_docs + 1, np.int64)
    longest = 0
    for doc in range(num_docs):
        longest = max(longest, offsets[doc + 1] - offsets[doc])
    folded, starts = np.empty(longest, np.uint64), np.empty(longest, np.int32)
    edges = np.empty(longest + 2, np.int32)
    # Two words take four bytes: something separates them, or one is a letter of three bytes.
    max_words = (offsets[num_docs] - offsets[0] + num_docs) // 2 + 1
    words, marks = np.empty(max_words, np.uint64), np.zeros(max_words, np.bool_)
    num = 0
    for doc in range(num_docs):
        begin, end = offsets[doc], offsets[doc + 1]
        count = hash_words(data, begin, end, table, byte_kinds, edges, folded, starts)
        word = 0
        for chunk in range(split_spaces(data, begin, end, space_kinds, edges)):
            first, last = edges[2 * chunk], edges[2 * chunk + 1]
            value = np.uint64(0)
            pos = first
            while pos < last and is_mark[data[begin + pos]]:
                value = mix64(value ^ np.uint64(data[begin + pos]))
                pos += 1
            if pos < last:
                continue
            while word < count and starts[word] < first:
                words[num] = folded[word]
                num, word = num + 1, word + 1
            words[num], marks[num] = value, True
            num += 1
        while word < count:
            words[num] = folded[word]
            num, word = num + 1, word + 1
        bounds[doc + 1] = num
    return bounds, words[:num].copy(), marks[:num].copy()

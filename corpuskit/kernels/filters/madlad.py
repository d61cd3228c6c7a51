"""Sentences as MADLAD-400's rules define them, and which of them are questionable."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from corpuskit.kernels.arrays import Bytes, Int32s, Int64s, join_bytes
from corpuskit.kernels.hashing import same_bytes
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.utf8 import char_table, char_width, code_point, skip_space
from corpuskit.kernels.words.lexicon import Words

_ALNUM, _UPPER = 1, 2
_ENTRY, _SPACED = 1, 2


class Sentences(NamedTuple):
    r"""Texts cut where [.!?]+\s+ matches.

    Attributes:
        bounds: (S + 1,) bytes: pieces, which tile the texts; a match belongs to the piece before.
        ends: (S,) bytes: where the match begins, or the piece ends.
        docs: (N + 1,) text i has the pieces `docs[i]` to `docs[i + 1]`.
    """

    bounds: Int64s
    ends: Int64s
    docs: Int64s


def split_sentences(offsets: Int64s, data: Bytes) -> Sentences:
    """Cut texts into sentences; a fact of `View.fact`."""
    return Sentences(*_split(offsets, data))


def find_lists(words: Words, min_words: int, ratio: float) -> Bytes:
    """Return (S,) uint8: 1 where more than `ratio` of at least `min_words` words are capitalised.

    Args:
        words: of each piece by the word boundaries of UAX #29; those with a letter or digit count.
    """
    lexicon, kinds = words.lexicon, char_table(str.isalnum, str.isupper)
    return _lists(
        words.offsets, words.tokens, lexicon.starts, lexicon.data, kinds, min_words, ratio
    )


def find_cursed(sentences: Sentences, data: Bytes, entries: tuple[str, ...]) -> Bytes:
    """Return (S,) uint8: 1 for sentences that hold an entry, or match one of four expressions.

    These are nine times a space and three characters, or four, or one that is not a space; and
    `, ..,,?` followed by ` ..,,?` three times. Case matters; an empty entry is in no sentence.
    """
    return _cursed(sentences.bounds, sentences.ends, data, *_coded(entries))


@functools.cache
def _coded(entries: tuple[str, ...]) -> tuple[Int64s, Bytes, Bytes]:
    """Return offsets and bytes of entries; two bytes -> bits: an entry, an expression may begin."""
    coded = [entry.encode() for entry in entries if entry]
    pairs = np.zeros(1 << 16, np.uint8)
    for entry in coded:
        seconds = [entry[1]] if len(entry) > 1 else range(256)
        pairs[[entry[0] << 8 | second for second in seconds]] = _ENTRY
    pairs[32 << 8 : 33 << 8] |= _SPACED
    pairs[44 << 8 | 32] |= _SPACED
    return *join_bytes(coded, b"\0"), pairs


@kernel
def count_sentences(
    bounds: Int64s, ends: Int64s, docs: Int64s, data: Bytes, flagged: Bytes
) -> tuple[Int64s, Int64s]:
    """Return (N,) sentences that are not blank, and flagged ones among them. O(S)."""
    num, questionable = np.zeros((2, len(docs) - 1), np.int64)
    for row in range(len(num)):
        for piece in range(docs[row], docs[row + 1]):
            if skip_space(data, bounds[piece], ends[piece]) < ends[piece]:
                num[row] += 1
                questionable[row] += flagged[piece]
    return num, questionable


@kernel
def _is_mark(byte: int) -> bool:
    return byte == 33 or byte == 46 or byte == 63


@kernel
def _split(offsets: Int64s, data: Bytes) -> tuple[Int64s, Int64s, Int64s]:
    """O(B); allocates 16 bytes for each sentence mark."""
    max_sentences = len(offsets) + 1
    for pos in range(offsets[0], offsets[-1]):
        max_sentences += _is_mark(data[pos])
    bounds, ends = np.empty(max_sentences, np.int64), np.empty(max_sentences, np.int64)
    docs = np.zeros(len(offsets), np.int64)
    num = 0
    for row in range(len(offsets) - 1):
        start, pos, end = offsets[row], offsets[row], offsets[row + 1]
        while start < end:
            while pos < end and not _is_mark(data[pos]):
                pos += 1
            marks = pos
            while pos < end and _is_mark(data[pos]):
                pos += 1
            stop = skip_space(data, pos, end)
            if (stop > pos and marks < pos) or pos == end:
                bounds[num], ends[num] = start, marks if stop > pos else end
                num += 1
                start = stop
            pos = stop
        docs[row + 1] = num
    bounds[num] = offsets[-1]
    return bounds[: num + 1], ends[:num], docs


@kernel
def _lists(
    offsets: Int64s, tokens: Int32s, starts: Int64s, spelt: Bytes, kinds: Bytes,
    min_words: int, ratio: float
) -> Bytes:  # fmt: skip
    """O(bytes of words)."""
    flagged = np.zeros(len(offsets) - 1, np.uint8)
    for piece in range(len(flagged)):
        words, upper = 0, 0
        for word in range(offsets[piece], offsets[piece + 1]):
            pos, end = starts[tokens[word]], starts[tokens[word] + 1]
            first = kinds[code_point(spelt, pos)]
            while pos < end and not kinds[code_point(spelt, pos)] & _ALNUM:
                pos += char_width(spelt[pos])
            words += pos < end
            upper += pos < end and first & _UPPER != 0
        flagged[piece] = words >= min_words and upper > words * ratio
    return flagged


@kernel
def _cursed(
    bounds: Int64s, ends: Int64s, data: Bytes, offsets: Int64s, spelt: Bytes, pairs: Bytes
) -> Bytes:
    """O(B): at few positions are two bytes with which an entry begins."""
    flagged = np.zeros(len(ends), np.uint8)
    for piece in range(len(flagged)):
        end = ends[piece]
        for pos in range(bounds[piece], end):
            pair = np.int64(data[pos]) << 8 | (data[pos + 1] if pos + 1 < end else 0)
            matches = pairs[pair] & _ENTRY and _entry_at(data, pos, end, offsets, spelt)
            if not matches and pairs[pair] & _SPACED:
                if data[pos] == 44:
                    matches = _repeats(data, pos + 1, end, 4, 2, True)
                else:
                    matches = _repeats(data, pos, end, 9, 1, False)
                    matches = matches or _repeats(data, pos, end, 9, 3, False)
                    matches = matches or _repeats(data, pos, end, 9, 4, False)
            if matches:
                flagged[piece] = 1
                break
    return flagged


@kernel
def _entry_at(data: Bytes, pos: int, end: int, offsets: Int64s, spelt: Bytes) -> bool:
    """Return whether an entry is at `pos`."""
    for number in range(len(offsets) - 1):
        first, size = offsets[number], offsets[number + 1] - offsets[number]
        if pos + size <= end and same_bytes(data, pos, spelt, first, size):
            return True
    return False


@kernel
def _repeats(data: Bytes, pos: int, end: int, times: int, chars: int, has_comma: bool) -> bool:
    """Return whether the text at `pos` repeats a space and `chars` characters `times` times.

    A single character is not a space, others are not newlines; with `has_comma`, one or two commas
    follow.
    """
    for _ in range(times):
        if pos >= end or data[pos] != 32:
            return False
        pos += 1
        for _ in range(chars):
            if pos >= end or data[pos] == (32 if chars == 1 else 10):
                return False
            pos += char_width(data[pos])
        if has_comma:
            if pos >= end or data[pos] != 44:
                return False
            pos += 2 if pos + 1 < end and data[pos + 1] == 44 else 1
    return True

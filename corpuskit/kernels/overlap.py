"""How much of a short known text a document contains, by alignment of its words.

`gather` joins n-grams that a document shares with known texts (`scan`) into stretches that resemble
one of them; `align` says which of its words a stretch holds; `shared_runs` finds words in a row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from corpuskit.kernels.arrays import Bytes, Float64s, Int32s, Int64s, Uint64s
from corpuskit.kernels.hashing import mix64
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.wordhash import fold_words, hash_words

_EDGE, _PART, _TEXT, _BOTH, _PART_JOIN, _TEXT_JOIN = range(6)
"""Moves of an alignment: begin, skip a word of the part, of the text, match, match with two words
of the part or of the text written as one."""


class ItemParts(NamedTuple):
    """The indexed texts as words, read-only.

    Attributes:
        starts: (P + 1,) int64 into the words of part p.
        words, joined: (W,) uint64, as `fold_words` gives them.
        weights: (W,) float64, above 0: weight of the word in scores.
    """

    starts: Int64s
    words: Uint64s
    joined: Uint64s
    weights: Float64s


@kernel
def gather(
    keys: Int64s,
    texts: Int32s,
    parts: Int32s,
    positions: Int32s,
    starts: Int64s,
    weights: Float64s,
    ngram: int,
    most_gap: int,
) -> tuple[Int64s, Float64s]:
    """Join matching n-grams into stretches of a text that resemble one part: O(C).

    Args:
        keys: (C,) ascending: text and part, in one number.
        texts, parts, positions: (C,) first word of the n-gram in the text, ascending within a key;
            the part; the word of the part that it begins with.
        starts, weights: of `ItemParts`.
        ngram: words of an n-gram.
        most_gap: most words between the beginnings of two n-grams of a stretch.

    Returns:
        (n, 2): of each stretch the first n-gram and how many. (n, 2): weight of the words of the
        part that n-grams cover, and of the part.
    """
    groups, sums = np.zeros((len(keys), 2), np.int64), np.zeros((len(keys), 2))
    num = -1
    covered_to = length = begin = 0
    for gram in range(len(keys)):
        text, first = texts[gram], starts[parts[gram]]
        if (
            num < 0
            or keys[gram] != keys[gram - 1]
            or text - texts[gram - 1] > most_gap
            or text - begin > length + most_gap
        ):
            num += 1
            begin, covered_to = text, first
            length = starts[parts[gram] + 1] - first
            groups[num, 0] = gram
            for word in range(first, first + length):
                sums[num, 1] += weights[word]
        word_pos = first + positions[gram]
        for word in range(max(word_pos, covered_to), word_pos + ngram):
            sums[num, 0] += weights[word]
        covered_to = max(covered_to, word_pos + ngram)
        groups[num, 1] += 1
    return groups[: num + 1], sums[: num + 1]


@kernel
def align(
    offsets: Int64s,
    data: Bytes,
    table: Uint64s,
    kinds: Bytes,
    windows: Int64s,
    starts: Int64s,
    words: Uint64s,
    joined: Uint64s,
    weights: Float64s,
    skip: float,
) -> tuple[Int64s, Float64s]:
    """Find the best local alignment of a window of a text with a part: O(W of both, multiplied).

    An alignment takes words of both in order; equal ones count with their weight, each word of the
    text that is skipped in between costs `skip`, words of the part cost nothing. Two words of
    one that are written as one in the other are equal, too. Of several best ones that which ends
    first in the part, then in the text, is taken.

    Args:
        offsets, data: the texts.
        table, kinds: `folded_characters()`, BYTE_KINDS.
        windows: (n, 4) sorted by text: text, part, first word and end of the window.
        starts, words, joined, weights: of `ItemParts`.
        skip: at least 0.

    Returns:
        (n, 4): of each alignment the first word and the end in the text, the same in bytes. (n,):
        weight of the matched words.
    """
    longest = widest = 1
    for window in range(len(windows)):
        row = windows[window, 0]
        longest = max(longest, offsets[row + 1] - offsets[row])
        widest = max(widest, windows[window, 3] - windows[window, 2])
    hashes, edges = np.empty(longest, np.uint64), np.empty(longest + 2, np.int32)
    word_starts = np.empty(longest, np.int32)
    texts, joins = np.empty(widest, np.uint64), np.empty(widest, np.uint64)
    begins, ends = np.empty(widest, np.int32), np.empty(widest, np.int32)
    spans, sums = np.zeros((len(windows), 4), np.int64), np.zeros(len(windows))
    hashed_row = -1
    for window in range(len(windows)):
        row, part, low = windows[window, 0], windows[window, 1], windows[window, 2]
        first, last = offsets[row], offsets[row + 1]
        if row != hashed_row:
            hash_words(data, first, last, table, kinds, edges, hashes, word_starts)
            hashed_row = row
        width = windows[window, 3] - low
        if width <= 0:
            continue
        fold_words(
            data, first + word_starts[low], last, table, texts, joins, begins, ends, 0, width
        )
        begin = starts[part]
        moves, height, stop = _fill(
            words, joined, weights, begin, starts[part + 1] - begin, texts, joins, width, skip
        )
        _trace(moves, height, stop, weights, begin, begins, ends, spans, sums, window)
        if spans[window, 1] > spans[window, 0]:
            for side in range(2):
                spans[window, side] += low
                spans[window, 2 + side] += word_starts[low]
    return spans, sums


@kernel
def _fill(
    words: Uint64s,
    joined: Uint64s,
    weights: Float64s,
    begin: int,
    height: int,
    texts: Uint64s,
    joins: Uint64s,
    width: int,
    skip: float,
) -> tuple[Bytes, int, int]:
    """Return the last move of the best alignment of each pair of beginnings, and the best pair.

    Args:
        words, joined, weights, begin, height: of a part, from `begin` on.
        texts, joins, width: of a window.
        skip: as in `align`.
    """
    moves = np.zeros((height + 1, width + 1), np.uint8)
    scores = np.zeros((3, width + 1))
    top_score = 0.0
    end = stop = 0
    for row in range(1, height + 1):
        current, previous, earlier = row % 3, (row + 2) % 3, (row + 1) % 3
        word, weight = words[begin + row - 1], weights[begin + row - 1]
        pair_hash = joined[begin + row - 1]
        pair = weight
        if row > 1:
            pair += weights[begin + row - 2]
        scores[current, 0] = 0.0
        for column in range(1, width + 1):
            best, move = scores[previous, column], _PART
            if scores[current, column - 1] - skip > best:
                best, move = scores[current, column - 1] - skip, _TEXT
            if best <= 0.0:
                best, move = 0.0, _EDGE
            if texts[column - 1] == word and scores[previous, column - 1] + weight >= best:
                best, move = scores[previous, column - 1] + weight, _BOTH
            if (
                row > 1
                and pair_hash == texts[column - 1]
                and scores[earlier, column - 1] + pair > best
            ):
                best, move = scores[earlier, column - 1] + pair, _PART_JOIN
            if (
                column > 1
                and joins[column - 1] == word
                and scores[previous, column - 2] + weight > best
            ):
                best, move = scores[previous, column - 2] + weight, _TEXT_JOIN
            scores[current, column] = best
            moves[row, column] = move
            if best > top_score:
                top_score, end, stop = best, row, column
    return moves, end, stop


@kernel
def _trace(
    moves: Bytes,
    row: int,
    column: int,
    weights: Float64s,
    begin: int,
    begins: Int32s,
    ends: Int32s,
    spans: Int64s,
    sums: Float64s,
    number: int,
) -> None:
    """Walk back along an alignment and fill in a row of what `align` returns."""
    stop = column
    while moves[row, column] != _EDGE:
        move = moves[row, column]
        if move in (_PART, _TEXT):
            row -= move == _PART
            column -= move == _TEXT
            continue
        for _ in range(2 if move == _PART_JOIN else 1):
            row -= 1
            sums[number] += weights[begin + row]
        column -= 2 if move == _TEXT_JOIN else 1
    spans[number, 0], spans[number, 1] = column, stop
    if stop > column:
        spans[number, 2], spans[number, 3] = begins[column], ends[stop - 1]


# ---------------------------------------------------------------- n-grams of words
#
# A bitmap rejects nearly all of them before the table is read. N-grams are 63-bit hashes: of 1e12
# n-grams of text about two collide with one of 2e7 known ones. Where that matters, compare words.


GRAM_FACTOR = np.uint64(0xD6E8FEB86659FD93)


class Grams(NamedTuple):
    """A hash table of n-grams, read-only.

    Attributes:
        bitmap: (2**b / 64,) uint64: bit `hash >> (64 - b)` is set.
        slots: (2**k,) uint64: hashes, 0 if there is none.
        numbers: (2**k,) int32: which n-gram it is.
        starts: (G + 1,) int64 into the occurrences of n-gram g.
    """

    bitmap: Uint64s
    slots: Uint64s
    numbers: Int32s
    starts: Int64s


@kernel
def _gram_power(ngram: int) -> np.uint64:
    """Return GRAM_FACTOR to the power of n."""
    factor = np.uint64(1)
    for _ in range(ngram):
        factor *= GRAM_FACTOR
    return factor


@kernel
def _bit_shift(bitmap: Uint64s) -> np.uint64:
    """Return the shift that makes a hash the number of a bit of the bitmap."""
    shift = np.uint64(58)
    size = len(bitmap)
    while size > 1:
        size >>= 1
        shift -= np.uint64(1)
    return shift


@kernel
def gram_hashes(starts: Int64s, words: Uint64s, ngram: int, parts: Int32s) -> Uint64s:
    """Return the hash of the n-gram that begins at each word, 0 where a part ends before it does.

    O(W), allocates 8 W bytes; fills `parts` (W,) with which part a word belongs to.
    """
    hashes = np.zeros(len(words), np.uint64)
    for part in range(len(starts) - 1):
        first, last = starts[part], starts[part + 1]
        for first_word in range(first, last):
            parts[first_word] = part
            if first_word + ngram <= last:
                value = np.uint64(0)
                for word in range(first_word, first_word + ngram):
                    value = value * GRAM_FACTOR + words[word]
                hashes[first_word] = mix64(value) | np.uint64(1)
    return hashes


@kernel
def fill_table(hashes: Uint64s, bitmap: Uint64s, slots: Uint64s, numbers: Int32s) -> None:
    """Put distinct n-grams into an empty table and bitmap."""
    mask, shift = np.uint64(len(slots) - 1), _bit_shift(bitmap)
    for number in range(len(hashes)):
        value = hashes[number]
        bit = value >> shift
        bitmap[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))
        slot = value >> np.uint64(1) & mask
        while slots[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = value
        numbers[slot] = number


@kernel
def scan(
    offsets: Int64s,
    data: Bytes,
    table: Uint64s,
    kinds: Bytes,
    ngram: int,
    bitmap: Uint64s,
    slots: Uint64s,
    numbers: Int32s,
) -> tuple[Int64s, Int64s]:
    """Look up all n-grams of texts: O(B), about 150 MB/s where few are known.

    Allocates 16 bytes a byte of the longest text.

    Args:
        offsets, data: the texts, N of them.
        table, kinds: `folded_characters()`, BYTE_KINDS.
        ngram: words of an n-gram.
        bitmap, slots, numbers: of `Grams`.

    Returns:
        (N,) words of each text; and (3 n,) text, first word and number of each n-gram found, one
        after the other, in order.
    """
    num_docs = len(offsets) - 1
    longest = 0
    for doc in range(num_docs):
        longest = max(longest, offsets[doc + 1] - offsets[doc])
    words, edges = np.empty(longest, np.uint64), np.empty(longest + 2, np.int32)
    begins = np.empty(longest, np.int32)
    counts = np.zeros(num_docs, np.int64)
    hits = np.empty(3 << 12, np.int64)
    factor, shift = _gram_power(ngram), _bit_shift(bitmap)
    num = 0
    for doc in range(num_docs):
        count = hash_words(data, offsets[doc], offsets[doc + 1], table, kinds, edges, words, begins)
        counts[doc] = count
        value = np.uint64(0)
        for last_word in range(count):
            value = value * GRAM_FACTOR + words[last_word]
            if last_word >= ngram:
                value -= words[last_word - ngram] * factor
            mixed = mix64(value) | np.uint64(1)
            bit = mixed >> shift
            if bitmap[bit >> np.uint64(6)] >> (bit & np.uint64(63)) & np.uint64(1) == 0:
                continue
            gram = _find(mixed, slots, numbers)
            if gram < 0 or last_word < ngram - 1:
                continue
            if num == len(hits):
                hits = _doubled(hits)
            hits[num], hits[num + 1], hits[num + 2] = doc, last_word - ngram + 1, gram
            num += 3
    return counts, hits[:num]


@kernel
def known_grams(hashes: Uint64s, bitmap: Uint64s, slots: Uint64s, numbers: Int32s) -> Int64s:
    """Return the indices of the n-grams that are known, ascending: O(W).

    Args:
        hashes: (W,), 0 where there is none.
        bitmap, slots, numbers: of `Grams`.
    """
    shift = _bit_shift(bitmap)
    positions = np.empty(1 << 10, np.int64)
    num = 0
    for index in range(len(hashes)):
        value = hashes[index]
        bit = value >> shift
        if bitmap[bit >> np.uint64(6)] >> (bit & np.uint64(63)) & np.uint64(1) == 0:
            continue
        if value == 0 or _find(value, slots, numbers) < 0:
            continue
        if num == len(positions):
            positions = _doubled(positions)
        positions[num] = index
        num += 1
    return positions[:num]


@kernel
def shared_runs(
    offsets: Int64s,
    data: Bytes,
    table: Uint64s,
    candidates: Int64s,
    size: int,
    hashes: Uint64s,
    positions: Int64s,
    weights: Float64s,
) -> tuple[Int64s, Float64s]:
    """Find runs of words whose every n-gram of `size` words occurs in a known text.

    O(B) of the texts to look at, and O(log G) for each candidate.

    Args:
        offsets, data: the texts.
        table: `folded_characters()`.
        candidates: (S, 2) where to look, in order: text and first word.
        size: words of the n-grams.
        hashes, positions: (G,) of all n-grams of the known texts, ascending; the first word of
            each.
        weights: of `ItemParts`.

    Returns:
        (n, 5): of each run, in order, the text, its words, first byte and end, and where its first
        n-gram is in a known text. (n,): weight of its words.
    """
    longest = 0
    for candidate in range(len(candidates)):
        longest = max(
            longest, offsets[candidates[candidate, 0] + 1] - offsets[candidates[candidate, 0]]
        )
    words, joined = np.empty(longest, np.uint64), np.empty(longest, np.uint64)
    begins, ends = np.empty(longest, np.int32), np.empty(longest, np.int32)
    runs, sums = [np.zeros(5, np.int64)], [0.0]  # typed by their first entry
    folded_doc = following = -1
    for candidate in range(len(candidates)):
        doc, word = candidates[candidate]
        if doc != folded_doc:
            first, last = offsets[doc], offsets[doc + 1]
            fold_words(data, first, last, table, words, joined, begins, ends, 0, last - first)
            folded_doc, following = doc, -1
        value = np.uint64(0)
        for index in range(word, word + size):
            value = value * GRAM_FACTOR + words[index]
        mixed = mix64(value) | np.uint64(1)
        number = np.searchsorted(hashes, mixed)
        if number == len(hashes) or hashes[number] != mixed:
            continue
        position = positions[number]
        if word != following:
            runs.append(np.array([doc, size - 1, begins[word], 0, position], np.int64))
            sums.append(np.sum(weights[position : position + size - 1]))
        runs[-1][1] += 1
        runs[-1][3] = ends[word + size - 1]
        sums[-1] += weights[position + size - 1]
        following = word + 1
    spans, totals = np.empty((len(runs) - 1, 5), np.int64), np.empty(len(runs) - 1)
    for number in range(1, len(runs)):
        spans[number - 1], totals[number - 1] = runs[number], sums[number]
    return spans, totals


@kernel
def _find(value: np.uint64, slots: Uint64s, numbers: Int32s) -> int:
    """Return the number of an n-gram, -1 if there is none."""
    mask = np.uint64(len(slots) - 1)
    slot = value >> np.uint64(1) & mask
    while slots[slot] != 0:
        if slots[slot] == value:
            return int(numbers[slot])
        slot = (slot + np.uint64(1)) & mask
    return -1


@kernel
def _doubled(numbers: Int64s) -> Int64s:
    """Return an array of twice the size that begins with another."""
    larger = np.empty(2 * len(numbers), np.int64)
    for index in range(len(numbers)):
        larger[index] = numbers[index]
    return larger

"""How much of a short known text a document holds: its words in order, as an alignment.

`gather` joins n-grams that a document shares with known texts (`wordgrams.scan`) into stretches
that resemble one of them; `align` says which of its words a stretch holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from corpuskit.kernels.jit import kernel
from corpuskit.kernels.wordhash import fold_words, hash_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Hashes = NDArray[np.uint64]
    Offsets = NDArray[np.int64]
    Places = NDArray[np.int32]
    Floats = NDArray[np.float64]

_EDGE, _PART, _TEXT, _BOTH, _PART_JOIN, _TEXT_JOIN = range(6)
"""Moves of an alignment: begin, skip a word of the part, of the text, match, match with two words
of the part or of the text written as one."""


class Parts(NamedTuple):
    """The indexed texts as words, read-only.

    Attributes:
        starts: (P + 1,) int64 into the words of part p.
        words, joined: (W,) uint64, as `fold_words` gives them.
        weights: (W,) float64, above 0: what finding the word is worth.
    """

    starts: Offsets
    words: Hashes
    joined: Hashes
    weights: Floats


@kernel
def gather(
    keys: Offsets,
    texts: Places,
    parts: Places,
    places: Places,
    starts: Offsets,
    weights: Floats,
    ngram: int,
    most_gap: int,
) -> tuple[Offsets, Floats]:
    """Join n-grams found into stretches of texts that resemble one part: O(C).

    Args:
        keys: (C,) ascending: what text and which part, in one number.
        texts, parts, places: (C,) first word of the n-gram in the text, ascending within a key; the
            part and the place in it.
        starts, weights: of `Parts`.
        ngram: words of an n-gram.
        most_gap: most words between the beginnings of two n-grams of a stretch.

    Returns:
        (n, 4): of each stretch the first n-gram and how many; its end in the text; the longest run
        of words. (n, 2): weight of the words of the part that n-grams cover, and of the part.
    """
    found, sums = np.zeros((len(keys), 4), np.int64), np.zeros((len(keys), 2))
    num = -1
    covered_to = run = length = begin = 0
    for at in range(len(keys)):
        text, first = texts[at], starts[parts[at]]
        if (
            num < 0
            or keys[at] != keys[at - 1]
            or text - texts[at - 1] > most_gap
            or text - begin > length + most_gap
        ):
            num += 1
            begin, covered_to, run = text, first, 0
            length = starts[parts[at] + 1] - first
            found[num, 0] = at
            for word in range(first, first + length):
                sums[num, 1] += weights[word]
        place = first + places[at]
        is_next = run > 0 and text == texts[at - 1] + 1 and places[at] == places[at - 1] + 1
        run = run + 1 if is_next else ngram
        for word in range(max(place, covered_to), place + ngram):
            sums[num, 0] += weights[word]
        covered_to = max(covered_to, place + ngram)
        found[num, 1] += 1
        found[num, 2], found[num, 3] = text + ngram, max(found[num, 3], run)
    return found[: num + 1], sums[: num + 1]


@kernel
def align(
    offsets: Offsets,
    data: Bytes,
    table: Hashes,
    kinds: Bytes,
    windows: Offsets,
    starts: Offsets,
    words: Hashes,
    joined: Hashes,
    weights: Floats,
    skip: float,
) -> tuple[Offsets, Floats]:
    """Find the best local alignment of a window of a text with a part: O(W of both, multiplied).

    An alignment takes words of both in order; equal ones count with their weight, each word of the
    text that is passed over in between costs `skip`, words of the part cost nothing. Two words of
    one that are written as one in the other are equal, too. Of several best ones that which ends
    first in the part, then in the text, is taken.

    Args:
        offsets, data: the texts.
        table, kinds: `folded_characters()`, BYTE_KINDS.
        windows: (n, 4) sorted by text: text, part, first word and end of the window.
        starts, words, joined, weights: of `Parts`.
        skip: at least 0.

    Returns:
        (n, 8): of each alignment the first word and the end in the text, the same in bytes; words
        of the part found; and of the longest run without a gap: words, first byte and end.
        (n, 2): weight of what was found, and of the longest run.
    """
    longest = widest = 1
    for at in range(len(windows)):
        row = windows[at, 0]
        longest = max(longest, offsets[row + 1] - offsets[row])
        widest = max(widest, windows[at, 3] - windows[at, 2])
    every, edges = np.empty(longest, np.uint64), np.empty(longest + 2, np.int32)
    places = np.empty(longest, np.int32)
    texts, joins = np.empty(widest, np.uint64), np.empty(widest, np.uint64)
    begins, ends = np.empty(widest, np.int32), np.empty(widest, np.int32)
    found, sums = np.zeros((len(windows), 8), np.int64), np.zeros((len(windows), 2))
    known = -1
    for at in range(len(windows)):
        row, part, low = windows[at, 0], windows[at, 1], windows[at, 2]
        first, last = offsets[row], offsets[row + 1]
        if row != known:
            hash_words(data, first, last, table, kinds, edges, every, places)
            known = row
        width = windows[at, 3] - low
        if width <= 0:
            continue
        fold_words(data, first + places[low], last, table, texts, joins, begins, ends, 0, width)
        begin = starts[part]
        moves, height, stop = _fill(
            words, joined, weights, begin, starts[part + 1] - begin, texts, joins, width, skip
        )
        _trace(moves, height, stop, weights, begin, begins, ends, found, sums, at)
        if found[at, 1] > found[at, 0]:
            for place in range(2):
                found[at, place] += low
                found[at, 2 + place] += places[low]
                found[at, 6 + place] += places[low]
    return found, sums


@kernel
def _fill(
    words: Hashes,
    joined: Hashes,
    weights: Floats,
    begin: int,
    height: int,
    texts: Hashes,
    joins: Hashes,
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
    most = 0.0
    end = stop = 0
    for row in range(1, height + 1):
        now, before, earlier = row % 3, (row + 2) % 3, (row + 1) % 3
        word, weight = words[begin + row - 1], weights[begin + row - 1]
        both = joined[begin + row - 1]
        pair = weight
        if row > 1:
            pair += weights[begin + row - 2]
        scores[now, 0] = 0.0
        for at in range(1, width + 1):
            best, move = scores[before, at], _PART
            if scores[now, at - 1] - skip > best:
                best, move = scores[now, at - 1] - skip, _TEXT
            if best <= 0.0:
                best, move = 0.0, _EDGE
            if texts[at - 1] == word and scores[before, at - 1] + weight >= best:
                best, move = scores[before, at - 1] + weight, _BOTH
            if row > 1 and both == texts[at - 1] and scores[earlier, at - 1] + pair > best:
                best, move = scores[earlier, at - 1] + pair, _PART_JOIN
            if at > 1 and joins[at - 1] == word and scores[before, at - 2] + weight > best:
                best, move = scores[before, at - 2] + weight, _TEXT_JOIN
            scores[now, at] = best
            moves[row, at] = move
            if best > most:
                most, end, stop = best, row, at
    return moves, end, stop


@kernel
def _trace(
    moves: Bytes,
    row: int,
    at: int,
    weights: Floats,
    begin: int,
    begins: Places,
    ends: Places,
    found: Offsets,
    sums: Floats,
    number: int,
) -> None:
    """Walk back along an alignment and fill in a row of what `align` returns."""
    stop = run_stop = at
    run, run_sum = 0, 0.0
    while moves[row, at] != _EDGE:
        move = moves[row, at]
        if move in (_PART, _TEXT):
            row -= move == _PART
            at -= move == _TEXT
            run, run_sum, run_stop = 0, 0.0, at
            continue
        num = 2 if move == _PART_JOIN else 1
        for _ in range(num):
            row -= 1
            sums[number, 0] += weights[begin + row]
            run_sum += weights[begin + row]
        at -= 2 if move == _TEXT_JOIN else 1
        run += num
        found[number, 4] += num
        if run > found[number, 5]:
            found[number, 5], sums[number, 1] = run, run_sum
            found[number, 6], found[number, 7] = begins[at], ends[run_stop - 1]
    found[number, 0], found[number, 1] = at, stop
    if stop > at:
        found[number, 2], found[number, 3] = begins[at], ends[stop - 1]

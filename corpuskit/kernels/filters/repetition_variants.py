"""Repetition as Dolma's tagger and DCLM's mappers measure it: all copies count, the first too.

Measures are those of `kernels.repetition`, in its order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from corpuskit.kernels.filters.repetition import LONGEST, Repetition
from corpuskit.kernels.hashing import xxh64
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.twins import count_copies, count_slots, find_twins, table_bits, table_for
from corpuskit.kernels.utf8 import (
    char_table,
    code_point,
    count_chars,
    skip_space,
    skip_space_back,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corpuskit.kernels.words.lexicon import Words

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

VARIANTS: dict[str, Literal["whitespace", "unicode"]] = {"dolma": "whitespace", "dclm": "unicode"}
"""Variant -> how it splits text into words."""

_PARAGRAPHS, _LINES, _TOP, _DUP = 1, 3, 5, 5 + LONGEST
_NUM = 5 + 2 * LONGEST
_SEED = np.uint64(0)
_STEP = np.uint64(0xD6E8FEB86659FD93)


def measure_variant(
    variant: str,
    offsets: Offsets,
    data: Bytes,
    words: Words,
    limits: NDArray[np.float64],
    wanted: NDArray[np.bool_] | None = None,
) -> Repetition:
    """Measure as a variant does; arguments and result as of `measure_repetition`."""
    lexicon = words.lexicon
    needed = ~np.isnan(limits)
    measured = _measure(
        offsets, data, words.offsets, words.tokens, lexicon.chars, lexicon.hashes, lexicon.starts,
        lexicon.data, char_table(str.isalnum), needed if wanted is None else needed | wanted,
        variant == "dclm",
    )  # fmt: skip
    fails = measured > limits[:, None]
    fails[0] = measured[0] > 0
    codes = np.where(fails.any(axis=0), fails.argmax(axis=0) + 1, 0).astype(np.uint8)
    values = measured[codes.astype(np.int64) - 1, np.arange(len(codes))]
    return Repetition(codes, np.where(codes > 0, values, np.nan), measured)


@kernel
def _measure(
    offsets: Offsets, data: Bytes, word_offsets: Offsets, tokens: NDArray[np.int32],
    chars: NDArray[np.int32], hashes: Hashes, starts: Offsets, spelt: Bytes, alnum: Bytes,
    wanted: NDArray[np.bool_], is_dclm: bool,
) -> NDArray[np.float64]:  # fmt: skip
    """Return (R, N) float64. O(B + L W); allocates up to 100 bytes a word of each document."""
    num_docs = len(offsets) - 1
    measured = np.full((_NUM, num_docs), np.nan)
    found = np.empty(_NUM)
    for row in range(num_docs):
        begin, end = offsets[row], offsets[row + 1]
        first, last = word_offsets[row], word_offsets[row + 1]
        for rule in range(_NUM):
            found[rule] = np.nan
        edges = np.zeros(last - first + 1, np.int64)
        single = np.empty(last - first, np.uint64)
        num = 0
        for at in range(first, last):
            token = tokens[at]
            if not is_dclm or alnum[code_point(spelt, starts[token])]:
                single[num] = hashes[token]
                edges[num + 1] = edges[num] + chars[token]
                num += 1
        found[0] = 0
        if is_dclm:
            found[0] = skip_space(data, begin, end) == end
            _segments(data, begin, end, 2, 0, found)
            _segments(data, begin, end, 1, 0, found)
        else:
            _segments(data, begin, end, 0, max(edges[num], 1), found)
        _runs(num, edges, single, wanted, is_dclm, found)
        for rule in range(_NUM):
            measured[rule, row] = found[rule]
    return measured


@kernel
def _segments(
    data: Bytes, begin: int, end: int, newlines: int, of_chars: int, found: NDArray[np.float64]
) -> None:
    r"""Measure the copies among segments of a text.

    Args:
        data, begin, end: the text.
        newlines: 0: lines as split("\n") gives them; 1, 2: split at so many, stripped, blank ones
            left out.
        of_chars: what characters are a share of; 0: of those in all segments.
        found: gets the two measures of lines or paragraphs.
    """
    most = 1
    for at in range(begin, end):
        most += data[at] == 10
    keys, sizes = np.empty(most, np.uint64), np.empty(most, np.int64)
    num, total = 0, 0
    start = at = begin
    while start <= end:
        while at < end and not (
            data[at] == 10 and (newlines < 2 or (at + 1 < end and data[at + 1] == 10))
        ):
            at += 1
        low, high = start, at
        if newlines:
            low = skip_space(data, start, at)
            high = skip_space_back(data, low, at)
        if newlines == 0 or low < high:
            keys[num] = xxh64(data, low, high, _SEED)
            sizes[num] = count_chars(data, low, high)
            total += sizes[num]
            num += 1
        if at == end:
            break
        at += max(newlines, 1)
        start = at
    places, copies = np.arange(num), np.empty(num, np.int64)
    count_copies(keys, places, num, np.empty(4 << table_bits(num), np.uint64), copies)
    dup, chars = 0, 0
    for number in range(num):
        if copies[number] > 1:
            dup += 1
            chars += sizes[number]
    place = _PARAGRAPHS if newlines == 2 else _LINES
    found[place] = dup / max(num, 1)
    found[place + 1] = chars / max(of_chars if of_chars else total, 1)


@kernel
def _runs(
    num: int, edges: Offsets, single: Hashes, wanted: NDArray[np.bool_], is_dclm: bool,
    found: NDArray[np.float64],
) -> None:  # fmt: skip
    """Measure runs of each length that is wanted.

    Args:
        num: the words.
        edges: (W + 1,) characters of the words before each.
        single: (W,) their hashes.
        wanted, is_dclm: as in the caller.
        found: gets the measures.
    """
    bits = table_bits(8 * num)
    slots, table = np.empty(1 << bits, np.uint8), np.empty(1, np.uint64)
    keys, places = np.zeros(num, np.uint64), np.empty(num + 1, np.int64)
    for n in range(1, min(LONGEST, num) + 1):
        runs = num - n + 1
        for at in range(runs):
            keys[at] = keys[at] * _STEP + single[at + n - 1]
        if not (wanted[_TOP + n - 1] or wanted[_DUP + n - 1]):
            continue
        count_slots(keys, runs, slots, bits)
        twins = find_twins(keys, runs, slots, bits, places)
        table = table_for(table, 4 << table_bits(twins))
        copies = np.empty(twins, np.int64)
        count_copies(keys, places, twins, table, copies)
        found[_TOP + n - 1] = _most_frequent(edges, n, places, copies, is_dclm) / edges[num]
        if is_dclm:
            found[_DUP + n - 1] = _covered(edges, n, places, copies) / edges[num]
        else:
            total, chars = 0, 0
            for at in range(runs):
                total += edges[at + n] - edges[at]
            for number in range(twins):
                if copies[number] > 1:
                    chars += edges[places[number] + n] - edges[places[number]]
            found[_DUP + n - 1] = chars / total


@kernel
def _most_frequent(
    edges: Offsets, n: int, places: Offsets, copies: Offsets, is_dclm: bool
) -> np.int64:
    """Return the characters in all copies of the most frequent run.

    Where all are different, it is the first (dclm: none); among equally frequent ones as well
    (dclm: the longest).
    """
    most, chars = np.int64(1), np.int64(0 if is_dclm else edges[n] - edges[0])
    for number in range(len(copies)):
        count = copies[number]
        if count == 1 or count < most:
            continue
        size = edges[places[number] + n] - edges[places[number]]
        if count > most or (is_dclm and size * count > chars):
            most, chars = count, size * count
    return chars


@kernel
def _covered(edges: Offsets, n: int, places: Offsets, copies: Offsets) -> int:
    """Return the characters of words in any run that has a copy; each word counts once."""
    chars, behind = 0, 0
    for number in range(len(copies)):
        if copies[number] > 1:
            at = max(places[number], behind)
            behind = places[number] + n
            chars += edges[behind] - edges[at]
    return chars

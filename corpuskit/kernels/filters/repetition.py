"""How much of a text repeats: its paragraphs, its lines, its runs of n words.

Runs of words are compared by hash, and only those that may have a copy. Two different runs of words
pass for equal once in 2**60 pairs, two lines once in 2**63.

L is the longest run of words, 10.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from corpuskit.kernels.arrays import Bools, Bytes, Float64s, Int32s, Int64s, Uint64s
from corpuskit.kernels.hashing import xxh64
from corpuskit.kernels.jit import inline, kernel
from corpuskit.kernels.lines import find_newlines
from corpuskit.kernels.utf8 import char_table, code_point, count_chars, skip_space, skip_space_back
from corpuskit.kernels.words.lexicon import Words, folded, product

LONGEST = 10
"""Longest run of words."""

MEASURES = (
    *("empty", "dup_paragraphs", "dup_paragraph_chars", "dup_lines", "dup_line_chars"),
    *(f"top_{n}" for n in range(1, LONGEST + 1)),
    *(f"dup_{n}" for n in range(1, LONGEST + 1)),
)

_PARAGRAPHS, _LINES, _TOP, _DUP = 1, 3, 5, 5 + LONGEST
_STEP = np.uint64(0xD6E8FEB86659FD93)


class Repetition(NamedTuple):
    """Decisions on N documents; rows of `measured` are as in MEASURES, R of them.

    Attributes:
        codes: (N,) uint8, k + 1 where measure k is the first above its limit, else 0.
        values: (N,) float64, that measure, NaN where there is none.
        measured: (R, N) float64, or (R, 0); NaN where a text has no run of that many words.
    """

    codes: Bytes
    values: Float64s
    measured: Float64s


class _StopRules(NamedTuple):
    """(R,) limits, (R,) measures to take, whether the first broken limit ends the search."""

    limits: Float64s
    mask: Bools
    stops: bool


def measure_repetition(
    offsets: Int64s, data: Bytes, words: Words, limits: Float64s, mask: Bools | None = None
) -> Repetition:
    """Measure repetition until the first limit is broken, or all measures of `mask`.

    Args:
        offsets, data: the texts.
        words: their words.
        limits: (R,) float64, as in MEASURES; NaN where there is none.
        mask: (R,) measures to return of every text, whether a limit is broken or not.
    """
    num_docs, lexicon = len(offsets) - 1, words.lexicon
    bounds = _StopRules(limits, ~np.isnan(limits) if mask is None else mask, mask is None)
    codes, values = np.zeros(num_docs, np.uint8), np.full(num_docs, np.nan)
    measured = np.full((len(limits), 0 if mask is None else num_docs), np.nan)
    _repetition(
        offsets, data, words.offsets, words.tokens, lexicon.chars, lexicon.hashes, lexicon.powers,
        bounds, codes, values, measured,
    )  # fmt: skip
    return Repetition(codes, values, measured)


@kernel
def _repetition(
    offsets: Int64s, data: Bytes, word_offsets: Int64s, tokens: Int32s,
    chars: Int32s, hashes: Uint64s, powers: Uint64s, bounds: _StopRules, codes: Bytes,
    values: Float64s, measured: Float64s
) -> None:  # fmt: skip
    """Fill codes, values and measured. O(B + L W), L passes over the words of each document.

    Reserves up to 150 bytes for each word of the longest document, and mostly uses 50. Allocated
    here, not by the caller: the compiler does not vectorise loops over arrays that may overlap.
    """
    max_words = 0
    for row in range(len(offsets) - 1):
        max_words = max(max_words, word_offsets[row + 1] - word_offsets[row])
    edges, positions = np.empty(max_words + 1, np.int64), np.empty(max_words + 1, np.int64)
    keys, single, power = (
        np.empty(max_words, np.uint64),
        np.empty(max_words, np.uint64),
        np.empty(max_words, np.uint64),
    )
    slots = np.empty(1 << table_bits(8 * max_words), np.uint8)
    table = np.empty(6 << table_bits(max_words), np.uint64)
    measures = np.empty(len(bounds.limits))
    edges[0] = 0
    for row in range(len(offsets) - 1):
        begin, end = offsets[row], offsets[row + 1]
        for rule in range(len(measures)):
            measures[rule] = np.nan
        measures[0] = begin == end
        if begin < end:
            num_chars = count_chars(data, begin, end)
            if not _measure_blocks(data, begin, end, num_chars, bounds, measures):
                first, num = word_offsets[row], word_offsets[row + 1] - word_offsets[row]
                for word in range(num):
                    token = tokens[first + word]
                    edges[word + 1] = edges[word] + chars[token]
                    single[word] = hashes[token]
                if not _measure_tops(
                    num, num_chars, edges, single, keys, positions, slots, table, bounds, measures
                ):
                    for word in range(num):
                        power[word] = powers[tokens[first + word]]
                    _measure_dups(
                        num, num_chars, edges, single, power, keys, positions, slots, table, bounds,
                        measures,
                    )  # fmt: skip
        for rule in range(len(measures)):
            if measures[rule] > bounds.limits[rule] or (rule == 0 and begin == end):
                codes[row], values[row] = rule + 1, measures[rule]
                break
        for rule in range(len(measures)):
            if not bounds.stops:
                measured[rule, row] = measures[rule]


@kernel
def _longest_run(mask: Bools, first: int) -> int:
    """Return the longest run whose measure is taken; `first` is the measure of runs of one word."""
    last = 0
    for n in range(1, LONGEST + 1):
        if mask[first + n - 1]:
            last = n
    return last


@kernel
def _measure_blocks(
    data: Bytes, begin: int, end: int, num_chars: int, bounds: _StopRules, measures: Float64s
) -> bool:
    """Measure paragraphs and lines; return whether a broken limit ends the search."""
    newlines = find_newlines(data, begin, end)
    table = np.empty(2 << table_bits(len(newlines)), np.uint64)
    for kind in range(2):
        measure = _PARAGRAPHS if kind == 0 else _LINES
        if not (bounds.mask[measure] or bounds.mask[measure + 1]):
            continue
        start, stop = begin, end
        if kind == 0:
            start = skip_space(data, begin, end)
            stop = skip_space_back(data, start, end)
        num, dup, dup_chars = repeated_blocks(data, start, stop, newlines, 2 - kind, table)
        measures[measure] = dup / num
        measures[measure + 1] = dup_chars / num_chars
        limits = bounds.limits
        broken = measures[measure] > limits[measure] or measures[measure + 1] > limits[measure + 1]
        if broken and bounds.stops:
            return True
    return False


@kernel
def _measure_tops(
    num: int, num_chars: int, edges: Int64s, single: Uint64s, keys: Uint64s, positions: Int64s,
    slots: Bytes, table: Uint64s, bounds: _StopRules, measures: Float64s
) -> bool:  # fmt: skip
    """Measure the most frequent run of each length; return whether a broken limit ends the search.

    Args:
        num, num_chars: the words, and the characters of the text.
        edges: (W + 1,) characters of the words before each.
        single, power: (W,) their hashes and powers.
        keys, positions, slots, table: scratch, see `find_twins`.
        bounds, measures: as in the caller.
    """
    bits = table_bits(8 * num)
    for pos in range(num):
        keys[pos] = single[pos]
    for n in range(1, min(_longest_run(bounds.mask, _TOP), num) + 1):
        runs = num - n + 1
        if n > 1:
            for pos in range(runs):
                keys[pos] = keys[pos] * _STEP + single[pos + n - 1]
        if not bounds.mask[_TOP + n - 1]:
            continue
        limit = bounds.limits[_TOP + n - 1]
        count_slots(keys, runs, slots, bits)
        if bounds.stops:
            # An upper bound of length times frequency, mostly enough to rule the measure out.
            max_chars = 0
            for pos in range(runs):
                slot = slots[slot_of(keys[pos], bits)]
                max_chars = max(max_chars, (edges[pos + n] - edges[pos] + n - 1) * slot)
                max_chars = max(max_chars, num_chars * (num + 1) * 2 * (slot == FULL))
            if not max_chars / num_chars > limit:
                continue
        twins = find_twins(keys, runs, slots, bits, positions)
        first, count = _most_frequent(keys, positions, twins, table)
        chars = (edges[first + n] - edges[first] + n - 1) * count
        measures[_TOP + n - 1] = chars / num_chars
        if measures[_TOP + n - 1] > limit and bounds.stops:
            return True
    return False


@kernel
def _most_frequent(keys: Uint64s, positions: Int64s, num: int, table: Uint64s) -> tuple[int, int]:
    """Return the first position of the most frequent key, and its count; 0 and 1 if all differ.

    Among equally frequent keys it is the earliest. O(num).
    """
    bits = table_bits(num) + 1
    mask = np.uint64((1 << bits) - 1)
    for index in range(3 << bits):
        table[index] = 0
    best, best_count = np.uint64(0), np.uint64(1)
    for number in range(num):
        pos = positions[number]
        key = keys[pos]
        slot = slot_of(key, bits)
        while True:
            entry = np.uint64(3) * slot
            if table[entry + np.uint64(1)] == 0:
                table[entry], table[entry + np.uint64(2)] = key, np.uint64(pos)
            if table[entry] == key:
                break
            slot = (slot + np.uint64(1)) & mask
        count = table[entry + np.uint64(1)] + np.uint64(1)
        table[entry + np.uint64(1)] = count
        first = table[entry + np.uint64(2)]
        if count > best_count or (count == best_count and count > 1 and first < best):
            best, best_count = first, count
    return int(best), int(best_count)


@kernel
def _appended(keys: Uint64s, num: int, power: Uint64s, single: Uint64s, n: int) -> None:
    """Turn hashes of runs of n - 1 words, without spaces, into hashes of runs of n."""
    for pos in range(num):
        keys[pos] = folded(product(keys[pos], power[pos + n - 1]) + single[pos + n - 1])


@kernel
def _measure_dups(
    num: int, num_chars: int, edges: Int64s, single: Uint64s, power: Uint64s, keys: Uint64s,
    positions: Int64s, slots: Bytes, table: Uint64s, bounds: _StopRules, measures: Float64s
) -> None:  # fmt: skip
    """Measure repeated runs of each length, to the first broken limit if that ends the search.

    Args: as in _tops.
    """
    bits = table_bits(8 * num)
    for pos in range(num):
        keys[pos] = single[pos]
    for n in range(1, _longest_run(bounds.mask, _DUP) + 1):
        runs = max(num - n + 1, 0)
        if n > 1:
            _appended(keys, runs, power, single, n)
        if not bounds.mask[_DUP + n - 1]:
            continue
        count_slots(keys, runs, slots, bits)
        twins = find_twins(keys, runs, slots, bits, positions)
        chars = _repeated_runs(keys, positions, twins, n, edges, table)
        measures[_DUP + n - 1] = chars / num_chars
        if measures[_DUP + n - 1] > bounds.limits[_DUP + n - 1] and bounds.stops:
            return


@kernel
def _repeated_runs(
    keys: Uint64s, positions: Int64s, num: int, n: int, edges: Int64s, table: Uint64s
) -> int:
    """Return the characters of repeated runs, which do not overlap. O(num)."""
    bits = table_bits(num) + 1
    mask = np.uint64((1 << bits) - 1)
    for index in range(1 << bits):
        table[index] = 0
    chars, covered = 0, 0
    for number in range(num):
        pos = positions[number]
        if pos < covered:
            continue
        key = keys[pos] + np.uint64(1)
        slot = slot_of(key, bits)
        while table[slot] != 0 and table[slot] != key:
            slot = (slot + np.uint64(1)) & mask
        if table[slot] == key:
            chars += edges[pos + n] - edges[pos]
            covered = pos + n
        table[slot] = key
    return chars


# ----------------------------------------------------------------------
# Lines and paragraphs of a text, and how many repeat an earlier one.

_SEED = np.uint64(0)


@kernel
def repeated_blocks(
    data: Bytes, begin: int, end: int, positions: Int64s, newlines: int, table: Uint64s
) -> tuple[int, int, int]:
    """Return how many blocks are between runs of newlines, how many repeat, their characters. O(B).

    Args:
        data, begin, end: the text.
        positions: where newlines are, and one more value.
        newlines: the fewest newlines of a run, 1 or 2.
        table: scratch, a power of two, more than twice as long as there are blocks.
    """
    bits = table_bits(len(table))
    for slot in range(len(table)):
        table[slot] = 0
    num, dup, dup_chars = 0, 0, 0
    start, next_newline, last = begin, 0, len(positions) - 1
    while next_newline < last and positions[next_newline] < begin:
        next_newline += 1
    while True:
        first = next_newline
        stop = next_start = end
        while first < last and positions[first] < end:
            run_end = first + 1
            while run_end < last and positions[run_end] == positions[run_end - 1] + 1:
                run_end += 1
            if run_end - first >= newlines:
                stop = positions[first]
                next_start = positions[run_end - 1] + 1
                next_newline = run_end
                break
            first = run_end
        num += 1
        key = xxh64(data, start, stop, _SEED) | np.uint64(1)
        slot = slot_of(key, bits)
        while table[slot] != 0 and table[slot] != key:
            slot = (slot + np.uint64(1)) & np.uint64(len(table) - 1)
        if table[slot] == key:
            dup += 1
            dup_chars += count_chars(data, start, stop)
        table[slot] = key
        if stop == end:
            break
        start = next_start
    return num, dup, dup_chars


# ----------------------------------------------------------------------
# Repetition as Dolma's tagger and DCLM's mappers measure it: the first copy counts, too.

VARIANTS: dict[str, Literal["whitespace", "unicode"]] = {"dolma": "whitespace", "dclm": "unicode"}
"""Variant -> how it splits text into words."""


def measure_variant(
    variant: str,
    offsets: Int64s,
    data: Bytes,
    words: Words,
    limits: Float64s,
    mask: Bools | None = None,
) -> Repetition:
    """Measure as a variant does; arguments and result as of `measure_repetition`."""
    lexicon = words.lexicon
    needed = ~np.isnan(limits)
    measured = _measure_all(
        offsets, data, words.offsets, words.tokens, lexicon.chars, lexicon.hashes, lexicon.starts,
        lexicon.data, char_table(str.isalnum), needed if mask is None else needed | mask,
        variant == "dclm",
    )  # fmt: skip
    fails = measured > limits[:, None]
    fails[0] = measured[0] > 0
    codes = np.where(fails.any(axis=0), fails.argmax(axis=0) + 1, 0).astype(np.uint8)
    values = measured[codes.astype(np.int64) - 1, np.arange(len(codes))]
    return Repetition(codes, np.where(codes > 0, values, np.nan), measured)


@kernel
def _measure_all(
    offsets: Int64s, data: Bytes, word_offsets: Int64s, tokens: Int32s,
    chars: Int32s, hashes: Uint64s, starts: Int64s, spelt: Bytes, alnum: Bytes,
    mask: Bools, is_dclm: bool
) -> Float64s:  # fmt: skip
    """Return (R, N) float64. O(B + L W); allocates up to 100 bytes a word of each document."""
    num_docs = len(offsets) - 1
    measured = np.full((len(MEASURES), num_docs), np.nan)
    measures = np.empty(len(MEASURES))
    for row in range(num_docs):
        begin, end = offsets[row], offsets[row + 1]
        first, last = word_offsets[row], word_offsets[row + 1]
        for rule in range(len(MEASURES)):
            measures[rule] = np.nan
        edges = np.zeros(last - first + 1, np.int64)
        single = np.empty(last - first, np.uint64)
        num = 0
        for word in range(first, last):
            token = tokens[word]
            if not is_dclm or alnum[code_point(spelt, starts[token])]:
                single[num] = hashes[token]
                edges[num + 1] = edges[num] + chars[token]
                num += 1
        measures[0] = 0
        if is_dclm:
            measures[0] = skip_space(data, begin, end) == end
            _measure_segments(data, begin, end, 2, 0, measures)
            _measure_segments(data, begin, end, 1, 0, measures)
        else:
            _measure_segments(data, begin, end, 0, max(edges[num], 1), measures)
        _measure_runs(num, edges, single, mask, is_dclm, measures)
        for rule in range(len(MEASURES)):
            measured[rule, row] = measures[rule]
    return measured


@kernel
def _measure_segments(
    data: Bytes, begin: int, end: int, newlines: int, total_chars: int, measures: Float64s
) -> None:
    r"""Measure the copies among segments of a text.

    Args:
        data, begin, end: the text.
        newlines: 0: lines of split("\n"); 1, 2: split at that many newlines, stripped, without
            blank segments.
        total_chars: denominator of the characters; 0: those of all segments.
        measures: gets the two measures of lines or paragraphs.
    """
    max_segments = 1
    for pos in range(begin, end):
        max_segments += data[pos] == 10
    keys, sizes = np.empty(max_segments, np.uint64), np.empty(max_segments, np.int64)
    num, total = 0, 0
    start = pos = begin
    while start <= end:
        while pos < end and not (
            data[pos] == 10 and (newlines < 2 or (pos + 1 < end and data[pos + 1] == 10))
        ):
            pos += 1
        low, high = start, pos
        if newlines:
            low = skip_space(data, start, pos)
            high = skip_space_back(data, low, pos)
        if newlines == 0 or low < high:
            keys[num] = xxh64(data, low, high, _SEED)
            sizes[num] = count_chars(data, low, high)
            total += sizes[num]
            num += 1
        if pos == end:
            break
        pos += max(newlines, 1)
        start = pos
    positions, copies = np.arange(num), np.empty(num, np.int64)
    count_copies(keys, positions, num, np.empty(4 << table_bits(num), np.uint64), copies)
    dup, chars = 0, 0
    for number in range(num):
        if copies[number] > 1:
            dup += 1
            chars += sizes[number]
    measure = _PARAGRAPHS if newlines == 2 else _LINES
    measures[measure] = dup / max(num, 1)
    measures[measure + 1] = chars / max(total_chars if total_chars else total, 1)


@kernel
def _measure_runs(
    num: int, edges: Int64s, single: Uint64s, mask: Bools, is_dclm: bool, measures: Float64s
) -> None:
    """Measure runs of each length in `mask`.

    Args:
        num: the words.
        edges: (W + 1,) characters of the words before each.
        single: (W,) their hashes.
        mask, is_dclm: as in the caller.
        measures: gets the measures.
    """
    bits = table_bits(8 * num)
    slots, table = np.empty(1 << bits, np.uint8), np.empty(1, np.uint64)
    keys, positions = np.zeros(num, np.uint64), np.empty(num + 1, np.int64)
    for n in range(1, min(LONGEST, num) + 1):
        runs = num - n + 1
        for pos in range(runs):
            keys[pos] = keys[pos] * _STEP + single[pos + n - 1]
        if not (mask[_TOP + n - 1] or mask[_DUP + n - 1]):
            continue
        count_slots(keys, runs, slots, bits)
        twins = find_twins(keys, runs, slots, bits, positions)
        table = table_for(table, 4 << table_bits(twins))
        copies = np.empty(twins, np.int64)
        count_copies(keys, positions, twins, table, copies)
        measures[_TOP + n - 1] = _top_chars(edges, n, positions, copies, is_dclm) / edges[num]
        if is_dclm:
            measures[_DUP + n - 1] = _covered(edges, n, positions, copies) / edges[num]
        else:
            total, chars = 0, 0
            for pos in range(runs):
                total += edges[pos + n] - edges[pos]
            for number in range(twins):
                if copies[number] > 1:
                    chars += edges[positions[number] + n] - edges[positions[number]]
            measures[_DUP + n - 1] = chars / total


@kernel
def _top_chars(edges: Int64s, n: int, positions: Int64s, copies: Int64s, is_dclm: bool) -> np.int64:
    """Return the characters in all copies of the most frequent run.

    If all differ, it is the first (dclm: none). Among equally frequent ones it is the first (dclm:
    the longest).
    """
    best_count, chars = np.int64(1), np.int64(0 if is_dclm else edges[n] - edges[0])
    for number in range(len(copies)):
        count = copies[number]
        if count == 1 or count < best_count:
            continue
        size = edges[positions[number] + n] - edges[positions[number]]
        if count > best_count or (is_dclm and size * count > chars):
            best_count, chars = count, size * count
    return chars


@kernel
def _covered(edges: Int64s, n: int, positions: Int64s, copies: Int64s) -> int:
    """Return the characters of words in any run that has a copy; each word counts once."""
    chars, covered = 0, 0
    for number in range(len(copies)):
        if copies[number] > 1:
            first = max(positions[number], covered)
            covered = positions[number] + n
            chars += edges[covered] - edges[first]
    return chars


# ----------------------------------------------------------------------
# Copies among many keys.
#
# Keys are 64-bit hashes. They are counted in a small table of bytes first: a key that is alone in
# its slot has no copy, in most texts nearly all. Only the others are compared in full.

FULL = 255
"""Slots count to this."""

# Keys may be an arithmetic progression (lines that count); the product spreads them over a table.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@kernel
def table_bits(num: int) -> int:
    """Return the bits of a table of at least `num` slots, and of 16."""
    bits = 4
    while 1 << bits < num:
        bits += 1
    return bits


@inline
def slot_of(key: np.uint64, bits: int) -> np.uint64:
    """Return the slot of a key in a table of 2 ** bits."""
    return (key * _SPREAD) >> np.uint64(64 - bits)


@kernel
def count_slots(keys: Uint64s, num: int, slots: Bytes, bits: int) -> None:
    """Count the first `num` keys in 2 ** bits slots, up to FULL. O(num), without branches."""
    for index in range(1 << bits):
        slots[index] = 0
    for index in range(num):
        slot = slot_of(keys[index], bits)
        count = slots[slot]
        slots[slot] = count + np.uint8(count < FULL)


@kernel
def find_twins(keys: Uint64s, num: int, slots: Bytes, bits: int, positions: Int64s) -> int:
    """List the keys that share their slot; return how many. O(num), without branches.

    Args:
        keys, num, slots, bits: as they were counted.
        positions: `num + 1` entries, filled.
    """
    num_twins = np.uint64(0)
    for index in range(num):
        positions[num_twins] = index
        num_twins += np.uint64(slots[slot_of(keys[index], bits)] > 1)
    return int(num_twins)


@kernel
def table_for(table: Uint64s, num: int) -> Uint64s:
    """Return a table of at least `num` slots: this one if it is as long."""
    return table if len(table) >= num else np.empty(num, np.uint64)


@kernel
def count_copies(
    keys: Uint64s, positions: Int64s, num: int, table: Uint64s, copies: Int64s
) -> None:
    """Fill copies[k] with how often the key of positions[k] is among those of all. O(num).

    Args:
        keys: by position.
        positions, num: the keys to count.
        table: scratch, `4 << table_bits(num)` entries.
        copies: `num` entries.
    """
    bits = table_bits(num) + 1
    mask = np.uint64((1 << bits) - 1)
    for entry in range(2 << bits):
        table[entry] = 0
    for turn in range(2):
        for number in range(num):
            key = keys[positions[number]]
            slot = slot_of(key, bits)
            entry = slot + slot
            while table[entry + np.uint64(1)] != 0 and table[entry] != key:
                slot = (slot + np.uint64(1)) & mask
                entry = slot + slot
            if turn == 0:
                table[entry] = key
                table[entry + np.uint64(1)] += np.uint64(1)
            else:
                copies[number] = table[entry + np.uint64(1)]

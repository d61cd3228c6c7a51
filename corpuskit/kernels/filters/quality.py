"""What the Gopher quality rules measure about each document, as datatrove measures it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from corpuskit.kernels.arrays import Bytes, Float64s, Int32s, Int64s, Uint64s, frozen, join_bytes
from corpuskit.kernels.hashing import HIGH_BITS, LOW_BITS, count_before, load64, same_bytes
from corpuskit.kernels.jit import inline, kernel
from corpuskit.kernels.utf8 import (
    char_table,
    char_width,
    code_point,
    line_break_width,
    skip_space,
    skip_space_back,
    wide_space_width,
)
from corpuskit.kernels.words.lexicon import ALPHA, SOLID, Words, char_kinds

MEASURES = (
    "num_words",
    "word_length",
    "hash_ratio",
    "ellipsis_ratio",
    "bullet_lines_ratio",
    "ellipsis_lines_ratio",
    "alpha_words_ratio",
    "num_stop_words",
)


def measure_quality(
    offsets: Int64s, data: Bytes, words: Words, stop_words: tuple[str, ...]
) -> Float64s:
    """Return (8, N) float64, rows as in MEASURES; NaN where a denominator is zero.

    Words of symbols only do not count in `num_words` and `word_length`, the mean in characters.
    """
    lexicon = words.lexicon
    return _measure(
        offsets, data, words.offsets, words.tokens, lexicon.kinds, lexicon.chars,
        lexicon.marks(stop_words), len(stop_words), _BYTE_KINDS,
    )  # fmt: skip


def _byte_kinds() -> Bytes:
    """Byte -> 1 if it may be a hash, a part of an ellipsis or of a line boundary."""
    table = np.zeros(256, np.uint8)
    table[[10, 11, 12, 13, 28, 29, 30, ord("#"), ord("."), 0xC2, 0xE2]] = 1
    return frozen(table)


_BYTE_KINDS = _byte_kinds()


# ----------------------------------------------------------------------
# The same measures for words between whitespace: one scan, without a lexicon.

_GAP, _WIDE, _BREAK, _MARK, _BEYOND = 16, 32, 64, 128, 256
_STOPS = _GAP | _MARK | _BEYOND
"""Bits of a byte, besides the kinds of the character: whitespace; may begin a wide whitespace
character; may begin a line boundary; hash or dot; beyond ASCII."""


@functools.cache
def _spaced_kinds() -> NDArray[np.uint16]:
    """Return the bits above and the kinds of each byte, (256,)."""
    table = np.zeros(256, np.uint16)
    table[:128] = char_kinds()[:128] & (SOLID | ALPHA)
    table[[*range(9, 14), *range(28, 33)]] = 0  # no part of a word
    for bit, codes in (
        (_GAP, [*range(9, 14), *range(28, 33)]),
        (_WIDE, [0xC2, 0xE1, 0xE2, 0xE3]),
        (_BREAK, [*range(10, 14), *range(28, 31), 0xC2, 0xE2]),
        (_MARK, [*b"#."]),
        (_BEYOND, range(128, 256)),
    ):
        table[[*codes]] |= bit
    return frozen(table)


def measure_spaced_quality(offsets: Int64s, data: Bytes, stop_words: tuple[str, ...]) -> Float64s:
    """Return what `measure_quality` returns for the words of str.split()."""
    coded = sorted(word.encode() for word in stop_words)
    lengths = np.zeros(256, np.uint64)
    for word in coded:
        lengths[word[0]] |= np.uint64(1 << min(len(word), 63))
    firsts = np.searchsorted([word[0] for word in coded], np.arange(257))
    return _measure_spaced(
        offsets, data, _spaced_kinds(), char_kinds(), lengths, firsts, *join_bytes(coded, b"\0")
    )


@inline
def _count_letters(group: np.uint64) -> np.int64:
    """Return the number of ASCII letters at the start of 8 bytes."""
    lower = (group | np.uint64(0x2020202020202020)) & LOW_BITS
    from_a = lower + np.uint64(0x1F1F1F1F1F1F1F1F)
    after_z = lower + np.uint64(0x0505050505050505)
    return count_before((~from_a | after_z | group) & HIGH_BITS)


@kernel
def _measure_spaced(
    offsets: Int64s, data: Bytes, byte_kinds: NDArray[np.uint16], char_kinds: Bytes,
    lengths: Uint64s, firsts: Int64s, starts: Int64s, spelt: Bytes
) -> Float64s:  # fmt: skip
    """O(B + K W), K stop words that begin alike; allocates 64 N bytes.

    Args:
        byte_kinds: `_spaced_kinds`.
        char_kinds: see Lexicon.
        lengths: first byte of a word -> a bit for each size of its stop words; bit 63: 63 or more.
        firsts, starts, spelt: stop words, ascending: those with first byte b are
            `firsts[b]:firsts[b + 1]`, word k is `spelt[starts[k]:starts[k + 1]]`.
    """
    num_docs = len(offsets) - 1
    measured = np.empty((len(MEASURES), num_docs))
    last_row = np.full(len(starts) - 1, -1, np.int64)
    for row in range(num_docs):
        pos, end = offsets[row], offsets[row + 1]
        words, solid, length, alpha, stops = 0, 0, 0, 0, 0
        hashes, dots, lines, bullets, trailing = 0, 0, 0, 0, 0
        line = first = last = pos  # start of the line, start and end of its words
        while pos < end:
            kind = np.int64(byte_kinds[data[pos]])
            gap = kind & _GAP
            if kind & _WIDE:
                gap = wide_space_width(data, pos)
            if gap:
                width = line_break_width(data, pos, end) if kind & _BREAK else 0
                if width > 0:
                    bullet, trail = _line(data, first, last)
                    lines, bullets, trailing = lines + 1, bullets + bullet, trailing + trail
                    pos += width
                    line = first = last = pos
                else:
                    pos += 1 if kind & _GAP else gap
                continue
            start, kinds, tails = pos, 0, 0
            while pos < end:
                if pos + 8 <= len(data):  # 8 at once, as the end of a word is hard to predict
                    letters = _count_letters(load64(data, pos))
                    if letters > 0:
                        kinds |= SOLID | ALPHA
                        pos = min(pos + letters, end)
                        continue
                kind = np.int64(byte_kinds[data[pos]])
                kinds |= kind
                if kind & _STOPS == 0:
                    pos += 1
                elif kind & _BEYOND:
                    if kind & _WIDE:
                        if wide_space_width(data, pos) > 0:
                            break
                        dots += data[pos] == 0xE2 and _is_ellipsis(data, pos)
                    code, width = code_point(data, pos), char_width(data[pos])
                    kinds |= np.int64(char_kinds[code]) if code < len(char_kinds) else SOLID
                    tails += width - 1
                    pos += width
                elif kind & _GAP:
                    break
                elif data[pos] == 35:
                    hashes += 1
                    pos += 1
                elif pos + 3 <= end and _is_dots(data, pos):
                    dots += 1
                    pos += 3
                else:
                    pos += 1
            if first == last:
                first = start
            last, size = pos, pos - start
            is_solid = np.int64(kinds & SOLID != 0)
            words += 1
            solid += is_solid
            length += is_solid * (size - tails)
            alpha += np.int64(kinds & ALPHA != 0)
            lead = data[start]
            if (lengths[lead] >> np.uint64(min(size, 63))) & np.uint64(1) == 0:
                continue
            for mark in range(firsts[lead], firsts[lead + 1]):
                if starts[mark + 1] - starts[mark] == size and same_bytes(
                    spelt, starts[mark], data, start, size
                ):
                    stops += last_row[mark] != row
                    last_row[mark] = row
        if line < end:
            bullet, trail = _line(data, first, last)
            lines, bullets, trailing = lines + 1, bullets + bullet, trailing + trail
        measured[0, row] = solid
        measured[1, row] = _ratio(length, solid)
        measured[2, row] = _ratio(hashes, words)
        measured[3, row] = _ratio(dots, words)
        measured[4, row] = _ratio(bullets, lines)
        measured[5, row] = _ratio(trailing, lines)
        measured[6, row] = _ratio(alpha, words)
        measured[7, row] = stops
    return measured


@kernel
def _ratio(count: int, total: int) -> float:
    return count / total if total > 0 else np.nan


@kernel
def _measure(
    offsets: Int64s, data: Bytes, word_offsets: Int64s, tokens: Int32s, kinds: Bytes,
    chars: Int32s, marks: Bytes, num_marks: int, byte_kinds: Bytes
) -> Float64s:  # fmt: skip
    """O(B + W + K N), K stop words; allocates 64 N bytes.

    Args:
        word_offsets, tokens: the words of each text, as numbers of the lexicon.
        kinds, chars: of each number: bits (SOLID: not of symbols alone, ALPHA: has a letter), and
            length in characters.
        marks: of each number: k + 1 if it is the k-th stop word, else 0.
    """
    num_docs = len(offsets) - 1
    measured = np.empty((len(MEASURES), num_docs))
    last_row = np.full(256, -1, np.int64)
    for row in range(num_docs):
        first, last = word_offsets[row], word_offsets[row + 1]
        solid, length, alpha, stops = 0, 0, 0, 0
        for word in range(first, last):
            token = tokens[word]
            kind = kinds[token]
            is_solid = np.int64(kind & SOLID != 0)
            solid += is_solid
            length += is_solid * chars[token]
            alpha += np.int64(kind & ALPHA != 0)
            last_row[marks[token]] = row
        for mark in range(1, num_marks + 1):
            stops += last_row[mark] == row
        hashes, dots, lines, bullets, trailing = _lines(
            data, offsets[row], offsets[row + 1], byte_kinds
        )
        measured[0, row] = solid
        measured[1, row] = _ratio(length, solid)
        measured[2, row] = _ratio(hashes, last - first)
        measured[3, row] = _ratio(dots, last - first)
        measured[4, row] = _ratio(bullets, lines)
        measured[5, row] = _ratio(trailing, lines)
        measured[6, row] = _ratio(alpha, last - first)
        measured[7, row] = stops
    return measured


@kernel
def _is_dots(data: Bytes, pos: int) -> bool:
    return bool(data[pos] == 46 and data[pos + 1] == 46 and data[pos + 2] == 46)


@kernel
def _is_ellipsis(data: Bytes, pos: int) -> bool:
    return bool(data[pos] == 0xE2 and data[pos + 1] == 0x80 and data[pos + 2] == 0xA6)


@kernel
def _line(data: Bytes, start: int, end: int) -> tuple[int, int]:
    """Return whether a line begins with a bullet, and whether it ends in an ellipsis, as 0 or 1."""
    first = skip_space(data, start, end)
    if first == end:
        return 0, 0
    bullet = data[first] == 45 or (
        data[first] == 0xE2 and data[first + 1] == 0x80 and data[first + 2] == 0xA2
    )
    last = skip_space_back(data, first, end) - 3
    trailing = last >= first and (_is_dots(data, last) or _is_ellipsis(data, last))
    return int(bullet), int(trailing)


@kernel
def _lines(data: Bytes, begin: int, end: int, byte_kinds: Bytes) -> tuple[int, int, int, int, int]:
    """Count hashes, ellipses, lines, lines that begin with a bullet, that end in an ellipsis."""
    hashes, dots, lines, bullets, trailing = 0, 0, 0, 0, 0
    line = pos = begin
    while pos < end:
        if byte_kinds[data[pos]] == 0:
            pos += 1
            continue
        width = line_break_width(data, pos, end)
        if width > 0:
            bullet, trail = _line(data, line, pos)
            lines, bullets, trailing = lines + 1, bullets + bullet, trailing + trail
            pos += width
            line = pos
        elif data[pos] == 35:
            hashes += 1
            pos += 1
        elif pos + 3 <= end and (_is_dots(data, pos) or _is_ellipsis(data, pos)):
            dots += 1
            pos += 3
        else:
            pos += 1
    if line < end:
        bullet, trail = _line(data, line, end)
        lines, bullets, trailing = lines + 1, bullets + bullet, trailing + trail
    return hashes, dots, lines, bullets, trailing


# ----------------------------------------------------------------------
# Document quality as Dolma's tagger and DCLM's mappers measure it.
#
# Both count all symbols together, at `hash_ratio`, with NaN at `ellipsis_ratio`. Words are those of
# str.split().

_KELVIN = "\u212a".encode()
"""The only character beyond ASCII whose lower case is ASCII: k."""


def measure_dolma_quality(
    offsets: Int64s, data: Bytes, words: Words, stop_words: tuple[str, ...]
) -> Float64s:
    """Return (8, N) float64, rows as in MEASURES; `word_length` is the median."""
    lexicon = words.lexicon
    return _dolma(
        offsets, data, words.offsets, words.tokens, lexicon.kinds, lexicon.chars,
        lexicon.marks(stop_words), lexicon.starts, lexicon.data,
    )  # fmt: skip


def measure_dclm_quality(
    offsets: Int64s, data: Bytes, words: Words, stop_words: tuple[str, ...]
) -> Float64s:
    """Return (8, N) float64, rows as in MEASURES; a text without words fails as in DCLM.

    `num_words` are fastText's tokens that begin with a letter or digit, `word_length` is the mean.

    Args:
        offsets, data: the texts.
        words: of str.split().
        stop_words: ASCII, in lower case.
    """
    lexicon = words.lexicon
    return _dclm(
        offsets, data, words.offsets, words.tokens, lexicon.kinds, lexicon.chars, lexicon.starts,
        lexicon.data, char_table(str.isalnum), *_folded(stop_words),
    )  # fmt: skip


def _folded(stop_words: Sequence[str]) -> tuple[Bytes, Int64s, Bytes]:
    """Return (256,) bytes that may begin a stop word, offsets, bytes."""
    coded = [word.encode() for word in dict.fromkeys(stop_words)]
    gate = np.zeros(256, np.uint8)
    for word in coded:
        gate[[word[0], word[:1].upper()[0]]] = 1
        gate[_KELVIN[0]] |= word[:1] == b"k"
    return gate, *join_bytes(coded, b"\0")


@kernel
def _dolma(
    offsets: Int64s, data: Bytes, word_offsets: Int64s, tokens: Int32s, kinds: Bytes,
    chars: Int32s, marks: Bytes, starts: Int64s, spelt: Bytes
) -> Float64s:  # fmt: skip
    """O(B + W); allocates 64 N bytes, and 8 for each character of the longest word."""
    num_docs = len(offsets) - 1
    measured = np.full((len(MEASURES), num_docs), np.nan)
    longest = 0
    for word in range(word_offsets[0], word_offsets[num_docs]):
        longest = max(longest, chars[tokens[word]])
    lengths = np.zeros(longest + 1, np.int64)
    for row in range(num_docs):
        first, last = word_offsets[row], word_offsets[row + 1]
        symbols, alpha, stops, longest = 0, 0, 0, 0
        for word in range(first, last):
            token = tokens[word]
            alpha += np.int64(kinds[token] & ALPHA != 0)
            stops += np.int64(marks[token] != 0)
            longest = max(longest, chars[token])
            lengths[chars[token]] += 1
            symbols += _has_symbol(spelt, starts[token], starts[token + 1])
        num = last - first
        measured[0, row] = num
        measured[1, row] = _median(lengths, longest, num)
        measured[2, row] = symbols / max(num, 1)
        lines, bullets, trailing = _dolma_lines(data, offsets[row], offsets[row + 1])
        measured[4, row] = bullets / lines
        measured[5, row] = trailing / lines
        measured[6, row] = alpha / max(num, 1)
        measured[7, row] = stops
    return measured


@kernel
def _median(counts: Int64s, longest: int, num: int) -> float:
    """Return the median of `num` lengths, 0 of none, and clear their counts."""
    low, high, num_counted = -1, -1, 0
    for length in range(longest + 1):
        if counts[length]:
            num_counted += counts[length]
            counts[length] = 0
            if low < 0 and num_counted > (num - 1) // 2:
                low = length
            if high < 0 and num_counted > num // 2:
                high = length
    return (low + high) / 2 if num else 0.0


@kernel
def _has_symbol(data: Bytes, start: int, end: int) -> int:
    for pos in range(start, end):
        if data[pos] == 35 or _is_ellipsis(data, pos):
            return 1
    return 0


@kernel
def _dolma_lines(data: Bytes, begin: int, end: int) -> tuple[int, int, int]:
    """Count lines, those that begin with a bullet, that end in an ellipsis."""
    lines, bullets, trailing = 0, 0, 0
    start = pos = begin
    while True:
        if pos == end or data[pos] == 10:
            lines += 1
            if start < pos:
                bullets += np.int64(data[start] == 42 or data[start] == 45)
                trailing += np.int64(pos - 3 >= start and _is_ellipsis(data, pos - 3))
            start = pos + 1
        if pos == end:
            break
        pos += 1
    return lines, bullets, trailing


@kernel
def _dclm(
    offsets: Int64s, data: Bytes, word_offsets: Int64s, tokens: Int32s, kinds: Bytes,
    chars: Int32s, starts: Int64s, spelt: Bytes, alnum: Bytes, gate: Bytes,
    stop_offsets: Int64s, stop_data: Bytes
) -> Float64s:  # fmt: skip
    """O(B + W K), K stop words; allocates 64 N bytes."""
    num_docs = len(offsets) - 1
    measured = np.full((len(MEASURES), num_docs), np.nan)
    for row in range(num_docs):
        first, last = word_offsets[row], word_offsets[row + 1]
        length, alpha, stops = 0, 0, 0
        for word in range(first, last):
            token = tokens[word]
            alpha += np.int64(kinds[token] & ALPHA != 0)
            length += chars[token]
            if gate[spelt[starts[token]]]:
                stops += _is_stop(spelt, starts[token], starts[token + 1], stop_offsets, stop_data)
        num, begin, end = last - first, offsets[row], offsets[row + 1]
        lines, bullets, trailing = _dclm_lines(data, begin, end)
        measured[0, row] = count_tokens(data, begin, end, alnum)
        measured[1, row] = length / max(num, 1)
        measured[2, row] = _count_symbols(data, begin, end) / num if num else np.inf
        measured[4, row] = bullets / max(lines, 1)
        measured[5, row] = trailing / max(lines, 1)
        measured[6, row] = alpha / max(num, 1)
        measured[7, row] = stops
    return measured


@kernel
def _is_stop(data: Bytes, start: int, end: int, stop_offsets: Int64s, stop_data: Bytes) -> int:
    """Return 1 if the word in lower case is a stop word, else 0."""
    for number in range(len(stop_offsets) - 1):
        pos, stop = start, stop_offsets[number]
        while pos < end and stop < stop_offsets[number + 1]:
            byte = data[pos]
            if byte == 0xE2 and data[pos + 1] == 0x84 and data[pos + 2] == 0xAA:
                pos, byte = pos + 2, np.uint8(107)
            elif 65 <= byte <= 90:
                byte = np.uint8(byte + 32)
            if byte != stop_data[stop]:
                break
            pos, stop = pos + 1, stop + 1
        if pos == end and stop == stop_offsets[number + 1]:
            return 1
    return 0


@kernel
def count_tokens(data: Bytes, begin: int, end: int, alnum: Bytes) -> int:
    """Count runs between ASCII spaces and zeros that begin with a letter or digit."""
    tokens, inside = 0, False
    for pos in range(begin, end):
        byte = data[pos]
        if byte == 32 or 9 <= byte <= 13 or byte == 0:
            inside = False
        elif not inside:
            inside = True
            tokens += np.int64(alnum[code_point(data, pos)] != 0)
    return tokens


@kernel
def _is_spaced_dots(data: Bytes, pos: int, gap: int) -> bool:
    """Return whether three dots begin here, `gap` spaces between them."""
    for step in range(3):
        if data[pos + step * (gap + 1)] != 46:
            return False
    return gap == 0 or bool(data[pos + 1] == 32 and data[pos + 3] == 32)


@kernel
def _count_symbols(data: Bytes, begin: int, end: int) -> int:
    """Count hashes and three kinds of ellipses, each kind by itself as str.count does."""
    symbols, dots, spaced = 0, begin, begin
    for pos in range(begin, end):
        if data[pos] == 35:
            symbols += 1
        elif data[pos] == 46:
            if pos >= dots and pos + 3 <= end and _is_spaced_dots(data, pos, 0):
                symbols, dots = symbols + 1, pos + 3
            if pos >= spaced and pos + 5 <= end and _is_spaced_dots(data, pos, 1):
                symbols, spaced = symbols + 1, pos + 5
        elif data[pos] == 0xE2 and _is_ellipsis(data, pos):
            symbols += 1
    return symbols


@kernel
def _dclm_lines(data: Bytes, begin: int, end: int) -> tuple[int, int, int]:
    """Count lines that are not blank, those that begin with a bullet, that end in an ellipsis."""
    lines, bullets, trailing = 0, 0, 0
    start = pos = begin
    while pos <= end:
        if pos == end or data[pos] == 10:
            low = skip_space(data, start, pos)
            high = skip_space_back(data, low, pos)
            if low < high:
                lines += 1
                bullets += _is_bullet(data, low)
                trailing += np.int64(
                    (high - 3 >= low and _is_spaced_dots(data, high - 3, 0))
                    or (high - 5 >= low and _is_spaced_dots(data, high - 5, 1))
                    or (high - 3 >= low and _is_ellipsis(data, high - 3))
                )
            start = pos + 1
        pos += 1
    return lines, bullets, trailing


@kernel
def _is_bullet(data: Bytes, pos: int) -> int:
    """Return 1 for * - U+2022 U+25CF, else 0."""
    if data[pos] == 42 or data[pos] == 45:
        return 1
    if data[pos] != 0xE2:
        return 0
    second, third = data[pos + 1], data[pos + 2]
    return int((second == 0x80 and third == 0xA2) or (second == 0x97 and third == 0x8F))

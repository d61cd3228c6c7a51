r"""Finds the entries of a word list in texts, as `(?:\W|^)(entry|entry|..)(?:\W|$)` does.

A match must begin where a word can begin and end where one can end. So the scan hashes the text
from a possible beginning to each possible end after it, as long as the hashed part begins an entry.
That is linear in the text for any list, and the table grows with the bytes of the list only:
100,000 entries take about as long as 400.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from corpuskit.kernels.arrays import Bytes, Int32s, Int64s, Uint32s, frozen
from corpuskit.kernels.hashing import ALL_BITS, HIGH_BITS, load64, load_tail, mix64
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.stringset import HASH_PRIME, HASH_START, Table, find, make_table
from corpuskit.kernels.utf8 import CHAR_WORD, char_width, characters, code_point
from corpuskit.kernels.wordhash import BYTE_KINDS, word_edges

_ENTRY, _INNER = 1, 2
"""Kinds of the strings in the table: an entry; the beginning of one, up to a possible end."""

_WORD_CHARACTER = re.compile(r"\w")
_POSSIBLE_END = re.compile(r"(?<=.)(?=\W)", re.DOTALL)


class WordList(NamedTuple):
    """Entries, compiled; read-only.

    Attributes:
        table: entries and their beginnings.
        pieces: (2**k,) uint8: a bit for the hash of each beginning of an entry, up to its first
            possible end; text whose bit is not set begins no entry.
        symbols: (256,) uint8: 1 for the first bytes of entries that do not begin with a word.
        longest: bytes of the longest entry.
        has_symbols: an entry begins with an ASCII character that is no part of a word.
        whole_words: characters around a match must not be parts of words.
    """

    table: Table
    pieces: Bytes
    symbols: Bytes
    longest: int
    has_symbols: bool
    whole_words: bool


def compile_words(entries: Iterable[str], *, whole_words: bool) -> WordList:
    """Compile entries, which are compared unchanged with text in lower case; skips empty ones.

    Takes about 4 us and 60 bytes of memory per entry.
    """
    kinds: dict[bytes, int] = {}
    begins: set[bytes] = set()
    symbols = np.zeros(256, np.uint8)
    longest = 1
    for entry in entries:
        encoded = entry.encode()
        if not encoded:
            continue
        longest = max(longest, len(encoded))
        if whole_words:
            cuts = [match.start() for match in _POSSIBLE_END.finditer(entry)]
        else:
            cuts = list(range(1, len(entry)))
        inner = [entry[:cut].encode() for cut in cuts]
        for piece in inner:
            kinds[piece] = kinds.get(piece, 0) | _INNER
        kinds[encoded] = kinds.get(encoded, 0) | _ENTRY
        begins.add(inner[0] if inner else encoded)
        if not _WORD_CHARACTER.match(entry):
            symbols[encoded[0]] = 1
    has_symbols = bool(symbols[:128].any())
    table = make_table(list(kinds), list(kinds.values()))
    pieces = np.zeros(1 << max((2 * len(begins)).bit_length(), 13), np.uint8)
    firsts = make_table(list(begins))
    _set_bits(pieces, firsts)
    return WordList(table, frozen(pieces), frozen(symbols), longest, has_symbols, whole_words)


@kernel
def _set_bits(pieces: Bytes, firsts: Table) -> None:
    for number in range(len(firsts.starts) - 1):
        value = _piece_hash(firsts.data, firsts.starts[number], firsts.starts[number + 1])
        bit = value & np.uint64(8 * len(pieces) - 1)
        pieces[bit >> np.uint64(3)] |= np.uint8(1) << np.uint8(bit & np.uint64(7))


@kernel
def _piece_hash(data: Bytes, start: int, end: int) -> np.uint64:
    """Return a hash of `data[start:end]` that takes 8 bytes at a time; 2 ns for a word."""
    value = np.uint64(end - start)
    while end - start > 8:
        value = mix64(value ^ load64(data, start))
        start += 8
    mask = ALL_BITS >> np.uint64(64 - 8 * (end - start))
    group = load64(data, start) & mask if start + 8 <= len(data) else load_tail(data, start, end)
    return mix64(value ^ group)


def count_entries(offsets: Int64s, data: Bytes, rows: Int64s, words: WordList) -> Int64s:
    """Return how often entries occur in each text, (len(rows),).

    Entries that begin at the same position count once.

    Args:
        offsets, data: texts in lower case.
        rows: which of them.
    """
    longest = int((offsets[rows + 1] - offsets[rows]).max(initial=0))
    edges, positions = np.empty(longest + 2, np.int32), np.empty(longest + 1, np.int32)
    return _count(offsets, data, rows, words, characters(), BYTE_KINDS, edges, positions)


@kernel
def _count(
    offsets: Int64s,
    data: Bytes,
    rows: Int64s,
    words: WordList,
    characters: Uint32s,
    kinds: Bytes,
    edges: Int32s,
    positions: Int32s,
) -> Int64s:
    """O(B), about 500 MB/s; allocates 8 bytes a row."""
    counts = np.zeros(len(rows), np.int64)
    slots, starts, strings, entry_kinds = words.table
    pieces, symbols, has_symbols = words.pieces, words.symbols, words.has_symbols
    longest, whole_words = words.longest, words.whole_words
    for number in range(len(rows)):
        begin, end = offsets[rows[number]], offsets[rows[number] + 1]
        if whole_words:
            num = _find_words(
                *(data, begin, end, pieces, symbols, has_symbols),
                *(characters, kinds, edges, positions),
            )
        else:
            num = _find_characters(data, begin, end, pieces, positions)
        for position in positions[:num]:
            counts[number] += _entry_at(
                *(data, begin + position, end, characters, longest, whole_words),
                *(slots, starts, strings, entry_kinds),
            )
    return counts


# Kernels take arrays, not tuples of them: see `stringset.find`.


@kernel
def _find_words(
    data: Bytes,
    begin: int,
    end: int,
    pieces: Bytes,
    symbols: Bytes,
    has_symbols: bool,
    characters: Uint32s,
    kinds: Bytes,
    edges: Int32s,
    positions: Int32s,
) -> int:
    """Fill `positions` with where entries of whole words may begin; return how many."""
    mask = np.uint64(8 * len(pieces) - 1)
    runs = word_edges(data, begin, end, kinds, edges)
    num = int(np.int64(0))  # typed: for a literal the function it is passed to is compiled again
    searched_to = begin
    for run in range(runs):
        start, stop = begin + edges[2 * run], begin + edges[2 * run + 1]
        if has_symbols:
            num = _find_symbol_starts(
                data, begin, searched_to, start, symbols, characters, positions, num
            )
        searched_to = stop
        if start == stop:
            continue
        value, byte_bits = np.uint64(stop - start), np.uint64(0)
        pos = start
        while stop - pos > 8:
            group = load64(data, pos)
            byte_bits |= group
            value = mix64(value ^ group)
            pos += 8
        byte_mask = ALL_BITS >> np.uint64(64 - 8 * (stop - pos))
        group = (
            load64(data, pos) & byte_mask if pos + 8 <= len(data) else load_tail(data, pos, stop)
        )
        byte_bits |= group
        if byte_bits & HIGH_BITS:
            num = _find_wide(data, begin, start, stop, pieces, symbols, characters, positions, num)
            continue
        bit = mix64(value ^ group) & mask
        positions[num] = start - begin
        num += np.int64(pieces[bit >> np.uint64(3)] >> (bit & np.uint64(7)) & np.uint64(1))
    if has_symbols:
        num = _find_symbol_starts(
            data, begin, searched_to, end, symbols, characters, positions, num
        )
    return num


@kernel
def _find_symbol_starts(
    data: Bytes,
    begin: int,
    start: int,
    stop: int,
    symbols: Bytes,
    characters: Uint32s,
    positions: Int32s,
    num: int,
) -> int:
    """Append where entries may begin in `data[start:stop]`, ASCII that is no part of a word."""
    for pos in range(start, stop):
        if symbols[data[pos]] and not _follows_word(data, begin, pos, characters):
            positions[num] = pos - begin
            num += 1
    return num


@kernel
def _find_wide(
    data: Bytes,
    begin: int,
    start: int,
    stop: int,
    pieces: Bytes,
    symbols: Bytes,
    characters: Uint32s,
    positions: Int32s,
    num: int,
) -> int:
    """Append where entries may begin in `data[start:stop]`, which holds wide characters."""
    mask = np.uint64(8 * len(pieces) - 1)
    pos = start
    word = int(np.int64(-1))  # where the word at `pos` began
    while pos < stop:
        byte = data[pos]
        if byte < 0x80:
            width, is_word = 1, True
        else:
            width, is_word = char_width(byte), _is_word(data, pos, characters)
        if is_word:
            word = pos if word < 0 else word
        else:
            if word >= 0:
                bit = _piece_hash(data, word, pos) & mask
                positions[num] = word - begin
                num += np.int64(pieces[bit >> np.uint64(3)] >> (bit & np.uint64(7)) & np.uint64(1))
                word = int(np.int64(-1))
            elif symbols[byte] and not _follows_word(data, begin, pos, characters):
                positions[num] = pos - begin
                num += 1
        pos += width
    if word >= 0:
        bit = _piece_hash(data, word, stop) & mask
        positions[num] = word - begin
        num += np.int64(pieces[bit >> np.uint64(3)] >> (bit & np.uint64(7)) & np.uint64(1))
    return num


@kernel
def _find_characters(data: Bytes, begin: int, end: int, pieces: Bytes, positions: Int32s) -> int:
    """Fill `positions` with the characters with which entries may begin; return how many."""
    mask = np.uint64(8 * len(pieces) - 1)
    num = 0
    pos = begin
    while pos < end:
        stop = pos + char_width(data[pos])
        bit = _piece_hash(data, pos, stop) & mask
        positions[num] = pos - begin
        num += np.int64(pieces[bit >> np.uint64(3)] >> (bit & np.uint64(7)) & np.uint64(1))
        pos = stop
    return num


@kernel
def _entry_at(
    data: Bytes,
    start: int,
    end: int,
    characters: Uint32s,
    longest: int,
    whole_words: bool,
    slots: Int64s,
    entry_starts: Int64s,
    strings: Bytes,
    kinds: Bytes,
) -> bool:
    """Return whether an entry begins at `start` and ends where it may.

    Args:
        data, end: the text, from `start` on.
        longest, whole_words: of the list.
        slots, entry_starts, strings, kinds: its table.
    """
    value = HASH_START
    stop = start
    limit = min(end, start + longest)
    while stop < limit:
        width = char_width(data[stop])
        for index in range(stop, stop + width):
            value = (value ^ np.uint64(data[index])) * HASH_PRIME
        stop += width
        if whole_words and stop < end and _is_word(data, stop, characters):
            continue
        number = find(slots, entry_starts, strings, value, data, start, stop)
        if number < 0:
            return False
        if kinds[number] & _ENTRY:
            return True
    return False


@kernel
def _follows_word(data: Bytes, begin: int, pos: int, characters: Uint32s) -> bool:
    """Return whether the character before `pos` is a part of a word."""
    if pos == begin:
        return False
    pos -= 1
    while data[pos] & 0xC0 == 0x80:
        pos -= 1
    return _is_word(data, pos, characters)


@kernel
def _is_word(data: Bytes, pos: int, characters: Uint32s) -> bool:
    """Return whether a character of lower-case text is a part of a word."""
    byte = data[pos]
    if byte < 0x80:
        return bool(97 <= byte <= 122 or 48 <= byte <= 57 or byte == 95)
    code = code_point(data, pos)
    return bool(code < len(characters) and characters[code] & np.uint32(CHAR_WORD))

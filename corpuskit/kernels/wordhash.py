r"""Words as near-duplicate detection sees them, as 64-bit hashes.

A word is a match of `re.findall(r"\w+", lower(text))`: letters, digits of any script and
underscores. `lower` is str.lower() without its one rule that looks at neighbours: a capital sigma
always becomes the ordinary small sigma, also at the end of a word. Answers are those of the running
Python's Unicode version.
"""

from __future__ import annotations

import functools
import unicodedata

import numpy as np

from corpuskit.kernels.arrays import Bytes, Int32s, Int64s, Uint32s, Uint64s, frozen
from corpuskit.kernels.hashing import ALL_BITS, HIGH_BITS, load64, load_tail, mix64
from corpuskit.kernels.jit import inline, kernel
from corpuskit.kernels.utf8 import (
    CHAR_ENDS,
    CHAR_LOWER,
    CHAR_WORD,
    NUM_CODES,
    char_width,
    characters,
    code_point,
)

_LOWER_BITS = np.uint64(0x2020202020202020)

_FROM_A = np.uint64(0x1F1F1F1F1F1F1F1F)
_AFTER_Z = np.uint64(0x0505050505050505)
_FROM_0 = np.uint64(0x5050505050505050)
_AFTER_9 = np.uint64(0x4646464646464646)
_UNDERSCORES = np.uint64(0x5F5F5F5F5F5F5F5F)
_GATHER = np.uint64(0x0102040810204080)
"""A multiplication by it moves bit 0 of byte i to bit 56 + i."""


def _byte_kinds() -> Bytes:
    """Byte -> 1 if it may be a part of a word, as every byte of a wide character may."""
    table = np.zeros(256, np.uint8)
    table[[ord("_"), *range(ord("0"), ord("9") + 1), *range(0x80, 0x100)]] = 1
    for first in (ord("a"), ord("A")):
        table[first : first + 26] = 1
    return frozen(table)


BYTE_KINDS = _byte_kinds()


@inline
def _word_bits(group: np.uint64) -> np.uint64:
    """Return a bit for each of 8 bytes, set for those that may be a part of a word.

    Each comparison is an addition that carries into the top bit of bytes at or above a bound.
    """
    low = group & ~HIGH_BITS
    small = low | _LOWER_BITS
    letters = (small + _FROM_A) & ~(small + _AFTER_Z)
    digits = (low + _FROM_0) & ~(low + _AFTER_9)
    flags = (letters | digits | (HIGH_BITS - (low ^ _UNDERSCORES)) | group) & HIGH_BITS
    return ((flags >> np.uint64(7)) * _GATHER) >> np.uint64(56)


@inline
def _count_bits(value: np.uint64) -> np.uint64:
    """Return how many bits are set; compiles to one instruction."""
    value -= (value >> np.uint64(1)) & np.uint64(0x5555555555555555)
    pairs = np.uint64(0x3333333333333333)
    value = (value & pairs) + ((value >> np.uint64(2)) & pairs)
    value = (value + (value >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (value * np.uint64(0x0101010101010101)) >> np.uint64(56)


@kernel
def word_edges(data: Bytes, begin: int, end: int, kinds: Bytes, edges: Int32s) -> int:
    """Fill `edges` with where runs of word bytes begin and end; return how many runs. O(B).

    About 2.4 GB/s: 64 bytes become a bit each, and the positions of bits that differ from the one
    before are written eight at a time. With few branches it takes half the time of a loop over
    bytes.

    Args:
        data, begin, end: the text.
        kinds: BYTE_KINDS.
        edges: `end - begin + 2` entries; run r is `edges[2 * r]:edges[2 * r + 1]`, in bytes from
            `begin`. A run may hold several words where wide characters separate them.
    """
    one = np.uint64(1)
    num = previous = np.uint64(0)
    block_end = begin + (end - begin) // 64 * 64
    for pos in range(begin, block_end, 64):
        bits = np.uint64(0)
        for shift in range(0, 64, 8):
            bits |= _word_bits(load64(data, pos + shift)) << np.uint64(shift)
        changes = bits ^ ((bits << one) | previous)
        previous = bits >> np.uint64(63)
        next_num = num + _count_bits(changes)
        while num < next_num:
            # Entries after the last change are overwritten later. They fit: `num` is at most the
            # number of bytes before these 64.
            for index in range(8):
                lowest = changes & (~changes + one)
                edges[num + np.uint64(index)] = pos - begin + np.int64(_count_bits(lowest - one))
                changes &= changes - one
            num += np.uint64(8)
        num = next_num
    for pos in range(block_end, end):
        kind = np.uint64(kinds[data[pos]])
        edges[num] = pos - begin
        num += kind ^ previous
        previous = kind
    edges[num] = end - begin
    return int(num + one) >> 1


@inline
def ascii_hash(data: Bytes, pos: int, stop: int) -> tuple[np.uint64, bool]:
    """Return the hash of a word in lower case and whether it is ASCII, else the hash is wrong."""
    value = byte_bits = np.uint64(0)
    while stop - pos > 8:
        group = load64(data, pos)
        byte_bits |= group
        value = mix64(value ^ (group | _LOWER_BITS))
        pos += 8
    mask = ALL_BITS >> np.uint64(64 - 8 * (stop - pos))
    group = load64(data, pos) & mask if pos + 8 <= len(data) else load_tail(data, pos, stop)
    # 0x20 makes letters lower case, changes no digit, and turns _ into DEL.
    value = mix64(value ^ (group | (_LOWER_BITS & mask)))
    return value, (byte_bits | group) & HIGH_BITS == 0


@kernel
def word_hashes(
    data: Bytes,
    begin: int,
    end: int,
    characters: Uint32s,
    kinds: Bytes,
    edges: Int32s,
    words: Uint64s,
) -> int:
    """Fill `words` with the hash of each word, in order; return how many. O(B), about 900 MB/s.

    The hash of a lower-cased word: h = 0, then h = mix64(h ^ c) over its c's, which are groups of 8
    bytes (little endian, underscores as 0x7F) for an ASCII word and code points for others.

    Args:
        data, begin, end: the text.
        characters, kinds: `characters()`, BYTE_KINDS.
        edges: scratch, `end - begin + 2` entries.
        words: (W,), W at most `(end - begin + 1) // 2`.
    """
    runs = word_edges(data, begin, end, kinds, edges)
    num = 0
    for run in range(runs):
        pos, stop = begin + edges[2 * run], begin + edges[2 * run + 1]
        value, is_ascii = ascii_hash(data, pos, stop)
        if is_ascii:
            words[num] = value
            num += 1
        else:
            num = _wide_words(data, pos, stop, characters, words, num)
    return num


@kernel
def _wide_words(
    data: Bytes, begin: int, end: int, characters: Uint32s, words: Uint64s, num: int
) -> int:
    """Append the hashes of the words of a run that holds wide characters; return the new `num`.

    A word may turn out not to be ASCII at its last character, so both hashes are computed.
    """
    narrow = group = wide = letter_bits = np.uint64(0)
    length = 0
    pos = begin
    while pos <= end:
        entry = np.uint32(0)
        if pos < end:
            code = code_point(data, pos)
            if code < len(characters):
                entry = characters[code]
            pos += char_width(data[pos])
        else:
            pos += 1
        if entry & CHAR_WORD:
            lower = np.uint64(entry & CHAR_LOWER)
            letter_bits |= lower
            wide = mix64(wide ^ lower)
            group |= (lower | np.uint64(0x20)) << np.uint64(8 * (length & 7))
            length += 1
            if length & 7 == 0:
                narrow = mix64(narrow ^ group)
                group = np.uint64(0)
            if not entry & CHAR_ENDS:
                continue
        if length:
            if letter_bits >= np.uint64(0x80):
                words[num] = wide
            else:
                words[num] = mix64(narrow ^ group) if length & 7 else narrow
            num += 1
            narrow = group = wide = letter_bits = np.uint64(0)
            length = 0
    return num


# ----------------------------------------------------------------------
# Words as decontamination compares them: one hash for all the ways a word is usually written.
#
# A word is a run of letters, digits and underscores. Its hash is that of its letters in lower case,
# decomposed (NFKD) and without marks: full-width letters, ligatures and accents, composed or not,
# make no difference. Soft hyphens and other invisible characters inside a word are skipped.
# Characters of scripts without spaces (Han, kana, Thai ...) are words by themselves.
#
# The hash of letters c: h = 0, then h = mix64(h ^ c) for each c, which are groups of 8 letters
# where all are ASCII (little endian, an underscore as 0x7F), else one letter each.

_CODE_BITS = 18
_LETTER, _PASSED, _ALONE = 1 << 54, 1 << 55, 1 << 56
_PASSED_CHARS = "\u00ad\u200b\u200c\u200d\u2060\ufeff"

_ALONE_RANGES = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x31F0, 0x31FF)),
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)),
)
"""Thai and Lao, Myanmar, Khmer, kana, Han."""

_CODE_MASK = np.uint64((1 << _CODE_BITS) - 1)
_LETTERS_MASK = np.uint64((1 << 3 * _CODE_BITS) - 1)

_NARROW, _GROUP, _WIDE, _SEEN, _LENGTH = range(5)
"""State of a hash: the hash of ASCII so far, letters of the last group, the hash of code points,
all letters ORed, their number."""

_STATE = 5
"""Numbers in a state. Two states are kept: of a word, and of the last two words joined."""


@functools.cache
def folded_characters() -> Uint64s:
    """Tabulate characters, (262144,) uint64, read-only; built on first use (70 ms) and kept.

    Bits 0-17, 18-35 and 36-53: up to three letters that a character stands for; 54: part of a word;
    55: skipped; 56: a word by itself.
    """
    entries = characters().astype(np.int64)
    table = np.where(entries & CHAR_WORD, entries & CHAR_LOWER | _LETTER, 0)
    for code in range(0x80, NUM_CODES):
        if unicodedata.decomposition(chr(code)) or 0xAC00 <= code <= 0xD7A3:  # Hangul has none
            table[code] = _folded_entry(code, entries)
        elif code >= 0x300 and unicodedata.category(chr(code)) in {"Mn", "Me"}:
            table[code] = _PASSED
    for first, last in _ALONE_RANGES:
        inside = table[first : last + 1]
        inside[(inside & _LETTER) != 0] |= _ALONE
    table[[ord(char) for char in _PASSED_CHARS]] = _PASSED
    return frozen(table.astype(np.uint64))


def _folded_entry(code: int, entries: Int64s) -> int:
    """Return the entry of a character that decomposes: its letters, at most three of them."""
    letters = [
        int(entries[ord(letter)]) & CHAR_LOWER
        for letter in unicodedata.normalize("NFKD", chr(code))
        if ord(letter) < NUM_CODES
        and entries[ord(letter)] & CHAR_WORD
        and not unicodedata.combining(letter)
    ]
    if not letters:
        is_mark = unicodedata.category(chr(code)) in {"Mn", "Me"}
        return _PASSED if is_mark else 0
    return (
        sum(code_point << _CODE_BITS * index for index, code_point in enumerate(letters[:3]))
        | _LETTER
    )


@kernel
def _append(states: Uint64s, state: int, letters: np.uint64) -> None:
    """Hash up to three more letters."""
    while letters:
        letter = letters & _CODE_MASK
        letters >>= np.uint64(_CODE_BITS)
        states[state + _SEEN] |= letter
        states[state + _WIDE] = mix64(states[state + _WIDE] ^ letter)
        index = states[state + _LENGTH] & np.uint64(7)
        states[state + _GROUP] |= (letter | np.uint64(0x20)) << (index << np.uint64(3))
        states[state + _LENGTH] += np.uint64(1)
        if index == 7:
            states[state + _NARROW] = mix64(states[state + _NARROW] ^ states[state + _GROUP])
            states[state + _GROUP] = np.uint64(0)


@kernel
def _hashed(states: Uint64s, state: int) -> np.uint64:
    """Return the hash of the letters so far."""
    if states[state + _SEEN] >= np.uint64(0x80):
        return np.uint64(states[state + _WIDE])
    if states[state + _LENGTH] & np.uint64(7):
        return mix64(states[state + _NARROW] ^ states[state + _GROUP])
    return np.uint64(states[state + _NARROW])


@kernel
def next_word(data: Bytes, pos: int, end: int, table: Uint64s, states: Uint64s) -> tuple[int, int]:
    """Hash the next word of `data[pos:end]`; return its first byte, -1 if there is none, and end.

    Args:
        data, pos, end: the text.
        table: `folded_characters()`.
        states: (10,) state of the word, reset here, and of the word that it is appended to.
    """
    for index in range(_STATE):
        states[index] = np.uint64(0)
    begin = stop = -1
    while pos < end:
        code = code_point(data, pos)
        width = char_width(data[pos])
        entry = table[code] if code < len(table) else np.uint64(0)
        if entry & np.uint64(_LETTER):
            if begin < 0:
                begin = pos
            elif entry & np.uint64(_ALONE):
                break
            for state in range(0, 2 * _STATE, _STATE):
                _append(states, state, entry & _LETTERS_MASK)
            stop = pos + width
            if entry & np.uint64(_ALONE):
                break
        elif begin >= 0 and not entry & np.uint64(_PASSED):
            break
        pos += width
    return begin, stop


@kernel
def fold_words(
    data: Bytes,
    begin: int,
    end: int,
    table: Uint64s,
    words: Uint64s,
    joined: Uint64s,
    starts: Int32s,
    ends: Int32s,
    first: int,
    last: int,
) -> int:
    """Fill `words[first:last]` with the words of a text; return the number after the last one.

    O(B), about 80 MB/s.

    Args:
        data, begin, end: the text.
        table: `folded_characters()`.
        words: (W,) hashes; a text has at most `end - begin` words.
        joined: (W,) hash of this word joined to the one before; of the first word its own.
        starts, ends: (W,) in bytes from `begin`.
        first, last: entries to fill; there may be fewer words.
    """
    states = np.zeros(2 * _STATE, np.uint64)
    num = first
    pos = begin
    while num < last:
        start, pos = next_word(data, pos, end, table, states)
        if start < 0:
            break
        words[num], joined[num] = _hashed(states, 0), _hashed(states, _STATE)
        starts[num], ends[num] = start - begin, pos - begin
        for state in range(_STATE):
            states[_STATE + state] = states[state]
        num += 1
    return num


@kernel
def fold_all(
    offsets: Int64s, data: Bytes, table: Uint64s
) -> tuple[Int64s, Uint64s, Uint64s, Int32s]:
    """Return where the words of texts begin, (N + 1,); words, joined, and their bytes, (W,) each.

    O(B), about 80 MB/s; allocates 24 bytes a byte.
    """
    num_docs = len(offsets) - 1
    size = offsets[num_docs] - offsets[0]
    words, joined = np.empty(size, np.uint64), np.empty(size, np.uint64)
    starts, ends = np.empty(size, np.int32), np.empty(size, np.int32)
    bounds = np.zeros(num_docs + 1, np.int64)
    for doc in range(num_docs):
        bounds[doc + 1] = fold_words(
            data, offsets[doc], offsets[doc + 1], table, words, joined, starts, ends, bounds[doc],
            size,
        )  # fmt: skip
    num = bounds[num_docs]
    return bounds, words[:num], joined[:num], ends[:num] - starts[:num]


@kernel
def hash_words(
    data: Bytes,
    begin: int,
    end: int,
    table: Uint64s,
    kinds: Bytes,
    edges: Int32s,
    words: Uint64s,
    starts: Int32s,
) -> int:
    """Fill `words` with all hashes, as `fold_words` but faster; return how many. O(B).

    Args:
        data, begin, end: the text.
        table, kinds: `folded_characters()`, BYTE_KINDS.
        edges: scratch, `end - begin + 2` entries.
        words: (W,), W at most `end - begin`.
        starts: (W,) in bytes from `begin`.
    """
    states = np.zeros(2 * _STATE, np.uint64)
    num = 0
    for run in range(word_edges(data, begin, end, kinds, edges)):
        pos, stop = begin + edges[2 * run], begin + edges[2 * run + 1]
        value, is_ascii = ascii_hash(data, pos, stop)
        if is_ascii:
            words[num], starts[num] = value, edges[2 * run]
            num += 1
            continue
        while True:
            first, pos = next_word(data, pos, stop, table, states)
            if first < 0:
                break
            words[num], starts[num] = _hashed(states, 0), first - begin
            num += 1
    return num

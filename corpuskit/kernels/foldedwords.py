r"""Words as decontamination compares them: one hash for all the ways a word is usually written.

A word is a run of letters, digits and underscores. Its hash is that of its letters in lower case,
taken apart (NFKD) and without marks: full-width letters, ligatures and accents, composed or not,
make no difference. Soft hyphens and other invisible characters inside a word are skipped.
Characters of scripts that write no spaces (Han, kana, Thai ...) are words by themselves.

The hash of letters c: h = 0, then h = mix64(h ^ c) for each c, which are groups of 8 letters where
all are ASCII (little endian, an underscore as 0x7F), else one letter each.
"""

from __future__ import annotations

import functools
import unicodedata
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.hashing import load64, load_tail, mix64
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.utf8 import char_width, code_point
from corpuskit.kernels.wordhash import characters, word_edges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Hashes = NDArray[np.uint64]
    Offsets = NDArray[np.int64]
    Places = NDArray[np.int32]

_NUM_CODES = 0x40000
_LOWER, _WORD = 0x1FFFFF, 1 << 21
"""Fields of an entry of `characters()`."""

_CODE_BITS = 18
_LETTER, _PASSED, _ALONE = 1 << 54, 1 << 55, 1 << 56
_PASSED_CHARS = "\u00ad\u200b\u200c\u200d\u2060\ufeff"

_ALONE_RANGES = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x31F0, 0x31FF)),
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)),
)
"""Thai and Lao, Myanmar, Khmer, kana, Han."""

_HIGH_BITS = np.uint64(0x8080808080808080)
_LOWER_BITS = np.uint64(0x2020202020202020)
_ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)
_CODE_MASK = np.uint64((1 << _CODE_BITS) - 1)
_LETTERS_MASK = np.uint64((1 << 3 * _CODE_BITS) - 1)

_NARROW, _GROUP, _WIDE, _SEEN, _LENGTH = range(5)
"""State of a hash: of ASCII so far, letters of the last group, of code points; all letters ORed;
how many."""

_STATE = 5
"""Numbers of a state; two follow each other: of a word, and of the last two as one."""


@functools.cache
def folded_characters() -> Hashes:
    """Tabulate characters, (262144,) uint64, read-only; built on first use (70 ms) and kept.

    Bits 0-17, 18-35 and 36-53: up to three letters that a character stands for; 54: part of a word;
    55: skipped; 56: a word by itself.
    """
    known = characters().astype(np.int64)
    table = np.where(known & _WORD, known & _LOWER | _LETTER, 0)
    for code in range(0x80, _NUM_CODES):
        if unicodedata.decomposition(chr(code)) or 0xAC00 <= code <= 0xD7A3:  # Hangul has none
            table[code] = _folded(code, known)
        elif code >= 0x300 and unicodedata.category(chr(code)) in {"Mn", "Me"}:
            table[code] = _PASSED
    for first, last in _ALONE_RANGES:
        inside = table[first : last + 1]
        inside[(inside & _LETTER) != 0] |= _ALONE
    table[[ord(char) for char in _PASSED_CHARS]] = _PASSED
    entries = table.astype(np.uint64)
    entries.flags.writeable = False
    return entries


def _folded(code: int, known: NDArray[np.int64]) -> int:
    """Return the entry of a character that decomposes: its letters, at most three of them."""
    letters = [
        int(known[ord(part)]) & _LOWER
        for part in unicodedata.normalize("NFKD", chr(code))
        if ord(part) < _NUM_CODES and known[ord(part)] & _WORD and not unicodedata.combining(part)
    ]
    if not letters:
        is_mark = unicodedata.category(chr(code)) in {"Mn", "Me"}
        return _PASSED if is_mark else 0
    return sum(letter << _CODE_BITS * at for at, letter in enumerate(letters[:3])) | _LETTER


@kernel
def _append(states: Hashes, at: int, letters: np.uint64) -> None:
    """Hash up to three more letters."""
    while letters:
        letter = letters & _CODE_MASK
        letters >>= np.uint64(_CODE_BITS)
        states[at + _SEEN] |= letter
        states[at + _WIDE] = mix64(states[at + _WIDE] ^ letter)
        place = states[at + _LENGTH] & np.uint64(7)
        states[at + _GROUP] |= (letter | np.uint64(0x20)) << (place << np.uint64(3))
        states[at + _LENGTH] += np.uint64(1)
        if place == 7:
            states[at + _NARROW] = mix64(states[at + _NARROW] ^ states[at + _GROUP])
            states[at + _GROUP] = np.uint64(0)


@kernel
def _hashed(states: Hashes, at: int) -> np.uint64:
    """Return the hash of the letters so far."""
    if states[at + _SEEN] >= np.uint64(0x80):
        return np.uint64(states[at + _WIDE])
    if states[at + _LENGTH] & np.uint64(7):
        return mix64(states[at + _NARROW] ^ states[at + _GROUP])
    return np.uint64(states[at + _NARROW])


@kernel
def next_word(data: Bytes, at: int, end: int, table: Hashes, states: Hashes) -> tuple[int, int]:
    """Hash the next word of `data[at:end]`; return its first byte, -1 if there is none, and end.

    Args:
        data, at, end: the text.
        table: `folded_characters()`.
        states: (10,) of the word, which is begun here, and of one that it is appended to.
    """
    for place in range(_STATE):
        states[place] = np.uint64(0)
    begin = stop = -1
    while at < end:
        code = code_point(data, at)
        width = char_width(data[at])
        entry = table[code] if code < len(table) else np.uint64(0)
        if entry & np.uint64(_LETTER):
            if begin < 0:
                begin = at
            elif entry & np.uint64(_ALONE):
                break
            for state in range(0, 2 * _STATE, _STATE):
                _append(states, state, entry & _LETTERS_MASK)
            stop = at + width
            if entry & np.uint64(_ALONE):
                break
        elif begin >= 0 and not entry & np.uint64(_PASSED):
            break
        at += width
    return begin, stop


@kernel
def fold_words(
    data: Bytes,
    begin: int,
    end: int,
    table: Hashes,
    words: Hashes,
    joined: Hashes,
    starts: Places,
    ends: Places,
    first: int,
    last: int,
) -> int:
    """Fill in the words of a text from `words[first]` on, until `last`; return where they end.

    O(B), about 80 MB/s.

    Args:
        data, begin, end: the text.
        table: `folded_characters()`.
        words: (W,) hashes; a text has at most `end - begin` words.
        joined: (W,) hash of the word before and this one written as one; of the first it is that
            of the word.
        starts, ends: (W,) in bytes from `begin`.
        first, last: words to be filled in.
    """
    states = np.zeros(2 * _STATE, np.uint64)
    num = first
    at = begin
    while num < last:
        place, at = next_word(data, at, end, table, states)
        if place < 0:
            break
        words[num], joined[num] = _hashed(states, 0), _hashed(states, _STATE)
        starts[num], ends[num] = place - begin, at - begin
        for state in range(_STATE):
            states[_STATE + state] = states[state]
        num += 1
    return num


@kernel
def fold_all(
    offsets: Offsets, data: Bytes, table: Hashes
) -> tuple[Offsets, Hashes, Hashes, Places]:
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
    table: Hashes,
    kinds: Bytes,
    edges: Places,
    words: Hashes,
    starts: Places,
) -> int:
    """Fill in the hashes of all words, as `fold_words` but faster, and return how many. O(B).

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
        at, stop = begin + edges[2 * run], begin + edges[2 * run + 1]
        value = seen = np.uint64(0)
        while stop - at > 8:
            group = load64(data, at)
            seen |= group
            value = mix64(value ^ (group | _LOWER_BITS))
            at += 8
        kept = _ALL_BITS >> np.uint64(64 - 8 * (stop - at))
        group = load64(data, at) & kept if at + 8 <= len(data) else load_tail(data, at, stop)
        seen |= group
        if seen & _HIGH_BITS == 0:
            # 0x20 makes capitals small, leaves digits as they are, and turns _ into DEL.
            words[num] = mix64(value ^ (group | (_LOWER_BITS & kept)))
            starts[num] = edges[2 * run]
            num += 1
            continue
        at = begin + edges[2 * run]
        while True:
            first, at = next_word(data, at, stop, table, states)
            if first < 0:
                break
            words[num], starts[num] = _hashed(states, 0), first - begin
            num += 1
    return num

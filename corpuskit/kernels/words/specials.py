"""Classes of characters and special cases of spaCy's tokenizers, as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from corpuskit.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Ints = NDArray[np.int32]

LETTER, LOWER, UPPER, DIGIT, QUOTE, DOTTED, PREFIX, SUFFIX = (1 << bit for bit in range(8))
BREAK, HOST, SCHEME, CURRENCY, UNIT, ASK = (1 << bit for bit in range(8, 14))
"""Bits of a character: the letters of spaCy's patterns, those that count as small and as capital
(scripts without case count as both); 0-9; a quotation mark; a final full stop behind it is a word
of its own; a word at the beginning, at the end, anywhere; part of a host name, of a URL's scheme; a
currency sign; in a unit that is not ASCII; seen in a pattern that is not written down here."""

NUM_CODES = 0x20000
"""Characters beyond make a chunk one to ask spaCy about."""


class Rules(NamedTuple):
    """What spaCy's language data says, as arrays; all read-only.

    Attributes:
        classes: (NUM_CODES,) uint16, bits as above.
        table: (2 ** n,) int32: hash -> number of a special case + 1, 0 where there is none.
        starts, codes: special case s is the characters `codes[starts[s]:starts[s + 1]]`.
        piece_starts, pieces: its tokens have `pieces[piece_starts[s]:piece_starts[s + 1]]`
            characters.
        matched: (S,) uint8: whether it is looked for among tokens, too.
        longest: characters of the longest special case.
        digit_hyphens: 1 if a hyphen between a digit and a letter separates.
    """

    classes: NDArray[np.uint16]
    table: Ints
    starts: Ints
    codes: Ints
    piece_starts: Ints
    pieces: Ints
    matched: Bytes
    longest: int
    digit_hyphens: int


class Room(NamedTuple):
    """Scratch for chunks of at most n characters.

    Attributes:
        codes, bits, places: (n + 1,) the characters, their classes, where they are in the texts.
        ends, tails: (n + 1,) where tokens end; the beginnings of suffixes.
    """

    codes: Ints
    bits: Ints
    places: NDArray[np.int64]
    ends: Ints
    tails: Ints


def room(size: int) -> Room:
    """Return scratch for chunks of at most `size` bytes."""
    narrow = [np.empty(size + 1, np.int32) for _ in range(4)]
    return Room(narrow[0], narrow[1], np.empty(size + 1, np.int64), narrow[2], narrow[3])


def rules(
    classes: NDArray[np.uint16],
    specials: dict[str, list[str]],
    matched: frozenset[str],
    digit_hyphens: bool,
) -> Rules:
    """Build Rules; `specials` is text -> its tokens."""
    texts = list(specials)
    size = 1 << max(4, (4 * len(texts)).bit_length())
    table = np.zeros(size, np.int32)
    codes = [np.array(list(map(ord, text)), np.int32) for text in texts]
    # Once per installation: no reason to compile it for Python, too.
    hashed = getattr(hash_chars, "py_func", hash_chars)
    for number, text in enumerate(codes, start=1):
        place = hashed(text, 0, len(text)) & (size - 1)
        while table[place]:
            place = (place + 1) & (size - 1)
        table[place] = number
    pieces = [list(map(len, specials[text])) for text in texts]
    made = Rules(
        classes,
        table,
        np.cumsum([0, *map(len, texts)], dtype=np.int32),
        np.concatenate([np.zeros(0, np.int32), *codes]),
        np.cumsum([0, *map(len, pieces)], dtype=np.int32),
        np.array([length for some in pieces for length in some], np.int32),
        np.array([text in matched for text in texts], np.uint8),
        max(map(len, texts), default=0),
        int(digit_hyphens),
    )
    for array in made[:-2]:
        array.flags.writeable = False
    return made


@kernel
def hash_chars(codes: Ints, begin: int | np.int64, end: int | np.int64) -> int:
    """Return a hash of some characters."""
    value = np.int64(end - begin)
    for at in range(begin, end):
        value = (value * np.int64(31) + codes[at]) & np.int64(0xFFFFFFFFFFFF)
    return int(value ^ (value >> np.int64(15)))


@kernel
def find_special(
    codes: Ints,
    begin: int | np.int64,
    end: int | np.int64,
    table: Ints,
    starts: Ints,
    texts: Ints,
    longest: int,
) -> int:
    """Return the number of the special case that the characters spell, -1 if none; see Rules."""
    length = end - begin
    if length > longest or length <= 0:
        return -1
    mask = len(table) - 1
    place = hash_chars(codes, begin, end) & mask
    while table[place] != 0:
        number = np.int64(table[place]) - 1
        at = starts[number]
        if starts[number + 1] - at == length:
            same = 0
            while same < length and codes[begin + same] == texts[at + same]:
                same += 1
            if same == length:
                return int(number)
        place = (place + 1) & mask
    return -1


NO_RULES = rules(np.zeros(NUM_CODES, np.uint16), {}, frozenset(), digit_hyphens=False)

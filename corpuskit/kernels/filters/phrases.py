"""The phrases that C4's rules look for, in any case."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]

LOREM_IPSUM, JAVASCRIPT, CURLY_BRACKET, POLICY = 1, 2, 4, 8
"""Bits of what is in a line."""

_LISTED = (
    ("lorem ipsum", "m", LOREM_IPSUM),
    ("javascript", "j", JAVASCRIPT),
    ("terms of use", "m", POLICY),
    ("privacy policy", "v", POLICY),
    ("cookie policy", "k", POLICY),
    ("uses cookies", "k", POLICY),
    ("use of cookies", "k", POLICY),
    ("use cookies", "k", POLICY),
)
"""Phrase, a rare letter of it (to look for first), what it is."""


def _phrase_tables() -> tuple[Bytes, Offsets, Bytes]:
    """Return the phrases as buffers, and byte -> letter of a phrase to look around (0: none)."""
    anchors = np.zeros(256, np.uint8)
    for _, letter, _ in _LISTED:
        anchors[[ord(letter), ord(letter.upper())]] = ord(letter)
    # The Kelvin sign, U+212A, is the one other character that str.lower makes one of these letters.
    anchors[0xE2] = ord("k")
    anchors[ord("{")] = ord("{")
    data = np.frombuffer("".join(phrase for phrase, _, _ in _LISTED).encode(), np.uint8)
    bounds = np.zeros((len(_LISTED), 4), np.int64)
    at = 0
    for row, (phrase, letter, rule) in enumerate(_LISTED):
        bounds[row] = (at, at + len(phrase), phrase.index(letter), rule)
        at += len(phrase)
    for table in (anchors, bounds):
        table.flags.writeable = False
    return data, bounds, anchors


PHRASES, PHRASE_BOUNDS, ANCHORS = _phrase_tables()


@kernel
def _has_phrase(text: Bytes, start: int, at: int, end: int, phrase: Bytes, bounds: Offsets) -> bool:
    """Return whether a phrase, in any case, stands in the line with its rare letter at `at`."""
    first = at - bounds[2]
    if first < start:
        return False
    for place in range(bounds[0], bounds[1]):
        if first >= end:
            return False
        byte = text[first]
        if byte == 0xE2 and first + 2 < end and text[first + 1] == 0x84 and text[first + 2] == 0xAA:
            byte, first = np.uint8(107), first + 2
        elif 65 <= byte <= 90:
            byte = np.uint8(byte | 32)
        if byte != phrase[place]:
            return False
        first += 1
    return True


@kernel
def find_phrases(
    text: Bytes, start: int, end: int, phrase: Bytes, bounds: Offsets, anchors: Bytes
) -> int:
    """Return which phrases, or a curly bracket, are in a line: bits as above. O(B).

    Args:
        text, start, end: the line.
        phrase, bounds, anchors: PHRASES, PHRASE_BOUNDS, ANCHORS; constants would compile longer.
    """
    found = 0
    for at in range(start, end):
        anchor = anchors[text[at]]
        if anchor == 0:
            continue
        if anchor == 123:
            found |= CURLY_BRACKET
            continue
        for row in range(len(bounds)):
            letter = phrase[bounds[row, 0] + bounds[row, 2]]
            if letter == anchor and _has_phrase(text, start, at, end, phrase, bounds[row]):
                found |= bounds[row, 3]
    return found

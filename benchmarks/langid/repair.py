"""Undo a known damage of `udhr_paragraphs.parquet`: UTF-8 that was read as Latin-1.

Every byte became one character, and then runs of white space became one space. In Latin-1 the bytes
0x85 and 0xA0 are white space, and both occur inside UTF-8 sequences (French a-grave is C3 A0), so
such a byte is now a space, and a true space behind it is gone. What is missing is put back by
likelihood, from the undamaged words of the same language and from Tatoeba; a word that stays
unreadable is left out.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LOST = (0x85, 0xA0)
UNSPACED = frozenset({"zh", "yue", "wuu", "ja", "th", "lo", "km", "my", "bo", "dz"})


@dataclass(frozen=True)
class Gap:
    """A character whose one lost byte is 0x85 or 0xA0; `last` says whether it was its last byte."""

    options: tuple[str, ...]
    last: bool


@dataclass
class Habits:
    """What the undamaged words of one language look like."""

    chars: Counter[str] = field(default_factory=Counter)
    finals: Counter[str] = field(default_factory=Counter)
    starts: Counter[str] = field(default_factory=Counter)
    inners: Counter[str] = field(default_factory=Counter)

    def learn(self, words: Iterable[str]) -> None:
        """Count letters, word endings, and pairs at the start of words and inside them."""
        for word in words:
            self.chars.update(word)
            self.finals[word[-1]] += 1
            self.starts[word[:2]] += 1
            self.inners.update(word[place : place + 2] for place in range(1, len(word)))


def parse(damaged: str) -> list[str | Gap | None]:
    """Split a damaged paragraph into characters, gaps, and None for what cannot be read."""
    raw = damaged.encode("latin-1")
    items: list[str | Gap | None] = []
    place = 0
    while place < len(raw):
        size = _length(raw[place])
        piece = raw[place : place + size]
        if size > 1 and len(piece) == size - 1:
            piece += b" "  # a lost byte at the very end was stripped
        lost = piece.find(b" ", 1)
        if lost > 0:
            options = tuple(filter(None, (_decode(piece, lost, byte) for byte in LOST)))
            item: str | Gap | None = Gap(options, lost == size - 1) if options else None
        else:
            item = _decode(piece, -1, 0) or None
        items.append(item)
        place += size if item is not None else 1
    return items


def _length(lead: int) -> int:
    return 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _decode(piece: bytes, lost: int, byte: int) -> str:
    if lost >= 0:
        piece = piece[:lost] + bytes([byte]) + piece[lost + 1 :]
    try:
        char = piece.decode("utf-8")
    except UnicodeDecodeError:
        return ""
    if char in "\x85\xa0":
        return " "
    return "" if len(char) != 1 or unicodedata.category(char) in ("Cn", "Co", "Cs") else char


def clean_words(items: list[str | Gap | None]) -> list[str]:
    """Return the words that no damage touches."""
    text = "".join("\0" if not isinstance(item, str) else item for item in items)
    return [word for word in text.split() if "\0" not in word]


def restore(items: list[str | Gap | None], label: str, own: Habits, every: Habits) -> str:
    """Fill the gaps of a parsed paragraph and leave out the words that hold unreadable bytes."""
    out: list[str] = []
    for place, item in enumerate(items):
        if not isinstance(item, Gap):
            out.append("\0" if item is None else item)
            continue
        at_start = not out or out[-1].isspace()
        char = _choose(item.options, at_start, own, every)
        out.append(char)
        if item.last and label not in UNSPACED and _is_word_end(char, items[place + 1 :], own):
            out.append(" ")
    return " ".join(word for word in "".join(out).split() if "\0" not in word)


def _choose(options: tuple[str, ...], at_start: bool, own: Habits, every: Habits) -> str:
    for habits in (own, every):
        counts = [habits.chars[char] for char in options]
        if max(counts) > 0 and counts.count(max(counts)) == 1:
            return options[counts.index(max(counts))]
    # Unseen everywhere: in the Brahmic scripts 0x85 ends the vowel letter A, which opens words.
    return options[0] if at_start else options[-1]


def _is_word_end(char: str, rest: list[str | Gap | None], own: Habits) -> bool:
    """Say whether a true space stood behind a restored character; log odds over 0."""
    following = ""
    for item in rest[:2]:
        if not isinstance(item, str):
            break
        following += item
    if not following or not following[0].isalnum() or char.isspace():
        return False
    words, chars = sum(own.starts.values()) + 1, sum(own.chars.values()) + 1
    seen = own.chars[char]
    final = own.finals[char] / seen if seen >= 5 else words / chars
    final = min(max(final, 0.01), 0.99)
    pair = following.strip()
    start = math.log(final * (own.starts[pair] + 0.1) / words)
    inner = math.log((1 - final) * (own.inners[pair] + 0.1) / chars)
    return start > inner

"""Texts simplified for comparison, as by datatrove."""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata

import numpy as np

from corpuskit.kernels.arrays import Bytes, Int64s, frozen, join_bytes
from corpuskit.kernels.folding import (
    BECOMES,
    DIGIT,
    NEEDS_PYTHON,
    SAME,
    SEPARATES,
    SPACE,
    Simple,
    lower_texts,
    simplify,
)
from corpuskit.kernels.utf8 import NUM_CODES, PUNCTUATION

_SEPARATORS = ".,\u060c\u066b\u2396\u2397\u2398"


def simplify_texts(offsets: Int64s, data: Bytes) -> tuple[Int64s, Bytes]:
    """Return simplified texts, read-only as Arrow's buffers are.

    Lower case, numbers as 0, punctuation as spaces, runs of whitespace as one space, canonical
    decomposition, without marks; O(B), about 300 MB/s. Python simplifies texts with a mark that
    decomposition may move and that is not dropped (a few musical and Vedic signs).

    Source: datatrove 0.10.1 utils/text.py simplify_text with its default TextNormConfig.
    """
    lower = lower_texts(offsets, data)
    bounds, simple, needs_python = simplify(*lower, characters())
    simple = simple[: bounds[-1]]
    if needs_python.any():
        pieces = [simple[begin:end].tobytes() for begin, end in itertools.pairwise(bounds)]
        for row in np.flatnonzero(needs_python).tolist():
            text = lower[1][lower[0][row] : lower[0][row + 1]].tobytes().decode()
            pieces[row] = _simplify(text).encode()
        return join_bytes(pieces)
    return frozen(bounds), frozen(simple)


def _simplify(lower: str) -> str:
    """Simplify one text in lower case."""
    text = _numbers().sub("0", lower).translate(_to_spaces())
    text = re.sub(r"\s+", " ", text.strip())
    letters = (c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
    return "".join(letters).strip()


@functools.cache
def _numbers() -> re.Pattern[str]:
    """Return the pattern of numbers, by the digits of `regex`, which differ from those of `re`."""
    import regex

    pattern: re.Pattern[str] = regex.compile(rf"\p{{Nd}}+([{_SEPARATORS}]\p{{Nd}}+)?")
    return pattern


@functools.cache
def _to_spaces() -> dict[int, str]:
    return dict.fromkeys(map(ord, PUNCTUATION), " ")


@functools.cache
def characters() -> Simple:
    """Tabulate planes 0 to 3; built on first use (0.3 s) and kept.

    Of the others only plane 14 has characters that change.
    """
    import regex

    chars = [chr(code) for code in range(NUM_CODES)]
    joined = "".join(" " if 0xD800 <= code < 0xE000 else char for code, char in enumerate(chars))
    kinds = np.full(NUM_CODES, SAME, np.uint8)
    replacement_numbers = np.zeros(NUM_CODES, np.uint16)
    replacements = {"": 0}
    for code, char in enumerate(chars):
        decomposed = unicodedata.normalize("NFD", char)
        unmarked = "".join(part for part in decomposed if unicodedata.category(part) != "Mn")
        if any(map(unicodedata.combining, unmarked)):
            kinds[code] = NEEDS_PYTHON
        elif unmarked != char:
            kinds[code] = BECOMES
            replacement_numbers[code] = replacements.setdefault(unmarked, len(replacements))
    kinds[[match.start() for match in re.finditer(r"\s", joined)]] = SPACE
    kinds[[ord(char) for char in PUNCTUATION]] = SPACE
    # Last, as numbers take precedence: the full-width digit one is in PUNCTUATION, too.
    kinds[[match.start() for match in regex.finditer(r"\p{Nd}", joined)]] = DIGIT
    kinds[[ord(char) for char in _SEPARATORS]] |= SEPARATES
    return Simple(kinds, replacement_numbers, *join_bytes([text.encode() for text in replacements]))

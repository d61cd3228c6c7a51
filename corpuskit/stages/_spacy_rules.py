"""What of spaCy's patterns the kernels know: which ones, and their classes of characters."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.kernels.words import english
from corpuskit.kernels.words.english import NUM_CODES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

PROVEN = {
    "7a309ee14bca20bdf744aa9857c7ad96": True,  # en lg tn
    "62bc0c8f8845f105ea71f6f2109faf63": False,  # xx and 20 languages with its patterns
}
"""Digests of the patterns that `kernels/words/english.py` was proven for -> its `digit_hyphens`."""


def digest_patterns(tokenizer: Any) -> str:
    """Return a hash of all that decides how a chunk is split but the special cases."""
    regexes = (tokenizer.prefix_search, tokenizer.suffix_search)
    regexes += (tokenizer.infix_finditer, tokenizer.url_match, tokenizer.token_match)
    shape: list[Any] = [importlib.metadata.version("spacy").split(".")[:2]]
    for method in regexes:
        regex = getattr(method, "__self__", None)
        shape.append([regex.pattern, regex.flags] if isinstance(regex, re.Pattern) else str(method))
    shape.append(bool(tokenizer.faster_heuristics))
    return hashlib.blake2b(json.dumps(shape).encode(), digest_size=16).hexdigest()


def char_classes(defaults: Any) -> NDArray[np.uint16]:
    """Return the classes of characters that the kernel's patterns speak of."""
    from spacy.lang import char_classes as spacys

    classes = np.zeros(NUM_CODES, np.uint16)
    every = "".join(chr(code) for code in range(NUM_CODES) if not 0xD800 <= code < 0xE000)

    def mark(chars: Iterable[str], *bits: int) -> None:
        codes = [ord(char) for char in chars]
        for bit in bits:
            classes[codes] |= bit

    def inside(content: str) -> list[str]:
        return re.findall(f"[{content}]", every)

    mark(inside(spacys.ALPHA), english.LETTER)
    mark(inside(spacys.ALPHA_LOWER), english.LOWER)
    mark(inside(spacys.ALPHA_UPPER), english.UPPER)
    mark("0123456789", english.DIGIT)
    mark(inside(spacys.CONCAT_QUOTES), english.QUOTE)
    before = rf"0-9{spacys.ALPHA_LOWER}%\u00b2\-\+{spacys.PUNCT}(?:{spacys.CONCAT_QUOTES})"
    mark(inside(before), english.DOTTED)
    mark(inside(spacys.CONCAT_ICONS), english.PREFIX, english.SUFFIX, english.BREAK)
    mark("\u2026", english.BREAK)
    mark(_single(defaults.prefixes), english.PREFIX)
    mark(_single(defaults.suffixes), english.SUFFIX)
    mark(_single(spacys.LIST_CURRENCY), english.CURRENCY)
    mark({char for unit in spacys.LIST_UNITS for char in unit if char > "\x7f"}, english.UNIT)
    mark(inside(r"A-Za-z0-9\u00a1-\uffff"), english.HOST)
    mark(inside(r"\w+\-."), english.SCHEME)
    mark((char for char in inside(r"\d") if char > "\x7f"), english.ASK)
    beyond = np.arange(NUM_CODES) > 0xFFFF
    classes[beyond & (classes & english.LOWER != 0)] |= english.ASK
    return classes


def _single(pieces: Iterable[str]) -> list[str]:
    """Return the characters among patterns."""
    plain = (piece[1:] if len(piece) == 2 and piece[0] == "\\" else piece for piece in pieces)
    return [piece for piece in plain if len(piece) == 1]

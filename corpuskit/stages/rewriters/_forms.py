"""Normal forms of texts with any number of combining marks on one letter."""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Literal

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

RUN_CHARS = 100
"""Shorter runs of marks are left to the library, whose time grows with their square."""

STRIDE = 10

MARKS = (0x300, 0x1EA00)
"""In this range of code points lie all that are, or decompose into, nothing but marks."""


def normalize(form: Form, text: str) -> str:
    """Return `unicodedata.normalize(form, text)`, in time that grows with the length alone.

    Source: Unicode Standard, D108 and D109: the canonical order is a stable sort of each run of
    marks by combining class, so sorting runs before changes no normal form.
    """
    return unicodedata.normalize(form, ordered(form, text))


def ordered(form: Form, text: str) -> str:
    """Return a text with the same normal form whose long runs of marks are in canonical order."""
    if len(text) < RUN_CHARS or text.isascii():
        return text
    runs, samples = _runs(form)
    if not samples.search(text[::STRIDE]):
        return text
    return runs.sub(functools.partial(_sorted, form), text)


def _sorted(form: Form, run: re.Match[str]) -> str:
    marks = "".join(unicodedata.normalize(_decomposed(form), mark) for mark in run[0])
    return "".join(sorted(marks, key=unicodedata.combining))


def _decomposed(form: Form) -> Literal["NFD", "NFKD"]:
    return "NFKD" if form in {"NFKC", "NFKD"} else "NFD"


@functools.lru_cache(maxsize=4)
def _runs(form: Form) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return what long runs of marks match, and what every STRIDE-th character of one matches."""
    chars = "".join(char for char in map(chr, range(*MARKS)) if is_mark(form, char))
    marks = f"[{re.escape(chars)}]"
    # A run is tried where it begins only, so short ones cost no more than their length.
    runs = re.compile(f"{marks}(?<!{marks}{marks}){marks}{{{RUN_CHARS - 1},}}")
    return runs, re.compile(f"{marks}{{{RUN_CHARS // STRIDE}}}")


def is_mark(form: Form, char: str) -> bool:
    """Return whether a character is, or decomposes into, nothing but marks."""
    return all(map(unicodedata.combining, unicodedata.normalize(_decomposed(form), char)))

# ruff: noqa: RUF001
"""Write a text in another script that its language is also written in, by the standard tables.

Training text is nearly all in one script, and a model that has never seen the other is lost in it.
Tatar in Latin letters: the table of Tatarstan's law 1-ZRT of 2013, with its rules for the letters
that depend on the vowels around them. Serbian in Latin letters: Vuk Karadzic's alphabet, letter by
letter. Words in Latin letters stay, so this works one way only: from Uzbek in Latin letters the
names and English words would have to be told first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_SERBIAN = dict(
    zip(
        "абвгдђежзијклљмнњопрстћуфхцчџш",
        "a b v g d đ e ž z i j k l lj m n nj o p r s t ć u f h c č dž š".split(),
        strict=True,
    )
)
_TATAR = dict(
    zip(
        "аәбвгдежҗзийклмнңоөпрстуүфхһцчшщъыьэюяё",
        "a,ä,b,w,g,d,e,j,c,z,i,y,k,l,m,n,ñ,o,ö,p,r,s,t,u,ü,f,x,h,ts,ç,ş,şç,,ı,,e,yu,ya,yo".split(
            ","
        ),
        strict=True,
    )
)
_FRONT, _BACK = "әөүеэи", "аоуыюяё"
_CYRILLIC_WORD = re.compile("[а-яёђјљњћџәөүҗңһ]+", re.IGNORECASE)


def _cased(like: str, text: str, dotted: bool = False) -> str:
    """Return text in the case of a word; `dotted`: the capital of i is İ."""
    if like.islower() or not text:
        return text
    every = len(like) > 1 and like.isupper()
    first, rest = (text, "") if every else (text[0], text[1:])
    return (first.replace("i", "İ") if dotted else first).upper() + rest


def serbian_latin(text: str) -> str:
    return _CYRILLIC_WORD.sub(
        lambda word: _cased(word[0], "".join(_SERBIAN.get(c, c) for c in word[0].lower())), text
    )


def tatar_latin(text: str) -> str:
    return _CYRILLIC_WORD.sub(lambda word: _cased(word[0], _tatar(word[0].lower()), True), text)


def _tatar(word: str) -> str:
    """Return a word in small letters; what a letter is depends on the vowels beside it."""
    soft = any(letter in "әөү" for letter in word) or word.endswith("ь")
    out = []
    for place, letter in enumerate(word):
        before, after = word[place - 1 : place], word[place + 1 : place + 2]
        open_ = not before or before in _FRONT + _BACK + "ъь"  # where a vowel begins a syllable
        if letter in "гк" and (after == "ъ" or _is_back(word, place, soft)):
            out.append("ğ" if letter == "г" else "q")
        elif letter in "уү" and before and before in "аәяое":
            out.append("w")
        elif letter == "е" and open_:
            out.append("yı" if not soft and any(c in "аоуы" for c in word) else "ye")
        elif letter in "яю" and soft:
            out.append({"я": "yä", "ю": "yü"}[letter])
        else:
            out.append(_TATAR.get(letter, letter))
    return "".join(out)


def _is_back(word: str, place: int, soft: bool) -> bool:
    """Return whether the vowel of a consonant's syllable is a back one: the next letter, else the
    last vowel before, else the next one."""
    vowels = _FRONT + _BACK
    following = [letter for letter in word[place + 1 :] if letter in vowels]
    preceding = [letter for letter in word[:place] if letter in vowels]
    if word[place + 1 : place + 2] and word[place + 1] in vowels:
        vowel = word[place + 1]
    else:
        vowel = (preceding[-1:] or following[:1] or ["е"])[0]
    return vowel in _BACK and not (vowel in "юя" and soft)


# Language -> how to write it in its other script.
OTHER: dict[str, Callable[[str], str]] = {
    "sr": serbian_latin,
    "tt": tatar_latin,
}

"""Generate what surrounds language in real documents: code, markup, numbers, paths.

The same noise is laid over every language, so that the model learns that it says nothing.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

KEYWORDS = tuple(
    """int void const char return if else elif for while true false null nil none def class static include
    import from struct union typedef enum public private async await let var val fn func function lambda
    try catch except throw raise yield with as in is not and or new delete sizeof unsigned long double
    float bool string list dict map set self this super print printf println echo main argv argc std stdout
    stdin stderr end begin do done then fi esac case switch break continue default goto extern template
    typename namespace using select insert update where join group order limit table index key value href
    src div span body head title html css js json xml yaml http https www com org net usr etc lib bin var
    tmp home sudo apt git make cmake gcc npm pip install config log debug info warn error test tests args
    kwargs ptr buf len idx tmp ret err ctx req res api url uri id uuid utf ascii hex md5 sha256 x86 amd64
    linux windows unix posix ruby python perl java rust docker""".split()
)
SYLLABLES = tuple("ba co de fi gu he in jo ka lo ma ne or pi qu ra st ta un ve wi xy zo re al en".split())
OPERATORS = ("=", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "&&", "||", "->", "=>", "::", "|", ";", "{", "}",
             "();", "[]", "#", "//", "/*", "*/", "```", "---", "***", "<br>", "</div>", "<p>", "\\n", "\\fB", ".SH", ".TP")  # fmt: skip


def decorate(text: str, rng: random.Random, share: float) -> str:
    """Return `text` with noise tokens between its words: about `share` of noise tokens per word."""
    words = text.split()
    out: list[str] = []
    for word in words:
        while rng.random() < share / (1 + share):
            out.extend(_token(rng) for _ in range(rng.randint(1, 4)))
        out.append(_wrap(word, rng) if rng.random() < 0.1 * share else word)
    if rng.random() < share:
        out.extend(_token(rng) for _ in range(rng.randint(1, 12)))
    return " ".join(out)


def recase(text: str, rng: random.Random) -> str:
    """Change the case of a whole line, or not."""
    draw = rng.random()
    if draw < 0.05:
        return text.upper()
    if draw < 0.12:
        return text.lower()
    return text.title() if draw < 0.15 else text


def _wrap(word: str, rng: random.Random) -> str:
    left, right = rng.choice((("`", "`"), ("**", "**"), ("<b>", "</b>"), ("[", "](#)"), ("(", ")"), ('"', '"'), ("- ", "")))
    return left + word + right


def _name(rng: random.Random) -> str:
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 4)))


def _token(rng: random.Random) -> str:
    kind = rng.randrange(12)
    if kind < 3:
        return rng.choice(KEYWORDS)
    if kind < 5:
        return rng.choice(OPERATORS)
    if kind == 5:
        return str(rng.randrange(10 ** rng.randint(1, 5)))
    if kind == 6:
        return rng.choice(KEYWORDS) + "_" + rng.choice((rng.choice(KEYWORDS), _name(rng)))
    if kind == 7:
        return rng.choice(KEYWORDS).title() + rng.choice(KEYWORDS).title() + rng.choice(("", "()", ";", "(", ")"))
    if kind == 8:
        return "/".join(["", rng.choice(KEYWORDS), _name(rng), rng.choice(KEYWORDS) + "." + rng.choice(("c", "h", "py", "txt", "md"))])
    if kind == 9:
        return rng.choice(("--", "-")) + rng.choice((rng.choice(KEYWORDS), rng.choice(string.ascii_letters)))
    if kind == 10:
        return "".join(rng.choice("0123456789abcdef") for _ in range(rng.choice((2, 4, 8, 16))))
    return _name(rng) + rng.choice(("", ".", "(", "()", ":", ",", "[0]", "=1"))

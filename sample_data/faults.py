"""Write documents that break a known rule, and alter good ones in known ways."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from prose import PHRASES, English, article

if TYPE_CHECKING:
    from prose import Dice

WORDS = PHRASES["en"]
LONG_WORDS = 100_050
TOO_LONG_BYTES = 400_000
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>system",
    "<s>",
    "</s>",
    "[INST]",
    "<|pad|>",
    "<unk>",
    "[CLS]",
)


def gopher_faults(dice: Dice) -> dict[str, str]:
    """Return one document per rule of Gopher's quality filter that breaks that rule first."""
    english = English(dice)
    menu = [
        f"#{dice.pick(WORDS['adjectives'])} and the {dice.pick(WORDS['names'])}" for _ in range(30)
    ]
    dotted = [
        f"{dice.pick(WORDS['names'])} and the {dice.pick(WORDS['adjectives'])} ..."
        for _ in range(25)
    ]
    bullets = [f"- {english.sentence()}" for _ in range(dice.between(8, 12))]
    ends = [english.sentence()[:-1] + "..." for _ in range(10)]
    ends = [line for line in ends if len(line.split()) > 10] or [english.paragraph(3, 3) + ".."] * 5
    figures = [f"The {dice.pick(WORDS['adjectives'])} one {dice.between(1, 9)},{dice.between(100, 999)} "
               f"{dice.between(10, 99)}.{dice.between(0, 9)} and {dice.between(1900, 2024)} 100 %"
               for _ in range(14)]  # fmt: skip
    long_words = [f"{dice.pick(WORDS['long_words'])} of the {dice.pick(WORDS['long_words'])}es, "
                  f"{dice.pick(WORDS['long_words'])}, and {dice.pick(WORDS['long_words'])}."
                  for _ in range(12)]  # fmt: skip
    return {
        "gopher_short_doc": " ".join(english.sentence() for _ in range(dice.between(1, 2))),
        "gopher_below_avg_threshold": " ".join(dice.pick(WORDS["short_words"]) for _ in range(80))
        + ".",
        "gopher_above_avg_threshold": " ".join(long_words),
        "gopher_too_many_hashes": "\n".join(menu),
        "gopher_too_many_ellipsis": "\n".join(dotted),
        "gopher_too_many_bullets": "\n".join(bullets),
        "gopher_too_many_end_ellipsis": "\n".join(ends),
        "gopher_below_alpha_threshold": "\n".join(figures),
        "gopher_enough_stop_words": " ".join(dice.pick(WORDS["telegraph"]) for _ in range(90))
        + ".",
    }


def endless(dice: Dice) -> str:
    """Return a document with more words than any filter allows, of few bytes."""
    words = " ".join(dice.pick(WORDS["short_words"]) for _ in range(2000))
    return " ".join([words] * (LONG_WORDS // 2000 + 1))


def oversized(dice: Dice) -> str:
    """Return a document of TOO_LONG_BYTES bytes."""
    text = English(dice).article(12) + "\n\n"
    return (text * (TOO_LONG_BYTES // len(text) + 1))[:TOO_LONG_BYTES]


def other_faults(dice: Dice) -> dict[str, str]:
    """Return documents that other filters are there for; which rule drops them is not promised."""
    english = English(dice)
    line = english.sentence()
    items = [
        f"{dice.pick(WORDS['adjectives']).title()} {dice.pick(WORDS['names'])}" for _ in range(60)
    ]
    return {
        "repeated_lines": "\n".join([line] * 12 + [english.sentence()]),
        "repeated_words": " ".join(english.sentence() + " Click here to read the rest of it."
                                   for _ in range(12)),
        "boilerplate": "\n".join([
            "Please enable JavaScript to view the comments.", english.sentence(),
            "By using this site you agree to our terms of use and the cookie policy.",
            english.paragraph(2, 3), "All rights reserved by the owner of this page, and by nobody else.",
            "This site uses cookies to be of use to you. Read the privacy policy to see what that is.",
            english.sentence(),
        ]),
        "placeholder": english.paragraph(3, 4) + " Lorem ipsum dolor sit amet, and so on. "
        + english.paragraph(3, 4),
        "menu": "\n".join(items),
        "code": "function pick(items) {\n  return items[0];\n}\n\n" + english.paragraph(5, 6),
    }  # fmt: skip


def edited(dice: Dice, text: str, ratio: float) -> str:
    """Return a near duplicate: about `ratio` of the words replaced, left out or doubled."""
    words = re.split(r"(\s+)", text)
    for place in range(0, len(words), 2):
        if not dice.chance(ratio):
            continue
        draw = dice.between(0, 5)
        if draw == 0 and place + 1 < len(words):
            words[place] = words[place + 1] = ""
        elif draw == 1:
            words[place] += f" {dice.pick(WORDS['adjectives'])}"
        else:
            end = re.search(r"\W*$", words[place])
            words[place] = dice.pick(WORDS["names"]) + (end.group() if end else "")
    return "".join(words)


def jaccard(left: str, right: str, size: int = 5) -> float:
    """Return the Jaccard similarity of two texts' sets of word 5-grams."""

    def grams(text: str) -> set[tuple[str, ...]]:
        words = re.findall(r"\w+", text.lower())
        return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}

    a, b = grams(left), grams(right)
    return len(a & b) / len(a | b)


def personal(dice: Dice, number: int) -> tuple[str, list[tuple[str, str]], list[str]]:
    """Return a sentence with invented identifiers, their kinds, and look-alikes that are none.

    E-mail addresses are in domains reserved for examples (RFC 2606). IP addresses are of three
    kinds: reserved for documentation (RFC 5737), private (RFC 1918), and those of public name
    servers, which are global and belong to no person.
    """
    name = f"{dice.pick(WORDS['names'])}.{dice.pick(WORDS['adjectives'])}".lower()
    domain = dice.pick(("example.com", "example.org", "mail.example.net", "news.example.com"))
    email = f"{name}{dice.pick(('', '+news', f'{number}'))}@{domain}"
    documentation = f"{dice.pick(('192.0.2', '198.51.100', '203.0.113'))}.{dice.between(1, 254)}"
    private = f"192.168.{dice.between(0, 9)}.{dice.between(1, 254)}"
    public = dice.pick(("8.8.8.8", "8.8.4.4", "1.1.1.1", "1.0.0.1", "9.9.9.9", "208.67.222.222"))
    look_alikes = ["1.2.3.4.5", "256.300.1.2", "user@localhost", "price@3.50"]
    versions = (
        (f"Whoever finds the list can write to {email} before the end of the week.", [("email", email)], []),
        (f"The machine at {public} did not answer, and the one at {private} was turned off.",
         [("ip_public", public), ("ip_private", private)], []),
        (f"Send the photographs to {email} and to no other address; the server is {documentation}.",
         [("email", email), ("ip_documentation", documentation)], []),
        (f"We have to use version {look_alikes[number % 2]} of the program, said {email}, and {public} is the "
         "name server.", [("email", email), ("ip_public", public)], [look_alikes[number % 2]]),
        (f"The old note said only {look_alikes[2 + number % 2]}, which is of no use to anybody.", [],
         [look_alikes[2 + number % 2]]),
    )  # fmt: skip
    return versions[number % len(versions)]


def with_special(dice: Dice) -> str:
    """Return a document with text that looks like the special tokens of tokenizers."""
    english = English(dice)
    token = dice.pick(SPECIAL)
    return (
        f"{english.paragraph()}\n\nThe page ended with {token} and {article(dice.pick(WORDS['adjectives']))} "
        f"line.{token}{english.paragraph()}\n\n{english.paragraph()}"
    )

"""The references of `line_rules` (DCLM's functions as they read) and `unicode` (ftfy itself)."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING

from corpuskit.stages.rewriters.line_rules import counter_pattern
from corpuskit.stages.rewriters.unicode import CONTROLS, INVISIBLE

if TYPE_CHECKING:
    from corpuskit.stages.rewriters.line_rules import LineRules
    from corpuskit.stages.rewriters.unicode import Unicode
    from tests.oracles import Decide

Keep = Callable[[str], bool]


def line_rules(stage: LineRules) -> Decide:
    return lambda text: correct(text, stage)


def correct(text: str, stage: LineRules) -> tuple[str | None, str]:
    """Return the rule that drops a page, None if none does, and what is left of it."""
    before = text
    for keep in _line_tests(stage):
        text = "\n".join(line for line in text.split("\n") if not line or keep(line)).strip()
        if not text:
            return "empty", ""
    if stage.min_words is not None:
        # The one test after which pages are not stripped.
        lines = text.split("\n")
        text = "\n".join(x for x in lines if not x or len(x.split()) >= stage.min_words)
        if not text:
            return "empty", ""
    removed = len(before.split()) - len(text.split())
    if stage.cut_phrases:
        text, edited = _without_phrases(text, stage)
        removed += edited
        if not text:
            return "empty", ""
    if stage.max_removed_ratio is None:
        return None, text
    num_words = len(before.split())
    if stage.variant == "dclm":
        num_words = _fasttext_words(before)
        removed = num_words - _fasttext_words(text)
    if num_words == 0:
        return "empty", text
    over = removed / num_words > stage.max_removed_ratio
    return ("too_much_removed" if over else None), text


def _line_tests(stage: LineRules) -> list[Keep]:
    tests: list[Keep] = []
    upper, digits, counter = stage.max_uppercase_ratio, stage.max_numeric_ratio, counter_pattern()
    if upper is not None:
        tests.append(lambda line: sum(map(str.isupper, line)) / len(line) <= upper)
    if digits is not None:
        tests.append(lambda line: sum(map(str.isdigit, line)) / len(line) <= digits)
    if stage.drop_counters:
        tests.append(lambda line: counter.search(line.lower()) is None)
    return tests


def _without_phrases(text: str, stage: LineRules) -> tuple[str, int]:
    """Return the page without the phrases, and all words of the lines that lost one."""
    more = "Read more..." if stage.variant == "dclm" else re.escape("Read more...")
    lines = [(line, line) for line in text.split("\n")]  # as it was, as it is
    edited = 0
    for pattern in (r"\s?(?:items in cart)", rf"\s?(?:{more})$", r"^(?:Sign-in)\s?"):
        staying = []
        for was, line in lines:
            if len(line.split()) <= stage.max_phrase_words:
                left = re.sub(pattern, "", line, flags=re.IGNORECASE)
                if line and (not left or left.isspace()):
                    edited += len(was.split())
                    continue
                line = left
            staying.append((was, line))
        while staying and not staying[0][1].strip():
            edited += len(staying.pop(0)[0].split())
        while staying and not staying[-1][1].strip():
            edited += len(staying.pop()[0].split())
        if staying:
            staying[0] = (staying[0][0], staying[0][1].lstrip())
            staying[-1] = (staying[-1][0], staying[-1][1].rstrip())
        lines = staying
    edited += sum(len(was.split()) for was, line in lines if was.split() != line.split())
    return "\n".join(line for _, line in lines), edited


def _fasttext_words(text: str) -> int:
    """Return the words that begin with a letter or digit, split as fastText splits text."""
    return sum(bool(word) and word[0].isalnum() for word in re.split(r"[ \n\r\t\v\f\0]", text))


def unicode(stage: Unicode) -> Decide:
    first: Callable[[str], str]
    if stage.fix == "ftfy":
        from datatrove.pipeline.formatters.ftfy import FTFYFormatter

        first = FTFYFormatter(**stage._options()).format
    else:
        first = functools.partial(_without_ftfy, stage)

    def rewrite(text: str) -> tuple[str | None, str]:
        text = first(text)
        if stage.line_ends == "lf":
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        if stage.invisible == "remove":
            text = "".join(char for char in text if not INVISIBLE.match(char))
        return None, text

    return rewrite


def _without_ftfy(stage: Unicode, text: str) -> str:
    if stage.remove_control_chars:
        text = "".join(char for char in text if not CONTROLS.match(char))
    return text if stage.form == "none" else unicodedata.normalize(stage.form, text)

"""Set phrases of shops and sign-in boxes, cut out of short lines; few pages have one."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from corpuskit.kernels.filters.linerules import PHRASE, WHITESPACE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Segments = list[tuple[int, int]]
"""What is left of a line: ranges of characters of the text."""


def phrase_patterns(is_literal: bool) -> tuple[re.Pattern[str], ...]:
    """Return what is cut anywhere in a line, at its end, and at its beginning, in this order.

    Args:
        is_literal: the dots after "Read more" are dots; otherwise any three characters.
    """
    more = re.escape("Read more...") if is_literal else "Read more..."
    return (
        re.compile(r"\s?items in cart", re.IGNORECASE),
        re.compile(rf"\s?{more}$", re.IGNORECASE),
        re.compile(r"^Sign-in\s?", re.IGNORECASE),
    )


def holds_phrase(line: str, patterns: Sequence[re.Pattern[str]]) -> bool:
    """Return whether a pattern matches a line, as it is or stripped as the ends of a page are."""
    lines = {line, line.strip()}
    return any(pattern.search(content) for content in lines for pattern in patterns)


def cut_phrases(
    text: str, patterns: Sequence[re.Pattern[str]], max_words: int
) -> tuple[list[tuple[int, int, int]], int]:
    """Return what goes of a page, and the words of all lines that lose something.

    Each pattern is applied to all lines of at most `max_words` words; a line that it leaves blank
    goes, and the page is stripped before the next pattern.

    Returns:
        (start, end, code) in characters, sorted and disjoint; and the number of words.
    """
    lines: list[Segments] = []
    at = 0
    for line in text.split("\n"):
        lines.append([(at, at + len(line))])
        at += len(line) + 1
    flagged: dict[int, int] = {}
    for pattern in patterns:
        lines = [left for line in lines if (left := _edit(text, line, pattern, max_words, flagged))]
        _strip(text, lines)
    return list(_cuts(text, lines)), sum(flagged.values())


def _edit(
    text: str, line: Segments, pattern: re.Pattern[str], max_words: int, flagged: dict[int, int]
) -> Segments:
    """Return what a pattern leaves of a line; nothing of one that it leaves blank."""
    content = "".join(text[a:b] for a, b in line)
    if len(content.split()) > max_words:
        return line
    spans = [match.span() for match in pattern.finditer(content)]
    if not spans:
        return line if not content or not content.isspace() else []
    start = line[0][0]
    whole = text[start : line[-1][1]]
    flagged.setdefault(text.rfind("\n", 0, start) + 1, len(whole.split()))
    for a, b in reversed(spans):
        line = [*_part(line, 0, a), *_part(line, b, len(content))]
    left = "".join(text[a:b] for a, b in line)
    return line if left and not left.isspace() else []


def _part(line: Segments, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the segments of characters `start` to `end` of what is left of a line."""
    at = 0
    for a, b in line:
        low, high = max(start - at, 0), min(end - at, b - a)
        if low < high:
            yield a + low, a + high
        at += b - a


def _strip(text: str, lines: list[Segments]) -> None:
    """Strip a page: blank lines at its ends go, the first and last line lose whitespace."""
    for end in (0, -1):
        while lines:
            content = "".join(text[a:b] for a, b in lines[end])
            bare = content.lstrip() if end == 0 else content.rstrip()
            if bare:
                start = len(content) - len(bare) if end == 0 else 0
                lines[end] = list(_part(lines[end], start, start + len(bare)))
                break
            del lines[end]


def _cuts(text: str, lines: list[Segments]) -> Iterator[tuple[int, int, int]]:
    """Yield what is not in `lines`, but for one line end between two of them."""
    at = 0
    for number, line in enumerate(lines):
        if number:
            line_end = text.index("\n", at)
            yield from _cut(text, at, line_end)
            at = line_end + 1
        yield from _cut(text, at, line[0][0])
        for (_, b), (a, _) in itertools.pairwise(line):
            yield b, a, PHRASE
        at = line[-1][1]
    yield from _cut(text, at, len(text))


def _cut(text: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    if start < end:
        yield start, end, WHITESPACE if text[start:end].isspace() else PHRASE

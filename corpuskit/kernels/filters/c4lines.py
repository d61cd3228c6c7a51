"""What C4 asks of a single line, and a copy of the line without citations."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from corpuskit.kernels.cuts import add_cut, fill_gap
from corpuskit.kernels.filters.phrases import (
    CURLY_BRACKET,
    JAVASCRIPT,
    LOREM_IPSUM,
    POLICY,
    find_phrases,
)
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.utf8 import char_width, code_point, line_break_width, space_width

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]

RULES = (
    *("lorem_ipsum", "curly_bracket", "too_few_sentences"),
    *("too_long_word", "no_terminal_punc", "too_few_words", "javascript", "policy"),
    *("citation", "whitespace"),
)
"""The first three drop documents, the next five lines; code k is `RULES[k - 1]`."""

LOREM, CURLY = 1, 2
_LONG_WORD, _NO_MARK, _FEW_WORDS, _JAVASCRIPT, _POLICY, _CITATION, SPACE = 4, 5, 6, 7, 8, 9, 10


class LineTests(NamedTuple):
    """Which tests lines have to pass; the parameters of `c4_quality`, 0 and 1 for no and yes."""

    max_word_length: int
    min_words: int
    remove_citations: int
    terminal_punct: int
    lorem_ipsum: int
    javascript: int
    curly_bracket: int
    policy: int


_BREAK, BRACKET = 1, 2


def _byte_kinds() -> Bytes:
    """Byte -> whether it may begin a line boundary, whether it may begin a citation."""
    table = np.zeros(256, np.uint8)
    table[[10, 11, 12, 13, 28, 29, 30, 0xC2, 0xE2]] = _BREAK
    table[ord("[")] = BRACKET
    table.flags.writeable = False
    return table


BYTE_KINDS = _byte_kinds()
_NAMES = np.frombuffer(b"[edit][citation needed]", np.uint8)
_NAMES_BOUNDS = np.array([0, 6, 23])


@kernel
def next_line(data: Bytes, at: int, end: int, byte_kinds: Bytes) -> tuple[int, int, int]:
    """Return where the line at `at` ends, where the next one begins, and the byte kinds in it."""
    seen = 0
    while at < end:
        kind = byte_kinds[data[at]]
        if kind != 0:
            seen |= kind
            if kind == _BREAK:
                width = line_break_width(data, at, end)
                if width > 0:
                    return at, at + width, seen
        at += 1
    return at, at, seen


@kernel
def _has_long_word(data: Bytes, start: int, end: int, max_length: int) -> bool:
    """Return whether a word between whitespace has more than `max_length` characters."""
    if max_length < 0 or end - start <= max_length:
        return False
    length = 0
    while start < end:
        if space_width(data, start) > 0:
            length = 0
        else:
            length += 1
            if length > max_length:
                return True
        start += char_width(data[start])
    return False


@kernel
def _has_words(data: Bytes, start: int, end: int, min_words: int) -> bool:
    """Return whether there are at least `min_words` words between whitespace."""
    num, within = 0, False
    while start < end and num < min_words:
        if space_width(data, start) > 0:
            within = False
        elif not within:
            within = True
            num += 1
        start += char_width(data[start])
    return num >= min_words


@kernel
def _citation_end(data: Bytes, at: int, end: int, digits: Bytes) -> int:
    r"""Return where the citation that begins with the bracket at `at` ends, 0 if it is none.

    As the regular expression `\[\d*]|\[edit]|\[citation needed]`.
    """
    stop = at + 1
    while stop < end and digits[code_point(data, stop)]:
        stop += char_width(data[stop])
    if stop < end and data[stop] == 93:
        return stop + 1
    for row in range(len(_NAMES_BOUNDS) - 1):
        first, last = _NAMES_BOUNDS[row], _NAMES_BOUNDS[row + 1]
        same = 0
        while first + same < last and at + same < end and data[at + same] == _NAMES[first + same]:
            same += 1
        if first + same == last:
            return at + same
    return 0


@kernel
def _copy(
    data: Bytes, start: int, end: int, text: Bytes, to: int, has_brackets: bool, digits: Bytes
) -> int:
    """Copy a line without its citations, return where the copy ends."""
    if not has_brackets:
        source, target = data[start:end], text[to : to + end - start]
        for at in range(len(source)):
            target[at] = source[at]
        return to + end - start
    while start < end:
        if data[start] == 91:
            stop = _citation_end(data, start, end, digits)
            if stop > 0:
                start = stop
                continue
        text[to] = data[start]
        start, to = start + 1, to + 1
    return to


@kernel
def _has_terminal_punct(text: Bytes, start: int, end: int) -> bool:
    """Return whether a line ends in . ? ! " ' and not in an ellipsis of dots."""
    if start == end:
        return False
    last = text[end - 1]
    if last == 46:
        return not (end - start >= 3 and text[end - 2] == 46 and text[end - 3] == 46)
    return bool(last == 63 or last == 33 or last == 34 or last == 39)


@kernel
def _verdict(found: int, tests: Offsets) -> int:
    """Return the first rule that a line breaks by what is in it, in the order of the reference."""
    if tests[4] and found & LOREM_IPSUM:
        return LOREM
    if tests[5] and found & JAVASCRIPT:
        return _JAVASCRIPT
    if tests[6] and found & CURLY_BRACKET:
        return CURLY
    if tests[7] and found & POLICY:
        return _POLICY
    return 0


@kernel
def cut_citations(
    data: Bytes,
    start: int,
    end: int,
    digits: Bytes,
    is_open: bool,
    starts: Offsets,
    ends: Offsets,
    codes: Bytes,
    first: int,
    num: int,
    low: int,
) -> tuple[int, int, int]:
    """List the citations of a line that stays.

    Args:
        is_open: nothing was written before: what comes before the first character that is no
            whitespace is part of the gap from `low` on, whose cuts begin at `first`.

    Returns:
        Number of cuts, the first cut of the next gap, where the last character that is no
        whitespace ends (0: there is none).
    """
    solid = 0
    while start < end:
        stop = _citation_end(data, start, end, digits) if data[start] == 91 else 0
        if stop > 0:
            num = add_cut(starts, ends, codes, first, num, start, stop, _CITATION)
            first = first if is_open else num
        else:
            stop = start + char_width(data[start])
            if space_width(data, start) == 0:
                solid = stop
                if is_open:
                    num = fill_gap(starts, ends, codes, first, num, low, start, SPACE)
                    first, is_open = num, False
        start = stop
    return num, first, solid


@kernel
def test_line(
    data: Bytes,
    start: int,
    end: int,
    has_brackets: bool,
    tests: Offsets,
    digits: Bytes,
    phrase: Bytes,
    bounds: Offsets,
    anchors: Bytes,
    text: Bytes,
    to: int,
) -> tuple[int, int]:
    """Copy a stripped line to `text[to:]`; return the rule it breaks (0: none), the copy's end."""
    if _has_long_word(data, start, end, tests[0]):
        return _LONG_WORD, to
    if tests[3] and not has_brackets and not _has_terminal_punct(data, start, end):
        return _NO_MARK, to  # most lines of many a page: seen before anything is copied
    last = _copy(data, start, end, text, to, has_brackets, digits)
    if tests[3] and not _has_terminal_punct(text, to, last):
        return _NO_MARK, to
    if not _has_words(data, start, end, tests[1]):
        return _FEW_WORDS, to
    found = find_phrases(text, to, last, phrase, bounds, anchors)
    return _verdict(found, tests), last

"""C4's line rules: which lines stay, and the text that is left."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from corpuskit.kernels.arrays import Bytes, Int32s, Int64s, frozen
from corpuskit.kernels.hashing import copy, same_bytes
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.spans import add_cut, close_gap, fill_gap, replace_spans
from corpuskit.kernels.utf8 import (
    char_table,
    char_width,
    code_point,
    count_chars,
    line_break_width,
    skip_space,
    skip_space_back,
    space_width,
)
from corpuskit.kernels.words.lexicon import PUNCT, SENTENCE_END, Words


class LineDraft(NamedTuple):
    """N documents after the line rules.

    Attributes:
        offsets, data: texts of the lines that stay, joined, not yet stripped at the end. Empty if
            the document is dropped.
        codes: (N,) uint8 into RULES: what dropped the document, 0 if nothing did so far.
        num_lines: (N,) lines that stay, blank ones at the beginning included.
        rows, starts, ends: (n,) cuts: document, bytes from its beginning.
        cut_codes: (n,) uint8 into RULES.
    """

    offsets: Int64s
    data: Bytes
    codes: Bytes
    num_lines: Int64s
    rows: Int64s
    starts: Int64s
    ends: Int64s
    cut_codes: Bytes


def rewrite_lines(
    offsets: Int64s, data: Bytes, tests: LineTests, sentences: tuple[Int64s, Int64s] | None = None
) -> LineDraft:
    r"""Test each line as str.splitlines gives it, and join those that stay with \n.

    O(B), allocates the copy and 17 bytes for each cut there could be.

    Args:
        offsets, data: the texts.
        tests: what lines have to pass.
        sentences: test these instead (`sentences.sentence_edges`) and join them with a space.
    """
    num_docs = len(offsets) - 1
    pieces, edges = sentences if sentences is not None else (_NONE, _NONE)
    max_cuts = _count_marks(offsets, data) * 2 + len(edges) * 2 + 4 * num_docs
    starts, ends = np.empty(max_cuts, np.int64), np.empty(max_cuts, np.int64)
    cut_codes = np.empty(max_cuts, np.uint8)
    # Sentences that touch each other are joined by a space that was not there.
    text = np.empty(int(offsets[-1] - offsets[0]) + len(edges), np.uint8)
    moved, cut_bounds = np.zeros(num_docs + 1, np.int64), np.zeros(num_docs + 1, np.int64)
    codes, num_lines = np.zeros(num_docs, np.uint8), np.zeros(num_docs, np.int64)
    _rewrite(
        offsets, data, pieces, edges, np.array(tests, np.int64), BYTE_KINDS, _digits(), PHRASES,
        PHRASE_BOUNDS, ANCHORS, text, moved, codes, num_lines, starts, ends, cut_codes, cut_bounds,
    )  # fmt: skip
    num = cut_bounds[-1]
    rows = np.repeat(np.arange(num_docs), np.diff(cut_bounds))
    begins = offsets[rows]
    return LineDraft(
        frozen(moved), frozen(text[: moved[-1]]), codes, num_lines, rows, starts[:num] - begins,
        ends[:num] - begins, cut_codes[:num],
    )  # fmt: skip


def strip_texts(offsets: Int64s, data: Bytes) -> tuple[Int64s, Bytes]:
    """Return the texts after str.rstrip; the same arrays if that changes nothing."""
    ends = _right_ends(offsets, data)
    if np.array_equal(ends, offsets[1:]):
        return offsets, data
    rows = np.flatnonzero(ends < offsets[1:])
    starts, stops = ends - offsets[:-1], np.diff(offsets)
    nothing = np.zeros(len(rows), np.uint8)
    return replace_spans(offsets, data, rows, starts[rows], stops[rows], nothing, [b""])


_NONE = np.empty(0, np.int64)


def _digits() -> Bytes:
    return char_table(str.isdecimal)


@kernel
def _count_marks(offsets: Int64s, data: Bytes) -> int:
    """Return how many line ends and citations there are at most."""
    num = 0
    for pos in range(offsets[0], offsets[-1]):
        byte = data[pos]
        num += (9 < byte < 14) | (27 < byte < 31) | (byte == 0xC2) | (byte == 0xE2) | (byte == 91)
    return num


@kernel
def _right_ends(offsets: Int64s, data: Bytes) -> Int64s:
    """Return where each text ends without the whitespace at its end, (N,)."""
    ends = np.empty(len(offsets) - 1, np.int64)
    for row in range(len(ends)):
        ends[row] = skip_space_back(data, offsets[row], offsets[row + 1])
    return ends


@kernel
def _strip_left(text: Bytes, start: int, end: int) -> int:
    """Move a copied line left over its leading whitespace; return its new end."""
    lead = skip_space(text, start, end) - start
    if lead > 0:
        for pos in range(start, end - lead):
            text[pos] = text[pos + lead]
    return end - lead


@kernel
def _rewrite(
    offsets: Int64s,
    data: Bytes,
    pieces: Int64s,
    edges: Int64s,
    tests: Int64s,
    byte_kinds: Bytes,
    digits: Bytes,
    phrase: Bytes,
    bounds: Int64s,
    anchors: Bytes,
    text: Bytes,
    moved: Int64s,
    doc_codes: Bytes,
    num_lines: Int64s,
    starts: Int64s,
    ends: Int64s,
    codes: Bytes,
    cut_bounds: Int64s,
) -> None:
    """Fill the arrays from `text` on; O(B).

    `low` is the end of the last line that stays, `solid` that of its last character that is not
    whitespace.
    """
    by_line = len(pieces) == 0
    joiner = 10 if by_line else 32
    for row in range(len(offsets) - 1):
        pos, end = offsets[row], offsets[row + 1]
        base, num = moved[row], cut_bounds[row]
        first = first_cut = num
        size, low, solid, lines, drop_code = base, pos, pos, 0, 0
        piece = np.int64(0) if by_line else pieces[row]
        while (pos < end) if by_line else (piece < pieces[row + 1]):
            if by_line:
                stop, next_line_start, line_kinds = next_line(data, pos, end, byte_kinds)
            else:
                stop = next_line_start = offsets[row] + edges[piece]
                piece, line_kinds = piece + 1, BRACKET
            a = skip_space(data, pos, stop)
            b = skip_space_back(data, a, stop)
            has_brackets = tests[2] != 0 and line_kinds & BRACKET != 0
            is_open = size == base
            to = size if is_open else size + 1
            code, last = test_line(
                data, a, b, has_brackets, tests, digits, phrase, bounds, anchors, text, to
            )
            if code in (LOREM, CURLY):
                drop_code = code
                break
            if code == 0:
                lines += 1
                if is_open:
                    last = _strip_left(text, to, last)
                    if last == to:
                        code = SPACE  # a blank line counts as a sentence, but does not begin a text
            if code != 0:
                num = add_cut(starts, ends, codes, first, num, pos, next_line_start, code)
                pos = next_line_start
                continue
            if not is_open:
                text[size] = joiner
                num = close_gap(data, starts, ends, codes, first, num, low, a, joiner, SPACE)
                first = num
            size = last
            if has_brackets:
                num, first, tail = cut_citations(
                    data, a, b, digits, is_open, starts, ends, codes, first, num, low
                )
                solid = max(solid, tail)
            else:
                if is_open:
                    num = fill_gap(starts, ends, codes, first, num, low, a, SPACE)
                    first = num
                solid = b if b > a else solid
            low, pos = b, next_line_start
        if drop_code:
            size, num, lines = base, first_cut, 0
        else:
            num = fill_gap(starts, ends, codes, first_cut, num, solid, end, SPACE)
        moved[row + 1], cut_bounds[row + 1] = size, num
        doc_codes[row], num_lines[row] = drop_code, lines


# ----------------------------------------------------------------------
# The phrases of C4's rules, compared without case.

LOREM_IPSUM, JAVASCRIPT, CURLY_BRACKET, POLICY = 1, 2, 4, 8
"""Bits of the phrases in a line."""

_LISTED = (
    ("lorem ipsum", "m", LOREM_IPSUM),
    ("javascript", "j", JAVASCRIPT),
    ("terms of use", "m", POLICY),
    ("privacy policy", "v", POLICY),
    ("cookie policy", "k", POLICY),
    ("uses cookies", "k", POLICY),
    ("use of cookies", "k", POLICY),
    ("use cookies", "k", POLICY),
)
"""Phrase, a rare letter of it (searched first), its bit."""


def _phrase_tables() -> tuple[Bytes, Int64s, Bytes]:
    """Return the phrases as buffers, and byte -> the rare letter that it stands for, or 0."""
    anchors = np.zeros(256, np.uint8)
    for _, letter, _ in _LISTED:
        anchors[[ord(letter), ord(letter.upper())]] = ord(letter)
    # The Kelvin sign, U+212A, is the only other character that str.lower turns into such a letter.
    anchors[0xE2] = ord("k")
    anchors[ord("{")] = ord("{")
    data = np.frombuffer("".join(phrase for phrase, _, _ in _LISTED).encode(), np.uint8)
    bounds = np.zeros((len(_LISTED), 4), np.int64)
    pos = 0
    for row, (phrase, letter, rule) in enumerate(_LISTED):
        bounds[row] = (pos, pos + len(phrase), phrase.index(letter), rule)
        pos += len(phrase)
    return data, frozen(bounds), frozen(anchors)


PHRASES, PHRASE_BOUNDS, ANCHORS = _phrase_tables()


@kernel
def _has_phrase(text: Bytes, start: int, pos: int, end: int, phrase: Bytes, bounds: Int64s) -> bool:
    """Return whether a phrase, in any case, is in the line with its rare letter at `pos`."""
    first = pos - bounds[2]
    if first < start:
        return False
    for index in range(bounds[0], bounds[1]):
        if first >= end:
            return False
        byte = text[first]
        if byte == 0xE2 and first + 2 < end and text[first + 1] == 0x84 and text[first + 2] == 0xAA:
            byte, first = np.uint8(107), first + 2
        elif 65 <= byte <= 90:
            byte = np.uint8(byte | 32)
        if byte != phrase[index]:
            return False
        first += 1
    return True


@kernel
def find_phrases(
    text: Bytes, start: int, end: int, phrase: Bytes, bounds: Int64s, anchors: Bytes
) -> int:
    """Return which phrases, or a curly bracket, are in a line: bits as above. O(B).

    Args:
        text, start, end: the line.
        phrase, bounds, anchors: PHRASES, PHRASE_BOUNDS, ANCHORS; as constants they take longer to
            compile.
    """
    flags = 0
    for pos in range(start, end):
        anchor = anchors[text[pos]]
        if anchor == 0:
            continue
        if anchor == 123:
            flags |= CURLY_BRACKET
            continue
        for row in range(len(bounds)):
            letter = phrase[bounds[row, 0] + bounds[row, 2]]
            if letter == anchor and _has_phrase(text, start, pos, end, phrase, bounds[row]):
                flags |= bounds[row, 3]
    return flags


# ----------------------------------------------------------------------
# The tests of a single line, and a copy of the line without citations.

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
    """Byte -> bits: it may begin a line boundary; it may begin a citation."""
    table = np.zeros(256, np.uint8)
    table[[10, 11, 12, 13, 28, 29, 30, 0xC2, 0xE2]] = _BREAK
    table[ord("[")] = BRACKET
    return frozen(table)


BYTE_KINDS = _byte_kinds()
_NAMES = np.frombuffer(b"[edit][citation needed]", np.uint8)
_NAMES_BOUNDS = np.array([0, 6, 23])


@kernel
def next_line(data: Bytes, pos: int, end: int, byte_kinds: Bytes) -> tuple[int, int, int]:
    """Return the end of the line at `pos`, the start of the next, and the byte kinds in it."""
    kinds = 0
    while pos < end:
        kind = byte_kinds[data[pos]]
        if kind != 0:
            kinds |= kind
            if kind == _BREAK:
                width = line_break_width(data, pos, end)
                if width > 0:
                    return pos, pos + width, kinds
        pos += 1
    return pos, pos, kinds


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
    num, in_word = 0, False
    while start < end and num < min_words:
        if space_width(data, start) > 0:
            in_word = False
        elif not in_word:
            in_word = True
            num += 1
        start += char_width(data[start])
    return num >= min_words


@kernel
def _citation_end(data: Bytes, pos: int, end: int, digits: Bytes) -> int:
    r"""Return where the citation that begins with the bracket at `pos` ends, 0 if it is none.

    As the regular expression `\[\d*]|\[edit]|\[citation needed]`.
    """
    stop = pos + 1
    while stop < end and digits[code_point(data, stop)]:
        stop += char_width(data[stop])
    if stop < end and data[stop] == 93:
        return stop + 1
    for row in range(len(_NAMES_BOUNDS) - 1):
        first, size = _NAMES_BOUNDS[row], _NAMES_BOUNDS[row + 1] - _NAMES_BOUNDS[row]
        if pos + size <= end and same_bytes(data, pos, _NAMES, first, size):
            return int(pos + size)
    return 0


@kernel
def _copy(
    data: Bytes, start: int, end: int, text: Bytes, to: int, has_brackets: bool, digits: Bytes
) -> int:
    """Copy a line without its citations, return where the copy ends."""
    if not has_brackets:
        copy(data[start:end], text[to : to + end - start])
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
def _verdict(flags: int, tests: Int64s) -> int:
    """Return the first rule that the phrases of a line break, in the order of the reference."""
    if tests[4] and flags & LOREM_IPSUM:
        return LOREM
    if tests[5] and flags & JAVASCRIPT:
        return _JAVASCRIPT
    if tests[6] and flags & CURLY_BRACKET:
        return CURLY
    if tests[7] and flags & POLICY:
        return _POLICY
    return 0


@kernel
def cut_citations(
    data: Bytes,
    start: int,
    end: int,
    digits: Bytes,
    is_open: bool,
    starts: Int64s,
    ends: Int64s,
    codes: Bytes,
    first: int,
    num: int,
    low: int,
) -> tuple[int, int, int]:
    """List the citations of a line that stays.

    Args:
        is_open: the text is empty so far: all before the first character that is not whitespace
            belongs to the gap from `low` on, whose cuts begin at `first`.

    Returns:
        Number of cuts, the first cut of the next gap, the end of the last character that is not
        whitespace (0 if there is none).
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
    tests: Int64s,
    digits: Bytes,
    phrase: Bytes,
    bounds: Int64s,
    anchors: Bytes,
    text: Bytes,
    to: int,
) -> tuple[int, int]:
    """Copy a stripped line to `text[to:]`; return the rule it breaks (0: none), the copy's end."""
    if _has_long_word(data, start, end, tests[0]):
        return _LONG_WORD, to
    if tests[3] and not has_brackets and not _has_terminal_punct(data, start, end):
        return _NO_MARK, to  # before the copy, as most lines of many pages fail here
    last = _copy(data, start, end, text, to, has_brackets, digits)
    if tests[3] and not _has_terminal_punct(text, to, last):
        return _NO_MARK, to
    if not _has_words(data, start, end, tests[1]):
        return _FEW_WORDS, to
    flags = find_phrases(text, to, last, phrase, bounds, anchors)
    return _verdict(flags, tests), last


# ----------------------------------------------------------------------
# Sentences as spaCy's sentencizer finds them, from words already split.
#
# After a sentence-ending mark, a sentence ends before the first token that is neither such a mark
# nor punctuation. Whitespace is a token, too, except a single space after a word.

UNKNOWN = -1


def count_breaks(offsets: Int64s, data: Bytes, words: Words) -> Int64s:
    r"""Return (N,) sentences that begin within a line of each text; lines end with \n.

    UNKNOWN where the words differ from the text, since the reference drops a token.
    """
    bounds, edges = _edges(offsets, data, words, by_line=True)
    return np.where(edges[bounds[:-1]] == UNKNOWN, UNKNOWN, np.diff(bounds) - 1)


def sentence_edges(offsets: Int64s, data: Bytes, words: Words) -> tuple[Int64s, Int64s]:
    """Return ((N + 1,) offsets, (S,) edges): where the sentences of each text end, in bytes of it.

    A sentence begins where the one before ends, with the whitespace between them. The last ends
    with the text; an empty text is one sentence. Where the reference drops a token, the only edge
    is UNKNOWN.
    """
    return _edges(offsets, data, words, by_line=False)


def _edges(offsets: Int64s, data: Bytes, words: Words, *, by_line: bool) -> tuple[Int64s, Int64s]:
    lexicon = words.lexicon
    args = (offsets, data, words.offsets, words.tokens, lexicon.starts, lexicon.kinds)
    # A sentence has at least one token; whitespace is counted with the word before it.
    edges = np.empty(2 * len(words.tokens) + 2 * len(offsets), np.int64)
    return _find(*args, by_line, edges), edges


@kernel
def sentence_spans(
    offsets: Int64s, data: Bytes, bounds: Int64s, edges: Int64s
) -> tuple[Int32s, Int64s, Int64s]:
    """Return document, start and end of each sentence, stripped; O(B).

    Blank sentences are left out. A document whose only edge is UNKNOWN is one sentence.

    Args:
        offsets, data: the texts.
        bounds, edges: as `sentence_edges` returns them.

    Returns:
        Three (S,) arrays; starts and ends are into `data`.
    """
    max_sentences = bounds[len(offsets) - 1]
    docs = np.empty(max_sentences, np.int32)
    starts, ends = np.empty(max_sentences, np.int64), np.empty(max_sentences, np.int64)
    num = 0
    for doc in range(len(offsets) - 1):
        begin = offsets[doc]
        for edge in range(bounds[doc], bounds[doc + 1]):
            stop = offsets[doc + 1] if edges[edge] == UNKNOWN else offsets[doc] + edges[edge]
            docs[num], starts[num] = doc, skip_space(data, begin, stop)
            ends[num] = skip_space_back(data, starts[num], stop)
            num += starts[num] < stop
            begin = stop
    return docs[:num], starts[:num], ends[:num]


@kernel
def _skip_within_line(data: Bytes, pos: int, end: int) -> int:
    r"""Return where the whitespace at `pos` ends; \n does not count as whitespace."""
    while pos < end and data[pos] != 10:
        width = space_width(data, pos)
        if width == 0:
            break
        pos += width
    return pos


@kernel
def _find(
    offsets: Int64s,
    data: Bytes,
    word_offsets: Int64s,
    tokens: Int32s,
    starts: Int64s,
    kinds: Bytes,
    by_line: bool,
    edges: Int64s,
) -> Int64s:
    r"""Fill `edges`, return their offsets. O(W + whitespace); allocates 8 N bytes.

    With `by_line`, each \n ends a line, and a sentence that ends there has no edge.
    """
    bounds = np.zeros(len(offsets), np.int64)
    num = 0
    for row in range(len(offsets) - 1):
        begin, end = offsets[row], offsets[row + 1]
        word, last = word_offsets[row], word_offsets[row + 1]
        has_mark, after_word, pos, token_end = False, False, begin, begin
        while pos < end:
            ends_sentence = False
            if by_line and data[pos] == 10:
                has_mark, after_word, is_token, stop = False, False, False, pos + 1
            elif space_width(data, pos) > 0:
                stop = _skip_within_line(data, pos, end) if by_line else skip_space(data, pos, end)
                is_token = not (after_word and data[pos] == 32 and stop == pos + 1)
                after_word = False
                if is_token:
                    ends_sentence, has_mark = has_mark, False
            elif word == last:
                num, end = bounds[row], begin + UNKNOWN
                break
            else:
                token, is_token, after_word = tokens[word], True, True
                stop = pos + starts[token + 1] - starts[token]
                word += 1
                if kinds[token] & SENTENCE_END:
                    has_mark = True
                elif has_mark and kinds[token] & PUNCT == 0:
                    ends_sentence, has_mark = True, False
            if ends_sentence:
                edges[num] = token_end - begin
                num += 1
            if is_token:
                token_end = stop
            pos = stop
        edges[num] = end - begin
        num += 1
        bounds[row + 1] = num
    return bounds


# ----------------------------------------------------------------------
# Lines long enough to be paragraphs.


@kernel
def count_long_lines(offsets: Int64s, data: Bytes, min_chars: int) -> Int64s:
    r"""Return how many lines of each text have at least `min_chars` code points, (N,). O(B).

    Lines are what str.split("\n") gives: there is always one.
    """
    counts = np.zeros(len(offsets) - 1, np.int64)
    for row in range(len(counts)):
        start, end = offsets[row], offsets[row + 1]
        while start <= end:
            stop = start
            while stop < end and data[stop] != 10:
                stop += 1
            if stop - start >= min_chars and count_chars(data, start, stop) >= min_chars:
                counts[row] += 1
            start = stop + 1
    return counts

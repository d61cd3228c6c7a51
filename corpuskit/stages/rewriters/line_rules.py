"""RefinedWeb's line-wise corrections, with a budget."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from corpuskit.formats.batch import Utf8
from corpuskit.kernels.arrays import Bools, Bytes, Float64s, Int64s
from corpuskit.kernels.filters import linerules
from corpuskit.kernels.filters.linerules import PHRASE, WHITESPACE
from corpuskit.kernels.spans import replace_spans
from corpuskit.stage import Example, Outcome, Spans, StreamingStage, View

RULES = (
    *("uppercase", "numeric", "counter", "too_few_words", "phrase", "whitespace"),
    *("empty", "too_much_removed"),
)
_EMPTY, _TOO_MUCH = np.uint8(7), np.uint8(8)
_NO_WORDS = 0.5
"""Stored as the measure of `empty` for a text that has no word left: it breaks the rule only if
`max_removed_ratio` is set."""

_LINE = "A line of prose with a good number of words in it, which stays as it is."
_PAGE = "\n".join([_LINE] * 4)


COUNTED = (
    *("likes", "shares", "comments", "retweets", "reposts", "quotes", "bookmarks", "upvotes"),
    *("downvotes", "downloads", "views", "followers"),
)


def counter_pattern() -> re.Pattern[str]:
    """Return what matches a whole lower-cased line such as "12.3k views"."""
    return re.compile(rf"^\W*\d(?:,|\.|\d)*[kmb]?\s+(?:{'|'.join(COUNTED)})\W*$")


class Cuts(NamedTuple):
    """What was cut: (n,) document, bytes from its beginning, code into RULES; sorted, disjoint."""

    rows: Int64s
    starts: Int64s
    ends: Int64s
    codes: Bytes


class LineRules(StreamingStage):
    r"""Cut lines that are not prose, and drop pages that lose too many words by that.

    Lines end with \n. Lines of capitals, of digits, counters ("3 likes") and single words are cut;
    then, in short lines, "items in cart", "Read more..." at the end and "Sign-in" at the beginning.
    The page is stripped after each rule but `too_few_words`, and dropped as `empty` if nothing
    remains. Each cut is a span in the ledger under its rule; the new text is the old one without
    the spans.

    The variants differ in the words that count as lost for `max_removed_ratio`. `dclm`: words that
    were cut, split as fastText does, without those that begin with punctuation; the dots after
    "Read more" are any three characters, since its regular expression does not escape them.
    `refinedweb`: all words of each line that was cut or edited, split at whitespace; only three
    dots match. Dolma 3 uses DCLM's.

    Source: Penedo et al. 2023 (RefinedWeb), appendix G.2, which gives the phrases as examples; with
    `dclm` the steps from uppercase_ratio_line_modifier to word_removal_ratio_filter of DCLM's
    baselines/baselines_configs/dclm_baseline_refinedweb.yaml (mappers/modifiers.py, 15af3ce5).
    """

    rules: ClassVar[tuple[str, ...]] = RULES
    bounds: ClassVar[Mapping[str, str]] = {
        "uppercase": "max_uppercase_ratio",
        "numeric": "max_numeric_ratio",
        "too_few_words": "min_words",
        "too_much_removed": "max_removed_ratio",
    }
    text_speed: ClassVar[float] = 150e6
    examples: ClassVar[tuple[Example, ...]] = (
        Example(_PAGE),
        Example(f"AB\n{_PAGE}", "uppercase", {}, _PAGE),
        Example(f"{_PAGE}\n2024", "numeric", {}, _PAGE),
        Example(f"3.2k likes\n{_PAGE}", "counter", {}, _PAGE),
        Example(f"{_PAGE}\nHome\n{_PAGE}", "too_few_words", {}, f"{_PAGE}\n{_PAGE}"),
        Example(f"{_PAGE}\nAnd so on. Read more...", "phrase", {}, f"{_PAGE}\nAnd so on."),
        Example(f"{_PAGE}\n\n", "whitespace", {}, _PAGE),
        Example("HOME", "empty"),
        Example(f"{_LINE}\nHome\nAbout", "too_much_removed"),
        Example(f"{_PAGE}\nNow read more to", "phrase", {}, f"{_PAGE}\nNow"),
        Example(f"{_PAGE}\nNow read more to", None, {"variant": "refinedweb"}),
    )

    max_uppercase_ratio: float | None = Field(0.5, ge=0, le=1)
    """Cut lines with a larger share of upper-case characters."""
    max_numeric_ratio: float | None = Field(0.999999, ge=0, le=1)
    """Cut lines with a larger share of digits."""
    drop_counters: bool = True
    """Cut lines that count likes, shares, comments, views and the like."""
    min_words: int | None = Field(2, ge=0)
    """Cut lines with fewer words, split at whitespace; empty lines stay."""
    cut_phrases: bool = True
    """Cut the three phrases out of short lines."""
    max_phrase_words: int = Field(10, ge=0)
    """A line of at most this many words is short."""
    max_removed_ratio: float | None = Field(0.05, ge=0, le=1)
    """Drop pages that lose a larger share of their words."""
    variant: Literal["dclm", "refinedweb"] = "dclm"
    """What counts as lost, and what follows "Read more"."""
    measures: bool = False
    """Also store the share of words that went, so that its bound can be tuned without a run."""

    def apply(self, view: View) -> Outcome:
        text = view.text
        lines = linerules.measure_lines(text.offsets, text.data, self.max_phrase_words)
        line_codes, has_text = linerules.judge_lines(
            text.data, lines, self._counters(text.data, lines), self.max_uppercase_ratio,
            self.max_numeric_ratio, self.min_words, self.drop_counters, self.cut_phrases,
        )  # fmt: skip
        cuts = Cuts(*linerules.list_cuts(text.offsets, text.data, lines, line_codes))
        flagged = np.zeros(view.num_docs, np.int64)
        cut_lines = np.flatnonzero(line_codes)
        np.add.at(flagged, lines.rows(cut_lines), lines.counts[3, cut_lines])
        if self.cut_phrases:
            rows = self._pages_with_phrases(text.data, lines, line_codes)
            cuts = self._with_phrases(text, cuts, rows[has_text[rows] != 0], flagged)
        nothing = np.zeros(len(cuts.rows), np.uint8)
        after = Utf8(*replace_spans(*text, cuts.rows, cuts.starts, cuts.ends, nothing, [b""]))
        codes = np.where(has_text == 0, _EMPTY, 0).astype(np.uint8)
        if self.cut_phrases:
            codes[after.sizes() == 0] = _EMPTY
        empty = codes == _EMPTY
        removed_ratio = self._removed_ratio(text, lines, after, cuts, flagged)
        if self.max_removed_ratio is not None:
            codes[(codes == 0) & np.isnan(removed_ratio)] = _EMPTY
            codes[(codes == 0) & (removed_ratio > self.max_removed_ratio)] = _TOO_MUCH
        is_kept = codes[cuts.rows] == 0
        measured = {
            "empty": np.where(empty, 1.0, np.where(np.isnan(removed_ratio), _NO_WORDS, 0.0)),
            "too_much_removed": removed_ratio,
        }
        return Outcome(
            codes=codes,
            values=np.where(codes == _TOO_MUCH, removed_ratio, np.nan),
            text=after,
            spans=Spans(*(column[is_kept] for column in cuts)),
            measures=measured if self.measures else {},
        )

    def fails(self, rule: str, values: Float64s) -> Bools:
        """Return which measured values break a rule; see _NO_WORDS."""
        if rule == "empty":
            return values > (_NO_WORDS if self.max_removed_ratio is None else 0)
        return super().fails(rule, values)

    def _counters(self, data: Bytes, lines: linerules.MeasuredLines) -> Bytes:
        """Return which lines are counters, (L,) 0 or 1; the expression runs on few of them."""
        is_counter = np.zeros(len(lines.begins), np.uint8)
        if self.drop_counters:
            pattern = counter_pattern()
            for line in np.flatnonzero(lines.gates & linerules.MAY_COUNT).tolist():
                content = _content(data, lines, line).lower()
                is_counter[line] = pattern.search(content) is not None
        return is_counter

    def _pages_with_phrases(
        self, data: Bytes, lines: linerules.MeasuredLines, line_codes: Bytes
    ) -> Int64s:
        """Return the documents in which a line that stays holds a phrase."""
        patterns = phrase_patterns(self.variant == "refinedweb")
        gated = (line_codes == 0) & (lines.gates & linerules.MAY_HOLD_PHRASE != 0)
        holding = [
            line
            for line in np.flatnonzero(gated).tolist()
            if holds_phrase(_content(data, lines, line), patterns)
        ]
        return np.unique(lines.rows(np.array(holding, np.int64)))

    def _with_phrases(self, text: Utf8, cuts: Cuts, documents: Int64s, flagged: Int64s) -> Cuts:
        """Return the cuts with those of phrases in some documents; adds to `flagged` words."""
        if len(documents) == 0:
            return cuts
        patterns = phrase_patterns(self.variant == "refinedweb")
        new_cuts = []
        for row in documents.tolist():
            first, last = np.searchsorted(cuts.rows, [row, row + 1])
            arrays = (cuts.starts, cuts.ends, cuts.codes)
            old = list(zip(*(array[first:last].tolist() for array in arrays), strict=True))
            data = text.row(row)
            ranges = _outside(old, len(data))
            text_left = b"".join(data[a:b] for a, b in ranges).decode()
            phrases, num_words = cut_phrases(text_left, patterns, self.max_phrase_words)
            flagged[row] += num_words
            row_cuts = sorted([*old, *_lift(_in_bytes(phrases, text_left), ranges)])
            new_cuts += [(row, *cut) for cut in row_cuts]
        is_unchanged = ~np.isin(cuts.rows, documents)
        table = np.array(new_cuts, np.int64).reshape(-1, 4)
        table = np.concatenate([table, np.stack([array[is_unchanged] for array in cuts], axis=1)])
        rows, starts, ends, codes = table[np.lexsort((table[:, 1], table[:, 0]))].T
        return Cuts(rows, starts, ends, codes.astype(np.uint8))

    def _removed_ratio(
        self, text: Utf8, lines: linerules.MeasuredLines, after: Utf8, cuts: Cuts, flagged: Int64s
    ) -> Float64s:
        """Return the share of words that count as lost; NaN where there were none."""
        if self.variant == "refinedweb":
            totals = np.add.reduceat(lines.counts[3], lines.bounds[:-1]) if len(text) else flagged
            removed = flagged
        else:
            totals = linerules.count_words(text.offsets, text.data)
            edited = np.unique(cuts.rows)
            removed = totals - linerules.count_words(after.offsets, after.data, totals, edited)
        ratio = np.full(len(totals), np.nan)
        np.divide(removed, totals, out=ratio, where=totals > 0)
        return ratio


def _content(data: Bytes, lines: linerules.MeasuredLines, line: int) -> str:
    return data[lines.edges[0, line] : lines.edges[1, line]].tobytes().decode()


def _outside(cuts: list[tuple[int, int, int]], size: int) -> list[tuple[int, int]]:
    edges = [0, *(edge for start, end, _ in cuts for edge in (start, end)), size]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]


def _in_bytes(cuts: list[tuple[int, int, int]], text: str) -> list[tuple[int, int, int]]:
    if text.isascii():
        return cuts
    offsets = np.zeros(len(text) + 1, np.int64)
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    offsets[1:] = np.cumsum(1 + np.sum([points >= low for low in (0x80, 0x800, 0x10000)], axis=0))
    return [(int(offsets[start]), int(offsets[end]), code) for start, end, code in cuts]


def _lift(
    cuts: list[tuple[int, int, int]], ranges: list[tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """Yield cuts of the text that is left as ranges of the document.

    Args:
        cuts: start, end and code in the text that is left.
        ranges: where in the document that text is, range by range.
    """
    number, bytes_before = 0, 0  # bytes that are left before range `number`
    for start, end, code in cuts:
        while bytes_before + ranges[number][1] - ranges[number][0] <= start:
            bytes_before += ranges[number][1] - ranges[number][0]
            number += 1
        index, left_before = number, bytes_before
        while start < end:
            low, high = ranges[index]
            stop = min(end, left_before + high - low)
            yield low + start - left_before, low + stop - left_before, code
            start, index, left_before = stop, index + 1, left_before + high - low


# ----------------------------------------------------------------------
# Set phrases of shops and sign-in boxes, cut out of short lines; few pages have one.

Segments = list[tuple[int, int]]
"""What is left of a line: ranges of characters of the text."""


def phrase_patterns(is_literal: bool) -> tuple[re.Pattern[str], ...]:
    """Return what is cut anywhere in a line, at its end, and at its beginning, in this order.

    Args:
        is_literal: the dots after "Read more" are dots; otherwise any three characters.
    """
    read_more = re.escape("Read more...") if is_literal else "Read more..."
    return (
        re.compile(r"\s?items in cart", re.IGNORECASE),
        re.compile(rf"\s?{read_more}$", re.IGNORECASE),
        re.compile(r"^Sign-in\s?", re.IGNORECASE),
    )


def holds_phrase(line: str, patterns: Sequence[re.Pattern[str]]) -> bool:
    """Return whether a pattern matches a line, as it is or stripped as the ends of a page are."""
    lines = {line, line.strip()}
    return any(pattern.search(content) for content in lines for pattern in patterns)


def cut_phrases(
    text: str, patterns: Sequence[re.Pattern[str]], max_words: int
) -> tuple[list[tuple[int, int, int]], int]:
    """Return the cuts of a page, and the words of all lines that lose something.

    Each pattern is applied to all lines of at most `max_words` words; a line that it leaves blank
    goes, and the page is stripped before the next pattern.

    Returns:
        (start, end, code) in characters, sorted and disjoint; and the number of words.
    """
    lines: list[Segments] = []
    pos = 0
    for line in text.split("\n"):
        lines.append([(pos, pos + len(line))])
        pos += len(line) + 1
    flagged: dict[int, int] = {}
    for pattern in patterns:
        lines = [new for line in lines if (new := _edit(text, line, pattern, max_words, flagged))]
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
    full_line = text[start : line[-1][1]]
    flagged.setdefault(text.rfind("\n", 0, start) + 1, len(full_line.split()))
    for a, b in reversed(spans):
        line = [*_segments_between(line, 0, a), *_segments_between(line, b, len(content))]
    content_left = "".join(text[a:b] for a, b in line)
    return line if content_left and not content_left.isspace() else []


def _segments_between(line: Segments, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the segments of characters `start` to `end` of what is left of a line."""
    pos = 0
    for a, b in line:
        low, high = max(start - pos, 0), min(end - pos, b - a)
        if low < high:
            yield a + low, a + high
        pos += b - a


def _strip(text: str, lines: list[Segments]) -> None:
    """Strip a page: blank lines at its ends go, the first and last line lose whitespace."""
    for end in (0, -1):
        while lines:
            content = "".join(text[a:b] for a, b in lines[end])
            bare = content.lstrip() if end == 0 else content.rstrip()
            if bare:
                start = len(content) - len(bare) if end == 0 else 0
                lines[end] = list(_segments_between(lines[end], start, start + len(bare)))
                break
            del lines[end]


def _cuts(text: str, lines: list[Segments]) -> Iterator[tuple[int, int, int]]:
    """Yield the ranges that are not in `lines`, except one line end between two lines."""
    pos = 0
    for number, line in enumerate(lines):
        if number:
            line_end = text.index("\n", pos)
            yield from _cut(text, pos, line_end)
            pos = line_end + 1
        yield from _cut(text, pos, line[0][0])
        for (_, b), (a, _) in itertools.pairwise(line):
            yield b, a, PHRASE
        pos = line[-1][1]
    yield from _cut(text, pos, len(text))


def _cut(text: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    if start < end:
        yield start, end, WHITESPACE if text[start:end].isspace() else PHRASE

"""The document rules that FineWeb added to Gopher's and C4's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from corpuskit.kernels.arrays import Float64s
from corpuskit.kernels.filters.fineweb import MEASURES, measure_lines
from corpuskit.kernels.utf8 import TERMINAL
from corpuskit.stage import Example, View
from corpuskit.stages.filters._languages import UNKNOWN, LanguageFilter
from corpuskit.stages.filters._measured import Rule
from corpuskit.text.words import splitter


def _one_char(value: str) -> str:
    if len(value) != 1:
        raise ValueError("must be one character")
    return value


_LINE = "A line of prose that is long enough not to be short."
_OFF = {"min_line_punct_ratio": None, "max_short_line_ratio": None, "max_char_dup_ratio": None}


class FinewebQuality(LanguageFilter):
    r"""Drop documents whose lines read like menus, lists or boilerplate.

    Few lines end a sentence, most are short, some are repeated, or there are few words per line.
    Lines end with \n, and blank ones are ignored; their ends are tested as they are, so a space or
    \r after the full stop hides it. `null` switches a rule off. The first rule that fails gives the
    reason. A rule whose denominator is zero does not fail, where the reference divides by zero (a
    text without words).

    Source: Penedo et al. 2024 (FineWeb), section 3.6; equals datatrove 0.10.1's
    FineWebQualityFilter, reasons included. There `line_punct_thr`, `line_punct_exclude_zero`,
    `short_line_thr`, `short_line_length`, `char_duplicates_ratio` and `new_line_ratio` are what is
    called `min_line_punct_ratio`, `keep_unpunctuated`, `max_short_line_ratio`, `short_line_chars`,
    `max_char_dup_ratio` and `max_newline_ratio` here, and stop characters may be longer strings.
    FineWeb2 sets `max_short_line_ratio: null`, `max_char_dup_ratio: 0.1`, and the other two bounds
    by language; in its files, unlike in the reference, an upper bound of 0 switches a rule off.
    """

    table: ClassVar[tuple[Rule, ...]] = (
        Rule("empty", "num_lines", below="min_lines"),
        Rule("line_punct_ratio", below="min_line_punct_ratio"),
        Rule("short_line_ratio", above="max_short_line_ratio"),
        Rule("char_dup_ratio", above="max_char_dup_ratio"),
        Rule("list_ratio", above="max_newline_ratio"),
    )
    keys: ClassVar[Mapping[str, str]] = {
        "line_punct_thr": "min_line_punct_ratio",
        "short_line_thr": "max_short_line_ratio",
        "short_line_length": "short_line_chars",
        "char_duplicates_ratio": "max_char_dup_ratio",
        "new_line_ratio": "max_newline_ratio",
    }
    text_speed: ClassVar[float] = 120e6
    examples: ClassVar[tuple[Example, ...]] = (
        Example(_LINE),
        Example(" \n\t\n", "empty"),
        Example("Home\nProducts\nAbout us\nContact", "line_punct_ratio"),
        Example("Yes.\nNo.\n" + _LINE, None, {"max_short_line_ratio": 0.7}),
        Example("Yes.\nNo.\nMaybe.\n" + _LINE, "short_line_ratio"),
        Example(f"{_LINE}\n{_LINE}", "char_dup_ratio"),
        Example("bread\nmilk\nhoney\n", "list_ratio", _OFF),
        Example("bread\nmilk\nhoney and jam and tea", None, {**_OFF, "max_newline_ratio": 0.5}),
        Example(_LINE, UNKNOWN, {"per_language": "languages", "unknown_language": "drop"}),
    )

    min_lines: int = Field(1, ge=0)
    """Fewest lines that are not blank; the reference has 1."""
    min_line_punct_ratio: float | None = Field(0.12, ge=0, le=1)
    """Least share of lines that end in a stop character."""
    keep_unpunctuated: bool = False
    """Let documents pass the rule above in which no line at all ends in one."""
    stop_chars: tuple[Annotated[str, AfterValidator(_one_char)], ...] | None = None
    """Characters that end a sentence; `null`: those of the reference, 158 of many scripts."""
    max_short_line_ratio: float | None = Field(0.67, ge=0, le=1)
    """Largest share of short lines."""
    short_line_chars: int = Field(30, ge=0)
    """A line of at most this many characters is short."""
    max_char_dup_ratio: float | None = Field(0.01, ge=0, le=1)
    """Largest share of characters in lines that repeat an earlier one."""
    max_newline_ratio: float | None = Field(0.3, ge=0)
    """Most line ends per word."""

    @model_validator(mode="after")
    def _check_language(self) -> Self:
        return self.check_splits(needs_words=self.max_newline_ratio is not None or self.measures)

    def measure(self, view: View) -> Mapping[str, Float64s]:
        stop_chars = TERMINAL if self.stop_chars is None else self.stop_chars
        offsets, data = view.text
        table = measure_lines(offsets, data, stop_chars, self.short_line_chars)
        measured = dict(zip(MEASURES, table, strict=True))
        punctuated = measured["line_punct_ratio"]
        if self.keep_unpunctuated:
            punctuated[punctuated == 0] = np.nan
        if self.max_newline_ratio is not None or self.measures:
            num_words = np.diff(view.fact(splitter(self.words, self.language)).offsets)
            ratio = np.full(view.num_docs, np.nan)
            np.divide(measured["num_newlines"], num_words, out=ratio, where=num_words > 0)
            measured["list_ratio"] = ratio
        return measured

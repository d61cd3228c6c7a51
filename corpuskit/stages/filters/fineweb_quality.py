"""The document rules that FineWeb added to Gopher's and C4's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from corpuskit.kernels.filters.fineweb import MEASURES, measure_lines
from corpuskit.kernels.punctuation import TERMINAL
from corpuskit.paths import PathText
from corpuskit.stage import Cost, Example, Outcome, StreamingStage
from corpuskit.stages._words import WordSplit, check_language, splitter
from corpuskit.stages.filters._languages import (
    LABEL,
    UNKNOWN,
    OnUnknown,
    check_labels,
    check_languages,
    decide_by_language,
    language_columns,
    language_files,
    word_libraries,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corpuskit.stage import Known, View, Volume


def _one_char(value: str) -> str:
    if len(value) != 1:
        raise ValueError("must be one character")
    return value


_RULES = {  # rule -> parameter that bounds it, in the order of the reference
    "empty": "min_lines",
    "line_punct_ratio": "min_line_punct_ratio",
    "short_line_ratio": "max_short_line_ratio",
    "char_dup_ratio": "max_char_dup_ratio",
    "list_ratio": "max_newline_ratio",
}

_NAMES = {  # key in a file of a language -> parameter
    "line_punct_thr": "min_line_punct_ratio",
    "short_line_thr": "max_short_line_ratio",
    "short_line_length": "short_line_chars",
    "char_duplicates_ratio": "max_char_dup_ratio",
    "new_line_ratio": "max_newline_ratio",
}

_LINE = "A line of prose that is long enough not to be short."
_OFF = {"min_line_punct_ratio": None, "max_short_line_ratio": None, "max_char_dup_ratio": None}


class FinewebQuality(StreamingStage):
    r"""Drop documents whose lines read like menus, lists or boilerplate.

    Few lines end a sentence, most are short, some are repeated, or there are few words per line.
    Lines are what lies between \n, blank ones left out; their ends are tested as they are, so that
    a space or \r after the full stop hides it. `null` switches a rule off. The first rule that
    fails gives the reason; a rule whose denominator is zero does not fail, where the reference
    divides by zero (a text of which its tokenizer returns no words at all).

    Source: Penedo et al. 2024 (FineWeb), section 3.6; equals datatrove 0.10.1's
    FineWebQualityFilter, reasons included. There `line_punct_thr`, `line_punct_exclude_zero`,
    `short_line_thr`, `short_line_length`, `char_duplicates_ratio` and `new_line_ratio` are what is
    called `min_line_punct_ratio`, `keep_unpunctuated`, `max_short_line_ratio`, `short_line_chars`,
    `max_char_dup_ratio` and `max_newline_ratio` here, and stop characters may be longer strings.
    FineWeb2 sets `max_short_line_ratio: null`, `max_char_dup_ratio: 0.1`, and the other two bounds
    by language; in its files, unlike in the reference, an upper bound of 0 switches a rule off.
    """

    rules: ClassVar[tuple[str, ...]] = (*_RULES, UNKNOWN)
    bounds: ClassVar[Mapping[str, str]] = _RULES
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
    words: WordSplit = "spacy"
    """How text is split into words; `spacy` as the reference does."""
    language: str = Field("en", min_length=1)
    """Language by whose rules spaCy splits."""
    per_language: PathText | None = Field(None, min_length=1)
    """Folder with a file of parameters for each language, such as deu_Latn.yml (FineWeb2's shape),
    or a pattern such as configs/{language}.yml."""
    language_column: str = Field(LABEL, min_length=1)
    """Column that tells the language of a document."""
    unknown_language: OnUnknown = "error"
    """What becomes of a document whose language has no file; `defaults`: the parameters here."""
    measures: bool = False
    """Also store what every rule measured, so that bounds can be tuned without another run."""

    @model_validator(mode="after")
    def _check_language(self) -> FinewebQuality:
        check_languages(self)
        needs_words = self.max_newline_ratio is not None or self.measures
        if needs_words and self.per_language is None:
            check_language(self.words, self.language)
        return self

    def files(self) -> tuple[str, ...]:
        return language_files(self, _NAMES)

    def check(self, known: Known) -> None:
        check_labels(self, known, _NAMES)

    def needs(self) -> tuple[str, ...]:
        return language_columns(self)

    def libraries(self) -> tuple[str, ...]:
        return word_libraries(self.words)

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        return Cost(cpu_seconds=volume.text_bytes / 120e6)

    def apply(self, view: View) -> Outcome:
        return decide_by_language(self, view, _NAMES, FinewebQuality._decide)

    def _decide(self, view: View) -> Outcome:
        measured = self._measure(view)
        codes = np.zeros(view.num_docs, np.uint8)
        values = np.full(view.num_docs, np.nan)
        for code, (rule, bound) in enumerate(_RULES.items(), start=1):
            limit = getattr(self, bound)
            if limit is None:
                continue
            value = measured[rule]
            fails = value < limit if bound.startswith("min_") else value > limit
            fails &= codes == 0
            codes[fails] = code
            values[fails] = value[fails]
        return Outcome(codes=codes, values=values, measures=measured if self.measures else {})

    def _measure(self, view: View) -> dict[str, NDArray[np.float64]]:
        """Return what every rule compares with its bound; NaN never fails."""
        stop_chars = TERMINAL if self.stop_chars is None else self.stop_chars
        table = measure_lines(view.text.offsets, view.text.data, stop_chars, self.short_line_chars)
        measured = dict(zip(_RULES, table[: len(_RULES) - 1], strict=False))
        punctuated = measured["line_punct_ratio"]
        if self.keep_unpunctuated:
            punctuated[punctuated == 0] = np.nan
        newlines = table[MEASURES.index("num_newlines")]
        if self.max_newline_ratio is None and not self.measures:
            return measured
        num_words = np.diff(view.fact(splitter(self.words, self.language)).offsets)
        measured["list_ratio"] = np.full(view.num_docs, np.nan)
        np.divide(newlines, num_words, out=measured["list_ratio"], where=num_words > 0)
        return measured

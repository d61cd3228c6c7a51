"""The repetition rules of Gopher, as datatrove words them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from corpuskit.kernels.arrays import Bools
from corpuskit.kernels.filters.repetition import (
    LONGEST,
    MEASURES,
    VARIANTS,
    measure_repetition,
    measure_variant,
)
from corpuskit.stage import Example, Outcome, View
from corpuskit.stages.filters._languages import UNKNOWN, LanguageFilter
from corpuskit.stages.filters._measured import Rule
from corpuskit.text.words import splitter


def _as_mapping(value: Any) -> Any:
    """Take pairs, as the reference has them, for a mapping; YAML and JSON have strings as keys."""
    pairs = dict(value) if isinstance(value, list | tuple) else value
    if not isinstance(pairs, dict):
        return pairs
    return {
        int(key) if isinstance(key, str) and key.isdecimal() else key: bound
        for key, bound in pairs.items()
    }


def _in_order(value: dict[int, float | None]) -> dict[int, float | None]:
    return dict(sorted(value.items()))


Ngrams = Annotated[
    dict[Annotated[int, Field(ge=1, le=LONGEST)], Annotated[float, Field(ge=0)] | None],
    BeforeValidator(_as_mapping),
    AfterValidator(_in_order),
]

_LENGTHS = range(1, LONGEST + 1)

_PROSE = (
    "The cat sat with the dog that we have, and looked to the end of the long white road. Nobody "
    "came along it before noon; then a cart did, slowly, drawn by two old horses."
)
_OFF: dict[str, Any] = {
    "max_dup_paragraphs_ratio": None,
    "max_dup_paragraph_chars_ratio": None,
    "max_dup_lines_ratio": None,
    "max_dup_line_chars_ratio": None,
    "max_top_ngram_ratios": {},
    "max_dup_ngram_ratios": {},
}


def _only(name: str, value: Any) -> dict[str, Any]:
    """Return parameters in which one bound alone is on."""
    return {**_OFF, name: value}


class GopherRepetition(LanguageFilter):
    """Drop documents that repeat themselves: paragraphs, lines, runs of words.

    Use it on web text. `null` switches a bound off; rules are tried in the order listed, and the
    first that fails gives the reason. Of repeated paragraphs, lines and runs of words the first
    copy does not count; characters are a share of all characters of the text, spaces included. The
    most frequent run of n words counts as often as it occurs, overlaps included, even if that is
    once: two words alone break `top_2_gram`. Runs of n words are duplicates if they are equal when
    written without spaces, and the search continues after each duplicate.

    `dolma` and `dclm` measure the same rules differently, with their own words (`words` and
    `language` are for datatrove): all copies count, the first included; shares are of characters
    that are not whitespace (dclm: of those of words that begin with a letter or digit, and for
    lines and paragraphs of those in stripped ones). dolma (gopher_v1) has no paragraphs, splits at
    every newline, so that blank lines are duplicates, and counts overlapping runs as often as they
    overlap, of all runs. dclm ignores blank lines, a single line does not repeat, among equally
    frequent runs the longest counts, and words covered by duplicated runs count once.

    Source: Rae et al. 2021 (Gopher), table A1; equals datatrove 0.10.1's GopherRepetitionFilter,
    reasons included. There 0 switches bounds of paragraphs and lines off, which is refused here.
    Variants: dolma 1.2.1, taggers/gopher.py; DCLM (mlfoundations/dclm at c7ed275),
    baselines/mappers/filters/content_filters.py, massive_web_repetition_filters.
    """

    table: ClassVar[tuple[Rule, ...]] = (
        Rule("empty"),
        Rule("dup_para_frac", above="max_dup_paragraphs_ratio"),
        Rule("dup_para_char_frac", above="max_dup_paragraph_chars_ratio"),
        Rule("dup_line_frac", above="max_dup_lines_ratio"),
        Rule("dup_line_char_frac", above="max_dup_line_chars_ratio"),
        *(Rule(f"top_{n}_gram", above="max_top_ngram_ratios") for n in _LENGTHS),
        *(Rule(f"duplicated_{n}_n_grams", above="max_dup_ngram_ratios") for n in _LENGTHS),
    )
    keys: ClassVar[Mapping[str, str]] = {
        "dup_para_frac": "max_dup_paragraphs_ratio",
        "dup_para_char_frac": "max_dup_paragraph_chars_ratio",
        "dup_line_frac": "max_dup_lines_ratio",
        "dup_line_char_frac": "max_dup_line_chars_ratio",
        "top_n_grams": "max_top_ngram_ratios",
        "dup_n_grams": "max_dup_ngram_ratios",
    }
    text_speed: ClassVar[float] = 70e6
    examples: ClassVar[tuple[Example, ...]] = (
        Example(_PROSE),
        Example("", "empty"),
        Example("one\n\none\n\none", "dup_para_frac"),
        Example(f"{_PROSE}\n\n{_PROSE}\n\nAnd then\n\nit rained.\n\nIt did.", "dup_para_char_frac"),
        Example("one\ntwo\none\none", "dup_line_frac"),
        Example(f"{_PROSE}\n{_PROSE}\nAnd then\nit rained.\nIt did.", "dup_line_char_frac"),
        *(
            Example("one two " * 12, f"top_{n}_gram", _only("max_top_ngram_ratios", {n: 0.2}))
            for n in _LENGTHS
        ),
        *(
            Example(
                "one two " * 12, f"duplicated_{n}_n_grams", _only("max_dup_ngram_ratios", {n: 0.1})
            )
            for n in _LENGTHS
        ),
        Example(f"{_PROSE}\n\n{_PROSE}\n\nAnd so on.", "dup_para_frac", {"variant": "dclm"}),
        Example("one\n\ntwo\n\nthree\n\nfour", "dup_line_frac", {"variant": "dolma"}),
        Example(_PROSE, UNKNOWN, {"per_language": "languages", "unknown_language": "drop"}),
    )

    max_dup_paragraphs_ratio: float | None = Field(0.3, gt=0)
    """Largest share of paragraphs that are repeated (reference: dup_para_frac)."""
    max_dup_paragraph_chars_ratio: float | None = Field(0.2, gt=0)
    """Largest share of characters in repeated paragraphs (reference: dup_para_char_frac)."""
    max_dup_lines_ratio: float | None = Field(0.3, gt=0)
    """Largest share of lines that are repeated (reference: dup_line_frac)."""
    max_dup_line_chars_ratio: float | None = Field(0.2, gt=0)
    """Largest share of characters in repeated lines (reference: dup_line_char_frac)."""
    max_top_ngram_ratios: Ngrams = Field({2: 0.2, 3: 0.18, 4: 0.16})
    """Words n, up to 10 -> largest share of characters in the most frequent run of n words; null:
    only measured (reference: top_n_grams)."""
    max_dup_ngram_ratios: Ngrams = Field({5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10})
    """Words n, up to 10 -> largest share of characters in duplicated runs of n words; null: only
    measured (reference: dup_n_grams)."""
    variant: Literal["datatrove", "dolma", "dclm"] = "datatrove"
    """Whose measures: see above."""

    @model_validator(mode="after")
    def _check_words(self) -> Self:
        if self.variant != "datatrove" and (self.words, self.language) != ("spacy", "en"):
            raise ValueError(f"words, language: {self.variant} splits in its own way")
        return self.check_splits()

    def threshold(self, rule: str) -> float:
        bound = getattr(self, self.bounds[rule]) if rule in self.bounds else None
        if isinstance(bound, dict):
            bound = bound.get(int("".join(filter(str.isdigit, rule))))
        return float("nan") if bound is None else float(bound)

    def libraries(self) -> tuple[str, ...]:
        return super().libraries() if self.variant == "datatrove" else ()

    def decide(self, view: View) -> Outcome:
        """Decide while measuring: the kernel stops at the first rule that fails."""
        names = [rule.name for rule in self.table]
        limits = np.array([self.threshold(name) for name in names])
        stored = self._stored() if self.measures else None
        offsets, data = view.text
        if self.variant == "datatrove":
            words = view.fact(splitter(self.words, self.language))
            outcome = measure_repetition(offsets, data, words, limits, stored)
        else:
            words = view.fact(splitter(VARIANTS[self.variant]))
            outcome = measure_variant(self.variant, offsets, data, words, limits, stored)
        measured = {}
        if stored is not None:
            measured = {names[k]: outcome.measured[k] for k in np.flatnonzero(stored).tolist()}
        return Outcome(codes=outcome.codes, values=outcome.values, measures=measured)

    def _stored(self) -> Bools:
        """Return which measures are stored: of runs, those of the lengths that are named."""
        stored = np.zeros(len(MEASURES), np.bool_)
        stored[:5] = True
        for first, ratios in ((4, self.max_top_ngram_ratios), (14, self.max_dup_ngram_ratios)):
            stored[[first + n for n in ratios]] = True
        return stored

"""The document rules of Gopher, as datatrove words them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from corpuskit.kernels.filters.quality import MEASURES, measure_quality
from corpuskit.kernels.filters.quality_variants import measure_dclm_quality, measure_dolma_quality
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
    from corpuskit.stage import Known, View, Volume


def _one_word(value: str) -> str:
    if value.split() != [value]:
        raise ValueError("must be one word, without whitespace")
    return value


_RULES = {  # rule -> (what it measures, parameter that bounds it), in the order of the reference
    "gopher_short_doc": ("num_words", "min_words"),
    "gopher_long_doc": ("num_words", "max_words"),
    "gopher_below_avg_threshold": ("word_length", "min_mean_word_length"),
    "gopher_above_avg_threshold": ("word_length", "max_mean_word_length"),
    "gopher_too_many_hashes": ("hash_ratio", "max_symbol_ratio"),
    "gopher_too_many_ellipsis": ("ellipsis_ratio", "max_symbol_ratio"),
    "gopher_too_many_bullets": ("bullet_lines_ratio", "max_bullet_lines_ratio"),
    "gopher_too_many_end_ellipsis": ("ellipsis_lines_ratio", "max_ellipsis_lines_ratio"),
    "gopher_below_alpha_threshold": ("alpha_words_ratio", "min_alpha_words_ratio"),
    "gopher_enough_stop_words": ("num_stop_words", "min_stop_words"),
}
_NAMES = {  # key in a file of a language -> parameter
    "min_doc_words": "min_words",
    "max_doc_words": "max_words",
    "min_avg_word_length": "min_mean_word_length",
    "max_avg_word_length": "max_mean_word_length",
    "max_symbol_word_ratio": "max_symbol_ratio",
    "max_bullet_lines_ratio": "max_bullet_lines_ratio",
    "max_ellipsis_lines_ratio": "max_ellipsis_lines_ratio",
    "max_non_alpha_words_ratio": "min_alpha_words_ratio",
    "min_stop_words": "min_stop_words",
    "stopwords": "stop_words",
}
_MEASURE = {
    "datatrove": measure_quality,
    "dolma": measure_dolma_quality,
    "dclm": measure_dclm_quality,
}

_PROSE = "The cat sat with the dog that we have and looked to the end of the road. "
_OFF = {"min_words": 1}


class GopherQuality(StreamingStage):
    """Drop documents that do not look like prose: length, word shape, symbols, lists, stop words.

    Use it on web text in a language whose stop words you give. `null` switches a rule off. The
    first rule that fails gives the reason; a rule whose denominator is zero (no words, no lines)
    does not fail, where the reference divides by zero.

    `words: spacy` gives datatrove's decisions. `whitespace` is nearer to the paper's wording and
    another filter: it decided otherwise on 3,767 of 6,186 English technical documents (61 %), since
    punctuation that spaCy splits off counts as words without a letter.

    `dolma` and `dclm` are other measures behind the same rules, on whitespace-separated words
    (`words` and `language` are for datatrove): no words are left out, all symbols count together
    under `gopher_too_many_hashes`, each occurrence of a stop word counts, and lines end at newlines
    only. dolma (gopher_v1): the median word length, words with a hash sign or U+2026, bullets * and
    - at the very beginning, U+2026 at the very end of a line, blank lines included. dclm: words are
    counted as fastText splits, those that begin with a letter or digit; ellipses may have spaces in
    between; stop words count in capitals too; blank lines are none; a text without words fails
    where there is a bound. Its share of words without a letter is 1 - `min_alpha_words_ratio`.

    Source: Rae et al. 2021 (Gopher), appendix A.1; equals datatrove 0.10.1's GopherQualityFilter,
    reasons included. There `max_non_alpha_words_ratio` is what is called `min_alpha_words_ratio`
    here, and 0 switches an upper bound off, which is refused here. Variants: dolma 1.2.1,
    taggers/gopher.py; DCLM (mlfoundations/dclm at c7ed275),
    baselines/mappers/filters/content_filters.py.
    """

    rules: ClassVar[tuple[str, ...]] = (*_RULES, UNKNOWN)
    bounds: ClassVar[Mapping[str, str]] = {rule: bound for rule, (_, bound) in _RULES.items()}
    examples: ClassVar[tuple[Example, ...]] = (
        Example(_PROSE * 4),
        Example("Too short.", "gopher_short_doc"),
        Example(_PROSE * 4, "gopher_long_doc", {"max_words": 60}),
        Example("a b c d and so on to the end", "gopher_below_avg_threshold", _OFF),
        Example(
            "the internationalization and containerization", "gopher_above_avg_threshold", _OFF
        ),
        Example("#the road to #ruin and back", "gopher_too_many_hashes", _OFF),
        Example("the road... and the end", "gopher_too_many_ellipsis", _OFF),
        Example("- the road\n- and the end", "gopher_too_many_bullets", _OFF),
        Example(
            "the road and the end that we have to reach, to be sure, of course, and back\u2026",
            "gopher_too_many_end_ellipsis",
            _OFF,
        ),
        Example("the road 2024 12.50 and 300", "gopher_below_alpha_threshold", _OFF),
        Example("Roads lead nowhere, except home", "gopher_enough_stop_words", _OFF),
        Example(_PROSE * 4, None, {"variant": "dolma"}),
        Example(_PROSE * 4, None, {"variant": "dclm"}),
        Example(
            "the road \u2026 and a # end", "gopher_too_many_hashes", {**_OFF, "variant": "dolma"}
        ),
        Example(
            "the winding road . . . and home", "gopher_too_many_hashes", {**_OFF, "variant": "dclm"}
        ),
        Example(_PROSE, UNKNOWN, {"per_language": "languages", "unknown_language": "drop"}),
    )

    min_words: int | None = Field(50, ge=0)
    """Fewest words, those of punctuation alone left out."""
    max_words: int | None = Field(100_000, gt=0)
    """Most words, those of punctuation alone left out."""
    min_mean_word_length: float | None = Field(3.0, ge=0)
    """Least mean length of words in characters, those of punctuation alone left out."""
    max_mean_word_length: float | None = Field(10.0, gt=0)
    """Largest mean length of words in characters, those of punctuation alone left out."""
    max_symbol_ratio: float | None = Field(0.1, gt=0)
    """Most hash signs per word, and most ellipses per word."""
    max_bullet_lines_ratio: float | None = Field(0.9, gt=0, le=1)
    """Largest share of lines that begin with a bullet or a hyphen."""
    max_ellipsis_lines_ratio: float | None = Field(0.3, gt=0, le=1)
    """Largest share of lines that end in an ellipsis."""
    min_alpha_words_ratio: float | None = Field(0.8, ge=0, le=1)
    """Least share of words that hold a letter."""
    min_stop_words: int | None = Field(2, ge=0)
    """Fewest different stop words."""
    stop_words: tuple[Annotated[str, AfterValidator(_one_word)], ...] = Field(
        ("the", "be", "to", "of", "and", "that", "have", "with"), max_length=255
    )
    """Stop words, compared letter for letter: `The` is not `the`."""
    words: WordSplit = "spacy"
    """How text is split into words."""
    language: str = Field("en", min_length=1)
    """Language by whose rules spaCy splits."""
    variant: Literal["datatrove", "dolma", "dclm"] = "datatrove"
    """Whose measures: see above."""
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
    def _check_words(self) -> GopherQuality:
        check_languages(self)
        if self.variant != "datatrove" and (self.words, self.language) != ("spacy", "en"):
            raise ValueError(f"words, language: {self.variant} splits in its own way")
        if self.variant == "dclm" and not all(map(str.isascii, self.stop_words)):
            raise ValueError("stop_words: dclm knows ASCII ones only")
        if self.per_language is None:
            check_language(self.words, self.language)
        return self

    def files(self) -> tuple[str, ...]:
        return language_files(self, _NAMES)

    def libraries(self) -> tuple[str, ...]:
        return word_libraries(self.words) if self.variant == "datatrove" else ()

    def check(self, known: Known) -> None:
        check_labels(self, known, _NAMES)

    def needs(self) -> tuple[str, ...]:
        return language_columns(self)

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        return Cost(cpu_seconds=volume.text_bytes / 100e6)

    def apply(self, view: View) -> Outcome:
        return decide_by_language(self, view, _NAMES, GopherQuality._decide)

    def _decide(self, view: View) -> Outcome:
        split = splitter(self.words, self.language)
        words = view.fact(split if self.variant == "datatrove" else splitter("whitespace"))
        measure = _MEASURE[self.variant]
        stop_words = tuple(dict.fromkeys(self.stop_words))
        table = measure(view.text.offsets, view.text.data, words, stop_words)
        measured = {rule: table[MEASURES.index(name)] for rule, (name, _) in _RULES.items()}
        codes = np.zeros(view.num_docs, np.uint8)
        values = np.full(view.num_docs, np.nan)
        for code, (rule, (_, bound)) in enumerate(_RULES.items(), start=1):
            limit = getattr(self, bound)
            if limit is None:
                continue
            value = measured[rule]
            fails = value < limit if bound.startswith("min_") else value > limit
            fails &= codes == 0
            codes[fails] = code
            values[fails] = value[fails]
        return Outcome(codes=codes, values=values, measures=measured if self.measures else {})

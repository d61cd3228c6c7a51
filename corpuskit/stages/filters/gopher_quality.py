"""The document rules of Gopher, as datatrove words them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from corpuskit.kernels.arrays import Float64s
from corpuskit.kernels.filters.quality import (
    MEASURES,
    measure_dclm_quality,
    measure_dolma_quality,
    measure_quality,
    measure_spaced_quality,
)
from corpuskit.stage import Example, View
from corpuskit.stages.filters._languages import UNKNOWN, LanguageFilter
from corpuskit.stages.filters._measured import Rule
from corpuskit.text.words import splitter


def _one_word(value: str) -> str:
    if value.split() != [value]:
        raise ValueError("must be one word, without whitespace")
    return value


_MEASURE = {
    "datatrove": measure_quality,
    "dolma": measure_dolma_quality,
    "dclm": measure_dclm_quality,
}

_PROSE = "The cat sat with the dog that we have and looked to the end of the road. "
_OFF = {"min_words": 1}


class GopherQuality(LanguageFilter):
    """Drop documents that do not look like prose: length, word shape, symbols, lists, stop words.

    Use it on web text in a language whose stop words you give. `null` switches a rule off. The
    first rule that fails gives the reason; a rule whose denominator is zero (no words, no lines)
    does not fail, where the reference divides by zero.

    `words: spacy` gives datatrove's decisions. `whitespace` is nearer to the paper's wording, but
    decides otherwise on 3,767 of 6,186 English technical documents (61 %): punctuation that spaCy
    splits off counts as words without a letter.

    `dolma` and `dclm` measure the same rules differently, on whitespace-separated words (`words`
    and `language` are for datatrove): all words count, all symbols count together under
    `gopher_too_many_hashes`, each occurrence of a stop word counts, and lines end at newlines only.
    dolma (gopher_v1): the median word length, words with a hash sign or U+2026, bullets * and - at
    the very beginning, U+2026 at the very end of a line, blank lines included. dclm: words are
    counted as fastText splits, if they begin with a letter or digit; ellipses may have spaces in
    between; capitalised stop words count; blank lines don't; a text without words fails rules with
    a bound. Its share of words without a letter is 1 - `min_alpha_words_ratio`.

    Source: Rae et al. 2021 (Gopher), appendix A.1; equals datatrove 0.10.1's GopherQualityFilter,
    reasons included. There `max_non_alpha_words_ratio` is what is called `min_alpha_words_ratio`
    here, and 0 switches an upper bound off, which is refused here. Variants: dolma 1.2.1,
    taggers/gopher.py; DCLM (mlfoundations/dclm at c7ed275),
    baselines/mappers/filters/content_filters.py.
    """

    table: ClassVar[tuple[Rule, ...]] = (
        Rule("gopher_short_doc", "num_words", below="min_words"),
        Rule("gopher_long_doc", "num_words", above="max_words"),
        Rule("gopher_below_avg_threshold", "word_length", below="min_mean_word_length"),
        Rule("gopher_above_avg_threshold", "word_length", above="max_mean_word_length"),
        Rule("gopher_too_many_hashes", "hash_ratio", above="max_symbol_ratio"),
        Rule("gopher_too_many_ellipsis", "ellipsis_ratio", above="max_symbol_ratio"),
        Rule("gopher_too_many_bullets", "bullet_lines_ratio", above="max_bullet_lines_ratio"),
        Rule(
            "gopher_too_many_end_ellipsis", "ellipsis_lines_ratio", above="max_ellipsis_lines_ratio"
        ),
        Rule("gopher_below_alpha_threshold", "alpha_words_ratio", below="min_alpha_words_ratio"),
        Rule("gopher_enough_stop_words", "num_stop_words", below="min_stop_words"),
    )
    keys: ClassVar[Mapping[str, str]] = {
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
    text_speed: ClassVar[float] = 100e6
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
    variant: Literal["datatrove", "dolma", "dclm"] = "datatrove"
    """Whose measures: see above."""

    @model_validator(mode="after")
    def _check_words(self) -> Self:
        if self.variant != "datatrove" and (self.words, self.language) != ("spacy", "en"):
            raise ValueError(f"words, language: {self.variant} splits in its own way")
        if self.variant == "dclm" and not all(map(str.isascii, self.stop_words)):
            raise ValueError("stop_words: dclm knows ASCII ones only")
        return self.check_splits()

    def libraries(self) -> tuple[str, ...]:
        return super().libraries() if self.variant == "datatrove" else ()

    def measure(self, view: View) -> Mapping[str, Float64s]:
        stop_words = tuple(dict.fromkeys(self.stop_words))
        if self.variant == "datatrove" and self.words == "whitespace":
            table = measure_spaced_quality(*view.text, stop_words)
        else:
            is_ours = self.variant == "datatrove"
            split = splitter(self.words, self.language) if is_ours else splitter("whitespace")
            table = _MEASURE[self.variant](*view.text, view.fact(split), stop_words)
        return dict(zip(MEASURES, table, strict=True))

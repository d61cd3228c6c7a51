"""The document rules of Gopher, as datatrove words them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, Field

from corpuskit.kernels.quality import MEASURES, measure_quality, vocabulary
from corpuskit.kernels.words import whitespace_words
from corpuskit.stage import Cost, Example, Outcome, StreamingStage

if TYPE_CHECKING:
    from collections.abc import Callable

    from corpuskit.stage import View, Volume


def _one_word(value: str) -> str:
    if value.split() != [value]:
        raise ValueError("must be one word, without whitespace")
    return value


_RULES = {  # rule -> (what it measures, parameter that bounds it), in the order of the reference
    "gopher_short_doc": ("num_words", "min_words"),
    "gopher_long_doc": ("num_words", "max_words"),
    "gopher_below_avg_threshold": ("mean_word_length", "min_mean_word_length"),
    "gopher_above_avg_threshold": ("mean_word_length", "max_mean_word_length"),
    "gopher_too_many_hashes": ("hash_ratio", "max_symbol_ratio"),
    "gopher_too_many_ellipsis": ("ellipsis_ratio", "max_symbol_ratio"),
    "gopher_too_many_bullets": ("bullet_lines_ratio", "max_bullet_lines_ratio"),
    "gopher_too_many_end_ellipsis": ("ellipsis_lines_ratio", "max_ellipsis_lines_ratio"),
    "gopher_below_alpha_threshold": ("alpha_words_ratio", "min_alpha_words_ratio"),
    "gopher_enough_stop_words": ("num_stop_words", "min_stop_words"),
}

_PROSE = "The cat sat with the dog that we have and looked to the end of the road. "
_OFF = {"min_words": 1}


class GopherQuality(StreamingStage):
    """Drop documents that do not look like prose: length, word shape, symbols, lists, stop words.

    Use it on web text in a language whose stop words you give. `null` switches a rule off. The
    first rule that fails gives the reason; a rule whose denominator is zero (no words, no lines)
    does not fail, where the reference divides by zero.

    Words are the whitespace-separated ones, which is nearer to the paper's wording than datatrove's
    spaCy tokens are, and gives other decisions than those: more than half of 416 English technical
    documents differ, since punctuation that spaCy splits off counts as words without a letter.
    Another way to split is another value of `words`, never a silent change.

    Source: Rae et al. 2021 (Gopher), appendix A.1; equals datatrove 0.10.1's GopherQualityFilter
    given the same words, reasons included. There `max_non_alpha_words_ratio` is what is called
    `min_alpha_words_ratio` here, and 0 switches an upper bound off, which is refused here.
    """

    rules: ClassVar[tuple[str, ...]] = tuple(_RULES)
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
    stop_words: tuple[Annotated[str, AfterValidator(_one_word)], ...] = (
        *("the", "be", "to", "of"),
        *("and", "that", "have", "with"),
    )
    """Stop words, compared letter for letter: `The` is not `the`."""
    words: Literal["whitespace"] = "whitespace"
    """How text is split into words."""
    measures: bool = False
    """Also store what every rule measured, so that bounds can be tuned without another run."""

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        return Cost(cpu_seconds=volume.text_bytes / 100e6)

    def apply(self, view: View) -> Outcome:
        words = view.fact(whitespace_words)
        stop_words = vocabulary(self.stop_words)
        table = measure_quality(view.text.offsets, view.text.data, words, stop_words)
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

    def oracle(self) -> Callable[[str], tuple[str | None, str]]:
        import warnings

        from datatrove.data import Document
        from datatrove.pipeline.filters import GopherQualityFilter
        from datatrove.utils.word_tokenizers import WordTokenizer

        class Whitespace(WordTokenizer):  # type: ignore[misc]
            def word_tokenize(self, text: str) -> list[str]:
                return text.split()

            def sent_tokenize(self, text: str) -> list[str]:
                raise NotImplementedError

            def span_tokenize(self, text: str) -> list[tuple[int, int]]:
                raise NotImplementedError

        given = {
            "min_doc_words": self.min_words,
            "max_doc_words": self.max_words,
            "min_avg_word_length": self.min_mean_word_length,
            "max_avg_word_length": self.max_mean_word_length,
            "min_stop_words": self.min_stop_words,
            "stop_words": list(self.stop_words),
            "language": Whitespace(),
        }
        ratios = {
            "max_symbol_word_ratio": self.max_symbol_ratio,
            "max_bullet_lines_ratio": self.max_bullet_lines_ratio,
            "max_ellipsis_lines_ratio": self.max_ellipsis_lines_ratio,
            "max_non_alpha_words_ratio": self.min_alpha_words_ratio,
        }
        whole = GopherQualityFilter(**given, **ratios)
        # Where it would divide by zero, the reference with those rules off.
        wordless = GopherQualityFilter(**given, **dict.fromkeys(ratios))

        def decide(text: str) -> tuple[str | None, str]:
            reference = whole if text.strip() else wordless
            with warnings.catch_warnings():  # mean of no words
                warnings.simplefilter("ignore", RuntimeWarning)
                kept = reference.filter(Document(text=text, id=""))
            return (None if kept is True else kept[1]), text

        return decide

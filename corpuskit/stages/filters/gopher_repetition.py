"""The repetition rules of Gopher, as datatrove words them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from corpuskit.kernels.filters.repetition import LONGEST, MEASURES, Repetition, measure_repetition
from corpuskit.kernels.filters.repetition_variants import VARIANTS, measure_variant
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
_BOUNDS = {  # rule -> parameter that bounds it, in the order of the reference
    "dup_para_frac": "max_dup_paragraphs_ratio",
    "dup_para_char_frac": "max_dup_paragraph_chars_ratio",
    "dup_line_frac": "max_dup_lines_ratio",
    "dup_line_char_frac": "max_dup_line_chars_ratio",
    **{f"top_{n}_gram": "max_top_ngram_ratios" for n in _LENGTHS},
    **{f"duplicated_{n}_n_grams": "max_dup_ngram_ratios" for n in _LENGTHS},
}
_RULES = ("empty", *_BOUNDS)
_NAMES = {  # key in a file of a language -> parameter
    "dup_para_frac": "max_dup_paragraphs_ratio",
    "dup_para_char_frac": "max_dup_paragraph_chars_ratio",
    "dup_line_frac": "max_dup_lines_ratio",
    "dup_line_char_frac": "max_dup_line_chars_ratio",
    "top_n_grams": "max_top_ngram_ratios",
    "dup_n_grams": "max_dup_ngram_ratios",
}

_PROSE = (
    "The cat sat with the dog that we have, and looked to the end of the long white road. Nobody "
    "came along it before noon; then a cart did, slowly, drawn by two old horses."
)
_OFF: dict[str, Any] = {
    **dict.fromkeys(list(_BOUNDS.values())[:4]),
    "max_top_ngram_ratios": {},
    "max_dup_ngram_ratios": {},
}


def _only(name: str, value: Any) -> dict[str, Any]:
    """Return parameters in which one bound alone is on."""
    return {**_OFF, name: value}


class GopherRepetition(StreamingStage):
    """Drop documents that repeat themselves: paragraphs, lines, runs of words.

    Use it on web text. `null` switches a bound off; rules are tried in the order listed, and the
    first that fails gives the reason. Repeated paragraphs, lines and duplicated runs are those met
    before, the first copy not counted; characters are a share of all characters of the text, spaces
    included. The most frequent run of n words counts as often as it occurs, overlaps included, also
    if that is once: so two words alone break `top_2_gram`. Runs of n are duplicated if they are
    equal when written without spaces, and the search goes on behind each that was.

    `dolma` and `dclm` are other measures behind the same rules, with their own words (`words` and
    `language` are for datatrove): all copies count, the first included; shares are of characters
    that are no whitespace (dclm: of those of words that begin with a letter or digit, and for lines
    and paragraphs of those in stripped ones). dolma: gopher_v1, which has no paragraphs, splits at
    every newline, so that blank lines are duplicates, and counts overlapping runs as often as they
    overlap, of all runs. dclm: blank lines are none, one line alone does not repeat, among equally
    frequent runs the longest counts, and words covered by duplicated runs count once.

    Source: Rae et al. 2021 (Gopher), table A1; equals datatrove 0.10.1's GopherRepetitionFilter,
    reasons included. There 0 switches bounds of paragraphs and lines off, which is refused here.
    Variants: dolma 1.2.1, taggers/gopher.py; DCLM (mlfoundations/dclm at c7ed275),
    baselines/mappers/filters/content_filters.py, massive_web_repetition_filters.
    """

    rules: ClassVar[tuple[str, ...]] = (*_RULES, UNKNOWN)
    bounds: ClassVar[Mapping[str, str]] = _BOUNDS
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
                "one two " * 12,
                f"duplicated_{n}_n_grams",
                _only("max_dup_ngram_ratios", {n: 0.1}),
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
    def _check_words(self) -> GopherRepetition:
        check_languages(self)
        if self.variant != "datatrove" and (self.words, self.language) != ("spacy", "en"):
            raise ValueError(f"words, language: {self.variant} splits in its own way")
        if self.per_language is None:
            check_language(self.words, self.language)
        return self

    def threshold(self, rule: str) -> float:
        bound = getattr(self, _BOUNDS[rule]) if rule in _BOUNDS else None
        if isinstance(bound, dict):
            bound = bound.get(int("".join(filter(str.isdigit, rule))))
        return float("nan") if bound is None else float(bound)

    def files(self) -> tuple[str, ...]:
        return language_files(self, _NAMES)

    def libraries(self) -> tuple[str, ...]:
        return word_libraries(self.words) if self.variant == "datatrove" else ()

    def check(self, known: Known) -> None:
        check_labels(self, known, _NAMES)

    def needs(self) -> tuple[str, ...]:
        return language_columns(self)

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        return Cost(cpu_seconds=volume.text_bytes / 70e6)

    def apply(self, view: View) -> Outcome:
        return decide_by_language(self, view, _NAMES, GopherRepetition._decide)

    def _decide(self, view: View) -> Outcome:
        limits = np.array([self.threshold(rule) for rule in _RULES])
        wanted = self._wanted() if self.measures else None
        found = self._measure(view, limits, wanted)
        measured = {}
        if wanted is not None:
            measured = {_RULES[k]: found.measured[k] for k in np.flatnonzero(wanted).tolist()}
        return Outcome(codes=found.codes, values=found.values, measures=measured)

    def _measure(
        self, view: View, limits: NDArray[np.float64], wanted: NDArray[np.bool_] | None
    ) -> Repetition:
        text = view.text
        if self.variant == "datatrove":
            words = view.fact(splitter(self.words, self.language))
            return measure_repetition(text.offsets, text.data, words, limits, wanted)
        words = view.fact(splitter(VARIANTS[self.variant]))
        return measure_variant(self.variant, text.offsets, text.data, words, limits, wanted)

    def _wanted(self) -> NDArray[np.bool_]:
        """Return which measures are stored: of runs, those of the lengths that are named."""
        wanted = np.zeros(len(MEASURES), np.bool_)
        wanted[:5] = True
        for first, ratios in ((4, self.max_top_ngram_ratios), (14, self.max_dup_ngram_ratios)):
            wanted[[first + n for n in ratios]] = True
        return wanted

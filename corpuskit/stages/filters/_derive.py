"""A language's file of parameters, derived from its own texts as FineWeb2's files were.

Bounds of the English filters are carried over by what they do to English texts (Penedo et al. 2025,
FineWeb2, section 4.4 and appendix A.7): those of `gopher_repetition` lie as many standard
deviations from the mean of crawled texts; those of `gopher_quality` cut off the same share of clean
texts; those of `fineweb_quality` cut off a tenth of clean texts. Clean texts are Wikipedia there.
Stop words make up a share of all words or more. The least score of a language model is the median
less the standard deviation, between 0.3 and 0.9 (section 4.2).

Not published, and so decided here: average lengths are rounded to whole numbers outwards, a word
holds a letter, and the share that makes a stop word is a parameter.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from corpuskit.errors import UsageError
from corpuskit.stage.view import View
from corpuskit.stages.annotators.language import Language
from corpuskit.stages.filters.fineweb_quality import FinewebQuality
from corpuskit.stages.filters.gopher_quality import GopherQuality
from corpuskit.stages.filters.gopher_repetition import GopherRepetition
from corpuskit.stages.sequences.tokenize.tools import TextReader, find_files
from corpuskit.text.words import WordSplit, splitter

_STEP = 1e-4
_BINS = 1 << 18
_MOST_WORDS = 1_000_000
_DOCUMENTS = 512
MOST_STOP_WORDS = 255
"""As many as `gopher_quality` takes."""


class Spread:
    """Histogram of a measure: steps of 0.0001 up to 26.2, 2 MB for any number of values.

    The order of values does not change the figures.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS, np.int64)
        self._sum = self._squares = 0

    def add(self, values: ArrayLike) -> None:
        """Count values, without NaN."""
        numbers = np.asarray(values, np.float64)
        steps = np.clip(np.rint(numbers[~np.isnan(numbers)] / _STEP), 0, _BINS - 1).astype(np.int64)
        self._counts += np.bincount(steps, minlength=_BINS)
        self._sum += int(steps.sum())
        self._squares += int((steps * steps).sum())

    @property
    def num(self) -> int:
        return int(self._counts.sum())

    @property
    def mean(self) -> float:
        return self._sum / self.num * _STEP

    @property
    def deviation(self) -> float:
        """Standard deviation."""
        return float(np.sqrt(self.num * self._squares - self._sum**2)) / self.num * _STEP

    def share_below(self, bound: float) -> float:
        """Return the share of values below a bound."""
        return int(self._counts[: round(bound / _STEP)].sum()) / self.num

    def quantile(self, share: float) -> float:
        """Return the least value that this share of values does not exceed."""
        return int(np.argmax(np.cumsum(self._counts) >= max(share * self.num, 1))) * _STEP


@dataclasses.dataclass
class Measured:
    """Measures of the texts of one kind and language.

    Attributes:
        rules: rule of a filter -> its measure.
        scores: of the language model, for texts that it takes for the language.
        words: word in lower case -> how often it occurs. Beyond a million, words that make up less
            than a hundredth of `share` are forgotten; one that comes back is counted short by that.
        share: of all words, that makes a stop word.
    """

    share: float
    rules: dict[str, Spread] = dataclasses.field(default_factory=dict)
    scores: Spread = dataclasses.field(default_factory=Spread)
    words: Counter[str] = dataclasses.field(default_factory=Counter)
    num_words: int = 0
    num_docs: int = 0
    text_bytes: int = 0

    def spread(self, rule: str) -> Spread:
        """Return the measure of a rule.

        Raises:
            UsageError: no text has it.
        """
        if not self.rules[rule].num:
            raise UsageError(f"no text has what {rule} measures. Give more texts.")
        return self.rules[rule]

    def stop_words(self) -> list[str]:
        """Return the words that make up the share or more, the most frequent first."""
        by_count = [(-count, word) for word, count in self.words.items()]
        return [word for count, word in sorted(by_count) if -count >= self.share * self.num_words]


def measure(
    inputs: Sequence[Path], language: str, words: WordSplit, *, text_column: str = "text",
    max_bytes: int = 1 << 30, stop_word_share: float = 0.003, model: str | None = None,
) -> Measured:  # fmt: skip
    """Read texts once and measure them.

    Args:
        inputs: as for `train_tokenizer`; so is `max_bytes`.
        model: language model whose scores are measured too.

    Raises:
        UsageError, DataError: they cannot be read, hold nothing, or the model lacks the language.
    """
    params: Any = {"words": words, "language": language, "measures": True}
    stages = [GopherRepetition(**params), FinewebQuality(**params), GopherQuality(**params)]
    scorer = Language(model=model, min_score=0, keep=(language,)) if model else None
    labels = sorted(scorer.values()["label"]) if scorer else []
    reader, measured = TextReader(), Measured(stop_word_share)
    measured.rules = {rule: Spread() for stage in stages for rule in stage.bounds}
    for texts in reader.texts(find_files(inputs), text_column, max_bytes):
        for begin in range(0, len(texts), _DOCUMENTS):
            texts_batch = pa.array(texts[begin : begin + _DOCUMENTS], pa.large_string())
            keys = pa.array(range(len(texts_batch)), pa.int64())
            view = View(pa.RecordBatch.from_pydict({"key": keys, "text": texts_batch}))
            for stage in stages:
                for rule, values in stage.apply(view).measures.items():
                    if rule in measured.rules:
                        measured.rules[rule].add(values)
            if scorer is not None:
                columns = scorer.apply(view).columns
                is_language = np.isin(columns["label"].to_pylist(), labels)
                measured.scores.add(columns["score"].to_numpy()[is_language])
            _count_words(measured, view, splitter(words, language))
    measured.num_docs, measured.text_bytes = reader.num_docs, reader.text_bytes
    if not measured.num_docs:
        names = ", ".join(map(str, inputs))
        raise UsageError(f"{names}: no text to derive from. Set --text-column.")
    return measured


def _count_words(measured: Measured, view: View, split: Any) -> None:
    words = view.fact(split)
    starts, data = words.lexicon.starts, words.lexicon.data
    for number, count in zip(*np.unique(words.tokens, return_counts=True), strict=True):
        word = data[starts[number] : starts[number + 1]].tobytes().decode().lower()
        if any(map(str.isalpha, word)):
            measured.words[word] += int(count)
    measured.num_words += len(words.tokens)
    if len(measured.words) > _MOST_WORDS:
        min_count = measured.num_words * measured.share / 100
        measured.words = Counter({word: n for word, n in measured.words.items() if n >= min_count})


def derive(
    web: Measured, clean: Measured, english_web: Measured, english_clean: Measured
) -> Mapping[str, Any]:
    """Return what a file of FineWeb2's form holds.

    Raises:
        UsageError: there are too few texts.
    """
    repetition, quality = GopherRepetition(), GopherQuality()

    def by_deviation(rule: str) -> float:
        english_spread, spread = english_web.spread(rule), web.spread(rule)
        if not english_spread.deviation:
            raise UsageError(f"all English texts have the same {rule}. Give more texts.")
        steps = (repetition.threshold(rule) - english_spread.mean) / english_spread.deviation
        return round(min(max(spread.mean + steps * spread.deviation, 0.001), 1), 3)

    def by_share(rule: str) -> float:
        share = english_clean.spread(rule).share_below(quality.threshold(rule))
        return clean.spread(rule).quantile(share)

    top, runs = repetition.max_top_ngram_ratios, repetition.max_dup_ngram_ratios
    if len(stop_words := clean.stop_words()) < 2:
        problem = f"only {len(stop_words)} words are frequent enough to be stop words."
        raise UsageError(f"{problem} Set a smaller --stop-word-share.")
    values: dict[str, Any] = {
        "dup_line_frac": by_deviation("dup_line_frac"),
        "dup_n_grams": [[n, by_deviation(f"duplicated_{n}_n_grams")] for n in runs],
        "line_punct_thr": round(clean.spread("line_punct_ratio").quantile(0.1), 3),
        "max_avg_word_length": int(np.ceil(by_share("gopher_above_avg_threshold"))),
        "max_non_alpha_words_ratio": round(by_share("gopher_below_alpha_threshold"), 3),
        "min_avg_word_length": int(by_share("gopher_below_avg_threshold")),
        "new_line_ratio": round(clean.spread("list_ratio").quantile(0.9), 3),
        "stopwords": stop_words[:MOST_STOP_WORDS],
        "top_n_grams": [[n, by_deviation(f"top_{n}_gram")] for n in top],
    }
    if web.scores.num:
        min_score = web.scores.quantile(0.5) - web.scores.deviation
        values["language_score"] = round(max(0.3, min(0.9, min_score)), 3)
    return values

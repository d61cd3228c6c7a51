"""Cross-validation on labelled rows: to calibrate scores, and to choose a model."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.errors import DataError, UsageError, suggest
from corpuskit.kernels.textfeatures import Counted, GramSettings, normalize
from corpuskit.stages.annotators._card import ModelCard, fit_calibration
from corpuskit.stages.annotators._labelled import BATCH, LabelledRow, Split, buffers, hashed_share
from corpuskit.stages.annotators._linear import NUMBER, bits_of, concatenate, count_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from corpuskit.kernels.arrays import Bools, Float64s, Int64s
    from corpuskit.stages.annotators._fasttext import ClassifierSettings, TextClassifier


@dataclass(frozen=True)
class Learned:
    """The rows that are not held out."""

    rows: Iterable[LabelledRow]
    split: Split

    def __iter__(self) -> Iterator[LabelledRow]:
        return (row for row in self.rows if not self.split.holds_out(row))

    def counts(self) -> Counter[tuple[str, str]]:
        """Return how many rows there are of each (group, label)."""
        return Counter((row.group, row.label) for row in self)


def check_labels(
    counts: Counter[tuple[str, str]], settings: ClassifierSettings, positive: str
) -> tuple[str, ...]:
    """Return the labels of a model in order, `score` alone of one that predicts numbers.

    Raises:
        UsageError: no text has the positive label.
        DataError: there are fewer than two labels, one is not a word, or not a number.
    """
    labels = sorted({label for _, label in counts})
    if len(labels) < 2:
        names = ", ".join(map(repr, labels)) or "none"
        raise DataError(f"labels: there must be two to learn from, found {names}.")
    if settings.regression:
        for label in labels:
            number_of(label)
        return (NUMBER,)
    for label in labels:
        if label.split() != [label]:
            raise DataError(f"label {label!r} must be one word. Rename it.")
    if positive and positive not in labels:
        raise UsageError(
            f"positive: no text has the label {positive!r}. {suggest(positive, labels)}"
        )
    return tuple(labels)


def number_of(label: str) -> float:
    """Return a label as a number.

    Raises:
        DataError: it is none.
    """
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(
            f"label {label!r} is not a number, and the model predicts numbers. Name a column of "
            "numbers by --label-column, or train without --regression."
        )
    return number


@dataclass(frozen=True)
class Folds:
    """Which fold a row belongs to: that of its group or, without groups, of its text's hash."""

    num: int
    of_group: dict[str, int]

    def __call__(self, row: LabelledRow) -> int:
        if self.of_group:
            return self.of_group[row.group]
        return int(hashed_share(row.text) * self.num)

    @property
    def described(self) -> str:
        return f"{len(self.of_group)} groups" if self.of_group else "texts"


def cut_folds(counts: Counter[tuple[str, str]], num: int, by_group: bool) -> Folds:
    """Cut rows into folds: whole groups, largest first, to the fold with least of their main label.

    Where there is one group only, by the hash of texts.

    Raises:
        UsageError: fewer than two parts.
    """
    if num < 2:
        raise UsageError(f"folds must be 0 or at least 2, got {num}.")
    if not by_group:
        return Folds(num, {})
    sizes: Counter[str] = Counter()
    for (group, _), count in counts.items():
        sizes[group] += count
    if len(sizes) < 2:
        return Folds(num, {})
    num = min(num, len(sizes))
    loads: list[Counter[str]] = [Counter() for _ in range(num)]
    fold_of_group = {}
    for group, _ in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        labels = Counter({label: count for (name, label), count in counts.items() if name == group})
        main = labels.most_common(1)[0][0]
        best = min(range(num), key=lambda fold: (loads[fold][main], loads[fold].total()))
        fold_of_group[group] = best
        loads[best].update(labels)
    return Folds(num, fold_of_group)


def grams_of(
    settings: ClassifierSettings, labels: Sequence[str], max_bytes: int = 0
) -> GramSettings:
    """Return what a linear model counts by these settings."""
    outputs = 1 if len(labels) <= 2 else len(labels)
    bits = bits_of(settings.buckets, outputs, max_bytes)
    return GramSettings(settings.word_ngrams, max(settings.minn, 1), settings.maxn, bits)


def count_rows(
    rows: Iterable[LabelledRow], labels: tuple[str, ...], grams: GramSettings, modes: int
) -> tuple[Counted, Float64s]:
    """Return the n-grams of N rows, and their truth: indices into `labels`, or numbers.

    Memory: about 8 bytes for each different n-gram of a text, two to three times the text.
    """
    rows = iter(rows)
    counts, truth = [], list[float]()
    while batch := list(islice(rows, BATCH)):
        texts = buffers([row.text for row in batch])
        normalized = normalize(texts.offsets[:-1], texts.offsets[1:], texts.data, modes)
        counts.append(count_texts(*normalized, grams))
        truth += truth_of(batch, labels)
    return concatenate(counts), np.array(truth, np.float64)


def truth_of(rows: Sequence[LabelledRow], labels: tuple[str, ...]) -> list[float]:
    """Return the index in `labels` of each row's label, or its number."""
    if labels == (NUMBER,):
        return [number_of(row.label) for row in rows]
    return [labels.index(row.label) for row in rows]


@dataclass(frozen=True)
class CrossPredictions:
    """Predictions of models for texts that they had not learned from.

    Attributes:
        labels: L of them.
        logits: (N, L), or numbers (N, 1).
        truth: (N,) indices into `labels`, or numbers.
        folds: (N,) the fold of each text.
    """

    labels: tuple[str, ...]
    logits: Float64s
    truth: Float64s
    folds: Int64s

    def calibrated(self, card: ModelCard, progress: Callable[[str], None]) -> ModelCard:
        """Return the card with a calibration; without one where labels do not all occur."""
        if self.labels == (NUMBER,):
            return card
        truth = self.truth.astype(np.int64)
        if len(np.unique(truth)) < len(self.labels):
            progress("not calibrated: no held-out part leaves texts of every label to learn from")
            return card
        slope, shifts = fit_calibration(self.logits, truth)
        return dataclasses.replace(card, slope=slope, shifts=shifts)

    def figures(self, positive: str) -> list[float]:
        """Return the ROC area of each fold, the mean over labels; or the variance explained."""
        if self.labels == (NUMBER,):
            return [explained(self.logits[:, 0], self.truth)]
        columns = list(range(len(self.labels)))
        if positive or len(self.labels) == 2:
            columns = [self.labels.index(positive) if positive else 1]
        figures = []
        for fold in np.unique(self.folds):
            rows = self.folds == fold
            logits = self.logits[rows] - self.logits[rows].mean(axis=1, keepdims=True)
            areas = [roc_area(logits[:, k], self.truth[rows] == k) for k in columns]
            figures += (
                [float(np.mean(valid))] if (valid := [a for a in areas if a is not None]) else []
            )
        return figures


def cross_fit(
    rows: Iterable[LabelledRow],
    labels: tuple[str, ...],
    folds: Folds,
    settings: ClassifierSettings,
    fit: Callable[[Iterable[LabelledRow]], TextClassifier],
) -> CrossPredictions:
    """Train a model without each fold, and let it predict that fold.

    A fold is skipped where the others lack a label, or fastText's loss has no logits.
    """
    logits, truth, folds_of_rows = [], list[float](), list[int]()
    counts = Counter((folds(row), row.label) for row in rows)
    has_logits = settings.family == "linear" or settings.loss == "softmax"
    for fold in range(folds.num if has_logits else 0):
        learned = {label for row_fold, label in counts if row_fold != fold}
        if len(learned) < 2 or (labels != (NUMBER,) and learned != set(labels)):
            continue
        model = fit(row for row in rows if folds(row) != fold)
        order = [model.labels.index(label) for label in labels]
        held_out = (row for row in rows if folds(row) == fold)
        while batch := list(islice(held_out, BATCH)):
            logits.append(model.logits(buffers([row.text for row in batch]))[:, order])
            truth += truth_of(batch, labels)
            folds_of_rows += [fold] * len(batch)
    all_logits = np.concatenate([np.empty((0, len(labels))), *logits])
    return CrossPredictions(
        labels, all_logits, np.array(truth, np.float64), np.array(folds_of_rows, np.int64)
    )


# ----------------------------------------------------------------------
# Choice of the settings that do best on held-out rows.


@dataclass(frozen=True)
class Trial:
    """The outcome of a candidate.

    Attributes:
        settings: of the candidate.
        figure, worst: mean and least over held-out parts of the ROC area, or the variance that is
            explained.
        cpu_seconds: of all its trainings.
    """

    settings: ClassifierSettings
    figure: float
    worst: float
    cpu_seconds: float

    @property
    def name(self) -> str:
        settings = self.settings
        runs = f" chars {settings.minn}-{settings.maxn}" if settings.maxn else ""
        return f"{settings.family} words 1-{settings.word_ngrams}{runs}, {settings.normalize}"


Runs = tuple[tuple[int, int, int], ...]
"""Longest run of words, shortest and longest of characters."""

NORMALIZED = ("none", "lower", "lower,punct", "lower,punct,digits")
LINEAR: Runs = ((1, 0, 0), (3, 0, 0), (1, 2, 5), (2, 2, 5))
FASTTEXT: Runs = ((1, 0, 0), (2, 0, 0), (1, 3, 5))


def choose(
    base: ClassifierSettings,
    judge_settings: Callable[[ClassifierSettings], CrossPredictions],
    positive: str,
    progress: Callable[[str], None],
) -> tuple[ClassifierSettings, CrossPredictions, tuple[Trial, ...]]:
    """Return the best settings, their held-out predictions, and all trials.

    First the normalisation, with linear models of word pairs; then n-grams with it, and fastText.
    Of equal figures the earlier counts, which is the faster.

    Raises:
        DataError: no part can be held out.
    """
    tried: list[tuple[Trial, CrossPredictions]] = []

    def attempt(**changes: object) -> None:
        settings = dataclasses.replace(base, **changes)  # type: ignore[arg-type]
        start = time.process_time()
        predictions = judge_settings(settings)
        if not (figures := predictions.figures(positive)):
            raise DataError(
                "auto: no part can be held out that has two labels and leaves them to learn from. "
                "Give more groups with texts of both, or leave --group-column out."
            )
        seconds = time.process_time() - start
        tried.append((Trial(settings, float(np.mean(figures)), min(figures), seconds), predictions))
        progress(f"tried {tried[-1][0].name}: {tried[-1][0].figure:.4f}")

    for normalization in NORMALIZED:
        attempt(family="linear", word_ngrams=2, minn=0, maxn=0, normalize=normalization)
    best = max(tried, key=lambda pair: pair[0].figure)[0].settings.normalize
    families: list[tuple[str, str, Runs]] = [("linear", best, LINEAR)]
    if not base.regression:
        families += [("fasttext", "none", FASTTEXT[1:2]), ("fasttext", best, FASTTEXT)]
    for family, normalization, runs in families:
        for words, minn, maxn in runs:
            attempt(family=family, word_ngrams=words, minn=minn, maxn=maxn, normalize=normalization)
    winner, predictions = max(tried, key=lambda pair: pair[0].figure)
    return winner.settings, predictions, tuple(outcome for outcome, _ in tried)


# ----------------------------------------------------------------------
# Figures.


def explained(scores: Float64s, numbers: Float64s) -> float:
    """Return the share of the variance of numbers that scores explain (R squared)."""
    variance = float(np.square(numbers - numbers.mean()).sum())
    return 1 - float(np.square(scores - numbers).sum()) / variance if variance else 0.0


def roc_area(scores: Float64s, hits: Bools) -> float | None:
    """Return the area under the ROC curve (Mann-Whitney; ties count half), None for one class."""
    positives, negatives = int(hits.sum()), int((~hits).sum())
    if not positives or not negatives:
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]  # from 1; ties share the mean rank
    rank_sum = ranks[hits].sum() - positives * (positives + 1) / 2
    return float(rank_sum / (positives * negatives))

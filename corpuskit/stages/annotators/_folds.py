"""Parts of labelled rows that are held out in turn: to calibrate scores, and to choose a model."""

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
        given = ", ".join(map(repr, labels)) or "none"
        raise DataError(f"labels: there must be two to learn from, found {given}.")
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
    """Which part a row belongs to: its group's, or without groups one by the hash of its text."""

    num: int
    of_group: dict[str, int]

    def __call__(self, row: LabelledRow) -> int:
        if self.of_group:
            return self.of_group[row.group]
        return int(hashed_share(row.text) * self.num)

    @property
    def what(self) -> str:
        return f"{len(self.of_group)} groups" if self.of_group else "texts"


def cut_folds(counts: Counter[tuple[str, str]], num: int, by_group: bool) -> Folds:
    """Cut rows into parts: whole groups, largest first, to the part with least of their main label.

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
    of_group = {}
    for group, _ in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        own = Counter({label: count for (name, label), count in counts.items() if name == group})
        main = own.most_common(1)[0][0]
        best = min(range(num), key=lambda part: (loads[part][main], loads[part].total()))
        of_group[group] = best
        loads[best].update(own)
    return Folds(num, of_group)


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
    """Return the n-grams of N rows, and what is true of them: places in `labels`, or numbers.

    Memory: about 8 bytes for each different n-gram of a text, two to three times the text.
    """
    rows = iter(rows)
    counted, truth = [], list[float]()
    while batch := list(islice(rows, BATCH)):
        texts = buffers([row.text for row in batch])
        part = normalize(texts.offsets[:-1], texts.offsets[1:], texts.data, modes)
        counted.append(count_texts(*part, grams))
        truth += truth_of(batch, labels)
    return concatenate(counted), np.array(truth, np.float64)


def truth_of(rows: Sequence[LabelledRow], labels: tuple[str, ...]) -> list[float]:
    """Return the place in `labels` of each row's label, or its number."""
    if labels == (NUMBER,):
        return [number_of(row.label) for row in rows]
    return [labels.index(row.label) for row in rows]


@dataclass(frozen=True)
class CrossPredictions:
    """What models said of texts that they had not learned from.

    Attributes:
        labels: L of them.
        logits: (N, L), or numbers (N, 1).
        truth: (N,) places in `labels`, or numbers.
        parts: (N,) the part that a text is of.
    """

    labels: tuple[str, ...]
    logits: Float64s
    truth: Float64s
    parts: Int64s

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
        """Return of each part the ROC area, the mean over labels; or the variance explained."""
        if self.labels == (NUMBER,):
            return [explained(self.logits[:, 0], self.truth)]
        wanted = list(range(len(self.labels)))
        if positive or len(self.labels) == 2:
            wanted = [self.labels.index(positive) if positive else 1]
        figures = []
        for part in np.unique(self.parts):
            rows = self.parts == part
            logits = self.logits[rows] - self.logits[rows].mean(axis=1, keepdims=True)
            areas = [roc_area(logits[:, k], self.truth[rows] == k) for k in wanted]
            figures += (
                [float(np.mean(known))] if (known := [a for a in areas if a is not None]) else []
            )
        return figures


def cross_fit(
    rows: Iterable[LabelledRow],
    labels: tuple[str, ...],
    folds: Folds,
    settings: ClassifierSettings,
    fit: Callable[[Iterable[LabelledRow]], TextClassifier],
) -> CrossPredictions:
    """Train a model without each part, and let it predict that part.

    A part is left out where the rest lacks a label, or fastText's loss has no logits.
    """
    logits, truth, parts = [], list[float](), list[int]()
    counts = Counter((folds(row), row.label) for row in rows)
    has_logits = settings.family == "linear" or settings.loss == "softmax"
    for part in range(folds.num if has_logits else 0):
        rest = {label for other, label in counts if other != part}
        if len(rest) < 2 or (labels != (NUMBER,) and rest != set(labels)):
            continue
        model = fit(row for row in rows if folds(row) != part)
        order = [model.labels.index(label) for label in labels]
        left = (row for row in rows if folds(row) == part)
        while batch := list(islice(left, BATCH)):
            logits.append(model.logits(buffers([row.text for row in batch]))[:, order])
            truth += truth_of(batch, labels)
            parts += [part] * len(batch)
    every = np.concatenate([np.empty((0, len(labels))), *logits])
    return CrossPredictions(labels, every, np.array(truth, np.float64), np.array(parts, np.int64))


# ----------------------------------------------------------------------
# Which of several settings does best on what was held out.


@dataclass(frozen=True)
class Tried:
    """What became of a candidate.

    Attributes:
        settings: what was tried.
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
        given = self.settings
        runs = f" chars {given.minn}-{given.maxn}" if given.maxn else ""
        return f"{given.family} words 1-{given.word_ngrams}{runs}, {given.normalize}"


Runs = tuple[tuple[int, int, int], ...]
"""Longest run of words, shortest and longest of characters."""

NORMALIZED = ("none", "lower", "lower,punct", "lower,punct,digits")
LINEAR: Runs = ((1, 0, 0), (3, 0, 0), (1, 2, 5), (2, 2, 5))
FASTTEXT: Runs = ((1, 0, 0), (2, 0, 0), (1, 3, 5))


def choose(
    base: ClassifierSettings,
    judged: Callable[[ClassifierSettings], CrossPredictions],
    positive: str,
    progress: Callable[[str], None],
) -> tuple[ClassifierSettings, CrossPredictions, tuple[Tried, ...]]:
    """Return the best settings, what held-out parts say of them, and all that was tried.

    First the normalisation, with linear models of word pairs; then n-grams with it, and fastText.
    Of equal figures the earlier counts, which is the faster.

    Raises:
        DataError: no part can be held out.
    """
    tried: list[tuple[Tried, CrossPredictions]] = []

    def attempt(**changes: object) -> None:
        settings = dataclasses.replace(base, **changes)  # type: ignore[arg-type]
        start = time.process_time()
        held = judged(settings)
        if not (figures := held.figures(positive)):
            raise DataError(
                "auto: no part can be held out that has two labels and leaves them to learn from. "
                "Give more groups with texts of both, or leave --group-column out."
            )
        seconds = time.process_time() - start
        tried.append((Tried(settings, float(np.mean(figures)), min(figures), seconds), held))
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
    winner, held = max(tried, key=lambda pair: pair[0].figure)
    return winner.settings, held, tuple(outcome for outcome, _ in tried)


# ----------------------------------------------------------------------
# Figures.


def explained(scores: Float64s, numbers: Float64s) -> float:
    """Return the share of the variance of numbers that scores explain (R squared)."""
    variance = float(np.square(numbers - numbers.mean()).sum())
    return 1 - float(np.square(scores - numbers).sum()) / variance if variance else 0.0


def roc_area(scores: Float64s, right: Bools) -> float | None:
    """Return the area under the ROC curve (Mann-Whitney; ties count half), None for one class."""
    ones, zeros = int(right.sum()), int((~right).sum())
    if not ones or not zeros:
        return None
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]  # from 1; ties share the mean rank
    return float((ranks[right].sum() - ones * (ones + 1) / 2) / (ones * zeros))

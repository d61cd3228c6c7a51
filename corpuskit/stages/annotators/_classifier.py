"""Trains and evaluates classifiers: `corpuskit classifier`."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.errors import DataError, UsageError
from corpuskit.stages.annotators._fasttext import (
    ClassifierSettings,
    TextClassifier,
    TrainedModel,
    open_model,
    train,
    training_line,
)
from corpuskit.stages.annotators._folds import (
    CrossPredictions,
    Folds,
    Learned,
    Trial,
    check_labels,
    choose,
    count_rows,
    cross_fit,
    cut_folds,
    explained,
    grams_of,
    number_of,
    roc_area,
)
from corpuskit.stages.annotators._labelled import BATCH, LabelledRow, Split, buffers, write_shuffled
from corpuskit.stages.annotators._linear import fit_linear, write_linear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from corpuskit.kernels.arrays import Bools, Float64s
    from corpuskit.stages.annotators._card import ModelCard


NO_SPLIT = Split()
CARD_BYTES = 300
"""At most what a card of a few labels takes after a fastText model."""
TRIES = 5
"""A model is quantized at most this often until it fits; the first estimate mostly does."""


@dataclass(frozen=True)
class TrainReport:
    """What `train_classifier` did; `held_out` is None when nothing was held out."""

    model: str
    size_bytes: int
    num_docs: int
    labels: tuple[str, ...]
    held_out: ClassifierEvaluation | RegressionEvaluation | None
    settings: ClassifierSettings
    tried: tuple[Trial, ...] = ()


@dataclass(frozen=True)
class Shrink:
    """How a model is made small.

    Attributes:
        quantize: compress the rows, to about 9 bytes each at 16 dimensions.
        cutoff: rows that are kept when quantizing; 0 keeps all.
        max_bytes: keep as many rows as fit into a file of this size; 0 sets no limit.

    Raises:
        UsageError: a cutoff without `quantize`, or together with a limit.
    """

    quantize: bool = False
    cutoff: int = 0
    max_bytes: int = 0

    def __post_init__(self) -> None:
        if self.cutoff and self.max_bytes:
            raise UsageError("cutoff and max-size exclude each other. Leave one out.")
        if self.cutoff and not self.quantize:
            raise UsageError(f"cutoff {self.cutoff:,} has no effect alone. Add --quantize.")


NO_SHRINK = Shrink()


def train_classifier(
    rows: Iterable[LabelledRow],
    output: Path,
    settings: ClassifierSettings,
    *,
    split: Split = NO_SPLIT,
    shrink: Shrink = NO_SHRINK,
    positive: str = "",
    folds: int = 0,
    auto: bool = False,
    progress: Callable[[str], None] = lambda message: None,
    verbose: int = 0,
) -> TrainReport:
    """Train a classifier on labelled rows, write it to `output` and judge it on held-out rows.

    Rows are put in random order by the seed, whatever their order in the files. With one thread the
    same rows, settings and library give the same file.

    Args:
        rows: `Labelled`, or any rows that can be iterated twice.
        output: the model; `.ftz` by custom for a quantized one.
        settings: see `ClassifierSettings`.
        split: rows to judge instead of learning from; `by_group` is for the folds, too.
        shrink: how to make the model small; by default it stays as trained.
        positive: label whose calibration and ROC area to report; empty for the best one's.
        folds: parts of the training rows held out in turn, to calibrate scores and to choose among
            candidates; 0 leaves scores as the model gives them.
        auto: choose family, normalisation and n-grams by the folds; see `choose`.
        progress: is given one line of text per step.
        verbose: 2 draws fastText's own progress bar.

    Raises:
        UsageError: an input is missing, a setting makes no sense, the model is too small to be
            quantized or cannot be made small enough, or a held-out group does not exist.
        DataError: an input is broken, a label is not one word, or there are fewer than two labels.
    """
    learned = Learned(rows, split)
    counts = learned.counts()
    labels = check_labels(counts, settings, positive)
    tried: tuple[Trial, ...] = ()
    card = settings.card
    with tempfile.TemporaryDirectory(prefix="corpuskit-") as scratch:
        work = _Trainer(shrink, Path(scratch), progress, verbose)
        if folds:
            assignment = cut_folds(counts, folds, split.by_group)
            progress(f"{assignment.num} parts of the {assignment.described} are held out in turn")
            judge_settings = functools.partial(_predict_held_out, learned, labels, assignment, work)
            if auto:
                settings, predictions, tried = choose(settings, judge_settings, positive, progress)
            else:
                predictions = judge_settings(settings)
            card = predictions.calibrated(settings.card, progress)
        target = "numbers" if settings.regression else f"{len(labels)} labels"
        progress(f"training on {counts.total():,} texts with {target}")
        fit = _fit_linear if settings.family == "linear" else _fit_fasttext
        fit(learned, settings, card, output, labels, work)
    size = output.stat().st_size
    progress(f"wrote {output}, {size:,} bytes")
    held_out = evaluate(judge_held_out(output, rows, split, positive)) if split else None
    return TrainReport(str(output), size, counts.total(), labels, held_out, settings, tried)


@dataclass(frozen=True)
class _Trainer:
    """How models are made, and a folder for temporary files."""

    shrink: Shrink
    scratch: Path
    progress: Callable[[str], None]
    verbose: int


def _predict_held_out(
    rows: Learned,
    labels: tuple[str, ...],
    folds: Folds,
    work: _Trainer,
    settings: ClassifierSettings,
) -> CrossPredictions:
    """Return the predictions of models for the folds that they have not learned from."""
    quiet = dataclasses.replace(work, progress=lambda message: None, verbose=0)

    def fit(training_rows: Iterable[LabelledRow]) -> TextClassifier:
        output = work.scratch / "part.bin"
        make = _fit_linear if settings.family == "linear" else _fit_fasttext
        make(training_rows, settings, settings.card, output, labels, quiet)
        return open_model(output)

    return cross_fit(rows, labels, folds, settings, fit)


def _fit_linear(
    rows: Iterable[LabelledRow],
    settings: ClassifierSettings,
    card: ModelCard,
    output: Path,
    labels: tuple[str, ...],
    work: _Trainer,
) -> None:
    """Train and write a linear model; the file appears whole or not at all."""
    grams = grams_of(settings, labels, work.shrink.max_bytes)
    grams_by_row, truth = count_rows(rows, labels, grams, card.modes)
    model = fit_linear(grams_by_row, truth, labels, grams, card, settings.min_count)
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        write_linear(partial, model)
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)


def _fit_fasttext(
    rows: Iterable[LabelledRow],
    settings: ClassifierSettings,
    card: ModelCard,
    output: Path,
    labels: tuple[str, ...],
    work: _Trainer,
) -> None:
    """Train and write a fastText model; the shifts of the card are by `labels`."""
    lines = work.scratch / "lines.txt"
    write_shuffled((training_line(r.text, r.label, card.modes) for r in rows), lines, settings.seed)
    model = train(lines, settings, verbose=work.verbose)
    if card.shifts:
        by_label = dict(zip(labels, card.shifts, strict=True))
        card = dataclasses.replace(card, shifts=tuple(by_label[name] for name in model.labels))
    if work.shrink == NO_SHRINK:
        model.save(output, card)
    else:
        _make_small(model, lines, settings, output, card, work)


def _make_small(
    model: TrainedModel,
    lines: Path,
    settings: ClassifierSettings,
    output: Path,
    card: ModelCard,
    work: _Trainer,
) -> None:
    """Quantize and write a model; with a limit, cut rows off until the file is small enough."""
    shrink = work.shrink
    trained_file, small = lines.with_name("trained.bin"), lines.with_name("small.ftz")
    if shrink.max_bytes:
        model.save(trained_file)
    cutoff = shrink.cutoff
    if shrink.max_bytes and model.size_bytes(model.rows, is_cut=False) > shrink.max_bytes:
        cutoff = _fitting_rows(model, shrink.max_bytes)
    for _ in range(TRIES):
        work.progress(
            f"quantizing {min(cutoff or model.rows, model.rows):,} of {model.rows:,} rows"
        )
        model.quantize(lines, settings, cutoff=cutoff, verbose=work.verbose)
        model.save(small)
        excess = (small.stat().st_size + CARD_BYTES) / shrink.max_bytes if shrink.max_bytes else 0
        if excess <= 1:
            return model.save(output, card)
        model = TrainedModel.load(trained_file)
        cutoff = int(min(cutoff or model.rows, model.rows) / excess * 0.99)
    raise UsageError(f"max-size {shrink.max_bytes:,} bytes is too small. Give more.")


def _fitting_rows(model: TrainedModel, max_bytes: int) -> int:
    """Return how many rows a file of that size holds, by an estimate from above of a row's bytes.

    Raises:
        UsageError: fewer than a quantizer needs.
    """
    fixed = model.size_bytes(0, is_cut=True)
    rows = int((max_bytes - fixed) / ((model.size_bytes(1000, is_cut=True) - fixed) / 1000))
    if rows < 256:
        raise UsageError(
            f"max-size {max_bytes:,} bytes is too small: labels and codebooks take {fixed:,}, and "
            "256 rows are needed. Give more, or a smaller --dim."
        )
    return rows


def judge_held_out(
    model: Path, rows: Iterable[LabelledRow], split: Split, positive: str = ""
) -> Judgements:
    """Predict the rows that training with the same split left out; without a split, all.

    Raises:
        UsageError: a file is missing, or the model lacks the positive label.
        DataError: an input is broken, or no row has a text and a label.
    """
    held_out = (row for row in rows if not split or split.holds_out(row))
    predictions = judge(open_model(model), held_out, positive)
    if not predictions.true:
        raise DataError(f"{model}: no row with a text and a label is left to judge it by.")
    return predictions


def choose_thresholds(
    predictions: Judgements,
    *,
    keep_rate: float | None = None,
    precision: float | None = None,
    model: Path | None = None,
    among: Iterable[str] | None = None,
) -> tuple[ScoreThreshold, ...]:
    """Return a threshold for `keep_rate` and one for `precision`, where they are set.

    Args:
        predictions: with the scores of the positive label.
        keep_rate: share of the texts to keep: of `among`, by default of the rows predicted.
        precision: share of positive rows among those kept, by `predictions`.
        model: scores `among`.
        among: texts without labels, such as a sample of the crawl to be filtered.

    Raises:
        UsageError: a threshold needs a positive label and has none, or cannot be reached.
    """
    if not predictions.positive and (keep_rate is not None or precision is not None):
        raise UsageError("a threshold is one of a label's scores. Name it by --positive LABEL.")
    thresholds = []
    if keep_rate is not None and among is not None and model is not None:
        texts = (LabelledRow(text, "") for text in among)
        scores = judge(open_model(model), texts, predictions.positive).scores
        thresholds.append(at_keep_rate(scores, keep_rate))
    elif keep_rate is not None:
        thresholds.append(at_keep_rate(predictions.scores, keep_rate, predictions.hits))
    if precision is not None:
        thresholds.append(at_precision(predictions.scores, predictions.hits, precision))
    return tuple(thresholds)


def stage_snippet(stage: str, model: str, label: str, threshold: ScoreThreshold) -> str:
    """Return the line of a pipeline file that applies a threshold.

    `quality` keeps what reaches it; `toxicity` drops what reaches it: scores have four decimals, so
    that is everything above the next lower one.
    """
    if stage == "toxicity":
        bound = f"max_score: {max(threshold.min_score - 0.0001, 0):.4f}"
    else:
        bound = f"min_score: {threshold.min_score:.4f}"
    parameters = f"model: {_scalar(model)}, label: {_scalar(label)}, {bound}"
    return f"- {stage}: {{{parameters}}}  # {threshold.purpose}"


def _scalar(text: str) -> str:
    """Return a string as YAML reads it back: quoted unless it is plain (`1` and `no` are not)."""
    plain = re.fullmatch(r"[A-Za-z_./][\w./-]*", text, re.ASCII)
    reserved = "true false yes no on off null y n .inf".split()
    return text if plain and text.lower() not in reserved else json.dumps(text, ensure_ascii=False)


# ----------------------------------------------------------------------
# How good a classifier is: accuracy, confusions, calibration, and a threshold.

BINS = 10


@dataclass(frozen=True)
class LabelScore:
    """Figures of one label: `num_docs` rows have it, of `num_predicted` it was predicted."""

    label: str
    num_docs: int
    num_predicted: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class GroupScore:
    """Accuracy within one group."""

    group: str
    num_docs: int
    accuracy: float


@dataclass(frozen=True)
class Bin:
    """Documents with a score from `low` to below `high` (the last bin includes 1).

    `mean_score` is their mean score, `right_ratio` the share whose label is right.
    """

    low: float
    high: float
    num_docs: int
    mean_score: float
    right_ratio: float


@dataclass(frozen=True)
class Calibration:
    """Whether scores are probabilities.

    Attributes:
        label: whose scores; empty for those of each document's best label.
        error: mean of |mean score - share right| over bins, by documents (ECE).
        bins: those that have documents.
    """

    label: str
    error: float
    bins: tuple[Bin, ...]


@dataclass(frozen=True)
class ClassifierEvaluation:
    """How a model does on labelled rows.

    Attributes:
        num_docs: rows judged.
        accuracy: share of rows whose best label is the true one.
        macro_f1: mean of the labels' F1.
        labels: labels that occur, by name.
        confusions: (true, predicted, count), most frequent first.
        groups: accuracy by group, largest first; empty without groups.
        calibration: of the positive label if one is given, else of the best.
        auc: chance that a row of the positive label scores above another one (ROC); None without
            a positive label, or where all rows have it or none.
    """

    num_docs: int
    accuracy: float
    macro_f1: float
    labels: tuple[LabelScore, ...]
    confusions: tuple[tuple[str, str, int], ...]
    groups: tuple[GroupScore, ...] = ()
    calibration: Calibration | None = None
    auc: float | None = None


@dataclass(frozen=True)
class NumberGroup:
    """Root mean squared error within one group."""

    group: str
    num_docs: int
    error: float


@dataclass(frozen=True)
class RegressionEvaluation:
    """How a model does that predicts numbers.

    Attributes:
        num_docs: rows judged.
        error: root of the mean squared error.
        mean_error: mean of how far a prediction is off.
        explained: share of the variance that is explained (R squared).
        groups: error by group, largest first; empty without groups.
        auc: chance that a row of at least `--positive` scores above another one.
    """

    num_docs: int
    error: float
    mean_error: float
    explained: float
    groups: tuple[NumberGroup, ...] = ()
    auc: float | None = None


@dataclass(frozen=True)
class Judgements:
    """Predictions of a model for N rows, and the truth.

    Attributes:
        true, best: true and best label of each row; an empty best label where no word is known.
        groups: group of each row.
        best_scores: (N,) float64, of the best label.
        scores: (N,) float64, of the positive label; those of the best without one.
        positive: the positive label, or empty; of numbers the least that counts as positive.
        numbers: (N,) the true ones, of a model that predicts numbers.
    """

    true: list[str]
    best: list[str]
    groups: list[str]
    best_scores: Float64s
    scores: Float64s
    positive: str = ""
    numbers: Float64s | None = None

    @property
    def hits(self) -> Bools:
        """(N,) whether the label of `scores` is true: the positive one, else the best."""
        if self.numbers is not None:
            return self.numbers >= (number_of(self.positive) if self.positive else np.inf)
        expected = [self.positive] * len(self.true) if self.positive else self.best
        return np.array([a == b for a, b in zip(self.true, expected, strict=True)], np.bool_)


def judge(model: TextClassifier, rows: Iterable[LabelledRow], positive: str = "") -> Judgements:
    """Predict row by row, exactly as the stages do.

    Raises:
        UsageError: the model does not have the positive label.
    """
    rows = iter(rows)
    label = "" if model.bounds else positive
    true: list[str] = []
    best: list[str] = []
    groups: list[str] = []
    best_batches, score_batches = [np.empty(0)], [np.empty(0)]
    while batch := list(islice(rows, BATCH)):
        num = len(model.labels) if label else 1
        predictions = model.predict(buffers([row.text for row in batch]), num, strip=True)
        ranks = predictions.ranks[:, 0].tolist()
        true += [row.label for row in batch]
        groups += [row.group for row in batch]
        best += [model.labels[rank] if rank >= 0 else "" for rank in ranks]
        best_scores = predictions.scores[:, 0]
        best_batches.append(best_scores)
        score_batches.append(model.scores_of(predictions, label) if label else best_scores)
    numbers = None
    if model.bounds and any(true):  # texts without labels are scored, too
        numbers = np.array([number_of(name) for name in true])
    all_best, scores = np.concatenate(best_batches), np.concatenate(score_batches)
    return Judgements(true, best, groups, all_best, scores, positive, numbers)


def evaluate(predictions: Judgements) -> ClassifierEvaluation | RegressionEvaluation:
    """Turn predictions into figures."""
    if predictions.numbers is not None:
        return _evaluate_numbers(predictions, predictions.numbers)
    pairs = Counter(zip(predictions.true, predictions.best, strict=True))
    by_group: dict[str, list[bool]] = {}
    for group, true, guess in zip(
        predictions.groups, predictions.true, predictions.best, strict=True
    ):
        by_group.setdefault(group, []).append(true == guess)
    groups = [GroupScore(name, len(hits), sum(hits) / len(hits)) for name, hits in by_group.items()]
    return tally(
        pairs,
        groups=tuple(sorted(groups, key=lambda score: (-score.num_docs, score.group)))
        if set(by_group) - {""}
        else (),
        calibration=calibrate(predictions.scores, predictions.hits, predictions.positive),
        auc=roc_area(predictions.scores, predictions.hits) if predictions.positive else None,
    )


def _evaluate_numbers(predictions: Judgements, numbers: Float64s) -> RegressionEvaluation:
    errors = predictions.scores - numbers
    names = np.array(predictions.groups)
    groups = [
        NumberGroup(
            str(name),
            int((names == name).sum()),
            float(np.sqrt((errors[names == name] ** 2).mean())),
        )
        for name in (np.unique(names) if any(predictions.groups) else ())
    ]
    return RegressionEvaluation(
        num_docs=len(errors),
        error=float(np.sqrt((errors**2).mean())),
        mean_error=float(np.abs(errors).mean()),
        explained=explained(predictions.scores, numbers),
        groups=tuple(sorted(groups, key=lambda score: (-score.num_docs, score.group))),
        auc=roc_area(predictions.scores, predictions.hits) if predictions.positive else None,
    )


def tally(
    pairs: Counter[tuple[str, str]],
    groups: tuple[GroupScore, ...] = (),
    calibration: Calibration | None = None,
    auc: float | None = None,
) -> ClassifierEvaluation:
    """Turn counts of (true, predicted) into figures; a ratio without a denominator is 0."""
    true: Counter[str] = Counter()
    predicted: Counter[str] = Counter()
    for (label, guess), count in pairs.items():
        true[label] += count
        predicted[guess] += count
    scores = []
    for label in sorted(true.keys() | (predicted.keys() - {""})):
        hits = pairs[label, label]
        precision = hits / predicted[label] if predicted[label] else 0.0
        recall = hits / true[label] if true[label] else 0.0
        f1 = 2 * hits / (predicted[label] + true[label])
        scores.append(LabelScore(label, true[label], predicted[label], precision, recall, f1))
    confusions = [(*pair, count) for pair, count in pairs.items() if pair[0] != pair[1]]
    total = pairs.total()
    return ClassifierEvaluation(
        num_docs=total,
        accuracy=sum(pairs[label, label] for label in true) / total if total else 0.0,
        macro_f1=sum(score.f1 for score in scores) / len(scores) if scores else 0.0,
        labels=tuple(scores),
        confusions=tuple(sorted(confusions, key=lambda pair: (-pair[2], pair[0], pair[1]))),
        groups=groups,
        calibration=calibration,
        auc=auc,
    )


def calibrate(scores: Float64s, hits: Bools, label: str = "") -> Calibration:
    """Compare scores with the share of hits, in ten bins of equal width."""
    indices = np.minimum((np.clip(scores, 0, 1) * BINS).astype(np.int64), BINS - 1)
    bins = []
    for index in range(BINS):
        in_bin = indices == index
        if in_bin.any():
            mean, share = float(scores[in_bin].mean()), float(hits[in_bin].mean())
            bins.append(Bin(index / BINS, (index + 1) / BINS, int(in_bin.sum()), mean, share))
    gaps = [bucket.num_docs * abs(bucket.mean_score - bucket.right_ratio) for bucket in bins]
    return Calibration(label, sum(gaps) / max(len(scores), 1), tuple(bins))


@dataclass(frozen=True)
class ScoreThreshold:
    """A threshold chosen for a purpose: rows that score at least `min_score` count as positive.

    Attributes:
        purpose: `keep rate 0.1` or `precision 0.9`.
        min_score: has four decimals, as scores have.
        kept_ratio: share of the rows that reach it.
        precision: share of those rows that are positive; None without truth.
        recall: share of the positive rows that reach it; None without truth.
    """

    purpose: str
    min_score: float
    kept_ratio: float
    precision: float | None = None
    recall: float | None = None


def at_keep_rate(scores: Float64s, rate: float, hits: Bools | None = None) -> ScoreThreshold:
    """Return the highest threshold that keeps at least this share of the rows.

    Rows with equal scores stay together, so more may be kept: see `kept_ratio`.

    Raises:
        UsageError: the rate is not above 0 and at most 1, or there are no rows.
    """
    if not 0 < rate <= 1:
        raise UsageError(f"keep-rate must be above 0 and at most 1, got {rate}.")
    if not len(scores):
        raise UsageError("keep-rate: there are no texts to keep a share of.")
    count = int(np.ceil(rate * len(scores) - 1e-9))
    return _threshold(f"keep rate {rate:g}", float(-np.sort(-scores)[count - 1]), scores, hits)


def at_precision(scores: Float64s, hits: Bools, precision: float) -> ScoreThreshold:
    """Return the lowest threshold at which this share of what is kept is positive.

    Raises:
        UsageError: the precision is not above 0 and at most 1, or no threshold reaches it.
    """
    if not 0 < precision <= 1:
        raise UsageError(f"precision must be above 0 and at most 1, got {precision}.")
    order = np.argsort(-scores, kind="stable")
    ordered, true_positives = scores[order], np.cumsum(hits[order])
    shares = true_positives / np.arange(1, len(order) + 1)
    ends = np.append(ordered[1:] != ordered[:-1], True)  # a threshold takes all rows of a score
    fitting = np.flatnonzero(ends & (shares >= precision))
    if not len(fitting):
        best = float(shares[ends].max()) if len(shares) else 0.0
        raise UsageError(f"precision {precision:g} is not reached; at most {best:.4f} is.")
    return _threshold(f"precision {precision:g}", float(ordered[fitting[-1]]), scores, hits)


def _threshold(purpose: str, score: float, scores: Float64s, hits: Bools | None) -> ScoreThreshold:
    is_kept = scores >= score
    if hits is None:
        return ScoreThreshold(purpose, score, float(is_kept.mean()))
    true_positives = int((is_kept & hits).sum())
    return ScoreThreshold(
        purpose,
        score,
        float(is_kept.mean()),
        true_positives / max(int(is_kept.sum()), 1),
        true_positives / max(int(hits.sum()), 1),
    )

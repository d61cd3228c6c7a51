"""Labelled rows in, a fastText model and its accuracy out: `corpuskit classifier`."""

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
    Trained,
    open_model,
    train,
    training_line,
)
from corpuskit.stages.annotators._folds import (
    CrossPredictions,
    Folds,
    Learned,
    Tried,
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
"""Room for a card of a few labels after a fastText model."""
TRIES = 5
"""Times that rows are cut off again until a model fits its budget; the first guess mostly does."""


@dataclass(frozen=True)
class TrainReport:
    """What `train_classifier` did; `held_out` is None when nothing was held out."""

    model: str
    size_bytes: int
    num_docs: int
    labels: tuple[str, ...]
    held_out: ClassifierEvaluation | RegressionEvaluation | None
    settings: ClassifierSettings
    tried: tuple[Tried, ...] = ()


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


def train_classifier(
    rows: Iterable[LabelledRow],
    output: Path,
    settings: ClassifierSettings,
    *,
    split: Split = NO_SPLIT,
    shrink: Shrink | None = None,
    positive: str = "",
    folds: int = 0,
    auto: bool = False,
    progress: Callable[[str], None] = lambda message: None,
    verbose: int = 0,
) -> TrainReport:
    """Train a classifier on labelled rows, write it to `output` and judge it on what was held out.

    Rows are put in random order by the seed, whatever their order in the files. With one thread the
    same rows, settings and library give the same file.

    Args:
        rows: `Labelled`, or any rows that can be iterated twice.
        output: the model; `.ftz` by custom for a quantized one.
        settings: see `ClassifierSettings`.
        split: rows that are judged instead of learned from; `by_group` is for the folds, too.
        shrink: how to make the model small; None leaves it as trained.
        positive: label whose calibration and ROC area are wanted; empty for the best one's.
        folds: parts of what is learned that are held out in turn, to calibrate scores and to choose
            among candidates; 0 leaves scores as the model gives them.
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
    tried: tuple[Tried, ...] = ()
    card = settings.card
    with tempfile.TemporaryDirectory(prefix="corpuskit-") as scratch:
        work = _Trainer(shrink, Path(scratch), progress, verbose)
        if folds:
            parts = cut_folds(counts, folds, split.by_group)
            progress(f"{parts.num} parts of the {parts.what} are held out in turn")
            judged = functools.partial(_judge_parts, learned, labels, parts, work)
            if auto:
                settings, held, tried = choose(settings, judged, positive, progress)
            else:
                held = judged(settings)
            card = held.calibrated(settings.card, progress)
        what = "numbers" if settings.regression else f"{len(labels)} labels"
        progress(f"training on {counts.total():,} texts with {what}")
        fit = _fit_linear if settings.family == "linear" else _fit_fasttext
        fit(learned, settings, card, output, labels, work)
    size = output.stat().st_size
    progress(f"wrote {output}, {size:,} bytes")
    held_out = evaluate(judge_held_out(output, rows, split, positive)) if split else None
    return TrainReport(str(output), size, counts.total(), labels, held_out, settings, tried)


@dataclass(frozen=True)
class _Trainer:
    """How, and where, models are made."""

    shrink: Shrink | None
    scratch: Path
    progress: Callable[[str], None]
    verbose: int


def _judge_parts(
    rows: Learned,
    labels: tuple[str, ...],
    parts: Folds,
    work: _Trainer,
    settings: ClassifierSettings,
) -> CrossPredictions:
    """Return what models say of the parts that they have not learned from."""
    quiet = dataclasses.replace(work, progress=lambda message: None, verbose=0)

    def fit(some: Iterable[LabelledRow]) -> TextClassifier:
        output = work.scratch / "part.bin"
        make = _fit_linear if settings.family == "linear" else _fit_fasttext
        make(some, settings, settings.card, output, labels, quiet)
        return open_model(output)

    return cross_fit(rows, labels, parts, settings, fit)


def _fit_linear(
    rows: Iterable[LabelledRow],
    settings: ClassifierSettings,
    card: ModelCard,
    output: Path,
    labels: tuple[str, ...],
    work: _Trainer,
) -> None:
    """Train and write a linear model; the file appears whole or not at all."""
    grams = grams_of(settings, labels, work.shrink.max_bytes if work.shrink else 0)
    counted, truth = count_rows(rows, labels, grams, card.modes)
    model = fit_linear(counted, truth, labels, grams, card, settings.min_count)
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
    if work.shrink is not None:
        _make_small(model, lines, settings, work.shrink, output, card, work)
    else:
        model.save(output, card)


def _make_small(
    model: Trained,
    lines: Path,
    settings: ClassifierSettings,
    shrink: Shrink,
    output: Path,
    card: ModelCard,
    work: _Trainer,
) -> None:
    """Quantize and write a model; with a limit, cut rows off until the file is small enough."""
    whole, small = lines.with_name("whole.bin"), lines.with_name("small.ftz")
    if shrink.max_bytes:
        model.save(whole)
    elif not shrink.quantize:
        return model.save(output, card)
    cutoff = shrink.cutoff
    if shrink.max_bytes and model.size_bytes(model.rows, cut=False) > shrink.max_bytes:
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
        model = Trained.load(whole)
        cutoff = int(min(cutoff or model.rows, model.rows) / excess * 0.99)
    raise UsageError(f"max-size {shrink.max_bytes:,} bytes is too small. Give more.")


def _fitting_rows(model: Trained, max_bytes: int) -> int:
    """Return how many rows a file of that size holds, by an estimate from above of a row's bytes.

    Raises:
        UsageError: fewer than a quantizer needs.
    """
    fixed = model.size_bytes(0, cut=True)
    rows = int((max_bytes - fixed) / ((model.size_bytes(1000, cut=True) - fixed) / 1000))
    if rows < 256:
        raise UsageError(
            f"max-size {max_bytes:,} bytes is too small: labels and codebooks take {fixed:,}, and "
            "256 rows are needed. Give more, or a smaller --dim."
        )
    return rows


def judge_held_out(
    model: Path, rows: Iterable[LabelledRow], split: Split, positive: str = ""
) -> Judged:
    """Predict the rows that a training with the same split left out; without a split, all.

    Raises:
        UsageError: a file is missing, or the model lacks the positive label.
        DataError: an input is broken, or no row has a text and a label.
    """
    kept = (row for row in rows if not split or split.holds_out(row))
    judged = judge(open_model(model), kept, positive)
    if not judged.true:
        raise DataError(f"{model}: no row with a text and a label is left to judge it by.")
    return judged


def choose_thresholds(
    judged: Judged,
    *,
    keep_rate: float | None = None,
    precision: float | None = None,
    model: Path | None = None,
    among: Iterable[str] | None = None,
) -> tuple[ScoreThreshold, ...]:
    """Return the thresholds asked for.

    Args:
        judged: rows with the scores of the positive label.
        keep_rate: share of the texts to keep: of `among` if given, else of the rows judged.
        precision: share of positive rows among those kept, by the rows judged.
        model: scores `among`.
        among: texts without labels, such as a sample of the crawl to be filtered.

    Raises:
        UsageError: a threshold is wanted without a positive label, or cannot be reached.
    """
    if not judged.positive and (keep_rate is not None or precision is not None):
        raise UsageError("a threshold is one of a label's scores. Name it by --positive LABEL.")
    thresholds = []
    if keep_rate is not None and among is not None and model is not None:
        texts = (LabelledRow(text, "") for text in among)
        scores = judge(open_model(model), texts, judged.positive).scores
        thresholds.append(at_keep_rate(scores, keep_rate))
    elif keep_rate is not None:
        thresholds.append(at_keep_rate(judged.scores, keep_rate, judged.hits))
    if precision is not None:
        thresholds.append(at_precision(judged.scores, judged.hits, precision))
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
    given = f"model: {_scalar(model)}, label: {_scalar(label)}, {bound}"
    return f"- {stage}: {{{given}}}  # {threshold.purpose}"


def _scalar(text: str) -> str:
    """Return a string as YAML reads it back: quoted unless it is plain (`1` and `no` are not)."""
    plain = re.fullmatch(r"[A-Za-z_./][\w./-]*", text, re.ASCII)
    other = text.lower() in {"true", "false", "yes", "no", "on", "off", "null", "y", "n", ".inf"}
    return text if plain and not other else json.dumps(text, ensure_ascii=False)


# ----------------------------------------------------------------------
# How good a classifier is: accuracy, what is taken for what, calibration, and a threshold.

BINS = 10


@dataclass(frozen=True)
class LabelScore:
    """How well one label is found; `num_docs` have it, `num_predicted` were given it."""

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

    `mean_score` is what the model says, `right_ratio` what is true of them.
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
class Judged:
    """What a model said of N rows, and the truth.

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
        """(N,) whether what `scores` is about is true: the positive label, else the best."""
        if self.numbers is not None:
            return self.numbers >= (number_of(self.positive) if self.positive else np.inf)
        wanted = [self.positive] * len(self.true) if self.positive else self.best
        return np.array([a == b for a, b in zip(self.true, wanted, strict=True)], np.bool_)


def judge(model: TextClassifier, rows: Iterable[LabelledRow], positive: str = "") -> Judged:
    """Predict row by row, exactly as the stages do.

    Raises:
        UsageError: the model does not have the positive label.
    """
    rows = iter(rows)
    label = "" if model.bounds else positive
    true: list[str] = []
    best: list[str] = []
    groups: list[str] = []
    tops, scores = [np.empty(0)], [np.empty(0)]
    while batch := list(islice(rows, BATCH)):
        num = len(model.labels) if label else 1
        predictions = model.predict(buffers([row.text for row in batch]), num, strip=True)
        ranks = predictions.ranks[:, 0].tolist()
        true += [row.label for row in batch]
        groups += [row.group for row in batch]
        best += [model.labels[rank] if rank >= 0 else "" for rank in ranks]
        tops.append(predictions.scores[:, 0])
        scores.append(model.scores_of(predictions, label) if label else predictions.scores[:, 0])
    numbers = None
    if model.bounds and any(true):  # texts without labels are scored, too
        numbers = np.array([number_of(name) for name in true])
    tops, scores = [np.concatenate(tops)], [np.concatenate(scores)]
    return Judged(true, best, groups, tops[0], scores[0], positive, numbers)


def evaluate(judged: Judged) -> ClassifierEvaluation | RegressionEvaluation:
    """Turn what was judged into figures."""
    if judged.numbers is not None:
        return _evaluate_numbers(judged, judged.numbers)
    pairs = Counter(zip(judged.true, judged.best, strict=True))
    right: dict[str, list[bool]] = {}
    for group, true, guess in zip(judged.groups, judged.true, judged.best, strict=True):
        right.setdefault(group, []).append(true == guess)
    groups = [GroupScore(name, len(hits), sum(hits) / len(hits)) for name, hits in right.items()]
    return tally(
        pairs,
        groups=tuple(sorted(groups, key=lambda one: (-one.num_docs, one.group)))
        if set(right) - {""}
        else (),
        calibration=calibrate(judged.scores, judged.hits, judged.positive),
        auc=roc_area(judged.scores, judged.hits) if judged.positive else None,
    )


def _evaluate_numbers(judged: Judged, numbers: Float64s) -> RegressionEvaluation:
    errors = judged.scores - numbers
    names = np.array(judged.groups)
    groups = [
        NumberGroup(
            str(name),
            int((names == name).sum()),
            float(np.sqrt((errors[names == name] ** 2).mean())),
        )
        for name in (np.unique(names) if any(judged.groups) else ())
    ]
    return RegressionEvaluation(
        num_docs=len(errors),
        error=float(np.sqrt((errors**2).mean())),
        mean_error=float(np.abs(errors).mean()),
        explained=explained(judged.scores, numbers),
        groups=tuple(sorted(groups, key=lambda one: (-one.num_docs, one.group))),
        auc=roc_area(judged.scores, judged.hits) if judged.positive else None,
    )


def tally(
    pairs: Counter[tuple[str, str]],
    groups: tuple[GroupScore, ...] = (),
    calibration: Calibration | None = None,
    auc: float | None = None,
) -> ClassifierEvaluation:
    """Turn counts of (true, predicted) into figures; a ratio without a denominator is 0."""
    true: Counter[str] = Counter()
    given: Counter[str] = Counter()
    for (label, guess), count in pairs.items():
        true[label] += count
        given[guess] += count
    scores = []
    for label in sorted(true.keys() | (given.keys() - {""})):
        hits = pairs[label, label]
        precision = hits / given[label] if given[label] else 0.0
        recall = hits / true[label] if true[label] else 0.0
        f1 = 2 * hits / (given[label] + true[label])
        scores.append(LabelScore(label, true[label], given[label], precision, recall, f1))
    wrong = [(*pair, count) for pair, count in pairs.items() if pair[0] != pair[1]]
    total = pairs.total()
    return ClassifierEvaluation(
        num_docs=total,
        accuracy=sum(pairs[label, label] for label in true) / total if total else 0.0,
        macro_f1=sum(score.f1 for score in scores) / len(scores) if scores else 0.0,
        labels=tuple(scores),
        confusions=tuple(sorted(wrong, key=lambda pair: (-pair[2], pair[0], pair[1]))),
        groups=groups,
        calibration=calibration,
        auc=auc,
    )


def calibrate(scores: Float64s, right: Bools, label: str = "") -> Calibration:
    """Compare scores with the share that is right, in ten bins of equal width."""
    places = np.minimum((np.clip(scores, 0, 1) * BINS).astype(np.int64), BINS - 1)
    bins = []
    for place in range(BINS):
        chosen = places == place
        if chosen.any():
            mean, share = float(scores[chosen].mean()), float(right[chosen].mean())
            bins.append(Bin(place / BINS, (place + 1) / BINS, int(chosen.sum()), mean, share))
    gaps = [one.num_docs * abs(one.mean_score - one.right_ratio) for one in bins]
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


def at_keep_rate(scores: Float64s, rate: float, right: Bools | None = None) -> ScoreThreshold:
    """Return the highest threshold that keeps at least this share of the rows.

    Rows with equal scores stay together, so more may be kept: see `kept_ratio`.

    Raises:
        UsageError: the rate is not above 0 and at most 1, or there are no rows.
    """
    if not 0 < rate <= 1:
        raise UsageError(f"keep-rate must be above 0 and at most 1, got {rate}.")
    if not len(scores):
        raise UsageError("keep-rate: there are no texts to keep a share of.")
    wanted = int(np.ceil(rate * len(scores) - 1e-9))
    return _threshold(f"keep rate {rate:g}", float(-np.sort(-scores)[wanted - 1]), scores, right)


def at_precision(scores: Float64s, right: Bools, precision: float) -> ScoreThreshold:
    """Return the lowest threshold at which this share of what is kept is positive.

    Raises:
        UsageError: the precision is not above 0 and at most 1, or no threshold reaches it.
    """
    if not 0 < precision <= 1:
        raise UsageError(f"precision must be above 0 and at most 1, got {precision}.")
    order = np.argsort(-scores, kind="stable")
    ordered, hits = scores[order], np.cumsum(right[order])
    shares = hits / np.arange(1, len(order) + 1)
    ends = np.append(ordered[1:] != ordered[:-1], True)  # a threshold takes all rows of a score
    reached = np.flatnonzero(ends & (shares >= precision))
    if not len(reached):
        best = float(shares[ends].max()) if len(shares) else 0.0
        raise UsageError(f"precision {precision:g} is not reached; at most {best:.4f} is.")
    return _threshold(f"precision {precision:g}", float(ordered[reached[-1]]), scores, right)


def _threshold(purpose: str, score: float, scores: Float64s, right: Bools | None) -> ScoreThreshold:
    kept = scores >= score
    if right is None:
        return ScoreThreshold(purpose, score, float(kept.mean()))
    hits = int((kept & right).sum())
    return ScoreThreshold(
        purpose,
        score,
        float(kept.mean()),
        hits / max(int(kept.sum()), 1),
        hits / max(int(right.sum()), 1),
    )

"""Labelled rows in, a fastText model and its accuracy out: `corpuskit classifier`."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corpuskit.errors import DataError, UsageError
from corpuskit.stages.annotators._evaluation import at_keep_rate, at_precision, evaluate, judge
from corpuskit.stages.annotators._fasttext import Trained, open_model, train, training_line
from corpuskit.stages.annotators._labelled import Row, Split, write_shuffled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from corpuskit.stages.annotators._evaluation import Evaluation, Judged, Threshold
    from corpuskit.stages.annotators._fasttext import Settings

NO_SPLIT = Split()
TRIES = 5
"""Times that rows are cut off anew until a model fits its budget; the first guess mostly does."""


@dataclass(frozen=True)
class TrainReport:
    """What `train_classifier` did; `held_out` is None when nothing was held out."""

    model: str
    size_bytes: int
    num_docs: int
    labels: tuple[str, ...]
    held_out: Evaluation | None


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
    rows: Iterable[Row],
    output: Path,
    settings: Settings,
    *,
    split: Split = NO_SPLIT,
    shrink: Shrink | None = None,
    positive: str = "",
    progress: Callable[[str], None] = lambda message: None,
    verbose: int = 0,
) -> TrainReport:
    """Train a classifier on labelled rows, write it to `output` and judge it on what was held out.

    Rows are put in random order by the seed, whatever their order in the files. With one thread the
    same rows, settings and library give the same file.

    Args:
        rows: `Labelled`, or any rows that can be iterated twice.
        output: the model; `.ftz` by custom for a quantized one.
        settings: see `Settings`.
        split: rows that are judged instead of learned from.
        shrink: how to make the model small; None leaves it as trained.
        positive: label whose calibration and ROC area are wanted; empty for the best one's.
        progress: is given one line of text per step.
        verbose: 2 draws fastText's own progress bar.

    Raises:
        UsageError: an input is missing, a setting makes no sense, the model is too small to be
            quantized or cannot be made small enough, or a held-out group does not exist.
        DataError: an input is broken, a label is not one word, or there are fewer than two labels.
    """
    with tempfile.TemporaryDirectory(prefix="corpuskit-") as scratch:
        lines = Path(scratch, "lines.txt")
        counts: Counter[str] = Counter()
        write_lines(rows, split, lines, settings.seed, counts)
        if len(counts) < 2:
            found = ", ".join(map(repr, counts)) or "none"
            raise DataError(f"labels: there must be two to learn from, found {found}.")
        progress(f"training on {counts.total():,} texts with {len(counts)} labels")
        model = train(lines, settings, verbose=verbose)
        if shrink is not None:
            _make_small(model, lines, settings, shrink, output, progress, verbose)
        else:
            model.save(output)
    size = output.stat().st_size
    progress(f"wrote {output}, {size:,} bytes")
    held_out = None
    if split:
        held_out = evaluate(judge_held_out(output, rows, split, positive))
    return TrainReport(str(output), size, counts.total(), tuple(sorted(counts)), held_out)


def write_lines(
    rows: Iterable[Row], split: Split, path: Path, seed: int, counts: Counter[str]
) -> None:
    """Write the shuffled training lines of rows that are not held out, and count their labels."""

    def learned() -> Iterator[str]:
        for row in rows:
            if not split.holds_out(row):
                counts[row.label] += 1
                yield training_line(row.text, row.label)

    write_shuffled(learned(), path, seed)


def _make_small(
    model: Trained,
    lines: Path,
    settings: Settings,
    shrink: Shrink,
    output: Path,
    progress: Callable[[str], None],
    verbose: int,
) -> None:
    """Quantize and write a model; with a limit, cut rows off until the file is small enough."""
    whole, small = lines.with_name("whole.bin"), lines.with_name("small.ftz")
    if shrink.max_bytes:
        model.save(whole)
    elif not shrink.quantize:
        return model.save(output)
    cutoff = shrink.cutoff
    if shrink.max_bytes and model.size_bytes(model.rows, cut=False) > shrink.max_bytes:
        cutoff = _fitting_rows(model, shrink.max_bytes)
    for _ in range(TRIES):
        progress(f"quantizing {min(cutoff or model.rows, model.rows):,} of {model.rows:,} rows")
        model.quantize(lines, settings, cutoff=cutoff, verbose=verbose)
        model.save(small)
        excess = small.stat().st_size / shrink.max_bytes if shrink.max_bytes else 0
        if excess <= 1:
            return model.save(output)
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


def judge_held_out(model: Path, rows: Iterable[Row], split: Split, positive: str = "") -> Judged:
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
) -> tuple[Threshold, ...]:
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
    found = []
    if keep_rate is not None and among is not None and model is not None:
        texts = (Row(text, "") for text in among)
        scores = judge(open_model(model), texts, judged.positive).scores
        found.append(at_keep_rate(scores, keep_rate))
    elif keep_rate is not None:
        found.append(at_keep_rate(judged.scores, keep_rate, judged.hits))
    if precision is not None:
        found.append(at_precision(judged.scores, judged.hits, precision))
    return tuple(found)


def stage_snippet(stage: str, model: str, label: str, threshold: Threshold) -> str:
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

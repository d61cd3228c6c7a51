"""Train and evaluate text classifiers."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from corpuskit.stages.annotators._classifier import (
        ClassifierEvaluation,
        RegressionEvaluation,
        ScoreThreshold,
        TrainReport,
    )
    from corpuskit.stages.annotators._labelled import Labelled, Split


class LabelledFile(click.ParamType):  # type: ignore[type-arg]
    """`LABEL=FILE`."""

    name = "label=file"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, Path]:
        label, sign, path = str(value).partition("=")
        if not (label and sign and path):
            self.fail(f"{value!r} is not LABEL=FILE, as in hq=books.parquet.", param, ctx)
        return label, Path(path)


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes: 2000000, 900KB, 2MB."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        text = str(value).upper().strip()
        factor = {"KB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}.get(text[-2:], 1)
        try:
            return int(float(text if factor == 1 else text[:-2]) * factor)
        except ValueError:
            return self.fail(f"{value!r} is not a size, as in 900KB or 2MB.", param, ctx)


ROWS = (
    click.argument("inputs", nargs=-1, type=click.Path(path_type=Path), metavar="[INPUT]..."),
    click.option(
        "--source", "sources", multiple=True, type=LabelledFile(), metavar="LABEL=FILE",
        help="A file whose texts all have this label; may be repeated. Also .txt, a text a line.",
    ),
    click.option("--text-column", default="text", show_default=True, help="Column of the texts."),
    click.option(
        "--label-column", default="label", show_default=True,
        help="Column of the labels of INPUT: words, integers, or numbers with --regression.",
    ),
    click.option(
        "--group-column",
        help="Column of groups (sources, sites): figures for each, and what is held out is whole "
        "groups.",
    ),
    click.option(
        "--holdout", default=0.0, show_default=True,
        help="Share of texts left out to evaluate on; with --group-column, of groups.",
    ),
    click.option(
        "--holdout-group", "holdout_groups", multiple=True, metavar="GROUP",
        help="A group left out to evaluate on; may be repeated.",
    ),
    click.option(
        "--positive", default="",
        help="The label whose score counts; of a model of numbers the least that does.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
)  # fmt: skip


def takes_rows(command: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments that say where labelled rows are."""
    for decorate in reversed(ROWS):
        command = decorate(command)
    return command


@click.group("classifier")
def command() -> None:
    """Train and evaluate text classifiers.

    A model is of fastText, or linear: hashed n-grams with logistic regression. INPUT are Parquet or
    JSONL files (also .gz, .zst) with a text and a label per row; --source names files of one label.
    """


@command.command("train")
@takes_rows
@click.option("--output", required=True, type=click.Path(path_type=Path), help="The model file.")
@click.option(
    "--auto",
    is_flag=True,
    help="Try families, normalisations and n-grams on held-out parts, print the table, and train "
    "the best. Replaces the four options below.",
)
@click.option(
    "--family",
    default="fasttext",
    show_default=True,
    type=click.Choice(["fasttext", "linear"]),
    help="`linear` mostly does better on texts of sources that it has not seen.",
)
@click.option(
    "--normalize",
    default="none",
    show_default=True,
    metavar="NAMES",
    help="Stored with the model, and done by whatever applies it: `lower`, `punct` (words of their "
    "own), `digits` (each becomes 0), as in lower,punct.",
)
@click.option("--word-ngrams", default=1, show_default=True, help="Longest run of words used.")
@click.option("--minn", default=0, show_default=True, help="Shortest run of characters used.")
@click.option("--maxn", default=0, show_default=True, help="Longest run of characters; 0 for none.")
@click.option(
    "--folds",
    default=3,
    show_default=True,
    help="Parts (with --group-column of whole groups) that are held out in turn, to calibrate "
    "scores and for --auto; adds one training per fold. 0 leaves scores as they are.",
)
@click.option(
    "--regression",
    is_flag=True,
    help="Labels are numbers, as an educational score from 0 to 5; so is the score.",
)
@click.option("--dim", default=16, show_default=True, help="fastText: length of the vectors.")
@click.option("--epochs", default=5, show_default=True, help="fastText: times each text is seen.")
@click.option("--lr", default=0.5, show_default=True, help="fastText: learning rate at the start.")
@click.option("--buckets", default=200_000, show_default=True, help="Rows that runs are hashed to.")
@click.option(
    "--min-count", default=1, show_default=True, help="Rarer words have no row; linear: texts."
)
@click.option(
    "--loss", default="softmax", show_default=True,
    type=click.Choice(["softmax", "hs", "ns", "ova"]), help="fastText's loss functions.",
)  # fmt: skip
@click.option("--quantize", is_flag=True, help="Compress: 9 bytes a row at 16 dimensions.")
@click.option("--cutoff", default=0, show_default=True, help="Rows --quantize keeps; 0 for all.")
@click.option(
    "--max-size",
    default="0",
    type=Size(),
    help="Largest file, as in 2MB: quantizes, or takes fewer buckets.",
)
@click.option("--seed", default=0, show_default=True, help="Of the order of texts and the weights.")
@click.option("--threads", default=1, show_default=True, help="More than 1: not reproducible.")
def train_command(
    output: Path,
    quantize: bool,
    cutoff: int,
    max_size: int,
    positive: str,
    as_json: bool,
    folds: int,
    auto: bool,
    **options: Any,
) -> None:
    """Train a classifier on labelled texts and write it to --output.

    \b
    To choose and calibrate a model for texts of sources that you have no labels of:
      corpuskit classifier train labelled.parquet --group-column source --positive good \\
          --auto --output quality.model
    For a score from 0 to 5:
      corpuskit classifier train labelled.parquet --label-column score --regression \\
          --family linear --normalize lower,punct --output edu.model
    For fastText's own scores, in a file that the library reads:
      corpuskit classifier train labelled.parquet --folds 0 --output quality.bin

    With one thread, the same inputs, options and fastText give the same model byte for byte.
    """
    if auto and not folds:
        raise click.UsageError("--auto judges on held-out parts. Give --folds 2 or more.")
    if auto and options["regression"]:
        options["family"] = "linear"
    from corpuskit.stages.annotators._classifier import Shrink, train_classifier
    from corpuskit.stages.annotators._fasttext import ClassifierSettings

    rows, split = _rows(options)
    report = train_classifier(
        rows,
        output,
        ClassifierSettings(
            **{field.name: options[field.name] for field in dataclasses.fields(ClassifierSettings)}
        ),
        split=split,
        shrink=Shrink(bool(quantize), cutoff, max_size),
        positive=positive,
        folds=folds,
        auto=auto,
        progress=lambda message: click.echo(message, err=True),
        verbose=2 if sys.stderr.isatty() else 0,
    )
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), ensure_ascii=False))
        return
    if report.tried:
        click.echo(_candidates(report))
    if report.held_out is not None:
        click.echo(f"held out: {_table(report.held_out)}")


@command.command("eval")
@click.argument("model", type=click.Path(path_type=Path))
@takes_rows
@click.option("--keep-rate", type=float, help="Find the threshold that keeps this share.")
@click.option(
    "--among", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
    help="Texts without labels for --keep-rate; may be repeated. Default: those evaluated.",
)  # fmt: skip
@click.option("--precision", type=float, help="Find the lowest threshold that reaches this.")
@click.option(
    "--stage", default="quality", show_default=True, type=click.Choice(["quality", "toxicity"]),
    help="The stage that a threshold is for.",
)  # fmt: skip
def eval_command(
    model: Path,
    keep_rate: float | None,
    among: tuple[Path, ...],
    precision: float | None,
    stage: str,
    positive: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Evaluate MODEL on labelled texts: accuracy by label and group, calibration, thresholds.

    With --holdout and --holdout-group as given to `train`, only on what that left out.
    """
    from corpuskit.stages.annotators._classifier import (
        choose_thresholds,
        evaluate,
        judge_held_out,
        stage_snippet,
    )
    from corpuskit.stages.annotators._labelled import read_texts
    from corpuskit.stages.annotators._linear import NUMBER

    rows, split = _rows(options)
    judged = judge_held_out(model, rows, split, positive)
    texts = read_texts(among, rows.text_column) if among else None
    thresholds = choose_thresholds(
        judged, keep_rate=keep_rate, precision=precision, model=model, among=texts
    )
    evaluation = evaluate(judged)
    if as_json:
        extra = [dataclasses.asdict(threshold) for threshold in thresholds]
        click.echo(
            json.dumps({**dataclasses.asdict(evaluation), "thresholds": extra}, ensure_ascii=False)
        )
        return
    click.echo(_table(evaluation))
    for threshold in thresholds:
        click.echo(_threshold(threshold))
        label = positive if judged.numbers is None else NUMBER
        click.echo(f"  {stage_snippet(stage, str(model), label, threshold)}")


def _rows(options: dict[str, Any]) -> tuple[Labelled, Split]:
    """Return where the rows are and which are held out, from the shared options."""
    from corpuskit.stages.annotators._labelled import Labelled, Split

    rows = Labelled(
        options["inputs"],
        options["sources"],
        options["text_column"],
        options["label_column"],
        options["group_column"],
    )
    by_group = options["group_column"] is not None
    return rows, Split(options["holdout"], by_group, options["holdout_groups"])


def _candidates(report: TrainReport) -> str:
    """Lay out what was tried, best first."""
    figure = "explained" if report.settings.regression else "ROC area"
    lines = [f"tried on held-out parts; {figure}: mean and worst part, CPU seconds to train"]
    lines += [
        f"  {row.figure:.4f}  {row.worst:.4f}  {row.cpu_seconds:>7.1f}  {row.name}"
        for row in sorted(report.tried, key=lambda row: -row.figure)
    ]
    return "\n".join(lines)


def _table(evaluation: ClassifierEvaluation | RegressionEvaluation, limit: int = 20) -> str:
    """Lay an evaluation out as text: figures, a line per label, confusions, groups, calibration."""
    from corpuskit.stages.annotators._classifier import RegressionEvaluation

    if isinstance(evaluation, RegressionEvaluation):
        area = "" if evaluation.auc is None else f", ROC area {evaluation.auc:.4f}"
        lines = [
            f"root mean squared error {evaluation.error:.4f}, mean error "
            f"{evaluation.mean_error:.4f}, variance explained {evaluation.explained:.4f}{area}, "
            f"{evaluation.num_docs:,} texts"
        ]
        if evaluation.groups:
            lines.append("root mean squared error by group:")
            lines += [
                f"  {g.error:.4f}  {g.num_docs:>8,}  {g.group}" for g in evaluation.groups[:limit]
            ]
        return "\n".join(lines)
    width = max([len(score.label) for score in evaluation.labels] + [len("label")])
    area = "" if evaluation.auc is None else f", ROC area {evaluation.auc:.4f}"
    lines = [
        f"accuracy {evaluation.accuracy:.4f}, macro F1 {evaluation.macro_f1:.4f}{area}, "
        f"{evaluation.num_docs:,} texts",
        f"{'label':<{width}}  {'texts':>8}  precision  recall      f1",
    ]
    lines += [
        f"{score.label:<{width}}  {score.num_docs:>8,}  {score.precision:>9.4f}"
        f"  {score.recall:.4f}  {score.f1:.4f}"
        for score in evaluation.labels
    ]
    if evaluation.confusions:
        lines.append("taken for another label, most often:")
        lines += [
            f"  {true} -> {guess or '(nothing)'}  {count:,}"
            for true, guess, count in evaluation.confusions[:limit]
        ]
    if evaluation.groups:
        lines.append("accuracy by group:")
        lines += [
            f"  {g.accuracy:.4f}  {g.num_docs:>8,}  {g.group}" for g in evaluation.groups[:limit]
        ]
    if evaluation.calibration is not None:
        best = evaluation.calibration.label or "the best label"
        lines.append(f"calibration of {best}, expected error {evaluation.calibration.error:.4f}:")
        lines.append("  score        texts  mean score  right")
        lines += [
            f"  {b.low:.1f}-{b.high:.1f}  {b.num_docs:>10,}  {b.mean_score:>10.4f}"
            f"  {b.right_ratio:.4f}"
            for b in evaluation.calibration.bins
        ]
    return "\n".join(lines)


def _threshold(threshold: ScoreThreshold) -> str:
    line = (
        f"{threshold.purpose}: score >= {threshold.min_score:.4f} keeps {threshold.kept_ratio:.4f}"
    )
    if threshold.precision is not None and threshold.recall is not None:
        line += f", precision {threshold.precision:.4f}, recall {threshold.recall:.4f}"
    return line

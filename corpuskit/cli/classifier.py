"""Train and judge fastText classifiers."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from corpuskit.stages.annotators._classifier import Evaluation

INPUTS = click.argument(
    "inputs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="INPUT..."
)
TEXT = click.option("--text-column", default="text", show_default=True, help="Column of the texts.")
LABEL = click.option(
    "--label-column",
    default="label",
    show_default=True,
    help="Column of the labels, one word each.",
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group("classifier")
def command() -> None:
    """Train and judge fastText classifiers.

    Inputs are Parquet or JSONL files (also .gz, .zst) with a text and a label per row.
    """


@command.command("train")
@INPUTS
@click.option("--output", required=True, type=click.Path(path_type=Path), help="The model file.")
@TEXT
@LABEL
@click.option("--dim", default=16, show_default=True, help="Length of the vectors.")
@click.option("--epochs", default=5, show_default=True, help="Times each text is seen.")
@click.option("--lr", default=0.5, show_default=True, help="Learning rate; falls to 0 by the end.")
@click.option("--word-ngrams", default=1, show_default=True, help="Longest run of words used.")
@click.option("--minn", default=0, show_default=True, help="Shortest run of characters used.")
@click.option("--maxn", default=0, show_default=True, help="Longest run of characters; 0 for none.")
@click.option("--buckets", default=200_000, show_default=True, help="Rows that runs are hashed to.")
@click.option("--min-count", default=1, show_default=True, help="Rarer words have no row.")
@click.option("--quantize", is_flag=True, help="Compress: 9 bytes a row at 16 dimensions.")
@click.option("--cutoff", default=0, show_default=True, help="Rows --quantize keeps; 0 for all.")
@click.option("--seed", default=0, show_default=True, help="Of the order of texts and the weights.")
@click.option("--threads", default=1, show_default=True, help="More than 1: not reproducible.")
@click.option("--holdout", default=0.0, show_default=True, help="Share of texts kept to judge by.")
@AS_JSON
def train_command(
    inputs: tuple[Path, ...],
    output: Path,
    text_column: str,
    label_column: str,
    quantize: bool,
    cutoff: int,
    holdout: float,
    as_json: bool,
    **settings: int | float,
) -> None:
    """Train a classifier on the rows of INPUT and write it to --output.

    With one thread, the same inputs, options and fastText give the same model byte for byte.
    """
    from corpuskit.stages.annotators._classifier import train_classifier
    from corpuskit.stages.annotators._fasttext import Settings

    report = train_classifier(
        inputs,
        output,
        Settings(**settings),  # type: ignore[arg-type]
        text_column=text_column,
        label_column=label_column,
        holdout=holdout,
        quantize=quantize,
        cutoff=cutoff,
        progress=lambda message: click.echo(message, err=True),
        verbose=2 if sys.stderr.isatty() else 0,
    )
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), ensure_ascii=False))
    elif report.held_out is not None:
        click.echo(f"held out: {_table(report.held_out)}")


@command.command("eval")
@click.argument("model", type=click.Path(path_type=Path))
@INPUTS
@TEXT
@LABEL
@AS_JSON
def eval_command(
    model: Path, inputs: tuple[Path, ...], text_column: str, label_column: str, as_json: bool
) -> None:
    """Judge MODEL on the rows of INPUT: accuracy, a table by label, what is taken for what."""
    from corpuskit.stages.annotators._classifier import evaluate_classifier

    found = evaluate_classifier(model, inputs, text_column=text_column, label_column=label_column)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), ensure_ascii=False))
    else:
        click.echo(_table(found))


def _table(found: Evaluation, most: int = 20) -> str:
    """Lay an evaluation out as text: figures, a line per label, the commonest confusions."""
    width = max([len(score.label) for score in found.labels] + [len("label")])
    lines = [
        f"accuracy {found.accuracy:.4f}, macro F1 {found.macro_f1:.4f}, {found.num_docs:,} texts",
        f"{'label':<{width}}  {'texts':>8}  precision  recall      f1",
    ]
    lines += [
        f"{score.label:<{width}}  {score.num_docs:>8,}  {score.precision:>9.4f}"
        f"  {score.recall:.4f}  {score.f1:.4f}"
        for score in found.labels
    ]
    if found.confusions:
        lines.append("taken for another label, most often:")
        lines += [
            f"  {true} -> {guess or '(nothing)'}  {count:,}"
            for true, guess, count in found.confusions[:most]
        ]
    return "\n".join(lines)

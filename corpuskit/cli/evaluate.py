"""Score a model on tasks: multiple choice by likelihood, and bits per byte."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from corpuskit.cli._streams import echo
from corpuskit.cli._train_export import needs_torch
from corpuskit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corpuskit.stages.sequences.tokenize import Tokenize
    from corpuskit.train.likelihood import ItemScores
    from corpuskit.train.metrics import TaskScores


@click.command("evaluate")
@click.argument("model", type=click.Path(exists=True, file_okay=False))
@click.argument("tasks", nargs=-1, required=True, metavar="NAME=FILE...")
@click.option("--step", type=click.IntRange(0), help="Of a training: which checkpoint.  [newest]")
@click.option("--average", metavar="ema|N",
              help="Of a training: the average it kept, or the mean of N checkpoints.")  # fmt: skip
@click.option("--max-items", type=click.IntRange(1), help="Of each task, the first N items.")
@click.option("--unconditional", is_flag=True,
              help="Score choices without their context, too; takes twice the time.")  # fmt: skip
@click.option("--seq-len", type=click.IntRange(2),
              help="Tokens of a row; longer items are left out.  [default: <= 4096]")  # fmt: skip
@click.option("--rows", type=click.IntRange(1), default=8, show_default=True,
              help="Rows of a forward pass; fewer take less memory.")  # fmt: skip
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32",
              show_default=True, help="Type of the weights.")  # fmt: skip
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto",
              show_default=True, help="auto: a GPU, if there is one.")  # fmt: skip
@click.option("--items", "folder", type=click.Path(file_okay=False), metavar="DIR",
              help="Write the scores of each item to DIR/NAME.jsonl.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    model: str,
    tasks: tuple[str, ...],
    max_items: int | None,
    unconditional: bool,
    folder: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Score MODEL, the output of a training or a Hugging Face folder, on task files.

    A task file is JSON lines or Parquet: `context`, `choices` and `gold`, or `text`; or a published
    file of HellaSwag, ARC, OpenBookQA, SciQ, PIQA, WinoGrande, BoolQ or MMLU.

    \b
    Examples:
      corpuskit evaluate runs/train arc=arc_easy.parquet hellaswag=hellaswag_val.jsonl
      torchrun --nproc-per-node 2 -m corpuskit evaluate exported/ mmlu=mmlu.parquet --json
    """
    files = named_tasks(tasks)
    with needs_torch():
        from corpuskit.train.likelihood import score_items
        from corpuskit.train.pretrained import open_pretrained
    from corpuskit.stages.sequences._heldout import encode_task
    from corpuskit.train.tasks import read_task

    questions = {name: read_task(path, max_items) for name, path in files.items()}
    if folder is not None:  # a folder that cannot be made is refused before the model runs
        Path(folder).mkdir(parents=True, exist_ok=True)
    pretrained = open_pretrained(Path(model), **options)
    tokenizer = _open_tokenizer(model, pretrained.data)
    results: dict[str, tuple[TaskScores, list[ItemScores]]] = {}
    for name, task_questions in questions.items():
        items = encode_task(task_questions, tokenizer, unconditional=unconditional)
        results[name] = score_items(
            pretrained.model, pretrained.settings, pretrained.parallel, items, pretrained.seq_len
        )
    if pretrained.parallel.rank == 0:
        _show(results, folder, as_json)
    pretrained.close()


def named_tasks(tasks: Sequence[str]) -> dict[str, str]:
    """Return name -> path of `name=path` texts.

    Raises:
        UsageError: one names no task, or a name is given twice.
    """
    from corpuskit.paths import is_name

    files: dict[str, str] = {}
    for task in tasks:
        name, equals, path = task.partition("=")
        if not equals or not name or not path:
            raise UsageError(f"{task}: name the task, as in arc=arc_easy.parquet.")
        if name in files or not is_name(name):
            why = "is given twice" if name in files else "must be of letters, digits, - and _"
            raise UsageError(f"{task}: the name {name!r} {why}. Choose another one.")
        files[name] = path
    return files


def _open_tokenizer(model: str, data: str | None) -> Tokenize:
    from corpuskit.stages.sequences._heldout import open_tokenizer
    from corpuskit.stages.sequences.tokenize import Tokenize
    from corpuskit.stages.sequences.tokenize.definition import define

    if data is not None:
        return open_tokenizer(data)
    config = json.loads(Path(model, "config.json").read_bytes())
    stage = Tokenize.model_validate({"tokenizer": model, "add_eos": False})
    names = {number: name for name, number in define(stage._spec).vocabulary.items()}
    special = {
        kind: names.get(config.get(f"{kind}_token_id"))
        for kind in ("bos", "eos")
        if isinstance(config.get(f"{kind}_token_id"), int)
    }
    return stage.model_copy(update=special)


def _show(
    results: Mapping[str, tuple[TaskScores, list[ItemScores]]], folder: str | None, as_json: bool
) -> None:
    if folder is not None:
        for name, (_, scores) in results.items():
            lines = "".join(json.dumps(dataclasses.asdict(item)) + "\n" for item in scores)
            Path(folder, f"{name}.jsonl").write_text(lines, "utf-8")
    if as_json:
        values = {name: dataclasses.asdict(task) for name, (task, _) in results.items()}
        click.echo(json.dumps(values, indent=2))
        return
    titles = ("task", "items", "right", "+-", "/char", "/byte", "uncond.", "bits/byte", "too long")
    echo("".join(f"{title:>{width}}" for title, width in zip(titles, _WIDTHS, strict=True)))
    for name, (task, _) in results.items():
        cells = (
            name[: _WIDTHS[0]], f"{task.items:,}", _percent(task.accuracy),
            _percent(task.standard_error), _percent(task.accuracy_per_character),
            _percent(task.accuracy_per_byte), _percent(task.accuracy_unconditional),
            "" if task.bits_per_byte is None else f"{task.bits_per_byte:.4f}",
            str(task.too_long or ""),
        )  # fmt: skip
        echo("".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)))
        if task.too_long:
            others = " and others" if task.too_long > len(task.too_long_ids) else ""
            echo(f"  longer than a row, left out: {', '.join(task.too_long_ids)}{others}")


_WIDTHS = (16, 8, 8, 7, 8, 8, 9, 11, 10)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"

"""Change a running mixture from a step on: weights, spans to skip, documents to mask."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from corpuskit.cli._ramp import batch_size_option, seq_len_option
from corpuskit.cli._streams import echo

if TYPE_CHECKING:
    from collections.abc import Iterable

    from corpuskit.loader.steps import BatchSize


@click.group("edit")
def command() -> None:
    """Change a running mixture from a step on: weights, spans to skip, documents to mask.

    An edit is a small file in DIRECTORY/edits/. No shard is written again, and no row before the
    step changes: stop the training run before that step, edit, and start it again. It goes on from
    its checkpoint under the edited plan, and refuses if it has already passed the step.

    Steps mean rows only with the batch size of that run, so -b must be given.

    \b
    corpuskit edit stage runs/r --at-step 8000 -b 512 --weight math=3 --weight web=1
    corpuskit edit skip runs/r --steps 7210:7230 -b 512 --reason "loss spike"
    corpuskit edit takedown runs/r --at-step 8000 -b 512 --doc crawl/17.jsonl#4711
    corpuskit edit list runs/r
    """


directory = click.argument("directory", metavar="DIRECTORY")
at_step = click.option(
    "--at-step", type=click.IntRange(0), required=True, help="The first step that may change."
)
reason_option = click.option("--reason", default="", help="Kept with the edit.")
dry_run = click.option("--dry-run", is_flag=True, help="Check and show it, write nothing.")


@command.command("stage")
@directory
@at_step
@batch_size_option(required=True)
@seq_len_option
@click.option("--weight", "weights", multiple=True, required=True, metavar="SOURCE=WEIGHT",
              help="Integer share of a source; may be repeated.")  # fmt: skip
@click.option("--max-epochs", "caps", multiple=True, metavar="SOURCE=EPOCHS",
              help="A new cap for a source; may be repeated.")  # fmt: skip
@click.option("--rows", type=click.IntRange(1), help="Packed rows of the stage.")
@click.option("--tokens", type=click.IntRange(1), help="Its tokens, instead of --rows.")
@click.option("--name", help="What reports call it.")
@dry_run
def stage_command(
    directory: str,
    at_step: int,
    global_batch_rows: BatchSize,
    seq_len: int | None,
    weights: tuple[str, ...],
    caps: tuple[str, ...],
    rows: int | None,
    tokens: int | None,
    name: str | None,
    dry_run: bool,
) -> None:
    """Go on with other weights, instead of what the plan has from there.

    Without --rows or --tokens the run keeps its length.
    """
    from corpuskit.loader.commands import edit_stage

    _echo(edit_stage(
        directory, global_batch_rows, at_step=at_step, weights=weights, caps=caps, rows=rows,
        tokens=tokens, name=name, seq_len=seq_len, dry_run=dry_run,
    ))  # fmt: skip


@command.command("skip")
@directory
@click.option("--steps", "spans", multiple=True, required=True, metavar="FIRST:END",
              help="Steps FIRST to END - 1; may be repeated.")  # fmt: skip
@batch_size_option(required=True)
@seq_len_option
@reason_option
@dry_run
def skip_command(
    directory: str,
    spans: tuple[str, ...],
    global_batch_rows: BatchSize,
    seq_len: int | None,
    reason: str,
    dry_run: bool,
) -> None:
    """Skip the rows of some steps for good: the rows after them move up."""
    from corpuskit.loader.commands import edit_skip

    _echo(edit_skip(
        directory, global_batch_rows, spans=spans, reason=reason, seq_len=seq_len, dry_run=dry_run
    ))  # fmt: skip


@command.command("takedown")
@directory
@at_step
@batch_size_option(required=True)
@seq_len_option
@click.option("--doc", "documents", multiple=True, help="A document's id; may be repeated.")
@click.option("--docs-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Ids, one on a line.")  # fmt: skip
@click.option("--ignore-missing", is_flag=True,
              help="Leave out documents in no packed row; the edit lists them.")  # fmt: skip
@reason_option
@dry_run
def takedown_command(
    directory: str,
    at_step: int,
    global_batch_rows: BatchSize,
    seq_len: int | None,
    documents: tuple[str, ...],
    docs_file: Path | None,
    ignore_missing: bool,
    reason: str,
    dry_run: bool,
) -> None:
    """Mask documents: from that step on their tokens are neither inputs nor labels.

    The shards keep them: to delete them for good, take them out of the input and run again.
    """
    from corpuskit.loader.commands import edit_takedown

    _echo(edit_takedown(
        directory, global_batch_rows, at_step=at_step, documents=documents, docs_file=docs_file,
        ignore_missing=ignore_missing, reason=reason, seq_len=seq_len, dry_run=dry_run,
    ))  # fmt: skip


@command.command("list")
@directory
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(directory: str, as_json: bool) -> None:
    """List the edits, and the stages and spans of the plan with them."""
    from corpuskit.loader.commands import edit_list

    _echo(edit_list(directory, as_json=as_json))


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        echo(line)

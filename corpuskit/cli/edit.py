"""Change a running mixture from a step on: weights, sources, spans to skip, masked documents."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from corpuskit.cli._ramp import seq_len_option, steps_of, training_options
from corpuskit.cli._streams import echo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from corpuskit.loader.steps import BatchSize


@click.group("edit")
def command() -> None:
    """Change a running mixture from a step on: weights, sources, spans to skip, masked documents.

    An edit is a small file in DIRECTORY/edits/. No shard is written again, and no row before the
    step changes: stop the training run before that step, edit, and start it again. It goes on from
    its checkpoint under the edited plan, and refuses if it has already passed the step.

    Steps mean rows only with the batch size of that run, so give -b, or --training.

    \b
    corpuskit edit stage runs/r --at-step 8000 -b 512 --weight math=3 --weight web=1
    corpuskit edit source runs/r --from runs/new --at-step 9000 -b 512 --weight web=1 --weight c=1
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


def stage_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of an edit that begins a stage."""
    options: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [
        directory, at_step, training_options, seq_len_option,
        click.option("--weight", "weights", multiple=True, required=True, metavar="SOURCE=WEIGHT",
                     help="Integer share of a source; may be repeated."),
        click.option("--max-epochs", "caps", multiple=True, metavar="SOURCE=EPOCHS",
                     help="A new cap for a source; may be repeated."),
        click.option("--rows", type=click.IntRange(1), help="Packed rows of the stage."),
        click.option("--tokens", type=click.IntRange(1), help="Its tokens, instead of --rows."),
        click.option("--name", help="What reports call it."),
        dry_run,
    ]  # fmt: skip
    return functools.reduce(lambda decorated, option: option(decorated), options[::-1], function)


@command.command("stage")
@stage_options
def stage_command(**options: Any) -> None:
    """Go on with other weights, instead of what the plan has from there.

    Without --rows or --tokens the run keeps its length.
    """
    _edit("edit_stage", **options)


@command.command("source")
@stage_options
@click.option("--from", "other", required=True, metavar="OTHER",
              help="Directory of the finished run that has them.")  # fmt: skip
@click.option("--as", "names", multiple=True, metavar="SOURCE=NAME",
              help="What a source of OTHER is called here; may be repeated.")  # fmt: skip
def source_command(**options: Any) -> None:
    """Add sources of another finished run, and go on with weights that include them.

    OTHER must have the same tokenizer, seq_len and dtype. Its sources that have a --weight are
    added; a name that both runs have means the source of DIRECTORY. The shards get a second name in
    DIRECTORY/edits/ (a hard link, or a copy where that can't be), so OTHER may be moved or deleted.
    """
    _edit("edit_stage", **options)


@command.command("skip")
@directory
@click.option("--steps", "spans", multiple=True, required=True, metavar="FIRST:END",
              help="Steps FIRST to END - 1; may be repeated.")  # fmt: skip
@training_options
@seq_len_option
@reason_option
@dry_run
def skip_command(**options: Any) -> None:
    """Skip the rows of some steps for good: the rows after them move up."""
    _edit("edit_skip", **options)


@command.command("takedown")
@directory
@at_step
@training_options
@seq_len_option
@click.option("--doc", "documents", multiple=True, help="A document's id; may be repeated.")
@click.option("--docs-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Ids, one on a line.")  # fmt: skip
@click.option("--ignore-missing", is_flag=True,
              help="Leave out documents in no packed row; the edit lists them.")  # fmt: skip
@reason_option
@dry_run
def takedown_command(**options: Any) -> None:
    """Mask documents: from that step on their tokens are neither inputs nor labels.

    The shards keep them: to delete them for good, take them out of the input and run again.
    """
    _edit("edit_takedown", **options)


@command.command("list")
@directory
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(directory: str, as_json: bool) -> None:
    """List the edits, and the stages and spans of the plan with them."""
    from corpuskit.loader.commands import edit_list

    _echo(edit_list(directory, as_json=as_json))


def _edit(
    command: str,
    /,
    directory: str,
    global_batch_rows: BatchSize | None,
    training: str | None,
    **options: Any,
) -> None:
    from corpuskit.loader import commands

    batch, skip = steps_of(directory, global_batch_rows, training)
    _echo(getattr(commands, command)(directory, batch, skip=skip, **options))


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        echo(line)

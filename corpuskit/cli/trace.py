"""Show the documents of a training step, or the steps that hold a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from corpuskit.cli._ramp import seq_len_option, steps_of, training_options
from corpuskit.cli._streams import echo

if TYPE_CHECKING:
    from corpuskit.loader.steps import BatchSize


@click.command("trace")
@click.argument("directory", metavar="DIRECTORY")
@click.option("--step", type=click.IntRange(0), help="Show the documents of this step.")
@click.option("--doc", help="Show the steps that hold this document (an id, or a key number).")
@click.option("--mixture", is_flag=True,
              help="Show what each source has given before --step (or by the end).")  # fmt: skip
@training_options
@seq_len_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    directory: str,
    step: int | None,
    doc: str | None,
    mixture: bool,
    global_batch_rows: BatchSize | None,
    training: str | None,
    seq_len: int | None,
    as_json: bool,
) -> None:
    """Show which documents are in a training step, or which steps hold a document.

    Steps of -b rows (8 without) follow from the plan alone, so this works before, during and after
    training. After a rollback a training has steps of its own: name it with --training.
    """
    from corpuskit.loader.commands import trace

    batch, skip = steps_of(directory, global_batch_rows, training, default=8)
    for line in trace(
        directory, batch, step=step, doc=doc, mixture=mixture, seq_len=seq_len, skip=skip,
        as_json=as_json,
    ):  # fmt: skip
        echo(line)

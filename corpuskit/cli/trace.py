"""Show the documents of a training step, or the steps that hold a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from corpuskit.cli._ramp import batch_size_option, seq_len_option
from corpuskit.cli._streams import echo

if TYPE_CHECKING:
    from corpuskit.loader.steps import BatchSize


@click.command("trace")
@click.argument("directory", metavar="DIRECTORY")
@click.option("--step", type=click.IntRange(0), help="Show the documents of this step.")
@click.option("--doc", help="Show the steps that hold this document (an id, or a key number).")
@click.option("--mixture", is_flag=True,
              help="Show what each source has given before --step (or by the end).")  # fmt: skip
@batch_size_option(required=False)
@seq_len_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    directory: str,
    step: int | None,
    doc: str | None,
    mixture: bool,
    global_batch_rows: BatchSize,
    seq_len: int | None,
    as_json: bool,
) -> None:
    """Show which documents are in a training step, or which steps hold a document.

    Steps follow from the plan alone, so this works before, during and after training.
    """
    from corpuskit.loader.commands import trace

    for line in trace(
        directory, global_batch_rows, step=step, doc=doc, mixture=mixture, seq_len=seq_len,
        as_json=as_json,
    ):  # fmt: skip
        echo(line)

"""Show the documents of a training step, or the steps that see a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from corpuskit.cli._plain import echo

if TYPE_CHECKING:
    from corpuskit.loader import StreamingLoader
    from corpuskit.loader.provenance import Sighting


@click.command("trace")
@click.argument("directory", metavar="DIRECTORY")
@click.option("--step", type=click.IntRange(0), help="Show the documents of this step.")
@click.option("--doc", help="Show the steps that see this document (an id, or a key number).")
@click.option("--global-batch-rows", type=click.IntRange(1), default=8, show_default=True,
              help="Rows per step of the training run in question.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    directory: str, step: int | None, doc: str | None, global_batch_rows: int, as_json: bool
) -> None:
    """Show which documents are in a training step, or when a document is seen.

    Steps follow from the plan alone, so this works before, during and after training.
    """
    import dataclasses
    import json

    from corpuskit.errors import UsageError
    from corpuskit.loader import StreamingLoader

    if (step is None) == (doc is None):
        raise UsageError("trace: give either --step or --doc.")
    with StreamingLoader(directory, global_batch_rows=global_batch_rows) as loader:
        found = loader.which(step) if step is not None else _sightings(loader, str(doc))
    rows = [dataclasses.asdict(one) for one in found]
    if as_json:
        echo(json.dumps(rows, indent=1))
        return
    if not rows:
        click.echo("Not seen in this run.")
    for row in rows:
        documents = row.pop("documents", ())
        echo("  ".join(f"{name}={value}" for name, value in row.items()))
        for document in documents:
            echo("    " + "  ".join(f"{name}={value}" for name, value in document.items()))


def _sightings(loader: StreamingLoader, document: str) -> list[Sighting]:
    """Look a document up by id; a number that is no id is a key."""
    from corpuskit.errors import UsageError

    try:
        return loader.when(document)
    except UsageError:
        if not document.isdigit():
            raise
        return loader.when(int(document))

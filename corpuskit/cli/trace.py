"""Show the documents of a training step, or the steps that see a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from corpuskit.cli._plain import echo
from corpuskit.cli._ramp import batch_size_option, seq_len_option

if TYPE_CHECKING:
    from corpuskit.cli._ramp import BatchSize
    from corpuskit.loader import StreamingLoader
    from corpuskit.loader.provenance import Occurrence


@click.command("trace")
@click.argument("directory", metavar="DIRECTORY")
@click.option("--step", type=click.IntRange(0), help="Show the documents of this step.")
@click.option("--doc", help="Show the steps that see this document (an id, or a key number).")
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
    """Show which documents are in a training step, or when a document is seen.

    Steps follow from the plan alone, so this works before, during and after training.
    """
    import dataclasses
    import json

    from corpuskit.errors import UsageError
    from corpuskit.loader import StreamingLoader

    if (doc is not None) + (step is not None or mixture) != 1:
        raise UsageError("trace: give --step, --doc or --mixture.")
    found: list[object]
    with StreamingLoader(directory, global_batch_rows, seq_len=seq_len) as loader:
        if mixture:
            found = [*loader.mixture(loader.num_steps if step is None else step)]
        else:
            found = [*(loader.which(step) if step is not None else _sightings(loader, str(doc)))]
    rows = [dataclasses.asdict(one) for one in found]  # type: ignore[call-overload]
    if as_json:
        echo(json.dumps(rows, indent=1))
        return
    if not rows:
        click.echo("Not seen in this run.")
    for row in rows:
        documents = row.pop("documents", ())
        echo("  ".join(f"{name}={_plain(value)}" for name, value in row.items()))
        for document in documents:
            echo("    " + "  ".join(f"{name}={value}" for name, value in document.items()))


def _plain(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def _sightings(loader: StreamingLoader, document: str) -> list[Occurrence]:
    """Look a document up by id; a number that is no id is a key."""
    from corpuskit.errors import UsageError

    try:
        return loader.occurrences(document)
    except UsageError:
        if not document.isdigit():
            raise
        return loader.occurrences(int(document))

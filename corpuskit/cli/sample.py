"""Gather real text from this machine, with a pipeline to run on it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click


@click.command("sample")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.option(
    "--max-mb", default=40, show_default=True, type=click.IntRange(min=1), help="Most text, in MB."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(folder: Path, max_mb: int, as_json: bool) -> None:
    """Gather real text from this machine into DIR: manual pages, documentation, docstrings, code.

    Reads what comes with the system, Python and its packages, not your own files. Writes sources, a
    tokenizer trained on them and DIR/pipeline.yaml.
    """
    from corpuskit.stages.sources._machine import NOTE, gather

    found = gather(
        folder, max_mb * 1_000_000, progress=lambda message: click.echo(message, err=True)
    )
    if as_json:
        rows = [dataclasses.asdict(one) for one in found]
        click.echo(json.dumps({"sources": rows, "pipeline": str(folder / "pipeline.yaml")}))
        return
    width = max(len(one.name) for one in found)
    for one in found:
        size = f"{one.text_bytes / 1e6:,.1f} MB"
        click.echo(f"{one.name:{width}}  {one.num_docs:>7,} documents  {size:>9}  {one.what}")
    click.echo(f"\n{NOTE}\n\nNext: corpuskit run {folder / 'pipeline.yaml'}")

"""Show all that happened to one document."""

from __future__ import annotations

import click


@click.command("why")
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.argument("document")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(directory: str, document: str, as_json: bool) -> None:
    """Show all that happened to DOCUMENT (an id, or a key number) in the run in DIRECTORY."""
    import json
    from pathlib import Path

    from corpuskit.report.history import history
    from corpuskit.run.rundir import RunDirectory

    found = history(RunDirectory.open(Path(directory)), document)
    if as_json:
        click.echo(json.dumps(found, indent=1, ensure_ascii=False))
        return
    for line in found["lines"]:
        click.echo(line)

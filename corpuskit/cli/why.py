"""Show all that happened to one document."""

from __future__ import annotations

import click


@click.command("why")
@click.argument("directory", metavar="DIRECTORY")
@click.argument("document")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(directory: str, document: str, as_json: bool) -> None:
    """Show all that happened to DOCUMENT (an id, or a key number) in the run in DIRECTORY."""
    import json

    from corpuskit.cli._plain import echo, one_line
    from corpuskit.report.history import history
    from corpuskit.run.rundir import RunDirectory

    found = history(RunDirectory.open(directory), document)
    if as_json:
        echo(json.dumps(found, indent=1, ensure_ascii=False))
        return
    for line in found["lines"]:
        echo(one_line(line))

"""Check every file of a run against the hashes in its seals."""

from __future__ import annotations

import sys

import click

from corpuskit.cli._streams import echo


@click.command("verify")
@click.argument("directory", metavar="DIRECTORY")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(directory: str, as_json: bool) -> None:
    """Read every file of the run in DIRECTORY and compare it with the hashes in the seals.

    Exit code 3 when a file is missing, changed or not named by any seal.
    """
    import json

    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import verify

    result = verify(RunDirectory.open(directory))
    if as_json:
        click.echo(json.dumps(result.__dict__, indent=1))
    else:
        click.echo(f"{result.num_files} files, {result.size_bytes / 1e6:.1f} MB checked.")
        for problem in result.problems:
            echo(f"  {problem}")
        for note in result.notes:
            echo(f"  note: {note}")
    sys.exit(3 if result.problems else 0)

"""What is shown came from anywhere: documents, ids, file names, other people's manifests."""

from __future__ import annotations

import click

from corpuskit.errors import printable


def one_line(text: str) -> str:
    """Return printable text without line feeds: nobody can make up a line of ours."""
    return printable(text).replace("\n", "\\n")


def echo(message: str, *, err: bool = False, nl: bool = True) -> None:
    """Print printable text."""
    click.echo(printable(message), err=err, nl=nl)

"""What is shown came from anywhere: documents, ids, file names, other people's manifests.

A terminal obeys control characters, so none but line feeds and tabs reaches it; what changes the
direction of text is shown escaped, too, and so are lone surrogates, which cannot be printed.
"""

from __future__ import annotations

import re

import click

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return text in which what a terminal would obey is shown as an escape."""
    return _OBEYED.sub(_escaped, text)


def one_line(text: str) -> str:
    """Return printable text without line feeds: nobody can make up a line of ours."""
    return printable(text).replace("\n", "\\n")


def echo(message: str, *, err: bool = False, nl: bool = True) -> None:
    """Print printable text."""
    click.echo(printable(message), err=err, nl=nl)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"  # as in JSON, which stays JSON

"""Long output: through a pager on a terminal, as it is anywhere else."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import RenderableType


def show(pieces: Iterable[RenderableType], *, is_paged: bool) -> None:
    """Print pieces one after the other; they are made as the reader gets there.

    Args:
        is_paged: through PAGER, or `less`, if both ends are terminals. `less` quits by itself where
            all fits the screen, unless LESS says otherwise.
    """
    from corpuskit.cli._tables import console

    if not (is_paged and sys.stdin.isatty() and sys.stdout.isatty()):
        out = console()
        for piece in pieces:
            out.print(piece)
        return
    os.environ.setdefault("LESS", "-FRX")
    click.echo_via_pager(_rendered(pieces))


def _rendered(pieces: Iterable[RenderableType]) -> Iterator[str]:
    """Yield pieces as the console would print them, colours included where it has some."""
    from corpuskit.cli._tables import console

    out = console()
    for piece in pieces:
        with out.capture() as held:
            out.print(piece)
        yield held.get()

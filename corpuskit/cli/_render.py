"""Output for people on standard output, in which text carries no markup or terminal control."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.segment import Segment
from rich.table import Table

from corpuskit.cli._streams import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import ConsoleOptions, RenderableType, RenderResult
    from rich.text import Text


class PlainConsole(Console):
    """A console that prints text unchanged: no markup, no emoji codes, no control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a line, or the cell of a table."""
        return super().render_str(one_line(text), **{**options, "markup": False, "emoji": False})

    def on_broken_pipe(self) -> None:
        """Raise the error for `main`; rich would end the process here."""
        raise  # noqa: PLE0704 - rich calls this where it has caught the BrokenPipeError


def console() -> PlainConsole:
    """Return a console that never wraps below 100 columns when the output is piped."""
    default = PlainConsole()
    if default.is_terminal:
        return default
    return PlainConsole(width=max(default.width, 120))


def text_table(*columns: str, title: str | None = None) -> Table:
    """Return an empty table without lines; columns whose name begins with `>` hold numbers."""
    table = Table(
        box=None, header_style="bold", pad_edge=False, title=title, title_justify="left"
    )  # fmt: skip
    for name in columns:
        if name.startswith(">"):
            table.add_column(name[1:], justify="right")
        else:
            table.add_column(name, overflow="fold")
    return table


class Indented:
    """Something moved to the right, without trailing blanks.

    Args:
        columns: how far.
    """

    def __init__(self, inner: RenderableType, columns: int) -> None:
        self._inner, self._columns = inner, columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(options.max_width - self._columns, 8)
        lines = console.render_lines(self._inner, options.update(width=width), pad=False)
        for line in lines:
            yield Segment(" " * self._columns)
            yield from line
            yield Segment.line()


def show(pieces: Iterable[RenderableType], *, is_paged: bool) -> None:
    """Print pieces one after the other; they are made as the reader gets there.

    Args:
        is_paged: through PAGER, or `less`, if both ends are terminals. `less` quits by itself where
            all fits the screen, unless LESS says otherwise.
    """
    if not (is_paged and sys.stdin.isatty() and sys.stdout.isatty()):
        out = console()
        for piece in pieces:
            out.print(piece)
        return
    os.environ.setdefault("LESS", "-FRX")
    click.echo_via_pager(_rendered(pieces))


def _rendered(pieces: Iterable[RenderableType]) -> Iterator[str]:
    """Yield pieces as the console would print them, colours included where it has some."""
    out = console()
    for piece in pieces:
        with out.capture() as captured:
            out.print(piece)
        yield captured.get()

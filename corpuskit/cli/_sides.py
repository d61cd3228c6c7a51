"""Two texts beside each other: only where they differ, word by word."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from rich.console import Group
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from corpuskit.cli._plain import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

CONTEXT = 6
"""Words shown on both sides of a difference; nearer differences share a row."""

MAX_WORDS = 4_000
"""Words of each text that are compared; more would take seconds."""

NARROW = 60
"""Below so many columns the texts stand one under the other."""

Opcode = tuple[str, int, int, int, int]


def sides(left: str, right: str, names: tuple[str, str], most: int) -> Iterator[RenderableType]:
    """Yield what differs between two texts, the first `most` places of it.

    Args:
        names: what the texts are called.
    """
    words = left.split()[:MAX_WORDS], right.split()[:MAX_WORDS]
    matcher = difflib.SequenceMatcher(None, *words, autojunk=False)
    places = list(matcher.get_grouped_opcodes(CONTEXT))
    if not places:
        is_all = max(len(left.split()), len(right.split())) <= MAX_WORDS
        same = "the same words" if is_all else f"the first {MAX_WORDS:,} words are the same"
        yield f"  {same}; {len(left):,} and {len(right):,} characters"
        return
    titles = [f"{n}, {len(t):,} characters" for n, t in zip(names, (left, right), strict=True)]
    yield _Sides(titles, [_row(*words, place) for place in places[:most]])
    if len(places) > most:
        yield f"  ... and they differ in {len(places) - most:,} more"


class Indented:
    """Something moved to the right, without blanks behind its lines.

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


class _Sides:
    """Rows of two cells, which a narrow console shows one under the other."""

    def __init__(self, titles: Sequence[str], rows: Sequence[tuple[Text, Text]]) -> None:
        self.titles, self.rows = titles, rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._stacked() if options.max_width < NARROW else self._table()

    def _table(self) -> RenderableType:
        table = Table(show_lines=True, pad_edge=False, expand=True, header_style="bold")
        for title in self.titles:
            table.add_column(one_line(title), ratio=1, overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table

    def _stacked(self) -> RenderableType:
        lines: list[RenderableType] = []
        for number, row in enumerate(self.rows):
            for title, cell in zip(self.titles, row, strict=True):
                name = title.partition(",")[0] if number else title
                lines += [Text(f"  {one_line(name)}", style="bold"), Indented(cell, 4)]
            lines.append(Text())
        return Group(*lines[:-1])


def _row(left: Sequence[str], right: Sequence[str], place: Sequence[Opcode]) -> tuple[Text, Text]:
    """Return the cells of a place where texts differ."""
    cells = Text(), Text()
    for kind, begin, end, first, last in place:
        ranges = ((left, begin, end, "-", "red"), (right, first, last, "+", "green"))
        for cell, (words, low, high, mark, style) in zip(cells, ranges, strict=True):
            if low == high:
                continue
            shown = one_line(" ".join(_shortened(words[low:high])))
            if kind == "equal":
                cell.append(shown, style="dim")
            else:
                cell.append(f"[{mark}{shown}{mark}]", style=style)
            cell.append(" ")
    for cell in cells:
        cell.rstrip()
    return cells


def _shortened(words: Sequence[str]) -> Sequence[str]:
    if len(words) <= 40:
        return words
    return [*words[:20], f"({len(words) - 35} words)", *words[-15:]]

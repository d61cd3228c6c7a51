"""Compare two runs: plans, funnels, and documents with another outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from corpuskit.cli._render import Indented
from corpuskit.cli._streams import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from corpuskit.inspect.diff import (
        Comparison,
        FunnelPair,
        OutcomeChange,
        PlanChange,
        RunOutcome,
        SourcePair,
    )


@click.command("diff")
@click.argument("directory_a", metavar="DIRECTORY_A")
@click.argument("directory_b", metavar="DIRECTORY_B")
@click.option("--source", default="", help="Documents of one source.")
@click.option("--stage", default="", help="Changes that one stage decided, in either run.")
@click.option("--rule", default="", help="Changes that one rule decided, in either run.")
@click.option("--texts/--no-texts", default=None, help="Compare the texts of documents that both "
              "kept; by default up to 4 GB of them.")  # fmt: skip
@click.option("--pager/--no-pager", default=True, help="Through PAGER or less, on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    directory_a: str, directory_b: str, source: str, stage: str, rule: str,
    texts: bool | None, pager: bool, as_json: bool,
) -> None:  # fmt: skip
    """Compare the runs in DIRECTORY_A and DIRECTORY_B.

    Shows what differs in their plans, their funnels beside each other, and how many documents of
    each source have another outcome, by the rule that changed it. Documents are matched by file and
    position, or by their ids where input files are not the same. Of a run that is not finished,
    finished phases count. `corpuskit inspect` shows documents of either run.
    """
    import json

    from corpuskit.cli._streams import echo
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.inspect.diff import compare

    one, other = RunDirectory.open(directory_a), RunDirectory.open(directory_b)
    comparison = compare(one, other, source=source, stage=stage, rule=rule, texts=texts)
    if as_json:
        echo(json.dumps(comparison.to_json(), indent=1, ensure_ascii=False))
        return
    from corpuskit.cli._render import show

    show(diff_pieces(comparison), is_paged=pager)


# ---------------------------------------------------------------- a comparison for people

MOST_WORDS = 120
"""Characters of what plans say about a change; the whole text is printed above."""

_TITLES = {
    "dropped": "Kept in A, not in B",
    "kept": "Kept in B, not in A",
    "rule": "Dropped in both, not by the same rule",
    "held_out": "Held out in one run only",
    "survivor": "Duplicates where another document was kept",
    "text": "Kept in both, with another text",
    "only_a": "Documents that only A read",
    "only_b": "Documents that only B read",
}


def diff_pieces(comparison: Comparison) -> Iterator[RenderableType]:
    """Yield what to print of a comparison."""
    yield Text(one_line(f"A: {comparison.a}"), style="bold")
    yield Text(one_line(f"B: {comparison.b}"), style="bold")
    for note in comparison.notes:
        yield Text(one_line(f"note: {note}"), style="yellow")
    yield Text()
    yield from _plan(comparison.plan)
    yield Text()
    yield Text("Funnel: documents that each stage let pass, and dropped", style="bold")
    yield _funnel(comparison.funnel)
    yield Text()
    yield Text("Sources: documents and MB of text read, and documents kept", style="bold")
    yield _sources(comparison.sources)
    yield Text()
    yield from _totals(comparison)
    kind = ""
    for change in comparison.changes:
        if change.kind != kind:
            kind = change.kind
            yield Text()
            yield Text(_TITLES[kind], style="bold")
        yield from _change(change)


def _plan(changes: Sequence[PlanChange]) -> Iterator[RenderableType]:
    if not changes:
        yield "The plans are the same."
        return
    yield Text("Plan", style="bold")
    for change in changes:
        yield Indented(Text(one_line(_plan_line(change))), 2)


def _plan_line(change: PlanChange) -> str:
    if change.kind == "files":
        after = change.after
        moved = ", ".join(
            f"{these['files']} {kind} ({', '.join(these['names'])}"
            + (", ...)" if these["files"] > len(these["names"]) else ")")
            for kind, these in after.items()
            if kind != "files"
        )
        return f"{change.place}: {change.before} -> {after['files']}: {moved}"
    if change.kind == "code":
        return f"{change.place}: its code is not the same"
    if change.kind == "libraries":
        return f"phase {change.place}: other libraries, or other contents of model files"
    if change.kind == "order":
        return f"order of stages: {', '.join(change.before)} -> {', '.join(change.after)}"
    if change.kind in ("source", "stage"):
        return f"{change.place}: {'added in B' if change.before is None else 'not in B'}"
    prefix = f"{change.label}." if change.label else ""
    return f"{prefix}{change.words()}"


def _funnel(rows: Sequence[FunnelPair]) -> RenderableType:
    table = _NumberTable("stage", [row.stage for row in rows])
    outs = [[None if side is None else side.num_out for side in (row.a, row.b)] for row in rows]
    lost = [
        [None if side is None else side.num_in - side.num_out for side in (row.a, row.b)]
        for row in rows
    ]
    sizes = [[None if side is None else side.text_bytes for side in (row.a, row.b)] for row in rows]
    table.add(("out A", "out B"), [list(map(_count, row)) for row in outs])
    table.add(("change",), [[_change_of(*row)] for row in outs])
    table.add(("dropped A", "dropped B"), [list(map(_count, row)) for row in lost])
    table.add(("MB in A", "MB in B"), [list(map(_size, row)) for row in sizes])
    return table


def _sources(rows: Sequence[SourcePair]) -> RenderableType:
    table = _NumberTable("source", [row.source for row in rows])
    kept = [[row.kept_a, row.kept_b] for row in rows]
    table.add(("kept A", "kept B"), [list(map(_count, row)) for row in kept])
    table.add(("change",), [[_change_of(*row)] for row in kept])
    table.add(("read A", "read B"), [[_count(row.read_a), _count(row.read_b)] for row in rows])
    sizes = [[row.read_bytes_a, row.read_bytes_b] for row in rows]
    table.add(("MB read A", "MB read B"), [list(map(_size, row)) for row in sizes])
    sizes = [[row.kept_bytes_a, row.kept_bytes_b] for row in rows]
    if any(size is not None for row in sizes for size in row):
        table.add(("MB kept A", "MB kept B"), [list(map(_size, row)) for row in sizes])
    return table


class _NumberTable:
    """A table of numbers; where it is too wide, the last columns are left out.

    Args:
        name: of the first column.
        names: what it holds.
    """

    def __init__(self, name: str, names: Sequence[str]) -> None:
        self._name, self._names = name, names
        self._groups: list[tuple[Sequence[str], Sequence[Sequence[str]]]] = []

    def add(self, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add columns that are shown together or not at all."""
        self._groups.append((names, rows))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbounded = options.update(max_width=1 << 16)
        for count in range(len(self._groups), 0, -1):
            table = self._table(self._groups[:count])
            width = console.measure(table, options=unbounded).maximum
            if count == 1 or width <= options.max_width:
                yield table
                return

    def _table(self, groups: Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]]) -> Table:
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column(self._name, overflow="fold")
        for names, _ in groups:
            for name in names:
                table.add_column(name, justify="right", no_wrap=True)
        for place, name in enumerate(self._names):
            table.add_row(name, *(cell for _, rows in groups for cell in rows[place]))
        return table


def _totals(comparison: Comparison) -> Iterator[RenderableType]:
    every = list(comparison.totals.values())
    both, kept, changed = (
        sum(getattr(one, name) for one in every) for name in ("in_both", "kept_both", "changed")
    )
    texts = "" if comparison.texts_compared else " (texts were not compared)"
    yield Text(
        f"{both:,} documents are in both runs, {kept:,} of them kept in both. "
        f"{changed:,} are not the same{texts}."
    )


def _change(change: OutcomeChange) -> Iterator[RenderableType]:
    by_source = ", ".join(f"{name} {num:,}" for name, num in change.sources.items())
    line = Text(one_line(f"  {_outcomes(change)}: {change.documents:,}"))
    line.append(one_line(f" ({by_source})"))
    if change.because:
        more = "..." if len(change.because) > MOST_WORDS else ""
        line.append(one_line(f"  [{change.because[:MOST_WORDS]}{more}]"), style="dim")
    yield line


def _outcomes(change: OutcomeChange) -> str:
    if change.kind in ("dropped", "only_b"):
        return _words(change.b)
    if change.kind in ("kept", "only_a"):
        return _words(change.a)
    if change.kind in ("rule", "held_out"):
        return f"{_words(change.a)} -> {_words(change.b)}"
    return _words(change.a) if change.kind == "survivor" else "text"


def _words(outcome: RunOutcome) -> str:
    if not outcome.stage:
        return outcome.outcome
    aside = " (held out)" if outcome.outcome == "held_out" else ""
    return f"{outcome.stage}: {outcome.rule}{aside}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _size(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e6:,.1f}"


def _change_of(before: int | None, after: int | None) -> str:
    if before is None or after is None or before == after:
        return ""
    return f"{after - before:+,}"

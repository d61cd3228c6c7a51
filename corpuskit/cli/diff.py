"""Compare two runs: plans, funnels, and documents with another outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from corpuskit.cli._render import Indented, text_table
from corpuskit.cli._streams import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from corpuskit.inspect.diff import (
        Comparison,
        FunnelPair,
        OutcomeChange,
        PlanChange,
        RunOutcome,
    )


@click.command("diff")
@click.argument("directory_a", metavar="DIRECTORY_A")
@click.argument("directory_b", metavar="DIRECTORY_B")
@click.option("--texts/--no-texts", default=None, help="Compare the texts of documents that both "
              "kept; by default up to 4 GB of them.")  # fmt: skip
@click.option("--pager/--no-pager", default=True, help="Through PAGER or less, on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    directory_a: str, directory_b: str, texts: bool | None, pager: bool, as_json: bool
) -> None:
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

    run_a, run_b = RunDirectory.open(directory_a), RunDirectory.open(directory_b)
    comparison = compare(run_a, run_b, texts=texts)
    if as_json:
        echo(json.dumps(comparison.to_json(), indent=1, ensure_ascii=False))
        return
    from corpuskit.cli._render import show

    show(diff_pieces(comparison), is_paged=pager)


# ---------------------------------------------------------------- a comparison for people

MOST_WORDS = 120  # characters of what plans say about a change; the whole is printed above

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
        changes = ", ".join(
            f"{names['files']} {kind} ({', '.join(names['names'])}"
            + (", ...)" if names["files"] > len(names["names"]) else ")")
            for kind, names in after.items()
            if kind != "files"
        )
        return f"{change.place}: {change.before} -> {after['files']}: {changes}"
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
    table = text_table("stage", ">out A", ">out B", ">change", ">dropped A", ">dropped B")
    for row in rows:
        sides = row.a, row.b
        outs = [None if side is None else side.num_out for side in sides]
        dropped = [None if side is None else side.num_lost for side in sides]
        table.add_row(row.stage, *map(_count, outs), _change_of(*outs), *map(_count, dropped))
    return table


def _sources(rows: Sequence[dict[str, Any]]) -> RenderableType:
    table = text_table(
        "source", ">kept A", ">kept B", ">change", ">read A", ">read B", ">MB read A",
        ">MB read B", ">MB kept A", ">MB kept B",
    )  # fmt: skip
    for row in rows:
        num_kept, num_read = ([row[f"{name}_a"], row[f"{name}_b"]] for name in ("kept", "read"))
        sizes = [row[f"{name}_{side}"] for name in ("read_bytes", "kept_bytes") for side in "ab"]
        table.add_row(
            row["source"], *map(_count, num_kept), _change_of(*num_kept), *map(_count, num_read),
            *map(_size, sizes),
        )  # fmt: skip
    return table


def _totals(comparison: Comparison) -> Iterator[RenderableType]:
    counts = list(comparison.totals.values())
    common, kept_in_both, changed = (
        sum(getattr(row, name) for row in counts) for name in ("in_both", "kept_both", "changed")
    )
    texts = "" if comparison.texts_compared else " (texts were not compared)"
    yield Text(
        f"{common:,} documents are in both runs, {kept_in_both:,} of them kept in both. "
        f"{changed:,} are not the same{texts}."
    )


def _change(change: OutcomeChange) -> Iterator[RenderableType]:
    by_source = ", ".join(f"{name} {num:,}" for name, num in change.sources.items())
    line = Text(one_line(f"  {_outcomes(change)}: {change.documents:,}"))
    line.append(one_line(f" ({by_source})"))
    if change.because:
        ellipsis = "..." if len(change.because) > MOST_WORDS else ""
        line.append(one_line(f"  [{change.because[:MOST_WORDS]}{ellipsis}]"), style="dim")
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
    note = " (held out)" if outcome.outcome == "held_out" else ""
    return f"{outcome.stage}: {outcome.rule}{note}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _size(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e6:,.1f}"


def _change_of(before: int | None, after: int | None) -> str:
    if before is None or after is None or before == after:
        return ""
    return f"{after - before:+,}"

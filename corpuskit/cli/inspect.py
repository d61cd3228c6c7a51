"""Show samples of what a stage dropped or cut; near duplicates side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from corpuskit.report.samples import Sample, Samples

_MARGIN = 80
"""Bytes shown on both sides of a span."""

_CONTEXT = 7
"""Words shown on both sides of a difference."""

_MAX_WORDS = 4_000
"""Words of each text that are compared; more would take seconds."""


@click.command("inspect")
@click.argument("directory", metavar="DIRECTORY")
@click.option("--stage", default="", help="Stage to look at; the last one with something to show.")
@click.option("--rule", default="", help="One of its rules.")
@click.option("-n", "--samples", type=click.IntRange(1, 1000), default=5, show_default=True,
              help="Documents to show.")  # fmt: skip
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    help="Another number shows other documents.",
)
@click.option("--changes", type=click.IntRange(1), default=8, show_default=True,
              help="Differences or spans to show of each document.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with whole texts.")
def command(
    directory: str, stage: str, rule: str, samples: int, seed: int, changes: int, as_json: bool
) -> None:
    """Show documents that a stage dropped, or what it cut out of them, in the run in DIRECTORY.

    Of duplicates, the removed document stands beside the one that was kept, with what differs and
    their Jaccard similarity. Texts come from the run directory, or from the ledger, which keeps
    those of one document in 256 unless `ledger: {keep_text: true}` is set.
    """
    import dataclasses
    import json

    from corpuskit.cli._plain import echo
    from corpuskit.report.samples import find_samples
    from corpuskit.run.rundir import RunDirectory

    found = find_samples(RunDirectory.open(directory), stage, rule, samples, seed)
    if as_json:
        echo(json.dumps(dataclasses.asdict(found), indent=1, ensure_ascii=False))
    else:
        _print(found, changes)


def _print(found: Samples, changes: int) -> None:
    from corpuskit.cli._tables import console

    out = console()
    counts = ", ".join(f"{rule} {num:,}" for rule, num in found.rules.items())
    of_all = (
        ""
        if found.parts_read == found.parts
        else f", in {found.parts_read} of {found.parts} ledger files"
    )
    out.print(f"{found.stage}: {counts}{of_all}", style="bold")
    for one in found.rows:
        out.print()
        out.print(_headline(one))
        for piece in _pieces(one, changes):
            out.print(piece)


def _headline(one: Sample) -> str:
    line = f"{one.id} ({one.source}): {one.action} by {one.rule}"
    if one.value is not None:
        line += f", {one.value:.4g}"
    if one.threshold is not None:
        line += f" against {one.threshold:.4g}"
    if one.survivor_id is not None:
        line += f"; kept instead: {one.survivor_id}"
    if one.jaccard is not None:
        line += f"; Jaccard {one.jaccard:.3f}"
    return line


def _pieces(one: Sample, changes: int) -> Iterator[RenderableType]:
    if one.text is None:
        yield "  (the text is not kept: set ledger: {keep_text: true})"
    elif one.survivor_text is not None:
        yield from _side_by_side(one.text, one.survivor_text, changes)
    elif one.survivor_id is not None:
        yield _excerpt(one.text)
        yield "  (the text that was kept is not in this run)"
    elif one.spans:
        yield from _spans(one, changes)
    else:
        yield _excerpt(one.text)


def _excerpt(text: str) -> RenderableType:
    from rich.padding import Padding
    from rich.text import Text

    from corpuskit.cli._plain import one_line

    whole = one_line(text[:600])
    return Padding(Text(whole + (" ..." if len(text) > 600 else "")), (0, 0, 0, 2))


def _spans(one: Sample, changes: int) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    from corpuskit.cli._plain import one_line
    from corpuskit.report.samples import excerpts

    assert one.text is not None, "asked for documents with a text"
    for before, inside, after in excerpts(one.text, one.spans[:changes], _MARGIN):
        if len(inside) > 300:
            inside = f"{inside[:150]} ... ({len(inside):,} characters) ... {inside[-100:]}"
        line = Text(one_line(before), style="dim")
        line.append(f"[-{one_line(inside)}-]", style="not dim red")
        line.append(one_line(after))
        yield Padding(line, (0, 0, 0, 2))
    if len(one.spans) > changes:
        yield f"  ... and {len(one.spans) - changes:,} more spans"


def _side_by_side(removed: str, kept: str, changes: int) -> Iterator[RenderableType]:
    """Yield a table: per difference what the removed text has, and what the kept one has."""
    import difflib

    from rich.table import Table
    from rich.text import Text

    from corpuskit.cli._plain import one_line

    left, right = removed.split()[:_MAX_WORDS], kept.split()[:_MAX_WORDS]
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    found = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    if not found:
        yield "  the same words"
        return
    table = Table(show_lines=True, pad_edge=False, expand=True, header_style="bold")
    table.add_column(f"removed, {len(removed):,} characters", ratio=1, overflow="fold")
    table.add_column(f"kept, {len(kept):,} characters", ratio=1, overflow="fold")

    def cell(words: list[str], begin: int, end: int, marks: str, style: str) -> Text:
        before, after = words[max(begin - _CONTEXT, 0) : begin], words[end : end + _CONTEXT]
        inside = words[begin:end]
        if len(inside) > 40:
            inside = [*inside[:20], f"({len(inside) - 35} words)", *inside[-15:]]
        text = Text(one_line(" ".join(before)) + " ", style="dim")
        if inside:
            text.append(f"[{marks}{one_line(' '.join(inside))}{marks}]", style=f"not dim {style}")
        text.append(" " + one_line(" ".join(after)))
        return text

    for _, begin, end, first, last in found[:changes]:
        table.add_row(cell(left, begin, end, "-", "red"), cell(right, first, last, "+", "green"))
    yield table
    if len(found) > changes:
        yield f"  ... and {len(found) - changes:,} more differences"

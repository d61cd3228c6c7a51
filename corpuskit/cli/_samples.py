"""Documents with what happened to them, as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from corpuskit.cli._plain import one_line
from corpuskit.cli._sides import Indented, sides
from corpuskit.inspect.samples.samples import excerpts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from corpuskit.inspect.samples.samples import Sample, Samples

MARGIN = 80
"""Bytes shown on both sides of a span."""

SHOWN_CHARS = 600
"""Characters of a text that are shown."""

_PLACES = {
    "input": "text from the input file",
    "sample": "as the ledger samples it: personal data masked",
}


def sample_pieces(found: Samples, changes: int) -> Iterator[RenderableType]:
    """Yield what to print of samples.

    Args:
        changes: spans or differences to show of each document.
    """
    is_kept = list(found.rules) == ["kept"]
    of_all = ""
    if found.parts_read != found.parts:
        files = "files" if is_kept else "ledger files"
        of_all = f", in {found.parts_read} of {found.parts} {files}"
    counts = ", ".join(f"{rule} {num:,}" for rule, num in found.rules.items())
    stage = f"{found.stage}: " if found.stage else ""
    yield Text(one_line(f"{stage}{counts}{of_all}"), style="bold")
    for one in found.rows:
        yield Text()
        yield Text(one_line(_headline(one)))
        yield from _pieces(one, changes)


def excerpt(text: str, chars: int = SHOWN_CHARS) -> RenderableType:
    """Return the beginning of a text."""
    more = f" ... ({len(text):,} characters)" if len(text) > chars else ""
    return Indented(Text(one_line(text[:chars]) + more), 2)


def number(value: float) -> str:
    """Return a measured value, short but to four digits."""
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"


def _headline(one: Sample) -> str:
    if one.action == "kept":
        line = f"{one.id} ({one.source}): kept"
        line += f", {one.rule}" if one.rule else ""
    else:
        line = f"{one.id} ({one.source}): {one.action} by {one.rule}"
    if one.value is not None:
        places = f" place{'s' * (one.value != 1)}" if one.action in ("cut", "replace") else ""
        comma = "" if one.action == "kept" else ","
        line += f"{comma} {number(one.value)}{places}"
    if one.threshold is not None:
        line += f" against {number(one.threshold)}"
    if one.survivor_id is not None:
        line += f"; kept instead: {one.survivor_id}"
    if one.jaccard is not None:
        line += f"; Jaccard {one.jaccard:.3f}"
    return line


def _pieces(one: Sample, changes: int) -> Iterator[RenderableType]:
    if one.text is None:
        why = f": {one.problem}" if one.problem else ""
        hint = " Set ledger: {keep_text: true} to keep texts." if one.problem else ""
        yield Indented(Text(one_line(f"(no text{why}.{hint})"), style="dim"), 2)
        return
    if one.text_from in _PLACES:
        yield Indented(Text(f"({_PLACES[one.text_from]})", style="dim"), 2)
    if one.survivor_text is not None:
        yield from sides(one.text, one.survivor_text, ("removed", "kept"), changes)
    elif one.survivor_id is not None:
        yield excerpt(one.text)
        yield "  (the text that was kept is not in this run)"
    elif one.spans and one.text_from != "sample":
        yield from _spans(one, changes)
    else:
        yield excerpt(one.text)


def _spans(one: Sample, changes: int) -> Iterator[RenderableType]:
    assert one.text is not None, "asked for documents with a text"
    for before, inside, after in excerpts(one.text, one.spans[:changes], MARGIN):
        if len(inside) > 300:
            inside = f"{inside[:150]} ... ({len(inside):,} characters) ... {inside[-100:]}"
        line = Text(one_line(before), style="dim")
        line.append(f"[-{one_line(inside)}-]", style="not dim red")
        line.append(one_line(after))
        yield Indented(line, 2)
    if len(one.spans) > changes:
        yield f"  ... and {len(one.spans) - changes:,} more spans"

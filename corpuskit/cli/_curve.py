"""A curve of kept shares as text: a line per threshold, a bar per source, plain characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corpuskit.cli._plain import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpuskit.cli._tables import PlainConsole
    from corpuskit.inspect.tune.curve import Curve, SourceCurve
    from corpuskit.inspect.tune.near import Near

ROWS = 18
"""Thresholds shown; JSON has all."""

_BLOCK = 26
"""Columns that the bar of a source and its two figures take at least."""

_LONGEST_BAR = 40
_EXCERPT = 160


def print_curve(out: PlainConsole, found: Curve) -> None:
    """Print the curve, sources side by side as far as they fit, then documents near the lines."""
    rule = ", ".join(found.rules)
    way = "below" if found.side == "min" else "above"
    out.print(f"{found.stage}.{found.parameter}: {rule} drops what is {way}")
    if found.how == "bins":
        out.print(
            "Kept by this rule alone, whatever other rules do; counted by bins, so that a document "
            "may count on the wrong side of a threshold if both lie in one bin."
        )
    else:
        out.print("Kept by all rules of the stage; share of documents, share of bytes of text.")
    sources = dict(found.sources)
    if len(sources) > 1:
        sources["all"] = found.total
    rows = _rows(found)
    labels = [format_number(found.values[row]) for row in rows]
    marks = [_mark(found, found.values[row]) for row in rows]
    left = max(map(len, labels)) + max(map(len, marks)) + 1
    fits = max((out.width - left) // (_BLOCK + 2), 1)
    names = list(sources)
    for first in range(0, len(names), fits):
        some = {name: sources[name] for name in names[first : first + fits]}
        out.print()
        for line in _lines(some, rows, labels, marks, out.width - left):
            out.print(line, no_wrap=True, overflow="ellipsis", highlight=False)
    if found.now is None:
        out.print(f"{found.parameter} is off in this run: every threshold drops more.")
    unsure = max(map(max, (one.unsure for one in found.sources.values())), default=0)
    if unsure:
        out.print(
            f"Of the kept ones, up to {unsure:,} may yet be dropped here: a rule that stores no "
            "measures was never asked about them."
        )


def print_near(out: PlainConsole, found: Curve) -> None:
    """Print the documents just above and below each line."""
    for line in dict.fromkeys(one.line for one in found.near):
        mark = _mark(found, line).strip() or "line"
        for is_kept in (True, False):
            rows = [one for one in found.near if one.line == line and one.is_kept == is_kept]
            out.print()
            word = "spares" if is_kept else "drops"
            out.print(f"{found.parameter} = {format_number(line)} ({mark}) just {word}:",
                      style="bold", highlight=False)  # fmt: skip
            if not rows:
                out.print("  nothing")
            for one in rows:
                _print_near(out, one)
    if any(one.text is None for one in found.near):
        out.print(
            "  Where no text is shown, the input files changed or are not here; "
            "`ledger: {keep_text: true}` keeps all.",
            highlight=False,
        )


def format_number(value: float) -> str:
    """Return a number in as few characters as tell it from its neighbours."""
    return f"{value:,.0f}".replace(",", "") if value == int(value) else f"{value:.6g}"


def _print_near(out: PlainConsole, one: Near) -> None:
    fate = f"; dropped later by {one.later}" if one.later else ""
    out.print(f"  {format_number(one.value)}  {one.id} ({one.source}){fate}", highlight=False)
    if one.text is not None:
        text = " ".join(one.text.split())[:_EXCERPT]
        out.print(f"    {text}", style="dim", overflow="ellipsis", no_wrap=True,
                  highlight=False)  # fmt: skip


def _rows(found: Curve) -> list[int]:
    """Return the places of the thresholds to show: evenly spread, and those that are marked."""
    last = len(found.values) - 1
    spread = {round(i * last / (ROWS - 1)) for i in range(ROWS)} if last else {0}
    marked = {_nearest(found.values, at) for at in (found.now, found.then) if at is not None}
    return sorted(spread | marked)


def _mark(found: Curve, value: float) -> str:
    """Return what is said behind a threshold."""
    names = {"now": found.now, "set": found.then}
    at = found.values.index(value) if value in found.values else -1
    said = [
        name
        for name, line in names.items()
        if line is not None and _nearest(found.values, line) == at
    ]
    return f" <{','.join(said)}" if said else ""


def _nearest(values: list[float], line: float) -> int:
    return min(range(len(values)), key=lambda at: abs(values[at] - line))


def _lines(
    sources: dict[str, SourceCurve],
    rows: list[int],
    labels: list[str],
    marks: list[str],
    width: int,
) -> Iterator[str]:
    """Yield the lines of one band of sources."""
    block = width // len(sources) - 2
    bar = min(block - 15, _LONGEST_BAR)
    label_width, mark_width = max(map(len, labels)), max(map(len, marks))
    margin = " " * (label_width + mark_width)
    titles = (f"{one_line(n)}: {s.documents:,}" for n, s in sources.items())
    yield margin + "".join(f"  {title[: bar + 14]:<{bar + 14}}" for title in titles)
    for row, label, mark in zip(rows, labels, marks, strict=True):
        cells = (_cell(source, row, bar) for source in sources.values())
        yield (f"{label:>{label_width}}{mark:<{mark_width}}" + "".join(cells)).rstrip()


def _cell(source: SourceCurve, row: int, bar: int) -> str:
    documents = _share(source.kept_documents[row], source.documents)
    text = _share(source.kept_bytes[row], source.text_bytes)
    filled = "#" * round(bar * (documents or 0.0))
    return f"  {_percent(documents)} {_percent(text)} {filled:<{bar}}"


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _percent(share: float | None) -> str:
    if share is None:
        return "     -"
    shown = f"{100 * share:.1f}"
    if (shown == "100.0" and share < 1) or (shown == "0.0" and share > 0):
        shown = "99.9+" if share > 0.5 else "<0.1"  # not all, not nothing
    return f"{shown:>5}%"

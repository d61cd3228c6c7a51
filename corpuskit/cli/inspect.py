"""Show samples of what a stage dropped, cut or kept; near duplicates side by side."""

from __future__ import annotations

import dataclasses
import difflib
import json
from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from corpuskit.cli._render import Indented
from corpuskit.cli._streams import echo, one_line
from corpuskit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from corpuskit.inspect.samples import Band, Sample, Samples


ACTIONS = ("drop", "cut", "replace", "kept")


@click.command("inspect")
@click.argument("directory", metavar="DIRECTORY")
@click.option("--stage", default="", help="Stage to look at; the last one with something to show.")
@click.option("--rule", default="", help="One of its rules.")
@click.option("--source", default="", help="Documents of one source.")
@click.option("--action", type=click.Choice(ACTIONS), help="What was done to them.")
@click.option("--kept", is_flag=True, help="Documents that were kept: --action kept.")
@click.option("--containing", metavar="PIECE", help="Documents with this piece of text, letter for "
              "letter; looks through all texts that the run stores.")  # fmt: skip
@click.option("--between", metavar="LOW:HIGH", help="Measured values of the rule; either end may "
              "be left out.")  # fmt: skip
@click.option("--near-threshold", metavar="N%", help="Values no further than this from the "
              "threshold.")  # fmt: skip
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
@click.option("--pager/--no-pager", default=True, help="Through PAGER or less, on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with whole texts.")
def command(
    directory: str, stage: str, rule: str, source: str, action: str | None, kept: bool,
    containing: str | None, between: str | None, near_threshold: str | None, samples: int,
    seed: int, changes: int, pager: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show documents that a stage dropped, or what it cut out of them, in the run in DIRECTORY.

    A removed duplicate is shown next to the document that was kept, with their differences and
    Jaccard similarity. Texts come from the run directory, or from the input files if they have not
    changed; else from the ledger, which keeps the text of one document in 256 unless `ledger:
    {keep_text: true}` is set.

    With --containing: any documents with this text; `corpuskit why` shows what happened to them.

    With --kept: documents that came through. --stage and --rule then name a value to show and to
    choose by: a column of numbers that the stage added, or a rule that it measured
    (`measures: true`).
    """
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.inspect.samples import find_containing, find_kept, find_samples

    if containing is not None and (stage or rule or action or kept or between or near_threshold):
        raise UsageError("--containing searches all documents: only --source and -n go with it.")
    if kept and action not in (None, "kept"):
        raise UsageError(f"--kept and --action {action}: choose one.")
    if kept:
        action = "kept"
    band = _band(between, near_threshold)
    run = RunDirectory.open(directory)
    if containing is not None:
        selected = find_containing(run, containing, samples, source=source)
    elif action == "kept":
        selected = find_kept(run, stage, rule, samples, seed, source=source, band=band)
    else:
        selected = find_samples(
            run, stage, rule, samples, seed, source=source, action=action or "", band=band
        )
    if as_json:
        echo(json.dumps(dataclasses.asdict(selected), indent=1, ensure_ascii=False))
        return
    from corpuskit.cli._render import show

    show(sample_pieces(selected, changes), is_paged=pager)


def _band(between: str | None, near_threshold: str | None) -> Band | None:
    """Return the band that two options name together, None without them."""
    from corpuskit.inspect.samples import Band

    if between is None and near_threshold is None:
        return None
    low = high = ratio = None
    try:
        if between is not None:
            first, colon, last = between.partition(":")
            if not colon or not (first or last):
                raise ValueError
            low, high = (float(end) if end else None for end in (first, last))
            if low is not None and high is not None and not low <= high:
                raise ValueError
    except ValueError:
        raise UsageError(
            f"--between {between}: must look like LOW:HIGH, as in 0.4:0.6, 50: or :50."
        ) from None
    try:
        ratio = None if near_threshold is None else float(near_threshold.removesuffix("%")) / 100
        if ratio is not None and not 0 <= ratio < float("inf"):
            raise ValueError
    except ValueError:
        raise UsageError(
            f"--near-threshold {near_threshold}: must be a share in percent, as in 10%."
        ) from None
    return Band(low, high, ratio)


# ---------------------------------------------------------------- samples for people

MARGIN = 80  # bytes shown on both sides of a span
SHOWN_CHARS = 600  # characters of a text that are shown

_TEXT_FROM = {
    "input": "text from the input file",
    "sample": "as the ledger samples it: personal data masked",
}


def sample_pieces(samples: Samples, changes: int) -> Iterator[RenderableType]:
    """Yield what to print of samples.

    Args:
        changes: spans or differences to show of each document.
    """
    is_kept = list(samples.rules) == ["kept"]
    scope = ""
    if samples.parts_read != samples.parts:
        files = "files" if is_kept else "ledger files"
        scope = f", in {samples.parts_read} of {samples.parts} {files}"
    counts = ", ".join(f"{rule} {num:,}" for rule, num in samples.rules.items())
    stage = f"{samples.stage}: " if samples.stage else ""
    if list(samples.rules) == ["containing"]:
        counts = (
            f"{len(samples.rows):,} documents with this text; `why` shows what happened to each"
        )
    yield Text(one_line(f"{stage}{counts}{scope}"), style="bold")
    for row in samples.rows:
        yield Text()
        yield Text(one_line(_headline(row)))
        yield from _pieces(row, changes)


def _excerpt(text: str) -> RenderableType:
    """Return the beginning of a text."""
    ellipsis = f" ... ({len(text):,} characters)" if len(text) > SHOWN_CHARS else ""
    return Indented(Text(one_line(text[:SHOWN_CHARS]) + ellipsis), 2)


def number(value: float) -> str:
    """Return a measured value, short but to four digits."""
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"


def _headline(sample: Sample) -> str:
    if sample.action == "contains":
        line = f"{sample.id} ({sample.source})"
    elif sample.action == "kept":
        line = f"{sample.id} ({sample.source}): kept"
        line += f", {sample.rule}" if sample.rule else ""
    else:
        line = f"{sample.id} ({sample.source}): {sample.action} by {sample.rule}"
    if sample.value is not None:
        spans = f" span{'s' * (sample.value != 1)}" if sample.action in ("cut", "replace") else ""
        comma = "" if sample.action == "kept" else ","
        line += f"{comma} {number(sample.value)}{spans}"
    if sample.threshold is not None:
        line += f" against {number(sample.threshold)}"
    if sample.survivor_id is not None:
        line += f"; kept instead: {sample.survivor_id}"
    if sample.jaccard is not None:
        line += f"; Jaccard {sample.jaccard:.3f}"
    return line


def _pieces(sample: Sample, changes: int) -> Iterator[RenderableType]:
    if sample.text is None:
        why = f": {sample.problem}" if sample.problem else ""
        hint = " Set ledger: {keep_text: true} to keep texts." if sample.problem else ""
        yield Indented(Text(one_line(f"(no text{why}.{hint})"), style="dim"), 2)
        return
    if sample.text_from in _TEXT_FROM:
        yield Indented(Text(f"({_TEXT_FROM[sample.text_from]})", style="dim"), 2)
    if sample.survivor_text is not None:
        yield from sides(sample.text, sample.survivor_text, ("removed", "kept"), changes)
    elif sample.survivor_id is not None:
        yield _excerpt(sample.text)
        yield "  (the text that was kept is not in this run)"
    elif sample.spans and sample.text_from != "sample":
        yield from _spans(sample, changes)
    else:
        yield _excerpt(sample.text)


def _spans(sample: Sample, changes: int) -> Iterator[RenderableType]:
    from corpuskit.inspect.samples import excerpts

    assert sample.text is not None, "asked for documents with a text"
    for before, inside, after in excerpts(sample.text, sample.spans[:changes], MARGIN):
        if len(inside) > 300:
            inside = f"{inside[:150]} ... ({len(inside):,} characters) ... {inside[-100:]}"
        line = Text(one_line(before), style="dim")
        line.append(f"[-{one_line(inside)}-]", style="not dim red")
        line.append(one_line(after))
        yield Indented(line, 2)
    if len(sample.spans) > changes:
        yield f"  ... and {len(sample.spans) - changes:,} more spans"


# ---------------------------------------------------------------- two texts side by side

CONTEXT = 6  # words shown on both sides of a difference; nearer differences share a row
MAX_WORDS = 4_000  # words of each text that are compared; more would take seconds

Opcode = tuple[str, int, int, int, int]


def sides(left: str, right: str, names: tuple[str, str], limit: int) -> Iterator[RenderableType]:
    """Yield the first `limit` differences between two texts, side by side.

    Args:
        names: what the texts are called.
    """
    words = left.split()[:MAX_WORDS], right.split()[:MAX_WORDS]
    matcher = difflib.SequenceMatcher(None, *words, autojunk=False)
    differences = list(matcher.get_grouped_opcodes(CONTEXT))
    if not differences:
        is_all = max(len(left.split()), len(right.split())) <= MAX_WORDS
        verdict = "the same words" if is_all else f"the first {MAX_WORDS:,} words are the same"
        yield f"  {verdict}; {len(left):,} and {len(right):,} characters"
        return
    titles = [f"{n}, {len(t):,} characters" for n, t in zip(names, (left, right), strict=True)]
    yield _side_by_side(titles, [_row(*words, opcodes) for opcodes in differences[:limit]])
    if len(differences) > limit:
        yield f"  ... and they differ in {len(differences) - limit:,} more"


def _side_by_side(titles: Sequence[str], rows: Sequence[tuple[Text, Text]]) -> Table:
    table = Table(show_lines=True, pad_edge=False, expand=True, header_style="bold")
    for title in titles:
        table.add_column(one_line(title), ratio=1, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _row(left: Sequence[str], right: Sequence[str], opcodes: Sequence[Opcode]) -> tuple[Text, Text]:
    """Return the cells of one difference."""
    cells = Text(), Text()
    for kind, begin, end, first, last in opcodes:
        ranges = ((left, begin, end, "-", "red"), (right, first, last, "+", "green"))
        for cell, (words, low, high, mark, style) in zip(cells, ranges, strict=True):
            if low == high:
                continue
            words_shown = one_line(" ".join(_shortened(words[low:high])))
            if kind == "equal":
                cell.append(words_shown, style="dim")
            else:
                cell.append(f"[{mark}{words_shown}{mark}]", style=style)
            cell.append(" ")
    for cell in cells:
        cell.rstrip()
    return cells


def _shortened(words: Sequence[str]) -> Sequence[str]:
    if len(words) <= 40:
        return words
    return [*words[:20], f"({len(words) - 35} words)", *words[-15:]]

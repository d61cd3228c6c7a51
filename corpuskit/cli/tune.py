"""Show what other thresholds of a stage would keep and drop, without running it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.cli._render import PlainConsole
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.inspect.report.distributions import Measure
    from corpuskit.inspect.tune import MovedDocument, Share, Sweep, Tuning


@click.command("tune")
@click.argument("directory", metavar="DIRECTORY")
@click.argument("stage")
@click.option("--set", "changes", multiple=True, metavar="PARAMETER=VALUE",
              help="Another value of a threshold; may be repeated.")  # fmt: skip
@click.option("--sweep", "request", metavar="PARAMETER[=VALUES]",
              help="Show what is kept as one threshold moves. VALUES: FIRST:LAST[:COUNT] or "
              "V1,V2,...")  # fmt: skip
@click.option("-n", "--samples", type=click.IntRange(0, 1000), default=5, show_default=True,
              help="Documents to show, of each kind.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    directory: str, stage: str, changes: tuple[str, ...], request: str | None, samples: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Show what other thresholds of STAGE would keep and drop in the run in DIRECTORY.

    Nothing is run. The stage must have had `measures: true`: its rules stored what they measured in
    every document. Without, only what each rule drops by itself is shown, from counts that all runs
    keep. Without options, shows the thresholds there are and what they drop. `corpuskit inspect
    --near-threshold` shows documents next to one.
    """
    import json

    from corpuskit.cli._render import console
    from corpuskit.cli._streams import echo
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.errors import UsageError
    from corpuskit.inspect.tune import (
        FORMAT,
        find_tunable,
        single_rules,
        sweep,
        tune,
        without_measures,
    )

    tunable = find_tunable(RunDirectory.open(directory), stage)
    if not tunable.has_measures and (changes or request):
        raise UsageError(without_measures(tunable))
    tuning = swept = None
    facts: dict[str, Any] = {"format": FORMAT, "sweep": None, "single_rules": None}
    if tunable.has_measures:
        tuning = tune(tunable, changes, samples=samples)
        facts |= tuning.to_json()
        if request:
            swept = sweep(tunable, changes, request)
            facts["sweep"] = dataclasses.asdict(swept)
    else:
        rules = single_rules(tunable)
        facts["single_rules"] = [dataclasses.asdict(rule) for rule in rules]
    if as_json:
        echo(json.dumps(facts, indent=1, ensure_ascii=False))
        return
    out = console()
    if tuning is None:
        _print_single_rules(out, rules)
        out.print(f"To know what all rules keep together: {without_measures(tunable)}")
        return
    if swept is None:
        _print_tuning(out, tuning)
    else:
        print_sweep(out, tuning, swept)
    _print_paste(out, tunable.run, tuning)


def _print_single_rules(out: PlainConsole, rules: Sequence[Measure]) -> None:
    out.print("Documents that break a rule, whatever other rules say of them, counted by bins.")
    table = _table("rule", "parameter", "threshold", "break it")
    for rule in rules:
        ends = rule.failing.at_least, rule.failing.at_most
        shares = dict.fromkeys(_part(end, rule.seen) for end in ends if end is not None)
        threshold = "off" if rule.threshold is None else _value(rule.threshold)
        table.add_row(rule.name, rule.parameter or "", threshold, " to ".join(shares))
    out.print(table)


def _print_tuning(out: PlainConsole, tuning: Tuning) -> None:
    for name, (now, changed) in tuning.changes.items():
        out.print(f"{tuning.stage}.{name}: {_value(now)} -> {_value(changed)}")
    if not tuning.changes:
        names = ", ".join(sorted(set(tuning.parameters.values())))
        out.print(f"{tuning.stage} as it ran. Thresholds to --set: {names}.")
    out.print()
    _print_shares(out, tuning)
    out.print()
    _print_rules(out, tuning)
    if not tuning.changes:
        return
    out.print()
    _print_samples(out, "newly dropped", tuning.newly_dropped, tuning.dropped_samples)
    _print_samples(out, "newly kept", tuning.newly_kept, tuning.kept_samples)
    if tuning.unsure:
        out.print(
            f"Of the newly kept, {tuning.unsure:,} may yet be dropped here: a rule that stores no "
            "measures was never asked about them."
        )
    if tuning.newly_kept.documents:
        out.print(
            "What later stages would do with documents that come back is not known before a run."
        )


def _print_paste(out: PlainConsole, run: RunDirectory, tuning: Tuning) -> None:
    if not tuning.changes:
        return
    out.print()
    out.print(f"To use these, in {run.plan.step(tuning.stage).where}:")
    out.print(f"  {tuning.yaml}", soft_wrap=True, highlight=False)
    out.print("or once, without an edit:")
    out.print(f"  {tuning.command}", soft_wrap=True, highlight=False)


def _print_shares(out: PlainConsole, tuning: Tuning) -> None:
    rows = dict(sorted(tuning.sources.items()))
    if len(rows) > 1:
        rows["all"] = tuning.total
    names = ("now", "then", "") if tuning.changes else ("now",)
    table = _table("kept of", "documents", *names, "MB of text", *names)
    for name, share in rows.items():
        counts, sizes = _figures(tuning, share)
        table.add_row(name, f"{share.documents:,}", *counts, _megabytes(share.text_bytes), *sizes)
    out.print(table)


def _print_rules(out: PlainConsole, tuning: Tuning) -> None:
    """Print what is dropped, by rule; unchanged rules that drop nothing are left out."""
    names = ("documents now", "documents then", "", "MB now", "MB then", "")
    table = _table("dropped by", "threshold", *(names if tuning.changes else names[::3]))
    for rule, share in tuning.rules.items():
        now, changed = tuning.thresholds[rule]
        if not (share.documents_now or share.documents_then or now != changed):
            continue
        bound = _value(now) if now == changed else f"{_value(now)} -> {_value(changed)}"
        counts, sizes = _figures(tuning, share)
        table.add_row(rule, bound, *counts, *sizes)
    out.print(table)


def _figures(tuning: Tuning, share: Share) -> tuple[list[str], list[str]]:
    """Return cells for documents and for MB: before and, where anything changes, after."""
    num = 3 if tuning.changes else 1
    documents = share.documents_now, share.documents_then
    sizes = share.text_bytes_now, share.text_bytes_then
    return (
        [*(_part(n, share.documents) for n in documents), _change(*documents)][:num],
        [*(_part(n, share.text_bytes, 1e6) for n in sizes), _change(*sizes, 1e6)][:num],
    )


def _print_samples(
    out: PlainConsole, title: str, share: Share, samples: list[MovedDocument]
) -> None:
    size = _megabytes(share.text_bytes)
    out.print(f"{title}: {share.documents:,} documents, {size} MB", style="bold")
    for sample in samples:
        bound = "" if sample.threshold is None else f", threshold {sample.threshold:g}"
        value = "" if sample.value is None else f" {sample.value:.4g}{bound}"
        note = f"; dropped later anyway by {sample.later}" if sample.later else ""
        out.print(f"  {sample.id}  {sample.rule}{value}{note}")
        if sample.text is not None:
            line = f"    {' '.join(sample.text.split())}"
            out.print(line, style="dim", overflow="ellipsis", no_wrap=True, highlight=False)
    if any(sample.text is None for sample in samples):
        out.print(
            "  Where no text is shown, the input files changed or are not here; "
            "`ledger: {keep_text: true}` keeps all.",
            highlight=False,
        )


def _table(first: str, *columns: str) -> Any:
    from corpuskit.cli._render import text_table

    return text_table(first, *(f">{name}" for name in columns))


def _part(value: float, total: float, unit: float = 1) -> str:
    share = f" {value / total:6.1%}" if total else ""
    return (f"{value:,}" if unit == 1 else f"{value / unit:,.2f}") + share


def _change(before: int, after: int, unit: float = 1) -> str:
    if before == after:
        return ""
    return f"{after - before:+,}" if unit == 1 else f"{(after - before) / unit:+,.2f}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.2f}"


def _value(value: Any) -> str:
    if value is None:
        return "null"
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------- a sweep: a row per threshold

MOST_SOURCES = 6  # sources with a column of their own, the largest ones; JSON has all

_BAR = 20


def print_sweep(out: PlainConsole, tuning: Tuning, swept: Sweep) -> None:
    """Print the share that is kept at each threshold, by source."""
    parameter = swept.parameter.partition(".")[0]
    rules = [rule for rule, name in tuning.parameters.items() if name == parameter]
    out.print(f"{tuning.stage}.{swept.parameter}, the threshold of {', '.join(rules)}")
    out.print("Kept by all rules of the stage, share of documents; MB: share of the text.")
    out.print()
    total = swept.total
    names = sorted(swept.sources, key=lambda name: -swept.sources[name]["documents"])
    names = names[:MOST_SOURCES] if len(names) > 1 else []
    columns = [*(swept.sources[name] for name in names), total]
    table = _table("", *names, "all", "MB", "newly dropped", "newly kept", "")
    for i, value in enumerate(swept.values):
        marks = [name for name, line in (("now", swept.now), ("set", swept.then)) if line == value]
        shares = [_percent(column["kept_documents"][i], column["documents"]) for column in columns]
        bar = "#" * round(_BAR * total["kept_documents"][i] / max(total["documents"], 1))
        table.add_row(
            f"{value:g}{' <' * bool(marks)}{','.join(marks)}", *shares,
            _percent(total["kept_bytes"][i], total["text_bytes"]),
            f"{total['newly_dropped'][i]:,}", f"{total['newly_kept'][i]:,}", f"{bar:<{_BAR}}",
        )  # fmt: skip
    out.print(table)
    if swept.now is None:
        out.print(f"{swept.parameter} is off in this run: every threshold drops more.")
    if unsure := max(total["unsure"]):
        out.print(
            f"Of the kept ones, up to {unsure:,} may yet be dropped here: a rule that stores no "
            "measures was never asked about them."
        )


def _percent(value: int, total: int) -> str:
    if not total:
        return "-"
    percent = f"{100 * value / total:.1f}"
    if (percent == "100.0" and value < total) or (percent == "0.0" and value > 0):
        percent = "99.9+" if value > total / 2 else "<0.1"  # not all, not nothing
    return f"{percent}%"

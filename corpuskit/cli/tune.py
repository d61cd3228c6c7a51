"""Show what other bounds of a stage would keep and drop, without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from corpuskit.cli._tables import PlainConsole
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.inspect.tune.alone import Alone
    from corpuskit.inspect.tune.tune import Sample, Share, SweepRow, Tuning


@click.command("tune")
@click.argument("directory", metavar="DIRECTORY")
@click.argument("stage")
@click.option("--set", "changes", multiple=True, metavar="PARAMETER=VALUE",
              help="Another value of a bound; may be given several times.")  # fmt: skip
@click.option("--curve", "swept", metavar="PARAMETER[=FIRST:LAST]",
              help="Draw what is kept as one bound moves; show what lies next to it.")  # fmt: skip
@click.option("--sweep", metavar="PARAMETER=FIRST:LAST:COUNT",
              help="Tell what many values of one bound would newly drop and keep.")  # fmt: skip
@click.option("-n", "--samples", type=click.IntRange(0, 1000), default=5, show_default=True,
              help="Documents to show, of each kind.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    directory: str, stage: str, changes: tuple[str, ...], swept: str | None, sweep: str | None,
    samples: int, as_json: bool,
) -> None:  # fmt: skip
    """Show what other bounds of STAGE would keep and drop in the run in DIRECTORY.

    Nothing is run. Exact figures need what the rules of the stage measured in every document, so it
    must have had `measures: true`. Without, each rule is told alone, from counts that all runs
    keep. Without options, shows the bounds there are and what they drop.
    """
    import json

    from corpuskit.cli._plain import echo
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.errors import UsageError
    from corpuskit.inspect.tune.measured import find_bounded

    if swept and sweep:
        raise UsageError("--curve and --sweep show the same thing in two ways. Give one.")
    run = RunDirectory.open(directory)
    if not find_bounded(run, stage).has_measures and not sweep:
        facts = _alone(run, stage, changes, swept, as_json=as_json)
    else:
        facts = _exact(run, stage, changes, swept, sweep, samples, as_json=as_json)
    if as_json:
        echo(json.dumps(facts, indent=1, ensure_ascii=False))


def _exact(
    run: RunDirectory, stage: str, changes: tuple[str, ...], swept: str | None,
    sweep: str | None, samples: int, *, as_json: bool,
) -> dict[str, Any]:  # fmt: skip
    """Look at what was measured; print it or return it as JSON values."""
    import dataclasses

    from corpuskit.cli._curve import print_curve, print_near
    from corpuskit.cli._tables import console
    from corpuskit.inspect.tune.curve import curve
    from corpuskit.inspect.tune.tune import sweep as sweep_values
    from corpuskit.inspect.tune.tune import tune

    # Beside a curve the documents next to its line are shown, not those that move.
    found = tune(run, stage, changes, samples=0 if swept else samples)
    rows = sweep_values(run, stage, changes, sweep) if sweep else []
    drawn = curve(run, stage, changes, swept, samples=samples) if swept else None
    if as_json:
        facts = found.to_json() | {"sweep": [dataclasses.asdict(row) for row in rows]}
        return facts | {"curve": drawn.to_json() if drawn else None}
    if drawn:
        out = console()
        print_curve(out, drawn)
        print_near(out, drawn)
        _print_paste(out, run, found)
    elif sweep:
        _print_sweep(found, sweep.partition("=")[0], rows)
    else:
        _print_tuning(run, found)
    return {}


def _alone(
    run: RunDirectory, stage: str, changes: tuple[str, ...], swept: str | None, *, as_json: bool
) -> dict[str, Any]:
    """Look at what each rule does alone; print it or return it as JSON values."""
    import dataclasses

    from corpuskit.cli._curve import print_curve
    from corpuskit.cli._tables import console
    from corpuskit.errors import UsageError
    from corpuskit.inspect.tune.alone import curve_alone, rules_alone

    found = rules_alone(run, stage)
    if changes and not swept:
        name = changes[0].partition("=")[0]
        raise UsageError(f"{found.advice} Or see what one rule does alone: --curve {name}.")
    drawn = curve_alone(run, stage, changes, swept) if swept else None
    if as_json:
        curve = {"curve": drawn.to_json() if drawn else None}
        return {"how": "bins", "alone": dataclasses.asdict(found), **curve}
    out = console()
    if drawn:
        print_curve(out, drawn)
    else:
        _print_alone(out, found)
    if found.parts_read < found.parts:
        out.print(f"Counted in {found.parts_read:,} of {found.parts:,} cells.")
    out.print(found.advice, highlight=False)
    return {}


def _print_alone(out: PlainConsole, found: Alone) -> None:
    out.print(f"{found.stage}: documents that break a rule, whatever other rules say of them.")
    table = _table("rule", "bound of --curve", "now", "break it")
    for rule in found.rules:
        shares = [_part(n, rule.documents) for n in (rule.at_least, rule.at_most)]
        said = shares[0] if shares[0] == shares[1] else " to ".join(shares)
        bound = "off" if rule.bound is None else _plain(rule.bound)
        table.add_row(rule.rule, rule.parameter or "", bound, said)
    out.print(table)


def _print_tuning(run: RunDirectory, found: Tuning) -> None:
    from corpuskit.cli._tables import console

    out = console()
    for name, (now, then) in found.changes.items():
        out.print(f"{found.stage}.{name}: {_plain(now)} -> {_plain(then)}")
    if not found.changes:
        out.print(f"{found.stage} as it ran. Bounds to --set: {', '.join(found.tunable)}.")
    out.print()
    _print_shares(out, found)
    out.print()
    _print_rules(out, found)
    if not found.changes:
        return
    out.print()
    _print_samples(out, "newly dropped", found.newly_dropped, found.dropped_samples)
    _print_samples(out, "newly kept", found.newly_kept, found.kept_samples)
    if found.unsure:
        out.print(
            f"Of the newly kept, {found.unsure:,} may yet be dropped here: a rule that stores no "
            "measures was never asked about them."
        )
    if found.newly_kept.documents:
        out.print(
            "What later stages would do with documents that come back is not known before a run."
        )
    _print_paste(out, run, found)


def _print_paste(out: PlainConsole, run: RunDirectory, found: Tuning) -> None:
    """Print how to make it so."""
    if not found.changes:
        return
    out.print()
    out.print(f"To make it so, in {run.plan.step(found.stage).where}:")
    out.print(f"  {found.yaml}", soft_wrap=True, highlight=False)
    out.print("or once, without an edit:")
    out.print(f"  {found.command}", soft_wrap=True, highlight=False)


def _print_shares(out: PlainConsole, found: Tuning) -> None:
    """Print what is kept, by source."""
    rows = dict(sorted(found.sources.items()))
    if len(rows) > 1:
        rows["all"] = found.total
    table = _table("kept of", "documents", *_pairs(found), "MB of text", *_pairs(found))
    for name, share in rows.items():
        docs, text = share.documents, share.text_bytes
        counts = [_part(n, docs) for n in (share.documents_now, share.documents_then)]
        sizes = [_part(n, text, 1e6) for n in (share.text_bytes_now, share.text_bytes_then)]
        counts.append(_change(share.documents_then - share.documents_now))
        sizes.append(_change(share.text_bytes_then - share.text_bytes_now, 1e6))
        num = len(_pairs(found))
        table.add_row(name, f"{docs:,}", *counts[:num], _megabytes(text), *sizes[:num])
    out.print(table)


def _print_rules(out: PlainConsole, found: Tuning) -> None:
    """Print what is dropped, by rule; unchanged rules that drop nothing are left out."""
    names = [f"{unit} {name}".strip() for unit in ("documents", "MB") for name in _pairs(found)]
    names = [name if name not in {"documents", "MB"} else "" for name in names]
    table = _table("dropped by", "bound", *names)
    for rule, share in found.rules.items():
        now, then = found.bounds[rule]
        if not (share.documents_now or share.documents_then or now != then):
            continue
        bound = _plain(now) if now == then else f"{_plain(now)} -> {_plain(then)}"
        counts = [f"{n:,}" for n in (share.documents_now, share.documents_then)]
        sizes = [_megabytes(n) for n in (share.text_bytes_now, share.text_bytes_then)]
        counts.append(_change(share.documents_then - share.documents_now))
        sizes.append(_change(share.text_bytes_then - share.text_bytes_now, 1e6))
        num = len(_pairs(found))
        table.add_row(rule, bound, *counts[:num], *sizes[:num])
    out.print(table)


def _pairs(found: Tuning) -> tuple[str, ...]:
    """Return the columns of a figure: before and after, where something changes."""
    return ("now", "then", "") if found.changes else ("now",)


def _print_samples(out: PlainConsole, what: str, share: Share, samples: list[Sample]) -> None:
    """Print how many documents move, and some of them."""
    size = _megabytes(share.text_bytes)
    out.print(f"{what}: {share.documents:,} documents, {size} MB", style="bold")
    for one in samples:
        bound = "" if one.bound is None else f", bound {one.bound:g}"
        value = "" if one.value is None else f" {one.value:.4g}{bound}"
        fate = f"; dropped later anyway by {one.later}" if one.later else ""
        out.print(f"  {one.id}  {one.rule}{value}{fate}")
        if one.text is not None:
            text = " ".join(one.text.split())
            out.print(f"    {text}", style="dim", overflow="ellipsis", no_wrap=True)
    if any(one.text is None for one in samples):
        out.print(
            "  Where no text is shown, the input files changed or are not here; "
            "`ledger: {keep_text: true}` keeps all.",
            highlight=False,
        )


def _print_sweep(found: Tuning, name: str, rows: list[SweepRow]) -> None:
    from corpuskit.cli._tables import console

    out, total = console(), found.total
    table = _table(name, "documents kept", "MB kept", "newly dropped", "newly kept")
    for row in rows:
        table.add_row(
            _plain(row.value), _part(row.documents, total.documents),
            _part(row.text_bytes, total.text_bytes, 1e6),
            f"{row.newly_dropped:,}", f"{row.newly_kept:,}",
        )  # fmt: skip
    out.print(table)


def _table(first: str, *columns: str) -> Any:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(first)
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _part(part: float, whole: float, unit: float = 1) -> str:
    """Return a number and its share of the whole."""
    share = f" {part / whole:6.1%}" if whole else ""
    return (f"{part:,}" if unit == 1 else f"{part / unit:,.2f}") + share


def _change(difference: int, unit: float = 1) -> str:
    if not difference:
        return ""
    return f"{difference:+,}" if unit == 1 else f"{difference / unit:+,.2f}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.2f}"


def _plain(value: Any) -> str:
    """Return a value as it stands in YAML."""
    if value is None:
        return "null"
    return f"{value:g}" if isinstance(value, float) else str(value)

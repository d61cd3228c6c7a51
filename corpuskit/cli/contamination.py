"""Show which benchmark items were found in which documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from corpuskit.inspect.contamination import Contamination, ItemHits


@click.command("contamination")
@click.argument("directory", metavar="DIRECTORY")
@click.option("--benchmark", metavar="NAME", help="Look at the items of this benchmark only.")
@click.option("-n", "--items", type=click.IntRange(0, 100_000), default=20, show_default=True,
              help="Items to show, those in most documents first.")  # fmt: skip
@click.option("--examples", type=click.IntRange(0, 1000), default=3, show_default=True,
              help="Documents to show of each item.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    directory: str, benchmark: str | None, items: int, examples: int, as_json: bool
) -> None:
    """Show which benchmark items the run in DIRECTORY found, and in which documents.

    Needs a finished stage `decontaminate` or `decontaminate_ngrams`. Counts all documents that it
    dropped, and those that it cut or annotated, unless a later filter of the same phase dropped
    them. Warns of items that are never found, counted in the files as they are now.
    """
    import dataclasses
    import json

    from corpuskit.cli._streams import echo
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.inspect.contamination import contamination_report

    run = RunDirectory.open(directory)
    report = contamination_report(run, benchmark=benchmark, examples=examples)
    if as_json:
        facts = dataclasses.asdict(report)
        for name in ("items", "phrases"):
            facts[name] = facts[name][:items]
        echo(json.dumps(facts, indent=1, ensure_ascii=False))
        return
    _print(report, items)


def _print(report: Contamination, max_items: int) -> None:
    from corpuskit.cli._render import console

    out = console()
    out.print(f"{report.documents:,} documents hold something of {len(report.items):,} items")
    if report.documents:
        _print_benchmarks(report)
    for name, (dirty, num) in report.contaminated.items():
        share = f" ({dirty / num:.1%})" if num else ""
        out.print(
            f"{name}: {dirty:,} of {num:,} items that can be compared are contaminated{share}"
        )
    for warning in report.warnings:
        out.print(f"Warning: {warning}", soft_wrap=True)
    _print_items(report.items, max_items)
    if report.phrases:
        out.print()
        out.print(
            f"Runs of words that may be common phrases, not counted above, of "
            f"{len(report.phrases):,} items"
        )
        _print_items(report.phrases, max_items)


def _print_benchmarks(report: Contamination) -> None:
    from corpuskit.cli._render import console, text_table

    table = text_table("benchmark", ">items", ">documents")
    for name, documents in sorted(report.benchmarks.items(), key=lambda pair: (-pair[1], pair[0])):
        num = sum(item.item.partition("/")[0] == name for item in report.items)
        if num:
            table.add_row(name, f"{num:,}", f"{documents:,}")
    console().print(table)


def _print_items(items: list[ItemHits], max_items: int) -> None:
    from corpuskit.cli._render import console

    out = console()
    for item in items[:max_items]:
        order = sorted(item.rules.items(), key=lambda pair: (-pair[1], pair[0]))
        rules = ", ".join(f"{rule} {num:,}" for rule, num in order)
        out.print()
        out.print(f"{item.item}  {item.documents:,} documents: {rules}", style="bold")
        for hit in item.examples:
            value = "" if hit.value is None else f" {hit.value:.3g}"
            spans = ", ".join(f"{start}-{end}" for start, end in hit.spans)
            rule = hit.rule or ""
            out.print(f"  {hit.id}  {hit.action} {rule}{value}  bytes {spans or 'not noted'}")
    if len(items) > max_items:
        out.print()
        out.print(f"{len(items) - max_items:,} more items; -n {len(items)} shows all")

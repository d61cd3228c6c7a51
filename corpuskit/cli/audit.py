"""Look at any Parquet or JSON lines: duplicates, languages, personal data, broken text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from corpuskit.inspect.audit.checks import AuditReport, Check

MOST_UNREADABLE = 10
SHOWN = 3


@click.command("audit")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--sample", default="auto", metavar="AMOUNT",
              help="How much text to analyse: 500MB, 10% or all.  [default: what takes less than "
              "60 CPU s: 1GB, less of short texts]")  # fmt: skip
@click.option("--benchmark", "benchmarks", multiple=True, metavar="FILE",
              help="Benchmark items to look for (JSON lines or Parquet); a path or a pattern; may "
              "be repeated.")  # fmt: skip
@click.option("--text-column", metavar="NAME",
              help="Column, or member, that holds the text.  [default: text, content, raw_content "
              "or body; else the only column of strings]")  # fmt: skip
@click.option("--html", metavar="FILE", help="Also write a page with examples.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--seed", type=click.IntRange(0, 2**32), default=0,
              help="Another number draws another sample.")  # fmt: skip
def command(
    paths: tuple[str, ...], sample: str, benchmarks: tuple[str, ...], text_column: str | None,
    html: str | None, as_json: bool, seed: int,
) -> None:  # fmt: skip
    """Look at any text data: PATH is a file, a folder, a pattern, or an s3:// or hf:// address.

    Shares of documents that are exact or near duplicates, filled-in templates, repeated lines,
    benchmark items, other languages, have personal data, or are broken, with 95 % intervals where
    only a sample was looked at. Nothing is written but the page. Files that cannot be read are
    named, and the exit code is 3; the others are looked at.

    \b
      corpuskit audit crawl/ --html audit.html
    """
    import json
    from pathlib import Path

    from corpuskit.cli._streams import Meter, echo, one_line
    from corpuskit.errors import UsageError
    from corpuskit.inspect.audit.checks import Audit
    from corpuskit.inspect.audit.page import render_audit, size_words
    from corpuskit.inspect.audit.reading import select
    from corpuskit.storage import write_whole

    if html is not None and not Path(html).parent.is_dir():
        raise UsageError(f"--html {html}: there is no folder {Path(html).parent}. Make it first.")
    selection = select(paths, text_column, sample, seed)
    audit = Audit(selection, benchmarks, seed=seed)
    meter, total = Meter(), selection.read_bytes
    meter.show(f"reading {size_words(total)}")  # the first batch loads, or compiles, the kernels
    audit.run(
        lambda done, documents: meter.show(
            f"{size_words(done)} of {size_words(max(total, done))}, {documents:,} documents"
        )
    )
    report = audit.report()
    meter.clear()
    if as_json:
        echo(json.dumps(report.to_json(), indent=1, ensure_ascii=False, allow_nan=False))
    else:
        _print(report)
    if html is not None:
        write_whole(Path(html), render_audit(report, paths).encode())
        echo(one_line(f"wrote {html}"), err=as_json)
    if report.unreadable:
        raise SystemExit(3)


def _print(report: AuditReport) -> None:
    from corpuskit.cli._render import console, text_table
    from corpuskit.inspect.audit.page import files_words, interval, percent, read_words, share

    out = console()
    out.print(files_words(report), soft_wrap=True)
    out.print(read_words(report), soft_wrap=True)
    out.print()
    is_sampled = any(check.rate is not None and interval(check.rate) for check in report.checks)
    middle = ("95 % interval",) if is_sampled else ()
    table = text_table("check", ">found", ">share", *middle, "of which")
    for check in report.checks:
        if check.rate is None:
            table.add_row(check.title, "", "-", *("",) * len(middle), check.note)
            continue
        cells = (interval(check.rate),) if is_sampled else ()
        num_found = f"{check.rate.found:,}"
        if check.rate.of < report.facts["documents"]:
            num_found += f" of {check.rate.of:,}"
        table.add_row(check.title, num_found, share(check.rate), *cells, _summary(check))
    out.print(table)
    out.print()
    shares = ", ".join(f"{label} {percent(rate.value)}" for label, rate in report.languages[:8])
    out.print(f"languages: {shares or 'none'}", soft_wrap=True)
    sizes = ", ".join(f"{name} {size:,}" for name, size in report.lengths.items())
    out.print(f"bytes of a text: {sizes or 'none'}", soft_wrap=True)
    for broken in report.unreadable[:MOST_UNREADABLE]:
        out.print(f"not read: {broken.place}: {broken.reason}", soft_wrap=True, style="red")
    if len(report.unreadable) > MOST_UNREADABLE:
        out.print(f"not read: {len(report.unreadable) - MOST_UNREADABLE:,} more; --json has all")


def _summary(check: Check) -> str:
    if check.note:
        return check.note
    return ", ".join(f"{detail} {num}" for detail, num in check.details[:SHOWN])

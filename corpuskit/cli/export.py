"""Export a finished run: token ids for Megatron, or documents as JSON lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from corpuskit.integrations.export import Order, Unit


@click.command("export")
@click.argument("directory", metavar="DIRECTORY")
@click.argument("out", metavar="OUT")
@click.option("--format", "to", default="megatron", show_default=True,
              type=click.Choice(["megatron", "jsonl"]), help="megatron: .bin and .idx. "
              "jsonl: documents, as .jsonl.zst.")  # fmt: skip
@click.option("--order", default="stored", show_default=True, type=click.Choice(["stored", "run"]),
              help="stored: a set of files per source, each row once. "
              "run: one, in the order of the training run.")  # fmt: skip
@click.option("--unit", default="document", show_default=True,
              type=click.Choice(["document", "row"]),
              help="document: no padding. row: whole packed rows.")  # fmt: skip
@click.option("--source", "sources", multiple=True, metavar="NAME",
              help="Only this source; may be repeated.")  # fmt: skip
@click.option("--rows", type=click.IntRange(1), metavar="N",
              help="Only the first N packed rows, of each source or of the run.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    directory: str,
    out: str,
    to: str,
    order: Order,
    unit: Unit,
    sources: tuple[str, ...],
    rows: int | None,
    as_json: bool,
) -> None:
    """Export the packed rows of the run in DIRECTORY to the folder OUT, for another trainer.

    --format jsonl exports its documents instead; --order, --unit and --rows do not apply then. OUT
    must be new. After an interruption, run the same command again: it continues after the files
    that are complete. OUT/export.json appears last and says what the files hold.
    """
    import json

    from corpuskit.cli._streams import Meter, echo
    from corpuskit.integrations.export import Request, export

    if to == "jsonl":
        if (order, unit, rows) != ("stored", "document", None):
            raise click.UsageError("--order, --unit and --rows are of packed rows: leave them out.")
        _export_documents(directory, out, sources, as_json=as_json)
        return
    request = Request(order, unit, sources, rows)
    meter = Meter(is_quiet=as_json)
    exported = export(
        directory, out, request,
        lambda p: meter.show(f"{p.rows:,}/{p.all_rows:,} rows, {p.size_bytes / 1e6:,.1f} MB"),
    )  # fmt: skip
    meter.clear()
    if as_json:
        echo(json.dumps(exported, indent=1))
        return
    for entry in exported["files"]:
        echo(_summary(entry))
    echo(
        f"{out}: {exported['target']}, ids as {exported['dtype']}, of plan {exported['plan_hash']}"
    )


def _export_documents(directory: str, out: str, sources: tuple[str, ...], *, as_json: bool) -> None:
    import json

    from corpuskit.cli._streams import echo
    from corpuskit.integrations.jsonl import export_documents

    exported = export_documents(directory, out, sources)
    if as_json:
        echo(json.dumps(exported, indent=1))
        return
    files = exported["files"]
    rows, size = (sum(file[key] for file in files) for key in ("rows", "size_bytes"))
    echo(f"{out}: {rows:,} documents in {len(files):,} files, {size / 1e6:,.1f} MB")


def _summary(entry: dict[str, Any]) -> str:
    if not entry["files"]:
        return f"{entry['source']}: no rows, no files"
    size = sum(file["size_bytes"] for file in entry["files"].values())
    parts = [
        f"{entry['sequences']:,} sequences",
        f"{entry['tokens']:,} tokens of {entry['rows']:,} rows",
        f"{size / 1e6:,.1f} MB",
    ]
    if entry["continued"]:
        parts.append(f"{entry['continued']:,} pieces of documents begun in another row")
    if entry["taken_down"]:
        parts.append(f"{entry['taken_down']:,} tokens taken down")
    return f"{entry['source']}: {', '.join(parts)}"

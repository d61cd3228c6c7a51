"""Train a byte-level BPE tokenizer."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import click


@click.group("tokenizer")
def command() -> None:
    """Train a byte-level BPE tokenizer."""


@command.command("train")
@click.argument(
    "inputs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="INPUT..."
)
@click.option(
    "--output", required=True, type=click.Path(path_type=Path), help="The tokenizer.json to write."
)
@click.option(
    "--vocab-size",
    default=32_768,
    show_default=True,
    help="Tokens, bytes and special ones included.",
)
@click.option(
    "--special", multiple=True, default=("<|endoftext|>",), show_default=True,
    help="A token that never comes from text; may be repeated. The first has id 0.",
)  # fmt: skip
@click.option("--text-column", default="text", show_default=True, help="Column of the texts.")
@click.option(
    "--max-mb", default=1000, show_default=True, type=click.IntRange(min=1),
    help="Most text to read, in MB: of every file its share.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def train_command(
    inputs: tuple[Path, ...],
    output: Path,
    vocab_size: int,
    special: tuple[str, ...],
    text_column: str,
    max_mb: int,
    as_json: bool,
) -> None:
    """Train a tokenizer on INPUT: Parquet, JSONL and text files, folders of them, run directories.

    The same texts give the same file, whatever the files and their order.
    """
    from corpuskit.stages.sequences._train import train_tokenizer

    def progress(num_docs: int, text_bytes: int) -> None:
        click.echo(f"\r{num_docs:,} documents, {text_bytes / 1e6:,.1f} MB", nl=False, err=True)

    is_live = sys.stderr.isatty() and not as_json
    trained = train_tokenizer(
        inputs,
        output,
        vocab_size=vocab_size,
        special=special,
        text_column=text_column,
        max_bytes=max_mb * 1_000_000,
        **({"progress": progress} if is_live else {}),
    )
    if is_live:
        click.echo(err=True)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(trained)))
        return
    click.echo(
        f"{trained.path}: {trained.vocab_size:,} tokens from {trained.num_docs:,} documents "
        f"({trained.text_bytes / 1e6:,.1f} MB) in {trained.num_files:,} files"
    )
    if trained.num_rejected:
        click.echo(f"{trained.num_rejected:,} documents could not be read and were left out")
    if trained.vocab_size < vocab_size:
        click.echo(f"fewer than the {vocab_size:,} asked for: the text repeats no more than that")

"""Train tokenizers, show what a tokenizer file is, convert it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from corpuskit.cli._streams import Meter

if TYPE_CHECKING:
    from corpuskit.stages.sequences.tokenize.definition import TokenizerSpec

SAMPLE = "Hello, world! It's 2025: na\u00efve caf\u00e9s, \u4f60\u597d.\n    return x"


@click.group("tokenizer")
def command() -> None:
    """Train tokenizers, show what a tokenizer file is, convert it."""


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
    from corpuskit.stages.sequences.tokenize.tools import train_tokenizer

    meter = Meter(is_quiet=as_json)
    trained = train_tokenizer(
        inputs,
        output,
        vocab_size=vocab_size,
        special=special,
        text_column=text_column,
        max_bytes=max_mb * 1_000_000,
        progress=lambda documents, size: meter.show(
            f"{documents:,} documents, {size / 1e6:,.1f} MB"
        ),
    )
    meter.clear()
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


@command.command("show")
@click.argument("path")
@click.option("--pattern", help="How tiktoken ranks split text: a name, or a regular expression.")
@click.option("--special", multiple=True, metavar="NAME=ID", help="A special token of ranks.")
@click.option("--text", default=SAMPLE, help="A text to encode.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show_command(
    path: str, pattern: str | None, special: tuple[str, ...], text: str, as_json: bool
) -> None:
    """Show what the tokenizer at PATH is, and the ids that `tokenize` gives a text."""
    from corpuskit.stages.sequences.tokenize.tools import describe

    described = describe(_named(path, pattern, special), text)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(described)))
        return
    specials = [f"{name} {number}" for name, number in described.specials.items()]
    rest = f" and {len(specials) - 8} more" if len(specials) > 8 else ""
    rows = {
        "kind": described.kind,
        "files": ", ".join(described.files),
        "vocabulary": f"{described.vocab_size:,} ({described.dtype})",
        "special tokens": (", ".join(specials[:8]) or "none") + rest,
        "eos": " or ".join(described.eos) or "set it",
        "bos": " or ".join(described.bos) or "none",
        "words": described.regex or "as the file says",
        "engine": described.engine,
        "hash": described.hash,
        "text": repr(described.text),
        "ids": " ".join(str(number) for number, _ in described.tokens),
        "tokens": " ".join(name for _, name in described.tokens),
    }
    for name, value in rows.items():
        click.echo(f"{name:15s} {value}")


@command.command("convert")
@click.argument("path")
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--pattern", help="How tiktoken ranks split text: a name, or a regular expression.")
@click.option("--special", multiple=True, metavar="NAME=ID", help="A special token of ranks.")
def convert_command(path: str, output: Path, pattern: str | None, special: tuple[str, ...]) -> None:
    """Write the tokenizer at PATH as a tokenizer.json with the same ids to OUTPUT."""
    from corpuskit.stages.sequences.tokenize.tools import convert

    pieces = convert(_named(path, pattern, special), output)
    click.echo(f"{output}: written")
    if pieces:
        click.echo(
            f"texts that spell one of its {len(pieces)} own pieces ({', '.join(pieces[:3])} ...) "
            "have other ids there: SentencePiece takes them out of the text before it merges"
        )


def _named(path: str, pattern: str | None, special: tuple[str, ...]) -> TokenizerSpec:
    from corpuskit.stages.sequences.tokenize.definition import TokenizerSpec

    pairs = []
    for option in special:
        name, _, number = option.rpartition("=")
        if not name or not number.isdecimal():
            raise click.BadParameter(f"must be NAME=ID, got {option!r}", param_hint="--special")
        pairs.append((name, int(number)))
    return TokenizerSpec(path, pattern, tuple(sorted(pairs)) or None)

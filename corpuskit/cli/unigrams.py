"""Count the words of texts, for the stage `perplexity`."""

from __future__ import annotations

from pathlib import Path

import click

from corpuskit.cli._streams import echo


@click.command("unigrams", short_help="Count the words of texts, for the stage `perplexity`.")
@click.argument(
    "inputs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="INPUT..."
)
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), help="The table.")
@click.option("--text-column", default="text", show_default=True, help="Column of the texts.")
@click.option(
    "--words", type=click.Choice(["spacy", "whitespace", "unicode"]), default="spacy",
    show_default=True, help="How texts are split; give the stage the same.",
)  # fmt: skip
@click.option("--language", default="en", show_default=True, help="Language, for --words spacy.")
@click.option("--min-count", default=1, show_default=True, type=click.IntRange(1),
              help="Leave out words that are rarer.")  # fmt: skip
def command(
    inputs: tuple[Path, ...], output: Path, text_column: str, words: str, language: str,
    min_count: int,
) -> None:  # fmt: skip
    """Count the words of texts in Parquet, JSONL or text files (a text a line).

    Inputs are files, patterns, folders of files, and run directories.

    Writes a table of lines `word,count`, in lower case, the most frequent first: `model` of the
    stage `perplexity`.

    \b
      corpuskit unigrams 'books/**/*.parquet' --output words.csv
      corpuskit unigrams runs/books --output words.csv
    """
    from corpuskit.stages.annotators._labelled import read_texts
    from corpuskit.stages.annotators._unigrams import count_words
    from corpuskit.stages.sequences.tokenize.tools import find_files

    texts = read_texts(find_files(inputs), text_column)
    counts = count_words(texts, words, language)  # type: ignore[arg-type]
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    lines = [f"{word},{count}\n" for word, count in rows if count >= min_count]
    output.write_text("".join(lines), "utf-8")
    echo(f"{output}: {len(lines):,} words of {counts.total():,} occurrences")

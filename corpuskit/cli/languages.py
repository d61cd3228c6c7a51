"""Derive a language's parameters of the filters from its own texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from corpuskit.text.words import WordSplit

_INPUTS: Any = {"multiple": True, "type": click.Path(path_type=Path), "metavar": "INPUT"}


@click.group("languages")
def command() -> None:
    """Derive a language's parameters of the filters from its own texts."""


@command.command("derive")
@click.argument("language")
@click.option("--web", required=True, **_INPUTS, help="Crawled texts in LANGUAGE; may be repeated.")
@click.option("--clean", **_INPUTS, help="Texts in LANGUAGE that are known to be good, such as "
              "Wikipedia.  [default: those of --web]")  # fmt: skip
@click.option("--english-web", required=True, **_INPUTS, help="English texts like those of --web.")
@click.option("--english-clean", **_INPUTS,
              help="English texts like those of --clean.  "
              "[default: those of --english-web]")  # fmt: skip
@click.option("--output", required=True, type=click.Path(path_type=Path),
              help="Folder for the file, such as hun_Latn.yml.")  # fmt: skip
@click.option("--words", type=click.Choice(["spacy", "whitespace", "unicode"]), default="spacy",
              show_default=True,
              help="How text is split into words; filters must do the same.")  # fmt: skip
@click.option("--stop-word-share", type=click.FloatRange(0, 1, min_open=True), default=0.003,
              show_default=True, help="Share of all words that makes a stop word.")  # fmt: skip
@click.option("--model", metavar="PATH", help="Also derive the least score of this language model, "
              "a fastText file or `embedded`.")  # fmt: skip
@click.option("--text-column", default="text", show_default=True, help="Column of the texts.")
@click.option("--max-mb", default=1000, show_default=True, type=click.IntRange(min=1),
              help="Most text to read of each kind, in MB: of every file its share.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def derive_command(
    language: str, web: tuple[Path, ...], clean: tuple[Path, ...], english_web: tuple[Path, ...],
    english_clean: tuple[Path, ...], output: Path, words: WordSplit, stop_word_share: float,
    model: str | None, text_column: str, max_mb: int, as_json: bool,
) -> None:  # fmt: skip
    """Write the file of LANGUAGE that `per_language` reads, derived from texts as FineWeb2's were.

    Inputs are Parquet, JSONL and text files, folders of them, and run directories. The same texts
    give the same file, whatever the files and their order.
    """
    from corpuskit.errors import UsageError, suggest
    from corpuskit.stages.filters._derive import derive, measure
    from corpuskit.storage import write_whole
    from corpuskit.text.languages import common_codes, full_name

    name = full_name(language)
    if name is None:
        raise UsageError(f"{language!r} is not a language. {suggest(language, common_codes())}")
    target = output / f"{name}.yml"
    if target.exists():
        raise UsageError(f"{target} is there already. Remove it, or choose another --output.")
    how: Any = {"words": words, "text_column": text_column, "max_bytes": max_mb * 1_000_000,
                "stop_word_share": stop_word_share}  # fmt: skip
    read = {"web": measure(web, name, model=model, **how),
            "English web": measure(english_web, "eng_Latn", **how)}  # fmt: skip
    read |= {"clean": measure(clean, name, **how)} if clean else {}
    read |= {"English clean": measure(english_clean, "eng_Latn", **how)} if english_clean else {}
    derived = derive(
        read["web"], read.get("clean", read["web"]),
        read["English web"], read.get("English clean", read["English web"]),
    )  # fmt: skip
    sizes = ", ".join(
        f"{kind} {texts.num_docs:,} documents ({texts.text_bytes / 1e6:,.1f} MB)"
        for kind, texts in read.items()
    )
    lines = [f"# corpuskit languages derive: {sizes}; words: {words}, {stop_word_share:g} of them"]
    # JSON is YAML.
    lines += [f"{key}: {json.dumps(derived[key], ensure_ascii=False)}" for key in sorted(derived)]
    output.mkdir(parents=True, exist_ok=True)
    write_whole(target, "\n".join([*lines, ""]).encode())
    if as_json:
        click.echo(json.dumps({"path": str(target), **derived}, ensure_ascii=False))
        return
    click.echo(f"{target}: {sizes}")
    click.echo("stop words: " + " ".join(derived["stopwords"]))

"""Show all that happened to one document."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from corpuskit.cli._ramp import RampType

if TYPE_CHECKING:
    from corpuskit.inspect.why.lookup import Kind
    from corpuskit.loader.steps import BatchSize

_SHOWN = 5
"""Documents told of where several have the id, URL or text."""


@click.command("why")
@click.argument("directory", metavar="DIRECTORY")
@click.argument("document", required=False)
@click.option("--key", is_flag=True, help="DOCUMENT is a key, even if a document has this id.")
@click.option("--url", help="Find documents by their URL instead.")
@click.option("--text", help="Find documents that have this whole text; looks through all.")
@click.option("--text-file", type=click.Path(dir_okay=False, allow_dash=True),
              help="The same, with the text in a file; - is standard input.")  # fmt: skip
@click.option(
    "--containing", metavar="PIECE",
    help="Find documents with this piece, letter for letter; looks through all.",
)  # fmt: skip
@click.option("-n", "--most", type=click.IntRange(1, 1000), default=_SHOWN, show_default=True,
              help="Documents to show, where several are found.")  # fmt: skip
@click.option(
    "--measure", is_flag=True,
    help="Apply the stages to the document anew, for the values of all their rules.",
)  # fmt: skip
@click.option("--training", metavar="OUTPUT", help="Show the steps of this training that see it.")
@click.option(
    "--global-batch-rows", "-b", type=RampType(), metavar="ROWS",
    help="Show the steps that see it, of so many rows each; a ramp as STEP:ROWS,STEP:ROWS.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    directory: str,
    document: str | None,
    key: bool,
    url: str | None,
    text: str | None,
    text_file: str | None,
    containing: str | None,
    most: int,
    measure: bool,
    training: str | None,
    global_batch_rows: BatchSize | None,
    as_json: bool,
) -> None:
    """Show all that happened to DOCUMENT in the run in DIRECTORY: why it was kept, or why not.

    DOCUMENT is an id, else the number of a key or a URL; one that begins with - goes behind --:
    corpuskit why DIRECTORY -- -5. Every stage has its say, in order, with the values
    and thresholds that are stored; of a duplicate, the document that was kept instead; of one that
    was kept, the rows that hold its tokens and the training steps that see it.
    """
    import json

    from corpuskit.cli._plain import echo
    from corpuskit.errors import UsageError

    kind, value = _asked(document, key, url, text, text_file, containing)
    if training is not None and global_batch_rows is not None:
        raise UsageError("why: --training knows its batch size. Leave --global-batch-rows out.")
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.inspect.why.history import Histories
    from corpuskit.inspect.why.lookup import find
    from corpuskit.inspect.why.sightings import read_training

    trained = None if training is None else read_training(training)
    histories = Histories(RunDirectory.open(directory))
    with _Progress() as progress:
        limit = most + 1 if kind == "containing" else 1000
        hits = find(histories.documents, kind, value, limit=limit, progress=progress.show)
    told = [
        histories.of(one, measure=measure, global_batch_rows=global_batch_rows, training=trained)
        for one in hits.keys[:most]
    ]
    if as_json:
        found = {
            "directory": directory, "asked": {"by": kind, "value": value}, "found": hits.how,
            "is_partial": hits.is_partial, "keys": list(hits.keys), "documents": told,
        }  # fmt: skip
        echo(json.dumps(found, indent=1, ensure_ascii=False))
        return
    from corpuskit.cli._history import print_histories

    print_histories(hits, told)


def _asked(
    document: str | None,
    key: bool,
    url: str | None,
    text: str | None,
    text_file: str | None,
    containing: str | None,
) -> tuple[Kind, str]:
    """Return what is looked for."""
    from corpuskit.errors import UsageError

    if text_file is not None:
        content = _content(text_file)
    given: list[tuple[Kind, str | None]] = [
        ("key" if key else "id", document), ("url", url), ("text", text),
        ("text", None if text_file is None else content), ("containing", containing),
    ]  # fmt: skip
    named = [(kind, value) for kind, value in given if value is not None]
    if len(named) != 1:
        raise UsageError(
            "why: name one thing to look for: an id (or key), --url, --text, --text-file or "
            f"--containing; got {len(named)}."
        )
    try:
        named[0][1].encode()
    except UnicodeEncodeError:
        raise UsageError("why: what to look for is not UTF-8, so no document has it.") from None
    return named[0]


def _content(path: str) -> str:
    from corpuskit.errors import UsageError, describe

    try:
        with click.open_file(path, "rb") as file:
            content: bytes = file.read()
        return content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start} is not UTF-8.") from None
    except OSError as error:
        raise UsageError(f"--text-file: {describe(error)}") from None


class _Progress:
    """Says on standard error how far a search is: one line that is written over, on a terminal."""

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._last = -1

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_live and self._last >= 0:
            click.echo("\r" + " " * 60 + "\r", err=True, nl=False)

    def show(self, done: int, total: int, what: str) -> None:
        """Tell of a search, at most a hundred times on a terminal, else at its beginning."""
        percent = 100 * done // max(total, 1)
        if self._is_live and percent != self._last:
            line = f"looking through {total:,} files {what}: {percent} %"
            click.echo(f"\r{line[:60]:<60}", err=True, nl=False)
        elif not self._is_live and done == 0:
            click.echo(f"looking through {total:,} files {what}", err=True)
        self._last = percent

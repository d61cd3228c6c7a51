"""Show all that happened to one document."""

from __future__ import annotations

import functools
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from corpuskit.cli._ramp import RampType
from corpuskit.cli._streams import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from corpuskit.inspect.lookup import Hits, Kind
    from corpuskit.loader.steps import BatchSize


_SHOWN = 5  # documents shown where several have the id or URL


@click.command("why")
@click.argument("directory", metavar="DIRECTORY")
@click.argument("document", required=False)
@click.option("--key", is_flag=True, help="DOCUMENT is a key, even if a document has this id.")
@click.option("--url", help="Find documents by their URL instead.")
@click.option("-n", "--most", type=click.IntRange(1, 1000), default=_SHOWN, show_default=True,
              help="Documents to show, if several match.")  # fmt: skip
@click.option(
    "--recompute", is_flag=True,
    help="Apply the stages to the document again, for the values of all their rules.",
)  # fmt: skip
@click.option("--training", metavar="OUTPUT", help="Show the steps of this training that take it.")
@click.option(
    "--global-batch-rows", "-b", type=RampType(), metavar="ROWS",
    help="Show the steps that take it, of ROWS rows each; a ramp as STEP:ROWS,STEP:ROWS.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    directory: str,
    document: str | None,
    key: bool,
    url: str | None,
    most: int,
    recompute: bool,
    training: str | None,
    global_batch_rows: BatchSize | None,
    as_json: bool,
) -> None:
    """Show all that happened to DOCUMENT in the run in DIRECTORY: why it was kept, or why not.

    DOCUMENT is an id, else a key or a URL; one that begins with - goes after --: corpuskit why
    DIRECTORY -- -5. Shows what every stage did, in order, with the values and thresholds that are
    stored; for a duplicate, the document that was kept instead; for a document that was kept, the
    rows that hold its tokens and the training steps that take it. `corpuskit inspect DIRECTORY
    --containing PIECE` finds documents by their text.
    """
    import json

    from corpuskit.cli._streams import echo
    from corpuskit.errors import UsageError

    kind, value = _query(document, url, is_key=key)
    if training is not None and global_batch_rows is not None:
        raise UsageError("why: --training knows its batch size. Leave --global-batch-rows out.")
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.inspect.lookup import RunDocuments, find, find_added
    from corpuskit.inspect.occurrences import read_training
    from corpuskit.inspect.why import FORMAT, history_of

    trained = None if training is None else read_training(training)
    documents = RunDocuments(RunDirectory.open(directory))
    note = functools.partial(echo, err=True)
    try:
        hits = find(documents, kind, value)
    except UsageError:
        elsewhere = find_added(documents.run, kind, value, note=note)
        if elsewhere is None:
            raise
        documents, hits = elsewhere
        note(f"{value}: of {documents.run.store.address}, whose sources were added to this run")
    histories = [
        history_of(
            documents, match, recompute=recompute, global_batch_rows=global_batch_rows,
            training=trained,
        )
        for match in hits.keys[:most]
    ]  # fmt: skip
    if as_json:
        facts = {
            "format": FORMAT, "directory": directory, "query": {"by": kind, "value": value},
            "found": hits.how, "keys": list(hits.keys), "documents": histories,
        }  # fmt: skip
        echo(json.dumps(facts, indent=1, ensure_ascii=False))
        return
    print_histories(hits, histories)


def _query(document: str | None, url: str | None, *, is_key: bool) -> tuple[Kind, str]:
    from corpuskit.errors import UsageError

    options: list[tuple[Kind, str | None]] = [("key" if is_key else "id", document), ("url", url)]
    queries = [(kind, value) for kind, value in options if value is not None]
    if len(queries) != 1:
        raise UsageError(f"why: name one document, by id (or key) or by --url; got {len(queries)}.")
    try:
        queries[0][1].encode()
    except UnicodeEncodeError:
        raise UsageError("why: what to look for is not UTF-8, so no document has it.") from None
    return queries[0]


# ---------------------------------------------------------------- a history for people

_COLOURS = {
    "kept": "green", "dropped": "red", "held out": "yellow", "cut": "yellow", "replaced": "yellow",
    "unfinished": "yellow",
}  # fmt: skip
_OUTCOMES = {
    "kept": "kept", "dropped": "dropped", "held out": "held out",
    "unfinished": "not dropped so far; the run is not finished",
}  # fmt: skip
_OPEN = ("not finished", "not run")  # outcomes of stages that have not seen the document

_CLUSTER = ("cluster_id", "cluster_size", "cluster_rank")
"""Columns of a clustering stage that are shown as a sentence."""

_STEPS = 12  # steps in a list; the rest are counted
_NARROWEST, _PIPED = 40, 120  # columns at least, and where the output is not a terminal


class _Para(NamedTuple):
    """A text to be wrapped; names stay whole unless it `breaks`, and it ends after `most` lines."""

    text: str
    margin: str = ""
    most: int = 0
    breaks: bool = False


def print_histories(hits: Hits, histories: Sequence[dict[str, Any]]) -> None:
    """Print histories, one below the other; colours are for terminals only."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPED
    for piece in _all(hits, histories):
        lines = _wrapped(*piece, max(columns, _NARROWEST)) if isinstance(piece, _Para) else [piece]
        for line in lines:
            click.echo(line)


def _all(hits: Hits, histories: Sequence[dict[str, Any]]) -> Iterator[str | _Para]:
    if len(hits.keys) > 1 or hits.how != "by id":
        plural = "" if len(hits.keys) == 1 else "s"
        yield _Para(f"{len(hits.keys):,} document{plural}: {hits.how}.")
        yield ""
    for number, document in enumerate(histories):
        if number:
            yield ""
        yield from _lines(document)
    if len(histories) < len(hits.keys):
        keys = ", ".join(map(str, hits.keys[len(histories) : len(histories) + 20]))
        yield ""
        yield _Para(f"Others, by key: {keys}")


def _lines(document: dict[str, Any]) -> Iterator[str | _Para]:
    stages, outcome = document["stages"], document["outcome"]
    yield click.style(_printable(document["id"]), bold=True)
    yield _Para(_origin(document), "  ")
    words = _OUTCOMES[outcome]
    if outcome == "unfinished" and stages and stages[0]["outcome"] == "not finished":
        words = "not known yet: the phase that reads the documents is not finished"
    yield "  " + click.style(words, fg=_COLOURS[outcome], bold=True)
    yield ""
    labels = [_printable(entry["stage"]) for entry in stages]
    indent = min(max(map(len, labels), default=0), 20) + 2
    for label, entry in zip(labels, stages, strict=True):
        yield from _stage(label, entry, indent)
    yield from _now(document)
    if outcome == "dropped" and not any("recomputed" in entry for entry in stages):
        yield ""
        hint = "--recompute applies the stages to it again and shows the values of all rules"
        yield _Para(hint)
    for note in document["notes"]:
        yield _Para(f"Note: {note}")


def _origin(document: dict[str, Any]) -> str:
    origin = document["origin"]
    file = origin["file"] or "an input file that this run no longer has"
    parts = [f"source {document['source']}, {file} at {origin['position']:,}"]
    parts += [f"URL {origin['url']}"] if origin["url"] else []
    parts += [f"date {origin['date']}"] if origin["date"] else []
    return ", ".join([*parts, f"key {document['key']}"])


def _stage(label: str, entry: dict[str, Any], indent: int) -> Iterator[str | _Para]:
    """Yield what a stage did: a line with its name, and the details below each other."""
    outcome = entry["outcome"]
    now = entry.get("recomputed", {}).get("outcome")
    words = f"{outcome}, but now {now}" if now and outcome in _OPEN else outcome
    words += f" ({_printable(entry['applies'])})" if outcome == "not applied" else ""
    colour = _COLOURS.get(words)
    yield f"{label:<{indent - 1}} " + click.style(words, fg=colour, dim=colour is None)
    margin = "    "
    for row in entry["rows"]:
        yield _Para(_row(row, bool(entry.get("cluster"))), margin)
        if row["survivor_id"] is not None:
            share = row["lost"]
            lacks = "" if share is None else f", which lacks {share:.2%} of its shingles"
            yield f"{margin}kept instead: {_printable(row['survivor_id'])}{lacks}"
        yield from _excerpts(row["excerpts"], row["num_spans"], margin)
    yield from _cluster(entry.get("cluster"), margin)
    annotations = entry.get("annotations", {}).items()
    columns = {k: v for k, v in annotations if k not in _CLUSTER and v is not None}
    if columns:
        values = ", ".join(f"{k} {_number(v)}" for k, v in columns.items())
        yield _Para(values, margin)
    yield from _measures(entry.get("measures", ()), margin)
    yield from _recomputed(entry, margin)


def _row(row: dict[str, Any], is_clustered: bool) -> str:
    line = f"{row['action']} by {row['rule']}"
    if row["action"] != "drop" and row["num_spans"]:
        line += f": {row['num_spans']:,} span{'s' if row['num_spans'] > 1 else ''}"
        return line
    # What was found with a cluster has its size as value, unless it was compared.
    return line if row["threshold"] is None and is_clustered else _value(row, line)


def _value(entry: dict[str, Any], name: str) -> str:
    """Return `name value against threshold (parameter: meaning)`."""
    line = name
    if entry["value"] is not None:
        line += f": {_number(entry['value'])}"
    if entry["threshold"] is not None:
        line += f" against {_number(entry['threshold'])}"
        if entry.get("parameter"):
            sentence = (entry.get("meaning") or "").partition(". ")[0].removesuffix(".")
            line += f" ({entry['parameter']}{': ' if sentence else ''}{sentence})"
    return line


def _measures(measures: Sequence[dict[str, Any]], margin: str) -> Iterator[str | _Para]:
    names = [_printable(measure["rule"]) for measure in measures]
    values = [
        "-" if measure["value"] is None else _number(measure["value"]) for measure in measures
    ]
    first, second = (max(map(len, column), default=0) for column in (names, values))
    for name, value, measure in zip(names, values, measures, strict=True):
        line = f"{margin}{name:<{first}}  {value:>{second}}"
        if measure["threshold"] is not None:
            bound = f"  {_printable(measure['parameter'])} {_number(measure['threshold'])}"
            line += click.style(bound, dim=True)
        yield line + (click.style("  <- fails", fg="red", bold=True) if measure["fails"] else "")


def _excerpts(
    pieces: Sequence[dict[str, str]], num_spans: int, margin: str
) -> Iterator[str | _Para]:
    for piece in pieces:
        line = f"{piece['before']}[-{piece['span']}-]{piece['after']}"
        yield _Para(f'"{line}"', f"{margin}  ", breaks=True)
    if pieces and num_spans > len(pieces):
        yield f"{margin}  and {num_spans - len(pieces):,} more"


def _cluster(cluster: dict[str, Any] | None, margin: str) -> Iterator[str | _Para]:
    if not cluster:
        return
    line = f"number {cluster['rank'] + 1} of a cluster of {cluster['size']:,}"
    names = []
    for member in cluster["members"]:
        alike = member["similarity"]
        is_kept = member["rank"] == 0
        names.append(
            str(member["id"]) + (f" ({alike:.3g})" if alike is not None and not is_kept else "")
        )
    if names:
        num_more = cluster["size"] - 1 - len(names)
        line += f", with {', '.join(names)}" + (f" and {num_more:,} more" if num_more > 0 else "")
    elif cluster.get("unknown"):
        line += f"; the others are not known: {cluster['unknown']}"
    yield _Para(line, margin)


def _recomputed(entry: dict[str, Any], margin: str) -> Iterator[str | _Para]:
    recomputed = entry.get("recomputed")
    if recomputed is None:
        return
    if "error" in recomputed:
        yield _Para(f"not recomputed: {recomputed['error']}", margin)
        return
    before = "dropped" if entry["outcome"] in ("dropped", "held out") else "kept"
    if recomputed["outcome"] != before and entry["outcome"] not in _OPEN:
        yield _Para(f"recomputed: {recomputed['outcome']}", margin)
    if "rule" in recomputed and (not entry["rows"] or entry["rows"][-1]["action"] != "drop"):
        yield _Para(_value(recomputed, recomputed["rule"]), margin)
    if "bytes_after" in recomputed:
        sizes = recomputed["bytes_before"], recomputed["bytes_after"]
        yield _Para("text of {:,} bytes became {:,}".format(*sizes), margin)
    for spans in recomputed.get("spans", ()):
        if not any(row["excerpts"] for row in entry["rows"] if row["rule"] == spans["rule"]):
            yield _Para(f"{spans['rule']}:", margin)
            yield from _excerpts(spans["excerpts"], spans["num_spans"], margin)


def _now(document: dict[str, Any]) -> Iterator[str | _Para]:
    """Yield where the document is now, its tokens and the steps that see them."""
    now, tokens = document["now"], document["tokens"]
    if now is not None:
        yield ""
        yield _Para(f"now in {now['part']}, row {now['row']:,}")
    if tokens is not None:
        yield _Para(_tokens(tokens))
        for row in tokens.get("rows", ())[:_STEPS]:
            location = f"{row['part']}, row group {row['row_group']:,}, row {row['row_in_group']}"
            span = f"tokens {row['first_token']}-{row['first_token'] + row['num_tokens'] - 1}"
            yield _Para(f"row {row['row']:,} of {row['source']}: {span} ({location})", "  ")
        yield from _steps(tokens)
    if document["text"]:
        ellipsis = " ..." if document["text_bytes"] > len(document["text"].encode()) else ""
        yield ""
        yield _Para(f'"{document["text"]}{ellipsis}"', most=6, breaks=True)


def _tokens(tokens: dict[str, Any]) -> str:
    if "missing" in tokens:
        return f"tokens: {tokens['missing']}"
    if not tokens["rows"]:
        return "not packed: no row of tokens holds it"
    num = sum(row["num_tokens"] for row in tokens["rows"])
    rows, num_taken, epochs = len(tokens["rows"]), tokens["taken"], tokens["epochs"]
    extent = f"{num:,} tokens in {rows:,} row{'s' if rows > 1 else ''}"
    if not num_taken:
        return f"{extent}, which no step takes: {tokens['why_not']}"
    times = f"{num_taken:,} time{'s' if num_taken > 1 else ''}"
    return f"{extent}, which are taken {times} in {epochs} epoch{'s' if epochs > 1 else ''}"


def _steps(tokens: dict[str, Any]) -> Iterator[str | _Para]:
    steps = tokens.get("steps", ())
    training = tokens.get("training")
    if training is not None:
        finished = [step for step in steps if step["done"]]
        waiting = [step for step in steps if not step["done"] and "step" in step]
        yield _Para(
            f"training {training['output']}: {training['steps_done']:,} of {training['steps']:,} "
            f"steps done, {training['global_batch_rows']:,} rows each"
        )
        yield _Para(f"steps that saw it: {_listed(finished)}", "  ")
        yield _Para(f"steps that will: {_listed(waiting)}", "  ")
    elif any("step" in step for step in steps):
        numbered = [step for step in steps if "step" in step]
        yield _Para(f"steps that see it: {_listed(numbered)}", "  ")
    elif steps:
        counters = ", ".join(f"{step['run_row']:,}" for step in steps[:_STEPS])
        rest = f" and {tokens['taken'] - _STEPS:,} more" if tokens["taken"] > _STEPS else ""
        yield _Para(f"rows of the run: {counters}{rest} (-b or --training shows the steps)", "  ")
    num_left = sum("left_over" in step for step in steps)
    if num_left:
        yield _Para(f"{num_left:,} time{'s' if num_left > 1 else ''} after the last step", "  ")
    masked = sum(step["masked"] for step in steps)
    if masked:
        yield _Para(f"taken down: masked in {masked:,} of these", "  ")


def _listed(steps: Sequence[dict[str, Any]]) -> str:
    numbers = [
        f"{step['step']:,}" + (f" (epoch {step['epoch'] + 1})" if step["epoch"] else "")
        for step in steps[:_STEPS]
    ]
    rest = f" and {len(steps) - _STEPS:,} more" if len(steps) > _STEPS else ""
    return (", ".join(numbers) or "none") + rest


def _wrapped(text: str, margin: str, max_lines: int, breaks: bool, width: int) -> list[str]:
    width -= len(margin)
    lines = textwrap.wrap(_printable(text), width, break_long_words=breaks, break_on_hyphens=False)
    if max_lines and len(lines) > max_lines:
        lines = [*lines[: max_lines - 1], lines[max_lines - 1][: width - 4] + " ..."]
    return [margin + line for line in lines]


def _printable(text: object) -> str:
    return one_line(str(text))


def _number(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_number, value)) or "none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _printable(value)
    if isinstance(value, float) and not (value.is_integer() and abs(value) < 1e15):
        return f"{value:.4g}"
    return f"{int(value):,}"

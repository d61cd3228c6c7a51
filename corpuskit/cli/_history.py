"""The histories of documents for people: nothing of them reaches the terminal raw."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import click

from corpuskit.cli._plain import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from corpuskit.inspect.why.lookup import Hits

_COLOURS = {
    "kept": "green", "dropped": "red", "held out": "yellow", "cut": "yellow", "replaced": "yellow",
    "unfinished": "yellow",
}  # fmt: skip
_FATES = {
    "kept": "kept", "dropped": "dropped", "held out": "held out",
    "unfinished": "not dropped so far; the run is not finished",
}  # fmt: skip
_CLUSTER = ("cluster_id", "cluster_size", "cluster_rank")
"""Columns that are told in words."""

_STEPS = 12
"""Steps in a list; the rest are counted."""

_NARROWEST, _PIPED = 40, 120
"""Columns at least, and where the output is no terminal."""


def print_histories(hits: Hits, told: Sequence[dict[str, Any]]) -> None:
    """Print histories, one below the other; colours are for terminals only."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPED
    for line in _all(hits, told, max(columns, _NARROWEST)):
        click.echo(line)


def _all(hits: Hits, told: Sequence[dict[str, Any]], width: int) -> Iterator[str]:
    if len(hits.keys) > 1 or hits.how not in ("by id",):
        more = " or more" if hits.is_partial else ""
        plural = "" if len(hits.keys) == 1 else "s"
        yield from _wrapped(f"{len(hits.keys):,}{more} document{plural}: {hits.how}.", width, "")
        yield ""
    for place, one in enumerate(told):
        if place:
            yield ""
        yield from _lines(one, width)
    if len(told) < len(hits.keys):
        rest = ", ".join(map(str, hits.keys[len(told) : len(told) + 20]))
        yield ""
        yield from _wrapped(
            f"Others, by key: {rest}{', ...' if hits.is_partial else ''}", width, ""
        )


def _lines(told: dict[str, Any], width: int) -> Iterator[str]:
    yield click.style(_plain(told["id"]), bold=True)
    yield from _wrapped(_origin(told), width, "  ")
    said = _FATES[told["fate"]]
    if told["fate"] == "unfinished" and told["stages"] and told["stages"][0]["said"] == "not yet":
        said = "not known yet: the phase that reads the documents is not finished"
    yield "  " + click.style(said, fg=_COLOURS[told["fate"]], bold=True)
    yield ""
    labels = [_plain(one["stage"]) for one in told["stages"]]
    indent = min(max(map(len, labels), default=0), 20) + 2
    for label, one in zip(labels, told["stages"], strict=True):
        yield from _stage(label, one, indent, width)
    yield from _now(told, width)
    if told["fate"] == "dropped" and not any("anew" in one for one in told["stages"]):
        yield ""
        yield from _wrapped(
            "--measure applies the stages to it anew and tells the values of all rules", width, ""
        )
    for note in told["notes"]:
        yield from _wrapped(f"Note: {note}", width, "")


def _origin(told: dict[str, Any]) -> str:
    origin = told["origin"]
    file = origin["file"] or "an input file that this run no longer has"
    parts = [f"source {told['source']}, {file} at {origin['position']:,}"]
    parts += [f"URL {origin['url']}"] if origin["url"] else []
    parts += [f"date {origin['date']}"] if origin["date"] else []
    return ", ".join([*parts, f"key {told['key']}"])


def _stage(label: str, one: dict[str, Any], indent: int, width: int) -> Iterator[str]:
    """Yield what a stage said: a line with its name, and the details below each other."""
    said = one["said"]
    if "anew" in one and one["said"] in ("not yet", "not run") and "says" in one["anew"]:
        said = f"{said}, but now {one['anew']['says']}"
    colour = _COLOURS.get(said)
    word = click.style(said, fg=colour) if colour else click.style(said, dim=True)
    yield f"{label:<{indent - 1}} {word}"
    margin = "    "
    for row in one["rows"]:
        yield from _wrapped(_row(row, bool(one.get("cluster"))), width, margin)
        if row["survivor_id"] is not None:
            yield f"{margin}kept instead: {_plain(row['survivor_id'])}"
        yield from _excerpts(row["excerpts"], row["num_spans"], width, margin)
    yield from _cluster(one.get("cluster"), width, margin)
    given = one.get("annotations", {}).items()
    shown = {k: v for k, v in given if k not in _CLUSTER and v is not None}
    if shown:
        values = ", ".join(f"{k} {_number(v)}" for k, v in shown.items())
        yield from _wrapped(values, width, margin)
    yield from _measures(one.get("measures", ()), margin)
    yield from _anew(one, width, margin)


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


def _measures(measures: Sequence[dict[str, Any]], margin: str) -> Iterator[str]:
    """Yield a table: rule, value, parameter and bound."""
    names = [_plain(one["rule"]) for one in measures]
    values = ["-" if one["value"] is None else _number(one["value"]) for one in measures]
    first, second = (max(map(len, column), default=0) for column in (names, values))
    for name, value, one in zip(names, values, measures, strict=True):
        line = f"{margin}{name:<{first}}  {value:>{second}}"
        if one["threshold"] is not None:
            bound = f"  {_plain(one['parameter'])} {_number(one['threshold'])}"
            line += click.style(bound, dim=True)
        yield line + (click.style("  <- fails", fg="red", bold=True) if one["fails"] else "")


def _excerpts(
    found: Sequence[dict[str, str]], num_spans: int, width: int, margin: str
) -> Iterator[str]:
    for piece in found:
        line = f"{piece['before']}[-{piece['span']}-]{piece['after']}"
        yield from _wrapped(f'"{line}"', width, margin + "  ", breaks=True)
    if found and num_spans > len(found):
        yield f"{margin}  and {num_spans - len(found):,} more"


def _cluster(cluster: dict[str, Any] | None, width: int, margin: str) -> Iterator[str]:
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
        more = cluster["size"] - 1 - len(names)
        line += f", with {', '.join(names)}" + (f" and {more:,} more" if more > 0 else "")
    elif cluster.get("unknown"):
        line += f"; the others are not told: {cluster['unknown']}"
    yield from _wrapped(line, width, margin)


def _anew(one: dict[str, Any], width: int, margin: str) -> Iterator[str]:
    """Yield what the stage says now, where it was applied anew."""
    anew = one.get("anew")
    if anew is None:
        return
    if "impossible" in anew:
        yield from _wrapped(f"not measured anew: {anew['impossible']}", width, margin)
        return
    expected = "drops it" if one["said"] in ("dropped", "held out") else "keeps it"
    if anew["says"] != expected and one["said"] not in ("not yet", "not run"):
        yield from _wrapped(f"measured anew, it {anew['says']}", width, margin)
    if "rule" in anew and (not one["rows"] or one["rows"][-1]["action"] != "drop"):
        yield from _wrapped(_value(anew, anew["rule"]), width, margin)
    if "bytes_after" in anew:
        change = f"text of {anew['bytes_before']:,} bytes became {anew['bytes_after']:,}"
        yield from _wrapped(change, width, margin)
    for spans in anew.get("spans", ()):
        if not any(row["excerpts"] for row in one["rows"] if row["rule"] == spans["rule"]):
            yield from _wrapped(f"{spans['rule']}:", width, margin)
            yield from _excerpts(spans["excerpts"], spans["num_spans"], width, margin)


def _now(told: dict[str, Any], width: int) -> Iterator[str]:
    """Yield where the document is now, its tokens and the steps that see them."""
    now, tokens = told["now"], told["tokens"]
    if now is not None:
        yield ""
        yield from _wrapped(f"now in {now['part']}, row {now['row']:,}", width, "")
    if tokens is not None:
        yield from _wrapped(_tokens(tokens), width, "")
        for row in tokens.get("rows", ())[:_STEPS]:
            place = f"{row['part']}, row group {row['row_group']:,}, row {row['row_in_group']}"
            what = f"tokens {row['first_token']}-{row['first_token'] + row['num_tokens'] - 1}"
            yield from _wrapped(f"row {row['row']:,} of {row['source']}: {what} ({place})",
                                width, "  ")  # fmt: skip
        yield from _steps(tokens, width)
    if told["text"]:
        more = " ..." if told["text_bytes"] > len(told["text"].encode()) else ""
        yield ""
        yield from _wrapped(f'"{told["text"]}{more}"', width, "", most=6, breaks=True)


def _tokens(tokens: dict[str, Any]) -> str:
    if "missing" in tokens:
        return f"tokens: {tokens['missing']}"
    if not tokens["rows"]:
        return "not packed: no row of tokens holds it"
    num = sum(row["num_tokens"] for row in tokens["rows"])
    rows, taken, epochs = len(tokens["rows"]), tokens["taken"], tokens["epochs"]
    where = f"{num:,} tokens in {rows:,} row{'s' if rows > 1 else ''}"
    if not taken:
        return f"{where}, which no step takes: {tokens['why_not']}"
    often = f"{taken:,} time{'s' if taken > 1 else ''}"
    return f"{where}, which are taken {often} in {epochs} epoch{'s' if epochs > 1 else ''}"


def _steps(tokens: dict[str, Any], width: int) -> Iterator[str]:
    steps = tokens.get("steps", ())
    training = tokens.get("training")
    if training is not None:
        done = [one for one in steps if one["done"]]
        later = [one for one in steps if not one["done"] and "step" in one]
        yield from _wrapped(
            f"training {training['output']}: {training['steps_done']:,} of {training['steps']:,} "
            f"steps done, {training['global_batch_rows']:,} rows each", width, "",
        )  # fmt: skip
        yield from _wrapped(f"steps that saw it: {_listed(done)}", width, "  ")
        yield from _wrapped(f"steps that will: {_listed(later)}", width, "  ")
    elif any("step" in one for one in steps):
        seen = [one for one in steps if "step" in one]
        yield from _wrapped(f"steps that see it: {_listed(seen)}", width, "  ")
    elif steps:
        counters = ", ".join(f"{one['run_row']:,}" for one in steps[:_STEPS])
        more = f" and {tokens['taken'] - _STEPS:,} more" if tokens["taken"] > _STEPS else ""
        yield from _wrapped(
            f"rows of the run: {counters}{more} (-b or --training tells the steps)", width, "  "
        )
    left = sum("left_over" in one for one in steps)
    if left:
        yield from _wrapped(f"{left:,} time{'s' if left > 1 else ''} behind the last step", width,
                            "  ")  # fmt: skip
    masked = sum(one["masked"] for one in steps)
    if masked:
        yield from _wrapped(f"taken down: masked in {masked:,} of these", width, "  ")


def _listed(steps: Sequence[dict[str, Any]]) -> str:
    shown = [
        f"{one['step']:,}" + (f" (epoch {one['epoch'] + 1})" if one["epoch"] else "")
        for one in steps[:_STEPS]
    ]
    more = f" and {len(steps) - _STEPS:,} more" if len(steps) > _STEPS else ""
    return (", ".join(shown) or "none") + more


def _wrapped(
    text: str, width: int, margin: str, *, most: int = 0, breaks: bool = False
) -> list[str]:
    """Return a text as printable lines that fit; names stay whole unless it `breaks`."""
    lines = textwrap.wrap(
        _plain(text), width - len(margin), break_long_words=breaks, break_on_hyphens=False
    )
    if most and len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1][: width - len(margin) - 4] + " ..."]
    return [margin + line for line in lines]


def _plain(text: object) -> str:
    return one_line(str(text))


def _number(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_number, value)) or "none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _plain(value)
    if isinstance(value, float) and not (value.is_integer() and abs(value) < 1e15):
        return f"{value:.4g}"
    return f"{int(value):,}"

"""The output of `trace` and `edit`, and a command line for both that needs no click.

    python -m corpuskit.loader trace runs/r --step 3 -b 8
    python -m corpuskit.loader edit skip runs/r --steps 60:62 -b 8

`corpuskit trace` and `corpuskit edit` print the same lines.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.errors import CorpuskitError, UsageError, describe, printable
from corpuskit.loader.editing import add_sources, append, new_stage, skip_rows, take_down
from corpuskit.loader.edits import describe_edit
from corpuskit.loader.index import edited, read_mix
from corpuskit.loader.steps import parse_batch_size
from corpuskit.loader.stream import StreamingLoader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from corpuskit.loader.edits import Edit
    from corpuskit.loader.index import MixPlan
    from corpuskit.loader.provenance import Occurrence
    from corpuskit.loader.steps import BatchSize

    Skip = Sequence[tuple[int, int] | tuple[int, int, str]]


def trace(
    directory: str,
    global_batch_rows: BatchSize = 8,
    *,
    step: int | None = None,
    doc: str | None = None,
    mixture: bool = False,
    seq_len: int | None = None,
    skip: Skip = (),
    as_json: bool = False,
) -> Iterator[str]:
    """Yield the documents of a step, the occurrences of a document, or the mixture up to a step.

    `skip`, here and below: the rows that the training in question skips (see `StreamingLoader`).

    Raises:
        UsageError: not exactly one of them is requested, or there is no such step or document.
    """
    if (doc is not None) + (step is not None or mixture) != 1:
        raise UsageError("trace: give --step, --doc or --mixture.")
    answers: Sequence[Any]
    with StreamingLoader(directory, global_batch_rows, seq_len=seq_len, skip=skip) as loader:
        if mixture:
            answers = loader.mixture(loader.num_steps if step is None else step)
        elif step is not None:
            answers = loader.which(step)
        else:
            answers = _occurrences(loader, str(doc))
    rows = [dataclasses.asdict(answer) for answer in answers]
    if as_json:
        yield json.dumps(rows, indent=1)
        return
    if not rows:
        yield "Not in this run."
    for row in rows:
        documents = row.pop("documents", ())
        values = {
            name: f"{value:.6g}" if isinstance(value, float) else value
            for name, value in row.items()
        }
        yield "  ".join(f"{name}={value}" for name, value in values.items())
        for document in documents:
            yield "    " + "  ".join(f"{name}={value}" for name, value in document.items())


def _occurrences(loader: StreamingLoader, document: str) -> list[Occurrence]:
    """Look a document up by id; a number that is not an id is a key."""
    try:
        return loader.occurrences(document)
    except UsageError:
        if not document.isdecimal():
            raise
        return loader.occurrences(int(document))


def edit_stage(
    directory: str,
    global_batch_rows: BatchSize,
    *,
    at_step: int,
    weights: Sequence[str],
    caps: Sequence[str] = (),
    rows: int | None = None,
    tokens: int | None = None,
    name: str | None = None,
    other: str | None = None,
    names: Sequence[str] = (),
    seq_len: int | None = None,
    skip: Skip = (),
    dry_run: bool = False,
) -> Iterator[str]:
    """Continue with other weights from a step on; `weights` and `caps` are SOURCE=NUMBER.

    With `other`, sources of that run are added; `names` are SOURCE=NAME of those renamed.
    """
    if rows is not None and tokens is not None:
        raise UsageError("edit: give --rows or --tokens, and not both.")
    rename = {source: new for source, _, new in (text.partition("=") for text in names)}
    if len(rename) < len(names) or "" in {*rename, *rename.values()}:
        raise UsageError(f"edit: --as must be SOURCE=NAME, once for a source, got {list(names)}.")
    row = _row_at(directory, global_batch_rows, at_step, seq_len, skip)
    plan = read_mix(directory)
    if tokens is not None:
        rows = tokens // plan.seq_len
        if not rows:
            raise UsageError(
                f"edit: --tokens {tokens} are less than a row, which has {plan.seq_len}."
            )
    shares = {source: int(number) for source, number in _pairs(weights, "--weight", int)}
    epochs = dict(_pairs(caps, "--max-epochs", float))
    if other is None:
        edit = new_stage(plan, row, shares, rows=rows, name=name, max_epochs=epochs)
        yield from _finish(plan, edit, dry_run=dry_run)
        return
    added = read_mix(other if "://" in other else os.path.abspath(other))
    edit = add_sources(
        plan, row, added, shares, rename=rename, rows=rows, name=name, max_epochs=epochs
    )
    yield from _finish(plan, edit, dry_run=dry_run, other=added)


def edit_skip(
    directory: str,
    global_batch_rows: BatchSize,
    *,
    spans: Sequence[str],
    reason: str = "",
    seq_len: int | None = None,
    skip: Skip = (),
    dry_run: bool = False,
) -> Iterator[str]:
    """Skip the rows of steps for good; `spans` are FIRST:END."""
    loader = StreamingLoader(directory, global_batch_rows, seq_len=seq_len, skip=skip)
    rows = []
    for span in spans:
        first, separator, end = span.partition(":")
        if not separator or not first.isdecimal() or not end.isdecimal():
            raise UsageError(f"edit skip: --steps must be FIRST:END, got {span!r}.")
        rows.append((loader.row_at(int(first)), loader.row_at(int(end))))
    plan = read_mix(directory)
    yield from _finish(plan, skip_rows(plan, rows, reason), dry_run=dry_run)


def edit_takedown(
    directory: str,
    global_batch_rows: BatchSize,
    *,
    at_step: int,
    documents: Sequence[str] = (),
    docs_file: Path | None = None,
    ignore_missing: bool = False,
    reason: str = "",
    seq_len: int | None = None,
    skip: Skip = (),
    dry_run: bool = False,
) -> Iterator[str]:
    """Mask documents from a step on; `docs_file` holds ids, one on a line."""
    names = list(documents)
    if docs_file is not None:
        try:
            lines = docs_file.read_text("utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise UsageError(f"{docs_file}: is not UTF-8: {error.reason}.") from None
        names += [line.removesuffix("\r") for line in lines if line.strip()]
    if not names:
        raise UsageError("edit takedown: name documents with --doc or --docs-file.")
    row = _row_at(directory, global_batch_rows, at_step, seq_len, skip)
    plan = read_mix(directory)
    edit = take_down(plan, row, dict.fromkeys(names), reason, ignore_missing=ignore_missing)
    yield from _finish(plan, edit, dry_run=dry_run)


def edit_list(directory: str, *, as_json: bool = False) -> Iterator[str]:
    """Yield the edits, and the stages and skipped spans of the plan with them."""
    plan = read_mix(directory)
    if as_json:
        yield json.dumps({"plan": plan.hash, "edits": [edit.fields for edit in plan.edits]})
        return
    yield from map(describe_edit, plan.edits)
    yield from _stages(plan)


def _row_at(directory: str, batch: BatchSize, step: int, seq_len: int | None, skip: Skip) -> int:
    """Return the row index at which a step begins."""
    return StreamingLoader(directory, batch, seq_len=seq_len, skip=skip).row_at(step)


def _finish(
    plan: MixPlan, edit: Edit, *, dry_run: bool, other: MixPlan | None = None
) -> Iterator[str]:
    """Check an edit, append it, and describe the new plan."""
    if dry_run:
        after = edited(plan.files, plan.base, [*plan.edits, edit], other)
    else:
        after = append(plan, edit, other)
    yield describe_edit(edit)
    yield from _stages(after)
    rows, before = after.skips.num_consumed, plan.skips.num_consumed
    if rows != before:
        yield f"The run delivers {rows:,} rows now, {before:,} before: its last step moves."
    yield "Nothing was written." if dry_run else f"Wrote {plan.files.where(edit.name)}"


def _stages(plan: MixPlan) -> Iterator[str]:
    start = 0
    yield f"plan {plan.hash}"
    for stage in plan.order.stages:
        weights = {
            source.name: weight
            for source, weight in zip(plan.sources, stage.weights, strict=True)
            if weight
        }
        yield f"  rows {start:,} to {start + stage.rows:,}: {stage.name} {weights}"
        start += stage.rows
    for first, end in plan.skips.spans:
        yield f"  skipped: rows {first:,} to {end:,}"


def _pairs(
    texts: Sequence[str], option: str, kind: type[int] | type[float]
) -> list[tuple[str, float]]:
    """Return NAME=NUMBER options as pairs."""
    pairs: list[tuple[str, float]] = []
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            value = kind(number)
        except ValueError:
            value = 0
        if not name or not value > 0:
            form = "a whole number" if kind is int else "a number"
            raise UsageError(f"edit: {option} must be SOURCE={form} above 0, got {text!r}.")
        if name in dict(pairs):
            raise UsageError(f"edit: {option} names {name!r} twice.")
        pairs.append((name, value))
    return pairs


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `trace` or `edit`; exit codes are those of `corpuskit`."""
    options = vars(_parser().parse_args(arguments))
    command = options.pop("command")
    try:
        for line in command(**options):
            print(printable(line))  # noqa: T201 a command line
    except (CorpuskitError, OSError) as error:
        message = str(error) if isinstance(error, CorpuskitError) else describe(error)
        print(f"error: {printable(message)}", file=sys.stderr)  # noqa: T201
        sys.exit(getattr(error, "exit_code", 1))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("corpuskit-loader", description="Trace or edit a run.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    tracing = commands.add_parser("trace", help="Show the documents of a step, and the reverse.")
    _add_run(tracing, trace, default=8)
    tracing.add_argument("--step", type=int, help="Show the documents of this step.")
    tracing.add_argument("--doc", help="Show the steps of this document (an id, or a key).")
    tracing.add_argument("--mixture", action="store_true", help="Show what each source gave.")
    tracing.add_argument("--json", dest="as_json", action="store_true", help="Print JSON.")
    editing = commands.add_parser("edit", help="Change a running mixture from a step on.")
    edits = editing.add_subparsers(required=True, metavar="EDIT")
    stage = edits.add_parser("stage", help="Continue with other weights.")
    source = edits.add_parser("source", help="Add sources of another run.")
    skip = edits.add_parser("skip", help="Skip the rows of some steps for good.")
    takedown = edits.add_parser("takedown", help="Mask documents.")
    for edit, command in (
        (stage, edit_stage), (source, edit_stage), (skip, edit_skip), (takedown, edit_takedown)
    ):  # fmt: skip
        _add_run(edit, command)
        edit.add_argument("--dry-run", action="store_true", help="Check it, write nothing.")
    for edit in (stage, source, takedown):
        edit.add_argument("--at-step", type=int, required=True, help="First step that may change.")
    for edit in (skip, takedown):
        edit.add_argument("--reason", default="", help="Kept with the edit.")
    pairs: dict[str, Any] = {"action": "append", "metavar": "SOURCE=NUMBER"}
    for edit in (stage, source):
        edit.add_argument("--weight", dest="weights", required=True, help="Share of rows.", **pairs)
        edit.add_argument("--max-epochs", dest="caps", default=[], help="A new cap.", **pairs)
        edit.add_argument("--rows", type=int, help="Packed rows of the stage.")
        edit.add_argument("--tokens", type=int, help="Its tokens, instead of --rows.")
        edit.add_argument("--name", help="For reports.")
    source.add_argument("--from", dest="other", required=True, help="Directory of that run.")
    source.add_argument("--as", dest="names", action="append", default=[], metavar="SOURCE=NAME",
                        help="What a source of it is called here.")  # fmt: skip
    skip.add_argument("--steps", dest="spans", action="append", required=True, metavar="FIRST:END")
    takedown.add_argument("--doc", dest="documents", action="append", default=[], help="An id.")
    takedown.add_argument("--docs-file", type=Path, help="Ids, one on a line.")
    takedown.add_argument(
        "--ignore-missing", action="store_true", help="Leave out documents in no packed row."
    )
    listing = edits.add_parser("list", help="List the edits.")
    listing.add_argument("directory")
    listing.add_argument("--json", dest="as_json", action="store_true", help="Print JSON.")
    listing.set_defaults(command=edit_list)
    return parser


def _batch_size(text: str) -> BatchSize:
    try:
        return parse_batch_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_run(parser: argparse.ArgumentParser, command: Any, default: int | None = None) -> None:
    """Add the run and the batch size, which is required (no default) where a file is written."""
    parser.add_argument("directory")
    parser.add_argument("-b", "--global-batch-rows", type=_batch_size, metavar="ROWS",
                        required=default is None, default=default,
                        help="Rows per step; a ramp as STEP:ROWS,STEP:ROWS.")  # fmt: skip
    parser.add_argument("--seq-len", type=int, help="Tokens of a row, if rows are cut.")
    parser.set_defaults(command=command)

"""Change a running mixture from a step on: weights, spans to skip, documents to mask."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from corpuskit.cli._plain import echo
from corpuskit.cli._ramp import batch_size_option, seq_len_option

if TYPE_CHECKING:
    from corpuskit.cli._ramp import BatchSize
    from corpuskit.loader.edits import Edit
    from corpuskit.loader.index import MixPlan


@click.group("edit")
def command() -> None:
    """Change a running mixture from a step on: weights, spans to skip, documents to mask.

    An edit is a small file in DIRECTORY/edits/. No shard is written again, and no row before the
    step changes: stop the training run before that step, edit, and start it again. It goes on from
    its checkpoint under the edited plan, and refuses if it has already passed the step.

    Steps mean rows only with the batch size of that run, so -b must be given.

    \b
    corpuskit edit stage runs/r --at-step 8000 -b 512 --weight math=3 --weight web=1
    corpuskit edit skip runs/r --steps 7210:7230 -b 512 --reason "loss spike"
    corpuskit edit takedown runs/r --at-step 8000 -b 512 --doc crawl/17.jsonl#4711
    corpuskit edit list runs/r
    """


directory = click.argument("directory", metavar="DIRECTORY")
at_step = click.option(
    "--at-step", type=click.IntRange(0), required=True, help="The first step that may change."
)
reason_option = click.option("--reason", default="", help="Kept with the edit.")
dry_run = click.option("--dry-run", is_flag=True, help="Check and show it, write nothing.")


@command.command("stage")
@directory
@at_step
@batch_size_option(required=True)
@seq_len_option
@click.option("--weight", "weights", multiple=True, required=True, metavar="SOURCE=WEIGHT",
              help="Integer share of a source; may be repeated.")  # fmt: skip
@click.option("--max-epochs", "caps", multiple=True, metavar="SOURCE=EPOCHS",
              help="A new cap for a source; may be repeated.")  # fmt: skip
@click.option("--rows", type=click.IntRange(1), help="Packed rows of the stage.")
@click.option("--tokens", type=click.IntRange(1), help="Its tokens, instead of --rows.")
@click.option("--name", help="What reports call it.")
@dry_run
def stage_command(
    directory: str,
    at_step: int,
    global_batch_rows: BatchSize,
    seq_len: int | None,
    weights: tuple[str, ...],
    caps: tuple[str, ...],
    rows: int | None,
    tokens: int | None,
    name: str | None,
    dry_run: bool,
) -> None:
    """Go on with other weights, instead of what the plan has from there.

    Without --rows or --tokens the run keeps its length.
    """
    from corpuskit.errors import UsageError
    from corpuskit.loader import StreamingLoader
    from corpuskit.loader.editing import new_stage

    if rows is not None and tokens is not None:
        raise UsageError("edit stage: give --rows or --tokens, and not both.")
    loader = StreamingLoader(directory, global_batch_rows, seq_len=seq_len)
    plan = loader.plan
    if tokens is not None:
        rows = tokens // plan.seq_len
        if not rows:
            raise UsageError(
                f"edit stage: --tokens {tokens} are less than a row, which has {plan.seq_len}."
            )
    shares = {source: int(number) for source, number in _pairs(weights, "--weight", int)}
    epochs = dict(_pairs(caps, "--max-epochs", float))
    edit = new_stage(plan, loader.row_at(at_step), shares, rows=rows, name=name, max_epochs=epochs)
    _finish(plan, edit, dry_run)


@command.command("skip")
@directory
@click.option("--steps", "spans", multiple=True, required=True, metavar="FIRST:END",
              help="Steps FIRST to END - 1; may be repeated.")  # fmt: skip
@batch_size_option(required=True)
@seq_len_option
@reason_option
@dry_run
def skip_command(
    directory: str,
    spans: tuple[str, ...],
    global_batch_rows: BatchSize,
    seq_len: int | None,
    reason: str,
    dry_run: bool,
) -> None:
    """Pass over the rows of some steps, for good: what comes behind them moves up."""
    from corpuskit.errors import UsageError
    from corpuskit.loader import StreamingLoader
    from corpuskit.loader.editing import skip_rows

    loader = StreamingLoader(directory, global_batch_rows, seq_len=seq_len)
    rows = []
    for span in spans:
        first, separator, end = span.partition(":")
        if not separator or not first.isdigit() or not end.isdigit():
            raise UsageError(f"edit skip: --steps must be FIRST:END, got {span!r}.")
        rows.append((loader.row_at(int(first)), loader.row_at(int(end))))
    _finish(loader.plan, skip_rows(loader.plan, rows, reason), dry_run)


@command.command("takedown")
@directory
@at_step
@batch_size_option(required=True)
@seq_len_option
@click.option("--doc", "documents", multiple=True, help="A document's id; may be repeated.")
@click.option("--docs-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Ids, one on a line.")  # fmt: skip
@click.option("--ignore-missing", is_flag=True,
              help="Leave out documents in no packed row; the edit lists them.")  # fmt: skip
@reason_option
@dry_run
def takedown_command(
    directory: str,
    at_step: int,
    global_batch_rows: BatchSize,
    seq_len: int | None,
    documents: tuple[str, ...],
    docs_file: Path | None,
    ignore_missing: bool,
    reason: str,
    dry_run: bool,
) -> None:
    """Mask documents: from that step on their tokens are neither inputs nor labels.

    The shards keep them: to delete them for good, take them out of the input and run again.
    """
    from corpuskit.errors import UsageError
    from corpuskit.loader import StreamingLoader
    from corpuskit.loader.editing import take_down

    names = list(documents)
    if docs_file is not None:
        try:
            lines = docs_file.read_text("utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise UsageError(f"{docs_file}: is not UTF-8: {error.reason}.") from None
        names += [line.removesuffix("\r") for line in lines if line.strip()]
    if not names:
        raise UsageError("edit takedown: name documents with --doc or --docs-file.")
    loader = StreamingLoader(directory, global_batch_rows, seq_len=seq_len)
    row = loader.row_at(at_step)
    edit = take_down(loader.plan, row, dict.fromkeys(names), reason, ignore_missing=ignore_missing)
    _finish(loader.plan, edit, dry_run)


@command.command("list")
@directory
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(directory: str, as_json: bool) -> None:
    """List the edits, and the stages and spans of the plan with them."""
    import json

    from corpuskit.loader import read_mix

    plan = read_mix(directory)
    if as_json:
        echo(json.dumps({"plan": plan.hash, "edits": [edit.fields for edit in plan.edits]}))
        return
    for edit in plan.edits:
        echo(_line(edit))
    _show(plan)


def _finish(plan: MixPlan, edit: Edit, dry_run: bool) -> None:
    """Check an edit, append it, and show what the plan is now."""
    from corpuskit.loader.editing import append
    from corpuskit.loader.index import edited

    after = edited(plan.files, plan.base, [*plan.edits, edit]) if dry_run else append(plan, edit)
    echo(_line(edit))
    _show(after)
    rows, before = after.skips.num_consumed, plan.skips.num_consumed
    if rows != before:
        echo(f"The run delivers {rows:,} rows now, {before:,} before: its last step moves.")
    echo("Nothing was written." if dry_run else f"Wrote {plan.files.where(edit.name)}")


def _line(edit: Edit) -> str:
    """Say in a line what an edit does."""
    fields = edit.fields
    what = {
        "stages": lambda: ", ".join(
            f"{stage['name']}: {stage['rows']:,} rows of {stage['weights']}"
            for stage in fields["stages"]
        ),
        "skip": lambda: ", ".join(f"rows {first:,} to {end:,}" for first, end in fields["spans"]),
        "takedown": lambda: (
            f"{len(fields['documents'])} documents in "
            f"{len(set(zip(fields['spans']['source'], fields['spans']['row'], strict=True)))} rows"
        ),
    }[edit.kind]()
    reason = f" ({fields['reason']})" if fields.get("reason") else ""
    return f"{edit.name}: {edit.kind} from row {edit.row:,}: {what}{reason}"


def _show(plan: MixPlan) -> None:
    """Show the stages of a plan."""
    start = 0
    echo(f"plan {plan.hash}")
    for stage in plan.order.stages:
        weights = {
            source.name: weight
            for source, weight in zip(plan.sources, stage.weights, strict=True)
            if weight
        }
        echo(f"  rows {start:,} to {start + stage.rows:,}: {stage.name} {weights}")
        start += stage.rows
    for first, end in plan.skips.spans:
        echo(f"  skipped: rows {first:,} to {end:,}")


def _pairs(
    given: tuple[str, ...], option: str, kind: type[int] | type[float]
) -> list[tuple[str, float]]:
    """Return NAME=NUMBER options as pairs."""
    from corpuskit.errors import UsageError

    pairs: list[tuple[str, float]] = []
    for text in given:
        name, _, number = text.rpartition("=")
        try:
            value = kind(number)
        except ValueError:
            value = 0
        if not name or not value > 0:
            what = "a whole number" if kind is int else "a number"
            raise UsageError(f"edit stage: {option} must be SOURCE={what} above 0, got {text!r}.")
        if name in dict(pairs):
            raise UsageError(f"edit stage: {option} names {name!r} twice.")
        pairs.append((name, value))
    return pairs

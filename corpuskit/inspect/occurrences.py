"""Where the tokens of a document are, and which steps of a training take them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.errors import CorpuskitError, DataError, UsageError
from corpuskit.loader.index import read_mix, without_rows
from corpuskit.loader.provenance import Provenance
from corpuskit.loader.steps import BatchRows, BatchSchedule
from corpuskit.train.record import read_skips, spans_of
from corpuskit.train.status import METRICS_BYTES, read_tail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.loader.index import MixPlan
    from corpuskit.loader.provenance import DocumentRow

_DEADLINE_SECONDS = 120.0

MAX_STEPS = 1000
"""Steps of a document that are listed; a document of a short source recurs in many."""


@dataclasses.dataclass(frozen=True)
class Start:
    """One start of a training, and the batch size from there on.

    Attributes:
        step: the first step of it.
        run_row: the first row of the run that it takes.
        plan: hash of the plan that it read.
    """

    step: int
    run_row: int
    rows: int
    steps: int
    plan: str


@dataclasses.dataclass(frozen=True)
class Training:
    """What a training output says about its steps.

    Attributes:
        output: the folder.
        num_done: steps that metrics.jsonl has.
        starts: in the order of time.
        skips: spans of the run's rows that it skipped after a rollback (`without_rows`).
    """

    output: str
    data: str
    num_done: int
    starts: tuple[Start, ...]
    skips: list[tuple[int, int, str]]

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.starts[-1].steps


def read_training(output: str) -> Training:
    """Read how a training cut the run into steps, and how far it is.

    Raises:
        UsageError: no training has begun there.
        DataError: its files are damaged.
    """
    folder = Path(output)
    starts: list[Start] = []
    data = ""
    try:
        with (folder / "events.jsonl").open("rb") as file:
            for line in file:
                if b'"start"' not in line[:40] or not line.endswith(b"\n"):
                    continue
                event = json.loads(line)
                state, rows = event["loader"], event["settings"]["batch"]["global_rows"]
                data = str(event["settings"]["data"])
                starts.append(
                    Start(int(state["step"]), int(state["rows"]), int(rows), int(event["steps"]),
                          str(state["plan"]))
                )  # fmt: skip
    except OSError as error:
        raise UsageError(
            f"{output}: not the output of a training: {(error.strerror or str(error)).lower()}. "
            "Name the folder that `corpuskit train` writes to (`output` in its file)."
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / 'events.jsonl'}: cannot be read: {error!r}.") from None
    if not starts:
        raise UsageError(f"{output}: no training has begun here: events.jsonl has no start.")
    steps = [line["step"] for line in read_tail(folder, "metrics", METRICS_BYTES) if "step" in line]
    num_done = steps[-1] + 1 if steps else 0
    return Training(output, data, num_done, tuple(starts), spans_of(read_skips(folder)))


def token_facts(
    address: str,
    key: int,
    *,
    global_batch_rows: int | Sequence[tuple[int, int]] | None = None,
    training: Training | None = None,
) -> dict[str, Any]:
    """Return the rows that hold a document, and when the run takes them, as JSON values.

    Args:
        address: of the run directory.
        global_batch_rows: count steps of this many rows.
        training: count the steps of this training instead.

    Returns:
        `rows` (source, row, part, row_group, row_in_group, first_token, num_tokens); `taken`, times
        that the run takes them in all, skipped ones left out; `epochs`; `steps`, at most MAX_STEPS,
        each with `step`, `row` in its batch, `run_row`, `epoch`, `masked` and, of a training,
        `done`. Or `missing`: why there is nothing to say.

    Raises:
        UsageError: the training is of another run.
    """
    try:
        skips = training.skips if training else []
        plan = without_rows(read_mix(address), skips)
        provenance = Provenance(plan, _DEADLINE_SECONDS)
        rows = _rows(plan, provenance, key)
        occurrences = provenance.rows_with(key) if rows else []
    except CorpuskitError as error:
        return {"missing": str(error)}
    facts: dict[str, Any] = {
        "rows": rows,
        "taken": len(occurrences),
        "epochs": 1 + max((occurrence.epoch for occurrence in occurrences), default=-1),
        "plan_rows": plan.order.num_rows,
    }
    if rows and not occurrences:
        facts["why_not"] = _why_not(plan, rows, skips)
    if training is not None:
        facts |= _training_steps(plan, occurrences, training)
    else:
        facts["steps"] = _steps(plan, occurrences, global_batch_rows)
    return facts


def _rows(plan: MixPlan, provenance: Provenance, key: int) -> list[dict[str, Any]]:
    names = [source.name for source in plan.sources]
    facts = []
    for source, _, row, first, count in provenance.lookups.spans_of({key}):
        cell = np.array([names.index(source)], np.int32), np.array([row], np.int64)
        location = plan.parts.locate(*cell)
        facts.append(
            {
                "source": source,
                "row": row,
                "part": plan.parts.paths[int(location.parts[0])],
                "row_group": int(location.groups[0]),
                "row_in_group": int(location.rows[0]),
                "first_token": first,
                "num_tokens": count,
            }
        )
    return facts


def _why_not(plan: MixPlan, rows: list[dict[str, Any]], skips: Sequence[object]) -> str:
    """Say why no step sees a packed document: the mixture ends before it, or skips it."""
    names = [source.name for source in plan.sources]
    number = names.index(rows[0]["source"])
    num_taken = int(plan.order.taken(plan.order.num_rows)[number])
    if any(plan.order.row_indices_of(number, row["row"]) for row in rows):
        return f"an edit of the plan{' or a rollback' if skips else ''} passes over its rows"
    return (
        f"the mixture takes {num_taken:,} of the {plan.sources[number].rows:,} rows of source "
        f"{names[number]}"
    )


def _steps(
    plan: MixPlan, occurrences: Sequence[DocumentRow], batch: int | Sequence[tuple[int, int]] | None
) -> list[dict[str, Any]]:
    schedule = None if batch is None else BatchSchedule(BatchRows(batch), 0, 0, 0, 1)
    last = 0 if schedule is None else schedule.last_step(plan.skips.num_consumed)
    steps = []
    for occurrence in occurrences[:MAX_STEPS]:
        facts = _occurrence(occurrence)
        if schedule is not None:
            step, row = schedule.step_of(plan.skips.consumed_before(occurrence.row_index))
            facts |= {"step": step, "row": row} if step < last else {"left_over": True}
        steps.append(facts)
    return steps


def _training_steps(
    plan: MixPlan, occurrences: Sequence[DocumentRow], training: Training
) -> dict[str, Any]:
    require_plan(plan, training)
    steps = []
    for occurrence in occurrences[:MAX_STEPS]:
        facts = _occurrence(occurrence)
        if (position := _step_of(plan, occurrence.row_index, training)) is None:
            facts |= {"left_over": True, "done": False}
        else:
            step, row = position
            facts |= {"step": step, "row": row, "done": step < training.num_done}
        steps.append(facts)
    return {
        "steps": steps,
        "training": {
            "output": training.output, "steps_done": training.num_done, "steps": training.steps,
            "global_batch_rows": training.starts[-1].rows,
        },
    }  # fmt: skip


def require_plan(plan: MixPlan, training: Training) -> None:
    """Refuse a training of another run.

    Raises:
        UsageError: names both.
    """
    if training.starts[-1].plan not in plan.hashes:
        raise UsageError(
            f"{training.output}: this training reads another plan ({training.data}), not the one "
            "of this run, so it says nothing about its documents. Name the run that it reads."
        )


def _step_of(plan: MixPlan, run_row: int, training: Training) -> tuple[int, int] | None:
    """Return the step, and the row in its batch, that take a row of the run; None if no step does.

    A start undoes the steps of earlier starts from its own first step on, so the last start at or
    before the row decides.
    """
    consumed = plan.skips.consumed_before(run_row)
    for start in reversed(training.starts):
        first = plan.skips.consumed_before(start.run_row)
        if consumed >= first:
            schedule = BatchSchedule(BatchRows(start.rows), start.step, first, 0, 1)
            step, row = schedule.step_of(consumed)
            return (step, row) if step < training.steps else None
    return None


def _occurrence(row: DocumentRow) -> dict[str, Any]:
    return {
        "run_row": row.row_index, "source_row": row.row, "epoch": row.epoch, "masked": row.masked,
    }  # fmt: skip

"""Makes edits of a running mixture: each is checked against the plan, then appended.

    plan = read_mix("runs/r")
    plan = append(plan, skip_rows(plan, [(8_000, 8_800)]))

A state saved before the edit loads under the new plan if it precedes what the edit changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.errors import UsageError
from corpuskit.loader.edits import SPAN_COLUMNS, Edit, new_edit, write_edit
from corpuskit.loader.index import MAX_EPOCHS, MixPlan, edited
from corpuskit.loader.provenance import Provenance

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DEADLINE_SECONDS = 120.0


def append(plan: MixPlan, edit: Edit) -> MixPlan:
    """Append an edit to the chain of a plan, and return the plan with it.

    Raises:
        UsageError: the plan would take a source more often than its cap allows, or another process
            has appended an edit meanwhile.
        DataError: the edit does not fit the plan.
    """
    after = edited(plan.files, plan.base, [*plan.edits, edit])
    write_edit(plan.files.address, edit)
    return after


def new_stage(
    plan: MixPlan,
    row: int,
    weights: Mapping[str, int],
    *,
    rows: int | None = None,
    name: str | None = None,
    max_epochs: Mapping[str, float] | None = None,
) -> Edit:
    """Return the edit that continues with other weights from a row of the run on.

    Args:
        plan: the current plan.
        row: row index of the first row that the new weights may change.
        weights: source -> integer share of the rows.
        rows: length of the stage; None for as many as the plan has from there.
        name: for reports.
        max_epochs: new caps of sources.

    Raises:
        UsageError: there is no such row or source, or no row is left and `rows` is not given.
    """
    total = plan.order.num_rows
    if not 0 <= row <= total:
        raise UsageError(f"edit: the plan has rows 0 to {total}, got {row}.")
    for source in [*weights, *(max_epochs or {})]:
        _require_source(plan, source)
    for source, cap in (max_epochs or {}).items():
        if not 0 < cap <= MAX_EPOCHS:
            raise UsageError(
                f"edit: max_epochs of {source!r} must be above 0 and at most {MAX_EPOCHS:,}."
            )
    if not any(weights.values()) or min(weights.values()) < 0:
        raise UsageError(f"edit: weights must be at least 0, and one above, got {dict(weights)}.")
    length = total - row if rows is None else rows
    if length < 1:
        raise UsageError(
            f"edit: the plan ends at row {total}, so the stage needs a length. Give rows or tokens."
        )
    stage = {
        "name": name or f"edit-{len(plan.edits) + 1}",
        "rows": length,
        "weights": dict(weights),
    }
    payload = {"stages": [stage], "max_epochs": dict(max_epochs or {})}
    return new_edit(plan.edits, plan.base.hash, "stages", row, payload)


def skip_rows(plan: MixPlan, spans: Sequence[tuple[int, int]], reason: str = "") -> Edit:
    """Return the edit that skips spans [first, end) of the run's rows for good.

    Raises:
        UsageError: a span is empty or not within the run.
    """
    total = plan.order.num_rows
    if not spans:
        raise UsageError("edit: no span is given.")
    for first, end in spans:
        if not 0 <= first < end <= total:
            raise UsageError(
                f"edit: a span to skip must be within the {total} rows of the run and not empty,"
                f" got [{first}, {end})."
            )
    payload = {"spans": [[first, end] for first, end in spans], "reason": reason}
    first = min(first for first, _ in spans)
    return new_edit(plan.edits, plan.base.hash, "skip", first, payload)


def take_down(
    plan: MixPlan,
    row: int,
    documents: Iterable[str | int],
    reason: str = "",
    *,
    ignore_missing: bool = False,
) -> Edit:
    """Return the edit that masks documents from a row of the run on.

    Their tokens are replaced by the pad token, and none of them is a label; rows do not move.

    Args:
        plan: the current plan.
        row: the run's row index from which it counts.
        documents: ids, or keys.
        reason: kept with the edit.
        ignore_missing: leave out documents that are in no packed row; at least one must be in one.

    Raises:
        UsageError: a document is in no packed row, or there is no such row.
    """
    if not 0 <= row <= plan.order.num_rows:
        raise UsageError(f"edit: the plan has rows 0 to {plan.order.num_rows}, got {row}.")
    provenance = Provenance(plan, DEADLINE_SECONDS)
    names = list(documents)
    if not names:
        raise UsageError("edit: no document is given.")
    known = provenance.lookups.keys_of(name for name in names if isinstance(name, str))
    keys = {name: {name} if isinstance(name, int) else known[name] for name in names}
    stretches = provenance.lookups.stretches_of(set().union(*keys.values()))
    packed = {key for _, key, *_ in stretches}
    missing = [name for name in names if not keys[name] & packed]
    if missing and not (ignore_missing and stretches):
        shown = ", ".join(repr(name) for name in missing[:5])
        raise UsageError(
            f"edit: {len(missing)} of {len(names)} documents are in no packed row: {shown}"
            f"{', ...' if len(missing) > 5 else ''}. `corpuskit why` tells where one was dropped;"
            " ignore_missing (--ignore-missing) leaves them out."
        )
    order = [source.name for source in plan.sources]
    sources = np.array([order.index(source) for source, *_ in stretches], np.int32)
    sizes = provenance.text_bytes_of(stretches, sources)
    columns: tuple[list[Any], ...] = (
        [source for source, *_ in stretches],
        [row for _, _, row, _, _ in stretches],
        [first for *_, first, _ in stretches],
        [count for *_, count in stretches],
        sizes,
        [key for _, key, *_ in stretches],
    )
    payload = {
        "documents": sorted(str(name) for name in names if keys[name] & packed),
        "not_there": sorted(map(str, missing)),
        "reason": reason,
        "spans": dict(zip(SPAN_COLUMNS, columns, strict=True)),
    }
    return new_edit(plan.edits, plan.base.hash, "takedown", row, payload)


def _require_source(plan: MixPlan, name: str) -> None:
    names = [source.name for source in plan.sources]
    if name not in names:
        raise UsageError(f"edit: the plan has no source {name!r}. It has {', '.join(names)}.")

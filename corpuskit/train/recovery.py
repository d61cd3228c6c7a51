"""What follows a bad step: its documents are named, or the run goes back to a checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.errors import CorpuskitError
from corpuskit.train.guard import MAX_SUSPECTS, GuardError, document_losses, name_documents
from corpuskit.train.record import add_skip, step_of

if TYPE_CHECKING:
    import torch

    from corpuskit.train.setup import Run
    from corpuskit.train.watch import Watch


@dataclass(frozen=True, slots=True)
class BadStep:
    """A step that was not applied."""

    step: int  # as the loader counts
    reason: str
    loss: float  # nats per labelled token
    grad_norm: float
    usual_loss: float  # mean of the steps before


def report_bad_step(
    run: Run, watch: Watch, bad: BadStep, batch: dict[str, Any], losses: torch.Tensor
) -> None:
    """Name the rows and documents of a step that was not applied; collective.

    Args:
        run, watch: this rank's.
        bad: the step.
        batch: this rank's S rows of L tokens.
        losses: (S, L) the cross-entropy of each token, in nats.
    """
    host_losses = losses.float().cpu().numpy()
    suspects = document_losses(batch, host_losses, bad.usual_loss)
    first_row = run.parallel.data_rank * len(host_losses)
    local = [(excess, first_row + row, *rest) for excess, row, *rest in suspects]
    names = run.loader.source_names
    rows = [
        (f"{names[source]}/{row}", loss)
        for source, row, loss in zip(
            batch["source_ids"].tolist(),
            batch["row_ids"].tolist(),
            host_losses.sum(1, dtype=np.float64).tolist(),
            strict=True,
        )
    ]
    reports = run.parallel.gather((run.parallel.data_rank, local, rows))
    by_slice = {rank: report for rank, *report in reports}  # ranks that share rows report the same
    worst = sorted(s for entries, _ in by_slice.values() for s in entries)[::-1][:MAX_SUSPECTS]
    if run.parallel.rank:
        return
    documents, unknown = [], None
    try:
        documents = name_documents(run.loader, bad.step, worst)
    except CorpuskitError as error:  # training continues: the rows are known
        unknown = str(error)
    listed = "; ".join(map(str, documents[:3])) or f"unknown: {unknown}"
    watch.event(
        "bad_step",
        f"step {bad.step} not applied: {bad.reason}. Most suspect: {listed}",
        **asdict(bad),
        documents=[asdict(document) for document in documents],
        rows=[row for rank in sorted(by_slice) for row in by_slice[rank][1]],
    )


def go_back(run: Run, watch: Watch) -> None:
    """Have this training skip the rows of the bad steps, and delete the newer checkpoints.

    Checkpoints are deleted first: a run that is killed in between meets the same rows again, and
    calls this again. Bad steps before the oldest checkpoint are not skipped: they were not applied.

    Raises:
        GuardError: the run has gone back as often as it may, or no row would be left.
    """
    watch.saved(run.checkpoints.wait())
    watch.heartbeat.beat(run.guard.bad_steps[-1], "rollback")
    guard, loader, bad = run.guard.settings, run.loader, run.guard.bad_steps
    num_rollbacks = len(run.skips)
    times = "time" if len(bad) == 1 else "times"
    reason = f"{len(bad)} {times} within {guard.window} steps (steps {', '.join(map(str, bad))})"
    if num_rollbacks >= guard.rollbacks:
        used = "guard.rollbacks is 0"
        if num_rollbacks:
            used = f"the {num_rollbacks} rollbacks are used up"
        raise GuardError(
            f"{run.settings.output}: a step was bad {reason}, and {used}. None of them was "
            "applied; events.jsonl names their documents. Lower optimizer.lr, raise guard.tolerate "
            "or guard.rollbacks, or take documents down with `corpuskit edit`."
        )
    newest = run.checkpoints.newest_verified(at_most=max(bad[0] - guard.rollback_steps, 0))
    watch.report_damage(newest)
    trunk = Path(run.settings.branch_from or "step-00000000")
    back_to = newest.record.step if newest else step_of(trunk.name) or 0
    first = max(min(step for step in bad if step >= back_to) - guard.skip_before, back_to)
    end = min(bad[-1] + 1 + guard.skip_after, loader.num_steps)
    rows = loader.row_at(first), loader.row_at(end)
    if back_to + loader.num_steps - end < 1:
        raise GuardError(
            f"{run.settings.output}: a step was bad {reason}; no row is left to skip to."
        )
    run.checkpoints.forget_after(back_to)
    if run.parallel.rank == 0:
        add_skip(Path(run.settings.output), *rows, loader.plan.hash, f"a step was bad {reason}")
    watch.event(
        "rollback",
        f"a step was bad {reason}: back to step {back_to}; rows {rows[0]} to {rows[1] - 1} of the"
        f" run (steps {first} to {end - 1}) are skipped by this training; rollback "
        f"{num_rollbacks + 1} of {guard.rollbacks}",
        back_to=back_to, bad_steps=bad, skipped_rows=rows, number=num_rollbacks + 1,
    )  # fmt: skip
    run.parallel.gather(None)  # no rank begins again before the skip is written

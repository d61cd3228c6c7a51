"""What happens to a step that the guard refuses: its documents are named; or the run goes back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.errors import CorpuskitError
from corpuskit.train.guard import (
    NAMED,
    GuardError,
    count_rollbacks,
    document_losses,
    name_documents,
    skip_for_good,
)

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
    mine = [(excess, first_row + row, *rest) for excess, row, *rest in suspects]
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
    everyone = run.parallel.gather((run.parallel.data_rank, mine, rows))
    by_slice = {place: found for place, *found in everyone}  # ranks that share rows say the same
    worst = sorted(one for found, _ in by_slice.values() for one in found)[::-1][:NAMED]
    if run.parallel.rank:
        return
    documents, unknown = [], None
    try:
        documents = name_documents(run.loader, bad.step, worst)
    except CorpuskitError as error:  # no reason to end what goes on: the rows are known
        unknown = str(error)
    named = "; ".join(map(str, documents[:3])) or f"unknown: {unknown}"
    watch.event(
        "bad_step",
        f"step {bad.step} not applied: {bad.reason}. Most suspect: {named}",
        **asdict(bad),
        documents=[asdict(document) for document in documents],
        rows=[row for place in sorted(by_slice) for row in by_slice[place][1]],
    )


def go_back(run: Run, watch: Watch) -> None:
    """Take the rows of the bad steps out of the plan, and make an older checkpoint the newest.

    Checkpoints go first: killed in between, the run meets the same rows again, and is back here.

    Raises:
        GuardError: the run went back as often as it may.
    """
    run.checkpoints.wait()
    guard, settings, plan = run.guard.settings, run.settings, run.loader.plan
    bad = run.guard.bad_steps
    so_far = count_rollbacks(plan, settings.output)
    what = f"{len(bad)} bad steps within {guard.window} (steps {', '.join(map(str, bad))})"
    if so_far >= guard.rollbacks:
        raise GuardError(
            f"{settings.output}: {what}, and {so_far} of {guard.rollbacks} rollbacks are used up; "
            "none of them was applied. events.jsonl names their documents. Lower optimizer.lr, "
            "raise guard.tolerate or guard.rollbacks, or take documents down with `corpuskit edit`."
        )
    watch.pulse.beat(bad[-1], "rollback")
    newest = run.checkpoints.newest(at_most=max(bad[0] - guard.rollback_steps, 0))
    there = int(newest.name.partition("-")[2]) if newest else 0
    back_to = there if there <= bad[0] else 0
    first = max(bad[0] - guard.skip_before, back_to)
    end = min(bad[-1] + 1 + guard.skip_after, run.loader.num_steps)
    rows = run.loader.row_at(first), run.loader.row_at(end)
    run.checkpoints.forget_after(back_to if there <= bad[0] else -1)
    if run.parallel.rank == 0:
        skip_for_good(plan, *rows, settings.output, what)
    watch.event(
        "rollback",
        f"{what}: back to step {back_to}; rows {rows[0]} to {rows[1] - 1} of the run (steps "
        f"{first} to {end - 1}) are skipped for good; rollback {so_far + 1} of {guard.rollbacks}",
        back_to=back_to, bad_steps=bad, skipped_rows=rows, number=so_far + 1,
    )  # fmt: skip
    run.parallel.gather(None)  # nobody reads the plan before it is written

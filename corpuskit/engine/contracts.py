"""Whether a run keeps what `expect` asks for: measured from seals, checked at each barrier.

A stage is judged when its last phase is sealed, or a sealed one is reused. The next phase begins
only after that, so a run that was killed in between stops at the same phase.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from corpuskit.engine.callbacks import RunCallbacks
from corpuskit.engine.expect import PACK, TOKENS, Bound, absent_origins, bounds_of, english_defaults
from corpuskit.engine.status import funnel
from corpuskit.errors import ContractError, CorpuskitError
from corpuskit.formats.manifest import NO_VALUE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import FunnelRow, Sealed

Verdict = Literal["holds", "broken", "accepted", "waiting", "not run"]
HEADER = ("stage", "source", "bound", "limit", "measured", "")

MOST_LOST, LEAST_SEEN = 0.9, 100
"""Warn of a stage that drops more than this share of a source of at least this many documents."""


@dataclasses.dataclass(frozen=True)
class Contract:
    """A bound, and what came of it.

    Attributes:
        bound: keys below stage and source, as in `rules.score.max_drop`.
        verdict: `accepted` is broken in a run with `--accept`; `waiting` and `not run` as stages.
        counted: documents, bytes (`max_cut_bytes`) or tokens; None as long as they are not known.
        total: what the share is of; 0 of tokens.
    """

    stage: str
    source: str
    bound: str
    limit: float
    verdict: Verdict
    counted: int | None = None
    total: int = 0

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a table under `HEADER`."""
        sign = ">=" if self.bound.startswith("min") else "<="
        limit = f"{self.limit:,.0f}" if self.stage == TOKENS else f"{100 * self.limit:.6g} %"
        share = ""
        if self.counted is not None:
            share = f"{self.counted:,}"
            if self.stage != TOKENS:
                percent = 100 * self.counted / max(self.total, 1)
                share = f"{percent:.4g} % ({share} of {self.total:,})"
        subject = (self.stage, self.source or "all", self.bound)
        return (*subject, f"{sign} {limit}", share, self.verdict)

    def facts(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "cells": list(self.cells())}


def contracts(
    run: RunDirectory, finished: Sealed, funnel_rows: Sequence[FunnelRow] | None = None
) -> list[Contract]:
    """Return every bound and whether it holds, in the order of the stages.

    Args:
        finished: what `sealed` returned.
        funnel_rows: what `funnel` returned, where it is at hand.
    """
    funnel_rows = funnel(run, finished) if funnel_rows is None else funnel_rows
    sources = [step.label for step in run.plan.file.sources]
    rows = {row.stage: row for row in funnel_rows if not row.is_source}
    counters = _counters(finished)
    position = {label: index for index, label in enumerate((*rows, TOKENS))}
    judged: list[Contract] = []
    for bound in sorted(
        bounds_of(run.plan.settings.expect, sources), key=lambda b: position[b.stage]
    ):
        is_of_stage = bound.stage != TOKENS and bound.source
        if is_of_stage and not run.plan.step(bound.stage).applies.to_source(bound.source):
            continue  # the stage never sees documents of this source
        facts = (bound.stage, bound.source, ".".join(bound.path), bound.limit)
        row = rows[PACK if bound.stage == TOKENS else bound.stage]
        if row.state != "done":
            judged.append(Contract(*facts, verdict=row.state))
            continue
        count, total = _count_of(bound, row, counters, sources)
        value = count / total if total else bound.limit  # a share of nothing breaks nothing
        value = count if bound.stage == TOKENS else value
        is_least = bound.path[0].startswith("min")
        is_kept = value >= bound.limit if is_least else value <= bound.limit
        verdict: Verdict = "holds" if is_kept else "accepted" if run.accepts else "broken"
        judged.append(Contract(*facts, verdict, count, total))
    return judged


def _counters(finished: Sealed) -> Mapping[str, int]:
    """Return the counters of all phases added up; of bytes seen, those of the pass that saw most.

    Passes of a stage may read a text several times.
    """
    counters: Counter[str] = Counter()
    for _, seal in finished:
        for name, value in seal.counters.items():
            is_peak = name.startswith("seen_bytes/")
            counters[name] = max(counters[name], value) if is_peak else counters[name] + value
    return counters


def _count_of(
    bound: Bound, row: FunnelRow, counters: Mapping[str, int], sources: Iterable[str]
) -> tuple[int, int]:
    """Return what a share is: how many, and of how many."""
    stage, source, path = bound.stage, bound.source, bound.path
    if stage == TOKENS:
        return sum(counters[f"tokens/{name}"] for name in ([source] if source else sources)), 0
    num_in, dropped = seen_and_dropped(row, source)
    match path:
        case ("max_drop",):
            return dropped, num_in
        case ("min_keep",):
            return num_in - dropped, num_in
        case ("min_keep", label):
            return counters[f"labels/{stage}/{label}/{source}"], num_in
        case ("max_cut",):
            return counters[f"shortened/{stage}/{source}"], num_in
        case ("max_cut_bytes",):
            return counters[f"cut_bytes/{stage}/{source}"], counters[f"seen_bytes/{stage}/{source}"]
    kind = "dropped" if path[-1] == "max_drop" else "cut"
    return counters[f"{kind}/{stage}/{path[1]}/{source}"], num_in


def seen_and_dropped(row: FunnelRow, source: str) -> tuple[int, int]:
    """Return how many documents of a source a stage saw, and how many of them it dropped."""
    dropped = sum(by_source.get(source, 0) for by_source in row.dropped.values())
    return row.sources[source][0] - row.not_applied.get(source, 0), dropped


def losses(
    funnel_rows: Sequence[FunnelRow],
    judged: Iterable[Contract],
    labels: Collection[str] | None = None,
) -> Iterator[str]:
    """Yield a warning for each source that lost nearly everything in one stage.

    A bound in `expect` on what the stage may drop of the source replaces the warning.

    Args:
        labels: stages to look at; None = all.
    """
    is_loss = ("max_drop", "min_keep")
    bounded = {(c.stage, c.source) for c in judged if c.bound.startswith(is_loss)}
    for row in funnel_rows:
        if row.is_source or (labels is not None and row.stage not in labels):
            continue
        for source in row.sources:
            num_in, dropped = seen_and_dropped(row, source)
            is_lost = num_in >= LEAST_SEEN and dropped > MOST_LOST * num_in
            if is_lost and (row.stage, source) not in bounded:
                share = f"{dropped:,} of {num_in:,} documents of {source}"
                share += f" ({100 * dropped / num_in:.4g} %)"
                yield f"{row.stage} dropped {share}. If that is meant, bound it in expect."


def no_values(
    run: RunDirectory,
    finished: Sealed,
    funnel_rows: Sequence[FunnelRow],
    labels: Collection[str] | None = None,
) -> Iterator[str]:
    """Yield a warning for each stage that reads what no document of a source has.

    Args:
        labels: stages to look at; None = all that are finished.
    """
    counters = _counters(finished)
    num_docs = {row.stage: row.num_out for row in funnel_rows if row.is_source}
    for row in funnel_rows:
        if row.is_source or row.state != "done" or (labels is not None and row.stage not in labels):
            continue
        step = run.plan.step(row.stage)
        origins = [f"origin.{name}" for name in step.stage.origins()]
        columns = dict.fromkeys((*step.stage.needs(), *step.applies.columns, *origins))
        for source in run.plan.file.sources_of(step):
            num = num_docs[source.label]
            for column in columns:
                if num and counters[f"{NO_VALUE}{column}/{source.label}"] == num:
                    text = f"none of the {num:,} documents of {source.label} has a value there"
                    yield f"{row.stage} reads {column}: {text}. Check the columns of the source."


def check_barrier(run: RunDirectory, index: int, callbacks: RunCallbacks | None = None) -> None:
    """Judge the stages that are finished when a phase is, and warn of what they lost.

    Args:
        index: of the phase; it and all before it are sealed.
        callbacks: None in a slot, which warns of nothing.

    Raises:
        ContractError: a bound is broken, and `--accept` was not given.
    """
    if callbacks is None and not run.plan.settings.expect:
        return  # no seals are read that the slot does not need
    callbacks = callbacks or RunCallbacks()
    finished = [(phase, run.seal(phase.index)) for phase in run.plan.phases[: index + 1]]
    funnel_rows = funnel(run, finished)
    judged = contracts(run, finished, funnel_rows)
    if problem := contract_problem(judged):
        raise ContractError(problem)
    labels = {*run.plan.phases[index].labels}
    for warning in (
        *losses(funnel_rows, judged, labels),
        *no_values(run, finished, funnel_rows, labels),
    ):
        callbacks.notes(warning)
    labels |= {TOKENS} if PACK in labels else set()
    if accepted := [c for c in judged if c.verdict == "accepted" and c.stage in labels]:
        callbacks.notes(f"accepted, although expect does not hold:\n{_table(accepted)}")


def contract_problem(judged: Iterable[Contract]) -> str:
    """Return why a run does not go on; "" if no bound is broken."""
    broken = [c for c in judged if c.verdict == "broken"]
    text = (
        f"expect does not hold:\n{_table(broken)}\n"
        "No later phase was run, and what is finished is kept. Correct the stage or the bound and "
        "run again, or go on with corpuskit run --accept."
    )
    return text if broken else ""


def _table(judged: Iterable[Contract]) -> str:
    rows = [HEADER[:-1], *(c.cells()[:-1] for c in judged)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def warnings(run: RunDirectory, finished: Sealed, judged: Iterable[Contract]) -> list[str]:
    """Return what is worth a warning in a plan and in what has come of it so far."""
    file = run.plan.file
    funnel_rows = funnel(run, finished)
    texts = [
        *absent_origins(file),
        *losses(funnel_rows, judged),
        *no_values(run, finished, funnel_rows),
    ]
    with contextlib.suppress(CorpuskitError):  # a model is gone: what is sealed is still there
        texts = [*english_defaults(file.steps), *texts]
    return texts


def contract_facts(run: RunDirectory, finished: Sealed) -> dict[str, Any]:
    """Return contracts and warnings as JSON values."""
    judged = contracts(run, finished)
    texts = warnings(run, finished, judged)
    return {"contracts": [contract.facts() for contract in judged], "warnings": texts}

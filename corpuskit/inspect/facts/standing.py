"""How far a run is: finished, running, failed or stopped; what failed; when."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
from typing import TYPE_CHECKING, Literal

from corpuskit.engine.failures import read_failures, span
from corpuskit.engine.jobs import jobs_of
from corpuskit.engine.status import outdated, prospects_of
from corpuskit.errors import CorpuskitError
from corpuskit.storage.lease import is_free

if TYPE_CHECKING:
    from collections.abc import Iterable

    from corpuskit.engine.phase import Prospect
    from corpuskit.engine.plan.compile import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import Sealed

LOCK = "lock"

CODE = "its code changed"
"""Reason of a prospect that differs in nothing else."""

State = Literal["finished", "changed", "running", "failed", "stopped"]


@dataclasses.dataclass(frozen=True)
class Failure:
    """A task that failed and has not succeeded since."""

    phase: str
    units: str
    error: str
    log: str
    code: int
    host: str
    at: str | None


@dataclasses.dataclass(frozen=True)
class Standing:
    """How far a run is.

    Attributes:
        state: `finished`; `changed` (finished, but plan, files or code are other ones since);
            `running`; `failed`; or `stopped`, before its end and without a failure.
        phase: that it is at; None at its end.
        sentence: the same in words.
        began, ended: times of the plan and of the last seal; None in object storage.
        until: the stage after which the run was told to stop.
    """

    name: str
    directory: str
    pipeline: str
    seed: int
    until: str | None
    state: State
    phase: str | None
    sentence: str
    began: str | None
    ended: str | None
    phases_done: int
    phases: int
    accepted_code_change: tuple[str, ...]
    failures: tuple[Failure, ...]
    prospects: tuple[Prospect, ...]


def standing(run: RunDirectory, finished: Sealed) -> Standing:
    """Return how far a run is."""
    try:
        prospects = tuple(prospects_of(run, trust=True))
    except CorpuskitError:  # a model or an input is gone: what is sealed still is
        prospects = ()
    failures = tuple(one for phase in run.plan.phases for one in _failures(run, phase))
    settings = run.plan.settings
    done = {phase.name for phase, _ in finished}
    is_open = [phase.name for phase in run.plan.phases if phase.name not in done]
    stale = [one for one in prospects if one.state not in ("reuse", "later")]
    at = stale[0].phase.name if stale else is_open[0] if is_open else None
    is_running = at is not None and is_held(run)
    old = outdated_phases(run, finished)
    if old and not is_open:  # it may stand behind one whose code alone has changed
        at = old[0].name
    is_other = bool(old) or any(one.reason != CODE for one in stale)
    state = _state(at, failures, is_open=bool(is_open), is_other=is_other, is_running=is_running)
    times = [modified(run, run.seal_name(phase)) for phase, _ in finished]
    return Standing(
        name=settings.name,
        directory=run.store.address,
        pipeline=run.plan.file.path,
        seed=settings.seed,
        until=run.plan.until,
        state=state,
        phase=None if state == "finished" else at,
        sentence=_sentence(run, state, at, failures, len(done)),
        began=iso(_first(run, finished)),
        ended=iso(max((time for time in times if time is not None), default=None)),
        phases_done=len(done),
        phases=len(run.plan.phases),
        accepted_code_change=tuple(p.name for p, seal in finished if seal.accepted_code_change),
        failures=failures,
        prospects=prospects,
    )


def outdated_phases(run: RunDirectory, finished: Sealed) -> list[Phase]:
    """Return the phases that were made with other parameters; none where nobody can tell."""
    try:
        return outdated(run, finished)
    except CorpuskitError:  # a model or an input is gone
        return []


def _state(
    at: str | None, failures: tuple[Failure, ...], *, is_open: bool, is_other: bool,
    is_running: bool,
) -> State:  # fmt: skip
    if at is None:
        return "finished"
    if is_running:
        return "running"
    if failures:
        return "failed"
    return "stopped" if is_open else "changed" if is_other else "finished"


def _sentence(
    run: RunDirectory, state: State, at: str | None, failures: tuple[Failure, ...], done: int
) -> str:
    num = len(run.plan.phases)
    if state == "finished":
        since = f" The code of corpuskit has changed since: another run begins at {at}."
        return f"Finished: all {num} phases.{since if at else ''}"
    if state == "changed":
        return (
            f"Finished, but phase {at} has other parameters, files or inputs than it was run with."
        )
    if state == "running":
        return f"Running: at phase {at}, {done} of {num} phases are finished."
    if state == "failed":
        tasks = "1 task" if len(failures) == 1 else f"{len(failures)} tasks"
        return f"Failed: {tasks}, the first of them in phase {failures[0].phase}."
    return f"Stopped before its end: at phase {at}, {done} of {num} phases are finished."


def _failures(run: RunDirectory, phase: Phase) -> Iterable[Failure]:
    times = [modified(run, name) for name in run.store.list(f"manifests/{phase.name}")
             if "/failed-" in name]  # fmt: skip
    known = [time for time in times if time is not None]
    for note in read_failures(run, phase):
        yield Failure(
            phase.name, span(note.units), note.error, note.log, note.code, note.host,
            iso(max(known, default=None)),
        )  # fmt: skip


def is_held(run: RunDirectory) -> bool:
    """Return whether somebody works on a run, without being in the way of who begins to.

    On a file system the kernel's table of locks says so (Linux); in object storage the lease of a
    killed holder lies there until another one takes it. Jobs that wait in Slurm count.
    """
    jobs = jobs_of(run)
    if any(one.is_alive for one in jobs.states) and not jobs.problem:
        return True
    if run.store.is_remote:
        [content] = run.store.read_each([LOCK])
        return not is_free(content)
    try:
        status = os.stat(run.store.where(LOCK))
        with open("/proc/locks", encoding="ascii") as file:
            held = [line for line in file if " FLOCK " in line and "->" not in line]
    except OSError:
        return False
    return any(f":{status.st_ino} " in line for line in held)


def modified(run: RunDirectory, name: str) -> float | None:
    """Return when a file was written; None in object storage, or if it is gone."""
    if run.store.is_remote:
        return None
    try:
        return os.stat(run.store.where(name)).st_mtime
    except OSError:
        return None


def iso(seconds: float | None) -> str | None:
    """Return a time as ISO 8601, UTC."""
    if seconds is None:
        return None
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _first(run: RunDirectory, finished: Sealed) -> float | None:
    """Return when the oldest seal or, if that is older, the plan was written."""
    names = [*(run.seal_name(phase) for phase, _ in finished), "inputs.json", "plan.json"]
    times = [modified(run, name) for name in names]
    return min((time for time in times if time is not None), default=None)

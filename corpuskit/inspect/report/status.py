"""How far a run is: finished, running, failed or stopped; what failed; when."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
from typing import TYPE_CHECKING, Any, Literal

from corpuskit.engine.context import COMPILING
from corpuskit.engine.failures import read_failures, span
from corpuskit.engine.jobs import jobs_of
from corpuskit.engine.status import funnel, outdated, overheads, prospects_of
from corpuskit.errors import CorpuskitError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from corpuskit.engine.phase import Prospect
    from corpuskit.engine.plan.compile import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import Sealed
    from corpuskit.formats.manifest import Seal


LOCK = "lock"

CODE = "its code changed"
"""Reason of a prospect that differs in nothing else."""

State = Literal["finished", "changed", "running", "failed", "stopped"]


@dataclasses.dataclass(frozen=True)
class TaskFailure:
    """A task that failed and has not succeeded since."""

    phase: str
    units: str
    error: str
    log: str
    code: int
    host: str
    at: str | None


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """How far a run is.

    Attributes:
        state: `finished`; `changed` (finished, but plan, files or code are other ones since);
            `running`; `failed`; or `stopped`, before its end and without a failure.
        phase: that it is at; None at its end.
        sentence: the same in words.
        began, ended: times of the plan and of the last seal; None in object storage.
        until: the stage after which the run stops (`--until`).
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
    failures: tuple[TaskFailure, ...]
    prospects: tuple[Prospect, ...]


def run_status(run: RunDirectory, finished: Sealed) -> RunStatus:
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
    if old and not is_open:  # it may come after one whose code alone has changed
        at = old[0].name
    is_other = bool(old) or any(one.reason != CODE for one in stale)
    state = _state(at, failures, is_open=bool(is_open), is_other=is_other, is_running=is_running)
    times = [modified(run, run.seal_name(phase)) for phase, _ in finished]
    return RunStatus(
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
    at: str | None, failures: tuple[TaskFailure, ...], *, is_open: bool, is_other: bool,
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
    run: RunDirectory, state: State, at: str | None, failures: tuple[TaskFailure, ...], done: int
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


def _failures(run: RunDirectory, phase: Phase) -> Iterable[TaskFailure]:
    times = [modified(run, name) for name in run.store.list(f"manifests/{phase.name}")
             if "/failed-" in name]  # fmt: skip
    known = [time for time in times if time is not None]
    for note in read_failures(run, phase):
        yield TaskFailure(
            phase.name, span(note.units), note.error, note.log, note.code, note.host,
            iso(max(known, default=None)),
        )  # fmt: skip


def is_held(run: RunDirectory) -> bool:
    """Return whether somebody works on a run, without being in the way of who begins to.

    On a file system the kernel's table of locks says so (Linux); in object storage the lease of a
    killed holder lies there until another one takes it. Jobs that wait in Slurm count.
    """
    jobs = jobs_of(run)
    if any(state.is_alive for state in jobs.states) and not jobs.problem:
        return True
    if run.store.is_remote:
        return run.store.exists(LOCK)
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


# ---------------------------------------------------------------- time, memory and disk

MAX_MANIFESTS = 512
"""Of a phase; with more of them, how long it took from first to last is not worked out."""


@dataclasses.dataclass(frozen=True)
class WrittenFiles:
    """Files of one role."""

    role: str
    files: int
    rows: int
    size_bytes: int


@dataclasses.dataclass(frozen=True)
class PhaseCost:
    """What a phase took.

    Attributes:
        state: `done`, `running` (the one that the run is at) or `waiting`.
        units, units_done: None where that is not known yet.
        task_wall_seconds: summed over tasks; elapsed_seconds: from the beginning of its first to
            the end of its last task, by the times of manifests.
        tasks: of a finished phase.
        text_bytes: read; None for passes that read keys.
        bytes_per_cpu_second: without the time in which kernels were compiled.
        peak_rss_bytes: of the largest worker, which may have grown in an earlier phase.
    """

    phase: str
    labels: tuple[str, ...]
    pass_name: str | None
    state: str
    units: int | None
    units_done: int | None
    tasks: int | None
    cpu_seconds: float | None
    task_wall_seconds: float | None
    elapsed_seconds: float | None
    text_bytes: int | None
    bytes_per_cpu_second: float | None
    peak_rss_bytes: float | None
    written: tuple[WrittenFiles, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        facts = dataclasses.asdict(self)
        return {"pass": facts.pop("pass_name"), **facts}


@dataclasses.dataclass(frozen=True)
class StageCost:
    """What a stage took, all passes together."""

    stage: str
    cpu_seconds: float
    text_bytes: int | None
    bytes_per_cpu_second: float | None
    documents: int | None


@dataclasses.dataclass(frozen=True)
class Resources:
    """Time, memory and disk; CPU seconds are those of tasks, the start of workers excluded."""

    cpu_seconds: dict[str, float]
    peak_rss_bytes: float
    phases: tuple[PhaseCost, ...]
    stages: tuple[StageCost, ...]
    disk: tuple[WrittenFiles, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "cpu_seconds": self.cpu_seconds,
            "peak_rss_bytes": self.peak_rss_bytes,
            "phases": [row.to_json() for row in self.phases],
            "stages": [dataclasses.asdict(row) for row in self.stages],
            "disk": [dataclasses.asdict(row) for row in self.disk],
        }


def resources(run: RunDirectory, finished: Sealed, state: RunStatus) -> Resources:
    """Return what the finished phases took, and how far the open ones are."""
    seals = {phase.index: seal for phase, seal in finished}
    over = overheads(run, finished)
    peaks = [seal.timing.get("peak_rss_bytes", 0.0) for seal in seals.values()]
    return Resources(
        cpu_seconds={
            "read": over.get("read", 0.0), "write": over.get("write", 0.0),
            "compiling": over.get("compiling", 0.0), "total": over.get("cpu_seconds", 0.0),
        },
        peak_rss_bytes=max(peaks, default=0.0),
        phases=tuple(
            _of_seal(run, phase, seals[phase.index])
            if phase.index in seals
            else _open(phase, state)
            for phase in run.plan.phases
        ),
        stages=tuple(
            StageCost(
                row.stage, row.cpu_seconds, row.text_bytes or None,
                _rate(row.text_bytes, row.cpu_seconds), row.num_in,
            )
            for row in funnel(run, finished)
            if row.state == "done" and not row.is_source
        ),
        disk=tuple(_written(seals.values())),
    )  # fmt: skip


def _of_seal(run: RunDirectory, phase: Phase, seal: Seal) -> PhaseCost:
    names = run.manifest_names(phase, seal.fingerprint)
    read = [v for k, v in seal.counters.items() if k.startswith("read_bytes/")]
    size = sum(read) if phase.is_stream else round(seal.timing.get("text_bytes", 0.0))
    cpu = seal.timing.get("cpu_seconds", 0.0)
    return PhaseCost(
        phase=phase.name,
        labels=phase.labels,
        pass_name=phase.pass_name or None,
        state="done",
        units=len(seal.units),
        units_done=len(seal.units),
        tasks=len(names),
        cpu_seconds=cpu,
        task_wall_seconds=seal.timing.get("wall_seconds", 0.0),
        elapsed_seconds=_elapsed(run, names),
        text_bytes=size or None,
        bytes_per_cpu_second=_rate(size, cpu - seal.timing.get(COMPILING, 0.0)),
        peak_rss_bytes=seal.timing.get("peak_rss_bytes"),
        written=tuple(_written([seal])),
    )


def _open(phase: Phase, state: RunStatus) -> PhaseCost:
    prospect = next(
        (open_phase for open_phase in state.prospects if open_phase.phase.name == phase.name), None
    )
    units = None if prospect is None else prospect.units
    left = None if prospect is None else prospect.units_left
    done = None if units is None or left is None else units - left
    word = "running" if state.state == "running" and state.phase == phase.name else "waiting"
    return PhaseCost(
        phase.name, phase.labels, phase.pass_name or None, word, units, done,
        None, None, None, None, None, None, None, (),
    )  # fmt: skip


def _elapsed(run: RunDirectory, names: list[str]) -> float | None:
    """Return the seconds between the beginning of the first task and the end of the last."""
    if not names or len(names) > MAX_MANIFESTS:
        return None
    begins, ends = [], []
    for name, content in zip(names, run.store.read_each(names), strict=True):
        end = modified(run, name)
        try:
            wall = float(json.loads(content or b"")["timing"]["wall_seconds"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        if end is None:
            return None
        begins.append(end - wall)
        ends.append(end)
    return max(ends) - min(begins)


def _rate(size: int, seconds: float) -> float | None:
    return size / seconds if size and seconds > 0 else None


def _written(seals: Iterable[Seal]) -> list[WrittenFiles]:
    """Return files by role; of several runs of one kind (`run:rows-web`) only the kind is named."""
    by_role: dict[str, WrittenFiles] = {}
    for seal in seals:
        for parts in seal.parts.roles():
            role = "file" if parts.role.startswith(("file:", "copy:")) else parts.role
            one = by_role.get(role, WrittenFiles(role, 0, 0, 0))
            by_role[role] = WrittenFiles(
                role,
                one.files + len(parts),
                one.rows + int(parts.column("rows").sum()),
                one.size_bytes + int(parts.column("size_bytes").sum()),
            )
    return sorted(by_role.values(), key=lambda one: (-one.size_bytes, one.role))

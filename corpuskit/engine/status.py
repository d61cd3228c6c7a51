"""The state of a run, read from its directory: state, funnel, accounts, jobs and integrity."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import os
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Literal

from corpuskit.engine.compiling import COMPILING
from corpuskit.engine.fingerprint import same_but_code
from corpuskit.engine.phase import CODE_CHANGED, describe_units, phase_statuses, read_failures
from corpuskit.errors import CorpuskitError, UsageError
from corpuskit.formats.manifest import NOT_APPLIED
from corpuskit.stage import Source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corpuskit.engine.config import Step
    from corpuskit.engine.executors.slurm import JobState
    from corpuskit.engine.phase import FailureRecord, PhaseStatus
    from corpuskit.engine.plan import Phase
    from corpuskit.engine.progress import RunState
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Seal

StageState = Literal["done", "waiting", "not run"]


@dataclasses.dataclass(frozen=True)
class FunnelRow:
    """What was read of one source, or what one stage did.

    Attributes:
        stage: label of the source or the stage.
        kind: `source`, or that of the stage: `filter`, `dedup`, ...
        name: format of the source; registered name of the stage.
        state: `done`, `waiting` (for the rest of the run), or `not run` (after `--until`).
        num_in, num_out: documents before and after; None unless the state is `done`.
        sources: source -> (documents before, documents after); empty unless the state is `done`.
        dropped: rule -> source -> documents.
        changed: rule -> documents that were cut or rewritten.
        cpu_seconds: spent in the stage, all passes.
        text_bytes: seen by the stage, in all passes.
        not_applied: source -> documents that passed, since the stage does not apply to them.
    """

    stage: str
    kind: str
    name: str
    state: StageState
    num_in: int | None
    num_out: int | None
    sources: dict[str, tuple[int, int]]
    dropped: dict[str, dict[str, int]]
    changed: dict[str, int]
    cpu_seconds: float = 0.0
    text_bytes: int = 0
    not_applied: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def is_source(self) -> bool:
        return self.kind == "source"

    @property
    def num_lost(self) -> int:
        """Documents that were dropped."""
        return sum(sum(by_source.values()) for by_source in self.dropped.values())


@dataclasses.dataclass(frozen=True)
class Account:
    """Where the documents of one source are: read = kept + dropped, or rows are lost.

    `num_kept` is counted in the last document shards, `num_dropped` in the ledger.
    """

    source: str
    num_read: int
    num_dropped: int
    num_kept: int

    @property
    def num_missing(self) -> int:
        """Documents that are neither kept nor in the ledger."""
        return self.num_read - self.num_dropped - self.num_kept


@dataclasses.dataclass(frozen=True)
class Verification:
    """The result of `verify`."""

    num_files: int
    size_bytes: int
    problems: list[str]
    notes: list[str]


_NAMED = ("documents", "tokens", "ledger", "measures", "profile", "ids", "holdout", "mix")
"""Folders whose files seals must name."""

Sealed = list[tuple["Phase", "Seal"]]
"""Finished phases with their seals."""


def sealed(run: RunDirectory) -> Sealed:
    """Return the finished phases whose seals belong together, whatever changed since."""
    finished: dict[int, tuple[Phase, Seal]] = {}
    for phase in run.plan.phases:
        if set(phase.waits) <= finished.keys():
            seal = run.read_seal(phase)
            seals = {index: finished[index][1] for index in phase.waits}
            if seal is not None and seal.inputs == run.input_contents(phase, seals):
                finished[phase.index] = (phase, seal)
    return list(finished.values())


def funnel(run: RunDirectory, finished: Sealed) -> list[FunnelRow]:
    """Return what was read of every source, then what every stage dropped and cost, in plan order.

    Args:
        finished: what `sealed` returns; seals of large runs are large, so callers read them once.
    """
    counters: Counter[str] = Counter()
    timing: defaultdict[str, float] = defaultdict(float)
    for phase, seal in finished:
        for name, value in seal.counters.items():
            if name.startswith("read/") and phase.base is not None:
                continue
            counters[name] += value
        for name, seconds in seal.timing.items():
            timing[_timing_name(phase, name)] += seconds
    effects = _effects(counters)
    rows = []
    alive: dict[str, int] = {}
    for step, state in stage_states(run, finished):
        is_source = isinstance(step.stage, Source)
        owner = step.name if is_source else step.label
        dropped = effects.get(("dropped", owner), {})
        changed = {**effects.get(("cut", owner), {}), **effects.get(("replace", owner), {})}
        if is_source:
            alive[step.label] = counters[f"read/{step.label}"]
            dropped, changed = (_of_source(by_rule, step.label) for by_rule in (dropped, changed))
        before = {step.label: alive[step.label]} if is_source else dict(alive)
        for by_source in dropped.values():
            for source, num in by_source.items():
                alive[source] -= num
        sources = {source: (num, alive[source]) for source, num in before.items()}
        is_done = state == "done"
        rows.append(
            FunnelRow(
                stage=step.label,
                kind=step.kind,
                name=step.name,
                state=state,
                num_in=sum(before.values()) if is_done else None,
                num_out=sum(num for _, num in sources.values()) if is_done else None,
                sources=sources if is_done else {},
                dropped=dropped,
                changed={rule: sum(by_source.values()) for rule, by_source in changed.items()},
                cpu_seconds=0.0 if is_source else timing[f"cpu_seconds/{step.label}"],
                text_bytes=0 if is_source else int(timing[f"text_bytes/{step.label}"]),
                not_applied=_not_applied(step, before if is_done else {}, counters),
            )
        )
    return rows


def stage_states(run: RunDirectory, finished: Sealed) -> list[tuple[Step, StageState]]:
    """Return every source and every stage, in plan order, and how far it is."""
    indices = {phase.index for phase, _ in finished}
    states: list[tuple[Step, StageState]] = [
        (step, "done" if 0 in indices else "waiting") for step in run.plan.file.sources
    ]
    for step in run.plan.file.steps:
        phases = {phase.index for phase in run.plan.phases if step.label in phase.labels}
        if not phases and run.plan.until is not None:
            states.append((step, "not run"))
        else:
            states.append((step, "done" if phases <= indices else "waiting"))
    return states


def overheads(finished: Sealed) -> dict[str, float]:
    """Return CPU seconds of reading, writing and compiling, and of everything but starting up."""
    names = ("cpu_seconds/read", "cpu_seconds/write", COMPILING, "cpu_seconds")
    return {
        name.rpartition("/")[2]: sum(seal.timing.get(name, 0.0) for _, seal in finished)
        for name in names
    }


def accounts(run: RunDirectory, finished: Sealed) -> list[Account]:
    """Return, per source, documents read, dropped and kept so far.

    Kept are the rows of the last document shards (or packed documents), less what later masks drop.
    """
    read: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    num_kept: Counter[str] = Counter()
    for phase, seal in finished:
        for name, value in seal.counters.items():
            source = name.rpartition("/")[2]
            if name.startswith("read/") and phase.base is None:
                read[source] += value
            elif name.startswith("dropped/"):
                dropped[source] += value
        if phase.is_stream:
            num_kept = Counter()
            for part in seal.by_role("documents"):
                num_kept[part.source] += part.rows
            for step in run.plan.file.sources:  # packed: there are no document parts
                num_kept[step.label] += seal.counters.get(f"documents/{step.label}", 0)
        else:
            for name, value in seal.counters.items():
                if name.startswith("dropped/"):
                    num_kept[name.rpartition("/")[2]] -= value
    return [Account(s, read[s], dropped[s], num_kept[s]) for s in sorted(read)]


def verify(run: RunDirectory) -> Verification:
    """Compare every file with its seal; find missing, changed and unnamed files."""
    from corpuskit.engine.mixture import edit_problems  # loads the loader, which others do without

    problems: list[str] = []
    paths: set[str] = set()
    size = 0
    sealed_phases = sealed(run)
    for _, seal in sealed_phases:
        for part in itertools.chain.from_iterable(seal.kept()):
            paths.add(part.path)
            part_bytes = run.store.size(part.path)
            if part_bytes is None:
                problems.append(f"{part.path}: missing.")
                continue
            size += part.size_bytes
            if part_bytes != part.size_bytes:
                problems.append(f"{part.path}: {part_bytes} bytes, not {part.size_bytes}.")
            elif run.store.digest(part.path) != part.digest:
                problems.append(
                    f"{part.path}: the content is not what was written. Delete it, run again."
                )
    finished = {phase.name for phase, _ in sealed_phases}
    problems += [
        f"phase {phase.name}: not finished."
        for phase in run.plan.phases
        if phase.name not in finished
    ]
    if not problems:
        for folder in () if run.plan.until else _NAMED:
            extra = [name for name in run.store.list(folder) if name not in paths]
            problems += [f"{name}: no seal names it." for name in extra]
        problems += [
            f"source {account.source}: {account.num_missing} documents are neither kept nor in the "
            "ledger."
            for account in accounts(run, sealed_phases)
            if account.num_missing
        ]
        problems += edit_problems(run)
    notes = [
        f"phase {phase.name}: made with other parameters, inputs, files or libraries than the plan "
        "now names. Run again to bring it up to date."
        for phase in outdated(run, sealed_phases)
    ]
    return Verification(len(paths), size, problems, notes)


def outdated(run: RunDirectory, finished: Sealed) -> list[Phase]:
    """Return the finished phases that were made with other parameters than the plan now has.

    Or with other inputs, files or libraries; code does not count. The plan does not describe how
    their results were made.
    """
    return [
        phase
        for phase, seal in finished
        if not same_but_code(seal.fingerprint, run.fingerprint(phase))
    ]


def run_facts(run: RunDirectory) -> dict[str, Any]:
    """Return what `corpuskit status` shows, without jobs and failures, as JSON values."""
    from corpuskit.engine.mixture import mixture, packing

    finished = sealed(run)
    mix = mixture(run, finished)
    peak = max((seal.timing.get("peak_rss_bytes", 0.0) for _, seal in finished), default=0.0)
    return {
        "directory": run.store.address,
        "phases": [status.to_json() for status in phase_statuses(run, trust=True)],
        "funnel": [dataclasses.asdict(row) for row in funnel(run, finished)],
        "accounts": [
            {**dataclasses.asdict(account), "num_missing": account.num_missing}
            for account in accounts(run, finished)
        ],
        "packing": [dataclasses.asdict(row) for row in packing(finished)],
        "mixture": None if mix is None else mix.facts(),
        "cpu_seconds": overheads(finished),
        "peak_rss_bytes": peak,
    }


def _not_applied(
    step: Step, before: Mapping[str, int], counters: Mapping[str, int]
) -> dict[str, int]:
    """Return source -> documents that came to a stage that does not apply to them."""
    if not step.applies.is_limited:
        return {}
    skipped = {
        source: counters.get(f"{NOT_APPLIED}{step.label}/{source}", 0)
        if step.applies.to_source(source)
        else num
        for source, num in before.items()
    }
    return {source: num for source, num in skipped.items() if num}


def _timing_name(phase: Phase, name: str) -> str:
    """Charge what a pass of a global stage costs and reads to its stage."""
    if not phase.is_stream:
        if name == f"cpu_seconds/{phase.name}":
            return f"cpu_seconds/{phase.labels[0]}"
        if name == "text_bytes":
            return f"text_bytes/{phase.labels[0]}"
    return name


def _of_source(by_rule: dict[str, dict[str, int]], source: str) -> dict[str, dict[str, int]]:
    return {rule: {source: counts[source]} for rule, counts in by_rule.items() if source in counts}


def _effects(counters: Mapping[str, int]) -> dict[tuple[str, str], dict[str, dict[str, int]]]:
    """Return what each rule did, by source: (action, stage or format) -> rule -> source -> count.

    One pass for all stages: a barrier judges each phase, and runs have hundreds of counters.
    """
    actions = ("dropped/", "cut/", "replace/")
    effects: dict[tuple[str, str], dict[str, dict[str, int]]] = {}
    for name in sorted(name for name in counters if name.startswith(actions)):
        action, owner, rule, source = name.split("/", 3)
        effects.setdefault((action, owner), {}).setdefault(rule, {})[source] = counters[name]
    return effects


@dataclasses.dataclass(frozen=True)
class Jobs:
    """The jobs of a run in Slurm; `problem`: why Slurm could not be queried, if so."""

    states: tuple[JobState, ...]
    problem: str = ""

    def describe(self, state: JobState) -> str:
        return "unknown" if self.problem else state.description

    def facts(self) -> dict[str, Any]:
        jobs = [
            {
                **dataclasses.asdict(state.job), "elements": state.elements,
                "reasons": state.reasons,
                "is_alive": None if self.problem else state.is_alive,
                "is_blocked": state.is_hopeless, "words": self.describe(state),
            }
            for state in self.states
        ]  # fmt: skip
        return {"jobs": jobs, "jobs_problem": self.problem}


def jobs_of(run: RunDirectory) -> Jobs:
    """Return what Slurm knows of a run's jobs; without Slurm, what is known here."""
    from corpuskit.engine.executors.slurm import JobState, job_states, read_jobs

    jobs = read_jobs(run.store)
    try:
        return Jobs(tuple(job_states(jobs)))
    except UsageError as error:
        return Jobs(tuple(JobState(job, {}, ()) for job in jobs), str(error))


def failures_of(run: RunDirectory) -> list[FailureRecord]:
    """Return the tasks that failed and have not succeeded since."""
    return [record for phase in run.plan.phases for record in read_failures(run, phase)]


# ---------------------------------------------------------------- the state of the whole run


@dataclasses.dataclass(frozen=True)
class ReportedFailure:
    """A task that failed and has not succeeded since; `at`: when the last one of its phase did."""

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
        until: the last stage that the run was to execute.
    """

    name: str
    directory: str
    pipeline: str
    seed: int
    until: str | None
    state: RunState
    phase: str | None
    sentence: str
    began: str | None
    ended: str | None
    phases_done: int
    phases: int
    accepted_code_change: tuple[str, ...]
    failures: tuple[ReportedFailure, ...]
    phase_statuses: tuple[PhaseStatus, ...]


def run_status(run: RunDirectory, finished: Sealed) -> RunStatus:
    """Return how far a run is."""
    from corpuskit.engine.monitor import heartbeat  # plans do without it

    try:
        statuses = tuple(phase_statuses(run, trust=True))
    except CorpuskitError:  # a model or an input is gone: what is sealed is still there
        statuses = ()
    failures = tuple(row for phase in run.plan.phases for row in _reported_failures(run, phase))
    settings, num = run.plan.settings, len(run.plan.phases)
    sealed_names = {phase.name for phase, _ in finished}
    unfinished = [phase.name for phase in run.plan.phases if phase.name not in sealed_names]
    stale = [status for status in statuses if status.state not in ("reuse", "later")]
    current = stale[0].phase.name if stale else unfinished[0] if unfinished else None
    is_running = current is not None and heartbeat(run.store).is_alive is True
    outdated_now = outdated_phases(run, finished)
    if outdated_now and not unfinished:  # it may come after one whose code alone has changed
        current = outdated_now[0].name
    state: RunState = "finished"
    sentence = f"Finished: all {num} phases."
    progress = f"at phase {current}, {len(sealed_names)} of {num} phases are finished."
    if is_running:
        state = "running"
        sentence = f"Running: {progress}"
    elif current is not None and failures:
        tasks = "1 task" if len(failures) == 1 else f"{len(failures)} tasks"
        state = "failed"
        sentence = f"Failed: {tasks}, the first of them in phase {failures[0].phase}."
    elif unfinished:
        state = "stopped"
        sentence = f"Stopped before its end: {progress}"
    elif outdated_now or any(status.reason != CODE_CHANGED for status in stale):
        state = "changed"
        sentence = (
            f"Finished, but phase {current} has other parameters, files or inputs than it was run "
            "with."
        )
    elif current:
        sentence += f" The code of corpuskit has changed since: another run begins at {current}."
    times = [modified(run, run.seal_name(phase)) for phase, _ in finished]
    return RunStatus(
        name=settings.name,
        directory=run.store.address,
        pipeline=run.plan.file.path,
        seed=settings.seed,
        until=run.plan.until,
        state=state,
        phase=None if state == "finished" else current,
        sentence=sentence,
        began=iso(_first_written(run, finished)),
        ended=iso(max((time for time in times if time is not None), default=None)),
        phases_done=len(sealed_names),
        phases=num,
        accepted_code_change=tuple(p.name for p, seal in finished if seal.accepted_code_change),
        failures=failures,
        phase_statuses=statuses,
    )


def outdated_phases(run: RunDirectory, finished: Sealed) -> list[Phase]:
    """Return the phases that were made with other parameters; none where that cannot be known."""
    try:
        return outdated(run, finished)
    except CorpuskitError:  # a model or an input is gone
        return []


def _reported_failures(run: RunDirectory, phase: Phase) -> list[ReportedFailure]:
    names = (n for n in run.store.list(f"manifests/{phase.name}") if "/failed-" in n)
    times = [time for name in names if (time := modified(run, name)) is not None]
    last = iso(max(times, default=None))
    return [
        ReportedFailure(
            phase.name, describe_units(record.units), record.error, record.log, record.code,
            record.host, last,
        )
        for record in read_failures(run, phase)
    ]  # fmt: skip


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


def _first_written(run: RunDirectory, finished: Sealed) -> float | None:
    """Return when the oldest seal or, if that is older, the plan was written."""
    names = [*(run.seal_name(phase) for phase, _ in finished), "inputs.json", "plan.json"]
    times = [modified(run, name) for name in names]
    return min((time for time in times if time is not None), default=None)

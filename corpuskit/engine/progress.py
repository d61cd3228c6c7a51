"""Progress of a run: phases, tasks, documents, the funnel so far, and the time left.

`PhaseCount` counts the manifests of the current phase; each is read once. `Tracker` adds what the
process that runs the plan, or a monitor outside of it, reports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from corpuskit.engine.eta import Forecast, left_of_tasks
from corpuskit.engine.phase import cut_tasks, cut_units
from corpuskit.engine.resources import estimate_resources
from corpuskit.engine.rundir import manifest_name
from corpuskit.errors import DataError
from corpuskit.formats.manifest import Manifest, total

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from corpuskit.engine.config import Step
    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Seal
    from corpuskit.stage import Unit

COMPILE_SECONDS = 15.0
"""The slowest kernel compiles for about this long: the note is repeated when the next begins."""

PhaseState = Literal["waiting", "running", "done", "reused", "failed"]
RunState = Literal["running", "finished", "changed", "failed", "stopped"]


@dataclasses.dataclass(frozen=True)
class StageSoFar:
    """What was kept of a source, or what a stage has let pass, of the documents it has seen.

    Attributes:
        kind: `source`, `filter`, `dedup`, ...
        is_final: it has seen all.
    """

    stage: str
    kind: str
    num_in: int
    num_out: int
    is_final: bool

    @property
    def kept_ratio(self) -> float:
        return self.num_out / self.num_in if self.num_in else 1.0


@dataclasses.dataclass(frozen=True)
class PhaseCounters:
    """The counters of a phase, final or so far; `rows` of the units that are done."""

    counters: Mapping[str, int]
    rows: int = 0
    is_final: bool = True


class PhaseCount:
    """Counts the manifests of a phase as they appear."""

    def __init__(self, run: RunDirectory, phase: Phase, fingerprint: str) -> None:
        self.run, self.phase, self.fingerprint = run, phase, fingerprint
        self.units = {unit.number: unit for unit in cut_units(run, phase)}
        cut = cut_tasks(
            phase, fingerprint, list(self.units.values()), run.plan.settings.executor.tasks
        )
        self._tasks = {manifest_name(phase, task): task.units for task in cut}
        weights = _weights(run, phase, list(self.units.values()))
        self._weights = dict(zip(self.units, weights, strict=True))
        self._total = sum(weights)
        self._read_names: set[str] = set()
        self._done: set[int] = set()
        self._is_cut_otherwise = False
        self.counters: Counter[str] = Counter()
        self.num_tasks, self.tasks_done = len(cut), 0
        self.weight = self.rows = self.unit_bytes = 0
        self.task_seconds = self.longest_seconds = 0.0
        self.failed: tuple[str, ...] = ()
        """Names of the files about failed tasks."""

    @property
    def documents(self) -> int:
        return total(self.counters, "read/") if self.phase.is_stream else self.rows

    @property
    def text_bytes(self) -> int:
        return total(self.counters, "read_bytes/") if self.phase.is_stream else self.unit_bytes

    @property
    def is_complete(self) -> bool:
        """Whether every unit is in some manifest."""
        return len(self._done) == len(self.units)

    def look(self) -> bool:
        """Read the manifests that are new; return whether there were any."""
        listed = self.run.store.list(f"manifests/{self.phase.name}")
        self.failed = tuple(name for name in listed if "/failed-" in name)
        prefix = f"/{self.fingerprint}/task-"
        new = [name for name in listed if prefix in name and name not in self._read_names]
        for name, content in zip(new, self.run.store.read_each(new), strict=True):
            with contextlib.suppress(DataError):  # damaged: the phase rebuilds it
                if content is not None:
                    self._add(name, Manifest.from_json(content, name))
                    self._read_names.add(name)
        if self._is_cut_otherwise:
            self.tasks_done = sum(self._done.issuperset(units) for units in self._tasks.values())
        return bool(new)

    def share(self, more_bytes: int = 0) -> float:
        """Return how much of the phase is done, by text if its units have any.

        Args:
            more_bytes: of text, read for tasks that are not done.
        """
        if not self._total:
            return 1.0
        # What a packed file holds is an estimate until some of it was read.
        scale = self.weight / self.text_bytes if self.weight and self.text_bytes else 1.0
        extra = min(more_bytes * scale, 0.95 * (self._total - self.weight))
        return min((self.weight + extra) / self._total, 1.0)

    def counters_so_far(self) -> PhaseCounters:
        return PhaseCounters(self.counters, self.rows, is_final=False)

    def _add(self, name: str, manifest: Manifest) -> None:
        if not self._done.isdisjoint(manifest.units):
            return  # another attempt, of a run that cut otherwise
        self._done.update(manifest.units)
        if name in self._tasks:
            self.tasks_done += 1
        else:
            self._is_cut_otherwise = True
        self.counters.update(manifest.counted())
        for number in manifest.units:
            if (unit := self.units.get(number)) is not None:
                self.weight += self._weights[number]
                self.rows += unit.rows
                self.unit_bytes += unit.text_bytes
        seconds = manifest.timing.get("wall_seconds", 0.0)
        self.task_seconds += seconds
        self.longest_seconds = max(self.longest_seconds, seconds)


def funnel_so_far(
    run: RunDirectory, counters: Mapping[int, PhaseCounters]
) -> tuple[StageSoFar, ...]:
    """Return what was read of every source and what stages have done so far, in plan order.

    For finished phases this equals `status.funnel`; a stage of a running phase is measured by the
    documents that the phase has read so far.

    Args:
        counters: by index of the phase.
    """
    sources: list[StageSoFar] = []
    stages: dict[str, StageSoFar] = {}
    kinds = {step.label: step.kind for step in run.plan.file.steps}
    alive = 0
    for phase in run.plan.phases:
        count = counters.get(phase.index)
        if count is None:
            break
        if phase.base is None:
            sources = [_source(step, count) for step in run.plan.file.sources]
            alive = num_in = sum(row.num_out for row in sources)
        else:
            num_in = alive if count.is_final else total(count.counters, "read/")
        for label in phase.labels:
            dropped = total(count.counters, f"dropped/{label}/")
            if phase.is_stream:
                rest = num_in - dropped
                stages[label] = StageSoFar(label, kinds[label], num_in, rest, count.is_final)
                num_in = rest
            else:
                stages[label] = _pass(stages.get(label), label, kinds[label], alive, dropped, count)
            alive -= dropped if count.is_final else 0
        if not count.is_final:
            break
    labels = (step.label for step in run.plan.file.steps)  # phases have another order
    return (*sources, *(stages[label] for label in labels if label in stages))


def _source(step: Step, count: PhaseCounters) -> StageSoFar:
    """Return what was read of a source, less what was rejected."""
    num_read = count.counters.get(f"read/{step.label}", 0)
    rejected = sum(
        num
        for name, num in count.counters.items()
        if name.startswith(f"dropped/{step.name}/") and name.endswith(f"/{step.label}")
    )
    return StageSoFar(step.label, "source", num_read, num_read - rejected, count.is_final)


def _pass(
    row: StageSoFar | None, label: str, kind: str, alive: int, dropped: int, count: PhaseCounters
) -> StageSoFar:
    """Return what a global stage has done, with one more of its passes."""
    if count.is_final:
        num_in = alive if row is None else row.num_in
        return StageSoFar(label, kind, num_in, alive - dropped, is_final=True)
    num_in = min(count.rows, alive) if dropped else alive
    return StageSoFar(label, kind, num_in, num_in - dropped, is_final=False)


def _weights(run: RunDirectory, phase: Phase, units: Sequence[Unit]) -> list[int]:
    """Return how much work each unit is: its text; without any text all are equal."""
    if phase.base is None:
        sizes = [
            sum(run.plan.source(file.source).text_size(file, piece)[0] for file, piece in pieces)
            for pieces in run.inputs.units.values()
        ]
    else:
        sizes = [unit.text_bytes for unit in units]
    return [max(size, 1) for size in sizes] if any(sizes) else [1] * len(units)


@dataclasses.dataclass(frozen=True)
class PhaseProgress:
    """How far a phase is.

    Attributes:
        tasks: all of them, whoever did them; 0 = not known yet.
        documents, text_bytes: read so far.
        share: of the work, between 0 and 1.
        is_empty: it ended with nothing to do.
    """

    name: str
    stages: tuple[str, ...]
    state: PhaseState
    tasks: int = 0
    tasks_done: int = 0
    documents: int = 0
    text_bytes: int = 0
    share: float = 0.0
    seconds: float = 0.0
    is_empty: bool = False


@dataclasses.dataclass(frozen=True)
class RunProgress:
    """How far a run is.

    Attributes:
        current: the phase that runs, or is about to; None when the run is finished.
        bytes_per_second: of text, in the current phase; 0 = not known.
        seconds: since the run began, as far as that is known.
        phase_seconds_left, seconds_left: None = not known yet.
        quiet_seconds: since a task was finished, or a phase begun.
        note: one line about what hinders the run, if anything.
    """

    name: str
    state: RunState
    phases: tuple[PhaseProgress, ...]
    current: PhaseProgress | None
    funnel: tuple[StageSoFar, ...]
    bytes_per_second: float
    seconds: float
    phase_seconds_left: float | None
    seconds_left: float | None
    tasks_failed: int
    tasks_retried: int
    quiet_seconds: float
    note: str = ""

    def facts(self) -> dict[str, Any]:
        facts = dataclasses.asdict(self)
        facts["funnel"] = [
            {**dataclasses.asdict(row), "kept_ratio": round(row.kept_ratio, 6)}
            for row in self.funnel
        ]
        return {k: round(v, 3) if isinstance(v, float) else v for k, v in facts.items()}


class Tracker:
    """Collects the progress of a running run.

    Args:
        clock: seconds, of any clock.
        seconds: for how long the run has been going.
    """

    def __init__(
        self, run: RunDirectory, clock: Callable[[], float] = time.monotonic, seconds: float = 0.0
    ) -> None:
        self.run, self._clock = run, clock
        self._began = clock() - seconds
        self.count: PhaseCount | None = None
        self._phases = {
            phase.index: PhaseProgress(phase.name, phase.labels, "waiting")
            for phase in run.plan.phases
        }
        self._counters: dict[int, PhaseCounters] = {}
        self._forecast = Forecast(self._began)
        self._entered = self._changed = self._began
        self._before = self._reported = (0, 0)
        self.failed = self.retried = 0
        self._is_late = False
        self._compiling, self._compiled = "", 0.0

    def begin(self, phase: Phase, fingerprint: str) -> None:
        """Note that a phase runs from now on, with what is done of it already."""
        now = self._clock()
        self.count = count = PhaseCount(self.run, phase, fingerprint)
        count.look()
        self._before = (count.documents, count.text_bytes)
        self._reported = (0, 0)
        self._entered = self._changed = now
        self.failed = self.retried = 0
        self._is_late = count.tasks_done > 0
        self._forecast.begin(now, phase.name, count.share())
        self._expect(phase)

    def read(self, documents: int, text_bytes: int) -> None:
        """Note what was read of the phase, perhaps for tasks that are not done yet."""
        if self.count is not None and self.count.phase.role != "documents":
            documents = 0  # these are rows of tokens
        self._reported = (self._reported[0] + documents, self._reported[1] + text_bytes)

    def compiles(self, words: str) -> None:
        """Note that kernels are compiled, for COMPILE_SECONDS."""
        self._compiling, self._compiled = words, self._clock()
        if self.count is not None:
            self._forecast.restart(self._compiled, self._share())

    def look(self) -> None:
        if self.count is not None and self.count.look():
            self._changed = self._clock()
            self._forecast.note(self._changed, self._share())

    def end(self, phase: Phase, seal: Seal, state: PhaseState = "done") -> None:
        """Note that a phase is finished; its time is known only if `begin` was called for it."""
        now = self._clock()
        row = dataclasses.replace(self._phases[phase.index], state=state, share=1.0)
        if self.count is not None and state == "done":
            row = dataclasses.replace(self._running(now, "done"), share=1.0)
            row = dataclasses.replace(row, tasks_done=row.tasks)
            if self._is_late:  # another process began it: these are not the seconds of all its text
                row = dataclasses.replace(row, seconds=0.0)
            self._forecast.end(now, is_measured=not self._is_late)
        self._phases[phase.index] = dataclasses.replace(
            row,
            is_empty=not len(seal.units),
            documents=total(seal.counters, "read/") or row.documents,
            text_bytes=total(seal.counters, "read_bytes/") or row.text_bytes,
        )
        self._counters[phase.index] = PhaseCounters(seal.counters)
        self.count, self._changed = None, now

    def progress(self, state: RunState = "running", note: str = "") -> RunProgress:
        now = self._clock()
        counters = dict(self._counters)
        current = next(
            (i for i, row in self._phases.items() if row.state in {"waiting", "failed"}), None
        )
        phases = dict(self._phases)
        speed, phase_left, run_left = 0.0, None, None
        if self.count is not None:
            current = self.count.phase.index
            phases[current] = self._running(now, "failed" if state == "failed" else "running")
            counters[current] = self.count.counters_so_far()
            self._forecast.note(now, phases[current].share)
            speed = self._speed(now, phases[current].text_bytes)
            if state == "running":
                phase_left, run_left = self._seconds_left(now)
        return RunProgress(
            name=self.run.plan.settings.name, state=state, phases=tuple(phases.values()),
            current=None if current is None else phases[current],
            funnel=funnel_so_far(self.run, counters), bytes_per_second=speed,
            seconds=now - self._began, phase_seconds_left=phase_left, seconds_left=run_left,
            tasks_failed=self.failed, tasks_retried=self.retried,
            quiet_seconds=self.quiet_seconds(), note=note or self._compile_note(now),
        )  # fmt: skip

    def quiet_seconds(self) -> float:
        """Return how long no task has been finished, and no phase begun or ended."""
        return self._clock() - self._changed

    def _compile_note(self, now: float) -> str:
        is_over = self.count is None or now - self._compiled > COMPILE_SECONDS
        return "" if is_over else self._compiling

    def _running(self, now: float, state: PhaseState) -> PhaseProgress:
        count = self.count
        assert count is not None, "called while a phase runs"
        documents, size = (
            max(committed, had + reported)
            for committed, had, reported in zip(
                (count.documents, count.text_bytes), self._before, self._reported, strict=True
            )
        )
        return PhaseProgress(
            count.phase.name, count.phase.labels, state, count.num_tasks, count.tasks_done,
            documents, size, self._share(), now - self._entered,
        )  # fmt: skip

    def _share(self) -> float:
        assert self.count is not None, "called while a phase runs"
        unfinished = self._before[1] + self._reported[1] - self.count.text_bytes
        return self.count.share(max(unfinished, 0))

    def _speed(self, now: float, text_bytes: int) -> float:
        seconds = now - self._entered
        return (text_bytes - self._before[1]) / seconds if seconds >= 1 else 0.0

    def _expect(self, phase: Phase) -> None:
        """Work out how long this phase and later ones should take, before any is measured."""
        num_workers = self.num_workers()
        for need in estimate_resources(self.run, phase.index):
            busy = max(min(num_workers, need.units), 1)
            self._forecast.expected[need.phase] = need.cpu_seconds / busy

    def num_workers(self) -> int:
        executor = self.run.plan.settings.executor
        slots = executor.slurm.slots if executor.kind == "slurm" else 1
        return executor.processes * slots

    def _seconds_left(self, now: float) -> tuple[float | None, float | None]:
        """Return about how many seconds this phase, and the whole run, will still take."""
        count = self.count
        assert count is not None, "called while a phase runs"
        waiting = [row.name for index, row in self._phases.items() if index > count.phase.index]
        fallback = None
        if self._is_late:
            fallback = left_of_tasks(count.task_seconds, count.share(), self.num_workers())
        return self._forecast.seconds_left(now, waiting, fallback)

"""How far a run is that runs: phases, tasks, documents, funnel so far, and how long to go.

`Tracker` is told what happens, by the process that runs the plan or by one that looks on
(`watching`), and says how things stand.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any, Literal

from corpuskit.engine.counting import Counted, PhaseCount, StageSoFar, funnel_so_far
from corpuskit.engine.eta import Forecast, left_of_tasks
from corpuskit.engine.needs import needs_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from corpuskit.engine.needs import PastPhases
    from corpuskit.engine.plan.compile import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Seal

COMPILE_SECONDS = 15.0
"""The slowest kernel compiles for about so long: it is said again when the next one begins."""

PhaseState = Literal["waiting", "running", "done", "reused", "failed"]
RunState = Literal["running", "finished", "failed", "stopped"]


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
class Progress:
    """How far a run is.

    Attributes:
        current: the phase that runs, or is about to; None when the run is finished.
        bytes_per_second: of text, in the current phase; 0 = not known.
        seconds: since the run began, as far as that is known.
        phase_seconds_left, seconds_left: None = nothing can be said yet.
        quiet_seconds: since a task was finished, or a phase begun.
        note: what else there is to say, in one line.
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
        """Return the same as JSON values."""
        found = dataclasses.asdict(self)
        found["funnel"] = [
            {**dataclasses.asdict(one), "kept_ratio": round(one.kept_ratio, 6)}
            for one in self.funnel
        ]
        return {k: round(v, 3) if isinstance(v, float) else v for k, v in found.items()}


class Tracker:
    """Keeps what is known of a run that runs.

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
        self._counted: dict[int, Counted] = {}
        self._past: PastPhases = {}
        self._forecast = Forecast(self._began)
        self._entered = self._changed = self._began
        self._before = self._heard = (0, 0)
        self.failed = self.retried = 0
        self._is_late = False
        self._compiling, self._compiled = "", 0.0

    def begin(self, phase: Phase, mark: str) -> None:
        """Note that a phase runs from now on, with what is done of it already."""
        now = self._clock()
        self.count = count = PhaseCount(self.run, phase, mark)
        count.look()
        self._before = (count.documents, count.text_bytes)
        self._heard = (0, 0)
        self._entered = self._changed = now
        self.failed = self.retried = 0
        self._is_late = count.tasks_done > 0
        self._forecast.begin(now, phase.name, count.share())
        self._expect(phase)

    def read(self, documents: int, text_bytes: int) -> None:
        """Note what was read of the phase, perhaps for tasks that are not done yet."""
        if self.count is not None and self.count.phase.role != "documents":
            documents = 0  # these are rows of tokens
        self._heard = (self._heard[0] + documents, self._heard[1] + text_bytes)

    def compiles(self, words: str) -> None:
        """Note that kernels are compiled, for COMPILE_SECONDS."""
        self._compiling, self._compiled = words, self._clock()
        if self.count is not None:
            self._forecast.compiles(self._compiled, self._share())

    def look(self) -> None:
        """Count the manifests that are new."""
        if self.count is not None and self.count.look():
            self._changed = self._clock()
            self._forecast.note(self._changed, self._share())

    def end(self, phase: Phase, seal: Seal, state: PhaseState = "done") -> None:
        """Note that a phase is finished; what it took is known of one that was begun here."""
        now = self._clock()
        ended = dataclasses.replace(self._phases[phase.index], state=state, share=1.0)
        if self.count is not None and state == "done":
            ended = dataclasses.replace(self._running(now, "done"), share=1.0)
            ended = dataclasses.replace(ended, tasks_done=ended.tasks)
            if self._is_late:  # begun by somebody else: these are not the seconds of all its text
                ended = dataclasses.replace(ended, seconds=0.0)
            self._forecast.end(now, is_measured=not self._is_late)
        self._phases[phase.index] = dataclasses.replace(
            ended,
            is_empty=not len(seal.units),
            documents=_sum(seal, "read/") or ended.documents,
            text_bytes=_sum(seal, "read_bytes/") or ended.text_bytes,
        )
        self._counted[phase.index] = Counted(seal.counters)
        self.count, self._changed = None, now

    def progress(self, state: RunState = "running", note: str = "") -> Progress:
        """Return how far the run is now."""
        now = self._clock()
        counted = dict(self._counted)
        current = next(
            (i for i, one in self._phases.items() if one.state in {"waiting", "failed"}), None
        )
        phases = dict(self._phases)
        speed, left, whole = 0.0, None, None
        if self.count is not None:
            current = self.count.phase.index
            phases[current] = self._running(now, "failed" if state == "failed" else "running")
            counted[current] = self.count.counted()
            self._forecast.note(now, phases[current].share)
            speed = self._speed(now, phases[current].text_bytes)
            if state == "running":
                left, whole = self._left(now)
        return Progress(
            name=self.run.plan.settings.name, state=state, phases=tuple(phases.values()),
            current=None if current is None else phases[current],
            funnel=funnel_so_far(self.run, counted), bytes_per_second=speed,
            seconds=now - self._began, phase_seconds_left=left, seconds_left=whole,
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
        """Return how far the current phase is."""
        count = self.count
        assert count is not None, "asked while a phase runs"
        documents, size = (
            max(known, had + heard)
            for known, had, heard in zip(
                (count.documents, count.text_bytes), self._before, self._heard, strict=True
            )
        )
        return PhaseProgress(
            count.phase.name, count.phase.labels, state, count.num_tasks, count.tasks_done,
            documents, size, self._share(), now - self._entered,
        )  # fmt: skip

    def _share(self) -> float:
        assert self.count is not None, "asked while a phase runs"
        more = self._before[1] + self._heard[1] - self.count.text_bytes
        return self.count.share(max(more, 0))

    def _speed(self, now: float, text_bytes: int) -> float:
        """Return the bytes of text per second of this phase."""
        seconds = now - self._entered
        return (text_bytes - self._before[1]) / seconds if seconds >= 1 else 0.0

    def _expect(self, phase: Phase) -> None:
        """Work out how long this phase and those behind it should take, before any is measured."""
        places = self.places()
        for need in needs_of(self.run, phase.index, past=self._past):
            busy = max(min(places, need.units), 1)
            self._forecast.expected[need.phase] = need.cpu_seconds / busy

    def places(self) -> int:
        """Return how many tasks may run at the same time."""
        executor = self.run.plan.settings.executor
        slots = executor.slurm.slots if executor.kind == "slurm" else 1
        return executor.workers * slots

    def _left(self, now: float) -> tuple[float | None, float | None]:
        """Return about how many seconds this phase, and the whole run, will still take."""
        count = self.count
        assert count is not None, "asked while a phase runs"
        later = [self._phases[index].name for index in self._behind(count.phase)]
        otherwise = None
        if self._is_late:
            otherwise = left_of_tasks(count.task_seconds, count.share(), self.places())
        return self._forecast.left(now, later, otherwise)

    def _behind(self, phase: Phase) -> list[int]:
        return [index for index in self._phases if index > phase.index]


def _sum(seal: Seal, prefix: str) -> int:
    return sum(value for name, value in seal.counters.items() if name.startswith(prefix))

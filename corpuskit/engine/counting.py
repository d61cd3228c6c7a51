"""What a phase that runs has done so far, counted from its manifests, each read once."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

from corpuskit.engine.cutting import cut_tasks, cut_units
from corpuskit.engine.rundir import manifest_name
from corpuskit.engine.status import kind_of
from corpuskit.errors import DataError
from corpuskit.formats.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corpuskit.engine.config import Step
    from corpuskit.engine.plan.compile import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.stage import Unit


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
        """Share of the documents that it has kept."""
        return self.num_out / self.num_in if self.num_in else 1.0


@dataclasses.dataclass(frozen=True)
class Counted:
    """The counters of a phase, final or so far; `rows` of the units that are done."""

    counters: Mapping[str, int]
    rows: int = 0
    is_final: bool = True


class PhaseCount:
    """Counts the manifests of a phase as they appear.

    Args:
        mark: fingerprint of the phase.
    """

    def __init__(self, run: RunDirectory, phase: Phase, mark: str) -> None:
        self.run, self.phase, self.mark = run, phase, mark
        self.units = {unit.number: unit for unit in cut_units(run, phase)}
        cut = cut_tasks(phase, mark, list(self.units.values()), run.plan.settings.executor.tasks)
        self._tasks = {manifest_name(phase, task): task.units for task in cut}
        weights = _weights(run, phase, list(self.units.values()))
        self._weights = dict(zip(self.units, weights, strict=True))
        self._total = sum(weights)
        self._seen: set[str] = set()
        self._done: set[int] = set()
        self._is_cut_otherwise = False
        self.counters: Counter[str] = Counter()
        self.num_tasks, self.tasks_done = len(cut), 0
        self.weight = self.rows = self.unit_bytes = 0
        self.task_seconds = self.longest_seconds = 0.0
        self.failed: tuple[str, ...] = ()
        """Names of what is remembered of failed tasks."""

    @property
    def documents(self) -> int:
        """Documents that were read."""
        return _sum(self.counters, "read/") if self.phase.is_stream else self.rows

    @property
    def text_bytes(self) -> int:
        """Bytes of text that were read."""
        return _sum(self.counters, "read_bytes/") if self.phase.is_stream else self.unit_bytes

    @property
    def is_whole(self) -> bool:
        """Whether every unit is in some manifest."""
        return len(self._done) == len(self.units)

    def look(self) -> bool:
        """Read the manifests that are new; return whether there were any."""
        listed = self.run.store.list(f"manifests/{self.phase.name}")
        self.failed = tuple(name for name in listed if "/failed-" in name)
        ours = f"/{self.mark}/task-"
        new = [name for name in listed if ours in name and name not in self._seen]
        for name, content in zip(new, self.run.store.read_each(new), strict=True):
            with contextlib.suppress(DataError):  # damaged: whoever runs the phase makes it again
                if content is not None:
                    self._add(name, Manifest.from_json(content, name))
                    self._seen.add(name)
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
        more = min(more_bytes * scale, 0.95 * (self._total - self.weight))
        return min((self.weight + more) / self._total, 1.0)

    def counted(self) -> Counted:
        """Return what was counted so far."""
        return Counted(self.counters, self.rows, is_final=False)

    def _add(self, name: str, manifest: Manifest) -> None:
        if not self._done.isdisjoint(manifest.units):
            return  # another attempt, of a run that cut otherwise
        self._done.update(manifest.units)
        if name in self._tasks:
            self.tasks_done += 1
        else:
            self._is_cut_otherwise = True
        self.counters.update(manifest.counters)
        for number in manifest.units:
            if (unit := self.units.get(number)) is not None:
                self.weight += self._weights[number]
                self.rows += unit.rows
                self.unit_bytes += unit.text_bytes
        seconds = manifest.timing.get("wall_seconds", 0.0)
        self.task_seconds += seconds
        self.longest_seconds = max(self.longest_seconds, seconds)


def funnel_so_far(run: RunDirectory, counted: Mapping[int, Counted]) -> tuple[StageSoFar, ...]:
    """Return what was read of every source and what stages have done so far, in plan order.

    Of finished phases that is what `status.funnel` says; a stage of a phase that runs is measured
    by the documents that this phase has read so far.

    Args:
        counted: by index of the phase.
    """
    sources: list[StageSoFar] = []
    stages: dict[str, StageSoFar] = {}
    kinds = {step.label: kind_of(step) for step in run.plan.file.steps}
    alive = 0
    for phase in run.plan.phases:
        found = counted.get(phase.index)
        if found is None:
            break
        if phase.base is None:
            sources = [_source(step, found) for step in run.plan.file.sources]
            alive = seen = sum(row.num_out for row in sources)
        else:
            seen = alive if found.is_final else _sum(found.counters, "read/")
        for label in phase.labels:
            lost = _sum(found.counters, f"dropped/{label}/")
            if phase.is_stream:
                stages[label] = StageSoFar(label, kinds[label], seen, seen - lost, found.is_final)
                seen -= lost
            else:
                stages[label] = _pass(stages.get(label), label, kinds[label], alive, lost, found)
            alive -= lost if found.is_final else 0
        if not found.is_final:
            break
    labels = (step.label for step in run.plan.file.steps)  # phases have another order
    return (*sources, *(stages[label] for label in labels if label in stages))


def _source(step: Step, found: Counted) -> StageSoFar:
    """Return what was read of a source, and what was no document."""
    read = found.counters.get(f"read/{step.label}", 0)
    lost = sum(
        num
        for name, num in found.counters.items()
        if name.startswith(f"dropped/{step.name}/") and name.endswith(f"/{step.label}")
    )
    return StageSoFar(step.label, "source", read, read - lost, found.is_final)


def _sum(counters: Mapping[str, int], prefix: str) -> int:
    return sum(num for name, num in counters.items() if name.startswith(prefix))


def _pass(
    before: StageSoFar | None, label: str, kind: str, alive: int, lost: int, found: Counted
) -> StageSoFar:
    """Return what a global stage has done, with one more of its passes."""
    if found.is_final:
        num_in = alive if before is None else before.num_in
        return StageSoFar(label, kind, num_in, alive - lost, is_final=True)
    seen = min(found.rows, alive) if lost else alive
    return StageSoFar(label, kind, seen, seen - lost, is_final=False)


def _weights(run: RunDirectory, phase: Phase, units: Sequence[Unit]) -> list[int]:
    """Return how much work each unit is: its text; where there is none all are equal."""
    if phase.base is None:
        sizes = [
            sum(run.plan.source(file.source).text_size(file, piece)[0] for file, piece in pieces)
            for pieces in run.inputs.units
        ]
    else:
        sizes = [unit.text_bytes for unit in units]
    return [max(size, 1) for size in sizes] if any(sizes) else [1] * len(units)

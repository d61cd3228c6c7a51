"""One phase: what is to do, cut into tasks; and the seal that closes it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from corpuskit.errors import DataError
from corpuskit.manifest import Seal
from corpuskit.plan.fingerprint import same_but_code
from corpuskit.run.launch.local import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.plan.compile import Phase
    from corpuskit.run.rundir import RunDirectory
    from corpuskit.stage import Unit

State = Literal["reuse", "run", "continue", "later"]

FOLDERS = ("documents", "holdout", "ledger", "manifests", "mix", "tokens", "work")
"""Folders of a run directory that hold nothing but what seals name."""

TASK_BYTES = 256 << 20
"""A task holds at most about this much text: minutes of work, not hours."""

TASKS_PER_WORKER = 4
"""At least this many tasks a worker when there are units enough, so that the end is not ragged."""


@dataclasses.dataclass(frozen=True)
class Prospect:
    """What would happen to a phase now.

    Attributes:
        state: `reuse` (sealed and current), `run`, `continue` (some tasks are done), or `later`
            (decided when the phases before it are sealed).
        reason: why it must run, in a few words.
        units: how many there are, and how many are still to do; None when not known yet.
        size_bytes: text to read; None when not known yet.
    """

    phase: Phase
    state: State
    reason: str = ""
    mark: str = ""
    units: int | None = None
    units_left: int | None = None
    tasks: int | None = None
    rows: int | None = None
    size_bytes: int | None = None


class PhaseWork:
    """A phase that is about to run: its fingerprint, units and finished manifests.

    Args:
        accept_code: reuse results that differ in nothing but the code.
    """

    def __init__(self, run: RunDirectory, phase: Phase, *, accept_code: bool = False) -> None:
        self.run, self.phase = run, phase
        self.mark = run.fingerprint(phase)
        self.units = run.units(phase)
        self.before = run.usable_seal(phase)
        self.reused = self._reusable(accept_code)
        self.manifests = {} if self.reused else run.manifests(phase, self.mark)

    def _reusable(self, accept_code: bool) -> Seal | None:
        seal = self.before
        if seal is None or not self.run.has_parts(seal.parts):
            return None
        if seal.fingerprint == self.mark:
            return seal
        if accept_code and same_but_code(seal.fingerprint, self.mark):
            return dataclasses.replace(seal, fingerprint=self.mark, accepted_code_change=True)
        return None

    def left(self) -> list[Unit]:
        """Return the units that no manifest names yet."""
        done = {number for one in self.manifests.values() for number in one.units}
        return [unit for unit in self.units if unit.number not in done]

    def tasks(self) -> list[Task]:
        """Cut what is left into tasks of neighbouring units; the cut changes no output byte."""
        left = self.left()
        settings = self.run.plan.settings.executor
        wanted = settings.tasks or _num_tasks(left, settings.workers)
        groups = _cut(left, min(wanted, len(left)))
        return [
            Task(self.phase.index, self.mark, tuple(unit.number for unit in group))
            for group in groups
        ]

    def prospect(self) -> Prospect:
        """Return what would happen now."""
        rows = sum(unit.rows for unit in self.units)
        size = sum(unit.text_bytes for unit in self.units)
        num = len(self.units)
        if self.reused is not None:
            return Prospect(self.phase, "reuse", "", self.mark, num, 0, 0, rows, size)
        left = self.left()
        state: State = "continue" if len(left) < num else "run"
        reason = _reason(self.before, self.mark)
        tasks = len(self.tasks())
        return Prospect(self.phase, state, reason, self.mark, num, len(left), tasks, rows, size)

    def discard_broken(self) -> None:
        """Delete manifests that cannot be used; only the holder of the lock may call it."""
        if self.reused is None:
            self.run.discard_broken(self.phase, self.mark)

    def finish(self) -> Seal:
        """Seal the phase, then delete what its seal does not name.

        Raises:
            DataError: a manifest is gone that a worker has just written.
        """
        store = self.run.store
        if self.reused is not None:
            seal = self.reused
        else:
            found = self.run.manifests(self.phase, self.mark)
            merged = Seal.merge(self.phase.name, self.mark, found.values())
            seal = dataclasses.replace(merged, inputs=self.run.input_contents(self.phase))
            if len(seal.units) != len(self.units):
                raise DataError(f"phase {self.phase.name}: manifests vanished. Run again.")
        if seal != self.before:
            store.put(self.run.seal_name(self.phase), seal.to_json())
        self.run.set_seal(self.phase, seal)
        if self.reused is None:
            self._clear(seal)
        return seal

    def _clear(self, seal: Seal) -> None:
        store = self.run.store
        named = {part.path for part in seal.parts}
        folders = {prefix.partition("/")[0] for prefix in self.phase.owns}
        for folder in sorted(folders):
            for name in store.list(folder):
                if name.startswith(self.phase.owns) and name not in named:
                    store.delete(name)
        for name in store.list(f"manifests/{self.phase.name}"):
            if name != self.run.seal_name(self.phase) and f"/{self.mark}/" not in name:
                store.delete(name)


def sweep(run: RunDirectory) -> None:
    """Delete what no seal names, after all phases of a whole plan are sealed.

    It catches what phases that are no longer in the plan, or were interrupted, left behind.
    """
    named = {run.seal_name(phase) for phase in run.plan.phases}
    kept: list[str] = []
    for phase in run.plan.phases:
        seal = run.seal(phase.index)
        named.update(part.path for part in seal.parts)
        kept.append(f"manifests/{phase.name}/{seal.fingerprint}/")
    for folder in FOLDERS:
        for name in run.store.list(folder):
            if name not in named and not name.startswith(tuple(kept)):
                run.store.delete(name)


def _reason(before: Seal | None, mark: str) -> str:
    if before is None:
        return "never finished"
    if before.fingerprint == mark:
        return "files are missing"
    if same_but_code(before.fingerprint, mark):
        return "its code changed"
    return "its parameters, files or inputs changed"


def _num_tasks(units: Sequence[Unit], workers: int) -> int:
    size = sum(unit.text_bytes for unit in units)
    return max(-(-size // TASK_BYTES), workers * TASKS_PER_WORKER)


def _cut(units: Sequence[Unit], num: int) -> list[list[Unit]]:
    """Cut units into `num` groups of neighbours, about equal in text."""
    groups: list[list[Unit]] = []
    left = sum(max(unit.text_bytes, 1) for unit in units)
    current: list[Unit] = []
    size = 0
    for index, unit in enumerate(units):
        current.append(unit)
        size += max(unit.text_bytes, 1)
        to_come = num - len(groups) - 1
        is_full = to_come and (size * (to_come + 1) >= left or len(units) - index - 1 <= to_come)
        if is_full:
            groups.append(current)
            left -= size
            current, size = [], 0
    return [*groups, current] if current else groups

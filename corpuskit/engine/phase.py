"""One phase: what is to do, cut into tasks; and the seal that closes it."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Literal

from corpuskit.engine.cutting import cut_tasks, cut_units
from corpuskit.engine.failures import forget_failures
from corpuskit.engine.plan.fingerprint import same_but_code
from corpuskit.engine.rundir import file_copy, manifest_name
from corpuskit.errors import DataError
from corpuskit.formats.manifest import Seal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.engine.executors.contract import Task
    from corpuskit.engine.plan.compile import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Manifest

State = Literal["reuse", "run", "continue", "later"]

FOLDERS = (
    "documents", "holdout", "ids", "ledger", "manifests", "measures", "mix", "profile", "tokens",
    "work",
)  # fmt: skip
"""Folders of a run directory that hold nothing but what seals name."""


@dataclasses.dataclass(frozen=True)
class Prospect:
    """What would happen to a phase now.

    Attributes:
        state: `reuse` (sealed and current), `run`, `continue` (some tasks are done), or `later`
            (decided when the phases before it are sealed).
        reason: why what was finished once must be done again, in a few words; else empty.
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
        trust: believe seals that their files are there, and names of manifests that they are whole:
            enough to say how far a run is, not to go on with it.
    """

    def __init__(
        self, run: RunDirectory, phase: Phase, *, accept_code: bool = False, trust: bool = False
    ) -> None:
        self.run, self.phase, self.trust = run, phase, trust
        self.mark = run.fingerprint(phase)
        self.units = cut_units(run, phase)
        self.before = run.usable_seal(phase)
        self.reused = self._reusable(accept_code)

    @functools.cached_property
    def manifests(self) -> dict[str, Manifest]:
        """The usable manifests at the first time of asking."""
        return {} if self.reused else self.run.manifests(self.phase, self.mark)

    @functools.cached_property
    def all_tasks(self) -> list[Task]:
        """Every task of the phase, done or not."""
        num = self.run.plan.settings.executor.tasks
        return cut_tasks(self.phase, self.mark, self.units, num)

    def _reusable(self, accept_code: bool) -> Seal | None:
        seal = self.before
        if seal is None:
            return None
        if seal.fingerprint != self.mark:
            if not (accept_code and same_but_code(seal.fingerprint, self.mark)):
                return None
            seal = dataclasses.replace(seal, fingerprint=self.mark, accepted_code_change=True)
        return seal if self.trust or self.run.has_parts(seal.parts) else None

    def _done(self) -> set[int]:
        """Return the units that some manifest names."""
        if not self.trust or self.reused is not None:
            return {number for one in self.manifests.values() for number in one.units}
        tasks = {manifest_name(self.phase, task): task for task in self.all_tasks}
        done: set[int] = set()
        for name in self.run.manifest_names(self.phase, self.mark):
            known = tasks.get(name) or self.run.read_manifest(name)  # of a run that cut otherwise
            done.update(known.units if known else ())
        return done

    def tasks(self, among: Sequence[Task] | None = None) -> list[Task]:
        """Return what is left to do: tasks, without the units that some manifest names.

        Args:
            among: look at these only, instead of all.
        """
        if self.reused is not None:
            return []
        done = self._done()
        left = (
            dataclasses.replace(task, units=tuple(n for n in task.units if n not in done))
            for task in (self.all_tasks if among is None else among)
        )
        return [task for task in left if task.units]

    def prospect(self) -> Prospect:
        """Return what would happen now."""
        rows = sum(unit.rows for unit in self.units)
        size = sum(unit.text_bytes for unit in self.units)
        num = len(self.units)
        if self.reused is not None:
            return Prospect(self.phase, "reuse", "", self.mark, num, 0, 0, rows, size)
        tasks = self.tasks()
        left = sum(len(task.units) for task in tasks)
        state: State = "continue" if left < num else "run"
        reason = self._reason()
        return Prospect(self.phase, state, reason, self.mark, num, left, len(tasks), rows, size)

    def _reason(self) -> str:
        """Return why what was finished once is done again; nothing if it never was."""
        if self.before is None:
            is_there = self.run.store.exists(self.run.seal_name(self.phase))
            return "its seal cannot be read" if is_there else ""
        if self.before.fingerprint == self.mark:
            return "files are missing"
        if same_but_code(self.before.fingerprint, self.mark):
            return "its code changed"
        return "its parameters, files or inputs changed"

    def discard_broken(self) -> None:
        """Delete manifests that cannot be used: were a part to come back, they would count.

        Only the holder of the lock may call it.
        """
        if self.reused is None:
            listed = self.run.manifest_names(self.phase, self.mark)
            self.run.store.delete(name for name in listed if name not in self.manifests)
            forget_failures(self.run, self.phase)

    def is_done(self) -> bool:
        """Return whether a look at the folder says that every task has a manifest."""
        found = set(self.run.manifest_names(self.phase, self.mark))
        names = {manifest_name(self.phase, task) for task in self.all_tasks}
        if found <= names or names <= found:
            return names <= found
        return not PhaseWork(self.run, self.phase, trust=True).tasks()  # cut otherwise before

    def finish(self) -> Seal:
        """Seal the phase, then delete what its seal does not name.

        Whoever does it, it is the same seal, so two may.

        Raises:
            DataError: a manifest is gone that a worker has just written.
        """
        store = self.run.store
        if self.reused is not None:
            seal = self.reused
        else:
            tasks = [*self.tasks(), *self.all_tasks]
            found = self.run.manifests(self.phase, self.mark, tasks, self.manifests)
            merged = Seal.merge(self.phase.name, self.mark, found.values())
            seal = dataclasses.replace(merged, inputs=self.run.input_contents(self.phase))
            if len(seal.units) != len(self.units):
                raise DataError(f"phase {self.phase.name}: manifests vanished. Run again.")
            self._place_files(seal)
        if seal != self.before:
            store.put(self.run.seal_name(self.phase), seal.to_json())
        else:
            store.confirm(self.run.seal_name(self.phase))
        self.run.set_seal(self.phase, seal)
        if self.reused is None:
            self._clear(seal)
        return seal

    def _place_files(self, seal: Seal) -> None:
        """Give files their fixed names; the seal that says what they hold comes after them."""
        store = self.run.store
        for role in seal.parts.roles():
            for part in role if role.role.startswith("file:") else ():
                store.put(part.path, store.read(file_copy(self.phase, part.path, part.digest)))

    def _clear(self, seal: Seal) -> None:
        """Delete what earlier attempts and earlier seals left in the folders of the phase.

        Folders that phases share (`ledger/`) are not listed here, but once, by `sweep`.
        """
        store = self.run.store
        named = set[str]().union(*(role.paths() for role in seal.parts.roles()))
        before = self.before.parts.roles() if self.before else []
        old = set[str]().union(*(role.paths() for role in before))
        for prefix in self.phase.owns:
            if prefix.endswith("/"):
                old.update(store.list(prefix.rstrip("/")))
        owned = (name for name in old if name.startswith(self.phase.owns))
        store.delete(name for name in sorted(owned) if name not in named)
        kept = f"/{self.mark}/task-"
        store.delete(
            name
            for name in store.list(f"manifests/{self.phase.name}")
            if name != self.run.seal_name(self.phase) and kept not in name
        )


def sweep(run: RunDirectory) -> None:
    """Delete what no seal names, after all phases of a whole plan are sealed.

    It catches what phases that are no longer in the plan, or were interrupted, left behind.
    """
    named = {run.seal_name(phase) for phase in run.plan.phases}
    kept: list[str] = []
    for phase in run.plan.phases:
        seal = run.seal(phase.index)
        named.update(*(role.paths() for role in seal.parts.roles()))
        kept.append(f"manifests/{phase.name}/{seal.fingerprint}/")
    current = tuple(kept)
    for folder in FOLDERS:
        listed = run.store.list(folder)
        run.store.delete(
            name for name in listed if name not in named and not name.startswith(current)
        )

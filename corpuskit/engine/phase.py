"""One phase: its units and tasks, what is left to do, what failed, and the seal that closes it.

Units decide the names of parts, tasks decide nothing. Both are functions of the plan and of what
the phase waits for, so everybody who asks gets the same.

Why a task failed is kept in one small file beside the manifests of the phase, `failed-<task>.json`.
It decides nothing, and the seal of the phase deletes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import socket
from typing import TYPE_CHECKING, Any, Literal

from corpuskit.engine.executors import Task, TaskFailure
from corpuskit.engine.fingerprint import same_but_code
from corpuskit.engine.release import release, was_read
from corpuskit.engine.rundir import file_copy, manifest_name
from corpuskit.errors import ContractError, CorpuskitError, DataError, TaskError
from corpuskit.formats.manifest import Seal, UnitTable
from corpuskit.stage import Unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Manifest, Part, RoleParts

PhaseAction = Literal["reuse", "run", "continue", "later"]

TASK_BYTES = 256 << 20
"""A task holds at most about this much text: minutes of work, not hours."""

MIN_TASKS = 1024
"""At least this many tasks when there are enough units, so that any number of workers has work."""

MOST_SHOWN = 5
"""Failures that an error message lists."""

CODE_CHANGED = "its code changed"
"""Reason of a phase that differs in nothing else."""

FOLDERS = (
    "documents", "holdout", "ids", "ledger", "manifests", "measures", "mix", "profile", "tokens",
    "work",
)  # fmt: skip
"""Folders of a run directory that hold nothing but what seals name."""


@dataclasses.dataclass(frozen=True)
class PhaseStatus:
    """What would happen to a phase now.

    Attributes:
        state: `reuse` (sealed and current), `run`, `continue` (some tasks are done), or `later`
            (decided when the phases before it are sealed).
        reason: why what was finished once must be done again, in a few words; else empty.
        units: how many there are, and how many are still to be computed; None when not known yet.
        units_reused: how many an earlier plan or another run has computed, and need a link only.
        size_bytes: text to read; None when not known yet.
    """

    phase: Phase
    state: PhaseAction
    reason: str = ""
    fingerprint: str = ""
    units: int | None = None
    units_left: int | None = None
    tasks: int | None = None
    rows: int | None = None
    size_bytes: int | None = None
    units_reused: int = 0

    def to_json(self) -> dict[str, Any]:
        fields = {name: value for name, value in vars(self).items() if name != "phase"}
        return {"phase": self.phase.name, **fields, "stages": list(self.phase.labels)}


class PhaseInputs:
    """A `PassPlan`: what a pass may ask about finished phases."""

    def __init__(self, run: RunDirectory, phase: Phase) -> None:
        self.run, self.phase = run, phase
        self.seed = run.plan.settings.seed
        self.given = run.given(phase)
        self.memory_bytes = run.plan.settings.task_memory_bytes

    def cells(self) -> list[Unit]:
        return self.run.cells(self.phase)

    def parts(self, name: str) -> RoleParts:
        return self.run.find_parts(self.phase, name)

    def counters(self, name: str) -> Mapping[str, int]:
        return self.run.find_counters(self.phase, name)


def cut_units(run: RunDirectory, phase: Phase) -> list[Unit]:
    """Return the units of a phase: a function of what it waits for, nothing else."""
    if phase.base is None:
        return [
            Unit(number, pieces[0][0].source, text_bytes=sum(s.size_bytes for _, s in pieces))
            for number, pieces in run.inputs.units.items()
        ]
    cut = run.plan.current_pass(phase).units if phase.pass_name else None
    return run.cells(phase) if cut is None else cut(PhaseInputs(run, phase))


def cut_tasks(phase: Phase, fingerprint: str, units: Sequence[Unit], num: int | None) -> list[Task]:
    """Cut units into tasks of neighbours, about equal in text; the cut changes no output byte.

    It depends on neither workers nor on what is done, so two runs that meet have the same tasks.

    Args:
        num: how many; None lets the sizes decide.
    """
    if num is None:
        size = sum(unit.text_bytes for unit in units)
        num = max(-(-size // TASK_BYTES), MIN_TASKS)
    ranges = _even_ranges([max(unit.text_bytes, 1) for unit in units], min(num, len(units)))
    return [
        Task(phase.index, fingerprint, tuple(unit.number for unit in units[begin:end]))
        for begin, end in ranges
    ]


def _even_ranges(sizes: Sequence[int], num: int) -> list[tuple[int, int]]:
    """Cut a list into `num` ranges, about equal in size and none of them empty."""
    ranges: list[tuple[int, int]] = []
    remaining = sum(sizes)
    begin = size = 0
    for index, size_of_unit in enumerate(sizes):
        size += size_of_unit
        num_left = num - len(ranges) - 1
        if num_left and (size * (num_left + 1) >= remaining or len(sizes) - index - 1 <= num_left):
            ranges.append((begin, index + 1))
            remaining -= size
            begin, size = index + 1, 0
    return [*ranges, (begin, len(sizes))] if begin < len(sizes) else ranges


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
        self.fingerprint = run.fingerprint(phase)
        self.units = cut_units(run, phase)
        self.before = run.usable_seal(phase)
        self.reused = self._reusable(accept_code)

    @functools.cached_property
    def manifests(self) -> dict[str, Manifest]:
        """The usable manifests, read once."""
        return {} if self.reused else self.run.manifests(self.phase, self.fingerprint)

    @functools.cached_property
    def all_tasks(self) -> list[Task]:
        """Every task of the phase, done or not."""
        num = self.run.plan.settings.executor.tasks
        return cut_tasks(self.phase, self.fingerprint, self.units, num)

    def _reusable(self, accept_code: bool) -> Seal | None:
        seal = self.before
        if seal is None:
            return None
        if seal.fingerprint != self.fingerprint:
            if not (accept_code and same_but_code(seal.fingerprint, self.fingerprint)):
                return None
            seal = dataclasses.replace(
                seal, fingerprint=self.fingerprint, accepted_code_change=True
            )
        if not (self.trust or self.run.has_parts(seal)):
            return None
        is_read = was_read(self.run, self.phase, seal, accept_code=accept_code, trust=self.trust)
        return seal if is_read else None

    def _done(self) -> set[int]:
        """Return the units that some manifest names."""
        is_deleted = self.before is not None and bool(self.before.deleted)
        if not self.trust or self.reused is not None or is_deleted:
            return {unit for manifest in self.manifests.values() for unit in manifest.units}
        tasks = {manifest_name(self.phase, task): task for task in self.all_tasks}
        units: set[int] = set()
        for name in self.run.manifest_names(self.phase, self.fingerprint):
            source = tasks.get(name) or self.run.read_manifest(name)  # of a run that cut otherwise
            units.update(source.units if source else ())
        return units

    def tasks(self, candidates: Sequence[Task] | None = None) -> list[Task]:
        """Return what is left to do: tasks, without the units that some manifest names.

        Args:
            candidates: look at these only, instead of all.
        """
        if self.reused is not None:
            return []
        finished = self._done()
        remaining = (
            dataclasses.replace(task, units=tuple(n for n in task.units if n not in finished))
            for task in (self.all_tasks if candidates is None else candidates)
        )
        return [task for task in remaining if task.units]

    def status(self) -> PhaseStatus:
        rows = sum(unit.rows for unit in self.units)
        size = sum(unit.text_bytes for unit in self.units)
        num = len(self.units)
        if self.reused is not None:
            return PhaseStatus(self.phase, "reuse", "", self.fingerprint, num, 0, 0, rows, size)
        tasks = self.tasks()
        undone = {number for task in tasks for number in task.units}
        state: PhaseAction = "continue" if len(undone) < num else "run"
        reusable = self.reusable & undone
        num_left = len(undone) - len(reusable)
        return PhaseStatus(
            self.phase, state, self._reason(num_left, len(reusable)), self.fingerprint, num,
            num_left, len(tasks), rows, size, len(reusable),
        )  # fmt: skip

    @functools.cached_property
    def reusable(self) -> frozenset[int]:
        """The units that were computed before, by what seals say."""
        earlier = self.run.earlier_units(self.phase, self.fingerprint)
        return frozenset(
            unit.number
            for unit in self.units
            if earlier.has(
                unit,
                self.run.unit_inputs(self.phase, unit),
                self.run.chain(self.phase, unit.source),
            )
        )

    def _reason(self, num_left: int, reused: int) -> str:
        """Return why what was finished once is done again; nothing if it never was."""
        if reused:
            reason = f"{num_left:,} of {len(self.units):,} units are new or changed"
            edited = [source for source in self._sources() if self._is_edited(source)]
            if edited:
                reason += f"; the parameters or the code of {', '.join(edited)} changed"
            return reason
        if self.before is None:
            is_there = self.run.store.exists(self.run.seal_name(self.phase))
            return "its seal cannot be read" if is_there else ""
        deleted = "its shuffle files were deleted" if self.before.deleted else ""
        if self.before.fingerprint == self.fingerprint:
            return (
                f"{deleted}, and a pass that reads them runs again"
                if deleted
                else "files are missing"
            )
        if same_but_code(self.before.fingerprint, self.fingerprint):
            return CODE_CHANGED
        if deleted:
            return f"its parameters, files or inputs changed, and {deleted}"
        if any(self.run.unit_inputs(self.phase, unit) for unit in self.units[:1]):
            is_edited = all(map(self._is_edited, self._sources()))
            return "its parameters or files changed" if is_edited else "all of its inputs changed"
        return "its parameters, files or inputs changed"

    def _sources(self) -> list[str]:
        return list(dict.fromkeys(unit.source for unit in self.units))

    def _is_edited(self, source: str) -> bool:
        """Return whether units of a source would be computed whatever they read."""
        earlier = self.run.earlier_units(self.phase, self.fingerprint)
        return earlier.is_edited(source, self.run.chain(self.phase, source))

    def discard_broken(self) -> None:
        """Delete manifests that cannot be used: if a missing part came back, they would count.

        Only the holder of the lock may call it.
        """
        if self.reused is None:
            listed = self.run.manifest_names(self.phase, self.fingerprint)
            self.run.store.delete(name for name in listed if name not in self.manifests)
            forget_failures(self.run, self.phase)

    def is_done(self) -> bool:
        """Return whether every task has a manifest, by the names in the folder alone."""
        listed = set(self.run.manifest_names(self.phase, self.fingerprint))
        names = {manifest_name(self.phase, task) for task in self.all_tasks}
        if listed <= names or names <= listed:
            return names <= listed
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
            manifests = self.run.manifests(self.phase, self.fingerprint, tasks, self.manifests)
            table = self._write_table(manifests.values())
            merged = Seal.merge(self.phase.name, self.fingerprint, manifests.values(), table)
            seal = dataclasses.replace(merged, inputs=self.run.input_contents(self.phase))
            if len(seal.units) != len(self.units):
                raise DataError(f"phase {self.phase.name}: manifests vanished. Run again.")
            self._write_fixed_names(seal)
        if seal != self.before:
            store.put(self.run.seal_name(self.phase), seal.to_json())
        else:
            store.confirm(self.run.seal_name(self.phase))
        self.run.set_seal(self.phase, seal)
        if self.reused is None:
            self._clear(seal)
        release(self.run, self.phase, seal)
        return seal

    def _write_table(self, manifests: Iterable[Manifest]) -> list[Part]:
        """Write the unit table; a phase without units has none."""
        units = {unit.number: unit for unit in self.units}
        records = {
            number: record
            for manifest in manifests
            for number, *record in zip(
                manifest.units, manifest.inputs, manifest.counters, manifest.volumes, strict=True
            )
        }
        numbers = sorted(records.keys() & units.keys())
        if not numbers:
            return []
        sources = [units[number].source for number in numbers]
        chains = {source: self.run.chain(self.phase, source) for source in sorted(set(sources))}
        columns = zip(*(records[number] for number in numbers), strict=True)
        part, content = UnitTable(chains, numbers, sources, *columns).part(self.phase.name)
        self.run.store.put(part.path, content)
        return [part]

    def _write_fixed_names(self, seal: Seal) -> None:
        """Write files under their fixed names; the seal with their digests is written later."""
        store = self.run.store
        for role in seal.parts.roles():
            for part in role if role.role.startswith("file:") else ():
                store.put(part.path, store.read(file_copy(self.phase, part.path, part.digest)))

    def _clear(self, seal: Seal) -> None:
        """Delete what earlier attempts and earlier seals left in the folders of the phase.

        Folders that phases share (`ledger/`) are not listed here, but once, by `sweep`.
        """
        store = self.run.store
        paths = set[str]().union(*(role.paths() for role in seal.parts.roles()))
        before = self.before.parts.roles() if self.before else []
        old = set[str]().union(*(role.paths() for role in before))
        for prefix in self.phase.owns:
            if prefix.endswith("/"):
                old.update(store.list(prefix.rstrip("/")))
        owned = (name for name in old if name.startswith(self.phase.owns))
        store.delete(name for name in sorted(owned) if name not in paths)
        current = f"/{self.fingerprint}/task-"
        store.delete(
            name
            for name in store.list(f"manifests/{self.phase.name}")
            if name != self.run.seal_name(self.phase) and current not in name and name not in paths
        )


def phase_statuses(
    run: RunDirectory, *, accept_code: bool = False, trust: bool = False
) -> list[PhaseStatus]:
    """Return the status of every phase; those after an unfinished one are `later`.

    Args:
        trust: believe what seals and names of manifests say, without a look at the parts: how far a
            run is, quickly. Missing files are what a run, or `verify`, finds.
    """
    statuses: list[PhaseStatus] = []
    is_open = False
    for phase in run.plan.phases:
        if is_open:
            statuses.append(PhaseStatus(phase, "later", "after the phases before it"))
            continue
        work = PhaseWork(run, phase, accept_code=accept_code, trust=trust)
        statuses.append(work.status())
        if work.reused is None:
            is_open = True
        else:
            run.set_seal(phase, work.reused)
    return statuses


def sweep(run: RunDirectory) -> None:
    """Delete what no seal names, after all phases of a whole plan are sealed.

    That is what phases left that were interrupted, or are no longer in the plan.
    """
    paths = {run.seal_name(phase) for phase in run.plan.phases}
    folders: list[str] = []
    for phase in run.plan.phases:
        release(run, phase, run.seal(phase.index))
    for phase in run.plan.phases:
        seal = run.seal(phase.index)
        paths.update(*(role.paths() for role in seal.kept()))
        folders.append(f"manifests/{phase.name}/{seal.fingerprint}/")
    current = tuple(folders)
    for folder in FOLDERS:
        listed = run.store.list(folder)
        run.store.delete(
            name for name in listed if name not in paths and not name.startswith(current)
        )


# ---------------------------------------------------------------- failures


@dataclasses.dataclass(frozen=True)
class FailureRecord:
    """A failure as `status` shows it."""

    phase: str
    units: tuple[int, ...]
    error: str
    log: str
    code: int
    host: str


def note_failures(run: RunDirectory, phase: Phase, failures: Sequence[TaskFailure]) -> None:
    """Store the failures of a phase; if the disk is full, they are reported all the same."""
    for failure in failures:
        task = failure.task
        name = f"manifests/{phase.name}/{task.fingerprint}/failed-{task.name}.json"
        _note(run, name, task.units, failure.error, failure.log, failure.code)


def note_slot(run: RunDirectory, phase: Phase, slot: int, error: str, code: int) -> None:
    """Remember why a slot could not work at all."""
    name = f"manifests/{phase.name}/failed-slot-{slot}.json"
    _note(run, name, (), error, f"{run.store.logs()}/slurm-{phase.name}-*", code)


def forget_failures(run: RunDirectory, phase: Phase) -> None:
    """Forget the failures of a phase that is about to be tried again."""
    listed = run.store.list(f"manifests/{phase.name}")
    run.store.delete(name for name in listed if "/failed-" in name)


def _note(
    run: RunDirectory, name: str, units: Sequence[int], error: str, log: str, code: int
) -> None:
    content = {
        "format": 1, "units": list(units), "error": error, "log": log, "code": code,
        "host": socket.gethostname(),
    }  # fmt: skip
    with contextlib.suppress(OSError):
        run.store.put(name, json.dumps(content).encode())


def read_failures(run: RunDirectory, phase: Phase) -> list[FailureRecord]:
    """Return what is remembered of a phase, without the tasks that have succeeded since."""
    listed = run.store.list(f"manifests/{phase.name}")
    retried = {name.replace("/task-", "/failed-") for name in listed if "/task-" in name}
    records = []
    for name in listed:
        if "/failed-" not in name or name in retried:
            continue
        try:
            content: dict[str, Any] = json.loads(run.store.read(name))
            units = tuple(int(number) for number in content["units"])
            record = FailureRecord(
                phase.name, units, str(content["error"]), str(content["log"]),
                int(content["code"]), str(content["host"]),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, RecursionError, DataError):
            continue  # half written by a dying node: the log has it
        records.append(record)
    return records


def failure_error(phase: Phase, failures: Sequence[TaskFailure | FailureRecord]) -> CorpuskitError:
    """Return the error that names the failed tasks, their logs, and how to go on."""
    if all(failure.code == ContractError.exit_code for failure in failures):
        return ContractError(failures[0].error)  # every slot reports the same
    lines = [
        f"phase {phase.name}: {len(failures)} of its tasks failed; "
        "the others finished and are kept."
    ]
    for failure in failures[:MOST_SHOWN]:
        units = failure.task.units if isinstance(failure, TaskFailure) else failure.units
        lines.append(f"  {describe_units(units)}: {failure.error}")
        if failure.code == 1:
            lines.append(f"    log: {failure.log}")
    if len(failures) > MOST_SHOWN:
        lines.append(f"  and {len(failures) - MOST_SHOWN} more.")
    # Repeating heals a worker that died, no file that is broken and no parameter that is wrong.
    is_wrong = any(failure.code != 1 for failure in failures)
    first = "Correct that, then run" if is_wrong else "Run"
    lines.append(f"{first} the same command again to continue.")
    kind = DataError if all(failure.code == 3 for failure in failures) else TaskError
    return kind("\n".join(lines))


def describe_units(units: Sequence[int]) -> str:
    """Return units as people write them; without any, a slot failed before it had one."""
    if not units:
        return "a slot"
    return f"units {units[0]}" if len(units) == 1 else f"units {units[0]}-{units[-1]}"

"""The run directory as the runner sees it: plan, seals, manifests, units."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from corpuskit.engine.fingerprint import code_digest, fingerprint, runner_digest
from corpuskit.engine.inputs import Inputs
from corpuskit.engine.plan import PLAN, Phase, Plan
from corpuskit.engine.reuse import EarlierUnits, EarlierUse, SealedUnits
from corpuskit.errors import DataError, TaskError, UsageError
from corpuskit.formats.manifest import (
    Manifest,
    OtherFormatError,
    Seal,
    digest_bytes,
    dump_checked,
    load_checked,
)
from corpuskit.stage import InputFile, Slice, Unit
from corpuskit.storage import DamagedError, Stored, open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from corpuskit.engine.executors import Task
    from corpuskit.formats.manifest import Part, RoleParts
    from corpuskit.storage import Store

WORTH_A_LISTING = 32
"""From this many files on, a folder is listed; fewer are looked up one by one."""

_FILE = attrgetter(*(field.name for field in dataclasses.fields(InputFile)))
_SLICE = attrgetter(*(field.name for field in dataclasses.fields(Slice)))


class RunDirectory:
    """A run directory and the plan it executes.

    Args:
        plan: the compiled pipeline.
        inputs: the input files of this run.
        store: the one whose lock is held: only that one knows when it is lost.
    """

    def __init__(self, plan: Plan, inputs: Inputs, store: Store | None = None) -> None:
        self.plan, self.inputs = plan, inputs
        self.store = store or open_store(plan.settings.output)
        self._seals: dict[int, Seal] = {}
        self._fingerprints: dict[int, str] = {}
        self._chains: dict[tuple[int, str], str] = {}
        self._earlier: dict[tuple[int, str], EarlierUnits] = {}
        self._sizes: dict[str, dict[str, int]] = {}
        self._lists = False
        self._code: dict[str, str] = {}
        self.earlier_use: dict[str, EarlierUse | None] = {}
        """What phases took in an earlier run, so that no barrier reads their seals again."""
        self.folder = os.getcwd()
        """The working directory of the run: relative paths of the plan start there."""
        self.accepts = False
        """Whether the command goes on where `expect` does not hold; in plan.json as its record."""

    def save(self) -> None:
        """Write `plan.json`, from which workers rebuild this object."""
        files = [_FILE(file) for file in self.inputs.files]
        slices = [[_SLICE(piece) for piece in cut] for cut in self.inputs.slices]
        content = {
            **self.plan.to_json(), "files": files, "slices": slices, "begins": self.inputs.begins,
            "numbers": self.inputs.numbers,
            "code": self.code(), "folder": os.getcwd(), "accepts": self.accepts,
        }  # fmt: skip
        self.store.put(PLAN, dump_checked(content))

    def code(self) -> dict[str, str]:
        """Return digests of the code of every source and stage, and of what runs them, now."""
        steps = (*self.plan.file.sources, *self.plan.file.steps)
        stages = {step.name: code_digest(step.name) for step in steps}
        return {**stages, "corpuskit itself": runner_digest()}

    def check_code(self) -> None:
        """Refuse to work with other code than the run was planned with.

        Raises:
            TaskError: corpuskit was edited since, or another version is installed here.
        """
        current = self.code()
        changed = [name for name, digest in self._code.items() if current.get(name) != digest]
        if changed:
            raise TaskError(
                f"{self.store.address}: the code of {', '.join(changed)} is not what this run was "
                "planned with. Install the same version everywhere, or run the pipeline again."
            )

    @classmethod
    def open(cls, address: str) -> RunDirectory:
        """Open the run directory at a path or address as its last run planned it.

        Raises:
            UsageError: it is not a run directory.
        """
        store = open_store(address)
        path = store.where(PLAN)
        if not store.exists(PLAN):
            raise UsageError(f"{address}: not a run directory, it has no {PLAN}.")
        content = load_checked(store.read(PLAN), path)
        try:
            return cls._from_json(content, path, address)
        except (KeyError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())  # pydantic's is several lines
            raise DataError(
                f"{path}: was written by another version, or damaged: {type(error).__name__}: "
                f"{reason}. Run the pipeline again."
            ) from None

    @classmethod
    def _from_json(cls, content: dict[str, Any], location: str, address: str) -> RunDirectory:
        plan = Plan.from_json(content, location).with_settings(output=address)
        files = tuple(InputFile(*row) for row in content["files"])
        slices = tuple(tuple(Slice(*s) for s in cut) for cut in content["slices"])
        run = cls(plan, Inputs(files, slices, tuple(content["begins"]), tuple(content["numbers"])))
        run._code, run.folder = dict(content["code"]), str(content["folder"])
        run.accepts = bool(content.get("accepts"))
        return run

    def at(self, part: Part) -> Stored:
        """Return a part to read; what is read is compared with the digests of its seal."""
        return self.store.at(part.path, digest=part.digest, footer=part.footer)

    def read_file(self, phase: str, name: str) -> bytes:
        """Return a file with a fixed name, compared with the seal of the phase that wrote it.

        Raises:
            DataError: the phase is not finished, or the file is not what it wrote.
        """
        [part] = self.seal(self._index_of(phase)).by_role(f"file:{name}")
        content = self.store.read(name)
        if self.store.digest(name) != part.digest:
            raise DamagedError(self.at(part))
        return content

    def discard_damaged(self, error: DamagedError) -> DataError:
        """Delete a damaged part of this run, so that the next run makes it again.

        Only a part that is damaged at a second look is deleted. Its name holds the hash of what it
        must contain, so no other plan or attempt could use it either.

        Returns:
            What to tell the user: the file, the phase that wrote it, and what to do.
        """
        file = error.file
        if not isinstance(file, Stored) or file.store.address != self.store.address:
            return error
        writer = next(
            (phase.name for phase in self.plan.phases if file.name.startswith(phase.owns)), "?"
        )
        is_there = self.store.exists(file.name)
        if is_there and self.store.digest(file.name) == file.digest:
            return DataError(f"{file}: could not be read whole once, but is whole now. Run again.")
        self.store.delete([file.name])
        problem = (
            f"its content is not what phase {writer} wrote: the file was changed, or the disk "
            "damaged it. It is deleted"
            if is_there
            else f"phase {writer} wrote this file, but it is missing"
        )
        return DataError(f"{file}: {problem}; run the same command again, and it is made again.")

    def seal_name(self, phase: Phase) -> str:
        return f"manifests/{phase.name}/seal.json"

    def read_seal(self, phase: Phase, store: Store | None = None) -> Seal | None:
        """Return the seal of a phase from disk, None if there is none.

        One that another version wrote counts as none: the phase is made again.

        Args:
            store: of another run; this one's if it is not given.
        """
        name, store = self.seal_name(phase), store or self.store
        [content] = store.read_each([name])
        if content is not None:
            with contextlib.suppress(OtherFormatError):
                seal = Seal.from_json(content, store.where(name))
                if seal.phase != phase.name:
                    raise DataError(f"{store.where(name)}: is the seal of {seal.phase}. Run again.")
                return seal if seal.is_counted else None
        return None

    def usable_seal(self, phase: Phase, store: Store | None = None) -> Seal | None:
        """Return the seal of a phase; None if there is none, or if it cannot be read.

        What cannot be read is made again: the work is the same, and so are the bytes.
        """
        with contextlib.suppress(DataError):
            return self.read_seal(phase, store)
        return None

    def seal(self, index: int) -> Seal:
        """Return the seal of a finished phase; remembered.

        Raises:
            DataError: the phase is not sealed.
        """
        if index not in self._seals:
            seal = self.read_seal(self.plan.phases[index])
            if seal is None:
                raise DataError(f"phase {self.plan.phases[index].name} is not finished.")
            self._seals[index] = seal
        return self._seals[index]

    def set_seal(self, phase: Phase, seal: Seal) -> None:
        self._seals[phase.index] = seal

    def manifest_names(self, phase: Phase, fingerprint: str) -> list[str]:
        """Return the names of the manifests that the folder of a phase lists."""
        listed = self.store.list(f"manifests/{phase.name}/{fingerprint}")
        return [name for name in listed if "/task-" in name]

    def manifests(
        self,
        phase: Phase,
        fingerprint: str,
        tasks: Iterable[Task] = (),
        loaded: Mapping[str, Manifest] | None = None,
    ) -> dict[str, Manifest]:
        """Return the usable manifests of a phase with this fingerprint; no unit is in two of them.

        Args:
            tasks: whose manifests are read by name, should the listing lack them.
            loaded: what an earlier call returned; it is not read again.

        Of two manifests with a common unit, one of `loaded` wins over one of `tasks`, and that over
        one that is listed: a late worker of a run that cut otherwise must not displace them.
        """
        listed = self.manifest_names(phase, fingerprint)
        loaded = loaded or {}
        by_task = (manifest_name(phase, task) for task in tasks)
        names = dict.fromkeys([*loaded, *by_task, *listed])
        usable: dict[str, Manifest] = {}
        units: set[int] = set()
        self._sizes = {}  # what was listed earlier lacks what was written since
        self._lists = len(names) >= WORTH_A_LISTING
        contents = self.store.read_each([name for name in names if name not in loaded])
        for name in names:
            manifest = loaded.get(name) or self._usable(name, next(contents))
            if manifest is not None and units.isdisjoint(manifest.units):
                units.update(manifest.units)
                usable[name] = manifest
        self._lists, self._sizes = False, {}
        return usable

    def read_manifest(self, name: str) -> Manifest | None:
        """Return a manifest whose parts are all there; None if it cannot be used.

        Files with fixed names are put there when the phase is sealed.

        What cannot be used is made again: the work is the same, and so are the bytes.
        """
        [content] = self.store.read_each([name])
        return self._usable(name, content)

    def _usable(self, name: str, content: bytes | None) -> Manifest | None:
        with contextlib.suppress(DataError):
            if content is None:
                return None
            manifest = Manifest.from_json(content, self.store.where(name))
            if not name.startswith(f"manifests/{manifest.phase}/{manifest.fingerprint}/task-"):
                return None  # whole, but of another phase or plan
            parts = (part for part in manifest.parts if not part.role.startswith("file:"))
            if all(map(self._is_there, parts)):
                return manifest
        return None

    def has_parts(self, seal: Seal) -> bool:
        """Return whether all files of a seal that were not deleted are there in their full size."""
        return all(map(self._has_role, seal.kept()))

    def _has_role(self, parts: RoleParts) -> bool:
        if len(parts) < WORTH_A_LISTING or parts.role.startswith("file:"):
            return all(map(self._is_there, parts))
        listed: dict[str, int] = {}
        for folder in {path.rpartition("/")[0] for path in parts.paths()}:
            listed.update(self._listing(folder))
        expected = zip(parts.paths(), parts.column("size_bytes").tolist(), strict=True)
        return all(
            listed.get(path) == size or self.store.size(path) == size for path, size in expected
        )

    def _listing(self, folder: str) -> dict[str, int]:
        """Return name -> size of the files of a folder; `ledger/`, which phases share, stays."""
        if folder in self._sizes:
            return self._sizes[folder]
        sizes = self.store.sizes(folder)
        if folder == "ledger":
            self._sizes[folder] = sizes
        return sizes

    def _is_there(self, part: Part) -> bool:
        if not part.role.startswith("file:"):
            return self._size(part.path) == part.size_bytes
        # Other names hold the hash of their content; these are fixed.
        is_sized = self.store.size(part.path) == part.size_bytes
        return is_sized and self.store.digest(part.path) == part.digest

    def _size(self, name: str) -> int | None:
        """Return a size: from the listing of its folder while many sizes are needed.

        Only the holder of the run deletes parts, so what was there still is.
        """
        folder = name.rpartition("/")[0]
        if self._lists and folder not in self._sizes:
            self._sizes[folder] = self.store.sizes(folder)
        size = self._sizes.get(folder, {}).get(name)
        return self.store.size(name) if size is None else size

    def fingerprint(self, phase: Phase) -> str:
        """Return the fingerprint of a phase; the phases it waits for must be sealed."""
        steps = [step for step in self.plan.file.steps if step.label in phase.labels]
        facts = self._facts(phase) | {
            "inputs": self.input_contents(phase),
            "columns": {name: str(kind) for name, kind in self.plan.columns(phase).items()},
        }
        if limited := {s.label: s.applies.to_json() for s in steps if s.applies.is_limited}:
            facts["applies"] = limited
        if phase.base is None:
            facts["files"] = self.inputs.facts()
            steps += self.plan.file.sources
        return fingerprint(facts, [(step.label, step.name, step.stage) for step in steps])

    def _facts(self, phase: Phase) -> dict[str, Any]:
        """Return the settings that decide what a phase makes of its inputs, as JSON values."""
        settings = self.plan.settings
        facts: dict[str, Any] = {
            "phase": phase.name,
            "pass": phase.pass_name,
            "folder": phase.folder,
            "seed": settings.seed,
            "ledger": settings.ledger.model_dump(),
            "given": self.given(phase),
        }
        if phase.pass_name:
            facts["task_memory_bytes"] = settings.task_memory_bytes
        if phase.base is None:
            facts["max_document_bytes"] = settings.max_document_bytes
            facts["cell_bytes"] = settings.cell_bytes
        return facts

    def chain(self, phase: Phase, source: str) -> str:
        """Return the fingerprint of what decides the results of a unit, but for its inputs.

        Args:
            source: of the unit; empty for ranges.
        """
        key = (phase.index, source)
        if key not in self._chains:
            steps = self.plan.steps_of(phase, source)
            facts = self._facts(phase) | {
                "measure_rules": self.plan.settings.measure_rules,
                "schema": [[f.name, str(f.type)] for f in self.plan.schema(phase, source or None)],
            }
            # Which other sources a stage applies to decides nothing about this one.
            if limits := {s.label: s.applies.to_json()["where"] for s in steps if s.applies.where}:
                facts["where"] = limits
            if phase.base is None:
                steps += [s for s in self.plan.file.sources if s.label == source]
            self._chains[key] = fingerprint(facts, [(s.label, s.name, s.stage) for s in steps])
        return self._chains[key]

    def unit_inputs(self, phase: Phase, unit: Unit) -> str:
        """Return the hash of what a unit reads; empty if it depends on what others wrote."""
        read: list[Any]
        if phase.base is None:
            read = [
                [file.ordinal, file.name, file.size_bytes, file.stamp, piece.begin, piece.end]
                for file, piece in self.inputs.units[unit.number]
            ]
        elif unit.part is not None and (
            phase.is_stream or self.plan.current_pass(phase).is_cell_alone
        ):
            sidecars = (self.sidecars(index, unit.number) for index in phase.sidecars)
            read = [unit.part.digest, *([part.digest for part in parts] for parts in sidecars)]
        else:
            return ""
        return digest_bytes(json.dumps(read).encode())

    def earlier_units(self, phase: Phase, fingerprint: str) -> EarlierUnits:
        """Return where units of a phase may be found that need not run again.

        The last answer is remembered: of 100,000 units it is 100 MB.
        """
        key = (phase.index, fingerprint)
        if key not in self._earlier:
            stores = (self.store, *map(open_store, self.plan.settings.reuse))
            sealed = [
                SealedUnits(store, seal, is_reading=phase.base is None)
                for store in stores
                if (seal := self.usable_seal(phase, store)) is not None
            ]
            self._earlier = {key: EarlierUnits(self.store, fingerprint, sealed)}
        return self._earlier[key]

    def check_fingerprint(self, phase: Phase, fingerprint: str) -> None:
        """Refuse a task that is not of this plan and of what is sealed now.

        A late worker of an earlier plan would read what a newer one has sealed, and commit it under
        the old fingerprint. What was read here is remembered, so it is also what the task reads.

        Raises:
            TaskError: the plan was edited since the task was cut.
        """
        if phase.index not in self._fingerprints:
            self._fingerprints[phase.index] = self.fingerprint(phase)
        if self._fingerprints[phase.index] != fingerprint:
            raise TaskError(
                f"{self.store.address}: phase {phase.name}: the plan, its files or the libraries "
                "here are not those that this task was cut for. Run the same command again."
            )

    def input_contents(
        self, phase: Phase, seals: Mapping[int, Seal] | None = None
    ) -> tuple[str, ...]:
        """Return the content hashes of the seals that a phase waits for.

        A stage of some sources waits for their documents only.

        Args:
            seals: by index of the phase; by default those that are remembered.
        """
        sources = self.plan.applies(phase).sources
        waits = [(i, self.seal(i) if seals is None else seals[i]) for i in phase.waits]
        return tuple(
            seal.content if sources is None or index in phase.earlier else seal.content_of(sources)
            for index, seal in waits
        )

    def cells(self, phase: Phase) -> list[Unit]:
        """Return the cells that a phase reads, in key order; of a stage: of its sources."""
        assert phase.base is not None, "the reading phase has slices, not cells"
        applies = self.plan.applies(phase)
        return [
            Unit(p.unit, p.source, p.first, p.last + 1, p.rows, p.text_bytes, p)
            for p in self.seal(phase.base).by_role(phase.role)
            if applies.to_source(p.source)
        ]

    def sidecars(self, index: int, cell: int) -> RoleParts:
        """Return the sidecars of a finished phase that belong to a cell."""
        return self.seal(index).by_role("sidecar").of_unit(cell)

    def given(self, phase: Phase) -> Mapping[str, Any]:
        """Return what earlier stages provide, with the table of input files for the mixture."""
        if not (phase.pass_name and self.plan.current_pass(phase).at_end):
            return self.plan.given_to(phase)
        return {
            **self.plan.given_to(phase),
            "name": self.plan.settings.name,
            "sources": [step.label for step in self.plan.file.sources],
            "files": [
                {"ordinal": file.ordinal, "source": file.source, "path": file.name}
                for file in self.inputs.files
            ],
        }

    def find_parts(self, phase: Phase, name: str) -> RoleParts:
        """Return parts by `<pass>/<run>` of the same stage, or `<phase>/<role>` of another."""
        first, _, role = name.partition("/")
        for index in phase.earlier:
            if self.plan.phases[index].pass_name == first:
                return self.seal(index).by_role(f"run:{role}")
        return self.seal(self._index_of(first)).by_role(role)

    def find_counters(self, phase: Phase, name: str) -> Mapping[str, int]:
        """Return the counters of an earlier pass of the same stage, or of another phase."""
        for index in phase.earlier:
            if self.plan.phases[index].pass_name == name:
                return self.seal(index).counters
        return self.seal(self._index_of(name)).counters

    def _index_of(self, name: str) -> int:
        for phase in self.plan.phases:
            if phase.name == name:
                return phase.index
        raise DataError(f"there is no phase {name!r} in this plan.")


def manifest_name(phase: Phase, task: Task) -> str:
    """Return the name of a task's manifest."""
    return f"manifests/{phase.name}/{task.fingerprint}/task-{task.name}.json"


def file_copy(phase: Phase, name: str, digest: str) -> str:
    """Return the path of a file with a fixed name until its phase is sealed."""
    return f"work/{phase.name}/{digest[:12]}-{name.rpartition('/')[2]}"

"""The run directory as the runner sees it: plan, seals, manifests, units."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any

from corpuskit import registry
from corpuskit.errors import DataError, TaskError, UsageError
from corpuskit.manifest import Manifest, Seal
from corpuskit.plan.compile import PLAN, Phase, Plan
from corpuskit.plan.fingerprint import code_digest, fingerprint
from corpuskit.plan.inputs import Inputs
from corpuskit.stage import InputFile, Slice, Unit
from corpuskit.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from corpuskit.manifest import Part
    from corpuskit.run.launch.contract import Task

CELLS_PER_SLICE = 1 << 16
"""A slice that cannot be split in advance becomes several cells: number = slice * this + i."""


class RunDirectory:
    """A run directory and the plan it executes.

    Args:
        plan: the compiled pipeline.
        inputs: the input files of this run.
    """

    def __init__(self, plan: Plan, inputs: Inputs) -> None:
        self.plan, self.inputs = plan, inputs
        self.store = open_store(plan.settings.output)
        self._seals: dict[int, Seal] = {}
        self._sidecars: dict[int, dict[int, list[Part]]] = {}
        self._sizes: dict[str, dict[str, int]] = {}
        self._code: dict[str, str] = {}
        self.folder = os.getcwd()
        """The working directory of the run: relative paths of the plan start there."""

    def save(self) -> None:
        """Write `plan.json`, from which workers rebuild this object."""
        files = [dataclasses.astuple(file) for file in self.inputs.files]
        slices = [[dataclasses.astuple(s) for s in cut] for cut in self.inputs.slices]
        content = {
            **self.plan.to_json(), "files": files, "slices": slices, "code": self.code(),
            "folder": os.getcwd(),
        }  # fmt: skip
        self.store.put(PLAN, json.dumps(content).encode())

    def code(self) -> dict[str, str]:
        """Return the digest of the code of every source and stage, here and now."""
        steps = (*self.plan.file.sources, *self.plan.file.steps)
        return {step.name: code_digest(registry.path(step.name)) for step in steps}

    def check_code(self) -> None:
        """Refuse to work with other code than the run was planned with.

        Raises:
            TaskError: corpuskit was edited since, or another version is installed here.
        """
        here = self.code()
        changed = [name for name, digest in self._code.items() if here.get(name) != digest]
        if changed:
            raise TaskError(
                f"{self.store.address}: the code of {', '.join(changed)} is not what this run was "
                "planned with. Install the same version everywhere, or run the pipeline again."
            )

    @classmethod
    def open(cls, address: str) -> RunDirectory:
        """Open the run directory at a path or address as its last run planned it.

        Raises:
            UsageError: there is no run there.
        """
        store = open_store(address)
        path = store.where(PLAN)
        if not store.exists(PLAN):
            raise UsageError(f"{address}: not a run directory, it has no {PLAN}.")
        try:
            content = json.loads(store.read(PLAN))
        except ValueError as error:
            raise DataError(f"{path}: cannot be read: {error}.") from None
        if not isinstance(content, dict) or content.get("format") != 1:
            raise DataError(f"{path}: not a plan of format 1. Run the pipeline again.")
        try:
            return cls._from_json(content, path, address)
        except (KeyError, TypeError, ValueError) as error:
            message = f"{path}: was written by another version: {error!r}. Run the pipeline again."
            raise DataError(message) from None

    @classmethod
    def _from_json(cls, content: dict[str, Any], where: str, address: str) -> RunDirectory:
        plan = Plan.from_json(content, where)
        settings = plan.settings.model_copy(update={"output": address})
        plan = dataclasses.replace(plan, file=dataclasses.replace(plan.file, settings=settings))
        files = tuple(InputFile(*row) for row in content["files"])
        slices = tuple(tuple(Slice(*s) for s in cut) for cut in content["slices"])
        run = cls(plan, Inputs(files, slices))
        run._code, run.folder = dict(content["code"]), str(content["folder"])
        return run

    def seal_name(self, phase: Phase) -> str:
        """Return the name of a phase's seal."""
        return f"manifests/{phase.name}/seal.json"

    def read_seal(self, phase: Phase) -> Seal | None:
        """Return the seal of a phase as it lies on disk, None if there is none."""
        name = self.seal_name(phase)
        if not self.store.exists(name):
            return None
        return Seal.from_json(self.store.read(name), self.store.where(name))

    def usable_seal(self, phase: Phase) -> Seal | None:
        """Return the seal of a phase; None if there is none, or if it cannot be read.

        What cannot be read is made again: the work is the same, and so are the bytes.
        """
        with contextlib.suppress(DataError):
            return self.read_seal(phase)
        return None

    def seal(self, index: int) -> Seal:
        """Return the seal of a finished phase; remembered.

        Raises:
            DataError: the phase is not sealed.
        """
        if index not in self._seals:
            found = self.read_seal(self.plan.phases[index])
            if found is None:
                raise DataError(f"phase {self.plan.phases[index].name} is not finished.")
            self._seals[index] = found
        return self._seals[index]

    def set_seal(self, phase: Phase, seal: Seal) -> None:
        """Remember the current seal of a phase."""
        self._seals[phase.index] = seal

    def manifests(self, phase: Phase, mark: str, tasks: Iterable[Task] = ()) -> dict[str, Manifest]:
        """Return the usable manifests of a phase with this fingerprint; no unit is in two of them.

        Args:
            tasks: whose manifests are asked for by name, should the listing lack them.
        """
        folder = f"manifests/{phase.name}/{mark}"
        listed = [name for name in self.store.list(folder) if "/task-" in name]
        names = dict.fromkeys([*listed, *(manifest_name(phase, task) for task in tasks)])
        found: dict[str, Manifest] = {}
        seen: set[int] = set()
        for name in names:
            manifest = self.read_manifest(name)
            if manifest is not None and seen.isdisjoint(manifest.units):
                seen.update(manifest.units)
                found[name] = manifest
        return found

    def read_manifest(self, name: str) -> Manifest | None:
        """Return a manifest whose parts are all there; None if it cannot be used.

        What cannot be used is made again: the work is the same, and so are the bytes.
        """
        with contextlib.suppress(DataError):
            manifest = Manifest.from_json(self.store.read(name), self.store.where(name))
            if self.has_parts(manifest.parts):
                return manifest
        return None

    def has_parts(self, parts: Iterable[Part]) -> bool:
        """Return whether all files of `parts` are there in their full size."""
        return all(map(self._is_there, parts))

    def _is_there(self, part: Part) -> bool:
        if not part.role.startswith("file:"):
            return self._size(part.path) == part.size_bytes
        # Other names hold the hash of their content; these are fixed.
        is_sized = self.store.size(part.path) == part.size_bytes
        return is_sized and self.store.digest(part.path) == part.digest

    def _size(self, name: str) -> int | None:
        """Return a size from the listing of the folder, read once; ask for what it lacks.

        Only the holder of the run deletes parts, so what was there still is.
        """
        folder = name.rpartition("/")[0]
        if folder not in self._sizes:
            self._sizes[folder] = self.store.sizes(folder)
        found = self._sizes[folder].get(name)
        return self.store.size(name) if found is None else found

    def discard_broken(self, phase: Phase, mark: str) -> None:
        """Delete manifests that cannot be used: were a part to come back, they would count."""
        usable = self.manifests(phase, mark)
        listed = self.store.list(f"manifests/{phase.name}/{mark}")
        self.store.delete(name for name in listed if "/task-" in name and name not in usable)

    def fingerprint(self, phase: Phase) -> str:
        """Return the fingerprint of a phase; the phases it waits for must be sealed."""
        settings = self.plan.settings
        labels = set(phase.labels)
        facts: dict[str, Any] = {
            "phase": phase.name,
            "pass": phase.pass_name,
            "folder": phase.folder,
            "seed": settings.seed,
            "ledger": settings.ledger.model_dump(),
            "inputs": self.input_contents(phase),
            "given": self.given(phase),
            "columns": {name: str(kind) for name, kind in phase.columns.items()},
        }
        stages = [(s.label, s.name, s.stage) for s in self.plan.file.steps if s.label in labels]
        if phase.base is None:
            facts["files"] = self.inputs.facts()
            facts["max_document_bytes"] = settings.max_document_bytes
            facts["cell_bytes"] = settings.cell_bytes
            stages += [(s.label, s.name, s.stage) for s in self.plan.file.sources]
        if phase.pass_name:
            facts["task_memory_bytes"] = settings.task_memory_bytes
        return fingerprint(facts, stages)

    def input_contents(self, phase: Phase) -> tuple[str, ...]:
        """Return the content hashes of the seals that a phase waits for."""
        return tuple(self.seal(index).content() for index in phase.waits)

    def cells(self, phase: Phase) -> list[Unit]:
        """Return the cells that a phase reads, in key order."""
        assert phase.base is not None, "the reading phase has slices, not cells"
        return [
            Unit(p.unit, p.source, p.first, p.last + 1, p.rows, p.text_bytes, p)
            for p in self.seal(phase.base).by_role(phase.role)
        ]

    def sidecars(self, index: int) -> Mapping[int, list[Part]]:
        """Return the sidecars of a finished phase by the cell they belong to."""
        if index not in self._sidecars:
            found: dict[int, list[Part]] = {}
            for part in self.seal(index).by_role("sidecar"):
                found.setdefault(part.unit, []).append(part)
            self._sidecars[index] = found
        return self._sidecars[index]

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

    def find_parts(self, phase: Phase, name: str) -> list[Part]:
        """Return parts by `<pass>/<run>` of the same stage, or `<phase>/<role>` of another."""
        first, _, rest = name.partition("/")
        for index in phase.earlier:
            if self.plan.phases[index].pass_name == first:
                return self.seal(index).by_role(f"run:{rest}")
        return self.seal(self._named(first)).by_role(rest)

    def find_counters(self, phase: Phase, name: str) -> Mapping[str, int]:
        """Return the counters of an earlier pass of the same stage, or of another phase."""
        for index in phase.earlier:
            if self.plan.phases[index].pass_name == name:
                return self.seal(index).counters
        return self.seal(self._named(name)).counters

    def _named(self, name: str) -> int:
        for phase in self.plan.phases:
            if phase.name == name:
                return phase.index
        raise DataError(f"there is no phase {name!r} in this plan.")


def manifest_name(phase: Phase, task: Task) -> str:
    """Return the name of a task's manifest."""
    return f"manifests/{phase.name}/{task.mark}/task-{task.name}.json"

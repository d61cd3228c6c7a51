"""The run directory as the runner sees it: plan, seals, manifests, units."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
from typing import TYPE_CHECKING, Any

from corpuskit.errors import DataError, UsageError
from corpuskit.manifest import Manifest, Seal
from corpuskit.plan.compile import PLAN, Phase, Plan
from corpuskit.plan.fingerprint import fingerprint
from corpuskit.plan.inputs import Inputs
from corpuskit.stage import InputFile, PassPlan, Slice, Unit
from corpuskit.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from corpuskit.manifest import Part

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

    def save(self) -> None:
        """Write `plan.json`, from which workers rebuild this object."""
        files = [dataclasses.astuple(file) for file in self.inputs.files]
        slices = [[dataclasses.astuple(s) for s in cut] for cut in self.inputs.slices]
        content = {**self.plan.to_json(), "files": files, "slices": slices}
        self.store.put(PLAN, json.dumps(content).encode())

    @classmethod
    def open(cls, root: Path) -> RunDirectory:
        """Open the run directory at `root` as its last run planned it.

        Raises:
            UsageError: there is no run there.
        """
        path = root / PLAN
        try:
            content = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(f"{root}: not a run directory, it has no {PLAN}.") from None
        except ValueError as error:
            raise DataError(f"{path}: cannot be read: {error}.") from None
        plan = Plan.from_json(content, str(path))
        settings = plan.settings.model_copy(update={"output": str(root)})
        plan = dataclasses.replace(plan, file=dataclasses.replace(plan.file, settings=settings))
        files = tuple(InputFile(*row) for row in content["files"])
        slices = tuple(tuple(Slice(*s) for s in cut) for cut in content["slices"])
        return cls(plan, Inputs(files, slices))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run directory alone; the lock goes with the process that holds it.

        Raises:
            UsageError: another run holds it.
        """
        self.store.root.mkdir(parents=True, exist_ok=True)
        with (self.store.root / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(
                    f"{self.store.root}: another run is using this directory. Wait for it, or set "
                    "another output."
                ) from None
            yield

    def seal_name(self, phase: Phase) -> str:
        """Return the name of a phase's seal."""
        return f"manifests/{phase.name}/seal.json"

    def read_seal(self, phase: Phase) -> Seal | None:
        """Return the seal of a phase as it lies on disk, None if there is none."""
        name = self.seal_name(phase)
        if not self.store.exists(name):
            return None
        return Seal.from_json(self.store.read(name), str(self.store.path(name)))

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

    def manifests(self, phase: Phase, mark: str) -> dict[str, Manifest]:
        """Return the manifests of a phase with this fingerprint whose parts are all there."""
        found: dict[str, Manifest] = {}
        for name in self.store.list(f"manifests/{phase.name}/{mark}"):
            if name.endswith(".json"):
                with contextlib.suppress(DataError):  # unreadable: its task runs again
                    content, where = self.store.read(name), str(self.store.path(name))
                    manifest = Manifest.from_json(content, where)
                    if self.has_parts(manifest.parts):
                        found[name] = manifest
        return found

    def has_parts(self, parts: tuple[Part, ...]) -> bool:
        """Return whether all files of `parts` are there in their full size."""
        try:
            return all(self.store.size(part.path) == part.size_bytes for part in parts)
        except (FileNotFoundError, NotADirectoryError):
            return False

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
            "given": self.plan.given_to(phase),
            "columns": {name: str(kind) for name, kind in phase.columns.items()},
        }
        stages = [(s.name, s.stage) for s in self.plan.file.steps if s.label in labels]
        if phase.base is None:
            facts["files"] = self.inputs.facts()
            facts["max_document_bytes"] = settings.max_document_bytes
            facts["cell_bytes"] = settings.cell_bytes
            stages += [(s.name, s.stage) for s in self.plan.file.sources]
        if phase.pass_name:
            facts["task_memory_bytes"] = settings.task_memory_bytes
        if phase.pass_name and self.plan.current_pass(phase).at_end:
            facts["names"] = [[f.ordinal, f.source, f.name] for f in self.inputs.files]
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

    def units(self, phase: Phase) -> list[Unit]:
        """Return the units of a phase: a function of what it waits for, nothing else."""
        if phase.base is None:
            return [
                Unit(number, file.source, text_bytes=piece.size_bytes)
                for number, (file, piece) in enumerate(self.inputs.numbered)
            ]
        if phase.pass_name:
            cut = self.plan.current_pass(phase).units
            if cut is not None:
                return cut(UnitCutter(self, phase))
        return self.cells(phase)

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
        order = [step.label for step in self.plan.file.sources]
        facts: dict[str, Any] = {"name": self.plan.settings.name, "sources": order}
        if phase.pass_name and self.plan.current_pass(phase).at_end:
            facts["files"] = [
                {"ordinal": file.ordinal, "source": file.source, "path": file.name}
                for file in self.inputs.files
            ]
        return {**self.plan.given_to(phase), **facts}

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


class UnitCutter(PassPlan):
    """What a pass may ask when its units are cut."""

    def __init__(self, run: RunDirectory, phase: Phase) -> None:
        self._run, self._phase = run, phase
        self.seed = run.plan.settings.seed
        self.given = run.given(phase)
        self.memory_bytes = run.plan.settings.task_memory_bytes

    def cells(self) -> list[Unit]:
        return self._run.cells(self._phase)

    def parts(self, name: str) -> list[Part]:
        return self._run.find_parts(self._phase, name)

    def counters(self, name: str) -> Mapping[str, int]:
        return self._run.find_counters(self._phase, name)

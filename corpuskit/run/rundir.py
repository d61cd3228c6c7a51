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
from corpuskit.plan.inputs import INPUTS, Inputs
from corpuskit.stage import InputFile, PassPlan, Slice, Unit
from corpuskit.storage import SCRATCH, digest_file, open_store

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
        if not isinstance(content, dict) or content.get("format") != 1:
            raise DataError(f"{path}: not a plan of format 1. Run the pipeline again.")
        try:
            return cls._from_json(content, str(path), root)
        except (KeyError, TypeError, ValueError) as error:
            message = f"{path}: was written by another version: {error!r}. Run the pipeline again."
            raise DataError(message) from None

    @classmethod
    def _from_json(cls, content: dict[str, Any], where: str, root: Path) -> RunDirectory:
        plan = Plan.from_json(content, where)
        settings = plan.settings.model_copy(update={"output": str(root)})
        plan = dataclasses.replace(plan, file=dataclasses.replace(plan.file, settings=settings))
        files = tuple(InputFile(*row) for row in content["files"])
        slices = tuple(tuple(Slice(*s) for s in cut) for cut in content["slices"])
        return cls(plan, Inputs(files, slices))

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
            return all(
                self.store.size(part.path) == part.size_bytes
                # Names of other parts hold their content's hash; these are fixed.
                and (not part.role.startswith("file:") or self._is_intact(part))
                for part in parts
            )
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _is_intact(self, part: Part) -> bool:
        return digest_file(self.store.path(part.path)) == part.digest

    def discard_broken(self, phase: Phase, mark: str) -> None:
        """Delete manifests that cannot be used: were a part to come back, they would count."""
        usable = self.manifests(phase, mark)
        for name in self.store.list(f"manifests/{phase.name}/{mark}"):
            if name not in usable:
                self.store.delete(name)

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


@contextlib.contextmanager
def lock(root: Path) -> Iterator[None]:
    """Hold a run directory alone; the lock goes with the process that holds it.

    Raises:
        UsageError: another run holds it, or the folder holds something that is no run.
    """
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root}: the output is a file. Set another output.")
    found = {path.name for path in root.iterdir()} if root.exists() else set()
    if PLAN not in found and (strange := sorted(found - {"lock", "logs", SCRATCH, INPUTS})):
        raise UsageError(
            f"{root}: not a run directory, but it holds {strange[0]!r}. A run deletes what is not "
            "its own: set another output, or empty it."
        )
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"{root}: another run is using this directory. Wait for it, or set another output."
            ) from None
        yield


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

"""A run directory as a finished run of the whole pipeline leaves it, made without data.

The seals, manifests and input lists are made through corpuskit's own classes, with what each pass
would have written; part files are empty, or not there at all (`Sealed` answers for them).
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from corpuskit.engine.callbacks import RunCallbacks
from corpuskit.engine.context import unit_name
from corpuskit.engine.phase import PhaseWork
from corpuskit.engine.pipeline import prepared
from corpuskit.engine.plan import read_plan
from corpuskit.engine.rundir import RunDirectory, manifest_name
from corpuskit.formats.manifest import Manifest, Part, Seal
from corpuskit.storage.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpuskit.engine.executors import Task
    from corpuskit.engine.plan import Phase
    from corpuskit.stage import Unit

ROOT = Path(__file__).resolve().parents[1]
HALF = "minhash_dedup.apply"
TEXT_BYTES = 64 << 20
PACKED_ROWS = 8_000
U64 = (1 << 64) - 1
SOURCES = ("web", "books")

WRITES = {
    "hash": ("run:hashes",), "group": ("run:clusters",), "survivors": ("run:decisions",),
    "sign": ("run:bands", "run:places"), "edges": ("run:forest",), "cluster": ("run:components",),
    "verify": ("run:clusters",), "apply": ("sidecar", "ledger"), "scatter": ("run:rows-",),
    "gather": ("tokens", "run:doc_rows"),
}  # fmt: skip
"""Roles that a pass writes per unit. Routes write runs of the name of what they merge."""

MIX = b'{"sources":[],"stages":[],"skip":[],"seq_len":2048,"hash":""}'

TIMING = ("cpu_seconds", "cpu_seconds/read", "cpu_seconds/write", "wall_seconds", "peak_rss_bytes")


class Sealed(LocalStore):
    """A run directory on disk, but for the files of parts: for them it trusts the seals."""

    def __init__(self, root: str | Path, parts: dict[str, dict[str, int]]) -> None:
        super().__init__(root)
        self.parts = parts

    def size(self, name: str) -> int | None:
        found = self.parts.get(name.rpartition("/")[0], {}).get(name)
        return super().size(name) if found is None else found

    def sizes(self, folder: str) -> dict[str, int]:
        found = self.parts.get(folder)
        return super().sizes(folder) if found is None else found


def pipeline(folder: Path, num_tasks: int) -> Path:
    """Write input files (sparse, without content) and the pipeline that reads them."""
    for number in range(num_tasks):
        source = SOURCES[number % 4 == 3]
        place = folder / "in" / source / f"{number // 1000:04d}"
        if number % 1000 < len(SOURCES) * 4:
            place.mkdir(parents=True, exist_ok=True)
        path = place / f"{number:08d}.jsonl.zst"
        path.write_bytes(b"\x28\xb5\x2f\xfd")  # zstd, says who only looks
        os.truncate(path, TEXT_BYTES)
    settings = {
        "name": "scale",
        "output": str(folder / "out"),
        "documents": False,
        "sources": {s: {"jsonl": str(folder / "in" / s / "*" / "*.zst")} for s in SOURCES},
        "stages": [
            {"gopher_quality": {"words": "whitespace"}}, "exact_dedup", "minhash_dedup", "pii",
            {"mix": {"weights": {"web": 3, "books": 1}}},
            {"tokenize": {"tokenizer": str(ROOT / "sample_data" / "tokenizer.json")}},
            {"pack": {"seq_len": 2048}}, "shuffle",
        ],
        "executor": {"tasks": num_tasks},
    }  # fmt: skip
    path = folder / "p.yaml"
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    return path


def roles_of(phase: Phase, unit: Unit) -> tuple[str, ...]:
    """Return what a unit of a phase writes."""
    if phase.pass_name == "route":
        return (f"run:rows-{unit.source}",) if phase.labels[0] == "shuffle" else ("run:decisions",)
    if phase.pass_name == "gather" and phase.labels[0] != "shuffle":
        return ("run:sets", "run:sizes")
    if phase.pass_name:
        return tuple(r + unit.source if r[-1] == "-" else r for r in WRITES[phase.pass_name])
    packs = phase.labels[-1] == "pack"
    return ("packed", "run:ids", "run:id_hashes") if packs else ("documents", "ledger")


def parts_of(phase: Phase, unit: Unit, rows: int, rng: random.Random, size: int) -> Iterator[Part]:
    """Yield the parts that a task over one unit would have published."""
    # The reading phase names cells, not slices: the first cell of each.
    number = unit.number << 16 if phase.base is None else unit.number
    packed = {"packed", "tokens"} | {f"run:rows-{source}" for source in SOURCES}
    for role in roles_of(phase, unit):
        digest = f"{rng.getrandbits(128):032x}"
        folder, prefix = f"work/{phase.name}", ""
        if role.startswith("run:"):
            prefix = role[4:] + "-"
        elif role == "ledger":
            folder, prefix = "ledger", f"{phase.name}-"
        elif role == "sidecar":
            prefix = "sidecar-"
        elif role == "tokens":
            folder = f"tokens/{unit.source}"
        suffix = ".arrow" if role.startswith("run:") or role == "sidecar" else ".parquet"
        path = f"{folder}/{prefix}part-{unit_name(number)}-{digest[:12]}{suffix}"
        first, last = number << 24, (number << 24) + rows - 1
        if role in {"run:hashes", "run:bands", "run:id_hashes"}:
            first, last = rng.randrange(1 << 48), U64 - rng.randrange(1 << 48)
        elif role.startswith("run:rows-"):
            first, last = rng.randrange(9), PACKED_ROWS * 10_000 + rng.randrange(9)
        num = PACKED_ROWS if role in packed else rows // 100 if role == "ledger" else rows
        text = TEXT_BYTES if role in {"documents", "packed"} else 0
        yield Part(number, role, path, unit.source, num, size, text, first, last, digest)


def manifests_of(
    run: RunDirectory, work: PhaseWork, rows: int, rng: random.Random, size: int
) -> Iterator[tuple[Task, Manifest]]:
    """Yield what each task of a phase would have committed."""
    units = {unit.number: unit for unit in work.units}
    phase = work.phase
    for task in work.all_tasks:
        parts: list[Part] = []
        counters: dict[str, int] = defaultdict(int)
        for number in task.units:
            source = units[number].source or SOURCES[0]
            if phase.pass_name == "plan":
                for name in ("index.parquet", "lookups.parquet", "files.json", "plan.json"):
                    run.store.put(f"mix/{name}", MIX)
                    digest = run.store.digest(f"mix/{name}")
                    role = f"file:mix/{name}"
                    parts.append(Part(0, role, f"mix/{name}", size_bytes=len(MIX), digest=digest))
                continue
            parts += parts_of(phase, units[number], rows, rng, size)
            if phase.is_stream:
                counters[f"read/{source}"] += rows
                counters[f"read_bytes/{source}"] += TEXT_BYTES
                counters[f"kept/{source}"] += rows - rows // 100
                counters[f"dropped/{phase.labels[0]}/min_words/{source}"] += rows // 100
            if phase.labels[-1:] == ("pack",):
                counters[f"rows/{source}"] += PACKED_ROWS
                counters[f"documents/{source}"] += rows
            if phase.pass_name == "sign":
                counters["signed"] += rows
            if phase.pass_name == "route":
                counters["routed"] += 1
        names = (*TIMING, *(f"cpu_seconds/{label}" for label in phase.labels))
        timing = {name: rng.random() for name in names}
        yield (
            task,
            Manifest(
                phase.name, work.fingerprint, task.units, tuple(parts), dict(counters), timing
            ),
        )


def build(folder: Path, num_tasks: int, rows: int, *, files: bool) -> dict[str, Any]:
    """Make the run directory of a finished run; return what it holds."""
    plan = read_plan(pipeline(folder, num_tasks))
    rng = random.Random(num_tasks)
    size = 0 if files else 1 << 20
    facts: dict[str, Any] = {"phases": [], "parts": 0, "manifests": 0, "manifest_bytes": 0}
    with prepared(plan, RunCallbacks()) as run:
        for phase in run.plan.phases:
            work = PhaseWork(run, phase)
            made = []
            for task, manifest in manifests_of(run, work, rows, rng, size):
                made.append(manifest)
                facts["manifest_bytes"] += len(manifest.to_json())
                if files or phase.name == HALF:
                    _touch(folder / "out", manifest, task, phase, files=files)
            seal = Seal.merge(phase.name, work.fingerprint, made)
            seal = dataclasses.replace(seal, inputs=run.input_contents(phase))
            run.store.put(run.seal_name(phase), seal.to_json())
            run.set_seal(phase, seal)
            num = len(list(seal.parts))
            facts["phases"].append((phase.name, len(work.units), num))
            facts["parts"] += num
            facts["manifests"] += len(made)
    names = ["plan.json", "inputs.json", *(run.seal_name(phase) for phase in run.plan.phases)]
    facts["bytes"] = {name: run.store.size(name) for name in names}
    return facts


def _touch(root: Path, manifest: Manifest, task: Task, phase: Phase, *, files: bool) -> None:
    """Put the manifest and empty part files where a task would have put them (no fsync)."""
    path = root / manifest_name(phase, task)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(manifest.to_json())
    for part in manifest.parts if files else ():
        if not part.role.startswith("file:"):
            place = root / part.path
            place.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(place, os.O_CREAT))

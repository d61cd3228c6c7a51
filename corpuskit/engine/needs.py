"""What the phases of a run will need, as far as it is known before they run.

How much there is to read comes from the footers of the inputs, and from seals where phases are
finished; a phase behind an unfinished one is bounded by taking that nothing is dropped before it.
What that costs, stages say (`Stage.cost`); an earlier seal of the same phase in this run directory
knows better.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from corpuskit.engine.context import COMPILING
from corpuskit.stage import CellStage, Cost, GlobalStage, Volume

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from corpuskit.engine.phase import Prospect
    from corpuskit.engine.plan.compile import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Seal
    from corpuskit.stage import Source

WORKER_BYTES = 520_000_000
"""Memory of a worker that has loaded the libraries, compiled the kernels and holds a batch.

460 to 510 MB in 15 phases over 222 MB of real text; 350 to 420 MB where kernels were compiled
before, 310 MB for tiny inputs.
"""

CELL_BYTES = 1400
"""Of it, for each cell of the run: units and seals as a worker holds them; 140 MB for 100,000."""

START_SECONDS = 2.0
"""CPU seconds to start a worker: imports, and loading kernels."""

DOCUMENT_BYTES = 4000
"""Text of a document, where nobody has counted them; web pages have 3 to 7 KB."""

READ_SPEED, WRITE_SPEED = 600e6, 130e6
"""Bytes of text per CPU second of reading and of writing document shards."""

SHARD_RATIO, ROW_BYTES = 0.32, 60
"""Size of a document shard: of its text (zstd -3; 0.305 of real text), and for each document."""

BATCH_BYTES = 8 << 20
MEASURED_BYTES = 1_000_000
"""Timing of a phase that has read less says nothing."""


@dataclasses.dataclass(frozen=True)
class Need:
    """What a phase will need.

    Attributes:
        documents, text_bytes: to read; counted, not estimated, if `is_counted` and `is_exact`.
        memory_bytes: of one worker.
        task_bytes: of it, for one task that must fit into `task_memory_bytes`; 0 = there is none.
        disk_bytes: written to the run directory; `freed_bytes`: given back when it is sealed.
        scratch_bytes: at a time, all workers; on a file system it is part of `disk_bytes`.
        cpu_seconds: of all workers; `is_measured`: by an earlier run in this directory.
        units: that could be worked on at the same time.
    """

    phase: str
    documents: int
    text_bytes: int
    is_counted: bool
    is_exact: bool
    memory_bytes: int
    task_bytes: int
    disk_bytes: int
    freed_bytes: int
    scratch_bytes: int
    cpu_seconds: float
    is_measured: bool
    units: int


@dataclasses.dataclass(frozen=True)
class Past:
    """What a phase took when it was last sealed; `read_bytes` of text, 0 where it reads keys."""

    cpu_seconds: float
    read_bytes: int
    size_bytes: int


PastPhases = dict[str, Past | None]
"""By phase; filled while needs are worked out, so that later barriers read no seal twice."""


@dataclasses.dataclass(frozen=True)
class _Reading:
    """What a phase reads; `is_exact` when somebody has counted it."""

    volume: Volume
    is_exact: bool


def needs_of(
    run: RunDirectory, first: int, left: float = 1.0, past: PastPhases | None = None
) -> list[Need]:
    """Return what the phases from `first` on will need; those before it are sealed.

    Args:
        left: share of the first one that is still to do.
        past: what an earlier call has read.
    """
    settings = run.plan.settings
    past = {} if past is None else past
    sources = _by_source(run) if first == 0 else {}
    written: dict[int | None, _Reading] = {None: _together(sources)}
    found: list[Need] = []
    resident: dict[str, int] = {}
    for phase in run.plan.phases:
        reading = written[phase.base]
        given = run.plan.given_to(phase)
        volume = dataclasses.replace(
            reading.volume, given=given, task_memory_bytes=settings.task_memory_bytes
        )
        if phase.index < first:
            written[phase.index] = _sealed(run, phase, volume)
            continue
        written[phase.index] = _Reading(volume, is_exact=False)
        costs = _costs(run, phase, volume, sources)
        resident |= {label: cost.resident_bytes for label, cost in costs.items()}
        share = left if phase.index == first else 1.0
        if phase.name not in past:
            past[phase.name] = _past(run.usable_seal(phase))
        workers = settings.executor.workers
        need = _need(phase, reading, costs.values(), share, workers, past[phase.name])
        memory = need.memory_bytes + sum(resident.values())
        found.append(dataclasses.replace(need, memory_bytes=memory))
    return found


def text_of_sources(run: RunDirectory) -> dict[str, tuple[int, int, bool]]:
    """Return documents and bytes of text in each source, and whether the bytes are known."""
    found = {name: reading for name, (_, reading) in _by_source(run).items()}
    return {
        name: (one.volume.documents, one.volume.text_bytes, one.is_exact)
        for name, one in found.items()
    }


def first_to_run(prospects: Iterable[Prospect]) -> tuple[int, float] | None:
    """Return the first phase that would run and the share of it that is left; None if none."""
    for one in prospects:
        if one.state != "reuse":
            return one.phase.index, (one.units_left or 0) / one.units if one.units else 1.0
    return None


def _need(
    phase: Phase, reading: _Reading, costs: Iterable[Cost], share: float, workers: int,
    before: Past | None,
) -> Need:  # fmt: skip
    """Return what a phase needs, without what its models hold in memory."""
    costs = list(costs)
    volume = reading.volume
    disk, cpu = float(sum(c.disk_bytes for c in costs)), sum(c.cpu_seconds for c in costs)
    scale = None if before is None else _scale(before, volume, disk)
    if before is not None and scale is not None:
        disk, cpu = before.size_bytes * scale, before.cpu_seconds * scale
    units = min((c.units for c in costs if c.units is not None), default=volume.cells)
    busy = min(workers, max(units, 1))
    start = START_SECONDS * (phase.base is None) + sum(c.start_seconds for c in costs)
    return Need(
        phase=phase.name,
        documents=volume.documents,
        text_bytes=volume.text_bytes,
        is_counted=reading.is_exact and phase.base is not None,
        is_exact=reading.is_exact,
        memory_bytes=WORKER_BYTES + CELL_BYTES * volume.cells + sum(c.unit_bytes for c in costs),
        task_bytes=sum(c.unit_bytes for c in costs if c.must_fit),
        disk_bytes=int(disk * share),
        freed_bytes=0 if before is None else before.size_bytes,
        scratch_bytes=int(disk * min(busy / max(units, 1), 1)),
        cpu_seconds=cpu * share + start * busy,
        is_measured=scale is not None,
        units=units,
    )


def _costs(
    run: RunDirectory, phase: Phase, volume: Volume, sources: Mapping[str, tuple[Source, _Reading]]
) -> dict[str, Cost]:
    """Return what each part of a phase costs, by name."""
    steps = [run.plan.step(label) for label in phase.labels]
    if not phase.is_stream:
        return {steps[0].label: steps[0].stage.cost(volume, phase.pass_name)}
    costs = {step.label: step.stage.cost(volume) for step in steps}
    if phase.base is None:
        for name, (source, reading) in sources.items():
            costs[f"read {name}"] = source.cost(reading.volume)
    else:
        costs["read"] = Cost(cpu_seconds=volume.text_bytes / READ_SPEED)
    if not (steps and isinstance(steps[-1].stage, CellStage)):
        size = int(volume.text_bytes * SHARD_RATIO) + ROW_BYTES * volume.documents
        held = volume.cell_bytes // 4  # what the writer keeps of a shard until it is closed
        costs["write"] = Cost(volume.text_bytes / WRITE_SPEED, unit_bytes=held, disk_bytes=size)
    return costs


def _scale(before: Past, volume: Volume, disk: float) -> float | None:
    """Return how many times as much there is to do as when a phase was last sealed."""
    if before.read_bytes >= MEASURED_BYTES:
        return volume.text_bytes / before.read_bytes
    is_measured = not before.read_bytes and before.size_bytes >= MEASURED_BYTES
    return disk / before.size_bytes if is_measured else None


def _past(seal: Seal | None) -> Past | None:
    """Return what a phase took; None if it was never sealed."""
    if seal is None:
        return None
    read = sum(n for name, n in seal.counters.items() if name.startswith("read_bytes/"))
    read = read or int(seal.timing.get("text_bytes", 0))
    size = sum(int(role.column("size_bytes").sum()) for role in seal.parts.roles())
    # Kernels are compiled once on a machine, not each time.
    cpu = seal.timing.get("cpu_seconds", 0.0) - seal.timing.get(COMPILING, 0.0)
    return Past(cpu, read, size)


def _together(sources: Mapping[str, tuple[Source, _Reading]]) -> _Reading:
    """Return how much text the inputs hold."""
    readings = [reading for _, reading in sources.values()]
    volumes = [reading.volume for reading in readings]
    volume = Volume(
        documents=sum(one.documents for one in volumes),
        text_bytes=sum(one.text_bytes for one in volumes),
        cells=sum(one.cells for one in volumes),
        cell_bytes=max((one.cell_bytes for one in volumes), default=0),
    )
    return _Reading(volume, all(reading.is_exact for reading in readings))


def _by_source(run: RunDirectory) -> dict[str, tuple[Source, _Reading]]:
    """Return each source with what its files hold."""
    cell = run.plan.settings.cell_bytes
    sizes: dict[str, list[tuple[int, bool]]] = {step.label: [] for step in run.plan.file.sources}
    stages = {name: run.plan.source(name) for name in sizes}
    for pieces in run.inputs.units:
        name = pieces[0][0].source
        texts = [stages[name].text_size(file, piece) for file, piece in pieces]
        sizes[name].append((sum(size for size, _ in texts), all(known for _, known in texts)))
    found = {}
    for name, pairs in sizes.items():
        text = sum(size for size, _ in pairs)
        volume = Volume(
            documents=-(-text // DOCUMENT_BYTES),
            text_bytes=text,
            cells=sum(max(-(-size // cell), 1) for size, _ in pairs),
            cell_bytes=max((min(size, cell + BATCH_BYTES) for size, _ in pairs), default=0),
        )
        found[name] = stages[name], _Reading(volume, all(is_known for _, is_known in pairs))
    return found


def _sealed(run: RunDirectory, phase: Phase, volume: Volume) -> _Reading:
    """Return how much a finished phase has left for those that read its parts."""
    seal = run.seal(phase.index)
    parts = seal.by_role("documents")
    if phase.is_stream and not isinstance(_last(run, phase), CellStage):
        sizes = parts.column("text_bytes")
        exact = Volume(
            documents=int(parts.column("rows").sum()),
            text_bytes=int(sizes.sum()),
            cells=len(parts),
            cell_bytes=int(sizes.max(initial=0)),
        )
        return _Reading(exact, is_exact=True)
    if phase.is_stream or isinstance(_last(run, phase), GlobalStage):
        role = "packed" if phase.is_stream else "tokens"
        packed = seal.by_role(role)
        size = int(packed.column("size_bytes").sum()) if len(packed) else volume.packed_bytes
        return _Reading(dataclasses.replace(volume, packed_bytes=size), is_exact=True)
    return _Reading(volume, is_exact=True)


def _last(run: RunDirectory, phase: Phase) -> object:
    return run.plan.step(phase.labels[-1]).stage if phase.labels else None

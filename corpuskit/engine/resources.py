"""What the phases of a run will need, what there is, and whether that is enough.

The bytes to read come from the footers of the inputs, and from seals where phases are finished; for
a phase after an unfinished one the bound assumes that nothing is dropped before it. Stages estimate
what that costs (`Stage.cost`); if the same phase was sealed in this run directory before, its
measured cost is used instead. Memory and disk are those of this machine, or of the executor.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.engine.compiling import COMPILING, seconds_to_compile
from corpuskit.engine.release import unread_after
from corpuskit.engine.reuse import EarlierUse
from corpuskit.formats.manifest import total
from corpuskit.stage import CellStage, Cost, GlobalStage, Volume

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from corpuskit.engine.applies import Applies
    from corpuskit.engine.phase import PhaseStatus
    from corpuskit.engine.plan import Phase
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
"""Text of a document, before documents are counted; web pages have 3 to 7 KB."""

READ_SPEED, WRITE_SPEED = 600e6, 130e6
"""Bytes of text per CPU second of reading and of writing document shards."""

SHARD_RATIO, ROW_BYTES = 0.32, 60
"""Size of a document shard: of its text (zstd -3; 0.305 of real text), and for each document."""

SHARED_BYTES = 90_000_000
"""Of a worker's memory, the pages of libraries: they are there once, however many workers."""

BATCH_BYTES = 8 << 20
MEASURED_BYTES = 1_000_000
"""The timing of a phase that has read less is not used: it is mostly start-up."""

_UNITS = {"": 1 << 20, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_NO_LIMIT = 1 << 60
"""Control groups without a limit say 2**63, less a page."""


@dataclasses.dataclass(frozen=True)
class ResourceEstimate:
    """What a phase will need.

    Attributes:
        documents, text_bytes: to read; counted, not estimated, if `is_counted` and `is_exact`.
        memory_bytes: of one worker.
        task_bytes: of it, for one task that must fit into `task_memory_bytes`; 0 = there is none.
            `advice`: what else to set where it does not.
        disk_bytes: written to the run directory; `freed_bytes`: given back when it is sealed: its
            own earlier files and, with `shuffle_files: delete`, those that it read.
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
    advice: str = ""


@dataclasses.dataclass(frozen=True)
class _InputVolume:
    """What a phase reads; `is_exact`: counted, not estimated."""

    volume: Volume
    is_exact: bool


_BySource = Mapping[str, tuple["Source", _InputVolume]]
"""Each source with what the phase reads of it."""


def estimate_resources(
    run: RunDirectory, first: int, share_left: float = 1.0
) -> list[ResourceEstimate]:
    """Return what the phases from `first` on will need; those before it are sealed.

    Args:
        share_left: share of the first one that is still to do.
    """
    settings = run.plan.settings
    is_limited = any(step.applies.sources for step in run.plan.file.steps)
    texts: _BySource = _by_source(run) if first == 0 or is_limited else {}
    sources: _BySource = texts if first == 0 else {}
    readings: dict[int | None, _InputVolume] = {None: _total_of(sources)}
    estimates: list[ResourceEstimate] = []
    resident: dict[str, int] = {}
    written_bytes: dict[int, int] = {}
    read = _read_from(run.plan.phases, first)
    for phase in run.plan.phases:
        if phase.index < first:
            if phase.index in read:
                readings[phase.index] = _sealed(run, phase, readings[phase.base].volume)
            continue
        reading = readings[phase.base]
        facts = run.plan.given_to(phase)
        volume = dataclasses.replace(
            reading.volume, given=facts, task_memory_bytes=settings.task_memory_bytes
        )
        readings[phase.index] = _InputVolume(volume, is_exact=False)
        volume = _of_sources(volume, run.plan.applies(phase), texts)
        reading = _InputVolume(volume, reading.is_exact)
        costs = _costs(run, phase, volume, sources, texts)
        resident |= {label: cost.resident_bytes for label, cost in costs.items()}
        share = share_left if phase.index == first else 1.0
        if phase.name not in run.earlier_use:
            run.earlier_use[phase.name] = _earlier_use(run.usable_seal(phase))
        before = run.earlier_use[phase.name]
        workers = settings.executor.processes
        estimate = _estimate(phase, reading, costs.values(), share, workers, before)
        memory = estimate.memory_bytes + sum(resident.values())
        written_bytes[phase.index] = estimate.disk_bytes
        freed = estimate.freed_bytes + (
            _released(run, phase, written_bytes) if estimate.units else 0
        )
        estimates.append(dataclasses.replace(estimate, memory_bytes=memory, freed_bytes=freed))
    return estimates


def _read_from(phases: Sequence[Phase], first: int) -> set[int | None]:
    """Return the phases whose parts are read, directly or not, by those from `first` on."""
    read: set[int | None] = set()
    for phase in reversed(phases):
        if phase.index >= first or phase.index in read:
            read.add(phase.base)
    return read


def _released(run: RunDirectory, phase: Phase, written_bytes: dict[int, int]) -> int:
    """Return the bytes of shuffle files that are deleted when a phase is sealed.

    Of a phase that has not run only the size of all its files is known. All of it counts as deleted
    with the first file, which is by far the largest (signatures; the spans that stay are few).

    Args:
        written_bytes: of phases that have not run, by index; what is deleted is taken out.
    """
    if run.plan.settings.shuffle_files == "keep" or phase.is_stream:
        return 0
    size = 0
    for index in phase.earlier:
        writer = run.plan.phases[index]
        if index not in written_bytes:
            seal = run.seal(index)
            roles = unread_after(run.plan, phase, writer, seal.parts.digests)
            parts = (seal.by_role(role) for role in roles if role not in seal.deleted)
            size += sum(int(role.column("size_bytes").sum()) for role in parts)
        elif any(
            file.startswith(f"{writer.pass_name}/")
            for file in run.plan.current_pass(phase).done_with
        ):
            size += written_bytes[index]
            written_bytes[index] = 0
    return size


def text_of_sources(run: RunDirectory) -> dict[str, tuple[int, int, bool]]:
    """Return documents and bytes of text in each source, and whether the bytes are known."""
    return {
        name: (reading.volume.documents, reading.volume.text_bytes, reading.is_exact)
        for name, (_, reading) in _by_source(run).items()
    }


def first_to_run(statuses: Iterable[PhaseStatus]) -> tuple[int, float] | None:
    """Return the first phase that would run and the share of it that is left; None if none."""
    for status in statuses:
        if status.state != "reuse":
            share = (status.units_left or 0) / status.units if status.units else 1.0
            return status.phase.index, share
    return None


def _estimate(
    phase: Phase, reading: _InputVolume, costs: Iterable[Cost], share: float, workers: int,
    before: EarlierUse | None,
) -> ResourceEstimate:  # fmt: skip
    """Return what a phase estimates, without what its models hold in memory."""
    costs = list(costs)
    volume = reading.volume
    disk, cpu = float(sum(c.disk_bytes for c in costs)), sum(c.cpu_seconds for c in costs)
    scale = None if before is None else _scale(before, volume, disk)
    if before is not None and scale is not None:
        disk, cpu = before.size_bytes * scale, before.cpu_seconds * scale
    units = min((c.units for c in costs if c.units is not None), default=volume.cells)
    busy = min(workers, max(units, 1))
    start = START_SECONDS * (phase.base is None) + sum(c.start_seconds for c in costs)
    return ResourceEstimate(
        phase=phase.name,
        documents=volume.documents,
        text_bytes=volume.text_bytes,
        is_counted=reading.is_exact and phase.base is not None,
        is_exact=reading.is_exact,
        memory_bytes=WORKER_BYTES + CELL_BYTES * volume.cells + sum(c.unit_bytes for c in costs),
        task_bytes=sum(c.unit_bytes for c in costs if c.must_fit),
        disk_bytes=int(disk * share),
        freed_bytes=0 if before is None else before.kept_bytes,
        scratch_bytes=int(disk * min(busy / max(units, 1), 1)),
        cpu_seconds=cpu * share + start * busy,
        is_measured=scale is not None,
        units=units,
        advice="".join(c.advice for c in costs),
    )


def _costs(
    run: RunDirectory, phase: Phase, volume: Volume, sources: _BySource, texts: _BySource
) -> dict[str, Cost]:
    """Return what each part of a phase costs, by name.

    Args:
        sources: what the phase reads of the input.
        texts: how much text the input holds, where a stage is for some sources only.
    """
    steps = [run.plan.step(label) for label in phase.labels]
    if not phase.is_stream:
        return {steps[0].label: steps[0].stage.cost(volume, phase.pass_name)}
    costs = {
        step.label: step.stage.cost(_of_sources(volume, step.applies, texts), phase.pass_name)
        for step in steps
    }
    if phase.base is None:
        for name, (source, reading) in sources.items():
            costs[f"read {name}"] = source.cost(reading.volume)
    else:
        costs["read"] = Cost(cpu_seconds=volume.text_bytes / READ_SPEED)
    if not (steps and isinstance(steps[-1].stage, CellStage)):
        num_bytes = 0 if phase.refers else volume.text_bytes
        size = int(num_bytes * SHARD_RATIO) + ROW_BYTES * volume.documents
        buffered = volume.cell_bytes // 4  # what the writer keeps of a shard until it is closed
        costs["write"] = Cost(num_bytes / WRITE_SPEED, unit_bytes=buffered, disk_bytes=size)
    return costs


def _of_sources(volume: Volume, applies: Applies, texts: _BySource) -> Volume:
    """Return the share of a volume that is of the sources of a stage, by their shares of text."""
    if applies.sources is None:
        return volume
    sizes = {name: reading.volume.text_bytes for name, (_, reading) in texts.items()}
    own_bytes, total = sum(sizes[name] for name in applies.sources), max(sum(sizes.values()), 1)
    documents, size, cells = (
        -(-num * own_bytes // total) for num in (volume.documents, volume.text_bytes, volume.cells)
    )
    return dataclasses.replace(volume, documents=documents, text_bytes=size, cells=cells)


def _scale(before: EarlierUse, volume: Volume, disk: float) -> float | None:
    """Return the work of a phase now, relative to when it was last sealed; None = unknown."""
    if before.read_bytes >= MEASURED_BYTES:
        return volume.text_bytes / before.read_bytes
    is_measured = not before.read_bytes and before.size_bytes >= MEASURED_BYTES
    return disk / before.size_bytes if is_measured else None


def _earlier_use(seal: Seal | None) -> EarlierUse | None:
    """Return what a phase took; None if it was never sealed."""
    if seal is None:
        return None
    num_bytes = total(seal.counters, "read_bytes/") or int(seal.timing.get("text_bytes", 0))
    size, kept_bytes = (
        sum(int(role.column("size_bytes").sum()) for role in roles)
        for roles in (seal.parts.roles(), seal.kept())
    )
    # Kernels are compiled once on a machine, not each time.
    cpu = seal.timing.get("cpu_seconds", 0.0) - seal.timing.get(COMPILING, 0.0)
    return EarlierUse(cpu, num_bytes, size, kept_bytes)


def _total_of(sources: _BySource) -> _InputVolume:
    readings = [reading for _, reading in sources.values()]
    volumes = [reading.volume for reading in readings]
    together = Volume(
        documents=sum(volume.documents for volume in volumes),
        text_bytes=sum(volume.text_bytes for volume in volumes),
        cells=sum(volume.cells for volume in volumes),
        cell_bytes=max((volume.cell_bytes for volume in volumes), default=0),
    )
    return _InputVolume(together, all(reading.is_exact for reading in readings))


def _by_source(run: RunDirectory) -> _BySource:
    cell = run.plan.settings.cell_bytes
    sizes: dict[str, list[tuple[int, bool]]] = {step.label: [] for step in run.plan.file.sources}
    stages = {name: run.plan.source(name) for name in sizes}
    for pieces in run.inputs.units.values():
        name = pieces[0][0].source
        texts = [stages[name].text_size(file, piece) for file, piece in pieces]
        sizes[name].append((sum(size for size, _ in texts), all(is_exact for _, is_exact in texts)))
    by_source = {}
    for name, pairs in sizes.items():
        text = sum(size for size, _ in pairs)
        volume = Volume(
            documents=-(-text // DOCUMENT_BYTES),
            text_bytes=text,
            cells=sum(max(-(-size // cell), 1) for size, _ in pairs),
            cell_bytes=max((min(size, cell + BATCH_BYTES) for size, _ in pairs), default=0),
        )
        reading = _InputVolume(volume, all(is_known for _, is_known in pairs))
        by_source[name] = stages[name], reading
    return by_source


def _sealed(run: RunDirectory, phase: Phase, volume: Volume) -> _InputVolume:
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
        return _InputVolume(exact, is_exact=True)
    if phase.is_stream or isinstance(_last(run, phase), GlobalStage):
        role = "packed" if phase.is_stream else "tokens"
        packed = seal.by_role(role)
        size = int(packed.column("size_bytes").sum()) if len(packed) else volume.packed_bytes
        return _InputVolume(dataclasses.replace(volume, packed_bytes=size), is_exact=True)
    return _InputVolume(volume, is_exact=True)


def _last(run: RunDirectory, phase: Phase) -> object:
    return run.plan.step(phase.labels[-1]).stage if phase.labels else None


@dataclasses.dataclass(frozen=True)
class Preflight:
    """What a run would need, what there is, and why it cannot run.

    Attributes:
        estimates: of the phases that would run, in order.
        compile_seconds: of CPU, all workers, for kernels that are not in the cache of this machine.
        problems: each a sentence with the number needed, and what to change.
    """

    estimates: tuple[ResourceEstimate, ...]
    available: AvailableResources
    compile_seconds: float
    problems: tuple[str, ...]

    def facts(self) -> dict[str, dict[str, Any]]:
        """Return the estimates as JSON values, by phase; the first one has kernels to compile."""
        facts = {estimate.phase: dataclasses.asdict(estimate) for estimate in self.estimates}
        for index, estimate in enumerate(facts.values()):
            estimate["compile_seconds"] = 0.0 if index else self.compile_seconds
        return facts


def preflight(run: RunDirectory, statuses: Iterable[PhaseStatus]) -> Preflight:
    """Return what a run would need from here on; nothing is written."""
    first = first_to_run(statuses)
    available = available_resources(run)
    if first is None:
        return Preflight((), available, 0.0, ())
    estimates = estimate_resources(run, *first)
    # Each worker that has a unit compiles by itself: all of them begin at the same time.
    busy = min(available.workers, max(estimate.units for estimate in estimates))
    seconds = busy * seconds_to_compile(run.plan, run.plan.phases[first[0] :])
    return Preflight(
        tuple(estimates), available, seconds, tuple(find_problems(run, estimates, available))
    )


def find_problems(
    run: RunDirectory, estimates: Sequence[ResourceEstimate], available: AvailableResources
) -> list[str]:
    """Return why phases cannot run: of each kind of problem the worst."""
    checks = (
        _task_problem(run, estimates),
        _memory_problem(estimates, available),
        _disk_problem(estimates, available),
        _scratch_problem(estimates, available),
    )
    return [problem for problem in checks if problem]


def all_memory(estimate: ResourceEstimate, workers: int) -> int:
    """Return the memory of all workers: those that have a unit work, the others wait."""
    busy = min(workers, max(estimate.units, 1))
    waiting = (workers - busy) * (WORKER_BYTES - SHARED_BYTES)
    return busy * (estimate.memory_bytes - SHARED_BYTES) + waiting + SHARED_BYTES


def peak_disk(estimates: Sequence[ResourceEstimate]) -> tuple[int, str]:
    """Return the most that a run will have written at a time, and in which phase that is.

    What an earlier run left of a phase is deleted when the phase is sealed again, not before.
    """
    total = peak = 0
    phase = ""
    for estimate in estimates:
        total += estimate.disk_bytes
        if total > peak:
            peak, phase = total, estimate.phase
        total -= estimate.freed_bytes
    return peak, phase


def _task_problem(run: RunDirectory, estimates: Sequence[ResourceEstimate]) -> str:
    limit = run.plan.settings.task_memory_bytes
    worst = max(estimates, key=lambda estimate: estimate.task_bytes, default=None)
    if worst is None or worst.task_bytes <= limit:
        return ""
    return (
        f"phase {worst.phase}: ~{worst.documents:,} documents need "
        f"~{format_size(worst.task_bytes)} in one task, which may use {format_size(limit)}. "
        f"Set {worst.advice}task_memory_bytes to {worst.task_bytes} or more."
    )


def _memory_problem(estimates: Sequence[ResourceEstimate], available: AvailableResources) -> str:
    if available.memory_bytes is None or not estimates:
        return ""
    worst = max(estimates, key=lambda estimate: all_memory(estimate, available.workers))
    num_bytes = all_memory(worst, available.workers)
    if num_bytes <= available.memory_bytes:
        return ""
    fitting = max(
        (
            number
            for number in range(1, available.workers)
            if all(all_memory(estimate, number) <= available.memory_bytes for estimate in estimates)
        ),
        default=0,
    )
    per_worker = format_size(worst.memory_bytes)
    subject = f"{available.workers} workers need" if available.workers > 1 else "a worker needs"
    if fitting:
        advice = f"Set executor.workers to {fitting}"
    elif available.memory_name.startswith("executor."):
        advice = f"Raise {available.memory_name}"
    else:
        advice = "Not even one worker fits: use a larger machine"
    # What one task must hold does not depend on how the rest is cut.
    levers = "" if worst.task_bytes else ", or lower cell_bytes or task_memory_bytes"
    return (
        f"phase {worst.phase}: {subject} ~{format_size(num_bytes)} of memory (~{per_worker} each), "
        f"but {available.memory_name} has {format_size(available.memory_bytes)}. {advice}{levers}."
    )


def _disk_problem(estimates: Sequence[ResourceEstimate], available: AvailableResources) -> str:
    num_bytes, phase = peak_disk(estimates)
    if available.disk_bytes is None or num_bytes <= available.disk_bytes:
        return ""
    return (
        f"phase {phase}: until its end the run will write up to ~{format_size(num_bytes)}, but "
        f"{available.disk_name} has {format_size(available.disk_bytes)} free. Free space, or set "
        "another output."
    )


def _scratch_problem(estimates: Sequence[ResourceEstimate], available: AvailableResources) -> str:
    worst = max(estimates, key=lambda estimate: estimate.scratch_bytes, default=None)
    free = available.scratch_bytes
    if worst is None or free is None or worst.scratch_bytes <= free:
        return ""
    return (
        f"phase {worst.phase}: {available.workers} workers write "
        f"~{format_size(worst.scratch_bytes)} of scratch at a time, but "
        f"{available.scratch_name} has {format_size(free)} free. "
        "Set TMPDIR to a larger folder, or lower executor.workers or cell_bytes."
    )


def format_size(size: float) -> str:
    """Return a size for people: three digits and a unit."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.3g} {unit}"


# ---------------------------------------------------------------- what there is


@dataclasses.dataclass(frozen=True)
class AvailableResources:
    """Memory and disk that a run may use; None = not known, so not checked.

    Attributes:
        memory_bytes: for all workers on one machine, or in one slot.
        memory_name, disk_name, scratch_name: what limits each, for messages.
        workers: that share it.
        disk_bytes: free where the run directory is; quotas are not known.
        scratch_bytes: free in the folder for temporary files, where that is elsewhere.
    """

    memory_bytes: int | None
    memory_name: str
    workers: int
    disk_bytes: int | None
    disk_name: str
    scratch_bytes: int | None = None
    scratch_name: str = ""


def available_resources(run: RunDirectory, *, in_slot: bool = False) -> AvailableResources:
    """Return the memory and disk that a run has on its executor.

    Args:
        in_slot: this process is in a Slurm job: only the memory of the job counts, since other jobs
            use the rest of the node.
    """
    memory, name, workers = _memory_of(run, in_slot=in_slot)
    if run.store.is_remote:
        folder = tempfile.gettempdir()
        free = _free(Path(folder))
        return AvailableResources(
            memory, name, workers, None, "an object store", free, f"{folder} (TMPDIR)"
        )
    root = Path(run.store.address).absolute()
    return AvailableResources(
        memory, name, workers, _free(root), f"the file system of {run.store.address}"
    )


def available_memory() -> int | None:
    """Return the memory that this machine, or the control group of this process, has left.

    What child processes hold counts as left: they are the workers that will use it.
    """
    machine = _meminfo()
    limits = [limit for limit in (machine, _group_left()) if limit is not None]
    return min(limits) + _held_by_children() if limits else None


def parse_memory(text: str) -> int:
    """Return what Slurm's `--mem` means, in bytes; a bare number is MB."""
    match = re.fullmatch(r"([0-9]+)([KMGT]?)", text)
    assert match is not None, "settings.py has checked it"
    return int(match[1]) * _UNITS[match[2]]


def _memory_of(run: RunDirectory, *, in_slot: bool) -> tuple[int | None, str, int]:
    executor = run.plan.settings.executor
    if executor.kind == "slurm":
        option = executor.slurm.mem
        # 0 asks for all the memory of a node, whatever that is.
        limit = parse_memory(option) if option is not None else 0
        if limit:
            return limit, "executor.slurm.mem", executor.processes
        if in_slot:
            return _group_left(), "the control group of the job", executor.processes
        return None, "a slot of Slurm (executor.slurm.mem is not set)", executor.processes
    if executor.kind == "ray":
        if executor.ray.memory is not None:
            return executor.ray.memory, "executor.ray.memory", 1
        if executor.ray.address not in (None, "local") or os.environ.get("RAY_ADDRESS"):
            return None, "a Ray task (executor.ray.memory is not set)", 1
    return available_memory(), "this machine", executor.processes


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    facts = dict(line.split(":", 1) for line in lines)
    words = facts.get("MemAvailable", "").split()
    return int(words[0]) << 10 if words else None


def _group_left(root: Path = Path("/sys/fs/cgroup"), groups: str | None = None) -> int | None:
    """Return what the control groups of this process leave; None where there is no limit.

    File pages count as left: the kernel drops them first. Inside a container the paths that the
    kernel names may not be there, but their parents are.
    """
    try:
        text = Path("/proc/self/cgroup").read_text("utf-8") if groups is None else groups
    except OSError:
        return None
    limits: list[int] = []
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = root, ("memory.max", "memory.current", "inactive_file", "active_file")
        elif "memory" in controllers.split(","):
            top = root / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                     "total_active_file")  # fmt: skip
        else:
            continue
        folder = top / path.lstrip("/")
        while folder.is_relative_to(top):
            free = _left_in(folder, *names)
            limits += [free] if free is not None else []
            folder = folder.parent
    return min(limits, default=None)


def _left_in(folder: Path, limit: str, usage: str, *pages: str) -> int | None:
    try:
        ceiling = (folder / limit).read_text("ascii").strip()
        if ceiling == "max" or int(ceiling) >= _NO_LIMIT:
            return None
        used = int((folder / usage).read_text("ascii"))
        lines = (folder / "memory.stat").read_text("ascii").splitlines()
    except (OSError, ValueError):
        return None
    facts = {words[0]: int(words[1]) for words in map(str.split, lines) if len(words) == 2}
    return max(int(ceiling) - used + sum(facts.get(name, 0) for name in pages), 0)


def _held_by_children(process: str = "self") -> int:
    """Return the private memory of the processes that a process has started, and that they have."""
    total = 0
    try:
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in (thread / "children").read_text("ascii").split():
                pages = Path(f"/proc/{child}/statm").read_text("ascii").split()
                total += (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")
                total += _held_by_children(child)
    except (OSError, IndexError, ValueError):
        return total  # one has just ended
    return total


def _free(folder: Path) -> int | None:
    """Return the free bytes where a folder is, or will be."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None

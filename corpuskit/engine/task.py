"""Runs one task: its units one after another, then the manifest that makes them count."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from corpuskit.cpu import cpu_seconds
from corpuskit.engine.compiling import note_compiled
from corpuskit.engine.context import PassWork, Stopwatch
from corpuskit.engine.phase import cut_units
from corpuskit.engine.reuse import UnitResult
from corpuskit.engine.rundir import manifest_name
from corpuskit.engine.stream import StreamWork
from corpuskit.formats.manifest import COUNTED, Manifest, total
from corpuskit.kernels.jit import load_compiler
from corpuskit.storage import DamagedError
from corpuskit.storage.faults import fault_point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from corpuskit.engine.context import UnitWork
    from corpuskit.engine.executors import Task
    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Part
    from corpuskit.stage import Unit


class TaskRunner:
    """Runs tasks of a run, one after another, in this process."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._cut: tuple[tuple[int, str], dict[int, Unit]] | None = None

    def run_task(
        self, task: Task, progress: Callable[[int, int], None] = lambda documents, size: None
    ) -> Manifest:
        """Run a phase over some of its units and commit the manifest; see `run_task`."""
        key = (task.phase, task.fingerprint)
        if self._cut is None or self._cut[0] != key:  # phases come one after another
            phase = self.run.plan.phases[task.phase]
            self.run.check_fingerprint(phase, task.fingerprint)
            self._cut = key, {unit.number: unit for unit in cut_units(self.run, phase)}
        return run_task(self.run, task, [self._cut[1][number] for number in task.units], progress)


def run_task(
    run: RunDirectory,
    task: Task,
    units: Sequence[Unit],
    progress: Callable[[int, int], None] = lambda documents, size: None,
) -> Manifest:
    """Run a phase over some of its units and commit the manifest.

    Of two attempts at the same task one commits; its manifest names the parts of both.

    Args:
        units: those of the task.
        progress: called with (documents, bytes of text) as they are read.

    Returns:
        The manifest, which is on disk by then.

    Raises:
        TaskError: the plan was edited since the task was cut.
        DataError: an input is broken, or a file of the run is damaged and was deleted.
    """
    phase = run.plan.phases[task.phase]
    run.check_fingerprint(phase, task.fingerprint)
    timing: defaultdict[str, float] = defaultdict(float)
    inputs = [run.unit_inputs(phase, unit) for unit in units]
    earlier = run.earlier_units(phase, task.fingerprint)
    load_compiler()
    began_cpu, began = cpu_seconds(), time.perf_counter()
    results: list[UnitResult] = []
    try:
        with run.store.scratch() as scratch:
            for unit, read in zip(units, inputs, strict=True):
                reused = earlier.take(unit, read, run.chain(phase, unit.source))
                if reused:
                    counts = reused.counters
                    progress(total(counts, "read/"), total(counts, "read_bytes/"))
                results.append(reused or _computed(_work(run, phase, unit, scratch, progress)))
                for name, value in results[-1].timing.items():
                    timing[name] += value
    except DamagedError as error:
        raise run.discard_damaged(error) from None
    note_compiled(run.plan, phase)
    timing["cpu_seconds"] += cpu_seconds() - began_cpu
    timing["wall_seconds"] = time.perf_counter() - began
    timing["peak_rss_bytes"] = float(peak_rss_bytes())
    parts = tuple(part for unit in results for part in unit.parts)
    counters = tuple(dict(unit.counters) for unit in results)
    manifest = Manifest(
        phase.name, task.fingerprint, task.units, tuple(inputs), parts, counters, dict(timing),
        tuple(unit.volumes() for unit in results),
    )  # fmt: skip
    return _commit(run, manifest_name(phase, task), manifest)


def _commit(run: RunDirectory, name: str, manifest: Manifest) -> Manifest:
    """Write a manifest unless another attempt at the task was first; return the one that counts."""
    fault_point("task:manifest", name)
    if run.store.put_new(name, manifest.to_json()):
        return manifest
    winner = run.read_manifest(name)
    if winner is not None:
        return winner
    run.store.put(name, manifest.to_json())  # what was there cannot be used
    return manifest


def _work(
    run: RunDirectory, phase: Phase, unit: Unit, scratch: Path,
    progress: Callable[[int, int], None],
) -> Iterator[UnitWork]:  # fmt: skip
    if phase.is_stream:
        yield from StreamWork(run, phase, unit, scratch, progress).cells()
        return
    work = PassWork(run, phase, unit, scratch)
    watch = Stopwatch(work.timing)
    run.plan.current_pass(phase).run(work)
    work.write_ledger()
    watch.lap(phase.name)
    progress(unit.rows, unit.text_bytes)
    yield work


def _computed(works: Iterator[UnitWork]) -> UnitResult:
    """Return the result of a unit; its cells are computed while `works` is iterated."""
    counters: Counter[str] = Counter({COUNTED: 1})
    timing: defaultdict[str, float] = defaultdict(float)
    parts: list[Part] = []
    for work in works:
        counters.update(work.counted)
        for name, value in work.timing.items():
            timing[name] += value
        parts += work.published
    return UnitResult(tuple(parts), counters, timing)


def peak_rss_bytes() -> int:
    """Return the most memory this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

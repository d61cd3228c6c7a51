"""What planning costs when a run has very many tasks: without data, with seals of that size.

    python benchmarks/scale.py [--tasks 1000 10000 100000] [--rows-per-task 10000] [--only NAME ...]

For each size a run directory is made as a finished run of the whole pipeline leaves it: one input
file, cell and task per `--tasks` in every phase that goes by cells (10,000 rows each, so that
100,000 cells speak of 1e9 documents), key ranges as the planner cuts them, and the seals through
corpuskit's own classes. `half` is the same run killed in the middle of the last dedup phase, with
half of its manifests on disk.

Part files exist for `rerun`, `clear` and `sweep` (empty ones, RERUN_TASKS cells), where listings of
a real file system are what is measured. Elsewhere they don't: there `Sealed`, a store that answers
for parts from the seals, stands in, so that what is timed is corpuskit and not the file system.

Each figure comes from a process of its own: CPU seconds after imports, peak memory, and how
much of it came on top of the imports. `growth` is the exponent between the two largest sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from simulated_run import HALF, U64, Sealed, build

from corpuskit.engine.callbacks import RunCallbacks
from corpuskit.engine.context import PassWork, cell_sidecars
from corpuskit.engine.phase import PhaseWork, cut_units, phase_statuses, sweep
from corpuskit.engine.pipeline import open_run, prepared
from corpuskit.engine.pipeline import run as run_plan
from corpuskit.engine.plan import read_plan
from corpuskit.engine.rundir import RunDirectory, manifest_name
from corpuskit.engine.status import run_facts
from corpuskit.inspect.lookup import RunDocuments
from corpuskit.inspect.why import history_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from corpuskit.engine.plan import Phase

RERUN_TASKS = 10_000


# What is measured. Each returns a function to time; what comes before is not timed.


def _listed(folder: Path, *, without: str = "") -> dict[str, dict[str, int]]:
    """Return folder -> name -> size of all that the seals of a run name."""
    run = RunDirectory.open(str(folder / "out"))
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for phase in run.plan.phases:
        for part in run.seal(phase.index).parts if phase.name != without else ():
            if not part.role.startswith("file:"):
                found[part.path.rpartition("/")[0]][part.path] = part.size_bytes
    return {place: dict(sorted(names.items())) for place, names in found.items()}


def _sealed(folder: Path) -> RunDirectory:
    run = RunDirectory.open(str(folder / "out"))
    run.store = Sealed(folder / "out", _listed(folder))
    return run


def measure_inputs(folder: Path) -> Callable[[], Any]:
    """Find the input files, as every `run` and `plan` does."""
    plan = read_plan(folder / "p.yaml")
    return lambda: open_run(plan)


def measure_save(folder: Path) -> Callable[[], Any]:
    """Find the inputs, write plan.json and inputs.json."""
    plan = read_plan(folder / "p.yaml")

    def measured() -> None:
        with prepared(plan, RunCallbacks()):
            pass

    return measured


def measure_prospects(folder: Path) -> Callable[[], Any]:
    """Plan a finished run: every phase is found to be done."""
    run = _sealed(folder)
    return lambda: phase_statuses(run)


def measure_cut(folder: Path) -> Callable[[], Any]:
    """Fingerprint one phase by cells, cut its units and tasks."""
    run = _sealed(folder)
    phase = _phase(run, HALF)

    def measured() -> None:
        work = PhaseWork(run, phase)
        assert len(work.all_tasks) == len(work.units)

    return measured


def measure_half(folder: Path) -> Callable[[], Any]:
    """Find what is left of a phase that was killed half way, as `run` does."""
    run = _sealed(folder)
    phase = _phase(run, HALF)
    seal, kept = folder / "out" / run.seal_name(phase), folder / "kept"
    seal.rename(kept)
    for name in run.store.list(f"manifests/{phase.name}")[::2]:
        (folder / "out" / name).rename(folder / "out" / name.replace("task-", "kept-"))

    def measured() -> None:
        work = PhaseWork(run, phase)
        work.discard_broken()
        num = len(work.units)
        assert abs(len(work.tasks()) - num // 2) <= 1
        assert work.status().state == "continue"

    return measured


def measure_merge(folder: Path) -> Callable[[], Any]:
    """Merge the manifests of a phase into a seal and write it."""
    run = _sealed(folder)
    phase = _phase(run, HALF)
    work = PhaseWork(run, phase)
    work.reused = None
    return work.finish


def measure_worker(folder: Path) -> Callable[[], Any]:
    """Start a worker: open the run, cut the units, find the sidecars of a cell."""

    def measured() -> None:
        run = RunDirectory.open(str(folder / "out"))
        run.check_code()
        phase = next(p for p in run.plan.phases if p.labels[-1:] == ("pack",))
        units = {unit.number: unit for unit in cut_units(run, phase)}
        assert len(cell_sidecars(run, phase, next(iter(units.values())))) == len(phase.sidecars)

    return measured


def measure_slot(folder: Path) -> Callable[[], Any]:
    """Do what slot 7 of 1,000 does before its first task."""
    store = _sealed(folder).store

    def measured() -> None:
        run = RunDirectory.open(str(folder / "out"))
        run.store = store
        run.check_code()
        work = PhaseWork(run, _phase(run, HALF))
        run.manifest_names(work.phase, work.fingerprint)
        for task in work.all_tasks[7::1000]:
            run.read_manifest(manifest_name(work.phase, task))

    return measured


def measure_ranges(folder: Path) -> Callable[[], Any]:
    """Choose the runs that a range can be in, 100 times: each range matches no run."""
    run = RunDirectory.open(str(folder / "out"))
    phase = _phase(run, "minhash_dedup.edges")
    work = PassWork(run, phase, cut_units(run, phase)[0], folder)
    work.parts("sign/bands")

    def measured() -> None:
        for _ in range(100):
            work.read_shuffle("sign/bands", U64, U64, pa.schema([("hash", pa.uint64())]))

    return measured


def measure_status(folder: Path) -> Callable[[], Any]:
    """Everything that `corpuskit status --json` says about phases, funnel and accounts."""
    store = _sealed(folder).store

    def measured() -> None:
        run = RunDirectory.open(str(folder / "out"))
        run.store = store
        facts = run_facts(run)
        assert all(one["state"] == "reuse" for one in facts["phases"])

    return measured


def measure_why(folder: Path) -> Callable[[], Any]:
    """Follow one document by its key; the parts of its cell exist, with one row."""
    row = {
        "key": [0], "id": ["x"], "text": ["t"], "source": ["web"], "origin": [{"url": None}],
        "doc_key": [0], "doc_id": ["x"], "stage": ["s"],
        "rule": ["r"], "action": ["cut"], "value": [1.0], "threshold": [0.0],
        "survivor_id": pa.array([None], pa.string()), "spans": pa.array([None], pa.list_(pa.int64())),
    }  # fmt: skip
    for phase in (run := RunDirectory.open(str(folder / "out"))).plan.phases:
        for part in run.seal(phase.index).parts:
            if part.unit == 0 and part.path.endswith(".parquet") and part.first == 0:
                path = folder / "out" / part.path
                path.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(pa.table(row), path)
    return lambda: history_of(RunDocuments(RunDirectory.open(str(folder / "out"))), 0)


def measure_rerun(folder: Path) -> Callable[[], Any]:
    """Run a finished pipeline again, part files and manifests on disk."""
    plan = read_plan(folder / "p.yaml")

    def measured() -> None:
        assert all(run_plan(plan).reused)

    return measured


def measure_clear(folder: Path) -> Callable[[], Any]:
    """List and sweep what a sealed phase owns."""
    run = RunDirectory.open(str(folder / "out"))
    phase = _phase(run, HALF)
    work = PhaseWork(run, phase)
    return lambda: work._clear(run.seal(phase.index))


def measure_sweep(folder: Path) -> Callable[[], Any]:
    """Delete what no seal names, at the end of a run: nothing here."""
    run = RunDirectory.open(str(folder / "out"))
    return lambda: sweep(run)


def _phase(run: RunDirectory, name: str) -> Phase:
    return next(phase for phase in run.plan.phases if phase.name == name)


MEASURES = {
    name.removeprefix("measure_"): function
    for name, function in list(globals().items())
    if name.startswith("measure_")
}
WITH_FILES = ("rerun", "clear", "sweep")


def measured(name: str, folder: Path) -> dict[str, float]:
    """Measure one thing in this process."""
    RunDirectory.open(str(folder / "out")).check_code()  # imports the stages
    call = MEASURES[name](folder)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
    before = _memory("VmRSS")
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    peak = _memory("VmHWM")
    return {"cpu": cpu, "wall": wall, "peak_mb": peak, "more_mb": peak - before}


def _memory(name: str) -> float:
    """Return a line of /proc/self/status in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def in_process(name: str, folder: Path) -> dict[str, float]:
    """Measure one thing in a process of its own."""
    command = [sys.executable, __file__, "--measure", name, "--folder", str(folder)]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr}")
    with contextlib.suppress(OSError):  # what `half` has put aside
        run = RunDirectory.open(str(folder / "out"))
        (folder / "kept").rename(folder / "out" / run.seal_name(_phase(run, HALF)))
        for path in (folder / "out" / "manifests" / HALF).rglob("kept-*"):
            path.rename(path.with_name(path.name.replace("kept-", "task-")))
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--rows-per-task", type=int, default=10_000)
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--keep", type=Path, help="Folder for the simulated runs; reused.")
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measured(given.measure, given.folder)))
        return
    root = given.keep or Path(tempfile.mkdtemp(prefix="scale-"))
    results: dict[tuple[str, int], dict[str, float]] = {}
    for tasks in given.tasks:
        for name in given.only:
            files = name in WITH_FILES
            if files and tasks > RERUN_TASKS:
                continue
            folder = root / f"{'files' if files else 'seals'}-{tasks}"
            if not (folder / "facts.json").exists():
                folder.mkdir(parents=True)
                began = time.process_time()
                facts = build(folder, tasks, given.rows_per_task, files=files)
                (folder / "facts.json").write_text(json.dumps(facts))
                print(f"built {folder.name} in {time.process_time() - began:.1f} CPU s", flush=True)
                _tell(facts)
            found = results[name, tasks] = in_process(name, folder)
            print(f"{tasks:>8,} {name:<10}" + "".join(f" {k} {v:9.3f}" for k, v in found.items()),
                  flush=True)  # fmt: skip
    _table(results, given.tasks)
    if not given.keep:
        shutil.rmtree(root)


def _tell(facts: dict[str, Any]) -> None:
    """Print what a simulated run holds."""
    sizes = facts["bytes"]
    seals = [size for name, size in sizes.items() if name.endswith("seal.json")]
    print(
        f"  {len(facts['phases'])} phases, {facts['parts']:,} parts, {facts['manifests']:,} "
        f"manifests ({facts['manifest_bytes'] / 1e6:,.1f} MB), seals {sum(seals) / 1e6:,.1f} MB, "
        f"largest {max(seals) / 1e6:,.1f}, plan.json {sizes['plan.json'] / 1e6:,.1f}, inputs.json "
        f"{sizes['inputs.json'] / 1e6:,.1f}"
    )


def _table(results: dict[tuple[str, int], dict[str, float]], sizes: list[int]) -> None:
    """Print CPU seconds and peak memory by size, and how they grow."""
    print(f"\n{'CPU s (peak MB)':<16}" + "".join(f"{size:>20,}" for size in sizes) + "   growth")
    for name in dict.fromkeys(name for name, _ in results):
        row = [results.get((name, size)) for size in sizes]
        cells = "".join(
            f"{one['cpu']:>12.3f} ({one['peak_mb']:>5.0f})" if one else f"{'-':>20}" for one in row
        )
        known = [(size, one["cpu"]) for size, one in zip(sizes, row, strict=True) if one]
        growth = ""
        if len(known) > 1:
            (a, x), (b, y) = known[-2:]
            growth = f"{math.log(max(y, 1e-9) / max(x, 1e-9)) / math.log(b / a):>9.2f}"
        print(f"{name:<16}{cells}{growth}")


if __name__ == "__main__":
    main()

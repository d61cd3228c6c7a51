"""Memory of deduplication while the corpus grows: peak of a worker by phase, the task size fixed.

    python benchmarks/dedup_memory.py [--stages exact_dedup ...] [--sizes 1 2 4 8] [--mb 40]
        [--cell-mb 8] [--task-mb 32] [--record FILE] [--plot docs/dedup/memory.svg]

The corpus of size n is n copies of a part of bench_en, each edited (every word of nine documents
in ten begins by a letter of the copy's own), so that it is not all duplicates. Each phase runs in
one process of its own, forked before anything was read, so that each peak is that of one phase;
`idle` is the peak of the same phase over ten documents. Reads bench_en from CORPUSKIT_SHARED_DATA.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from dedup_peers import DATA, edited

from corpuskit.engine.executors import Launcher
from corpuskit.engine.phase import cut_units
from corpuskit.engine.pipeline import run
from corpuskit.engine.plan import read_plan
from corpuskit.engine.rundir import RunDirectory
from corpuskit.engine.task import run_task
from corpuskit.errors import TaskError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.engine.executors import OnEvent, Task, TaskFailure

STAGES = ("exact_dedup", "minhash_dedup", "substring_dedup", "line_dedup")
COLOURS = ("#1b6ca8", "#c0392b", "#7d3c98", "#1e8449", "#b9770e", "#566573")

Facts = dict[str, dict[str, float]]
"""By phase: CPU seconds, peak memory, bytes written, units."""


class Forked(Launcher):
    """One process for each phase, which runs all of its tasks one after another."""

    def __init__(self, address: str) -> None:
        self.address = address

    def run(self, tasks: Sequence[Task], on_event: OnEvent) -> list[TaskFailure]:
        child = os.fork() if tasks else 0
        if child == 0 and tasks:
            code = 1
            try:
                directory = RunDirectory.open(self.address)
                found = cut_units(directory, directory.plan.phases[tasks[0].phase])
                units = {unit.number: unit for unit in found}
                for task in tasks:
                    run_task(directory, task, [units[number] for number in task.units])
                code = 0
            except BaseException:  # noqa: BLE001 - a process that ends here tells why
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        if tasks and os.waitpid(child, 0)[1]:
            raise TaskError(f"phase {tasks[0].phase} failed.")
        return []

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""


def main() -> None:
    """Run all stages over all sizes; print a table and draw a plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", nargs="+", default=STAGES, help="names or JSON")
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--mb", type=float, default=40, help="text of a copy")
    parser.add_argument("--cell-mb", type=int, default=8)
    parser.add_argument("--task-mb", type=int, default=32)
    parser.add_argument("--record", help="JSON file that keeps what was measured")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    record = Path(options.record) if options.record else None
    known = json.loads(record.read_text("utf-8")) if record and record.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # In another process: what this one holds, every process that it forks does.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            bytes_of = pool.apply(write_corpora, (folder, max(options.sizes), options.mb))
        for stage in options.stages:
            found = known.setdefault(stage, {})
            if not all(str(size) in found for size in options.sizes):
                measure(folder, stage, min(options.sizes), options)  # compiles the kernels
            for size in (0, *options.sizes):
                if str(size) not in found:
                    found[str(size)] = measure(folder, stage, size, options)
                    print(f"  {stage} x {size}", file=sys.stderr, flush=True)
                if record:
                    record.write_text(json.dumps(known), "utf-8")
            show(stage, found, bytes_of, options)
    if options.plot:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        options.plot.write_text(plot(known, bytes_of, options), "utf-8")


def write_corpora(folder: Path, most: int, megabytes: float) -> dict[int, int]:
    """Write the copies, one file each, and a tiny one; return the text bytes of the first n."""
    paths = sorted((DATA / "bench_en").glob("*.parquet"))
    table = pa.concat_tables(pq.read_table(path, columns=["id", "text"]) for path in paths)
    ends = np.cumsum([len(text.encode()) for text in table.column("text").to_pylist()])
    table = table.slice(0, int(np.searchsorted(ends, megabytes * 1e6)))
    pq.write_table(table.slice(0, 10), folder / "few.parquet")
    sizes = {0: 0}
    for copy in range(most):
        made = edited(table, copy) if copy else table
        pq.write_table(made, folder / f"copy-{copy:02d}.parquet", row_group_size=512)
        texts = made.column("text").combine_chunks()
        sizes[copy + 1] = sizes[copy] + texts.buffers()[2].size
    return sizes


def measure(folder: Path, stage: str, size: int, options: argparse.Namespace) -> Facts:
    """Run a pipeline of one stage over `size` copies (0: over ten documents)."""
    names = [f"copy-{copy:02d}.parquet" for copy in range(size)] or ["few.parquet"]
    label, parameters = json.loads(stage).popitem() if stage.startswith("{") else (stage, {})
    with tempfile.TemporaryDirectory(dir=folder) as name:
        content = {
            "output": f"{name}/run",
            "cell_bytes": options.cell_mb << 20,
            "task_memory_bytes": options.task_mb << 20,
            "documents": False,
            "sources": {"web": {"parquet": [str(folder / n) for n in names], "id_column": "id"}},
            "stages": [{label: parameters}],
            "executor": {"workers": 1},
        }
        path = Path(name) / "p.yaml"
        path.write_text(json.dumps(content), "utf-8")
        plan = read_plan(path, until=label)
        result = run(plan, launcher=Forked(content["output"]))
        phases = zip(result.run.plan.phases, result.seals, strict=True)
        return {
            phase.name: {
                "units": len(seal.units),
                "cpu_seconds": seal.timing.get("cpu_seconds", 0.0),
                "peak_rss_bytes": seal.timing.get("peak_rss_bytes", 0.0),
                "size_bytes": sum(part.size_bytes for part in seal.parts),
            }
            for phase, seal in phases
        }


def show(
    stage: str, found: dict[str, Facts], bytes_of: dict[int, int], options: argparse.Namespace
) -> None:
    """Print peaks and CPU seconds of the phases of a stage, by size."""
    sizes = options.sizes
    print(f"\n{stage}: cells of {options.cell_mb} MiB, task_memory_bytes {options.task_mb} MiB")
    columns = "".join(f"{bytes_of[size] / 1e6:9.0f}" for size in sizes)
    print(
        f"{'peak MB at MB of text:':26}{'idle':>8}{columns}   CPU s at{columns}   units at the last"
    )
    for phase in found[str(sizes[-1])]:
        rows = [found[str(size)].get(phase, {}) for size in (0, *sizes)]
        if not any(row.get("units") for row in rows):
            continue
        peaks = "".join(f"{row.get('peak_rss_bytes', 0) / 1e6:9.0f}" for row in rows[1:])
        seconds = "".join(f"{row.get('cpu_seconds', 0):9.2f}" for row in rows[1:])
        idle = rows[0].get("peak_rss_bytes", 0) / 1e6
        print(f"{phase:26}{idle:8.0f}{peaks}{'':11}{seconds}{rows[-1].get('units', 0):8}")


def worst(facts: Facts) -> float:
    """Return the peak of all phases behind the reading one, in MB."""
    return max(row["peak_rss_bytes"] for name, row in facts.items() if "." in name) / 1e6


def plot(
    known: dict[str, dict[str, Facts]], bytes_of: dict[int, int], options: argparse.Namespace
) -> str:
    """Return an SVG: peak memory of a worker over the size of the corpus, a line for each stage."""
    lines = {
        stage: [(bytes_of[size] / 1e6, worst(found[str(size)])) for size in options.sizes]
        for stage, found in known.items()
        if all(str(size) in found for size in options.sizes)
    }
    width, height, left, bottom = 640, 340, 60, 290
    most_x = max(x for points in lines.values() for x, _ in points)
    most_y = 100 * (1 + max(y for points in lines.values() for _, y in points) // 100)

    def place(x: float, y: float) -> str:
        return f"{left + 400 * x / most_x:.1f},{bottom - 250 * y / most_y:.1f}"

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="20">Peak memory of a worker (MB); cells of {options.cell_mb} MiB, '
        f"task_memory_bytes {options.task_mb} MiB</text>",
        f'<text x="{left + 130}" y="330">text of the corpus (MB)</text>',
    ]
    for tick in range(0, int(most_y) + 1, 100):
        x, y = place(0, tick).split(",")
        out.append(f'<line x1="{x}" y1="{y}" x2="{left + 400}" y2="{y}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 6}" y="{float(y) + 4}" text-anchor="end">{tick}</text>')
    for size in options.sizes:
        x, y = place(bytes_of[size] / 1e6, 0).split(",")
        text = f"{bytes_of[size] / 1e6:.0f}"
        out.append(f'<text x="{x}" y="{float(y) + 16}" text-anchor="middle">{text}</text>')
    for number, (stage, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(place(x, y) for x, y in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y in points:
            cx, cy = place(x, y).split(",")
            out.append(f'<circle cx="{cx}" cy="{cy}" r="3" fill="{colour}"/>')
        y = 60 + 20 * number
        out.append(
            f'<line x1="475" y1="{y - 4}" x2="495" y2="{y - 4}" stroke="{colour}" stroke-width="2"/>'
        )
        out.append(f'<text x="500" y="{y}">{stage}</text>')
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    main()

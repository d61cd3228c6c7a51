"""Peak memory while the corpus grows: of the driver, of each phase, and of commands that look.

    python benchmarks/memory_growth.py [--sizes 1 4 16] [--mb 6] [--cell-mb 2] [--task-mb 32]

The corpus of size n is that of dedup_memory.py: n edited copies of a part of bench_en, read from
CORPUSKIT_SHARED_DATA. The whole pipeline runs over it: filters, three passes of deduplication,
tokens, packing, shuffle. Each phase has a process of its own, forked from the driver, so that each
peak is that of one phase, with what the driver held by then. `growth` is the exponent between the
two largest sizes: 0 stays, 1 is in proportion.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from dedup_memory import Forked, write_corpora

from corpuskit.engine.pipeline import run
from corpuskit.engine.plan import read_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKENIZER = Path(__file__).resolve().parents[1] / "sample_data" / "tokenizer.json"
STAGES = (
    {"gopher_quality": {}}, {"gopher_repetition": {}}, {"exact_dedup": {}}, {"minhash_dedup": {}},
    {"substring_dedup": {}}, {"tokenize": {"tokenizer": str(TOKENIZER)}},
    {"pack": {"seq_len": 2048}}, {"shuffle": {}},
)  # fmt: skip
LOOK = """
import atexit, re, sys
from pathlib import Path
from corpuskit.cli.main import main

peak = lambda: re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
atexit.register(lambda: Path(sys.argv[1]).write_text(peak()))
main(sys.argv[2:])
"""
"""Runs a command and writes its peak in kB: what wait4 says counts its children, too."""


def main() -> None:
    """Run the pipeline and the commands over all sizes; print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--mb", type=float, default=6, help="text of a copy")
    parser.add_argument("--cell-mb", type=int, default=2)
    parser.add_argument("--task-mb", type=int, default=32)
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    peaks: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with spawn.Pool(1) as pool:
            sizes = pool.apply(write_corpora, (folder, max(options.sizes), options.mb))
        for size in options.sizes:
            with spawn.Pool(1, maxtasksperchild=1) as pool:
                measured = pool.apply(measure, (folder, size, options.cell_mb, options.task_mb))
            for what, peak in {**measured, **look(folder, size)}.items():
                peaks.setdefault(what, []).append(peak)
    print("| peak MB at | " + " | ".join(f"{sizes[n] / 1e6:.0f} MB" for n in options.sizes), end="")
    print(" | growth |\n" + "|---" * (len(options.sizes) + 2) + "|")
    for what, column in peaks.items():
        cells = " | ".join(f"{peak:.0f}" for peak in column)
        print(f"| {what} | {cells} | {growth(options.sizes, column):.2f} |")


def measure(folder: Path, size: int, cell_mb: int, task_mb: int) -> dict[str, float]:
    """Run the pipeline over `size` copies; return the peaks in MB of its phases and the driver."""
    content = {
        "output": str(folder / f"run-{size}"),
        "cell_bytes": cell_mb << 20,
        "task_memory_bytes": task_mb << 20,
        "sources": {
            "web": {
                "parquet": [str(folder / f"copy-{copy:02d}.parquet") for copy in range(size)],
                "id_column": "id",
            }
        },
        "stages": STAGES,
        "executor": {"kind": "local", "workers": 1},
    }
    path = folder / f"run-{size}.yaml"
    path.write_text(json.dumps(content), "utf-8")
    plan = read_plan(str(path))
    result = run(plan, launcher=Forked(plan.settings.output), force=True)
    phases = zip(result.run.plan.phases, result.seals, strict=True)
    peaks = {f"phase `{p.name}`": s.timing.get("peak_rss_bytes", 0.0) / 1e6 for p, s in phases}
    status = Path("/proc/self/status").read_text("ascii")
    held = re.search(r"VmHWM:\s+(\d+)", status)
    assert held is not None, "Linux only"
    return {"`run`, the driver": int(held[1]) / 1e3, **peaks}


def look(folder: Path, size: int) -> dict[str, float]:
    """Return the peaks in MB of commands that look at the finished run."""
    directory, note = str(folder / f"run-{size}"), folder / "peak"
    first = pq.read_table(folder / "copy-00.parquet", columns=["id"]).column("id")[0].as_py()
    commands: Sequence[list[str]] = (
        ["plan", str(folder / f"run-{size}.yaml")], ["status", directory], ["verify", directory],
        ["report", directory], ["why", directory, first],
    )  # fmt: skip
    peaks = {}
    for command in commands:
        subprocess.run(
            [sys.executable, "-c", LOOK, str(note), *command],
            stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        peaks[f"`{command[0]}`"] = int(note.read_text()) / 1e3
    return peaks


def growth(sizes: Sequence[int], peaks: Sequence[float]) -> float:
    """Return the exponent of the growth between the two largest sizes."""
    if len(sizes) < 2 or min(peaks[-2:]) <= 0:
        return 0.0
    return math.log(peaks[-1] / peaks[-2]) / math.log(sizes[-1] / sizes[-2])


if __name__ == "__main__":
    main()

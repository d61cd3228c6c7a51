"""What `corpuskit plan` says about deduplicating more than this machine holds: simulated footers.

    python benchmarks/dedup_plan.py [--tb 1 65] [--file-gb 10] [--stages exact_dedup ...]

The inputs are what the Parquet source reads in the footers of files of `--file-gb` GB of text (row
groups of 64 MB); there are no files. All figures are the estimates that the command prints:
nothing counts as dropped in advance, rates are those measured on this kind of machine. `core-h` is
CPU time of all tasks, `a worker` its memory, `units` how many tasks can be had at most;
`scratch` is what the passes of a stage write beside documents and ledger, in bytes per byte of text;
the last line is the most that lies there at a time, with `--shuffle-files delete` less than all.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from corpuskit.engine.inputs import Inputs
from corpuskit.engine.phase import MIN_TASKS, TASK_BYTES
from corpuskit.engine.plan import read_plan
from corpuskit.engine.resources import (
    AvailableResources,
    Preflight,
    ResourceEstimate,
    estimate_resources,
    find_problems,
    format_size,
    peak_disk,
)
from corpuskit.engine.rundir import RunDirectory
from corpuskit.stage import InputFile, Slice

STAGES = ("exact_dedup", "minhash_dedup", "substring_dedup", "line_dedup")
GROUP_BYTES = 64_000_000


def main() -> None:
    """Print a table for each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tb", nargs="+", type=float, default=[1, 65])
    parser.add_argument("--file-gb", type=int, default=10)
    parser.add_argument("--stages", nargs="+", default=list(STAGES), help="names or JSON")
    parser.add_argument("--task-gb", type=float, default=4, help="task_memory_bytes")
    parser.add_argument("--shuffle-files", choices=["keep", "delete"], default="keep")
    options = parser.parse_args()
    for terabytes in options.tb:
        began = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            run = simulated(Path(folder), terabytes, options)
            needs = estimate_resources(run, 0)
            available = AvailableResources(None, "", 1, None, "")
            problems = find_problems(run, needs, available)
        show(terabytes, Preflight(tuple(needs), available, 0.0, tuple(problems)))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(
            f"(planned in {time.process_time() - began:.1f} CPU s, {peak:.0f} MB)", file=sys.stderr
        )


def simulated(folder: Path, terabytes: float, options: argparse.Namespace) -> RunDirectory:
    """Return a run directory whose inputs are as from footers."""
    stages = [json.loads(one) if one.startswith("{") else one for one in options.stages]
    content = {
        "output": str(folder / "run"),
        "documents": False,
        "shuffle_files": options.shuffle_files,
        "task_memory_bytes": int(options.task_gb * (1 << 30)),
        "sources": {"web": {"parquet": "web/*.parquet"}},
        "stages": stages,
    }
    path = folder / "p.yaml"
    path.write_text(json.dumps(content), "utf-8")
    last = stages[-1] if isinstance(stages[-1], str) else next(iter(stages[-1]))
    num_files = round(terabytes * 1000 / options.file_gb)
    groups = options.file_gb * 1_000_000_000 // GROUP_BYTES
    pieces = tuple(Slice(number, number + 1, GROUP_BYTES) for number in range(groups))
    size = options.file_gb * 300_000_000
    files = (
        InputFile(number, "web", f"web/{number:06d}.parquet", f"{number:06d}.parquet", size, "0")
        for number in range(num_files)
    )
    numbers = tuple(range(num_files * groups))  # a unit for each slice
    inputs = Inputs(tuple(files), (pieces,) * num_files, numbers, numbers)
    return RunDirectory(read_plan(path, until=last), inputs)


def show(terabytes: float, flight: Preflight) -> None:
    """Print the phases, and what each stage takes in all."""
    needs = flight.estimates
    text = needs[0].text_bytes
    print(f"\n{terabytes:g} TB of text, {needs[0].documents:,} documents")
    print(f"{'phase':32}{'units':>12}{'tasks':>8}{'a worker':>10}{'core-h':>10}{'writes':>10}")
    for need in needs:
        if need.units:
            print(
                f"{need.phase:32}{need.units:12,}{num_tasks(need, needs[0].units):8,}{format_size(need.memory_bytes):>10}"
                f"{need.cpu_seconds / 3600:10.2f}{format_size(need.disk_bytes):>10}"
            )
    by_stage: dict[str, list[ResourceEstimate]] = defaultdict(list)
    for need in needs:
        by_stage[need.phase.partition(".")[0]].append(need)
    print(f"{'stage':32}{'':12}{'':8}{'':10}{'core-h':>10}{'scratch':>10}  bytes per byte of text")
    for stage, some in by_stage.items():
        hours = sum(need.cpu_seconds for need in some) / 3600
        scratch = sum(need.disk_bytes for need in some if not need.phase.endswith(".apply"))
        print(
            f"{stage:32}{'':12}{'':8}{'':10}{hours:10.2f}{format_size(scratch):>10}  {scratch / text:.3f}"
        )
    peak, where = peak_disk(needs)
    print(
        f"at most {format_size(peak)} at a time, in {where}: {peak / text:.3f} bytes per byte of "
        f"text, {(peak - needs[0].disk_bytes) / text:.3f} without the documents"
    )
    for problem in flight.problems:
        print(f"refused: {problem}")


def num_tasks(need: ResourceEstimate, cells: int) -> int:
    """Return into how many tasks a phase is cut; hash ranges have no text that could be counted."""
    by_text = -(-need.text_bytes // TASK_BYTES) if need.units == cells else 0
    return min(max(by_text, MIN_TASKS), need.units)


if __name__ == "__main__":
    main()

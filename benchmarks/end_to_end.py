"""The whole pipeline on real text: three sources, two workers; where the time and memory go.

    python benchmarks/end_to_end.py [--workers 2] [--keep DIR]
    python benchmarks/end_to_end.py --growth 1 4 16

Reads bench_en, bench_multi and code from CORPUSKIT_SHARED_DATA. Prints the funnel, the accounts, CPU
seconds and MB of input text per CPU second for the whole run (start-up of workers included) and for
each stage, the floor (reading and writing the same documents with pyarrow alone), and peak memory.
With `--growth`, the same over n edited copies of each file, and what one more copy of one file costs
after the largest.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("CORPUSKIT_SHARED_DATA", ROOT.parent / "shared" / "data"))


def pipeline(output: Path, workers: int) -> dict:
    """Return the pipeline: every kind of stage, three sources."""
    tokenizer = DATA / "tokenizers" / "gpt_neox_olmo" / "tokenizer.json"
    return {
        "output": str(output),
        "sources": {
            "web": {"parquet": str(DATA / "bench_en" / "*.parquet"), "id_column": "id"},
            "multi": {"parquet": str(DATA / "bench_multi" / "*.parquet"), "id_column": "id"},
            "code": {"parquet": str(DATA / "code" / "*.parquet"), "id_column": "id"},
        },
        "stages": [
            {"holdout": {"ratio": 0.002}},
            {
                "language": {
                    "model": str(DATA / "models" / "lid.176.ftz"),
                    "min_score": 0.0,
                    "max_bytes": 4096,
                }
            },
            {"gopher_quality": {"words": "whitespace"}},
            "exact_dedup",
            "minhash_dedup",
            "pii",
            {"mix": {"weights": {"web": 6, "multi": 3, "code": 1}}},
            {"tokenize": {"tokenizer": str(tokenizer)}},
            {"pack": {"seq_len": 2048}},
            "shuffle",
        ],
        "executor": {"workers": workers},
    }


def growth(folder: Path, sizes: list[int], workers: int) -> None:
    """Print CPU and memory at each number of copies, and what a new file then costs."""
    content = pipeline(folder / "run", workers)
    sources = content["sources"].values()
    originals = [sorted(Path(s["parquet"]).parent.glob("*.parquet")) for s in sources]
    for source, paths in zip(sources, originals, strict=True):
        source["parquet"] = str(folder / "input" / paths[0].parent.name / "*.parquet")
    path = folder / "growth.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    print(f"{'copies':>8} {'MB':>8} {'CPU s':>8} {'MB/CPU s':>9} {'peak MB of a worker':>20}")
    size = copies = 0
    for wanted in sizes:
        for copy in range(copies, wanted):
            size += sum(add(folder, file, copy) for paths in originals for file in paths)
        copies = wanted
        shutil.rmtree(folder / "run", ignore_errors=True)
        show(str(copies), path, size)
    show("and one", path, add(folder, originals[0][0], copies))


def add(folder: Path, original: Path, copy: int) -> int:
    """Write an edited copy of a file of the input; return its bytes of text."""
    from dedup_peers import edited  # beside this file; the baseline imports it as a module

    table = pq.read_table(original, columns=["id", "text"])
    table = edited(table, copy) if copy else table
    place = folder / "input" / original.parent.name
    place.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, place / f"{copy:02d}-{original.name}", row_group_size=512)
    return sum(len(text.encode()) for text in table.column("text").to_pylist())


def show(label: str, path: Path, size: int) -> None:
    """Run the pipeline, and print a row of the table."""
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import run_facts

    cpu, _, _ = run(path)
    peak = run_facts(RunDirectory.open(str(path.parent / "run")))["peak_rss_bytes"] / 1e6
    print(
        f"{label:>8} {size / 1e6:8.0f} {cpu:8.1f} {size / 1e6 / cpu:9.1f} {peak:20.0f}", flush=True
    )


def children_cpu() -> float:
    """Return the CPU seconds of waited-for children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(path: Path) -> tuple[float, float, str]:
    """Run a pipeline; return CPU seconds, wall seconds and what it printed."""
    cpu, wall = children_cpu(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "corpuskit", "run", str(path)], cwd=ROOT, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return children_cpu() - cpu, time.perf_counter() - wall, done.stdout


def floor(folder: Path) -> tuple[float, int]:
    """Read and write the same documents with pyarrow alone; return CPU seconds and text bytes."""
    began, size = time.process_time(), 0
    paths = [
        p for name in ("bench_en", "bench_multi", "code") for p in (DATA / name).glob("*.parquet")
    ]
    for path in sorted(paths):
        table = pq.read_table(path, use_threads=False)
        pq.write_table(table, folder / path.name, compression="zstd", compression_level=3)
        texts = table.column("text").cast(pa.large_string())
        size += sum(len(chunk.buffers()[2] or b"") for chunk in texts.chunks)
    return time.process_time() - began, size


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="run directory to leave behind")
    parser.add_argument("--growth", nargs="+", type=int, metavar="N", help="copies of the input")
    options = parser.parse_args()
    if not DATA.exists():
        sys.exit(f"no real data at {DATA}: set CORPUSKIT_SHARED_DATA")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.growth:
            growth(folder, options.growth, options.workers)
            return
        output = options.keep or folder / "run"
        path = folder / "real.yaml"
        path.write_text(yaml.safe_dump(pipeline(output, options.workers), sort_keys=False))
        floor_cpu, size = floor(folder)
        cpu, wall, printed = run(path)
        again_cpu, again_wall, _ = run(path)
        report(output, printed, size, options.workers)
    mega = size / 1e6
    print(f"\ninput {mega:.1f} MB of text; {options.workers} workers")
    print(f"whole run      {cpu:8.1f} CPU s  {mega / cpu:7.2f} MB/CPU s  {wall:7.1f} s wall")
    print(f"run again      {again_cpu:8.1f} CPU s  (everything reused)    {again_wall:7.1f} s wall")
    print(
        f"floor: pyarrow {floor_cpu:8.1f} CPU s  {mega / floor_cpu:7.2f} MB/CPU s (read, write zstd-3)"
    )
    print(f"whole run is {cpu / floor_cpu:.1f} times the floor")


def report(output: Path, printed: str, size: int, workers: int) -> None:
    """Print the funnel, the accounts, and the cost of each stage."""
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import accounts, funnel, overheads, run_facts, sealed

    opened = RunDirectory.open(str(output))
    finished = sealed(opened)
    print(printed[printed.index("Funnel") :])
    print(f"{'source':8} {'read':>8} {'dropped':>8} {'kept':>8} {'missing':>8}")
    for one in accounts(opened, finished):
        print(
            f"{one.source:8} {one.num_read:8} {one.num_dropped:8} {one.num_kept:8} {one.num_missing:8}"
        )
    costs = {row.stage: row.cpu_seconds for row in funnel(opened, finished) if row.cpu_seconds}
    extra = overheads(finished)
    costs["(read)"], costs["(write)"] = extra["read"], extra["write"]
    total = extra["cpu_seconds"]
    print(f"\n{'stage':16} {'CPU s':>8} {'share':>6} {'MB in/CPU s':>12}")
    for name, seconds in sorted(costs.items(), key=lambda pair: -pair[1]):
        print(
            f"{name:16} {seconds:8.2f} {seconds / total:6.1%} {size / 1e6 / max(seconds, 1e-9):12.1f}"
        )
    print(f"{'tasks in all':16} {total:8.2f}")
    peak = run_facts(opened)["peak_rss_bytes"]
    print(f"peak RSS of a worker: {peak / 1e6:.0f} MB ({workers} workers)")


if __name__ == "__main__":
    main()

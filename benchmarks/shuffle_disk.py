"""Disk of a run directory while it grows, with `shuffle_files: keep` and `delete`.

    python benchmarks/shuffle_disk.py [--mb 100] [--only keep delete]

Parts of bench_en go through exact, near-duplicate, line and substring deduplication, tokens,
packing and the shuffle. Sizes are taken when the tasks of a phase are done and before it is sealed,
when most lies there, and at the end; all figures are bytes per byte of text. Reads bench_en from
CORPUSKIT_SHARED_DATA.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from dedup_peers import DATA

from corpuskit.engine.executors import Launcher
from corpuskit.engine.pipeline import run
from corpuskit.engine.plan import read_plan
from corpuskit.engine.rundir import RunDirectory
from corpuskit.engine.task import TaskRunner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.engine.executors import OnEvent, Task, TaskFailure

TOKENIZER = DATA / "tokenizers" / "allenai_dolma2" / "tokenizer.json"
STAGES = ("exact_dedup", "minhash_dedup", "line_dedup", "substring_dedup")


class Measured(Launcher):
    """Runs tasks here, and takes the sizes of the run directory after those of each phase."""

    def __init__(self, out: Path) -> None:
        self.out, self.sizes = out, [(0, 0)]

    def __enter__(self) -> Measured:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def run(self, tasks: Sequence[Task], on_event: OnEvent) -> list[TaskFailure]:
        runner = TaskRunner(RunDirectory.open(str(self.out)))
        for task in tasks:
            runner.run_task(task)
        self.sizes.append(sizes(self.out))
        return []


def sizes(out: Path) -> tuple[int, int]:
    """Return the bytes of all shuffle files but sidecars, and of the whole run directory."""
    files = [(path.name, path.stat().st_size) for path in out.rglob("*") if path.is_file()]
    shuffle = [n for name, n in files if name.endswith(".arrow") and "sidecar" not in name]
    return sum(shuffle), sum(size for _, size in files)


def main() -> None:
    """Run both ways and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=100)
    parser.add_argument("--only", nargs="+", default=["keep", "delete"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = write_part(folder / "in.parquet", options.mb * 1e6)
        print(f"{text / 1e6:.0f} MB of text; bytes per byte of text")
        print(
            f"{'shuffle_files':16}{'shuffle, peak':>15}{'end':>8}{'all, peak':>12}{'end':>8}{'CPU s':>8}"
        )
        for choice in options.only:
            began = time.process_time()
            launcher = Measured(folder / choice)
            content = {
                "output": str(folder / choice), "shuffle_files": choice, "cell_bytes": 8 << 20,
                "documents": False, "sources": {"web": {"parquet": str(folder / "in.parquet")}},
                "stages": [*STAGES, {"tokenize": {"tokenizer": str(TOKENIZER)}}, "pack", "shuffle"],
            }  # fmt: skip
            path = folder / f"{choice}.yaml"
            path.write_text(json.dumps(content), "utf-8")
            run(read_plan(path), launcher=launcher)
            ends = sizes(folder / choice)
            peaks = [max(column) for column in zip(*launcher.sizes, strict=True)]
            row = [one / text for pair in zip(peaks, ends, strict=True) for one in pair]
            print(f"{choice:16}{row[0]:15.2f}{row[1]:8.2f}{row[2]:12.2f}{row[3]:8.2f}"
                  f"{time.process_time() - began:8.1f}", flush=True)  # fmt: skip


def write_part(path: Path, most: float) -> int:
    """Write the first documents of bench_en as Parquet; return the bytes of their text."""
    tables, size = [], 0
    for source in sorted((DATA / "bench_en").glob("*.parquet")):
        for batch in pq.ParquetFile(source).iter_batches(columns=["id", "text"]):
            if size < most:
                tables.append(pa.table(batch))
                size += sum(len(text.as_py().encode()) for text in batch.column("text"))
    pq.write_table(pa.concat_tables(tables), path, row_group_size=2000)
    return size


if __name__ == "__main__":
    main()

"""Repeated spans by both engines on the same documents: CPU by pass, memory, scratch, equality.

    python benchmarks/substring.py [--corpora bench_en remainder bench_multi planted]
        [--windows 100 250 500] [--cuts 64:1024 16:128 4:32] [--mb 0] [--engines ...]

`remainder` is what is left of bench_en when all that repeats for 100 bytes has been cut from it.
Every row is a run of a pipeline with substring_dedup alone, which annotates without trimming; each
pass runs in a process of its own, forked when all kernels were loaded. CPU seconds are those of the
passes, from the Parquet files to sidecars with spans. Peaks are of the process, of which 330 MB are libraries and kernels. `scratch` is what all passes write,
in bytes per byte of text. Cuts are `cell_bytes:task_memory_bytes` in MiB: the first is for all
corpora and windows, the others for bench_en at 250 (suffix_array always has the memory it needs).
The floor is one reading of the texts and one hash over all text. `same` compares the spans with
those of the first row of the corpus and window. Reads CORPUSKIT_SHARED_DATA.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from dedup_memory import Forked
from dedup_peers import DATA

from corpuskit.engine.documents import read_part
from corpuskit.engine.phase import cut_units
from corpuskit.engine.pipeline import run
from corpuskit.engine.plan import read_plan
from corpuskit.engine.rundir import RunDirectory
from corpuskit.engine.task import run_task
from corpuskit.formats.batch import list_spans, utf8
from corpuskit.formats.shards import read_sidecars
from corpuskit.kernels.hashing import hash_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.engine.executors import OnEvent, Task, TaskFailure

ENGINES = ("suffix_array", "partitioned")
FEW = "few"
REST = "remainder"
SUFFIX_ARRAY_MIB = 8192

Cut = tuple[int, int]


class Measured(NamedTuple):
    """One run: by pass CPU seconds and peak memory, bytes written, units; a hash of the spans."""

    seconds: dict[str, float]
    peaks: dict[str, float]
    written: float
    units: dict[str, int]
    spans: str
    num_spans: int
    span_bytes: int


def main() -> None:
    """Print one table for each corpus."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--corpora", nargs="+", default=["bench_en", REST, "bench_multi", "planted"]
    )
    parser.add_argument("--windows", nargs="+", type=int, default=[100, 250, 500])
    parser.add_argument("--cuts", nargs="+", default=["64:1024", "16:128", "4:32"])
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--mb", type=float, default=0, help="text of a corpus at most; 0: all")
    options = parser.parse_args()
    cuts = [(int(cut.partition(":")[0]), int(cut.partition(":")[2])) for cut in options.cuts]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_few(folder)
        for engine in ENGINES:
            for action in ("annotate", "cut"):
                params = {"engine": engine, "min_bytes": 100, "action": action}
                start(folder, FEW, params, (64, 1024), Here)
        write_corpora(folder, options)
        for corpus in options.corpora:
            show(folder, corpus, cuts, options)


class Here(Forked):
    """Runs tasks in this process, so that those that it forks later have all kernels loaded."""

    def run(self, tasks: Sequence[Task], on_event: OnEvent) -> list[TaskFailure]:
        if tasks:
            directory = RunDirectory.open(self.address)
            found = cut_units(directory, directory.plan.phases[tasks[0].phase])
            units = {unit.number: unit for unit in found}
            for task in tasks:
                run_task(directory, task, [units[number] for number in task.units])
        return []


def write_few(folder: Path) -> None:
    """Write a corpus that takes every engine through all that it does."""
    table = pq.read_table(DATA / "substring" / "docs.parquet", columns=["id", "text"])
    pq.write_table(table.slice(0, 30), folder / f"{FEW}.parquet")


def write_corpora(folder: Path, options: argparse.Namespace) -> None:
    """Write each corpus as `<name>.parquet` with ids and texts."""
    places = {
        "bench_en": DATA / "bench_en",
        "bench_multi": DATA / "bench_multi",
        "planted": DATA / "substring" / "docs.parquet",
    }
    for corpus, place in places.items():
        paths = sorted(place.glob("*.parquet")) if place.is_dir() else [place]
        table = pa.concat_tables(pq.read_table(path, columns=["id", "text"]) for path in paths)
        sizes = np.cumsum([len(text.encode()) for text in table.column("text").to_pylist()])
        if options.mb:
            table = table.slice(0, int(np.searchsorted(sizes, options.mb * 1e6)))
        pq.write_table(table, folder / f"{corpus}.parquet", row_group_size=512)
    if REST in options.corpora:
        params = {"min_bytes": 100, "trim": "char", "min_fragment": 0, "min_document": 0}
        made = start(folder, "bench_en", params, (64, 1024), has_documents=True)
        parts = sorted(Path(made.address, "documents").glob("*.parquet"))
        table = pa.concat_tables(pq.read_table(path, columns=["id", "text"]) for path in parts)
        pq.write_table(table, folder / f"{REST}.parquet", row_group_size=512)
        shutil.rmtree(made.address)


class Made(NamedTuple):
    """A finished run."""

    address: str
    result: Any


def start(
    folder: Path,
    corpus: str,
    params: dict[str, Any],
    cut: Cut,
    launcher: type[Forked] = Forked,
    *,
    has_documents: bool = False,
) -> Made:
    """Run a pipeline of one stage over a corpus."""
    name = tempfile.mkdtemp(dir=folder)
    content = {
        "output": f"{name}/run",
        "cell_bytes": cut[0] << 20,
        "task_memory_bytes": cut[1] << 20,
        "documents": has_documents,
        "sources": {"web": {"parquet": [str(folder / f"{corpus}.parquet")], "id_column": "id"}},
        "stages": [{"substring_dedup": params}],
        "executor": {"workers": 1},
    }
    path = Path(name) / "p.yaml"
    path.write_text(json.dumps(content), "utf-8")
    plan = read_plan(path, until=None if has_documents else "substring_dedup")
    return Made(content["output"], run(plan, launcher=launcher(content["output"])))


def measure(folder: Path, corpus: str, engine: str, window: int, cut: Cut) -> Measured:
    """Run one engine over a corpus, and read what it cost and found."""
    params = {
        "engine": engine,
        "min_bytes": window,
        "action": "annotate",
        "trim": "char",
        "min_fragment": 0,
    }
    if engine == "suffix_array":
        cut = (cut[0], SUFFIX_ARRAY_MIB)
    made = start(folder, corpus, params, cut)
    phases = list(zip(made.result.run.plan.phases, made.result.seals, strict=True))
    passes = {p.name.partition(".")[2]: seal for p, seal in phases if "." in p.name}
    digest, num_spans, span_bytes = read_spans(made.result.run, phases[-1][1])
    found = Measured(
        {name: seal.timing.get("cpu_seconds", 0.0) for name, seal in passes.items()},
        {name: seal.timing.get("peak_rss_bytes", 0.0) for name, seal in passes.items()},
        sum(part.size_bytes for seal in passes.values() for part in seal.parts),
        {name: len(seal.units) for name, seal in passes.items()},
        digest,
        num_spans,
        span_bytes,
    )
    shutil.rmtree(Path(made.address).parent)
    return found


def read_spans(directory: RunDirectory, seal: Any) -> tuple[str, int, int]:
    """Return a hash of the spans of all documents, how many there are, and their bytes."""
    found: list[pa.ListArray] = [
        read_sidecars([directory.store.at(part.path)]).columns["substring_dedup.spans"]
        for part in seal.by_role("sidecar")
    ]
    rows, starts, ends = list_spans(pa.concat_arrays(found))
    digest = hashlib.blake2b(np.stack([rows, starts, ends]).tobytes(), digest_size=8)
    return digest.hexdigest(), len(rows), int((ends - starts).sum())


def floor(folder: Path, corpus: str) -> tuple[float, float]:
    """Return CPU seconds of one reading of the texts with one hash over all text, and its MB."""
    made = start(folder, corpus, {"min_bytes": 250}, (64, 1024), has_documents=True)
    run = made.result.run
    parts = list(run.seal(0).by_role("documents"))
    best, size = float("inf"), 0
    for _ in range(2):
        began, size = time.process_time(), 0
        for part in parts:
            for batch in read_part(run, part, ["text"]):
                text = utf8(batch.column("text"))
                hash_texts(*text)
                size += int(text.sizes().sum())
        best = min(best, time.process_time() - began)
    shutil.rmtree(Path(made.address).parent)
    return best, size / 1e6


def show(
    folder: Path,
    corpus: str,
    cuts: list[Cut],
    options: argparse.Namespace,
) -> None:
    """Print the rows of a corpus."""
    least, megabytes = floor(folder, corpus)
    print(f"\n{corpus}: {megabytes:.1f} MB; floor {least:.2f} CPU s = {megabytes / least:.0f} MB/s")
    print(
        f"{'window':>7} {'engine':13} {'cell:task MiB':>14} {'CPU s':>7} {'MB/s':>6} {'ratio':>6} "
        f"{'peak MB':>8} {'scratch':>8} {'spans':>8} {'share':>6} same  passes: CPU s (units)"
    )
    for window in options.windows:
        first: Measured | None = None
        is_wide = corpus == "bench_en" and window == 250
        for engine in options.engines:
            for cut in cuts if is_wide and engine == "partitioned" else cuts[:1]:
                row = measure(folder, corpus, engine, window, cut)
                total = sum(row.seconds.values())
                if first is None:
                    first, slow = row, total
                parts = ", ".join(
                    f"{n} {t:.2f} ({row.units[n]})" for n, t in row.seconds.items() if t
                )
                print(
                    f"{window:7} {engine:13} {cut[0]:>9}:{cut[1]:<4} {total:7.2f} "
                    f"{megabytes / total:6.1f} {slow / total:5.1f}x "
                    f"{max(row.peaks.values()) / 1e6:8.0f} {row.written / megabytes / 1e6:8.2f} "
                    f"{row.num_spans:8,} {row.span_bytes / megabytes / 1e6:6.3f} "
                    f"{'yes ' if row.spans == first.spans else 'NO  '}  {parts}",
                    flush=True,
                )


if __name__ == "__main__":
    main()

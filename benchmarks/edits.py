"""What another input file costs: 16 files of real text, then one more, and other edits.

    python benchmarks/edits.py [--until STAGE]

bench_en from CORPUSKIT_SHARED_DATA as 17 Parquet files of 6.6 MB of text, through language, filters,
two kinds of dedup, PII and tokens; one worker, kernels compiled. CPU seconds of each command with
its worker, and the units that were computed. All copies but the last are run and thrown away.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from corpuskit.engine.rundir import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("CORPUSKIT_SHARED_DATA", ROOT.parent / "shared" / "data"))
FILES = 17
STAGES = [
    {"language": {"keep": ["en"], "min_score": 0.65}},
    "gopher_repetition",
    "gopher_quality",
    "exact_dedup",
    "minhash_dedup",
    "pii",
    {"tokenize": {"tokenizer": str(ROOT / "sample_data/tokenizer.json")}},
    {"pack": {"seq_len": 2048}},
    "shuffle",
]


def write_files(folder: Path) -> list[Path]:
    """Write the text as FILES Parquet files of about equal size; return them."""
    table = pa.concat_tables(
        pq.read_table(path) for path in sorted(DATA.glob("bench_en/*.parquet"))
    )
    each = -(-len(table) // FILES)
    paths = [folder / f"part-{10 * number:03d}.parquet" for number in range(FILES)]
    for number, path in enumerate(paths):
        pq.write_table(table.slice(number * each, each), path, row_group_size=500)
    return paths


def run(name: str, path: Path, options: Sequence[str]) -> float:
    """Run the pipeline and print a line; return its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "corpuskit", "run", str(path), "--quiet", *options]
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    directory = RunDirectory.open(yaml.safe_load(path.read_text())["output"])
    counts = []
    for phase in directory.plan.phases:
        seal = directory.seal(phase.index)
        if phase.is_stream or directory.plan.current_pass(phase).is_cell_alone:
            reused = round(seal.timing.get("reused_units", 0))
            counts.append(f"{phase.name} {len(seal.units) - reused}/{len(seal.units)}")
    print(f"{name:40} {seconds:6.1f} CPU s   {', '.join(counts)}", flush=True)
    return seconds


def main() -> None:
    """Print a line for each edit."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--until", help="end after this stage")
    until = parser.parse_args().until
    options = ["--until", until] if until else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = folder / "in"
        files.mkdir()
        *first, last = write_files(files)
        more = [folder / "last.parquet", folder / "middle.parquet"]
        last.rename(more[0])
        first[8].rename(more[1])
        path = folder / "p.yaml"
        given = {
            "output": str(folder / "run"),
            "sources": {"en": {"parquet": str(files / "*.parquet"), "id_column": "id"}},
            "stages": STAGES,
            "executor": {"workers": 1},
        }
        path.write_text(yaml.safe_dump(given))
        run("15 files", path, options)
        shutil.copy(more[0], last)
        run("one more, the last by name", path, options)
        shutil.copy(more[1], first[8])
        run("one more in the middle", path, options)
        first[3].unlink()
        run("one fewer", path, options)
        run("nothing changed", path, options)
        shutil.rmtree(folder / "run")
        run("these files afresh", path, options)


if __name__ == "__main__":
    main()

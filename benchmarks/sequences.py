"""CPU seconds of shuffle, against the least that the same bytes can cost.

Both passes against copying the same files once, and against reading and writing the same rows once
as Parquet. Everything is in the page cache, CPU seconds are those of the whole process, each figure
is the best of `--repeats`. `tokenization.py` and `packing.py` measure what comes before.

    python benchmarks/sequences.py
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from corpuskit.formats.manifest import Part
from corpuskit.formats.shards import write_token_tables, write_tokens
from corpuskit.formats.shuffle_files import read_shuffle, write_shuffle
from corpuskit.stage import Unit
from corpuskit.stages.sequences._rows import (
    PackedDocuments,
    cut,
    packed_schema,
    row_tables,
    windows,
)
from corpuskit.stages.sequences.shuffle import Shuffle, _read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

WIDTH = 2049


def main() -> None:
    """Run all measurements and print one line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench_shuffle(Path(folder), options.repeats)


def best(repeats: int, work: Callable[[], object]) -> float:
    """Return the least CPU seconds of some calls, after one that compiles and opens."""
    work()
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def random_documents(num: int, seed: int) -> PackedDocuments:
    """Return documents with lognormal lengths: median 493, mean 856 tokens."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(np.exp(rng.normal(6.2, 1.05, num)), 16, None).astype(np.int64)
    tokens = rng.integers(0, 50_000, lengths.sum(), np.uint16)
    once, band = np.ones(num, np.int32), np.zeros(num, np.int64)
    return PackedDocuments(tokens, lengths, lengths * 4, np.arange(num), once, band)


GIVEN = {
    "tokenizer": {"hash": "", "dtype": "uint16", "pad": 0},
    "packing": {"seq_len": WIDTH - 1},
}


class BenchContext:
    """What one unit of work touches, kept in memory or in a folder."""

    seed = 0
    given = GIVEN

    def __init__(self, unit: Unit, folder: Path | None, runs: list[Path]) -> None:
        self.unit, self.folder, self.runs = unit, folder, runs
        self.totals: Mapping[str, int] = {}

    def count(self, name: str, value: int = 1) -> None:
        """Count nothing."""

    def counters(self, name: str) -> Mapping[str, int]:
        return self.totals

    def path(self, part: Part) -> Path:
        return Path(part.path)

    def write_shuffle(
        self, name: str, columns: Mapping[str, Any], *, is_sorted: bool = False
    ) -> None:
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
            write_shuffle(Path(file.name), columns, is_sorted=is_sorted)
        if name.startswith("rows-"):
            self.runs.append(Path(file.name))
        else:
            Path(file.name).unlink()

    def write_part(
        self, role: str, folder: str, write: Callable[[Path], None], **facts: Any
    ) -> None:
        with tempfile.NamedTemporaryFile(dir=self.folder) as file:
            write(Path(file.name))

    def read_shuffle(self, name: str, low: int, high: int, schema: pa.Schema) -> pa.Table:
        tables = [read_shuffle(path, low, high) for path in self.runs]
        return pa.concat_tables([schema.empty_table(), *tables]).combine_chunks()


class BenchPlan:
    """Cells of packed rows."""

    given = GIVEN

    def __init__(self, cells: list[Unit]) -> None:
        self._cells = cells

    def cells(self) -> list[Unit]:
        return self._cells

    def counters(self, name: str) -> Mapping[str, int]:
        return Counter({"rows/web": sum(cell.rows for cell in self._cells)})


def bench_shuffle(folder: Path, repeats: int, num_cells: int = 4) -> None:
    cells = list(write_cells(folder, num_cells))
    paths = [Path(cell.part.path) for cell in cells if cell.part]
    plan = BenchPlan(cells)
    scatter, _, gather = Shuffle().passes()  # the second is for very many cells

    def run(which: Any, runs: list[Path]) -> list[Path]:
        for unit in which.units(plan):
            context = BenchContext(unit, folder, runs)
            context.totals = plan.counters("pack")
            which.run(context)
        return runs

    def scatter_anew() -> None:
        for path in run(scatter, []):
            path.unlink()

    copied = best(repeats, lambda: copy_files(paths))
    rewritten = best(repeats, lambda: rewrite_files(paths))
    scattered = best(repeats, scatter_anew)
    runs = run(scatter, [])
    gathered = best(repeats, lambda: run(gather, runs))
    mb, both = sum(path.stat().st_size for path in paths) / 1e6, scattered + gathered
    print(
        f"shuffle   scatter {mb / scattered:.0f} MB/CPU-s, gather {mb / gathered:.0f}, both "
        f"{mb / both:.0f}; files copied at {mb / copied:.0f}, ratio {copied / both:.2f}; "
        f"rewritten as Parquet at {mb / rewritten:.0f}, ratio {rewritten / both:.2f}"
    )


def copy_files(paths: list[Path]) -> None:
    for path in paths:
        with path.open("rb") as source, tempfile.TemporaryFile(dir=path.parent) as target:
            shutil.copyfileobj(source, target, 1 << 20)


def rewrite_files(paths: list[Path]) -> None:
    for path in paths:
        with tempfile.NamedTemporaryFile(dir=path.parent) as target:
            for table in _read_rows(path, GIVEN):
                write_tokens(Path(target.name), table)


def write_cells(folder: Path, num_cells: int) -> Iterator[Unit]:
    schema = packed_schema(GIVEN, source="web", shuffled=False)
    documents = random_documents(24_000, 99)
    pieces = cut(documents, np.arange(len(documents.keys)), WIDTH, joined=False)
    found = list(windows(pieces, 16384, WIDTH, joined=False))
    rows = sum(window.num_rows for window in found)
    for number in range(num_cells):
        path = folder / f"cell-{number}.parquet"
        write_token_tables(path, schema, row_tables(found, documents, schema, WIDTH, 0))
        yield Unit(number, "web", 0, 0, rows, part=Part(number, "packed", str(path), rows=rows))


if __name__ == "__main__":
    main()

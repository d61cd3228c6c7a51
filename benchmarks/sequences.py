"""CPU seconds of tokenize, pack and shuffle, each against the least that the same bytes can cost.

Tokenize: both engines alone, and the stage around them. Pack: placing pieces, and filling rows
against one np.copyto of the same tokens. Shuffle: both passes against copying the same files once,
and against reading and writing the same rows once as Parquet. Everything is in the page cache, CPU
seconds are those of the whole process, each figure is the best of `--repeats`.

    python benchmarks/sequences.py TEXTS.parquet TOKENIZER.json [--mb 20] [--eos TOKEN]
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
import pyarrow.parquet as pq

from corpuskit.batch import utf8
from corpuskit.exchange import read_run, write_run
from corpuskit.kernels.packing import best_fit, fill_rows, lay_out
from corpuskit.manifest import Part
from corpuskit.shards import write_tokens
from corpuskit.stage import Unit, View
from corpuskit.stages.sequences import _tokenizer
from corpuskit.stages.sequences._rows import Pieces, pack_window, packed_schema
from corpuskit.stages.sequences.pack import Pack
from corpuskit.stages.sequences.shuffle import Shuffle, _read_rows
from corpuskit.stages.sequences.tokenize import Tokenize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

WIDTH = 2049
CELL_ROWS = 8192
"""Packed rows of 64 MB of English text."""


def main() -> None:
    """Run all measurements and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path, help="Parquet file with a column `text`")
    parser.add_argument("tokenizer", help="a tokenizer.json")
    parser.add_argument("--mb", type=int, default=20, help="text to tokenize")
    parser.add_argument("--eos", default=None, help="the token that ends documents")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    view = read_texts(options.texts, options.mb * 1_000_000)
    tokenized = bench_tokenize(view, options.tokenizer, options.eos, options.repeats)
    bench_pack(tokenized, options.repeats)
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


def read_texts(path: Path, size_bytes: int) -> View:
    texts = pq.read_table(path, columns=["text"]).column("text").cast(pa.large_string())
    texts = texts.combine_chunks()
    sizes = np.cumsum(utf8(texts).sizes())
    texts = texts[: int(np.searchsorted(sizes, size_bytes))]
    count = len(texts)
    columns = {"key": np.arange(count), "id": [f"bench-{i}" for i in range(count)], "text": texts}
    return View(pa.record_batch(columns))


def bench_tokenize(view: View, path: str, eos: str | None, repeats: int) -> View:
    """Measure both engines on one batch after another; return the tokenized documents."""
    step = 2000
    batches = [View(view.batch.slice(i, step)) for i in range(0, view.num_docs, step)]
    mb = int(view.text.sizes().sum()) / 1e6
    stages = {
        engine: Tokenize(tokenizer=path, eos=eos, engine=engine)
        for engine in ("huggingface", "gigatoken")
    }
    specials = stages["huggingface"]._specials()
    fields = _tokenizer.with_controls(_tokenizer.read_tokenizer(path), specials)
    lists = [batch.column("text").to_pylist() for batch in batches]
    reference = _tokenizer.ReferenceEncoder(fields, allow_special=False)._tokenizer
    alone = {"huggingface": lambda: [encode_lists(reference, texts) for texts in lists]}
    try:
        from corpuskit.stages.sequences._gigatoken import GigatokenEncoder

        fast = GigatokenEncoder(fields, allow_special=False)
        texts = [utf8(batch.column("text")) for batch in batches]
        alone["gigatoken"] = lambda: [fast._encode(*text) for text in texts]
    except ImportError:
        del stages["gigatoken"]
        print("gigatoken is not installed")
    for engine, stage in stages.items():
        runs = repeats if engine == "gigatoken" else 1
        engine_seconds = best(runs, alone[engine])
        stage_seconds = best(runs, lambda stage=stage: [stage.apply(batch) for batch in batches])
        print(
            f"tokenize  {engine:12s} alone {mb / engine_seconds:7.1f} MB/CPU-s, stage "
            f"{mb / stage_seconds:7.1f}, stage / alone {engine_seconds / stage_seconds:.2f}",
            flush=True,
        )
    outcome = next(reversed(stages.values())).apply(view)
    return view.with_columns({"tokenize.tokens": outcome.columns["tokens"]})


def encode_lists(tokenizer: Any, texts: list[str]) -> None:
    for begin in range(0, len(texts), _tokenizer.BATCH_DOCS):
        batch = texts[begin : begin + _tokenizer.BATCH_DOCS]
        tokenizer.encode_batch_fast(batch, add_special_tokens=False)


def random_pieces(num: int, seed: int) -> Pieces:
    """Return pieces with lognormal lengths: median 493, mean 856 tokens before they are cut."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(np.exp(rng.normal(6.2, 1.05, num)), 16, WIDTH).astype(np.int64)
    tokens = rng.integers(0, 50_000, lengths.sum(), np.uint16)
    keys = np.arange(num)
    return Pieces(tokens, lengths, keys, lengths * 4, np.zeros(num, np.uint8))


def bench_pack(tokenized: View, repeats: int) -> None:
    pieces = random_pieces(16384, 0)
    lengths, begins = pieces.lengths, np.cumsum(pieces.lengths) - pieces.lengths
    place = best(repeats, lambda: best_fit(lengths, WIDTH))
    rows, num_rows = best_fit(lengths, WIDTH)
    layout = best(repeats, lambda: lay_out(rows, lengths, num_rows, WIDTH))
    bounds, starts, which = lay_out(rows, lengths, num_rows, WIDTH)
    out = np.empty((num_rows, WIDTH), np.uint16)
    fill = best(repeats, lambda: fill_rows(pieces.tokens, begins, bounds, starts, which, 0, out))
    source = np.ones_like(out)
    copy = best(repeats, lambda: np.copyto(out, source))
    schema = packed_schema(GIVEN)
    window = best(repeats, lambda: pack_window(pieces, schema, WIDTH, 0, joined=False))
    gigabytes = out.nbytes / 1e9
    fullness = lengths.sum() / out.size
    print(f"pack      place {16384 / place / 1e6:.1f} M pieces/CPU-s, fill {fullness:.5f}")
    print(
        f"pack      rows filled at {gigabytes / fill:.2f} GB/CPU-s, copied at "
        f"{gigabytes / copy:.2f}, ratio {copy / fill:.2f}; layout {gigabytes / layout:.1f}; "
        f"whole window {gigabytes / window:.2f}"
    )
    stage = Pack(seq_len=WIDTH - 1)
    tokens = len(tokenized.column("tokenize.tokens").values)
    seconds = best(
        repeats, lambda: stage.collect(iter([tokenized]), BenchContext(Unit(0, "web"), None, []))
    )
    print(f"pack      stage {tokens / seconds / 1e6:.1f} M tokens/CPU-s, files included")


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

    def write_run(self, name: str, columns: Mapping[str, Any], *, is_sorted: bool = False) -> None:
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
            write_run(Path(file.name), columns, is_sorted=is_sorted)
        if name.startswith("rows-"):
            self.runs.append(Path(file.name))
        else:
            Path(file.name).unlink()

    def write_part(
        self, role: str, folder: str, write: Callable[[Path], None], **facts: Any
    ) -> None:
        with tempfile.NamedTemporaryFile(dir=self.folder) as file:
            write(Path(file.name))

    def run_range(self, name: str, low: int, high: int, schema: pa.Schema) -> pa.Table:
        tables = [read_run(path, low, high) for path in self.runs]
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
    scatter, gather = Shuffle().passes()

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
    for number in range(num_cells):
        windows = [pack_window(random_pieces(16384, 99), schema, WIDTH, 0, joined=False)]
        table = pa.concat_tables(windows)[:CELL_ROWS]
        path = folder / f"cell-{number}.parquet"
        write_tokens(path, table)
        rows = len(table)
        yield Unit(number, "web", 0, 0, rows, part=Part(number, "packed", str(path), rows=rows))


if __name__ == "__main__":
    main()

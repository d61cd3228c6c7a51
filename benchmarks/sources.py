"""Measure how fast the sources read, beside what decompressing or parsing alone costs.

    python benchmarks/sources.py FOLDER [--megabytes N]

FOLDER holds Parquet files with a column `text`. Their rows are written again as JSON lines (plain,
gzip, zstd), text and Parquet in a scratch folder. Figures are MB of UTF-8 text per CPU second of one
core, the best of three. `floor` is the least that any reader in Python has to do; `datatrove` reads
the same file into its documents.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from corpuskit.stage import InputFile, Source
from corpuskit.stages.sources.jsonl import Jsonl
from corpuskit.stages.sources.parquet import Parquet
from corpuskit.stages.sources.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TARGET_BYTES, MAX_DOCUMENT_BYTES = 64 << 20, 16 << 20


def load(folder: Path, megabytes: int) -> pa.Table:
    """Return rows of all Parquet files below a folder, about so many MB of text."""
    tables, left = [], megabytes * 1_000_000
    for path in sorted(folder.rglob("*.parquet")):
        table = pq.read_table(path)
        if "text" not in table.column_names or left <= 0:
            continue
        table = table.select(
            [n for n in ("id", "text", "source", "lang") if n in table.column_names]
        )
        tables.append(table)
        left -= table.column("text").nbytes
    return pa.concat_tables(tables, promote_options="default")


def write(table: pa.Table, folder: Path) -> dict[str, Path]:
    """Write the rows in all formats."""
    rows = table.to_pylist()
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    flat = "".join(row["text"].replace("\n", " ") + "\n" for row in rows).encode()
    paths = {
        name: folder / name
        for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.txt")
    }
    paths["a.jsonl"].write_bytes(lines)
    paths["a.jsonl.gz"].write_bytes(gzip.compress(lines, 6))
    paths["a.jsonl.zst"].write_bytes(zstandard.ZstdCompressor(3).compress(lines))
    paths["a.txt"].write_bytes(flat)
    pq.write_table(table, paths["a.parquet"], compression="zstd", row_group_size=5000)
    return paths


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of the fastest of three runs."""
    work()  # compiles, and fills the page cache
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def ours(source: Source, path: Path) -> Callable[[], object]:
    file = InputFile(0, "bench", str(path), path.name, path.stat().st_size, "")

    def work() -> None:
        for piece in source.slices(file, TARGET_BYTES):
            for _ in source.read(file, piece, MAX_DOCUMENT_BYTES):
                pass

    return work


def theirs(path: Path) -> Callable[[], object] | None:
    """Read a file with datatrove's reader of its format; its JSON reader needs orjson."""
    from datatrove.pipeline.readers import JsonlReader, ParquetReader

    kind = ParquetReader if path.suffix == ".parquet" else JsonlReader
    try:
        reader = kind(str(path.parent), glob_pattern=path.name)
    except ImportError:
        return None

    def work() -> None:
        for _ in reader.run():
            pass

    return work


def gunzip(path: Path) -> object:
    with gzip.open(path) as file:
        return sum(len(piece) for piece in iter(lambda: file.read(1 << 20), b""))


def unzstd(path: Path) -> object:
    with path.open("rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file)
        return sum(len(piece) for piece in iter(lambda: reader.read(1 << 20), b""))


def loads(path: Path) -> object:
    with path.open("rb") as file:
        return sum(len(json.loads(line)["text"]) for line in file)


def arrow(path: Path) -> object:
    return sum(len(batch) for batch in pq.ParquetFile(path).iter_batches(use_threads=False))


def cases(paths: dict[str, Path]) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """Yield (file, what, work)."""
    any_path = ("x",)
    floors: dict[str, list[tuple[str, Callable[[Path], object]]]] = {
        "a.jsonl": [("floor: json.loads", loads)],
        "a.jsonl.gz": [("floor: gzip", gunzip)],
        "a.jsonl.zst": [("floor: zstandard", unzstd)],
        "a.parquet": [("floor: pyarrow", arrow)],
    }
    for name, path in paths.items():
        kind: Any = Parquet if path.suffix == ".parquet" else Jsonl
        if path.suffix == ".txt":
            yield name, "text, per: line", ours(Text(paths=any_path, per="line"), path)
            continue
        label = kind.stage_name()
        yield name, label, ours(kind(paths=any_path, id_column="id"), path)
        yield (
            name,
            f"{label}, extra: false",
            ours(kind(paths=any_path, id_column="id", extra=False), path),
        )
        for what, floor in floors[name]:
            yield name, what, lambda floor=floor, path=path: floor(path)  # type: ignore[misc]
        if (peer := theirs(path)) is not None:
            yield name, "datatrove", peer


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=int, default=60)
    arguments = parser.parse_args()
    table = load(arguments.folder, arguments.megabytes)
    size = sum(len(text.encode()) for text in table.column("text").to_pylist())
    print(f"{table.num_rows:,} documents, {size / 1e6:.1f} MB of text\n")
    print("| file | reader | MB/CPU s |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for name, what, work in cases(write(table, Path(scratch))):
            print(f"| {name} | {what} | {size / 1e6 / cpu_seconds(work):.0f} |", flush=True)


if __name__ == "__main__":
    main()

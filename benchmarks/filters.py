"""Speed of filters against their reference implementation, on one core, decisions compared.

Each stage and its reference (`oracle()`) see the same documents; CPU seconds are those of the process,
the best of `--repeats` for ours. `words` is the word split alone, which stages of a phase share; `floor` reads
each byte once (NumPy's maximum). `cold` is the CPU time that a process without compiled kernels needs more
for its first batch.

    python benchmarks/filters.py [texts.parquet ...] [--mb 100] [--reference-mb 10] [--repeats 5]

Without files: all of bench_en from CORPUSKIT_SHARED_DATA.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit import registry
from corpuskit.stage import StreamingStage, View
from corpuskit.stages._words import splitter

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(os.environ.get("CORPUSKIT_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
BATCH_ROWS = 1024


def main() -> None:
    """Measure every filter that has a reference, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", type=Path, help="Parquet files with a column `text`")
    parser.add_argument("--mb", type=float, default=100, help="text for our stages")
    parser.add_argument("--reference-mb", type=float, default=10, help="text for the references")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--first-batch", metavar="STAGE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first_batch:
        stage = registry.load(options.first_batch)()
        print(cpu_seconds(lambda: stage.apply(View(batches(["one text"])[0]))))
        return
    files = options.texts or sorted((DATA / "bench_en").glob("*.parquet"))
    if not files:
        sys.exit(f"no real data at {DATA}: set CORPUSKIT_SHARED_DATA, or name Parquet files")
    texts = read_texts(files, options.mb)
    few = texts[: documents_in(texts, options.reference_mb)]
    parts, size = batches(texts), sum(len(text.encode()) for text in texts)

    def speed(work: Callable[[View], object]) -> float:
        for part in parts[:1]:
            work(View(part))  # compiled, tables built
        return (
            size
            / 1e6
            / min(
                cpu_seconds(lambda: [work(View(part)) for part in parts])
                for _ in range(options.repeats)
            )
        )

    print(f"{size / 1e6:.0f} MB in {len(texts)} documents; MB per CPU second on one core")
    print(f"floor, one read of all bytes      {speed(largest_byte):9.0f}")
    words = speed(lambda view: view.fact(splitter("whitespace")))
    print(f"words, by whitespace              {words:9.0f}")
    print("stage                  cold s  alone  words given  reference   ratio  equal")
    for name in registry.names("filters"):
        line = measure(name, speed, few)
        if line:
            print(f"{name:20s} {line}", flush=True)


def largest_byte(view: View) -> int:
    """Read each byte of a batch once."""
    offsets, data = view.text
    return int(data[offsets[0] : offsets[-1]].max())


def measure(name: str, speed: Callable[[Callable[[View], object]], float], few: list[str]) -> str:
    """Return one line of figures, nothing for a filter without a reference."""
    try:
        stage = registry.load(name)()
    except ValueError:  # needs parameters
        return ""
    if not isinstance(stage, StreamingStage) or (oracle := stage.oracle()) is None:
        return ""
    oracle("warm up")
    expected: list[str | None] = []
    seconds = cpu_seconds(lambda: expected.extend(oracle(text)[0] for text in few))
    reference = sum(len(text.encode()) for text in few) / 1e6 / seconds
    codes = [code for part in batches(few) for code in stage.apply(View(part)).codes]
    found = [stage.rules[code - 1] if code else None for code in codes]
    equal = sum(rule == other for rule, other in zip(found, expected, strict=True))
    alone = speed(stage.apply)
    shared = 1 / (1 / alone - 1 / speed(lambda view: view.fact(splitter("whitespace"))))
    return (
        f"{cold(name):8.1f} {alone:6.0f} {shared:12.0f} {reference:10.2f} "
        f"{alone / reference:6.0f}x  {equal} of {len(few)}"
    )


def cold(name: str) -> float:
    """Return the CPU seconds that compiling adds to the first batch of a new process."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            printed = subprocess.run(
                [sys.executable, __file__, "--first-batch", name],
                env={**os.environ, "CORPUSKIT_CACHE_DIR": folder},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            seconds.append(float(printed))
    return seconds[0] - seconds[1]


def read_texts(files: list[Path], megabytes: float) -> list[str]:
    """Return texts, round the files, until there are enough bytes."""
    texts = [
        text for file in files for text in pq.read_table(file, columns=["text"])["text"].to_pylist()
    ]
    return texts[: documents_in(texts, megabytes)]


def documents_in(texts: list[str], megabytes: float) -> int:
    """Return how many of the first texts make up that many megabytes."""
    size = 0
    for number, text in enumerate(texts):
        size += len(text.encode())
        if size > megabytes * 1e6:
            return number + 1
    return len(texts)


def batches(texts: list[str]) -> list[pa.RecordBatch]:
    """Return record batches as a stage sees them."""
    table = pa.table({"text": pa.array(texts, pa.large_string())})
    return [
        table.slice(first, BATCH_ROWS).combine_chunks().to_batches()[0]
        for first in range(0, len(texts), BATCH_ROWS)
    ]


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()

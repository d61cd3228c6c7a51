"""What inputs of hostile sizes cost: row groups of one row, and very many tiny files.

    python benchmarks/hostile_sizes.py groups [--sizes 2000 4000 8000 32000 1000000]
    python benchmarks/hostile_sizes.py files [--kinds jsonl text parquet] [--sizes 1000 2000 10000]
        [--bytes 1000] [--command corpuskit]

Each line is one command, `corpuskit run` with gopher_quality and exact_dedup, 2 workers, in a new
directory: CPU seconds of all its processes, the largest of them, files left. `fixed` is the same
command over one document; `each` is what is left of the CPU time, for a row group or a file.
`pyarrow` is what that library alone takes to open the same file and read all of its rows; `ratio`
is the CPU time without `fixed`, over it. `--command` names another installation, to compare with.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

WORDS = (
    "the of and to that with have be river stone market winter letter garden engine bridge teacher "
    "window village summer forest history science music paper silver morning evening question "
    "answer number family country water light people work house school small large early late"
).split()

PIPELINE = """\
name: sizes
output: {output}
sources:
  web: {{{kind}: "{files}"}}
stages:
  - gopher_quality: {{words: whitespace, min_words: 1, min_stop_words: 0}}
  - exact_dedup
executor: {{kind: local, workers: 2}}
"""


class Taken(NamedTuple):
    """What a command took."""

    cpu_seconds: float
    peak_mb: int
    files: int


def text_of(number: int, size: int) -> str:
    """Return about `size` bytes of words, others for every number."""
    rng = random.Random(number)
    return " ".join(rng.choices(WORDS, k=max(size // 6, 3)))


def write_file(folder: Path, kind: str, number: int, size: int) -> None:
    """Write one document as a file of its own."""
    text, stem = text_of(number, size), folder / f"{number:07d}"
    if kind == "jsonl":
        stem.with_suffix(".jsonl").write_text(json.dumps({"text": text}) + "\n")
    elif kind == "text":
        stem.with_suffix(".txt").write_text(text)
    else:
        pq.write_table(pa.table({"text": [text]}), stem.with_suffix(".parquet"))


def write_groups(path: Path, num: int) -> None:
    """Write a Parquet file of `num` row groups of one row."""
    schema = pa.schema([("text", pa.string()), ("number", pa.int64())])
    with pq.ParquetWriter(path, schema) as writer:
        for number in range(num):
            row = {"text": [text_of(number, 200)], "number": [number]}
            writer.write_batch(pa.record_batch(row, schema))


def measure(kind: str, files: Path, command: str, scratch: Path) -> Taken:
    """Run the pipeline over the files of a folder."""
    output, pipeline = scratch / "out", scratch / "pipeline.yaml"
    pipeline.write_text(PIPELINE.format(output=output, kind=kind, files=files / "*"))
    process = subprocess.Popen([*command.split(), "run", str(pipeline)], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command}: exit {process.returncode}")
    num = sum(path.is_file() for path in output.rglob("*"))
    shutil.rmtree(output)
    return Taken(used.ru_utime + used.ru_stime, used.ru_maxrss >> 10, num)


def read_alone(path: Path) -> tuple[float, float]:
    """Return the CPU seconds that pyarrow takes to open a file, and to open it and read it all."""
    began = time.process_time()
    reader = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    opened = time.process_time() - began
    for _ in reader.iter_batches(4096, use_threads=False):
        pass
    return opened, time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("groups", "files"))
    parser.add_argument("--sizes", type=int, nargs="*")
    parser.add_argument("--kinds", nargs="*", default=["jsonl", "text", "parquet"])
    parser.add_argument("--bytes", type=int, default=1000)
    parser.add_argument("--command", default=f"{sys.executable} -m corpuskit")
    arguments = parser.parse_args()
    kinds = ["parquet"] if arguments.what == "groups" else arguments.kinds
    sizes = arguments.sizes or [2000, 4000, 8000, 32_000]
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for kind in kinds:
            single = scratch / f"{kind}-one"
            single.mkdir()
            write_file(single, kind, 0, arguments.bytes)
            measure(kind, single, arguments.command, scratch)  # kernels are compiled
            fixed = measure(kind, single, arguments.command, scratch)
            print(f"{kind}: fixed {fixed.cpu_seconds:.1f} CPU s", flush=True)
            for num in sizes:
                folder = scratch / f"{kind}-{num}"
                folder.mkdir()
                if arguments.what == "groups":
                    write_groups(folder / "a.parquet", num)
                else:
                    for number in range(num):
                        write_file(folder, kind, number, arguments.bytes)
                taken = measure(kind, folder, arguments.command, scratch)
                more = max(taken.cpu_seconds - fixed.cpu_seconds, 0.0)
                line = (
                    f"{kind} {num:9,} {arguments.what}: {taken.cpu_seconds:8.1f} CPU s, "
                    f"{1e6 * more / num:7.0f} us each, {taken.peak_mb:6,} MB, "
                    f"{taken.files:8,} files left"
                )
                if arguments.what == "groups":
                    opened, whole = read_alone(folder / "a.parquet")
                    line += f"; pyarrow {opened:.2f} + {whole - opened:.2f} CPU s"
                    line += f", ratio {more / whole:.1f}"
                print(line, flush=True)
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()

"""What `corpuskit plan` says a run will need, and what it took: memory, disk, CPU time, by phase.

    python benchmarks/preflight.py [--cell-mb 64] [--jsonl none|plain|zst] [--workers 2] [--keep DIR]

Runs the pipeline of end_to_end.py over real text, with `--jsonl` as one file of JSON lines and
without the quality filter. Prints figures and the ratio predicted / taken.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import yaml
import zstandard
from end_to_end import DATA, ROOT, pipeline


def write_jsonl(path: Path) -> None:
    """Write all texts as one file of JSON lines, compressed if its name says so."""
    with path.open("wb") as plain:
        is_packed = path.suffix == ".zst"
        out = zstandard.ZstdCompressor(level=3).stream_writer(plain) if is_packed else plain
        for folder in ("bench_en", "bench_multi", "code"):
            for part in sorted((DATA / folder).glob("*.parquet")):
                for row in pq.read_table(part, columns=["id", "text"]).to_pylist():
                    out.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        if is_packed:
            out.close()


def corpuskit(*arguments: str) -> str:
    """Run the command line and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "corpuskit", *arguments], cwd=ROOT, text=True, capture_output=True,
        check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def main() -> None:
    """Plan, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cell-mb", type=int, default=64)
    parser.add_argument("--jsonl", choices=["none", "plain", "zst"], default="none")
    parser.add_argument("--keep", type=Path, help="run directory to leave behind")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        output = options.keep or folder / "run"
        content = pipeline(output, options.workers)
        content["cell_bytes"] = options.cell_mb << 20
        if options.jsonl != "none":
            path = folder / ("all.jsonl" + ".zst" * (options.jsonl == "zst"))
            write_jsonl(path)
            content["sources"] = {"all": {"jsonl": str(path), "id_column": "id"}}
            content["stages"] = [
                one for one in content["stages"]
                if not (isinstance(one, dict) and one.keys() & {"gopher_quality", "mix"})
            ]  # fmt: skip
        place = folder / "p.yaml"
        place.write_text(yaml.safe_dump(content, sort_keys=False))
        planned = json.loads(corpuskit("plan", str(place), "--json"))
        corpuskit("run", str(place))
        compare(planned, output)


def compare(planned: list[dict], output: Path) -> None:
    """Print what was said and what was taken."""
    from corpuskit.engine.rundir import RunDirectory

    run = RunDirectory.open(str(output))
    print(f"{'':24}{'memory MB':>20}{'disk MB':>26}{'CPU s':>24}")
    print(f"{'phase':24}" + f"{'said':>7}{'taken':>7}{'ratio':>6}" + f"{'said':>12}{'taken':>8}"
          f"{'ratio':>6}" * 1 + f"{'said':>10}{'taken':>8}{'ratio':>6}")  # fmt: skip
    sums = [0.0] * 4
    peaks = [0.0] * 2
    for phase, row in zip(run.plan.phases, planned, strict=True):
        seal, need = run.seal(phase.index), row["need"]
        if not seal.units:
            continue
        taken = seal.timing["peak_rss_bytes"], sum(part.size_bytes for part in seal.parts)
        cpu = seal.timing["cpu_seconds"]
        said = need["memory_bytes"], need["disk_bytes"], need["cpu_seconds"]
        peaks = [max(peaks[0], said[0]), max(peaks[1], taken[0])]
        pairs = (said[1], taken[1], said[2], cpu)
        sums = [a + b for a, b in zip(sums, pairs, strict=True)]
        print(_line(phase.name, said[0], taken[0], *pairs))
    print(_line("all", *peaks, *sums))


def _line(name: str, *values: float) -> str:
    a, b, c, d, e, f = values
    return (
        f"{name:24}{a / 1e6:7.0f}{b / 1e6:7.0f}{a / b:6.2f}{c / 1e6:12.2f}{d / 1e6:8.2f}"
        f"{c / max(d, 1):6.2f}{e:10.2f}{f:8.2f}{e / max(f, 0.01):6.2f}"
    )


if __name__ == "__main__":
    main()

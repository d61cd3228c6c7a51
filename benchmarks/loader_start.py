"""What a run of our loader costs at its ends: the first batch, at any step, and memory after 1e6 rows.

    python benchmarks/loader_start.py [--parts 10000] [--rows 1000000] [--repeats 5]

A source of so many parts of 64 rows each; CPU seconds are those of the process, of a new one each,
in the page cache. `import` is `import corpuskit.loader` after NumPy, `first` from there to the first
batch of a loader with its defaults, at a share of the run's steps (state loaded). `open` is how many
parts are open then, by threads that read ahead. Memory is that of the process which is not of files,
over one iteration through rows of 2,049 tokens.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

from loader_process import Places, request

WIDTH, PART_ROWS, ROW_TOKENS = 33, 64, 2049


def main() -> None:
    """Run both measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", help="keep what is written here; default: a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary).resolve()
        places = Places({"corpuskit": sys.executable}, folder)
        show_starts(places, options.parts, options.repeats)
        show_memory(places, options.rows)


def show_starts(places: Places, num_parts: int, repeats: int) -> None:
    """Print what the first batch costs at some shares of a run."""
    folder = places.folder / "parts"
    spec = {"store": str(folder / "run"), "width": WIDTH, "part_rows": PART_ROWS}
    write(places, folder, spec, num_parts * PART_ROWS)
    print(f"{num_parts:,} parts, {num_parts * PART_ROWS:,} rows; medians of {repeats}")
    print(
        f"{'at':>6}{'import CPU s':>14}{'first CPU s':>13}{'(min-max)':>16}{'wall s':>9}{'open':>6}"
    )
    for share in (0, 0.1, 0.5, 0.9, 0.999):
        ask: dict[str, Any] = {"share": share, "state": str(folder / f"{share}.state")}
        if share:
            request(places, "corpuskit", spec, "first", **ask)  # saves the state
        runs = [request(places, "corpuskit", spec, "first", **ask) for _ in range(repeats)]
        spent = sorted(run["cpu_seconds"] for run in runs)
        imports = statistics.median(run["import_seconds"] for run in runs)
        wall = statistics.median(run["wall_seconds"] for run in runs)
        print(
            f"{share:6.1%}{imports:14.3f}{statistics.median(spent):13.3f}"
            f"{f'({spent[0]:.3f}-{spent[-1]:.3f})':>16}{wall:9.3f}{runs[0]['open_parts']:6}"
        )


def show_memory(places: Places, num_rows: int) -> None:
    """Print the memory over a long run."""
    folder = places.folder / "long"
    stored = 12_800
    epochs = -(-num_rows // stored)
    spec = {
        "store": str(folder / "run"),
        "width": ROW_TOKENS,
        "num_epochs": epochs,
        "variant": "long",
    }
    write(places, folder, spec, stored)
    facts = request(places, "corpuskit", spec, "memory", rows=num_rows, seconds=600)
    noted = facts["noted"]
    print(
        f"\nmemory over {facts['rows']:,} rows, {epochs} epochs, {facts['cpu_seconds']:.1f} CPU s"
    )
    for row, size in [noted[0], *noted[9::15], noted[-1]]:
        print(f"{row:10,} rows {size / 1e6:8.1f} MB")


def write(places: Places, folder: Path, spec: dict[str, Any], num_rows: int) -> None:
    """Write rows of random tokens as a run directory, unless it is there."""
    if folder.exists():
        return
    (folder / "raw").mkdir(parents=True)
    random = np.random.default_rng(0)
    rows = random.integers(2, 50_000, (num_rows, spec["width"]), np.uint16)
    np.save(folder / "raw" / "web.npy", rows)
    facts = request(places, "corpuskit", spec, "write", raw=str(folder / "raw"))
    if "error" in facts:
        sys.exit(f"{facts['error']}\n{facts['trace']}")


if __name__ == "__main__":
    main()

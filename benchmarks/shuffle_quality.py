"""How well orders mix what lies sorted by source: ours and those of other loaders.

    python benchmarks/shuffle_quality.py [--rows 2000000] [--python NAME=PATH ...]

Rows lie in files, in 64 blocks of equal size (sources, one after another). `chi2/dof` is Pearson's
statistic of the blocks in batches of 256, per degree of freedom, over all whole batches: 1 is what
independent draws give. `p99` is that of single batches. `position` is
the variance of the mean place in the corpus of a batch, and `drift` of 64 batches together, against
independent draws: above 1, training sees stretches of the corpus one after another.

Rows whose code is that of a library are made by that library (`made by`); `written out` is what this
file makes after its source. benchmarks/peers/loaders.txt says how the environments are made.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

from loader_process import HERE, Places, add_options, environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Order = NDArray[np.int64]

BATCH_ROWS, NUM_BLOCKS, FILE_ROWS, DRIFT_BATCHES = 256, 64, 8_000, 64
LIBRARY_SCHEMES = (
    ("corpuskit, unshuffled source, epoch 1", "corpuskit", "corpuskit_loader"),
    ("corpuskit, unshuffled source, epoch 2", "corpuskit", "corpuskit_second_epoch"),
    ("corpuskit, shuffled when written", "corpuskit", "corpuskit_written"),
    ("grain index_shuffle", "grain", "grain_index_shuffle"),
    ("MosaicML py1e, block 4 M (whole corpus)", "mosaic", "mosaic_py1e"),
    ("MosaicML py1e, block 2^18", "mosaic", "mosaic_py1e_small"),
    ("MosaicML py1br, block 2^18", "mosaic", "mosaic_py1br_small"),
    ("LitData FullShuffle, 8 ranks x 8 workers", "litdata", "litdata_64"),
    ("LitData FullShuffle, 1 worker", "litdata", "litdata_alone"),
    ("HF shuffle buffer 100,000", "hf", "hf_buffer_100k"),
    ("HF shuffle buffer 10,000", "hf", "hf_buffer_10k"),
    ("HF shuffle buffer 1,000", "hf", "hf_buffer_1k"),
)


def main() -> None:
    """Make every order and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--affine-seeds", type=int, default=60)
    add_options(parser)
    options = parser.parse_args()
    print(
        f"{options.rows:,} rows in {NUM_BLOCKS} blocks, files of {FILE_ROWS:,}, batches of {BATCH_ROWS}"
    )
    print(f"{'order':44}{'chi2/dof':>9}{'p99':>9}{'position':>10}{'drift':>11}  made by")
    with tempfile.TemporaryDirectory() as temporary:
        places = Places.found(options, Path(options.folder or temporary).resolve())
        random = np.random.default_rng(5)
        show("full random permutation", random.permutation(options.rows), options.rows, "numpy")
        for name, order, by in library_orders(places, options):
            show(name, order, options.rows, by)
    for seed in range(1, 4):
        show(
            f"Levanter's Feistel, seed {seed}",
            levanter(options.rows, seed),
            options.rows,
            "written out",
        )
    show_affine(options.rows, options.affine_seeds)
    order = np.arange(options.rows)
    show("files in random order", by_files(order, random), options.rows, "written out")
    show("file order", order, options.rows, "numpy")


def library_orders(places: Places, options: argparse.Namespace) -> Iterator[tuple[str, Order, str]]:
    """Yield the orders that libraries make, of those that there are interpreters for."""
    (places.folder / "tmp").mkdir(parents=True, exist_ok=True)
    for name, adapter, scheme in LIBRARY_SCHEMES:
        if adapter not in places.pythons:
            continue
        out = places.folder / f"{scheme}.npy"
        done = subprocess.run(
            [places.pythons[adapter], str(HERE / "loader_orders.py"), scheme,
             str(options.rows), str(FILE_ROWS), str(out)],
            check=False, capture_output=True, text=True, env=environment(places.folder),
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{name}: {done.stderr[-2000:]}")
        yield name, np.load(out), adapter
        out.unlink()


def show(name: str, order: Order, num_rows: int, by: str) -> None:
    """Print the figures of an order, with what it leaves out."""
    left_out = num_rows - len(np.unique(order))
    note = f", {left_out:,} rows left out" if left_out else ""
    if len(order) - len(np.unique(order)):
        note += f", {len(order) - len(np.unique(order)):,} repeated"
    chi2, p99, position, drift = figures(order, num_rows)
    print(f"{name:44}{chi2:9.2f}{p99:9.2f}{position:10.2f}{drift:11.1f}  {by}{note}", flush=True)


def figures(order: Order, num_rows: int) -> tuple[float, float, float, float]:
    """Return chi2 per degree of freedom, its 99th percentile, variance of position, drift."""
    num_batches = len(order) // BATCH_ROWS
    places = order[: num_batches * BATCH_ROWS].reshape(num_batches, BATCH_ROWS)
    blocks = places * NUM_BLOCKS // num_rows
    cells = np.arange(num_batches)[:, None] * NUM_BLOCKS + blocks
    counts = np.bincount(cells.reshape(-1), minlength=num_batches * NUM_BLOCKS)
    due = BATCH_ROWS / NUM_BLOCKS
    chi2 = ((counts.reshape(num_batches, NUM_BLOCKS) - due) ** 2 / due).sum(1) / (NUM_BLOCKS - 1)
    means = (places / num_rows).mean(1)
    longer = (
        means[: num_batches // DRIFT_BATCHES * DRIFT_BATCHES].reshape(-1, DRIFT_BATCHES).mean(1)
    )
    scale = 12 * BATCH_ROWS  # 1 / variance of the mean of independent places
    return (
        float(chi2.mean()),
        float(np.quantile(chi2, 0.99)),
        float(means.var() * scale),
        float(longer.var() * scale * DRIFT_BATCHES),
    )


def levanter(num_rows: int, seed: int, rounds: int = 5) -> Order:
    """Return the order of Levanter's permutation, cycle-walked down from a power of two.

    Source: Levanter, src/levanter/data/_prp.py, FeistelPermutation (keys drawn by NumPy alone here).
    """
    bits = (num_rows - 1).bit_length()
    half = np.uint64(bits - bits // 2)
    mask = np.uint64((1 << int(half)) - 1)
    keys = np.random.default_rng(seed).integers(0, 1 << int(half), rounds, np.uint64)
    order = np.arange(num_rows, dtype=np.uint64)
    walking = order < num_rows
    while walking.any():
        left, right = order[walking] >> half, order[walking] & mask
        for key in keys:
            left, right = right, left ^ (right * np.uint64(2654435761) + key & mask)
        order[walking] = left << half | right
        walking = order >= num_rows
    return order.astype(np.int64)


def show_affine(num_rows: int, num_seeds: int) -> None:
    """Print the spread of i -> a i + b modulo the number of rows, over seeds."""
    found = []
    for seed in range(num_seeds):
        random = np.random.default_rng(seed)
        factor = int(random.integers(1, num_rows))
        while np.gcd(factor, num_rows) > 1:
            factor = int(random.integers(1, num_rows))
        order = (np.arange(num_rows) * factor + int(random.integers(num_rows))) % num_rows
        found.append(figures(order, num_rows))
    for name, row in zip(
        ("least", "median", "most"), np.quantile(found, (0, 0.5, 1), axis=0), strict=True
    ):
        title = f"affine a i + b, {name} of {num_seeds} seeds"
        print(f"{title:44}{row[0]:9.2f}{row[1]:9.2f}{row[2]:10.2f}{row[3]:11.1f}  written out")


def by_files(order: Order, random: np.random.Generator) -> Order:
    """Return whole files in a random order, as datatrove's dataset reads them."""
    firsts = random.permutation(np.arange(0, len(order), FILE_ROWS))
    return np.concatenate([order[first : first + FILE_ROWS] for first in firsts])


if __name__ == "__main__":
    main()

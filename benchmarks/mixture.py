"""How far a mixture is from its weights, row by row, in our order and in the schemes of others.

50 sources with random weights, 300,000 rows. Rows come from the same code that the loader runs. The
schemes of others are written down here in a few lines each, after their sources: what is compared
is arithmetic, not speed. Deviation is the largest difference, of any source at any row, between the
rows that it has given since the stage began and its share of all rows.

    python benchmarks/mixture.py [--sources 50] [--rows 300000] [--seed 0]
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.loader.order import MixSource, MixStage, RowOrder
from corpuskit.stages.mixing._schedule import Stretch, Supply, make_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from corpuskit.stages.mixing._schedule import Taking

CHUNK = 10_000
LEVANTER_BLOCK = 2048


def main() -> None:
    """Print one line per scheme."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", type=int, default=50)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    weights = random.integers(1, 10_000, options.sources)
    sizes = random.integers(options.rows // 100, options.rows, options.sources)
    shares = weights / weights.sum()
    print(f"{options.sources} sources, shares {shares.min():.3%} to {shares.max():.3%}, "
          f"{options.rows:,} rows")  # fmt: skip
    print(f"{'scheme':44}{'largest deviation':>18}{'at the end':>12}{'smallest source':>17}")
    begin = time.process_time()
    ours = drawn_by_us(weights.tolist(), sizes.tolist(), options.rows)
    show("corpuskit", ours, shares, options.rows)
    print(f"  {time.process_time() - begin:.1f} CPU s for these rows")
    for stage, found in stages_by_us(weights.tolist(), sizes.tolist(), options.rows):
        show(f"corpuskit, stage {stage.name} ({stage.rows:,} rows)", found,
             np.array(stage.weights) / sum(stage.weights), stage.rows)  # fmt: skip
    show(
        "greedy by error (Megatron-LM, Nanoset)", greedy(shares, options.rows), shares, options.rows
    )
    blocks = floored_blocks(shares, options.rows, options.seed)
    show(f"floored blocks of {LEVANTER_BLOCK} (Levanter)", blocks, shares, options.rows)
    tossed = tosses(shares, options.rows, options.seed)
    show("a toss per row (LitData, HF, lingua)", tossed, shares, options.rows)


def show(
    name: str, drawn: Iterator[NDArray[np.int64]], shares: NDArray[np.float64], rows: int
) -> None:
    """Print how far the rows drawn were from their shares."""
    counts, begin, worst = np.zeros(len(shares), np.int64), 0, 0.0
    for sources in drawn:
        sums = np.zeros((len(sources), len(shares)), np.int64)
        sums[np.arange(len(sources)), sources] = 1
        np.cumsum(sums, axis=0, out=sums)
        sums += counts
        due = np.arange(begin + 1, begin + len(sources) + 1)[:, None] * shares
        worst = max(worst, float(np.abs(sums - due).max()))
        counts, begin = sums[-1].copy(), begin + len(sources)
    assert begin == rows
    off = np.abs(counts - rows * shares)
    least = int(np.flatnonzero(shares)[np.argmin(shares[shares > 0])])
    relative = (counts[least] / (rows * shares[least]) - 1) * 100
    print(f"{name:44}{worst:18.2f}{off.max():12.2f}{relative:+16.2f}%")


def drawn_by_us(weights: list[int], sizes: list[int], rows: int) -> Iterator[NDArray[np.int64]]:
    """Yield the sources of the rows of a run of one stage."""
    order = make_order(weights, sizes, rows)
    for first in range(0, rows, CHUNK):
        yield order.rows_at(np.arange(first, min(first + CHUNK, rows))).sources


def make_order(weights: list[int], sizes: list[int], rows: int) -> RowOrder:
    sources = [MixSource(f"s{k}", size, shuffled=True) for k, size in enumerate(sizes)]
    return RowOrder(0, sources, [MixStage("main", rows, tuple(weights))])


def stages_by_us(
    weights: list[int], sizes: list[int], rows: int
) -> Iterator[tuple[Taking, Iterator[NDArray[np.int64]]]]:
    """Yield each stage of a schedule, with the sources of its rows."""
    supplies = [Supply(f"s{k}", size, 100.0) for k, size in enumerate(sizes)]
    given = {supply.name: weight for supply, weight in zip(supplies, weights, strict=True)}
    made = make_schedule(supplies, [
        Stretch("given", rows=rows // 2, weights=given),
        Stretch("temperature 3.3", rows=rows // 3, temperature=3.3),
        Stretch("unimax", rows=rows - rows // 2 - rows // 3, weights="unimax"),
    ])  # fmt: skip
    sources = [MixSource(supply.name, supply.rows, shuffled=True) for supply in supplies]
    order = RowOrder(0, sources, [MixStage(s.name, s.rows, s.weights) for s in made.stages])
    begin = 0
    for stage in made.stages:
        end = begin + stage.rows
        yield (
            stage,
            (
                order.rows_at(np.arange(first, min(first + CHUNK, end))).sources
                for first in range(begin, end, CHUNK)
            ),
        )
        begin = end


def greedy(shares: NDArray[np.float64], rows: int) -> Iterator[NDArray[np.int64]]:
    """Yield who is furthest behind: build_blending_indices in megatron/core/datasets/helpers.cpp."""
    counts = np.zeros(len(shares))
    for first in range(0, rows, CHUNK):
        drawn = np.zeros(min(CHUNK, rows - first), np.int64)
        for i in range(len(drawn)):
            drawn[i] = np.argmax(shares * max(first + i, 1.0) - counts)
            counts[drawn[i]] += 1
        yield drawn


def floored_blocks(
    shares: NDArray[np.float64], rows: int, seed: int
) -> Iterator[NDArray[np.int64]]:
    """Yield permuted blocks of floored counts, the rest to the largest: levanter/data/mixture.py."""
    random = np.random.default_rng(seed)
    counts = np.floor(shares * LEVANTER_BLOCK).astype(np.int64)
    counts[np.argmax(counts)] += LEVANTER_BLOCK - counts.sum()
    block = np.repeat(np.arange(len(shares)), counts)
    for first in range(0, rows, LEVANTER_BLOCK):
        yield random.permutation(block)[: rows - first]


def tosses(shares: NDArray[np.float64], rows: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield independent draws: what a random choice of the next data set per sample gives."""
    random = np.random.default_rng(seed)
    for first in range(0, rows, CHUNK):
        yield random.choice(len(shares), min(CHUNK, rows - first), p=shares)


if __name__ == "__main__":
    main()

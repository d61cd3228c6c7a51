"""CPU seconds of the hashes and the grouping of deduplication, each against a peer.

Hashes are compared with xxhash from Python, grouping with one np.argsort per range. Signatures have
a benchmark of their own, minhash_schemes.py. CPU seconds are those of the process, each figure is
the best of `--repeats`; kernels are compiled before.

    python benchmarks/dedup.py [--mb 20] [--documents 1000000] [--repeats 3]

Reads bench_en from CORPUSKIT_SHARED_DATA.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.formats.batch import utf8
from corpuskit.kernels.hashing import hash_texts
from corpuskit.kernels.unionfind import connect, first_of_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("CORPUSKIT_SHARED_DATA", ROOT.parent / "shared" / "data"))

BANDS = 14

Result = TypeVar("Result")


class Row(NamedTuple):
    """One line of a table."""

    name: str
    figure: float
    note: str = ""


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=20, help="text for our kernels")
    parser.add_argument("--documents", type=int, default=1_000_000, help="of the grouping")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    texts = read_texts(given.mb)
    show(f"Hashes, MB/s ({size(texts):.0f} MB)", hash_rows(texts, given.repeats))
    show(
        f"Groups and clusters, million rows/s ({given.documents:,} documents, {BANDS} bands)",
        group_rows(given.documents, given.repeats),
    )


def read_texts(megabytes: float) -> pa.LargeStringArray:
    """Return every seventh document of bench_en, up to `megabytes`."""
    paths = sorted((DATA / "bench_en").glob("*.parquet"))
    table = pa.concat_tables(pq.read_table(path, columns=["text"]) for path in paths)
    column = table["text"].combine_chunks().cast(pa.large_string())
    rows = np.concatenate([np.arange(start, len(column), 7) for start in range(7)])
    ends = np.cumsum(utf8(column).sizes()[rows])
    return column.take(pa.array(rows[: int(np.searchsorted(ends, megabytes * 1e6)) + 1]))


def size(texts: pa.LargeStringArray) -> float:
    """Return megabytes of text."""
    return float(utf8(texts).sizes().sum()) / 1e6


def cpu_seconds(work: Callable[[], Result], repeats: int) -> tuple[float, Result]:
    """Return the least CPU seconds of several calls, and the result."""
    result = work()
    best = float("inf")
    for _ in range(repeats):
        before = time.process_time()
        result = work()
        best = min(best, time.process_time() - before)
    return best, result


def hash_rows(texts: pa.LargeStringArray, repeats: int) -> list[Row]:
    """Return MB/s of 128-bit document hashes."""
    import xxhash

    views = [memoryview(text.as_buffer()) for text in texts]
    ours, _ = cpu_seconds(lambda: hash_texts(*utf8(texts)), repeats)
    xxh3, _ = cpu_seconds(lambda: [xxhash.xxh3_128_intdigest(view) for view in views], repeats)
    sha1, _ = cpu_seconds(lambda: [hashlib.sha1(view).digest() for view in views], repeats)
    megabytes = size(texts)
    return [
        Row("corpuskit, 2 x XXH64", megabytes / ours),
        Row("xxhash.xxh3_128 from Python, views given", megabytes / xxh3),
        Row("hashlib.sha1, views given", megabytes / sha1),
    ]


def band_table(documents: int) -> tuple[NDArray[np.uint64], NDArray[np.uint8], NDArray[np.int64]]:
    """Return hash, band and key of rows, eight sorted runs; a fifth of the documents have a copy.

    A copy shares each band key with probability one half.
    """
    random = np.random.default_rng(0)
    hashes = random.integers(0, 2**64, (documents, BANDS), dtype=np.uint64)
    copies = np.arange(0, documents // 5 - 1, 2)
    for band in range(BANDS):
        same = copies[random.random(len(copies)) < 0.5]
        hashes[same + 1, band] = hashes[same, band]
    places = random.permutation(documents)
    runs = []
    for part in np.array_split(np.arange(documents), 8):
        flat = hashes[places[part]].ravel()
        order = np.argsort(flat)
        bands = np.tile(np.arange(BANDS, dtype=np.uint8), len(part))
        runs.append((flat[order], bands[order], np.repeat(part, BANDS)[order]))
    high, bands, keys = (np.concatenate(column) for column in zip(*runs, strict=True))
    return high, bands, keys


def group_rows(documents: int, repeats: int) -> list[Row]:
    """Return million rows/s from band rows to labelled documents."""
    hashes, bands, keys = band_table(documents)

    def ours() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        first = first_of_group(hashes, bands, keys)
        linked = np.flatnonzero(first != np.arange(len(first)))
        return connect(keys[linked], keys[first[linked]])

    def by_sorting(kind: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        order = np.argsort(hashes, kind=kind)  # type: ignore[call-overload]
        same = hashes[order[1:]] == hashes[order[:-1]]
        same &= bands[order[1:]] == bands[order[:-1]]
        return connect(keys[order[1:][same]], keys[order[:-1][same]])

    rows = []
    results = []
    for name, work in (
        ("corpuskit, parts and small tables", ours),
        ("np.argsort", lambda: by_sorting("quicksort")),
        ("np.argsort, stable (merges the sorted runs)", lambda: by_sorting("stable")),
    ):
        seconds, (nodes, labels) = cpu_seconds(work, repeats)
        rows.append(Row(name, len(hashes) / seconds / 1e6))
        results.append((nodes, labels))
    assert all((nodes == results[0][0]).all() for nodes, _ in results)
    assert all((labels == results[0][1]).all() for _, labels in results)
    return rows


def show(title: str, rows: list[Row]) -> None:
    """Print a table; rates are also shown as ratios, the first line's against each."""
    print(f"\n{title}")
    for row in rows:
        ratio = f"{rows[0].figure / row.figure:8.1f}x" if "/s" in title else ""
        print(f"  {row.name:<48} {row.figure:10.2f} {ratio}  {row.note}".rstrip())


if __name__ == "__main__":
    main()

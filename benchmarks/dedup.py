"""CPU seconds of exact and near-duplicate detection, each step against a peer on the same texts.

Signatures are compared with datasketch (bulk, shingles made in Python) and with the signature step of
datatrove, grouping with one np.argsort per range, hashes with xxhash from Python. The floor of
signing is its 112 permutations per word, shingle hashes given. The last table holds the pairs that
the bands join against all pairs whose exact Jaccard similarity is 0.2 or more. CPU seconds are those
of the process, each figure is the best of `--repeats`; kernels are compiled before.

    python benchmarks/dedup.py [--mb 20] [--peer-mb 2] [--documents 1000000] [--repeats 3]

Reads bench_en and neardup from CORPUSKIT_SHARED_DATA.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.batch import Utf8, utf8
from corpuskit.kernels.hashing import hash_texts
from corpuskit.kernels.minhash import permutations, shingle_hashes, sign_texts, smallest
from corpuskit.kernels.unionfind import connect, first_of_group
from corpuskit.kernels.wordhash import BYTE_KINDS, characters, word_edges, word_hashes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("CORPUSKIT_SHARED_DATA", ROOT.parent / "shared" / "data"))

BANDS, ROWS, NGRAM, SEED = 14, 8, 5, 1

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
    parser.add_argument("--peer-mb", type=float, default=2, help="text for the slower peers")
    parser.add_argument("--documents", type=int, default=1_000_000, help="of the grouping")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    texts = read_texts(given.mb)
    few = read_texts(given.peer_mb)
    show(f"Hashes, MB/s ({size(texts):.0f} MB)", hash_rows(texts, given.repeats))
    show(
        f"Signatures, MB/s ({size(texts):.0f} MB; peers {size(few):.0f} MB)",
        sign_rows(texts, few, given.repeats),
    )
    show("Where signing spends its time, ms per MB", parts(texts, given))
    show(
        f"Groups and clusters, million rows/s ({given.documents:,} documents, {BANDS} bands)",
        group_rows(given.documents, given.repeats),
    )
    show_pairs()


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


def sign(texts: pa.LargeStringArray) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return our band keys."""
    return sign_texts(*utf8(texts), ngram=NGRAM, bands=BANDS, rows=ROWS, seed=SEED)


def word_shingles(text: str) -> list[bytes]:
    """Return the word n-grams of a text, as a user of datasketch makes them."""
    words = re.findall(r"\w+", text.lower())
    return [" ".join(words[i : i + NGRAM]).encode() for i in range(max(len(words) - NGRAM + 1, 1))]


def sign_rows(texts: pa.LargeStringArray, few: pa.LargeStringArray, repeats: int) -> list[Row]:
    """Return MB/s of signatures."""
    from datasketch import MinHash
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature

    ours, _ = cpu_seconds(lambda: sign(texts), repeats)
    strings = few.to_pylist()
    shingles = [word_shingles(text) for text in strings]
    width = BANDS * ROWS

    def bulk(given: list[list[bytes]]) -> list[MinHash]:
        return MinHash.bulk(given, num_perm=width)  # type: ignore[no-any-return]

    whole, _ = cpu_seconds(lambda: bulk([word_shingles(text) for text in strings]), 1)
    alone, _ = cpu_seconds(lambda: bulk(shingles), 1)
    step = MinhashDedupSignature("unused", MinhashConfig(NGRAM, BANDS, ROWS, SEED))

    def datatrove() -> None:
        for text in strings:
            found = step.get_shingles(text)
            if found.size:
                step.get_signature(found)

    reference, _ = cpu_seconds(datatrove, 1)
    return [
        Row("corpuskit, words to band keys", size(texts) / ours),
        Row("datasketch MinHash.bulk with Python shingles", size(few) / whole),
        Row("datasketch MinHash.bulk, shingles given", size(few) / alone),
        Row("datatrove signature step (spaCy words)", size(few) / reference),
    ]


def parts(texts: pa.LargeStringArray, given: argparse.Namespace) -> list[Row]:
    """Return ms per MB of what signing does."""
    column: Utf8 = utf8(texts)
    begin, end = int(column.offsets[0]), int(column.offsets[-1])
    edges = np.empty(end - begin + 2, np.int32)
    words = np.empty((end - begin) // 2 + 1, np.uint64)
    table = characters()
    a, b = permutations(BANDS * ROWS, SEED)
    out = np.empty(len(a), np.uint64)

    def hash_words() -> int:
        return word_hashes(column.data, begin, end, table, BYTE_KINDS, edges, words)

    find, _ = cpu_seconds(
        lambda: word_edges(column.data, begin, end, BYTE_KINDS, edges), given.repeats
    )
    hashed, num = cpu_seconds(hash_words, given.repeats)
    shingled, _ = cpu_seconds(lambda: shingle_hashes(words, num, NGRAM), given.repeats)
    permuted, _ = cpu_seconds(lambda: smallest(words, num, a, b, out), given.repeats)
    whole, _ = cpu_seconds(lambda: sign(texts), given.repeats)
    scale = 1000 / size(texts)
    per_word = f"{1e9 * permuted / num:.1f} ns a word, {num / size(texts) / 1000:.0f}k words/MB"
    return [
        Row("word boundaries", find * scale),
        Row("word hashes", (hashed - find) * scale),
        Row("shingle hashes", shingled * scale),
        Row("112 permutations", permuted * scale, per_word),
        Row("all", whole * scale, f"{whole / permuted:.2f} times the permutations"),
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


def show_pairs() -> None:
    """Print how many of the known pairs the bands join, by Jaccard similarity."""
    docs = pq.read_table(DATA / "neardup" / "docs.parquet", columns=["id", "text"])
    keys, _ = sign(docs["text"].combine_chunks().cast(pa.large_string()))
    place = {name: number for number, name in enumerate(docs["id"].to_pylist())}
    pairs = pq.read_table(DATA / "neardup" / "pairs.parquet")
    one = np.array([place[name] for name in pairs["id_a"].to_pylist()])
    other = np.array([place[name] for name in pairs["id_b"].to_pylist()])
    similarity = pairs["jaccard_word5"].to_numpy()
    found = (keys[one] == keys[other]).any(axis=1)
    theory = 1 - (1 - similarity**ROWS) ** BANDS
    print("\nPairs found, of all with Jaccard >= 0.2")
    print(f"{'Jaccard':>12} {'pairs':>8} {'found':>8} {'theory':>8}")
    for low in range(2, 10):
        bucket = (similarity >= low / 10) & (similarity < (low + 1) / 10 + (low == 9))
        label = f"{low / 10:.1f}-{(low + 1) / 10:.1f}"
        print(
            f"{label:>12} {bucket.sum():>8,} {found[bucket].mean():>8.3f} "
            f"{theory[bucket].mean():>8.3f}"
        )


def show(title: str, rows: list[Row]) -> None:
    """Print a table; rates are also shown as ratios, the first line's against each."""
    print(f"\n{title}")
    for row in rows:
        ratio = f"{rows[0].figure / row.figure:8.1f}x" if "/s" in title else ""
        print(f"  {row.name:<48} {row.figure:10.2f} {ratio}  {row.note}".rstrip())


if __name__ == "__main__":
    main()

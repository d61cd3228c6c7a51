"""CPU seconds and recall of the signature schemes of minhash_dedup, beside datasketch and datatrove.

All see the same documents of bench_en in the same run, from texts in memory to band keys (ours) or
signatures (theirs); one more line starts from Parquet files. CPU seconds are those of the process,
the best of `--repeats`; kernels are compiled and words remembered before, as in a long run.

The second table plants pairs of sets whose Jaccard similarity is known and counts how often a band
agrees, with the standard errors between that and 1 - (1 - J**8)**14; the third does so with the
known pairs of real documents in neardup.

    python benchmarks/minhash_schemes.py [--mb 20] [--peer-mb 1.5] [--pairs 2000] [--repeats 3]

Reads bench_en and neardup from CORPUSKIT_SHARED_DATA.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from corpuskit.formats.batch import utf8
from corpuskit.integrations.datasketch import hash_function, shingle_bytes
from corpuskit.kernels.minhash import permutations, polynomials, sketch, smallest
from corpuskit.kernels.utf8 import characters
from corpuskit.kernels.wordhash import BYTE_KINDS, word_edges, word_hashes
from corpuskit.stage.view import View
from corpuskit.stages.dedup.minhash_dedup import schemes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("CORPUSKIT_SHARED_DATA", ROOT.parent / "shared" / "data"))

SIZES = (20, 60, 400, 2000)
SIMILARITIES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Parameters:
    """The parameters of minhash_dedup that decide about signatures, with its defaults."""

    scheme: schemes.Scheme = "fast"
    ngram: int = 5
    bands: int = 14
    rows: int = 8
    seed: int = 1
    language: str = "en"
    hash_function: schemes.HashFunction | None = None
    precision: schemes.Precision | None = None


OURS = [
    Parameters("fast"),
    Parameters("datatrove"),
    Parameters("datatrove", hash_function="sha1"),
    Parameters("datasketch"),
    Parameters("datasketch", hash_function="xxhash"),
    Parameters("datasketch", hash_function="xxhash", precision=64),
]
WIDTH = OURS[0].bands * OURS[0].rows


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=20, help="text for our kernels")
    parser.add_argument("--peer-mb", type=float, default=1.5, help="text for the slower peers")
    parser.add_argument("--pairs", type=int, default=2000, help="planted pairs per point")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    show_speed(read_texts(given.mb), read_texts(given.peer_mb), given.repeats)
    show_parts(read_texts(given.mb), given.repeats)
    show_planted(given.pairs)
    show_pairs()


def read_texts(megabytes: float) -> pa.LargeStringArray:
    """Return every seventh document of bench_en, up to `megabytes`."""
    paths = sorted((DATA / "bench_en").glob("*.parquet"))
    table = pa.concat_tables(pq.read_table(path, columns=["text"]) for path in paths)
    column = table["text"].combine_chunks().cast(pa.large_string())
    rows = np.concatenate([np.arange(start, len(column), 7) for start in range(7)])
    ends = np.cumsum(utf8(column).sizes()[rows])
    return column.take(pa.array(rows[: int(np.searchsorted(ends, megabytes * 1e6)) + 1]))


def megabytes(texts: pa.LargeStringArray) -> float:
    """Return the size of texts."""
    return float(utf8(texts).sizes().sum()) / 1e6


def view(texts: pa.LargeStringArray) -> View:
    """Return texts as a stage sees them."""
    return View(pa.record_batch({"text": texts}))


def cpu_seconds(work: Callable[[], Result], repeats: int) -> tuple[float, Result]:
    """Return the least CPU seconds of several calls, and the result; one call goes before."""
    result = work()
    best = float("inf")
    for _ in range(repeats):
        before = time.process_time()
        result = work()
        best = min(best, time.process_time() - before)
    return best, result


def name_of(stage: Parameters) -> str:
    """Return what a scheme is called in the tables."""
    if stage.scheme == "fast":
        return "fast"
    function, precision = schemes.hashing(stage)
    return f"{stage.scheme}, {function} {precision}"


def show_speed(texts: pa.LargeStringArray, few: pa.LargeStringArray, repeats: int) -> None:
    """Print MB per CPU second of all schemes, and of the peers."""
    rates = {}
    for stage in OURS:
        seconds, _ = cpu_seconds(lambda stage=stage: schemes.sign(view(texts), stage), repeats)
        rates[name_of(stage)] = megabytes(texts) / seconds
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.parquet"
        pq.write_table(pa.table({"text": texts}), path, compression="zstd")
        seconds, _ = cpu_seconds(lambda: sign_file(path), repeats)
    rates["fast, from a Parquet file (zstd)"] = megabytes(texts) / seconds
    strings = few.to_pylist()
    for name, work in peers(strings).items():
        before = time.process_time()
        work()
        rates[name] = megabytes(few) / (time.process_time() - before)
    print(f"Text to band keys, MB per CPU second ({megabytes(texts):.0f} MB; peers ", end="")
    print(f"{megabytes(few):.1f} MB), {len(texts):,} documents\n")
    theirs = (
        rates["datatrove 0.10.1 signature step"],
        rates["datasketch bulk, sha1, with shingling"],
    )
    print(f"  {'':<44} {'MB/s':>8} {'x datatrove':>12} {'x datasketch':>13}")
    for name, rate in rates.items():
        print(f"  {name:<44} {rate:8.1f} {rate / theirs[0]:12.1f} {rate / theirs[1]:13.1f}")


def sign_file(path: Path) -> None:
    """Sign a file batch by batch, in one thread."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(2000, use_threads=False):
            schemes.sign(view(batch.column(0).cast(pa.large_string())), OURS[0])


def peers(texts: list[str]) -> dict[str, Callable[[], Any]]:
    """Return the same work as others do it."""
    from datasketch import MinHash
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature

    shingles = [shingle_bytes(text) for text in texts]
    step = MinhashDedupSignature("unused", MinhashConfig(5, 14, 8, 1))
    step.get_shingles("Opens the tokenizer.")

    def datatrove() -> None:
        for text in texts:
            found = step.get_shingles(text)
            if found.size:
                step.get_signature(found)

    def bulk(function: str, given: list[list[bytes]] | None = None) -> list[MinHash]:
        made = [shingle_bytes(text) for text in texts] if given is None else given
        return MinHash.bulk(made, num_perm=WIDTH, hashfunc=hash_function(function, 32))  # type: ignore[no-any-return]

    return {
        "datatrove 0.10.1 signature step": datatrove,
        "datasketch bulk, sha1, with shingling": lambda: bulk("sha1"),
        "datasketch bulk, sha1, shingles given": lambda: bulk("sha1", shingles),
        "datasketch bulk, xxhash, shingles given": lambda: bulk("xxhash", shingles),
    }


def show_parts(texts: pa.LargeStringArray, repeats: int) -> None:
    """Print where the fast scheme spends its time, and what 112 permutations would cost."""
    column = utf8(texts)
    begin, end = int(column.offsets[0]), int(column.offsets[-1])
    edges = np.empty(end - begin + 2, np.int32)
    words = np.empty((end - begin) // 2 + 1, np.uint64)
    table = characters()
    a, b = permutations(WIDTH, 1)
    out = np.empty(WIDTH, np.uint64)
    scale = 1000 / megabytes(texts)

    def seconds(work: Callable[[], Any]) -> float:
        return cpu_seconds(work, repeats)[0] * scale

    find = seconds(lambda: word_edges(column.data, begin, end, BYTE_KINDS, edges))
    hashed, num = cpu_seconds(
        lambda: word_hashes(column.data, begin, end, table, BYTE_KINDS, edges, words), repeats
    )
    rows = {
        "word boundaries": find,
        "word hashes": hashed * scale - find,
        "n-grams": seconds(lambda: polynomials(words, num, 5)),
        "sketch, one set": seconds(lambda: sketch(words, num - 4, np.uint64(1), out)),
        "all, text to band keys": seconds(lambda: schemes.sign(view(texts), OURS[0])),
        "(112 permutations mod 2**61 - 1 instead)": seconds(
            lambda: smallest(words, num - 4, a, b, out)
        ),
    }
    print(f"\nWhere `fast` spends its time, ms per MB ({num * scale / 1e6:.0f}k words per MB)\n")
    for name, figure in rows.items():
        print(f"  {name:<44} {figure:8.2f}")


def agrees(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Tell whether a band of two signatures agrees."""
    return bool((one == other).reshape(OURS[0].bands, OURS[0].rows).all(axis=1).any())


def show_planted(num_pairs: int) -> None:
    """Print how often planted pairs are found."""
    random = np.random.default_rng(7)
    a, b = permutations(WIDTH, 1)
    one, other = np.empty(WIDTH, np.uint64), np.empty(WIDTH, np.uint64)
    print(
        f"\nPlanted pairs found, {num_pairs:,} a point; in brackets, standard errors off theory\n"
    )
    print(f"  {'shingles':>8} {'Jaccard':>8} {'theory':>8} {'fast':>16} {'112 permutations':>18}")
    for size in SIZES:
        for similarity in SIMILARITIES:
            shared = round(2 * size * similarity / (1 + similarity))
            union = 2 * size - shared
            hits = np.zeros(2)
            for _ in range(num_pairs):
                shingles = random.integers(0, 2**64, union, dtype=np.uint64)
                left, right = shingles[:size].copy(), shingles[union - size :].copy()
                sketch(left, size, np.uint64(1), one)
                sketch(right, size, np.uint64(1), other)
                hits[0] += agrees(one, other)
                smallest(left, size, a, b, one)
                smallest(right, size, a, b, other)
                hits[1] += agrees(one, other)
            show_point(size, shared / union, hits / num_pairs, num_pairs)


def show_point(size: int, similarity: float, found: NDArray[np.float64], num_pairs: int) -> None:
    """Print one line of the planted pairs."""
    theory = 1 - (1 - similarity ** OURS[0].rows) ** OURS[0].bands
    error = max((theory * (1 - theory) / num_pairs) ** 0.5, 1 / num_pairs)
    cells = [f"{rate:9.3f} ({(rate - theory) / error:+4.1f})" for rate in found]
    print(f"  {size:>8,} {similarity:8.3f} {theory:8.3f} {cells[0]:>16} {cells[1]:>18}")


def show_pairs() -> None:
    """Print how many of the known pairs of real documents each scheme finds."""
    docs = pq.read_table(DATA / "neardup" / "docs.parquet", columns=["id", "text"])
    texts = docs["text"].combine_chunks().cast(pa.large_string())
    place = {name: number for number, name in enumerate(docs["id"].to_pylist())}
    pairs = pq.read_table(DATA / "neardup" / "pairs.parquet")
    one = np.array([place[name] for name in pairs["id_a"].to_pylist()])
    other = np.array([place[name] for name in pairs["id_b"].to_pylist()])
    similarity = pairs["jaccard_word5"].to_numpy()
    theory = 1 - (1 - similarity ** OURS[0].rows) ** OURS[0].bands
    columns = {}
    for stage in (OURS[0], OURS[1], OURS[3], OURS[4]):
        found = schemes.sign(view(texts), stage)
        same = (found.bands[one] == found.bands[other]).any(axis=1)
        columns[name_of(stage)] = same & found.signed[one] & found.signed[other]
    print("\nPairs of neardup found, by true Jaccard similarity of word 5-grams\n")
    heads = "".join(f"{name:>24}" for name in ("theory", *columns))
    print(f"  {'Jaccard':>9} {'pairs':>8}{heads}")
    for low in range(2, 10):
        bucket = (similarity >= low / 10) & (similarity < (low + 1) / 10 + (low == 9))
        rates = [theory[bucket].mean(), *(found[bucket].mean() for found in columns.values())]
        cells = "".join(f"{rate:24.3f}" for rate in rates)
        print(f"  {low / 10:.1f}-{(low + 1) / 10:.1f} {bucket.sum():>10,}{cells}")


if __name__ == "__main__":
    main()

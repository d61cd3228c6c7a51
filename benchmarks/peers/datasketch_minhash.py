"""datasketch: MinHash.bulk over shingles made by Python, MinHashLSH, union-find."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from adapter import BANDS, NGRAM, ROWS, firsts, measured
from datasketch import MinHash, MinHashLSH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def shingles(text: str) -> list[bytes]:
    """Return the distinct word n-grams of a text."""
    words = re.findall(r"\w+", text.lower())
    found = {" ".join(words[i : i + NGRAM]) for i in range(max(len(words) - NGRAM + 1, 1))}
    return [one.encode() for one in found]


def keep(documents: Path, variant: str) -> Callable[[], list[str]]:
    """Insert all, and join each document with what shares a band with it."""
    index = MinHashLSH(num_perm=BANDS * ROWS, params=(BANDS, ROWS))
    ids: list[str] = []
    edges: list[tuple[int, int]] = []

    def texts() -> Iterator[list[str]]:
        for batch in pq.ParquetFile(documents).iter_batches(1000, columns=["id", "text"]):
            ids.extend(batch.column("id").to_pylist())
            yield batch.column("text").to_pylist()

    number = 0
    for batch in texts():
        signed = MinHash.bulk([shingles(text) for text in batch], num_perm=BANDS * ROWS)
        for one in signed:
            edges += [(number, other) for other in index.query(one)]
            index.insert(number, one, check_duplication=False)
            number += 1
    kept = firsts(number, edges)
    return lambda: [ids[one] for one in kept]


if __name__ == "__main__":
    measured("datasketch", keep)

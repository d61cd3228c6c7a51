"""rensa: its deduplicator (RMinHash, banded index) over shingles made by Python, document by document.

Variant `bands`: the digests of all documents, then banding and union-find like the other peers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
from adapter import BANDS, NGRAM, ROWS, firsts, measured, shared
from rensa import RMinHash, RMinHashDeduplicator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WORDS = re.compile(r"\w+")
THRESHOLD = 0.72
"""The Jaccard similarity that 14 bands of 8 find as often as not."""


def shingles(text: str) -> set[str]:
    """Return the distinct word n-grams of a text."""
    words = WORDS.findall(text.lower())
    return {" ".join(words[i : i + NGRAM]) for i in range(max(len(words) - NGRAM + 1, 1))}


def keep(documents: Path, variant: str) -> Callable[[], list[str]]:
    """Keep what has no duplicate among the documents before it."""
    ids: list[str] = []

    def texts() -> Iterator[list[str]]:
        for batch in pq.ParquetFile(documents).iter_batches(1000, columns=["id", "text"]):
            ids.extend(batch.column("id").to_pylist())
            yield batch.column("text").to_pylist()

    if variant == "bands":
        rows = []
        for batch in texts():
            sets = [shingles(text) for text in batch]
            matrix = RMinHash.digest_matrix_from_token_sets(sets, BANDS * ROWS, 42)
            rows.append(np.array(matrix.to_rows(), np.uint32))
        width = np.dtype((np.void, 4 * ROWS))
        table = np.concatenate(rows).view(width)
        kept = firsts(len(ids), shared(table[:, band].tolist() for band in range(BANDS)))
    else:
        seen = RMinHashDeduplicator(THRESHOLD, BANDS * ROWS, True, BANDS, 42)
        is_new: list[bool] = []
        for batch in texts():
            for text in batch:
                one = RMinHash(BANDS * ROWS, 42)
                one.update(list(shingles(text)))
                is_new.append(seen.add(str(len(is_new)), one))
        kept = [number for number, new in enumerate(is_new) if new]
    return lambda: [ids[one] for one in kept]


if __name__ == "__main__":
    measured("rensa", keep)

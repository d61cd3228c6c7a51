"""daft: `minhash` over Parquet, then banding and union-find in NumPy and Python.

Variant `normalized`: lower case and no punctuation before, as its guide recommends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import daft
import numpy as np
from adapter import BANDS, NGRAM, ROWS, firsts, measured
from daft import functions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def neighbours(band: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield pairs of documents whose ROWS values of a band are equal; each group as a chain."""
    mixed = np.zeros(len(band), np.uint64)
    for column in band.T:
        mixed = (mixed ^ column) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    order = np.argsort(mixed, kind="stable")
    same = np.flatnonzero(mixed[order[1:]] == mixed[order[:-1]])
    for left, right in zip(order[same].tolist(), order[same + 1].tolist(), strict=True):
        if (band[left] == band[right]).all():
            yield left, right


def keep(documents: Path, variant: str) -> Callable[[], list[str]]:
    """Sign all documents, then join those that share a band."""
    text = daft.col("text")
    if variant == "normalized":
        text = functions.normalize(text, remove_punct=True, lowercase=True, white_space=True)
    signed = functions.minhash(
        text, num_hashes=BANDS * ROWS, ngram_size=NGRAM, hash_function="xxhash"
    )
    table = daft.read_parquet(str(documents)).select("id", signed.alias("signature")).to_arrow()
    values = table.column("signature").combine_chunks().flatten().to_numpy()
    bands = values.reshape(len(table), BANDS, ROWS)
    edges = (pair for band in range(BANDS) for pair in neighbours(bands[:, band]))
    kept = firsts(len(table), edges)
    ids = table.column("id")
    return lambda: ids.take(kept).to_pylist()


if __name__ == "__main__":
    measured("daft", keep)

"""Under which ids and URLs the documents of a cell are found: `corpuskit why` looks them up here.

One shuffle file per cell, sorted by hash. Ids that a source derived from file and position say
where their document lies; they are not in it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.formats.batch import numbers
from corpuskit.formats.shuffle_files import write_shuffle

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

ROLE = "ids"

SCHEMA = pa.schema([("hash", pa.uint64()), ("key", pa.int64()), ("kind", pa.uint8())])

ID, URL = 0, 1
"""In `kind`: what was hashed."""


def hash_of(name: str) -> int:
    """Return the hash of an id or URL: the first 8 bytes of its blake2b, little endian.

    Two of 1e7 names share one with a probability of 3e-6, so a hit is to be looked at.
    """
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


class Identities:
    """Collects the ids and URLs of one cell.

    Args:
        source: of the cell; its name begins derived ids.
    """

    def __init__(self, source: str) -> None:
        self._prefix = f"{source}/"
        self._hashes: list[NDArray[np.uint64]] = []
        self._keys: list[NDArray[np.int64]] = []
        self._kinds: list[NDArray[np.uint8]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the documents of a batch, as they were read."""
        origin = batch.column("origin")
        places = pc.cast(pc.struct_field(origin, "position"), pa.string())
        prefix = pa.scalar(self._prefix)
        file = pc.struct_field(origin, "file")
        derived = pc.binary_join_element_wise(
            pc.binary_join_element_wise(prefix, file, ""), places, "#"
        )
        keys = numbers(batch.column("key"))
        ids = batch.column("id")
        self._add(ids, numbers(pc.not_equal(ids, derived)), keys, ID)
        urls = pc.struct_field(origin, "url")
        if urls.null_count < len(urls):
            self._add(urls, numbers(urls.is_valid()), keys, URL)

    def write(self, path: Path) -> int:
        """Write the run and return its rows; without any, nothing is written."""
        num = sum(map(len, self._hashes))
        if num:
            columns = {
                "hash": np.concatenate(self._hashes),
                "key": np.concatenate(self._keys),
                "kind": np.concatenate(self._kinds),
            }
            write_shuffle(path, columns)
        return num

    def _add(
        self, names: pa.Array, chosen: NDArray[np.bool_], keys: NDArray[np.int64], kind: int
    ) -> None:
        rows = np.flatnonzero(chosen)
        if len(rows) == 0:
            return
        found = names.take(pa.array(rows)).cast(pa.binary()).to_pylist()
        digests = b"".join(hashlib.blake2b(one, digest_size=8).digest() for one in found)
        self._hashes.append(np.frombuffer(digests, "<u8").astype(np.uint64))
        self._keys.append(keys[rows])
        self._kinds.append(np.full(len(rows), kind, np.uint8))

"""What an audit holds of documents until all are read, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.formats.batch import numbers
from corpuskit.kernels.unionfind import connect, first_of_group

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

_SEEN_BITS = 27


class HashSample:
    """A sample of rows: those with the smallest marks of 64 bits, as many as fit.

    Rows of equal marks are all in it or none; so of the texts that it holds it has every copy.

    Args:
        most_bytes: memory that the rows may take.

    Attributes:
        share: of all rows, that are chosen.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most, self._halvings, self._held = most_bytes, 0, 0
        self._batches: list[pa.RecordBatch] = []

    @property
    def share(self) -> float:
        return 0.5**self._halvings

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows; their column `mark`, uint64, decides."""
        self._batches.append(self._chosen(batch))
        self._held += self._batches[-1].nbytes
        while self._held > self._most:
            self._halvings += 1
            self._batches = [self._chosen(batch) for batch in self._batches]
            self._held = sum(batch.nbytes for batch in self._batches)

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._halvings:
            return batch
        marks = numbers(batch.column("mark"))
        return batch.filter(pa.array(marks >> np.uint64(64 - self._halvings) == 0))

    def rows(self) -> pa.Table | None:
        """Return all rows, None if there are none; columns in one piece."""
        batches = [batch for batch in self._batches if len(batch)]
        return pa.Table.from_batches(batches).combine_chunks() if batches else None


class FirstSeen:
    """Tells the first of equal hashes from the others; takes 16 MB.

    One bit marks each hash: of a million different ones, 1 in 270 counts as seen before.
    """

    def __init__(self) -> None:
        self._bits = np.zeros(1 << (_SEEN_BITS - 3), np.uint8)

    def new_rows(self, hashes: Hashes) -> NDArray[np.int64]:
        """Return the rows of hashes that were not in an earlier batch, ascending."""
        _, rows = np.unique(hashes, return_index=True)
        indices = (hashes[rows] >> np.uint64(64 - _SEEN_BITS)).astype(np.int64)
        bits = np.left_shift(1, indices & 7).astype(np.uint8)
        is_new = self._bits[indices >> 3] & bits == 0
        np.bitwise_or.at(self._bits, indices >> 3, bits)
        return np.sort(rows[is_new])


class Copies(NamedTuple):
    """Documents that resemble one before them.

    Attributes:
        rows: of them, in the table; `originals`: what each resembles.
        similarity: of each pair, estimated.
    """

    rows: NDArray[np.int64]
    originals: NDArray[np.int64]
    similarity: NDArray[np.float64]

    def groups(self, limit: int) -> list[tuple[int, int, int]]:
        """Return the largest groups: documents, the row of the first, that of another."""
        nodes, roots = connect(self.rows, self.originals)
        firsts, counts = np.unique(roots, return_counts=True)
        order = np.lexsort((firsts, -counts))[:limit]
        copies = {root: node for node, root in zip(nodes, roots, strict=True) if node != root}
        return [(int(counts[i]), int(firsts[i]), int(copies[firsts[i]])) for i in order]


def exact_copies(hashes: Hashes, keys: NDArray[np.int64]) -> Copies:
    """Return the rows whose hash is that of one with a smaller key."""
    firsts = first_of_group(hashes, np.zeros(len(hashes), np.uint64), keys)
    rows = np.flatnonzero(firsts != np.arange(len(hashes)))
    return Copies(rows, firsts[rows], np.ones(len(rows)))


def near_copies(table: pa.Table, least: float) -> Copies:
    """Return the rows that resemble one with a smaller key, and are not equal to one.

    Args:
        table: columns `hash` of the text, `key`, `bands` and `values`, one byte of each value of
            the signature; two of them are equal by chance in 1 of 256 cases.
        least: similarity of near duplicates.

    Source: Li and Koenig 2010, b-Bit Minwise Hashing.
    """
    keys = numbers(table.column("key"))
    hashes = numbers(table.column("hash"))
    bands, values = (_matrix(table.column(name)) for name in ("bands", "values"))
    equal = exact_copies(hashes, keys).rows
    distinct = np.delete(np.arange(len(keys)), equal)
    best = np.zeros(len(distinct))
    originals = np.full(len(distinct), -1, np.int64)
    for band in range(bands.shape[1]):
        band_keys = np.ascontiguousarray(bands[distinct, band])
        firsts = first_of_group(band_keys, np.zeros(len(distinct), np.uint64), keys[distinct])
        rows = np.flatnonzero(firsts != np.arange(len(distinct)))
        for begin in range(0, len(rows), 1 << 16):
            chunk = rows[begin : begin + (1 << 16)]
            agreement = (values[distinct[chunk]] == values[distinct[firsts[chunk]]]).mean(axis=1)
            similarity = (agreement - 1 / 256) / (1 - 1 / 256)
            better = similarity > best[chunk]
            best[chunk[better]] = similarity[better]
            originals[chunk[better]] = firsts[chunk[better]]
    similar = np.flatnonzero(best >= least)
    return Copies(distinct[similar], distinct[originals[similar]], best[similar])


class Templates(NamedTuple):
    """Texts that share most of what they say with others.

    Attributes:
        rows: of them, in the table.
        groups: (rows,) number of the value of each text that most others share.
    """

    rows: NDArray[np.int64]
    groups: NDArray[np.int64]


def find_templates(table: pa.Table, least: float, count: int) -> Templates:
    """Return the texts that share at least `least` of their shingles with `count` texts or more.

    Each value of a signature is one of the text's shingles, drawn at random. Texts with a common
    skeleton draw the same one whenever it is in the skeleton. So the share of values that others
    have estimates the share of shingles that they have, within 0.06.

    Args:
        table: column `values`, 32 bits of each value of the signature.
        least: share.
        count: texts.
    """
    values = _matrix(table.column("values"))
    shared = np.zeros(len(values))
    best, groups = np.zeros(len(values), np.int64), np.zeros(len(values), np.int64)
    for column in range(values.shape[1]):
        _, firsts, ranks, times = np.unique(
            values[:, column], return_index=True, return_inverse=True, return_counts=True
        )
        shared += times[ranks] >= count
        better = times[ranks] > best
        best[better] = times[ranks[better]]
        groups[better] = firsts[ranks[better]] * values.shape[1] + column
    rows = np.flatnonzero(shared >= least * values.shape[1])
    return Templates(rows, groups[rows])


def matrix_column(matrix: NDArray[np.generic]) -> pa.Array:
    """Return a matrix as a column of its rows."""
    flat = pa.array(np.ascontiguousarray(matrix).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, matrix.shape[1])


def _matrix(column: pa.ChunkedArray) -> NDArray[np.generic]:
    lists = column.chunk(0) if column.num_chunks == 1 else pc.cast(column, column.type)
    flat = numbers(lists.flatten())
    return flat.reshape(len(column), -1)

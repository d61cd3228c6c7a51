"""Clusters around the documents that stay: a document goes only if one of them holds it.

Documents have an order: those of reference runs, which all stay, then by what `keep` and `prefer`
say. In that order a document goes if an earlier one that stays holds it (`kernels.survivors`), and
is put into the cluster of the first such one. The result depends on the documents of a component
alone, and documents with equal sets go to the same one, so sets stand for their documents.

A component too large for a task is cut into ranges of that order; the sets of a range are compared
with those that stay of all earlier ranges, read block by block, and then with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from corpuskit.kernels.arrays import Bools, Int64s, Uint64s, frozen
from corpuskit.kernels.singlelink import LINK_BYTES
from corpuskit.kernels.survivors import first_holders
from corpuskit.stage import PassContext
from corpuskit.stages.dedup._cluster_stage import rank
from corpuskit.stages.dedup.minhash_dedup.verification import (
    MOST_SHINGLES,
    READ_BYTES,
    ROW_BYTES,
    ComponentRange,
    ReadSets,
    Verified,
    read_sets,
)


class _PieceSets(NamedTuple):
    """Some of the sets of a piece, a row each.

    Attributes:
        numbers: their numbers in `_Stars`, (N,); -1 for rows that are not compared.
    """

    numbers: Int64s
    components: Int64s
    offsets: Int64s
    hashes: Uint64s


def direct_clusters(
    context: PassContext, piece: ComponentRange, *, bounds: tuple[float, float], is_grouped: bool
) -> Verified:
    """Return the clusters around the documents that stay.

    Args:
        bounds: least similarity to the survivor, and the largest share that it may lack.
        is_grouped: one document of each group of a cluster stays.
    """
    if len(piece.blocks) == 1:
        every_set = read_sets(context, piece, piece.blocks)
        stars = _Stars([every_set], bounds)
        stars.hold(stars.rows_of(every_set))
        return stars.clusters(is_grouped=is_grouped)

    def read() -> Iterator[ReadSets]:
        return (read_sets(context, piece, [block]) for block in piece.blocks)

    stars = _Stars(read(), bounds)
    is_settled = np.zeros(len(stars.owners), np.bool_)
    for chunk in stars.chunks(context.memory_bytes):
        is_in_chunk = np.zeros(len(stars.owners), np.bool_)
        is_in_chunk[chunk] = True
        chunk_sets = _concatenate(stars.select(sets, is_in_chunk) for sets in read())
        for sets in read() if is_settled.any() else ():
            stars.hold(_concatenate([chunk_sets, stars.select(sets, is_settled)]), is_settled)
        stars.hold(chunk_sets)
        is_settled[chunk] = stars.holders[chunk] < 0
    return stars.clusters(is_grouped=is_grouped)


class _Stars:
    """The documents of a piece, and the sets that stand for them.

    Attributes:
        keys, priorities, groups: of documents, (D,), ascending by key.
        sets: number of the set of each document, (D,).
        owners: keys of the documents that sets are stored with, (S,), ascending.
        sizes: of sets, (S,).
        positions: of sets in the order of documents, (S,): that of their first document.
        stays: sets of reference documents, (S,).
        holders: number of the set that holds each, or -1, (S,).
        shared: shingles that each has in common with its holder, (S,).
    """

    def __init__(self, blocks: Iterable[ReadSets], bounds: tuple[float, float]) -> None:
        columns = [
            (b.keys, b.priorities, b.groups, b.keys[b.twins], np.diff(b.offsets)[b.twins])
            for b in blocks
        ]
        keys, priorities, groups, owners, sizes = map(np.concatenate, zip(*columns, strict=True))
        order = np.argsort(keys)
        self.bounds = bounds
        self.keys, self.priorities, self.groups = keys[order], priorities[order], groups[order]
        self.owners, first, self.sets = np.unique(
            owners[order], return_index=True, return_inverse=True
        )
        self.sizes = sizes[order][first]
        sort_priorities = np.where(self.keys < 0, np.uint64(0), self.priorities)
        documents = np.lexsort((self.keys, sort_priorities, self.keys >= 0))
        _, self.positions = np.unique(self.sets[documents], return_index=True)
        self.stays = self.keys[documents[self.positions]] < 0
        self.holders = np.full(len(self.owners), -1)
        self.shared = np.zeros(len(self.owners), np.int64)

    def hold(self, sets: _PieceSets, is_settled: Bools | None = None) -> None:
        """Find the holders of sets among all of them, or among those that are settled."""
        stays = self.stays if is_settled is None else is_settled
        is_compared = (self.holders < 0) if is_settled is None else ~self.stays | is_settled
        rows = np.flatnonzero(sets.numbers >= 0)
        rows = rows[is_compared[sets.numbers[rows]]]
        holders, shared = first_holders(
            frozen(sets.components), frozen(sets.offsets), frozen(sets.hashes),
            rows[np.argsort(self.positions[sets.numbers[rows]])], self.bounds,
            stays=(sets.numbers >= 0) & stays[sets.numbers], decides_all=is_settled is None,
        )  # fmt: skip
        rows_held = np.flatnonzero(holders >= 0)
        numbers, holder_sets = sets.numbers[rows_held], sets.numbers[holders[rows_held]]
        # Each block may have a holder: the first one in the order counts.
        first_position = np.where(
            self.holders[numbers] < 0, len(self.keys), self.positions[self.holders[numbers]]
        )
        is_first = self.positions[holder_sets] < first_position
        self.holders[numbers[is_first]] = holder_sets[is_first]
        self.shared[numbers[is_first]] = shared[rows_held[is_first]]

    def clusters(self, *, is_grouped: bool) -> Verified:
        """Return the clusters.

        Args:
            is_grouped: one document of each group of a cluster stays.
        """
        centers = np.where(self.holders < 0, np.arange(len(self.owners)), self.holders)
        names = np.full(len(self.owners), np.iinfo(np.int64).max)
        np.minimum.at(names, centers[self.sets], self.keys)
        groups = self.groups if is_grouped else None
        ranked = rank(self.keys, names[centers[self.sets]], self.priorities, groups)
        sets = self.sets[np.searchsorted(self.keys, ranked.keys)]
        sizes, center_sizes = self.sizes[sets], self.sizes[centers[sets]]
        shared = np.where(self.holders[sets] < 0, sizes, self.shared[sets])
        return Verified(ranked, shared / (sizes + center_sizes - shared), (sizes - shared) / sizes)

    def chunks(self, memory_bytes: int) -> Iterator[Int64s]:
        """Yield sets in order, as many at a time as fit beside a block."""
        order = np.argsort(self.positions)
        set_bytes = 2 * (self.sizes[order] * (READ_BYTES + LINK_BYTES) + ROW_BYTES)
        ends = np.cumsum(set_bytes)
        max_bytes = min(memory_bytes, MOST_SHINGLES * LINK_BYTES)
        begin = 0
        while begin < len(order):
            end = int(np.searchsorted(ends, ends[begin] - set_bytes[begin] + max_bytes, "right"))
            yield order[begin : max(end, begin + 1)]
            begin = max(end, begin + 1)

    def rows_of(self, sets: ReadSets) -> _PieceSets:
        """Return all sets that were read."""
        numbers = np.full(len(sets.keys), -1)
        numbers[sets.firsts] = np.searchsorted(self.owners, sets.keys[sets.firsts])
        return _PieceSets(numbers, sets.components.view(np.int64), sets.offsets, sets.hashes)

    def select(self, sets: ReadSets, is_chosen: Bools) -> _PieceSets:
        """Return some of the sets that were read, and nothing of the others."""
        numbers, components, offsets, hashes = self.rows_of(sets)
        rows = (numbers >= 0) & is_chosen[numbers]
        sizes = np.diff(offsets)
        hashes = hashes[offsets[0] : offsets[-1]][np.repeat(rows, sizes)]
        bounds = np.concatenate([[0], np.cumsum(sizes[rows])])
        return _PieceSets(numbers[rows], components[rows], bounds, hashes)


def _concatenate(pieces: Iterable[_PieceSets]) -> _PieceSets:
    """Return sets one after the other."""
    numbers, components, offsets, hashes = zip(*pieces, strict=True)
    sizes = np.concatenate([np.diff(bounds) for bounds in offsets])
    return _PieceSets(
        np.concatenate(numbers), np.concatenate(components),
        np.concatenate([[0], np.cumsum(sizes)]), np.concatenate(hashes),
    )  # fmt: skip

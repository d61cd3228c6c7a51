"""Clusters by true Jaccard similarity, of documents that bands have joined.

    gather (cells)        shingle sets of the documents that are in a component, by component
    verify (hash ranges)  connects, within each component, the documents that are similar

Every pair of a component counts, also one that no band joined: the clusters are the single-link
clusters of each component. A component too large for a task is taken in blocks of cells, every two
of which meet; nothing is sampled or left out.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from corpuskit.errors import TaskError
from corpuskit.formats.batch import numbers
from corpuskit.formats.shuffle_files import hash_ranges
from corpuskit.kernels.jaccard import similarities
from corpuskit.kernels.singlelink import LINK_BYTES, single_link
from corpuskit.kernels.unionfind import connect
from corpuskit.stage import Cost, Unit
from corpuskit.stages.dedup import _clusters
from corpuskit.stages.dedup._sets import SETS, SIZES, as_hashes, first_twins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from corpuskit.stage import PassContext, PassPlan, Volume

    Keys = NDArray[np.int64]
    Rows = NDArray[np.int64]
    Hashes = NDArray[np.uint64]
    Producers = tuple[int, int]

READ_BYTES = 18
"""Memory of a shingle while it is read: it is there twice."""

ROW_BYTES = 300
"""Memory of a document's row while its component is verified, and until clusters are written."""

TEXT_BYTES = 6
"""Text of a shingle, on average."""

_MOST_SHINGLES = 1 << 31
"""Of one component at a time: its elements are numbered by 32 bits."""


def cut_ranges(plan: PassPlan) -> list[Unit]:
    """Return ranges of places that a task can hold, as far as components can be told apart."""
    counted = plan.counters("gather")
    needed = counted.get("shingles", 0) * READ_BYTES + counted.get("gathered", 0) * ROW_BYTES
    # Components are large and small, so half of the memory is for what is above average.
    ranges = hash_ranges(max(-(-2 * needed // plan.memory_bytes), 1))
    return [Unit(number, low=low, high=high) for number, (low, high) in enumerate(ranges)]


def cost(volume: Volume, pass_name: str, share: float = _clusters.CLUSTERED) -> Cost:
    """Return what `gather` and `verify` need if bands join a share of all documents."""
    shingles = int(volume.text_bytes * share / TEXT_BYTES)
    if pass_name == "gather":
        held = int(volume.cell_bytes * share / TEXT_BYTES) * 24
        seconds = volume.text_bytes / 400e6 + shingles / 20e6
        return Cost(seconds, unit_bytes=held, disk_bytes=9 * shingles)
    documents = int(volume.documents * share)
    needed = shingles * READ_BYTES + documents * ROW_BYTES
    units = max(-(-2 * needed // volume.task_memory_bytes), 1)
    return Cost(
        shingles / 30e6 + documents / 1e6, unit_bytes=min(needed, volume.task_memory_bytes),
        disk_bytes=48 * documents, units=units,
    )  # fmt: skip


def verify_range(context: PassContext, threshold: float) -> None:
    """Write the clusters of a range of places: run `clusters`."""
    found = []
    for piece in _cut_pieces(context):
        labels = _Labels(context, piece, threshold)
        labels.connect()
        found.append(labels.ranked())
    if found:
        columns = zip(*(ranked for ranked, _ in found), strict=True)
        ranked = _clusters.Ranked(*(np.concatenate(column) for column in columns))
        _clusters.write_clusters(context, ranked, np.concatenate([known for _, known in found]))


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Components that are verified at a time: a range of places.

    Attributes:
        blocks: producers of one component too large to hold; None = all is read at once.
    """

    low: int
    high: int
    blocks: tuple[Producers | None, ...] = (None,)


def _cut_pieces(context: PassContext) -> list[_Piece]:
    """Cut this unit's range into pieces that fit into memory."""
    unit = context.unit
    rows = context.read_shuffle("gather/sizes", unit.low, unit.high, SIZES)
    places, group = np.unique(numbers(rows.column("place")), return_inverse=True)
    documents = np.bincount(group, numbers(rows.column("documents"))).astype(np.int64).tolist()
    shingles = np.bincount(group, numbers(rows.column("shingles"))).astype(np.int64).tolist()
    del rows
    pieces: list[_Piece] = []
    read = largest = 0
    for place, num_docs, size in zip(places.tolist(), documents, shingles, strict=True):
        read += size * READ_BYTES + num_docs * ROW_BYTES
        largest = max(largest, size)
        last = pieces[-1] if pieces and pieces[-1].blocks == (None,) else None
        if _too_large(size * READ_BYTES + num_docs * ROW_BYTES, size, context.memory_bytes):
            blocks = _cut_blocks(context, place)
            pieces.append(_Piece(place, place + 1, blocks))
        elif (
            last is None
            or last.blocks != (None,)
            or _too_large(read, largest, context.memory_bytes)
        ):
            pieces.append(_Piece(place, place + 1))
        else:
            pieces[-1] = _Piece(last.low, place + 1)
            continue
        read, largest = size * READ_BYTES + num_docs * ROW_BYTES, size
    return pieces


def _too_large(read_bytes: int, shingles: int, memory_bytes: int) -> bool:
    return read_bytes + shingles * LINK_BYTES > memory_bytes or shingles >= _MOST_SHINGLES


def _cut_blocks(context: PassContext, place: int) -> tuple[Producers, ...]:
    """Cut the producers of a component so that any two blocks fit into memory.

    Raises:
        TaskError: the documents of one cell don't.
    """
    blocks: list[Producers] = []
    held_bytes = held = 0
    for producer in range(len(context.parts("gather/sizes"))):
        one = (producer, producer + 1)
        rows = context.read_shuffle("gather/sizes", place, place + 1, SIZES, one)
        size = int(numbers(rows.column("shingles")).sum())
        read = size * READ_BYTES + int(numbers(rows.column("documents")).sum()) * ROW_BYTES
        if _too_large(2 * read, 2 * size, context.memory_bytes):
            needed = 2 * (read + size * LINK_BYTES)
            raise TaskError(
                f"{context.label}.verify: near duplicates of one cell that bands join need "
                f"{needed:,} bytes to be compared in one task, which may use "
                f"{context.memory_bytes:,}. Set task_memory_bytes to {needed} or more."
            )
        held_bytes, held = held_bytes + read, held + size
        if not blocks or _too_large(2 * held_bytes, 2 * held, context.memory_bytes):
            blocks.append(one)
            held_bytes, held = read, size
        else:
            blocks[-1] = (blocks[-1][0], producer + 1)
    return tuple(blocks)


class _Sets(NamedTuple):
    """Shingle sets as read, in any order.

    Attributes:
        twins: for each row the first one with the same set, which is itself for `kept` ones.
    """

    keys: Keys
    lines: NDArray[np.uint64]
    places: Hashes
    twins: Rows
    kept: Rows
    offsets: NDArray[np.int64]
    hashes: Hashes


class _Labels:
    """Labels of the documents of a piece: the smallest key of what each is connected to.

    Attributes:
        keys: of all documents read so far, ascending.
        lines, labels: of these.
    """

    def __init__(self, context: PassContext, piece: _Piece, threshold: float) -> None:
        self.context, self.piece, self.threshold = context, piece, threshold
        self.keys = self.labels = np.empty(0, np.int64)
        self.lines = np.empty(0, np.uint64)
        self.read: tuple[list[Producers | None], _Sets] | None = None

    def connect(self) -> None:
        """Connect all similar documents: within each block, then between every two."""
        for number, block in enumerate(self.piece.blocks):
            sets = self._sets([block])
            keys = np.concatenate([self.keys, sets.keys])
            order = np.argsort(keys, kind="stable")
            self.keys = keys[order]
            self.lines = np.concatenate([self.lines, sets.lines])[order]
            self.labels = np.concatenate([self.labels, sets.keys])[order]
            self._link(sets, is_new=True)
            del sets, keys, order
            for before in self.piece.blocks[:number]:
                if (self.labels != self.labels[0]).any():
                    self._link(self._sets([before, block]), is_new=False)

    def ranked(self) -> tuple[_clusters.Ranked, NDArray[np.float64]]:
        """Return clustered documents, and the similarity of each to its survivor."""
        found = _clusters.rank(self.keys, self.labels, self.lines)
        known = np.where(found.ranks == 0, 1.0, np.nan)
        blocks = self.piece.blocks
        for number, block in enumerate(blocks):
            for before in blocks[: number + 1]:
                _compare(self._sets([block] if before == block else [before, block]), found, known)
        return found, known

    def _link(self, sets: _Sets, *, is_new: bool) -> None:
        labels = self.labels[np.searchsorted(self.keys, sets.keys)]
        parents = single_link(
            sets.places.view(np.int64), sets.offsets, sets.hashes, self.threshold,
            rows=sets.kept, labels=None if is_new else labels,
        )  # fmt: skip
        others = labels[parents[sets.twins]]
        apart = np.flatnonzero(labels != others)
        nodes, roots = connect(labels[apart], others[apart])
        if len(nodes):
            at = np.minimum(np.searchsorted(nodes, self.labels), len(nodes) - 1)
            self.labels = np.where(nodes[at] == self.labels, roots[at], self.labels)

    def _sets(self, blocks: list[Producers | None]) -> _Sets:
        """Read blocks, or return what was read last."""
        if self.read is None or self.read[0] != blocks:
            self.read = None
            self.read = blocks, _read_sets(self.context, self.piece, blocks)
        return self.read[1]


def _compare(sets: _Sets, found: _clusters.Ranked, known: NDArray[np.float64]) -> None:
    """Fill in the similarity of documents to survivors where both are among the sets."""
    order = np.argsort(sets.keys)
    ends = []
    for keys in (found.keys, found.survivors):
        at = order[np.minimum(np.searchsorted(sets.keys, keys, sorter=order), len(order) - 1)]
        ends.append(np.where(sets.keys[at] == keys, sets.twins[at], -1))
    wanted = np.flatnonzero((ends[0] >= 0) & (ends[1] >= 0) & np.isnan(known))
    known[wanted] = similarities(sets.offsets, sets.hashes, ends[0][wanted], ends[1][wanted])


def _read_sets(context: PassContext, piece: _Piece, blocks: Sequence[Producers | None]) -> _Sets:
    rows = pa.concat_tables(
        context.read_shuffle("gather/sets", piece.low, piece.high, SETS, block) for block in blocks
    )
    keys, places, lines, twins = (
        numbers(rows.column(name)) for name in ("key", "place", "line", "twin")
    )
    offsets, hashes = as_hashes(rows.column("shingles"))
    del rows
    order = np.argsort(keys)
    stored = order[np.searchsorted(keys, twins, sorter=order)]
    first = first_twins(
        places, keys, offsets, hashes, np.flatnonzero(stored == np.arange(len(keys)))
    )
    twins = first[stored]
    kept = np.flatnonzero(twins == np.arange(len(keys)))
    return _Sets(keys, lines, places, twins, kept, offsets, hashes)

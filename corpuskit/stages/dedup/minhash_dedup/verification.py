"""Clusters by true Jaccard similarity, of documents that bands have joined.

    gather (cells)        shingle sets of the documents that are in a component, by component
    verify (hash ranges)  compares, within each component, the documents that may be similar

Every pair of a component counts, also one that no band joined. `direct` finds clusters around the
documents that stay; here are the single-link clusters of `clusters: chained`. A component too large
for a task is read in blocks of cells, and every two blocks are compared; nothing is sampled or left
out.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError, TaskError
from corpuskit.formats.batch import numbers, utf8
from corpuskit.kernels.arrays import frozen
from corpuskit.kernels.hashing import hash_texts
from corpuskit.kernels.singlelink import LINK_BYTES, similarities, single_link
from corpuskit.kernels.unionfind import connect, first_of_group
from corpuskit.stage import Cost, PassContext, PassPlan, Unit, Volume
from corpuskit.stages._routing import cost_of_route, range_units, route_to_ranges, routed_file
from corpuskit.stages.dedup._cluster_stage import CLUSTERED, Ranked, rank, write_clusters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from corpuskit.kernels.arrays import Float64s, Int64s, Uint64s
    from corpuskit.stages.dedup._reference import Reference

    Producers = tuple[int, int]


READ_BYTES = 18
"""Memory of a shingle while it is read: two copies of it exist."""

ROW_BYTES = 300
"""Memory of a document's row while its component is verified, and until clusters are written."""

_TEXT_BYTES = 6
"""Bytes of text per shingle, on average."""

MOST_SHINGLES = 1 << 31
"""Of one component at a time: the kernels number its shingles by 32 bits."""


def cut_routes_to_verify(plan: PassPlan) -> list[Unit]:
    """Return groups of cells in ranges of components where there are very many, else none."""
    row_bytes = _read_bytes(plan) // max(plan.counters("gather").get("gathered", 0), 1)
    return route_to_ranges(plan, "gather/sets", cut_verify(plan), row_bytes)


def _read_bytes(plan: PassPlan) -> int:
    counters = plan.counters("gather")
    return counters.get("shingles", 0) * READ_BYTES + counters.get("gathered", 0) * ROW_BYTES


def cut_verify(plan: PassPlan) -> list[Unit]:
    """Return ranges of components that a task can hold; a component is never divided."""
    needed_bytes = _read_bytes(plan)
    # Components are large and small, so half of the memory is for what is above average.
    return range_units(max(-(-2 * needed_bytes // plan.memory_bytes), 1))


def cost_of_verify(volume: Volume, pass_name: str, share: float = CLUSTERED) -> Cost:
    """Return what `gather` and `verify` need if bands join a share of all documents."""
    shingles = int(volume.text_bytes * share / _TEXT_BYTES)
    if pass_name == "gather":
        memory = int(volume.cell_bytes * share / _TEXT_BYTES) * 24
        seconds = volume.text_bytes / 400e6 + shingles / 20e6
        return Cost(seconds, unit_bytes=memory, disk_bytes=9 * shingles)
    documents = int(volume.documents * share)
    size_needed = shingles * READ_BYTES + documents * ROW_BYTES
    units = max(-(-2 * size_needed // volume.task_memory_bytes), 1)
    if pass_name == "route_sets":
        return cost_of_route(volume, units, size_needed, shingles / 30e6, 9 * shingles)
    return Cost(
        shingles / 30e6 + documents / 1e6, unit_bytes=min(size_needed, volume.task_memory_bytes),
        disk_bytes=48 * documents, units=units,
    )  # fmt: skip


class Verified(NamedTuple):
    """Clusters, and how similar their documents are to their survivors; all (n,).

    Attributes:
        similarities: to the survivor.
        lost: share of a document's shingles that its survivor lacks; NaN if it was not computed.
    """

    ranked: Ranked
    similarities: Float64s
    lost: Float64s


def verify_components(
    context: PassContext, cluster: Callable[[PassContext, ComponentRange], Verified]
) -> None:
    """Write the clusters of the components of this unit: shuffle file `clusters`."""
    outcomes = [cluster(context, piece) for piece in _cut_pieces(context)]
    if outcomes:
        columns = zip(*(outcome.ranked for outcome in outcomes), strict=True)
        ranked = Ranked(*(np.concatenate(column) for column in columns))
        similarities = np.concatenate([outcome.similarities for outcome in outcomes])
        lost = np.concatenate([outcome.lost for outcome in outcomes])
        write_clusters(context, ranked, similarities, lost)


def single_link_clusters(
    context: PassContext, piece: ComponentRange, *, threshold: float
) -> Verified:
    """Return the clusters that pairs of this similarity connect, directly or through others."""
    labels = _Labels(context, piece, threshold)
    labels.connect()
    ranked, similarities = labels.ranked()
    return Verified(ranked, similarities, np.full(len(similarities), np.nan))


@dataclasses.dataclass(frozen=True)
class ComponentRange:
    """Components `[low, high)` that are verified at a time.

    Attributes:
        blocks: producers of one component too large to hold; None = all is read at once.
    """

    low: int
    high: int
    blocks: tuple[Producers | None, ...] = (None,)


def _cut_pieces(context: PassContext) -> list[ComponentRange]:
    """Cut this unit's range into pieces that fit into memory."""
    unit = context.unit
    file = routed_file(context, "gather/sizes", "route_sets")
    rows = context.read_shuffle(file, unit.low, unit.high, SIZES)
    components, group = np.unique(numbers(rows.column("component")), return_inverse=True)
    documents = np.bincount(group, numbers(rows.column("documents"))).astype(np.int64).tolist()
    shingles = np.bincount(group, numbers(rows.column("shingles"))).astype(np.int64).tolist()
    del rows
    pieces: list[ComponentRange] = []
    read = largest = 0
    for component, num_docs, size in zip(components.tolist(), documents, shingles, strict=True):
        read += size * READ_BYTES + num_docs * ROW_BYTES
        largest = max(largest, size)
        last = pieces[-1] if pieces and pieces[-1].blocks == (None,) else None
        if _too_large(size * READ_BYTES + num_docs * ROW_BYTES, size, context.memory_bytes):
            blocks = _cut_blocks(context, component)
            pieces.append(ComponentRange(component, component + 1, blocks))
        elif last is None or _too_large(read, largest, context.memory_bytes):
            pieces.append(ComponentRange(component, component + 1))
        else:
            pieces[-1] = ComponentRange(last.low, component + 1)
            continue
        read, largest = size * READ_BYTES + num_docs * ROW_BYTES, size
    return pieces


def _too_large(read_bytes: int, shingles: int, memory_bytes: int) -> bool:
    return read_bytes + shingles * LINK_BYTES > memory_bytes or shingles >= MOST_SHINGLES


def _cut_blocks(context: PassContext, component: int) -> tuple[Producers, ...]:
    """Cut the producers of a component so that any two blocks fit into memory.

    Raises:
        TaskError: the documents of one cell don't.
    """
    blocks: list[Producers] = []
    block_bytes = shingles = 0
    for producer in range(len(context.parts("gather/sizes"))):
        cell = (producer, producer + 1)
        rows = context.read_shuffle("gather/sizes", component, component + 1, SIZES, cell)
        size = int(numbers(rows.column("shingles")).sum())
        memory = size * READ_BYTES + int(numbers(rows.column("documents")).sum()) * ROW_BYTES
        if _too_large(2 * memory, 2 * size, context.memory_bytes):
            needed = 2 * (memory + size * LINK_BYTES)
            raise TaskError(
                f"{context.label}.verify: near duplicates of one cell that bands join need "
                f"{needed:,} bytes to be compared in one task, which may use "
                f"{context.memory_bytes:,}. Set task_memory_bytes to {needed} or more."
            )
        block_bytes, shingles = block_bytes + memory, shingles + size
        if not blocks or _too_large(2 * block_bytes, 2 * shingles, context.memory_bytes):
            blocks.append(cell)
            block_bytes, shingles = memory, size
        else:
            blocks[-1] = (blocks[-1][0], producer + 1)
    return tuple(blocks)


class ReadSets(NamedTuple):
    """Shingle sets as read, in any order.

    Attributes:
        groups: of which `one_per` keeps one document each.
        twins: for each row the first one with the same set.
        firsts: the rows that are their own twin.
    """

    keys: Int64s
    priorities: Uint64s
    groups: Uint64s
    components: Uint64s
    twins: Int64s
    firsts: Int64s
    offsets: Int64s
    hashes: Uint64s


class _Labels:
    """Labels of the documents of a piece: the smallest key of what each is connected to.

    Attributes:
        keys: of all documents read so far, ascending.
        priorities, labels: of these.
    """

    def __init__(self, context: PassContext, piece: ComponentRange, threshold: float) -> None:
        self.context, self.piece, self.threshold = context, piece, threshold
        self.keys = self.labels = np.empty(0, np.int64)
        self.priorities = np.empty(0, np.uint64)
        self.read: tuple[list[Producers | None], ReadSets] | None = None

    def connect(self) -> None:
        """Connect all similar documents: within each block, then between every two."""
        for number, block in enumerate(self.piece.blocks):
            sets = self._sets([block])
            keys = np.concatenate([self.keys, sets.keys])
            order = np.argsort(keys, kind="stable")
            self.keys = keys[order]
            self.priorities = np.concatenate([self.priorities, sets.priorities])[order]
            self.labels = np.concatenate([self.labels, sets.keys])[order]
            self._link(sets, is_new=True)
            del sets, keys, order
            for earlier in self.piece.blocks[:number]:
                if (self.labels != self.labels[0]).any():
                    self._link(self._sets([earlier, block]), is_new=False)

    def ranked(self) -> tuple[Ranked, Float64s]:
        """Return clustered documents, and the similarity of each to its survivor."""
        ranked = rank(self.keys, self.labels, self.priorities)
        values = np.where(ranked.ranks == 0, 1.0, np.nan)
        blocks = self.piece.blocks
        for number, block in enumerate(blocks):
            for earlier in blocks[: number + 1]:
                pair = [block] if earlier == block else [earlier, block]
                _compare(self._sets(pair), ranked, values)
        return ranked, values

    def _link(self, sets: ReadSets, *, is_new: bool) -> None:
        labels = self.labels[np.searchsorted(self.keys, sets.keys)]
        parents = single_link(
            sets.components.view(np.int64), sets.offsets, sets.hashes, self.threshold,
            rows=sets.firsts, labels=None if is_new else labels,
        )  # fmt: skip
        linked = labels[parents[sets.twins]]
        is_linked = np.flatnonzero(labels != linked)
        nodes, roots = connect(labels[is_linked], linked[is_linked])
        if len(nodes):
            nearest = np.minimum(np.searchsorted(nodes, self.labels), len(nodes) - 1)
            self.labels = np.where(nodes[nearest] == self.labels, roots[nearest], self.labels)

    def _sets(self, blocks: list[Producers | None]) -> ReadSets:
        """Read blocks, or return what was read last."""
        if self.read is None or self.read[0] != blocks:
            self.read = None
            self.read = blocks, read_sets(self.context, self.piece, blocks)
        return self.read[1]


def _compare(sets: ReadSets, ranked: Ranked, values: Float64s) -> None:
    """Fill in the similarity of documents to survivors where both are among the sets."""
    order = np.argsort(sets.keys)
    members = []  # row of the set of each document, and of its survivor; -1 if it is not here
    for keys in (ranked.keys, ranked.survivors):
        rows = order[np.minimum(np.searchsorted(sets.keys, keys, sorter=order), len(order) - 1)]
        members.append(np.where(sets.keys[rows] == keys, sets.twins[rows], -1))
    left, right = members
    pairs = np.flatnonzero((left >= 0) & (right >= 0) & np.isnan(values))
    values[pairs] = similarities(sets.offsets, sets.hashes, left[pairs], right[pairs])


def read_sets(
    context: PassContext, piece: ComponentRange, blocks: Sequence[Producers | None]
) -> ReadSets:
    """Read the shingle sets of some components, all or of some cells."""
    file = routed_file(context, "gather/sets") if blocks == [None] else "gather/sets"
    rows = pa.concat_tables(
        context.read_shuffle(file, piece.low, piece.high, SETS, block) for block in blocks
    )
    keys, components, priorities, groups, twins = (
        numbers(rows.column(name)) for name in ("key", "component", "priority", "group", "twin")
    )
    offsets, hashes = as_hashes(rows.column("shingles"))
    del rows
    order = np.argsort(keys)
    stored = order[np.searchsorted(keys, twins, sorter=order)]
    is_stored = np.flatnonzero(stored == np.arange(len(keys)))
    first = first_twins(components, keys, offsets, hashes, is_stored)
    twins = first[stored]
    representatives = np.flatnonzero(twins == np.arange(len(keys)))
    return ReadSets(keys, priorities, groups, components, twins, representatives, offsets, hashes)


# ---------------------------------------------------------------- shingle sets


COMPONENTS = pa.schema([("key", pa.int64()), ("component", pa.int64())])
"""One row per document that bands join to another; `component` is its smallest key."""

SETS = pa.schema(
    [
        ("component", pa.uint64()),
        ("key", pa.int64()),
        ("priority", pa.uint64()),
        ("group", pa.uint64()),
        ("twin", pa.int64()),
        ("shingles", pa.large_binary()),
    ]
)
"""`component` is spread evenly over 64 bits; `twin` is the first document of cell and component
with the same shingles, and only that one has them here. A set is the different 64-bit shingle
hashes of a document, ascending, as bytes."""

SIZES = pa.schema([("component", pa.uint64()), ("documents", pa.int64()), ("shingles", pa.int64())])
"""Sums by component, of a cell."""

SETS_AND_SIZES = {"gather/sets": SETS, "gather/sizes": SIZES}

_INDEX = pa.schema([("key", pa.int64()), ("shingles", pa.large_binary())])

_SPREAD, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC4CEB9FE1A85EC53)


class ShingleSets(NamedTuple):
    """Documents with their shingle sets.

    Attributes:
        priorities: to be kept; None = all alike.
        offsets, hashes: their shingles, as `schemes.shingles` gives them.
        groups: as in `ReadSets`; None = one of all.
    """

    keys: Int64s
    priorities: Uint64s | None
    offsets: Int64s
    hashes: Uint64s
    groups: Uint64s | None = None


def write_sets(
    context: PassContext, documents: Int64s, components: Int64s, batches: Iterable[ShingleSets]
) -> None:
    """Write the shingle sets of a cell's documents, equal ones of a component once.

    Args:
        documents, components: keys, ascending, and the component of each.
        batches: with their sets, in the same order.

    Raises:
        DataError: they are not the same documents.
    """
    keys, priorities, groups, offsets, hashes = _concatenated(batches)
    if not np.array_equal(keys, documents):
        raise DataError(
            f"unit {context.unit.number}: {len(documents)} documents should live here, {len(keys)} "
            "do. Run again."
        )
    hashed = frozen(spread(components))
    rows = np.arange(len(keys))
    twins = first_twins(hashed, keys, offsets, hashes, rows)
    sizes = np.where(twins == rows, np.diff(offsets), 0)
    if (twins != rows).any():
        hashes = hashes[np.repeat(twins == rows, np.diff(offsets))]
    columns = {
        "component": hashed,
        "key": keys,
        "priority": priorities,
        "group": groups,
        "twin": keys[twins],
        "shingles": _binary(np.concatenate([[0], np.cumsum(sizes)]), hashes),
    }
    context.count("gathered", len(keys))
    context.count("shingles", int(sizes.sum()))
    context.write_shuffle("sets", columns)
    values, group = np.unique(hashed, return_inverse=True)
    sums = {
        "component": values,
        "documents": np.bincount(group).astype(np.int64),
        "shingles": np.bincount(group, sizes).astype(np.int64),
    }
    context.write_shuffle("sizes", sums, is_sorted=True)


def write_index_sets(context: PassContext, batches: Iterable[ShingleSets]) -> None:
    """Keep the shingle sets of a cell's documents for later runs to be compared with."""
    keys, _, _, offsets, hashes = _concatenated(batches)
    columns = {"key": keys, "shingles": _binary(offsets, hashes)}
    context.write_shuffle("sets", columns, is_sorted=True)


def read_index_sets(
    index: Reference, low: int, high: int, documents: Int64s
) -> Iterator[ShingleSets]:
    """Yield the sets of some documents of a reference run; keys are shifted below zero."""
    rows = index.read("sets", low - index.shift, high - index.shift, _INDEX)
    keys = numbers(rows.column("key")) + np.int64(index.shift)
    is_requested = np.isin(keys, documents)
    if is_requested.any():
        rows = rows.filter(pa.array(is_requested)).combine_chunks()
        yield ShingleSets(keys[is_requested], None, *as_hashes(rows.column("shingles")))


def _concatenated(
    batches: Iterable[ShingleSets],
) -> tuple[Int64s, Uint64s, Uint64s, Int64s, Uint64s]:
    """Return keys, priorities, groups, offsets and hashes of all batches."""
    nothing = np.empty(0, np.uint64)
    sets = [ShingleSets(np.empty(0, np.int64), nothing, np.zeros(1, np.int64), nothing), *batches]
    keys = [batch.keys for batch in sets]
    zeros = [np.zeros(len(batch.keys), np.uint64) for batch in sets]
    priorities = [
        z if b.priorities is None else b.priorities for z, b in zip(zeros, sets, strict=True)
    ]
    groups = [z if b.groups is None else b.groups for z, b in zip(zeros, sets, strict=True)]
    sizes = np.concatenate([np.diff(batch.offsets) for batch in sets])
    hashes = [batch.hashes[batch.offsets[0] : batch.offsets[-1]] for batch in sets]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return (
        frozen(np.concatenate(keys)), frozen(np.concatenate(priorities)),
        frozen(np.concatenate(groups)), frozen(offsets), frozen(np.concatenate(hashes)),
    )  # fmt: skip


def _binary(offsets: Int64s, hashes: Uint64s) -> pa.LargeBinaryArray:
    """Wrap sets as an Arrow array of bytes, without copying them."""
    buffers = [None, pa.py_buffer(offsets * 8), pa.py_buffer(hashes)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def as_hashes(column: pa.ChunkedArray) -> tuple[Int64s, Uint64s]:
    """View a column of sets as offsets and hashes."""
    sets = utf8(column.combine_chunks())
    return frozen(sets.offsets // 8), sets.data[: len(sets.data) // 8 * 8].view(np.uint64)


def spread(keys: Int64s) -> Uint64s:
    """Return other numbers for keys, one for one, evenly spread over 64 bits."""
    values = keys.view(np.uint64)
    values = (values ^ (values >> np.uint64(32))) * _SPREAD
    values = (values ^ (values >> np.uint64(29))) * _MIX
    return values ^ (values >> np.uint64(32))


def first_twins(
    components: Uint64s, keys: Int64s, offsets: Int64s, hashes: Uint64s, rows: Int64s
) -> Int64s:
    """Return for each row that of the smallest key in its component with the same set, (N,).

    Args:
        rows: of the sets to compare; all others count as different.
    """
    first = np.arange(len(keys))
    high, low = hash_texts(frozen(offsets * 8), hashes.view(np.uint8))
    high = frozen((high ^ components)[rows])
    twins = rows[first_of_group(high, frozen(low[rows]), frozen(keys[rows]))]
    is_later = twins != rows
    rows, twins = rows[is_later], twins[is_later]
    is_equal = similarities(offsets, hashes, rows, twins) == 1  # hashes may collide
    first[rows[is_equal]] = twins[is_equal]
    return first

"""What stages have in common that group documents and keep one of each group.

    pass                      reads                        writes
    <hashed_by> (cells)       documents                    `<hashes>`: by hash
    route_<hashes>            `<hashes>`                   the same, merged, if cells are many
    <the stage's> (ranges)    `<hashes>`                   what its passes make `clusters` of
    <the stage's own passes>                               `clusters`: CLUSTERS, by survivor
    route_clusters (ranges)   `clusters`                   the same, merged, if they are many
    survivors (cells)         `clusters`, ids              `decisions`: with survivors' ids
    route (ranges of keys)    `decisions`                  the same, merged, if cells are many
    apply (cells)             `decisions`                  sidecar and ledger rows

Keys and ids move, documents don't. Keys below zero are those of reference runs (`_reference`): they
supply survivors' ids, and no decision is about them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import Field

from corpuskit.errors import DataError
from corpuskit.formats.batch import numbers
from corpuskit.formats.ledger import Entries
from corpuskit.kernels.arrays import Float64s, Int32s, Int64s, Uint64s
from corpuskit.paths import PathText
from corpuskit.stage import (
    Cost,
    GlobalStage,
    Known,
    Pass,
    PassContext,
    PassPlan,
    Unit,
    View,
    Volume,
)
from corpuskit.stages import _routing
from corpuskit.stages._numbers import among, check_numbers
from corpuskit.stages.dedup._keep import (
    GLOBAL,
    MAX_SOURCES,
    Best,
    Keep,
    check_scope,
    keep_columns,
    priorities,
    scope_columns,
    scope_hashes,
)
from corpuskit.stages.dedup._reference import References, find_seal, index_counter, is_reference

Action = Literal["drop", "annotate"]

_DECIDED = [
    ("cluster", pa.int64()),
    ("size", pa.int32()),
    ("rank", pa.int32()),
    ("similarity", pa.float64()),
    ("lost", pa.float64()),
]

CLUSTERS = pa.schema([("survivor", pa.int64()), ("key", pa.int64()), *_DECIDED])
"""One row per clustered document; the survivor's own has rank 0. `similarity` is the Jaccard
similarity to the survivor, `lost` the share of shingles that the survivor lacks; NaN where they
were not computed."""

DECISIONS = pa.schema([("key", pa.int64()), ("survivor_id", pa.string()), *_DECIDED])
_DECISIONS_FILE = "survivors/decisions"

DECISION_BYTES = 250
"""Memory of a decision while it is routed: read, sorted and written, ids of 60 bytes."""

CLUSTER_BYTES = 104
"""Memory of ranking and writing clusters per clustered document, input included."""

CLUSTERED = 0.2
"""Share of clustered documents that estimates assume: 222 MB of web text, code and many languages
have 0.13, exact and near duplicates together."""


class ClusterStage(GlobalStage):
    """Base of stages that group documents and keep one of each group.

    The passes of a subclass are `self.first_passes(..)`, its own, which end in the shuffle file
    `clusters`, and `self.last_passes()`.

    Source: none.
    """

    hashed_by: ClassVar[str]
    """The first pass: it calls `write_index`."""
    hashes: ClassVar[str]
    """The shuffle file that it writes."""
    hash_bytes: ClassVar[int]
    """Memory of a row of that file while rows are grouped, if all are."""

    keep: Keep = "first"
    """Which document of a cluster stays: first (in reading order), longest, newest (by the date of
    its source), {best: <column>} (highest number), or none of them. Ties go to the first."""
    prefer: tuple[str, ...] = Field((), max_length=MAX_SOURCES)
    """Sources whose documents stay rather than those of others, the most preferred first."""
    scope: str = GLOBAL
    """Look for duplicates among all documents, or only among those with the same value in a column
    of strings: source, language.label, or a declared one such as dump. Those without share one."""
    action: Action = "drop"
    """Drop the others, or only annotate all."""
    index: bool = False
    """Keep what later runs need to be compared with this one (`against`)."""
    against: tuple[PathText, ...] = ()
    """Directories of finished runs that have `index: true` here: the documents that this stage saw
    there, also those that it or a later stage dropped, count as earlier ones, and are not touched;
    new ones that duplicate them are dropped, whatever `keep` says."""

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Return the parameters that decide hashes: JSON values; equal in runs to compare."""

    @abstractmethod
    def hash_schema(self) -> pa.Schema:
        """Return the columns of the shuffle file: `hash`, others, and `priority` if it has one."""

    @abstractmethod
    def clustering(self) -> str:
        """Return the pass that writes the shuffle file `clusters`."""

    def files(self) -> tuple[str, ...]:
        return tuple(str(find_seal(run, *self._index_key())) for run in self.against)

    def reference_runs(self) -> tuple[str, ...]:
        return self.against

    def needs(self) -> tuple[str, ...]:
        columns = (*keep_columns(self.keep, self.prefer), *scope_columns(self.scope))
        return tuple(dict.fromkeys(columns))

    def origins(self) -> tuple[str, ...]:
        return ("date",) if self.keep == "newest" else ()

    def adds(self) -> Mapping[str, pa.DataType]:
        return {"cluster_id": pa.int64(), "cluster_size": pa.int32(), "cluster_rank": pa.int32()}

    def check(self, known: Known) -> None:
        check_scope(known, self.scope, self.prefer)
        if isinstance(self.keep, Best):
            check_numbers(known, "keep", self.keep.best)
        self.references().check()

    def references(self) -> References:
        """Open the indexes of the runs in `against`.

        Raises:
            UsageError: one has no index, or one made with other parameters.
        """
        return References.open(self.against, *self._index_key())

    def has_priorities(self) -> bool:
        """Return whether anything but the reading order decides what is kept."""
        return bool(self.prefer) or self.keep not in ("first", "none")

    def priorities(self, view: View) -> Uint64s:
        """Return the priorities of documents to be kept, (N,): the smallest is kept."""
        return priorities(view, self.keep, self.prefer)

    def scopes(self, view: View) -> Uint64s:
        """Return what to XOR into hashes so that only documents of a scope meet, (N,)."""
        return scope_hashes(view, self.scope)

    def write_index(self, context: PassContext, keys: Int64s, ids: list[pa.Array]) -> None:
        """Keep the ids of hashed documents and the parameters of the hashes if `index` is set.

        Args:
            keys: of hashed documents, ascending.
            ids: theirs, batch by batch.
        """
        if self.index:
            context.count(index_counter(self._index_parameters()))
            all_ids = pa.concat_arrays([*ids, pa.array([], pa.string())])
            context.write_shuffle("ids", {"key": keys, "id": all_ids}, is_sorted=True)

    @property
    def _hashes_file(self) -> str:
        return f"{self.hashed_by}/{self.hashes}"

    @property
    def _clusters_file(self) -> str:
        return f"{self.clustering()}/clusters"

    def first_passes(
        self,
        hash_cell: Callable[[PassContext], None],
        folders: tuple[str, ...],
        name: str,
        group_range: Callable[[PassContext], None],
    ) -> tuple[Pass, ...]:
        """Return the pass that hashes cells, and `name`, which works on ranges of hashes.

        Args:
            folders: that `hash_cell` writes to.
        """
        file = self._hashes_file
        finished = () if self.index else (file,)  # later runs read it
        files, routed = {file: self.hash_schema()}, f"route_{self.hashes}/"
        return (
            Pass(self.hashed_by, hash_cell, is_cell_alone=True, owns=folders),
            _routing.route_pass(self, files, self._cut_hash_routes, done_with=finished),
            Pass(name, group_range, self.cut_ranges, done_with=(routed, *finished)),
        )

    def cut_ranges(self, plan: PassPlan) -> list[Unit]:
        """Return hash ranges whose rows a task can hold."""
        reference_rows = self.references().rows(self.hashes)
        return _routing.hash_units(plan, self._hashes_file, self.hash_bytes, reference_rows)

    def _cut_hash_routes(self, plan: PassPlan) -> list[Unit]:
        """Return groups of cells in ranges of hashes where there are very many, else none."""
        ranges = self.cut_ranges(plan)
        return _routing.route_to_ranges(plan, self._hashes_file, ranges, self.hash_bytes)

    def read_hashes(self, context: PassContext) -> pa.Table:
        """Return the rows of a range of hashes, those of reference runs that share one first."""
        low, high, schema = context.unit.low, context.unit.high, self.hash_schema()
        file = _routing.routed_file(context, self._hashes_file)
        rows = context.read_shuffle(file, low, high, schema)
        if not self.against:
            return rows
        stored = pa.schema([field for field in schema if field.name != "priority"])
        references = self.references().matching(self.hashes, low, high, stored, rows)
        if len(stored) < len(schema):  # reference runs come first, whatever their priority
            ignored = np.zeros(references.num_rows, np.uint64)
            references = references.append_column("priority", pa.array(ignored))
        return pa.concat_tables([references, rows])

    def cost_of_hashes(self, volume: Volume, pass_name: str, rows: int, row_disk: int) -> Cost:
        """Return what the second or third of `first_passes` needs.

        Args:
            rows: of the shuffle file.
            row_disk: bytes on disk of one.
        """
        if pass_name == f"route_{self.hashes}":
            ranges = _routing.num_ranges(rows, self.hash_bytes, volume.task_memory_bytes)
            size, cpu = rows * self.hash_bytes, rows / 3e6
            return _routing.cost_of_route(volume, ranges, size, cpu, row_disk * rows)
        rows += self.references().rows(self.hashes)
        # It writes a row of `clusters` per clustered document: keys and numbers, 44 bytes.
        disk = int(volume.documents * CLUSTERED * 44)
        return _routing.cost_of_ranges(volume, rows, self.hash_bytes, rows / 12e6, disk)

    def last_passes(self) -> tuple[Pass, ...]:
        """Return the passes from clusters to decisions."""
        to_cells = partial(_routing.route_to_cells, file=_DECISIONS_FILE, row_bytes=DECISION_BYTES)
        return (
            # What clusters there are is kept: `why` and reports read it.
            _routing.route_pass(
                self, {self._clusters_file: CLUSTERS}, self.cut_cluster_routes, done_with=()
            ),
            Pass(
                "survivors",
                self.find_survivors,
                self.cut_survivors if self.against else None,
                done_with=("route_clusters/",),
            ),
            _routing.route_pass(self, {_DECISIONS_FILE: DECISIONS}, to_cells, name="route"),
            Pass("apply", self.apply_decisions, done_with=(_DECISIONS_FILE, "route/decisions")),
        )

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        clustered = int(volume.documents * CLUSTERED)
        if pass_name == "route_clusters":
            writers = self.cost(volume, self.clustering()).units or 0
            size, cpu = clustered * DECISION_BYTES, clustered / 1e6
            return _routing.cost_of_route(volume, writers, size, cpu, clustered * 44)
        if pass_name == "survivors":
            memory = 200 * volume.cell_documents
            return Cost(volume.documents / 600e3, unit_bytes=memory, disk_bytes=clustered * 128)
        if pass_name == "route":
            size, cpu = clustered * DECISION_BYTES, clustered / 1e6
            return _routing.cost_of_route(volume, volume.cells, size, cpu, clustered * 128)
        # A sidecar, and a row of the ledger for what is dropped; its text is read once more.
        disk = 17 * volume.documents + 50 * clustered
        memory = 200 * volume.cell_documents
        return Cost(volume.text_bytes / 400e6, unit_bytes=memory, disk_bytes=disk)

    def cut_survivors(self, plan: PassPlan) -> list[Unit]:
        """Return the cells, then ranges of documents of reference runs."""
        cells = plan.cells()
        return [*cells, *self.references().units(cells[-1].number + 1 if cells else 0)]

    def cut_cluster_routes(self, plan: PassPlan) -> list[Unit]:
        """Return ranges of survivors where clusters and cells are very many, else none."""
        references = self.references().units(0)
        return _routing.route_to_cells(plan, self._clusters_file, DECISION_BYTES, *references)

    def find_survivors(self, context: PassContext) -> None:
        """Join the ids of survivors that live in this unit to their duplicates.

        Raises:
            DataError: a survivor should live here and does not.
        """
        unit = context.unit
        file = _routing.routed_file(context, self._clusters_file)
        rows = context.read_shuffle(file, unit.low, unit.high, CLUSTERS)
        if rows.num_rows == 0:
            return
        survivors = numbers(rows.column("survivor"))
        expected = np.unique(survivors)
        keys, ids = [np.empty(0, np.int64)], [pa.array([], pa.string())]
        for unit_keys, unit_ids in self._ids(context):
            matches = np.flatnonzero(among(unit_keys, expected))
            keys.append(unit_keys[matches])
            ids.append(unit_ids.take(pa.array(matches)))
        present = np.concatenate(keys)
        if len(present) != len(expected):
            raise DataError(
                f"unit {unit.number}: {len(expected)} survivors should live here, {len(present)} "
                "do. Run again."
            )
        id_rows = pa.array(np.searchsorted(present, survivors))
        columns = {
            "key": rows.column("key"),
            "survivor_id": pa.concat_arrays(ids).take(id_rows),
            **{name: rows.column(name) for name, _ in _DECIDED},
        }
        context.write_shuffle("decisions", columns)

    def _ids(self, context: PassContext) -> Iterator[tuple[Int64s, pa.Array]]:
        """Yield keys, ascending, and ids of this unit's documents."""
        if is_reference(context.unit):
            ids = self.references().ids(context.unit.low, context.unit.high)
            yield numbers(ids.column("key")), ids.column("id").combine_chunks()
            return
        for view in context.read("id"):
            yield view.keys, view.column("id")

    def apply_decisions(self, context: PassContext) -> None:
        """Write the sidecar of this cell, and the ledger rows of what it drops.

        Documents outside all clusters get their own key as `cluster_id`, size 1 and rank 0.

        Raises:
            DataError: a decision is about a document that the cell doesn't hold.
        """
        unit = context.unit
        file = _routing.routed_file(context, _DECISIONS_FILE, "route")
        rows = context.read_shuffle(file, unit.low, unit.high, DECISIONS)
        keys, _ = context.part_keys()
        decided = numbers(rows.column("key"))
        cell_rows = np.searchsorted(keys, decided)
        if not np.array_equal(keys[np.minimum(cell_rows, len(keys) - 1)], decided):
            raise DataError(
                f"cell {unit.number}: decisions about documents that it lacks. Run again."
            )
        # Outside all clusters: a cluster of its own.
        clusters, ranks = keys.copy(), np.zeros(len(keys), np.int32)
        sizes = np.ones(len(keys), np.int32)
        clusters[cell_rows] = numbers(rows.column("cluster"))
        sizes[cell_rows] = numbers(rows.column("size"))
        ranks[cell_rows] = numbers(rows.column("rank"))
        keep = np.ones(len(keys), np.bool_)
        if self.action == "drop":
            is_dropped = (ranks[cell_rows] > 0) | (self.keep == "none")
            keep[cell_rows] = ~is_dropped
            dropped = rows.filter(pa.array(is_dropped))
            if dropped.num_rows:
                self._add_ledger(context, dropped.sort_by("key"))
        columns = {"cluster_id": clusters, "cluster_size": sizes, "cluster_rank": ranks}
        context.write_sidecar(keep, {name: pa.array(values) for name, values in columns.items()})

    def _add_ledger(self, context: PassContext, dropped: pa.Table) -> None:
        """Add a row per dropped document; `dropped` is sorted by key.

        The value is the similarity to the survivor, or the size of the cluster if that is unknown.
        """
        rule = self.rules[0]
        keys = numbers(dropped.column("key"))
        similarities = numbers(dropped.column("similarity")).copy()
        similarities[numbers(dropped.column("rank")) == 0] = np.nan  # to itself
        sizes = numbers(dropped.column("size")).astype(np.float64)
        values = np.where(np.isnan(similarities), sizes, similarities)
        thresholds = np.where(np.isnan(similarities), np.nan, self.threshold(rule))
        lost = numbers(dropped.column("lost"))
        survivors = dropped.column("survivor_id").combine_chunks()
        if self.keep == "none":  # only a document of a reference run survives
            in_reference = pa.array(numbers(dropped.column("cluster")) < 0)
            null = pa.scalar(None, pa.string())
            survivors = pa.compute.if_else(in_reference, survivors, null)
        texts = _kept_texts(context, keys)
        for view in context.read("id", "source", keys=keys):
            rows = np.flatnonzero(among(view.keys, keys))
            if len(rows) == 0:
                continue
            order = np.searchsorted(keys, view.keys[rows])
            context.add_ledger(
                Entries.of(
                    view.batch,
                    rows,
                    context.label,
                    rule,
                    values[order],
                    thresholds[order],
                    survivors=survivors.take(pa.array(order)),
                    lost=lost[order],
                    texts=texts.take(pa.array(order)),
                )
            )

    def _index_parameters(self) -> Mapping[str, Any]:
        return {"scope": self.scope, **self.identity()}

    def _index_key(self) -> tuple[str, str, Mapping[str, Any]]:
        """Return what finds an index in a run: stage, pass and parameters."""
        return self.stage_name(), self.hashed_by, self._index_parameters()


class Ranked(NamedTuple):
    """Clustered documents, cluster by cluster, in the order in which they are kept; all (n,).

    Attributes:
        survivors: the first of each document's cluster, also with keep `none`.
        clusters: the smallest key of each document's cluster.
    """

    survivors: Int64s
    keys: Int64s
    clusters: Int64s
    sizes: Int32s
    ranks: Int32s


def rank(
    keys: Int64s, clusters: Int64s, priorities: Uint64s | None = None, groups: Uint64s | None = None
) -> Ranked:
    """Rank the documents of each cluster: reference runs first, then by priority, then by key.

    Clusters of reference documents alone, and those of one document, are left out.

    Args:
        keys, clusters: documents, and the smallest key in the cluster of each.
        priorities: to be kept (see `_keep.priorities`); None = by key alone.
        groups: each has ranks of its own within a cluster, so that one document of it stays.
    """
    # `keep` does not rank reference documents among themselves.
    by_priority = () if priorities is None else (np.where(keys < 0, np.uint64(0), priorities),)
    order = np.lexsort((keys, *by_priority, keys >= 0, clusters))
    keys, clusters = keys[order], clusters[order]
    groups = None if groups is None else groups[order]
    del order, by_priority
    starts = np.flatnonzero(np.diff(clusters, prepend=np.iinfo(np.int64).min))
    sizes = np.diff(starts, append=len(keys))
    has_new = np.maximum.reduceat(keys, starts) >= 0 if len(starts) else np.empty(0, np.bool_)
    is_ranked = np.repeat((sizes > 1) & has_new, sizes)
    ranks = np.arange(len(keys)) - np.repeat(starts, sizes)
    if groups is not None:
        order = np.lexsort((ranks, groups, clusters))
        is_first = (np.diff(clusters[order]) != 0) | (np.diff(groups[order]) != 0)
        firsts = np.concatenate([[0], np.flatnonzero(is_first) + 1])
        ranks[order] = np.arange(len(keys)) - np.repeat(firsts, np.diff(firsts, append=len(keys)))
    return Ranked(
        np.repeat(keys[starts], sizes)[is_ranked],
        keys[is_ranked],
        clusters[is_ranked],
        np.repeat(sizes.astype(np.int32), sizes)[is_ranked],
        ranks.astype(np.int32)[is_ranked],
    )


def write_clusters(
    context: PassContext,
    ranked: Ranked,
    similarities: Float64s | None = None,
    lost: Float64s | None = None,
) -> None:
    """Write the shuffle file `clusters`, and count clusters and documents.

    Args:
        similarities, lost: of each document to its survivor, (n,).
    """
    context.count("clusters", int((ranked.keys == ranked.survivors).sum()))
    context.count("clustered_documents", len(ranked.keys))
    rows = np.flatnonzero(ranked.keys >= 0)
    unknown = np.full(len(ranked.keys), np.nan)
    columns = {
        "survivor": ranked.survivors[rows],
        "key": ranked.keys[rows],
        "cluster": ranked.clusters[rows],
        "size": ranked.sizes[rows],
        "rank": ranked.ranks[rows],
        "similarity": (unknown if similarities is None else similarities)[rows],
        "lost": (unknown if lost is None else lost)[rows],
    }
    context.write_shuffle("clusters", columns)


def _kept_texts(context: PassContext, keys: Int64s) -> pa.Array:
    """Return the texts of documents (ascending) that the ledger keeps, null for all others."""
    sampled = keys[context.keeps_text(keys)]
    if len(sampled) == 0:
        return pa.nulls(len(keys), pa.large_string())
    read_keys, texts = [np.empty(0, np.int64)], [pa.array([], pa.large_string())]
    for view in context.read("text", keys=sampled):
        rows = np.flatnonzero(among(view.keys, sampled))
        read_keys.append(view.keys[rows])
        texts.append(view.column("text").take(pa.array(rows)))
    present = np.concatenate(read_keys)
    text_rows = np.searchsorted(present, keys)
    return pa.concat_arrays(texts).take(pa.array(text_rows, mask=~among(keys, present)))

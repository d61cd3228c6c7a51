"""From clusters to decisions: what all stages share that keep one document of a cluster.

    <the stage's own passes>   rows of CLUSTERS, sorted by survivor
    survivors (cells)          joins ids of survivors that live here: rows of DECISIONS
    route (ranges of keys)     merges them where there are very many cells
    apply (cells)              sidecar and ledger rows of the documents that live here

Keys and ids move, documents don't. Keys below zero are those of older runs (see `_against`): they
have survivors' ids to give, and no decision is about them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError
from corpuskit.formats.batch import numbers
from corpuskit.formats.ledger import Entries
from corpuskit.formats.shuffle_files import hash_ranges
from corpuskit.stage import Cost, Unit
from corpuskit.stages import _routing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from corpuskit.stage import PassContext, PassPlan, Volume

Action = Literal["drop", "annotate"]

_DECIDED = [
    ("cluster", pa.int64()),
    ("size", pa.int32()),
    ("rank", pa.int32()),
    ("similarity", pa.float64()),
]

CLUSTERS = pa.schema([("survivor", pa.int64()), ("key", pa.int64()), *_DECIDED])
"""One row per clustered document; the survivor's own has rank 0. `similarity` is the Jaccard
similarity to the survivor, NaN where nobody computed it."""

DECISIONS = pa.schema([("key", pa.int64()), ("survivor_id", pa.string()), *_DECIDED])

DECISION_BYTES = 250
"""Memory of a decision while it is routed: read, sorted and written, ids of 60 bytes."""

RANGE_ROWS = 1 << 24
"""The most rows of a hash range, whatever the memory: seconds of work for one task."""

CLUSTER_BYTES = 104
"""Memory of ranking and writing clusters per clustered document, what is given included."""

CLUSTERED = 0.2
"""Share of the documents that an estimate takes to be in clusters: 222 MB of web text, code and
many languages have 0.13, exact and near duplicates together."""


def cost_of_range(volume: Volume, rows: int, row_bytes: int) -> Cost:
    """Return what a pass over hash ranges needs that groups `rows` and writes no more than keys."""
    each = min(max(volume.task_memory_bytes // row_bytes, 1), RANGE_ROWS)
    return Cost(
        cpu_seconds=rows / 12e6,
        unit_bytes=min(rows, each) * row_bytes,
        disk_bytes=int(volume.documents * CLUSTERED * 44),
        units=max(-(-rows // each), 1),
    )


def cost_of_decisions(volume: Volume, pass_name: str) -> Cost:
    """Return what the shared passes need."""
    clustered = int(volume.documents * CLUSTERED)
    if pass_name == "survivors":
        held = 200 * volume.cell_documents
        return Cost(volume.documents / 600e3, unit_bytes=held, disk_bytes=clustered * 128)
    if pass_name == "route":
        if volume.cells**2 <= _routing.MAX_OPENS:
            return Cost(units=0)
        size = clustered * DECISION_BYTES
        held = min(volume.task_memory_bytes, size)
        units = max(-(-size // max(held, 1)), 1)
        disk = clustered * 128
        return Cost(clustered / 1e6, unit_bytes=held, disk_bytes=disk, units=units)
    # A sidecar, and a row of the ledger for what is dropped; its text is read once more.
    disk = 17 * volume.documents + 50 * clustered
    return Cost(volume.text_bytes / 400e6, unit_bytes=200 * volume.cell_documents, disk_bytes=disk)


def hash_units(plan: PassPlan, run: str, row_bytes: int, older_rows: int = 0) -> list[Unit]:
    """Cut the rows of a run into hash ranges that a task can hold; at least one.

    Args:
        run: `<pass>/<run>`, whose first column is an evenly spread uint64.
        row_bytes: memory that a task needs per row.
        older_rows: of older runs, which are read by the same ranges.
    """
    rows = sum(part.rows for part in plan.parts(run)) + older_rows
    rows_each = min(max(plan.memory_bytes // row_bytes, 1), RANGE_ROWS)
    ranges = hash_ranges(max(-(-rows // rows_each), 1))
    return [Unit(number, low=low, high=high) for number, (low, high) in enumerate(ranges)]


class Ranked(NamedTuple):
    """Clustered documents, cluster by cluster, those to be kept first first; all (n,).

    Attributes:
        survivors: the first of each document's cluster; of those with keep `none`, too.
        clusters: named by their smallest key.
    """

    survivors: NDArray[np.int64]
    keys: NDArray[np.int64]
    clusters: NDArray[np.int64]
    sizes: NDArray[np.int32]
    ranks: NDArray[np.int32]


def rank(
    keys: NDArray[np.int64],
    clusters: NDArray[np.int64],
    places: NDArray[np.uint64] | None = None,
) -> Ranked:
    """Rank the documents of each cluster: older runs first, then by place, then by key.

    Clusters of older documents alone, and those of one document, are left out.

    Args:
        keys, clusters: documents, and the cluster of each, named by its smallest key.
        places: where each stands in line to be kept (see `_keep.places`); None = by key alone.
    """
    lines = () if places is None else (np.where(keys < 0, np.uint64(0), places),)
    order = np.lexsort((keys, *lines, keys >= 0, clusters))
    keys, clusters = keys[order], clusters[order]
    del order, lines
    starts = np.flatnonzero(np.diff(clusters, prepend=np.iinfo(np.int64).min))
    sizes = np.diff(starts, append=len(keys))
    has_new = np.maximum.reduceat(keys, starts) >= 0 if len(starts) else np.empty(0, np.bool_)
    counted = np.repeat((sizes > 1) & has_new, sizes)
    return Ranked(
        np.repeat(keys[starts], sizes)[counted],
        keys[counted],
        clusters[counted],
        np.repeat(sizes.astype(np.int32), sizes)[counted],
        (np.arange(len(keys)) - np.repeat(starts, sizes)).astype(np.int32)[counted],
    )


def write_clusters(
    context: PassContext, found: Ranked, similarities: NDArray[np.float64] | None = None
) -> None:
    """Write the run `clusters`, and count.

    Args:
        similarities: of each document to its survivor, (n,).
    """
    context.count("clusters", int((found.ranks == 0).sum()))
    context.count("clustered_documents", len(found.keys))
    new = np.flatnonzero(found.keys >= 0)
    if similarities is None:
        similarities = np.full(len(found.keys), np.nan)
    columns = {
        "survivor": found.survivors[new],
        "key": found.keys[new],
        "cluster": found.clusters[new],
        "size": found.sizes[new],
        "rank": found.ranks[new],
        "similarity": similarities[new],
    }
    context.write_shuffle("clusters", columns)


def find_survivors(
    context: PassContext, clusters: str, living: Iterable[tuple[NDArray[np.int64], pa.Array]]
) -> None:
    """Join the ids of survivors that live in this unit to their duplicates; run `decisions`.

    Args:
        context: of a cell, or of a range of older documents.
        clusters: the run of CLUSTERS, as `<pass>/clusters`.
        living: keys and ids of the documents that live here, ascending, batch by batch.

    Raises:
        DataError: a survivor should live here and does not.
    """
    unit = context.unit
    rows = context.read_shuffle(clusters, unit.low, unit.high, CLUSTERS)
    if rows.num_rows == 0:
        return
    wanted = np.unique(numbers(rows.column("survivor")))
    keys, ids = [np.empty(0, np.int64)], [pa.array([], pa.string())]
    for there, names in living:
        found = np.flatnonzero(_among(there, wanted))
        keys.append(there[found])
        ids.append(names.take(pa.array(found)))
    found_keys = np.concatenate(keys)
    if len(found_keys) != len(wanted):
        raise DataError(
            f"unit {unit.number}: {len(wanted)} survivors should live here, {len(found_keys)} do. "
            "Run again."
        )
    places = np.searchsorted(found_keys, numbers(rows.column("survivor")))
    columns = {
        "key": rows.column("key"),
        "survivor_id": pa.concat_arrays(ids).take(pa.array(places)),
        **{name: rows.column(name) for name, _ in _DECIDED},
    }
    context.write_shuffle("decisions", columns)


def cut_decisions(plan: PassPlan) -> list[Unit]:
    """Return ranges of keys, one or more cells each, in which decisions are merged."""
    cells = [Unit(c.number, "", c.low, c.high, c.rows) for c in plan.cells()]
    producers = plan.parts("survivors/decisions")
    return _routing.cut_routes(producers, cells, DECISION_BYTES, plan.memory_bytes)


def route_decisions(context: PassContext) -> None:
    """Merge the decisions about documents of a range of keys."""
    _routing.route(context, "survivors/decisions", "decisions", DECISIONS)


def apply_decisions(
    context: PassContext, rule: str, action: Action, *, keep_none: bool = False,
    threshold: float = float("nan"),
) -> None:  # fmt: skip
    """Write the sidecar of this cell, and the ledger rows of what it drops.

    Documents outside all clusters get their own key as `cluster_id`, size 1 and rank 0.

    Args:
        keep_none: drop survivors, too, unless they are older.
        threshold: that the similarity to the survivor reaches.

    Raises:
        DataError: a decision is about a document that the part doesn't hold.
    """
    unit = context.unit
    run = _routing.routed(context, "survivors/decisions", "decisions")
    rows = context.read_shuffle(run, unit.low, unit.high, DECISIONS)
    keys, _ = context.part_keys()
    decided = numbers(rows.column("key"))
    places = np.searchsorted(keys, decided)
    if not np.array_equal(keys[np.minimum(places, len(keys) - 1)], decided):
        raise DataError(f"cell {unit.number}: decided about documents that it lacks. Run again.")
    clusters, ranks = keys.copy(), np.zeros(len(keys), np.int32)
    sizes = np.ones(len(keys), np.int32)
    clusters[places] = numbers(rows.column("cluster"))
    sizes[places] = numbers(rows.column("size"))
    ranks[places] = numbers(rows.column("rank"))
    keep = np.ones(len(keys), np.bool_)
    if action == "drop":
        goes = np.ones(len(decided), np.bool_) if keep_none else ranks[places] > 0
        keep[places] = ~goes
        dropped = rows.filter(pa.array(goes))
        if dropped.num_rows:
            _add_ledger(context, rule, dropped.sort_by("key"), keep_none, threshold)
    columns = {"cluster_id": clusters, "cluster_size": sizes, "cluster_rank": ranks}
    context.write_sidecar(keep, {name: pa.array(values) for name, values in columns.items()})


def _add_ledger(
    context: PassContext, rule: str, dropped: pa.Table, keep_none: bool, threshold: float
) -> None:
    """Add a row per dropped document; `dropped` is sorted by key.

    The value is the similarity to the survivor, or the size of the cluster where that is unknown.
    """
    keys = numbers(dropped.column("key"))
    similarities = numbers(dropped.column("similarity")).copy()
    similarities[numbers(dropped.column("rank")) == 0] = np.nan  # to itself
    sizes = numbers(dropped.column("size")).astype(np.float64)
    values = np.where(np.isnan(similarities), sizes, similarities)
    thresholds = np.where(np.isnan(similarities), np.nan, threshold)
    survivors = dropped.column("survivor_id").combine_chunks()
    if keep_none:  # but an older document is still there
        is_older = numbers(dropped.column("cluster")) < 0
        nobody = pa.scalar(None, pa.string())
        survivors = pa.compute.if_else(pa.array(is_older), survivors, nobody)
    texts = _kept_texts(context, keys)
    for view in context.read("id", "source", keys=keys):
        rows = np.flatnonzero(_among(view.keys, keys))
        if len(rows) == 0:
            continue
        order = np.searchsorted(keys, view.keys[rows])
        places = pa.array(order)
        batch = view.batch.take(pa.array(rows))
        context.add_ledger(
            Entries(
                keys=view.keys[rows],
                ids=batch.column("id"),
                sources=batch.column("source"),
                stage=context.label,
                rules=pa.repeat(pa.scalar(rule), len(rows)),
                action="drop",
                values=values[order],
                thresholds=thresholds[order],
                survivors=survivors.take(places),
                texts=texts.take(places),
            )
        )


def _kept_texts(context: PassContext, keys: NDArray[np.int64]) -> pa.Array:
    """Return the texts of documents (ascending) that the ledger keeps, null for all others."""
    wanted = keys[context.keeps_text(keys)]
    if len(wanted) == 0:
        return pa.nulls(len(keys), pa.large_string())
    found, texts = [np.empty(0, np.int64)], [pa.array([], pa.large_string())]
    for view in context.read("text", keys=wanted):
        rows = np.flatnonzero(_among(view.keys, wanted))
        found.append(view.keys[rows])
        texts.append(view.column("text").take(pa.array(rows)))
    there = np.concatenate(found)
    places = np.minimum(np.searchsorted(there, keys), max(len(there) - 1, 0))
    is_kept = there[places] == keys if len(there) else np.zeros(len(keys), np.bool_)
    return pa.concat_arrays(texts).take(pa.array(places, mask=~is_kept))


def _among(values: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which values occur in `wanted`, which is sorted and not empty."""
    places = np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)
    return wanted[places] == values  # type: ignore[no-any-return]

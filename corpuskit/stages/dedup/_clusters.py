"""From clusters to decisions: the passes that all stages share that keep one document of a cluster.

    <the stage's own passes>   rows of CLUSTERS, sorted by survivor
    survivors (cells)          joins ids of survivors that live here: rows of DECISIONS
    route (ranges of keys)     merges them where there are very many cells
    apply (cells)              sidecar and ledger rows of the documents that live here

Keys and ids move, documents don't.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from corpuskit.batch import numbers
from corpuskit.errors import DataError
from corpuskit.exchange import hash_ranges
from corpuskit.ledger import Entries
from corpuskit.stage import Cost, Unit
from corpuskit.stages import _routing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corpuskit.stage import PassContext, PassPlan, Volume

Action = Literal["drop", "annotate"]

ADDS = {"cluster_id": pa.int64(), "cluster_size": pa.int32()}

CLUSTERS = pa.schema(
    [
        ("survivor", pa.int64()),
        ("key", pa.int64()),
        ("cluster", pa.int64()),
        ("size", pa.int32()),
        ("rank", pa.int32()),
    ]
)
"""One row per clustered document; the survivor's own has rank 0."""

DECISIONS = pa.schema(
    [
        ("key", pa.int64()),
        ("survivor_id", pa.string()),
        ("cluster", pa.int64()),
        ("size", pa.int32()),
        ("rank", pa.int32()),
    ]
)

DECISION_BYTES = 240
"""Memory of a decision while it is routed: read, sorted and written, ids of 60 bytes."""

RANGE_ROWS = 1 << 24
"""The most rows of a hash range, whatever the memory: seconds of work for one task."""

CLUSTER_BYTES = 80
"""Memory of write_clusters per clustered document, what it is given included."""


CLUSTERED = 0.2
"""Share of the documents that an estimate takes to be in clusters: 222 MB of web text, code and
many languages have 0.13, exact and near duplicates together."""


def cost_of_range(volume: Volume, rows: int, row_bytes: int) -> Cost:
    """Return what a pass over hash ranges needs that groups `rows` and writes no more than keys."""
    each = min(max(volume.task_memory_bytes // row_bytes, 1), RANGE_ROWS)
    return Cost(
        cpu_seconds=rows / 12e6,
        unit_bytes=min(rows, each) * row_bytes,
        disk_bytes=int(volume.documents * CLUSTERED * 36),
        units=max(-(-rows // each), 1),
    )


def cost_of_decisions(volume: Volume, pass_name: str) -> Cost:
    """Return what the shared passes need."""
    clustered = int(volume.documents * CLUSTERED)
    if pass_name == "survivors":
        held = 200 * volume.cell_documents
        return Cost(volume.documents / 600e3, unit_bytes=held, disk_bytes=clustered * 120)
    if pass_name == "route":
        if volume.cells**2 <= _routing.MAX_OPENS:
            return Cost(units=0)
        size = clustered * DECISION_BYTES
        held = min(volume.task_memory_bytes, size)
        units = max(-(-size // max(held, 1)), 1)
        disk = clustered * 120
        return Cost(clustered / 1e6, unit_bytes=held, disk_bytes=disk, units=units)
    # A sidecar, and a row of the ledger for what is dropped; its text is read once more.
    disk = 13 * volume.documents + 50 * clustered
    return Cost(volume.text_bytes / 400e6, unit_bytes=200 * volume.cell_documents, disk_bytes=disk)


def hash_units(plan: PassPlan, run: str, row_bytes: int) -> list[Unit]:
    """Cut the rows of a run into hash ranges that a task can hold; at least one.

    Args:
        run: `<pass>/<run>`, whose first column is an evenly spread uint64.
        row_bytes: memory that a task needs per row.
    """
    rows = sum(part.rows for part in plan.parts(run))
    rows_each = min(max(plan.memory_bytes // row_bytes, 1), RANGE_ROWS)
    ranges = hash_ranges(max(-(-rows // rows_each), 1))
    return [Unit(number, low=low, high=high) for number, (low, high) in enumerate(ranges)]


def write_clusters(
    context: PassContext, keys: NDArray[np.int64], clusters: NDArray[np.int64]
) -> None:
    """Rank the documents of each cluster and write the run `clusters`.

    Args:
        keys: documents in clusters of at least two.
        clusters: the cluster of each, named by its smallest key.
    """
    order = _ranked(keys, clusters)
    keys, clusters = keys[order], clusters[order]
    del order
    starts = np.flatnonzero(np.diff(clusters, prepend=-1))
    sizes = np.diff(starts, append=len(keys))
    context.count("clusters", len(starts))
    context.count("clustered_documents", len(keys))
    columns = {
        "survivor": np.repeat(keys[starts], sizes),
        "key": keys,
        "cluster": clusters,
        "size": np.repeat(sizes.astype(np.int32), sizes),
        "rank": (np.arange(len(keys)) - np.repeat(starts, sizes)).astype(np.int32),
    }
    # Survivors are the first of their clusters, and rows are in the order of clusters.
    context.write_run("clusters", columns, is_sorted=True)


def _ranked(keys: NDArray[np.int64], clusters: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the order that puts clusters together and the document to keep first in each.

    `keep: first` is the one policy: the smallest key, that is, the first in reading order.
    """
    return np.lexsort((keys, clusters))


def find_survivors(context: PassContext, clusters: str) -> None:
    """Join the ids of survivors that live in this cell to their duplicates; run `decisions`.

    Args:
        context: of a cell.
        clusters: the run of CLUSTERS, as `<pass>/clusters`.
    """
    unit = context.unit
    rows = context.run_range(clusters, unit.low, unit.high, CLUSTERS)
    if rows.num_rows == 0:
        return
    wanted = np.unique(numbers(rows.column("survivor")))
    keys, ids = [np.empty(0, np.int64)], [pa.array([], pa.string())]
    for view in context.read("id"):
        found = np.flatnonzero(_among(view.keys, wanted))
        keys.append(view.keys[found])
        ids.append(view.column("id").take(pa.array(found)))
    found_keys = np.concatenate(keys)
    if len(found_keys) != len(wanted):
        raise DataError(
            f"cell {unit.number}: {len(wanted)} survivors should live here, {len(found_keys)} do. "
            "Run again."
        )
    places = np.searchsorted(found_keys, numbers(rows.column("survivor")))
    columns = {
        "key": rows.column("key"),
        "survivor_id": pa.concat_arrays(ids).take(pa.array(places)),
        **{name: rows.column(name) for name in ("cluster", "size", "rank")},
    }
    context.write_run("decisions", columns)


def cut_decisions(plan: PassPlan) -> list[Unit]:
    """Return ranges of keys, one or more cells each, in which decisions are merged."""
    cells = [Unit(c.number, "", c.low, c.high, c.rows) for c in plan.cells()]
    producers = plan.parts("survivors/decisions")
    return _routing.cut_routes(producers, cells, DECISION_BYTES, plan.memory_bytes)


def route_decisions(context: PassContext) -> None:
    """Merge the decisions about documents of a range of keys."""
    _routing.route(context, "survivors/decisions", "decisions", DECISIONS)


def apply_decisions(context: PassContext, rule: str, action: Action) -> None:
    """Write the sidecar of this cell, and the ledger rows of what it drops.

    Documents outside all clusters get their own key as `cluster_id`, and size 1.

    Raises:
        DataError: a decision is about a document that the part doesn't hold.
    """
    unit = context.unit
    run = _routing.routed(context, "survivors/decisions", "decisions")
    rows = context.run_range(run, unit.low, unit.high, DECISIONS)
    keys, _ = context.part_keys()
    decided = numbers(rows.column("key"))
    places = np.searchsorted(keys, decided)
    if not np.array_equal(keys[np.minimum(places, len(keys) - 1)], decided):
        raise DataError(f"cell {unit.number}: decided about documents that it lacks. Run again.")
    clusters, sizes = keys.copy(), np.ones(len(keys), np.int32)
    clusters[places] = numbers(rows.column("cluster"))
    sizes[places] = numbers(rows.column("size"))
    keep = np.ones(len(keys), np.bool_)
    if action == "drop":
        keep[places] = numbers(rows.column("rank")) == 0
        dropped = rows.filter(pa.array(~keep[places]))
        if dropped.num_rows:
            _add_ledger(context, rule, dropped.sort_by("key"))
    context.write_sidecar(keep, {"cluster_id": pa.array(clusters), "cluster_size": pa.array(sizes)})


def _add_ledger(context: PassContext, rule: str, dropped: pa.Table) -> None:
    """Add a row per dropped document; `dropped` is sorted by key."""
    keys = numbers(dropped.column("key"))
    sizes = numbers(dropped.column("size")).astype(np.float64)
    survivors = dropped.column("survivor_id").combine_chunks()
    for view in context.read("id", "source", "text"):
        rows = np.flatnonzero(_among(view.keys, keys))
        if len(rows) == 0:
            continue
        places = np.searchsorted(keys, view.keys[rows])
        batch = view.batch.take(pa.array(rows))
        context.add_ledger(
            Entries(
                keys=view.keys[rows],
                ids=batch.column("id"),
                sources=batch.column("source"),
                stage=context.label,
                rules=pa.repeat(pa.scalar(rule), len(rows)),
                action="drop",
                values=sizes[places],
                survivors=survivors.take(pa.array(places)),
                texts=batch.column("text"),
            )
        )


def _among(values: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which values occur in `wanted`, which is sorted and not empty."""
    places = np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)
    return wanted[places] == values  # type: ignore[no-any-return]

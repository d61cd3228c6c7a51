"""Connected components of what bands link: in one task, or in rounds where there are too many.

    join_1, join_2... (hash ranges)        `forest` of edges, `links` of the round before   `links`
    cluster (one unit, or hash ranges)     the last of these                            components

In a round each task connects all links of the documents in its range, and links everything that
they reach to the smallest key of it; each link is written for both of its ends. When no document is
linked to anything but the smallest that it reaches, components are stars and the rounds end: their
labels are those of one task. Ranges are of hashes of keys: the smallest keys of large components
are among the first of all, and one range of keys would have most links.

Source: Kiveris et al. 2014, Connected Components in MapReduce and Beyond: large-star and
small-star, which are done at once here, and to the end within a range.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from corpuskit.errors import TaskError
from corpuskit.formats.batch import numbers
from corpuskit.kernels.arrays import Int64s
from corpuskit.kernels.unionfind import connect
from corpuskit.stage import Cost, Pass, PassContext, PassPlan, Unit, Volume
from corpuskit.stages import _routing
from corpuskit.stages.dedup._cluster_stage import CLUSTER_BYTES, CLUSTERED
from corpuskit.stages.dedup.minhash_dedup.verification import spread


class ClusteringStage(Protocol):
    """What is read of `MinhashDedup`, which imports this module."""

    @property
    def rounds(self) -> int: ...
    @property
    def verify(self) -> float | None: ...
    @property
    def against(self) -> tuple[str, ...]: ...
    @classmethod
    def stage_name(cls) -> str: ...


FOREST = pa.schema([("key", pa.int64()), ("root", pa.int64())])
"""Spanning trees of a range of hashes: a document, and the smallest of what it is linked to."""

LINKS = pa.schema([("at", pa.uint64()), ("key", pa.int64()), ("other", pa.int64())])
"""Two documents that belong together, in two rows; `at` is the hash of the first one's key. Where
there may be rounds, `edges` writes its forests so, a row for the larger key alone."""

_EDGES = 4
"""Edges per clustered document that estimates assume: 10 million synthetic ones had 3.8."""

_EDGE_BYTES = 48
"""Memory of one task that joins all, per edge: the edges as read, and their ends sorted."""

_NODE_BYTES = 64
"""Memory of that task per document, if clusters are ranked later, when they are verified."""

_LINK_BYTES = 300
"""Memory of a range, per link: as read, connected, and written for both ends."""

_USUAL_ROUNDS = 4
"""Rounds that clusters of near duplicates take (3 or 4; adverse graphs 8 to 11). The last one
changes nothing: that ends them."""

_OPEN = "open"
"""Counter of links to anything but the smallest document that is reached: at 0 the rounds end."""


def passes(stage: ClusteringStage) -> tuple[Pass, ...]:
    """Return the rounds."""
    return tuple(
        Pass(
            f"join_{number}",
            partial(join_range, stage, number),
            partial(cut_round, stage, number),
            done_with=(_links(number - 1),),
        )
        for number in range(1, stage.rounds + 1)
    )


def read_by_cluster(stage: ClusteringStage) -> tuple[str, ...]:
    """Return the shuffle files that no pass reads after `cluster`."""
    return tuple(_links(number) for number in range(stage.rounds + 1))


def cut_round(stage: ClusteringStage, number: int, plan: PassPlan) -> list[Unit]:
    """Return the ranges of a round; none if one task can join all, or all is joined."""
    if number > 1:
        is_needed = plan.counters(f"join_{number - 1}").get(_OPEN, 0) > 0
    else:
        is_needed = _task_bytes(stage, plan, 0) > plan.memory_bytes
    return _ranges(plan, number - 1) if is_needed else []


def write_forest(stage: ClusteringStage, context: PassContext, keys: Int64s, roots: Int64s) -> None:
    """Write a forest: documents, ascending, and the root of each."""
    if stage.rounds:
        context.write_shuffle("forest", {"at": spread(keys), "key": keys, "other": roots})
    else:
        context.write_shuffle("forest", {"key": keys, "root": roots}, is_sorted=True)


def join_range(_stage: ClusteringStage, number: int, context: PassContext) -> None:
    """Link what the documents of a range reach to the smallest of it."""
    unit = context.unit
    rows = context.read_shuffle(_links(number - 1), unit.low, unit.high, LINKS)
    keys, linked = numbers(rows.column("key")), numbers(rows.column("other"))
    nodes, roots = connect(keys, linked)
    roots_of_keys = roots[np.searchsorted(nodes, keys)]
    num_open = np.count_nonzero((linked != roots_of_keys) & (keys != roots_of_keys))
    # Before the first round, a document's range has not seen the larger ones that it is linked to.
    context.count(_OPEN, len(keys) if number == 1 else int(num_open))
    del rows, keys, linked, roots_of_keys
    inner = nodes != roots
    nodes, roots = nodes[inner], roots[inner]
    both = np.concatenate([nodes, roots])
    columns = {"at": spread(both), "key": both, "other": np.concatenate([roots, nodes])}
    context.write_shuffle("links", columns)


def cut_cluster(stage: ClusteringStage, plan: PassPlan) -> list[Unit]:
    """Return one unit that joins the remaining links; ranges where none remain.

    Raises:
        TaskError: the remaining links do not fit the memory of a task.
    """
    last = _last_round(stage, plan)
    if last and not plan.counters(f"join_{last}")[_OPEN]:
        return _ranges(plan, last)
    needed = _task_bytes(stage, plan, last)
    if needed > plan.memory_bytes:
        note = f" after {last} rounds" if last else ""
        raise TaskError(
            f"{stage.stage_name()}.cluster: up to {_max_nodes(stage, plan, last):,} near "
            f"duplicates joined by {_rows(plan, last):,} edges{note} need {needed:,} bytes in one "
            f"task, which may use {plan.memory_bytes:,}. "
            f"Set rounds to {max(2 * last, 8)}, or task_memory_bytes to {needed} or more."
        )
    return [Unit(0)]


def find_components(stage: ClusteringStage, context: PassContext) -> tuple[Int64s, Int64s]:
    """Return documents, ascending, and the smallest of the component of each.

    Of a range of hashes these are the documents in it or, where clusters are ranked at once, those
    of the components whose smallest document is in it.
    """
    unit, last = context.unit, _last_round(stage, context)
    low, high = (unit.low, unit.high) if unit.high else (None, None)
    schema = LINKS if stage.rounds else FOREST
    rows = context.read_shuffle(_links(last), low, high, schema)
    nodes, roots = connect(*(numbers(column) for column in rows.columns[-2:]))
    if high is None:
        return nodes, roots
    hashes = spread(roots if stage.verify is None else nodes)
    is_in_range = (hashes >= np.uint64(unit.low)) & (hashes <= np.uint64(unit.high - 1))
    return nodes[is_in_range], roots[is_in_range]


def cost(stage: ClusteringStage, volume: Volume, pass_name: str) -> Cost:
    """Return what `cluster` or a round needs."""
    clustered = int(volume.documents * CLUSTERED)
    links = clustered * _EDGES
    memory = links * _EDGE_BYTES + clustered * _node_bytes(stage)
    written = clustered * (44 if stage.verify is None else 16)
    is_cut = stage.rounds > 0 and memory > volume.task_memory_bytes
    if pass_name == "cluster" and not is_cut:
        return Cost(
            clustered / 2e6, unit_bytes=memory, disk_bytes=written, units=1, must_fit=True,
            advice="rounds of minhash_dedup to 8, or ",
        )  # fmt: skip
    number = int(pass_name.removeprefix("join_")) if pass_name != "cluster" else 0
    if not is_cut or number > _USUAL_ROUNDS:
        return Cost(units=0)
    disk = 25 * links if number else written
    return _routing.cost_of_ranges(volume, links, _LINK_BYTES, links / 2.4e6, disk)


def _links(number: int) -> str:
    """Return the shuffle file that a round writes; 0 is what the first round reads."""
    return f"join_{number}/links" if number else "edges/forest"


def _rows(plan: PassPlan, number: int) -> int:
    return sum(part.rows for part in plan.parts(_links(number)))


def _last_round(stage: ClusteringStage, plan: PassPlan | PassContext) -> int:
    """Return the last round that had something to do, 0 if none had."""
    rounds = range(1, stage.rounds + 1)
    return max((n for n in rounds if _OPEN in plan.counters(f"join_{n}")), default=0)


def _task_bytes(stage: ClusteringStage, plan: PassPlan, number: int) -> int:
    """Return the memory of one task that joins all links of a round."""
    num_nodes = _max_nodes(stage, plan, number)
    return _rows(plan, number) * _EDGE_BYTES + num_nodes * _node_bytes(stage)


def _max_nodes(stage: ClusteringStage, plan: PassPlan, number: int) -> int:
    """Return a bound of the documents that have links."""
    max_nodes = 2 * _rows(plan, number)
    return max_nodes if stage.against else min(max_nodes, plan.counters("sign").get("signed", 0))


def _node_bytes(stage: ClusteringStage) -> int:
    return CLUSTER_BYTES if stage.verify is None else _NODE_BYTES


def _ranges(plan: PassPlan, number: int) -> list[Unit]:
    return _routing.hash_units(plan, _links(number), _LINK_BYTES)

"""Near duplicates, by MinHash signatures and locality-sensitive hashing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from corpuskit.batch import numbers
from corpuskit.errors import TaskError
from corpuskit.kernels.minhash import sign_texts
from corpuskit.kernels.unionfind import connect, first_of_group
from corpuskit.stage import Cost, GlobalStage, Pass, Unit
from corpuskit.stages.dedup import _clusters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corpuskit.stage import PassContext, PassPlan, Volume

_BANDS = pa.schema([("hash", pa.uint64()), ("band", pa.uint8()), ("key", pa.int64())])
_FOREST = pa.schema([("key", pa.int64()), ("root", pa.int64())])

_ROW_BYTES = 128
"""Memory of the pass `edges` per row, where every document has a near duplicate."""

_EDGE_BYTES = 48
"""Memory of the pass `cluster` per edge: the edges as read, their ends once more, sorted."""


class MinhashDedup(GlobalStage):
    """Keep one document of those that share most of their word n-grams.

    Two documents of Jaccard similarity J become neighbours with probability
    1 - (1 - J**rows)**bands: with the defaults 0.05 at J 0.5, 0.56 at 0.7, 0.92 at 0.8, 1.00 at
    0.9. Clusters are connected components of neighbours, so two members may resemble each other
    only through a third. They don't depend on order. Documents without a word are never duplicates.
    Adds `cluster_id` (key of the cluster's first document) and `cluster_size`.

    Source: FineWeb (Penedo et al. 2024): 5-grams, 14 bands of 8. Differs from datatrove's MinHash:
    words are runs of letters, digits and underscores in lower case, shingles are hashed by another
    64-bit hash, documents of fewer than `ngram` words have one shingle, and the first document in
    reading order survives.
    """

    rules = ("near_duplicate",)

    ngram: int = Field(5, ge=1, le=64)
    """Words per shingle."""
    bands: int = Field(14, ge=1, le=255)
    """Bands; more of them find less similar pairs, and cost time and scratch disk."""
    rows: int = Field(8, ge=1, le=255)
    """Hashes per band; more of them find fewer pairs that are not similar."""
    seed: int = Field(1, ge=0, lt=2**32)
    """Seed of the permutations."""
    keep: Literal["first"] = "first"
    """Which document of a cluster stays: the first in reading order."""
    action: _clusters.Action = "drop"
    """Drop the others, or only annotate all."""

    def libraries(self) -> tuple[str, ...]:
        return ("numpy",)

    def adds(self) -> Mapping[str, pa.DataType]:
        return _clusters.ADDS

    def passes(self) -> tuple[Pass, ...]:
        return (
            Pass("sign", self.sign_cell),
            Pass("edges", self.link_range, self.cut_ranges),
            Pass("cluster", self.merge_forests, self.cut_nothing),
            Pass("survivors", self.find_survivors),
            Pass("route", self.route_decisions, self.cut_routes),
            Pass("apply", self.apply_decisions),
        )

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        rows = volume.documents * self.bands
        if pass_name == "sign":
            # The permutations are half of it at 112 of them.
            speed = 200e6 / (0.5 + self.bands * self.rows / 224)
            held = 70 * self.bands * volume.cell_documents
            disk = 17 * rows + rows // 16
            return Cost(volume.text_bytes / speed, unit_bytes=held, disk_bytes=disk)
        if pass_name == "edges":
            return _clusters.cost_of_range(volume, rows, _ROW_BYTES)
        if pass_name == "cluster":
            clustered = int(volume.documents * _clusters.CLUSTERED)
            held = clustered * (_EDGE_BYTES + _clusters.CLUSTER_BYTES)
            disk = clustered * 36
            return Cost(clustered / 2e6, unit_bytes=held, disk_bytes=disk, units=1, must_fit=True)
        return _clusters.cost_of_decisions(volume, pass_name)

    def sign_cell(self, context: PassContext) -> None:
        """Write the band keys of a cell's documents, sorted by hash."""
        keys, hashes = [], []
        num_docs = 0
        for view in context.read("text"):
            found, signed = sign_texts(
                *view.text, ngram=self.ngram, bands=self.bands, rows=self.rows, seed=self.seed
            )
            num_docs += view.num_docs
            keys.append(view.keys[signed])
            hashes.append(found[signed])
        if not keys:
            return
        num_signed = sum(map(len, keys))
        context.count("signed", num_signed)
        context.count("without_words", num_docs - num_signed)
        columns = {
            "hash": np.concatenate(hashes).ravel(),
            "band": np.tile(np.arange(self.bands, dtype=np.uint8), num_signed),
            "key": np.repeat(np.concatenate(keys), self.bands),
        }
        context.write_run("bands", columns)

    def cut_ranges(self, plan: PassPlan) -> list[Unit]:
        """Return hash ranges whose rows a task can hold."""
        return _clusters.hash_units(plan, "sign/bands", _ROW_BYTES)

    def link_range(self, context: PassContext) -> None:
        """Write the spanning forest of what this hash range links: document -> smallest key."""
        rows = context.run_range("sign/bands", context.unit.low, context.unit.high, _BANDS)
        hashes, bands, keys = (numbers(column) for column in rows.columns)
        first = first_of_group(hashes, bands, keys)
        linked = np.flatnonzero(first != np.arange(len(first)))
        nodes, roots = connect(keys[linked], keys[first[linked]])
        inner = np.flatnonzero(nodes != roots)
        context.write_run("forest", {"key": nodes[inner], "root": roots[inner]}, is_sorted=True)

    def cut_nothing(self, plan: PassPlan) -> list[Unit]:
        """Return the one unit that merges all forests.

        Raises:
            TaskError: they don't fit the memory of a task.
        """
        num_edges = sum(part.rows for part in plan.parts("edges/forest"))
        num_nodes = min(2 * num_edges, plan.counters("sign").get("signed", 0))
        needed = num_edges * _EDGE_BYTES + num_nodes * _clusters.CLUSTER_BYTES
        if needed > plan.memory_bytes:
            raise TaskError(
                f"{self.stage_name()}.cluster: up to {num_nodes:,} near duplicates joined by "
                f"{num_edges:,} edges need {needed:,} bytes in one task, which may use "
                f"{plan.memory_bytes:,}. Set task_memory_bytes to {needed} or more."
            )
        return [Unit(0)]

    def merge_forests(self, context: PassContext) -> None:
        """Write the connected components of all forests."""
        rows = context.run_range("edges/forest", None, None, _FOREST)
        if rows.num_rows:
            nodes, roots = connect(*(numbers(column) for column in rows.columns))
            del rows
            _clusters.write_clusters(context, nodes, roots)

    def find_survivors(self, context: PassContext) -> None:
        """Join survivors' ids to their duplicates."""
        _clusters.find_survivors(context, "cluster/clusters")

    def cut_routes(self, plan: PassPlan) -> list[Unit]:
        """Return ranges of keys where there are very many cells, else none."""
        return _clusters.cut_decisions(plan)

    def route_decisions(self, context: PassContext) -> None:
        """Merge the decisions about a range of keys."""
        _clusters.route_decisions(context)

    def apply_decisions(self, context: PassContext) -> None:
        """Write the sidecar and the ledger."""
        _clusters.apply_decisions(context, self.rules[0], self.action)

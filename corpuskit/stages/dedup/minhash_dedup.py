"""Near duplicates, by MinHash signatures and locality-sensitive hashing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from corpuskit.batch import numbers
from corpuskit.errors import TaskError
from corpuskit.kernels.minhash import sign_texts
from corpuskit.kernels.unionfind import connect, first_of_group
from corpuskit.stage import Cost, Pass, Unit
from corpuskit.stages.dedup import _clusters
from corpuskit.stages.dedup._cluster_stage import ClusterStage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from corpuskit.stage import PassContext, PassPlan, Volume

_BANDS = pa.schema([("hash", pa.uint64()), ("band", pa.uint8()), ("key", pa.int64())])
_PLACES = pa.schema([("key", pa.int64()), ("place", pa.uint64())])
_FOREST = pa.schema([("key", pa.int64()), ("root", pa.int64())])

_ROW_BYTES = 128
"""Memory of the pass `edges` per row, where every document has a near duplicate."""

_EDGE_BYTES = 48
"""Memory of the pass `cluster` per edge: the edges as read, their ends once more, sorted."""


class MinhashDedup(ClusterStage):
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
    hashed_by = "sign"
    clustered_by = "cluster"

    ngram: int = Field(5, ge=1, le=64)
    """Words per shingle."""
    bands: int = Field(14, ge=1, le=255)
    """Bands; more of them find less similar pairs, and cost time and scratch disk."""
    rows: int = Field(8, ge=1, le=255)
    """Hashes per band; more of them find fewer pairs that are not similar."""
    seed: int = Field(1, ge=0, lt=2**32)
    """Seed of the permutations."""

    def libraries(self) -> tuple[str, ...]:
        return ("numpy",)

    def identity(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in ("ngram", "bands", "rows", "seed")}

    def passes(self) -> tuple[Pass, ...]:
        return (
            Pass("sign", self.sign_cell),
            Pass("edges", self.link_range, self.cut_ranges),
            Pass("cluster", self.merge_forests, self.cut_nothing),
            *self.last_passes(),
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
        return super().cost(volume, pass_name)

    def sign_cell(self, context: PassContext) -> None:
        """Write the band keys of a cell's documents, sorted by hash."""
        keys: list[NDArray[np.int64]] = []
        hashes, lines, ids = [], [], []
        num_docs = 0
        for view in context.read(
            *sorted({"text", *self.needs(), *(("id",) if self.index else ())})
        ):
            found, signed = sign_texts(
                *view.text, ngram=self.ngram, bands=self.bands, rows=self.rows, seed=self.seed
            )
            num_docs += view.num_docs
            keys.append(view.keys[signed])
            hashes.append((found ^ self.scopes(view)[:, None])[signed])
            if self.has_places():
                lines.append(self.places(view)[signed])
            if self.index:
                ids.append(view.column("id").filter(pa.array(signed)))
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
        self.write_index(context, keys, ids)
        if lines:
            named = {"key": np.concatenate(keys), "place": np.concatenate(lines)}
            context.write_run("places", named, is_sorted=True)

    def cut_ranges(self, plan: PassPlan) -> list[Unit]:
        """Return hash ranges whose rows a task can hold."""
        return _clusters.hash_units(plan, "sign/bands", _ROW_BYTES)

    def link_range(self, context: PassContext) -> None:
        """Write the spanning forest of what this hash range links: document -> smallest key."""
        low, high = context.unit.low, context.unit.high
        rows = context.run_range("sign/bands", low, high, _BANDS)
        if self.against:
            older = self.older().hashes("bands", low, high, _BANDS)
            wanted = np.unique(numbers(rows.column("hash")))
            met = np.isin(numbers(older.column("hash")), wanted)
            rows = pa.concat_tables([older.filter(pa.array(met)), rows])
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
        nodes, roots = connect(*(numbers(column) for column in rows.columns))
        del rows
        lines = (self.places_of(context, nodes),) if self.has_places() else ()
        _clusters.write_clusters(context, _clusters.rank(nodes, roots, *lines))

    def places_of(self, context: PassContext, keys: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return where documents stand in line to be kept; 0 for older ones. `keys` ascend."""
        found = np.zeros(len(keys), np.uint64)
        for part in context.parts("sign/places"):
            begin, end = np.searchsorted(keys, [part.first, part.last + 1])
            if begin < end:
                low, high = int(keys[begin]), int(keys[end - 1]) + 1
                rows = context.run_range("sign/places", low, high, _PLACES)
                there = numbers(rows.column("key"))
                lines = numbers(rows.column("place"))
                found[begin:end] = lines[np.searchsorted(there, keys[begin:end])]
        return found

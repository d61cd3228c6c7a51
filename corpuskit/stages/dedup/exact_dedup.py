"""Exact duplicates, by a 128-bit hash of the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from corpuskit.batch import numbers
from corpuskit.kernels.hashing import hash_texts
from corpuskit.kernels.unionfind import first_of_group
from corpuskit.kernels.wordhash import fold_texts
from corpuskit.stage import Cost, GlobalStage, Pass
from corpuskit.stages.dedup import _clusters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corpuskit.stage import PassContext, PassPlan, Unit, Volume

_HASHES = pa.schema([("hash", pa.uint64()), ("hash_low", pa.uint64()), ("key", pa.int64())])

_ROW_BYTES = 144
"""Memory of the pass `group` per row, where every document has a duplicate."""


class ExactDedup(GlobalStage):
    """Keep one document of those whose texts are equal.

    Use it first: it is far cheaper than minhash_dedup and leaves it less to do. Adds `cluster_id`
    (key of the cluster's first document) and `cluster_size`, which a mixture can weight by. Texts
    are compared by two 64-bit hashes (XXH64 with two seeds): among 1e10 documents the odds of one
    wrong drop are 1e-19.

    Source: FineWeb2 (Penedo et al. 2025) for the cluster size; OLMo 3 for exact before fuzzy.
    """

    rules = ("exact_duplicate",)

    normalize: Literal["none", "whitespace_case"] = "none"
    """Compare raw bytes, or texts in lower case with each run of whitespace as one space."""
    keep: Literal["first"] = "first"
    """Which document of a cluster stays: the first in reading order."""
    action: _clusters.Action = "drop"
    """Drop the others, or only annotate all."""

    def adds(self) -> Mapping[str, pa.DataType]:
        return _clusters.ADDS

    def passes(self) -> tuple[Pass, ...]:
        return (
            Pass("hash", self.hash_cell),
            Pass("group", self.group_range, self.cut_ranges),
            Pass("survivors", self.find_survivors),
            Pass("route", self.route_decisions, self.cut_routes),
            Pass("apply", self.apply_decisions),
        )

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        if pass_name == "hash":
            held = 100 * volume.cell_documents
            disk = 25 * volume.documents
            return Cost(volume.text_bytes / 450e6, unit_bytes=held, disk_bytes=disk)
        if pass_name == "group":
            return _clusters.cost_of_range(volume, volume.documents, _ROW_BYTES)
        return _clusters.cost_of_decisions(volume, pass_name)

    def hash_cell(self, context: PassContext) -> None:
        """Write the hashes of a cell's documents, sorted by the first half."""
        keys, highs, lows = [], [], []
        for view in context.read("text"):
            text = view.text if self.normalize == "none" else fold_texts(*view.text)
            high, low = hash_texts(*text)
            keys.append(view.keys)
            highs.append(high)
            lows.append(low)
        if keys:
            columns = {
                "hash": np.concatenate(highs),
                "hash_low": np.concatenate(lows),
                "key": np.concatenate(keys),
            }
            context.write_run("hashes", columns)

    def cut_ranges(self, plan: PassPlan) -> list[Unit]:
        """Return hash ranges whose rows a task can hold."""
        return _clusters.hash_units(plan, "hash/hashes", _ROW_BYTES)

    def group_range(self, context: PassContext) -> None:
        """Find the documents of a hash range that share their hash."""
        rows = context.run_range("hash/hashes", context.unit.low, context.unit.high, _HASHES)
        high, low, keys = (numbers(column) for column in rows.columns)
        first = first_of_group(high, low, keys)
        sizes = np.bincount(first, minlength=len(first))
        clustered = np.flatnonzero(sizes[first] > 1)
        if len(clustered):
            _clusters.write_clusters(context, keys[clustered], keys[first[clustered]])

    def find_survivors(self, context: PassContext) -> None:
        """Join survivors' ids to their duplicates."""
        _clusters.find_survivors(context, "group/clusters")

    def cut_routes(self, plan: PassPlan) -> list[Unit]:
        """Return ranges of keys where there are very many cells, else none."""
        return _clusters.cut_decisions(plan)

    def route_decisions(self, context: PassContext) -> None:
        """Merge the decisions about a range of keys."""
        _clusters.route_decisions(context)

    def apply_decisions(self, context: PassContext) -> None:
        """Write the sidecar and the ledger."""
        _clusters.apply_decisions(context, self.rules[0], self.action)

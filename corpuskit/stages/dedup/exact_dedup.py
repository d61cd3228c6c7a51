"""Exact duplicates, by a 128-bit hash of the text.

pass                   reads                       writes              memory
hash (cells)           documents                   `hashes`, by hash   100 bytes a document
route_hashes           `hashes`                    the same, merged; only for very many cells
group (hash ranges)    `hashes`                    `clusters`          160 bytes a row
survivors, route, apply: see `_cluster_stage`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from corpuskit.formats.batch import Utf8, numbers, utf8
from corpuskit.kernels.arrays import AnyArray, Bools, Int64s, Uint64s
from corpuskit.kernels.folding import fold_texts
from corpuskit.kernels.hashing import hash_texts
from corpuskit.kernels.unionfind import first_of_group
from corpuskit.stage import Cost, Known, Pass, PassContext, PassPlan, Unit, View, Volume
from corpuskit.stages import _routing
from corpuskit.stages._numbers import check_strings, to_strings
from corpuskit.stages.dedup._cluster_stage import ClusterStage, cost_of_range, rank, write_clusters

_HASHES = [("hash", pa.uint64()), ("hash_low", pa.uint64()), ("key", pa.int64())]

_ROW_BYTES = 160
"""Memory of the pass `group` per row, where every document has a duplicate."""

_URL = "url"


class ExactDedup(ClusterStage):
    """Keep one document of those whose texts are equal.

    Use it first: it is far cheaper than minhash_dedup and leaves it less to do. Adds `cluster_id`
    (key of the cluster's first document; below zero if a reference run has it), `cluster_size`,
    which a mixture can weight by, and `cluster_rank`. Texts are compared by two 64-bit hashes
    (XXH64 with two seeds): among 1e10 documents the odds of one wrong drop are 1e-19.

    Source: FineWeb2 (Penedo et al. 2025) for the cluster size; OLMo 3 for exact before fuzzy;
    RefinedWeb (Penedo et al. 2023) for addresses across dumps.
    """

    rules = ("exact_duplicate",)
    hashed_by = "hash"

    column: str = "text"
    """What is compared: text, url (the address of the document), or another column of strings.
    Documents without a value have no duplicates."""
    normalize: Literal["none", "whitespace_case"] = "none"
    """Compare raw bytes, or texts in lower case with each run of whitespace as one space."""

    def clustering(self) -> str:
        return "group"

    def identity(self) -> Mapping[str, Any]:
        return {"column": self.column, "normalize": self.normalize}

    def needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*super().needs(), self._column())))

    def check(self, known: Known) -> None:
        super().check(known)
        if self.column not in ("text", "url"):
            check_strings(known, "column", self.column)

    def passes(self) -> tuple[Pass, ...]:
        return (
            Pass("hash", self.hash_cell, is_cell_alone=True),
            _routing.merge_pass(
                self,
                {"hash/hashes": self._hashes()},
                self.cut_routes_to_ranges,
                done_with=self.unless_indexed("hash/hashes"),
            ),
            Pass(
                "group",
                self.group_range,
                self.cut_ranges,
                done_with=("route_hashes/", *self.unless_indexed("hash/hashes")),
            ),
            *self.last_passes(),
        )

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        if pass_name == "hash":
            held = 100 * volume.cell_documents
            disk = (25 + 60 * self.index) * volume.documents
            return Cost(volume.text_bytes / 450e6, unit_bytes=held, disk_bytes=disk)
        if pass_name == "route_hashes":
            ranges = _routing.num_ranges(volume, volume.documents, _ROW_BYTES)
            size, cpu = volume.documents * _ROW_BYTES, volume.documents / 3e6
            return _routing.cost_of_route(volume, ranges, size, cpu, 25 * volume.documents)
        if pass_name == "group":
            rows = volume.documents + self.references().rows("hashes")
            return cost_of_range(volume, rows, _ROW_BYTES)
        return super().cost(volume, pass_name)

    def hash_cell(self, context: PassContext) -> None:
        """Write the hashes of a cell's documents, sorted by the first half."""
        keys: list[Int64s] = []
        highs: list[Uint64s] = []
        lows: list[Uint64s] = []
        priorities: list[Uint64s] = []
        ids: list[pa.Array] = []
        columns = {"id", *self.needs()} if self.index else set(self.needs())
        is_whole_text = self.column == "text" and self.normalize == "none"
        for view in context.read(*sorted(columns)):
            text, has_value = self._values(view)
            # A view that is read from the input has hashed its texts.
            high, low = view.fact(hash_texts) if is_whole_text else hash_texts(*text)
            high = high ^ self.scopes(view)
            keys.append(view.keys[has_value])
            highs.append(high[has_value])
            lows.append(low[has_value])
            if self.has_priorities():
                priorities.append(self.priorities(view)[has_value])
            if self.index:
                ids.append(view.column("id").filter(pa.array(has_value)))
        if keys:
            hashes: dict[str, AnyArray] = {
                "hash": np.concatenate(highs),
                "hash_low": np.concatenate(lows),
                "key": np.concatenate(keys),
            }
            if priorities:
                hashes["priority"] = np.concatenate(priorities)
            context.write_shuffle("hashes", hashes)
            self.write_index(context, keys, ids)

    def cut_ranges(self, plan: PassPlan) -> list[Unit]:
        """Return hash ranges whose rows a task can hold."""
        reference_rows = self.references().rows("hashes")
        return _routing.hash_units(plan, "hash/hashes", _ROW_BYTES, reference_rows)

    def cut_routes_to_ranges(self, plan: PassPlan) -> list[Unit]:
        """Return groups of cells in ranges of hashes where there are very many, else none."""
        ranges = self.cut_ranges(plan)
        return _routing.ranges_if_many(plan, "hash/hashes", ranges, _ROW_BYTES)

    def _hashes(self) -> pa.Schema:
        more = [("priority", pa.uint64())] if self.has_priorities() else []
        return pa.schema([*_HASHES, *more])

    def group_range(self, context: PassContext) -> None:
        """Find the documents of a hash range that share their hash."""
        low, high = context.unit.low, context.unit.high
        run = _routing.merged(context, "hash/hashes")
        rows = context.read_shuffle(run, low, high, self._hashes())
        if self.against:
            rows = self._with_references(rows, low, high)
        first_half, second_half, keys, *priorities = (numbers(column) for column in rows.columns)
        first = first_of_group(first_half, second_half, keys)
        sizes = np.bincount(first, minlength=len(first))
        clustered = np.flatnonzero(sizes[first] > 1)
        chosen = [column[clustered] for column in priorities]
        write_clusters(context, rank(keys[clustered], keys[first[clustered]], *chosen))

    def _with_references(self, rows: pa.Table, low: int, high: int) -> pa.Table:
        """Return the rows, and those of reference runs that share a hash with one of them."""
        references = self.references().matching("hashes", low, high, pa.schema(_HASHES), rows)
        if self.has_priorities():
            ignored = np.zeros(references.num_rows, np.uint64)  # reference runs come first anyway
            references = references.append_column("priority", pa.array(ignored))
        return pa.concat_tables([references, rows])

    def _column(self) -> str:
        return "origin" if self.column == _URL else self.column

    def _values(self, view: View) -> tuple[Utf8, Bools]:
        """Return what is compared, and which documents have it."""
        if self.column == "text":
            text, has_value = view.text, np.ones(view.num_docs, np.bool_)
        else:
            column = view.column(self._column())
            values = column.field("url") if self.column == _URL else column
            strings = to_strings(values, self.column)
            has_value = numbers(strings.is_valid())
            text = utf8(strings.fill_null("").cast(pa.large_string()))
        return text if self.normalize == "none" else Utf8(*fold_texts(*text)), has_value

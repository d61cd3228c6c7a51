"""Scores as ranks among all documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from corpuskit.errors import TaskError
from corpuskit.formats.batch import numbers, utf8
from corpuskit.formats.ledger import Entries
from corpuskit.kernels.arrays import Bytes, Float64s, Int32s, Int64s, Uint64s
from corpuskit.kernels.hashing import hash_texts
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
from corpuskit.stages._numbers import check_numbers, check_strings, to_numbers, to_strings

_GROUPING = [("column", pa.uint8()), ("group", pa.string()), ("value", pa.int64())]
_COUNTED = pa.schema([("hash", pa.uint64()), *_GROUPING, ("weight", pa.int64())])
_MERGED = pa.schema([("value", pa.int64()), *_GROUPING[:2], ("weight", pa.int64())])
_RANKED = pa.schema(
    [("value", pa.int64()), *_GROUPING[:2], ("below", pa.int64()), ("total", pa.int64())]
)

_KEYS = [name for name, _ in _GROUPING]

_ROW_BYTES = 200
"""Memory of a row while it is merged or ranked."""

_ROUNDING = 1e-12
"""1 - 0.7 is a little more than 0.3, the rank of the fourth of ten, which `keep_top: 0.7` keeps."""

_LARGEST = float(1 << 62)
"""Largest scaled score, which fits into 64 bits; larger ones count as this one."""


class Percentile(GlobalStage):
    """Rank documents by a score among all others, and sort them into buckets of equal weight.

    `rank` is the share of the documents (or of the bytes of text) with a lower score, in [0, 1);
    equal scores have equal ranks. `bucket` is the rank in steps: 0 is the worst of `buckets`. Of
    several columns the best rank counts, as in an ensemble of classifiers with scores that cannot
    be compared. Drop the rest with `keep_top`, or weight by bucket in a mixture. A document without
    any score has neither rank nor bucket.

    Scores are rounded first: only the different ones must fit into memory.

    Source: Su et al. 2024 (Nemotron-CC), section 2.2: 20 buckets of equal size by percentile, the
    maximum over classifiers (there weighted by tokens); DCLM (Li et al. 2024) keeps the top tenth.
    """

    rules = ("below_percentile", "missing")

    columns: tuple[str, ...] = Field(("quality.score",), min_length=1, max_length=16)
    """Columns of scores, as in [quality.score]; higher is better."""
    buckets: int = Field(20, ge=1, le=1000)
    """How many steps ranks are sorted into."""
    weigh_by: Literal["documents", "bytes"] = "documents"
    """What is shared out evenly: documents, or the bytes of their text."""
    by: str | None = None
    """Column of strings within whose values documents are ranked, as in `source`."""
    keep_top: float | None = Field(None, gt=0, le=1)
    """Drop documents whose rank is below 1 - keep_top; at most that share stays, of each group."""
    missing: Literal["keep", "drop"] = "keep"
    """What to do with documents that have no score."""
    decimals: int = Field(4, ge=0, le=12)
    """Decimals to which scores are rounded."""

    def needs(self) -> tuple[str, ...]:
        return (*self.columns, *(() if self.by is None else (self.by,)))

    def check(self, known: Known) -> None:
        for column in self.columns:
            check_numbers(known, "columns", column)
        if self.by is not None:
            check_strings(known, "by", self.by)

    def adds(self) -> Mapping[str, pa.DataType]:
        return {"rank": pa.float64(), "bucket": pa.int32()}

    def passes(self) -> tuple[Pass, ...]:
        return (
            Pass("count", self.count_cell, is_cell_alone=True),
            Pass("merge", self.merge_range, self.cut_ranges, done_with=("count/",)),
            Pass("rank", self.rank_all, self.rank_unit, done_with=("merge/",)),
            Pass("apply", self.apply_ranks, done_with=("rank/",)),
        )

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        memory = 120 * volume.cell_documents
        # As many different scores as 4 decimals allow between 0 and 1.
        distinct = len(self.columns) * min(10**4, volume.documents)
        rows = min(len(self.columns) * volume.documents, distinct * volume.cells)
        if pass_name in {"count", "apply"}:
            is_counting = pass_name == "count"
            texts = volume.text_bytes * (self.weigh_by == "bytes" or not is_counting)
            disk = 40 * rows if is_counting else 14 * volume.documents
            speed = 400e3 if is_counting else 1.5e6
            cpu = len(self.columns) * volume.documents / speed + texts / 600e6
            return Cost(cpu, unit_bytes=memory, disk_bytes=disk)
        if pass_name == "merge":
            return _routing.cost_of_ranges(volume, rows, _ROW_BYTES, rows / 3e6, 40 * distinct)
        memory = distinct * _ROW_BYTES
        return Cost(
            distinct / 2e6, unit_bytes=memory, disk_bytes=48 * distinct, units=1, must_fit=True
        )

    def count_cell(self, context: PassContext) -> None:
        """Write how much of a cell has which score: rows of (column, group, value), weighted."""
        tables = []
        for view, values, groups in self._scores(context, with_text=self.weigh_by == "bytes"):
            weights = np.ones(view.num_docs, np.int64)
            if self.weigh_by == "bytes":
                weights = view.text.sizes()
            for column, scaled in enumerate(values):
                rows = np.flatnonzero(~np.isnan(scaled))
                columns = {
                    "column": np.full(len(rows), column, np.uint8),
                    "group": groups.take(pa.array(rows)),
                    "value": scaled[rows].astype(np.int64),
                    "weight": weights[rows],
                }
                tables.append(pa.table(columns))
            has_score = ~np.isnan(values).all(axis=0)
            context.count("scored", int(has_score.sum()))
            context.count("missing", int((~has_score).sum()))
        if tables:
            sums = _summed(pa.concat_tables(tables))
            columns = {"hash": _hashes(sums), **{n: sums.column(n) for n in sums.column_names}}
            context.write_shuffle("counted", columns)

    def cut_ranges(self, plan: PassPlan) -> list[Unit]:
        """Return hash ranges whose rows a task can hold."""
        return _routing.hash_units(plan, "count/counted", _ROW_BYTES)

    def merge_range(self, context: PassContext) -> None:
        """Add up what all cells have of the scores in a hash range."""
        unit = context.unit
        rows = context.read_shuffle("count/counted", unit.low, unit.high, _COUNTED)
        sums = _summed(rows.drop_columns(["hash"]))
        context.write_shuffle("merged", {name: sums.column(name) for name in _MERGED.names})

    def rank_unit(self, plan: PassPlan) -> list[Unit]:
        """Return one unit, for all different scores.

        Raises:
            TaskError: they don't fit the memory of a task.
        """
        rows = sum(part.rows for part in plan.parts("merge/merged"))
        if rows * _ROW_BYTES > plan.memory_bytes:
            raise TaskError(
                f"{self.stage_name()}.rank: {rows:,} different scores need {rows * _ROW_BYTES:,} "
                f"bytes in one task, which may use {plan.memory_bytes:,}. Set decimals below "
                f"{self.decimals}, or task_memory_bytes to {rows * _ROW_BYTES} or more."
            )
        return [Unit(0)]

    def rank_all(self, context: PassContext) -> None:
        """Write for each score how much is below it, and how much there is in all."""
        rows = context.read_shuffle("merge/merged", None, None, _MERGED)
        if rows.num_rows == 0:
            return
        rows = rows.sort_by([(name, "ascending") for name in _KEYS])
        weights, columns = numbers(rows.column("weight")), numbers(rows.column("column"))
        codes = rows.column("group").combine_chunks().dictionary_encode().indices.to_numpy()
        is_first = np.ones(len(weights), np.bool_)
        is_first[1:] = (np.diff(columns.astype(np.int64)) != 0) | (np.diff(codes) != 0)
        starts = np.flatnonzero(is_first)
        sizes = np.diff(starts, append=len(weights))
        weight_below = np.cumsum(weights) - weights
        weight_below -= np.repeat(weight_below[starts], sizes)
        totals = np.repeat(np.add.reduceat(weights, starts), sizes)
        ranked = {name: rows.column(name).combine_chunks() for name in ("value", "column", "group")}
        context.write_shuffle("ranked", {**ranked, "below": weight_below, "total": totals})

    def apply_ranks(self, context: PassContext) -> None:
        """Write the sidecar, and the ledger rows of what is dropped."""
        keys, _ = context.part_keys()
        ranks, buckets = np.full(len(keys), np.nan), np.full(len(keys), -1, np.int32)
        scored = [(np.searchsorted(keys, view.keys), v, g) for view, v, g in self._scores(context)]
        alive = np.concatenate([np.empty(0, np.int64), *(rows for rows, _, _ in scored)])
        if scored:
            values = np.concatenate([scaled for _, scaled, _ in scored], axis=1)
            groups = pa.concat_arrays([names for _, _, names in scored])
            ranks[alive], buckets[alive] = self._rank(context, values, groups)
        is_missing = np.isnan(ranks)
        codes = np.zeros(len(keys), np.uint8)
        if self.missing == "drop":
            codes[alive[is_missing[alive]]] = 2
        if self.keep_top is not None:
            codes[ranks < 1 - self.keep_top - _ROUNDING] = 1
        if codes.any():
            self._add_ledger(context, keys, codes, ranks)
        columns = {
            "rank": pa.array(ranks, mask=is_missing),
            "bucket": pa.array(buckets, mask=is_missing),
        }
        context.write_sidecar(codes == 0, columns)

    def _scores(
        self, context: PassContext, *, with_text: bool = False
    ) -> Iterator[tuple[View, Float64s, pa.Array]]:
        """Yield the documents of a cell: view, scaled scores (columns, N), and their groups."""
        columns = dict.fromkeys([*self.needs(), *(["text"] if with_text else [])])
        for view in context.read(*columns):
            scores = np.stack([to_numbers(view.column(name), name) for name in self.columns])
            scaled = np.clip(np.rint(scores * 10.0**self.decimals), -_LARGEST, _LARGEST)
            if self.by is None:
                groups = pa.repeat(pa.scalar(""), view.num_docs)
            else:
                groups = to_strings(view.column(self.by), self.by).fill_null("")
            yield view, scaled, groups

    def _rank(
        self, context: PassContext, values: Float64s, groups: pa.Array
    ) -> tuple[Float64s, Int32s]:
        """Return rank and bucket of each document, the best of its columns; NaN and -1 if none."""
        ranks = np.full(values.shape[1], np.nan)
        buckets = np.full(values.shape[1], -1, np.int32)
        if np.isnan(values).all():
            return ranks, buckets
        low, high = int(np.nanmin(values)), int(np.nanmax(values))
        table = context.read_shuffle("rank/ranked", low, high + 1, _RANKED)
        scores, column, all_below, totals = (
            numbers(table.column(name)) for name in ("value", "column", "below", "total")
        )
        names = table.column("group").combine_chunks()
        coded = groups.dictionary_encode()
        group_codes = coded.indices.to_numpy()
        for number, scaled in enumerate(values):
            for code, name in enumerate(coded.dictionary):
                rows = np.flatnonzero((group_codes == code) & ~np.isnan(scaled))
                is_group = numbers(pc.equal(names, name)) & (column == number)
                scored = np.searchsorted(scores[is_group], scaled[rows].astype(np.int64))
                below, total = all_below[is_group][scored], np.maximum(totals[is_group][scored], 1)
                ranks[rows] = np.fmax(ranks[rows], below / total)
                buckets[rows] = np.maximum(buckets[rows], below * self.buckets // total)
        return ranks, buckets

    def _add_ledger(
        self, context: PassContext, keys: Int64s, cell_codes: Bytes, ranks: Float64s
    ) -> None:
        """Add a row per dropped document."""
        bounds = np.array([np.nan, 1 - (self.keep_top or 1), np.nan])
        for view in context.read("id", "source", "text"):
            cell_rows = np.searchsorted(keys, view.keys)
            rows = np.flatnonzero(cell_codes[cell_rows])
            codes, values = cell_codes[cell_rows[rows]], ranks[cell_rows[rows]]
            rules = pa.array(self.rules).take(pa.array(codes - 1))
            context.add_ledger(
                Entries.of(view.batch, rows, context.label, rules, values, bounds[codes])
            )


def _summed(rows: pa.Table) -> pa.Table:
    """Return one row per (column, group, value), weights added up."""
    grouped = rows.group_by(_KEYS, use_threads=False).aggregate([("weight", "sum")])
    return grouped.rename_columns([*_KEYS, "weight"]).combine_chunks()


def _hashes(rows: pa.Table) -> Uint64s:
    """Return what rows are routed by, evenly spread; equal rows of all cells have the same."""
    group, _ = hash_texts(*utf8(rows.column("group").combine_chunks().cast(pa.large_string())))
    value = numbers(rows.column("value")).astype(np.uint64)
    mixed = group ^ (value << np.uint64(8)) ^ numbers(rows.column("column")).astype(np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):  # MurmurHash3's finaliser
        mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(33))

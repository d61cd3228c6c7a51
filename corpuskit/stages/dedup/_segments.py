"""What `line_dedup` and `overlap_dedup` share: the passes of stages that count segments by hash.

pass                   reads                 writes
hash (cells)           documents             `hash_output`: hashes of the cell's segments
deal (groups, ranges)  `hash_output`         the same, merged; only for very many cells
count (hash ranges)    `hash_output`         `count_output`: what each cell needs to know of them
route (ranges)         `count_output`        the same, merged; only for very many cells
apply (cells)          `count_output`        sidecar, ledger

`deal` is a routing pass (`_routing`) that also adds to each row which cell wrote it.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from corpuskit.formats.batch import ByteSpans, numbers, span_lists
from corpuskit.formats.ledger import Entries
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
from corpuskit.stages.dedup._keep import check_scope, scope_columns, scope_hashes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from corpuskit.formats.manifest import Part
    from corpuskit.kernels.arrays import AnyArray, Bytes, Float64s, Int32s, Int64s, Uint64s


class Shuffled(NamedTuple):
    """A shuffle file: its name and schema, and the memory of a row while a pass works on it."""

    name: str
    schema: pa.Schema
    row_bytes: int


class SegmentOutcome(NamedTuple):
    """What is decided about the N documents of a view.

    Attributes:
        columns: the stage's own, (N,) each.
        codes: (N,) uint8: 0, or the number of the rule that drops.
        num_cut: (N,) segments that are cut.
        spans: what is cut, also from documents that are dropped.
        measured: (rules, N) what each rule measured.
    """

    columns: Mapping[str, AnyArray]
    codes: Bytes
    num_cut: Int64s
    spans: ByteSpans
    measured: Float64s


class SegmentStage(GlobalStage):
    """Base of stages that count segments of documents by hash, and cut or drop those that recur.

    Source: none.
    """

    hash_output: ClassVar[Shuffled]
    """What `hash` writes; its first column is the hash."""
    count_output: ClassVar[Shuffled]
    """What `count` writes; its first column is the cell."""

    if TYPE_CHECKING:  # declared by each stage, beside the parameters that they belong with
        prefer: tuple[str, ...]
        scope: str
        action: str

    @abstractmethod
    def hash_cell(self, context: PassContext) -> None:
        """Write the segments of a cell."""

    @abstractmethod
    def count_range(self, context: PassContext) -> None:
        """Compare the segments of a hash range that cells have."""

    @abstractmethod
    def outcomes(self, context: PassContext) -> Iterator[tuple[View, SegmentOutcome]]:
        """Yield the documents of a cell, and what is decided about them; nothing if all stay."""

    def needs(self) -> tuple[str, ...]:
        return scope_columns(self.scope)

    def check(self, known: Known) -> None:
        check_scope(known, self.scope, self.prefer)

    def passes(self) -> tuple[Pass, ...]:
        hashed, counted = self._hashed_file, self._counted_file
        schema = self.count_output.schema
        return (
            Pass("hash", self.hash_cell, is_cell_alone=True),
            Pass("deal", self._deal, self._cut_deals, done_with=(hashed,)),
            Pass("count", self.count_range, self._cut_ranges, done_with=(hashed, "deal/")),
            _routing.route_pass(self, {counted: schema}, self._cut_routes, name="route"),
            Pass("apply", self._apply, done_with=("hash/", "count/", "route/")),
        )

    def cost_of_exchange(
        self, volume: Volume, pass_name: str, rows: int, counted: int, *, rate: float, disk: int
    ) -> Cost:
        """Return what `deal`, `count` and `route` need.

        Args:
            rows, counted: of `hash_output` and of `count_output`.
            rate: rows that `count` compares in a CPU second.
            disk: bytes of a row of `hash_output` that was dealt.
        """
        row_bytes, counted_disk = self.hash_output.row_bytes, 21 * counted
        ranges = _routing.num_ranges(rows, row_bytes, volume.task_memory_bytes)
        if pass_name == "deal":
            return _routing.cost_of_route(volume, ranges, rows * row_bytes, rows / 3e6, disk * rows)
        if pass_name == "count":
            return _routing.cost_of_ranges(volume, rows, row_bytes, rows / rate, counted_disk)
        size = counted * self.count_output.row_bytes
        return _routing.cost_of_route(volume, ranges, size, counted / 2e6, counted_disk)

    def scopes(self, view: View) -> Uint64s:
        """Return the number of each document's scope, (N,)."""
        return scope_hashes(view, self.scope)

    @property
    def _hashed_file(self) -> str:
        return f"hash/{self.hash_output.name}"

    @property
    def _counted_file(self) -> str:
        return f"count/{self.count_output.name}"

    def _cut_ranges(self, plan: PassPlan) -> list[Unit]:
        """Return hash ranges whose rows a task can hold."""
        return _routing.hash_units(plan, self._hashed_file, self.hash_output.row_bytes)

    def _cut_deals(self, plan: PassPlan) -> list[Unit]:
        """Return groups of cells in ranges of hashes where there are very many, else none."""
        ranges = self._cut_ranges(plan)
        return _routing.route_to_ranges(plan, self._hashed_file, ranges, self.hash_output.row_bytes)

    def _deal(self, context: PassContext) -> None:
        """Merge what a group of cells has in a range of hashes, and add the cell to each row."""
        name, schema, _ = self.hash_output
        context.count(f"{_routing.ROUTED}/{name}")
        producers = context.unit.producers or (0, 0)
        rows, cells = _read_cells(context, self._hashed_file, schema, producers)
        columns = {column: rows.column(column) for column in schema.names}
        context.write_shuffle(name, {**columns, "cell": cells})

    def read_range(self, context: PassContext) -> tuple[pa.Table, Int32s, bool]:
        """Return the rows of this range of hashes, the cell of each, and whether they were dealt.

        Cells are indices among the parts of `hash_output`. Undealt rows come cell by cell.
        """
        unit, file, (name, schema, _) = context.unit, self._hashed_file, self.hash_output
        if f"{_routing.ROUTED}/{name}" not in context.counters("deal"):
            return *_read_cells(context, file, schema, (0, len(context.parts(file)))), False
        dealt = pa.schema([*schema, ("cell", pa.int32())])
        rows = context.read_shuffle(f"deal/{name}", unit.low, unit.high, dealt).combine_chunks()
        return rows, numbers(rows.column("cell")), True

    def _cut_routes(self, plan: PassPlan) -> list[Unit]:
        """Return ranges of cells where there are very many, else none."""
        cells = [Unit(c.number, "", c.number, c.number + 1, c.rows) for c in plan.cells()]
        producers = plan.parts(self._counted_file)
        return _routing.cut_routes(producers, cells, self.count_output.row_bytes, plan.memory_bytes)

    def read_counted(self, context: PassContext) -> pa.Table:
        """Return the rows of `count_output` for this cell."""
        number = context.unit.number
        file = _routing.routed_file(context, self._counted_file, "route")
        return context.read_shuffle(file, number, number + 1, self.count_output.schema)

    def _apply(self, context: PassContext) -> None:
        """Write the sidecar and the ledger."""
        keys, _ = context.part_keys()
        keep = np.ones(len(keys), np.bool_)
        columns = {
            name: np.zeros(len(keys), kind.to_pandas_dtype()) for name, kind in self.adds().items()
        }
        bounds = np.array([self.threshold(rule) for rule in self.rules])
        spans = [ByteSpans.empty()]
        for view, outcome in self.outcomes(context):
            cell_rows = np.searchsorted(keys, view.keys)
            for name, values in outcome.columns.items():
                columns[name][cell_rows] = values
            if self.action == "annotate":
                continue
            keep[cell_rows] = outcome.codes == 0
            _add_ledger(context, view, self.rules, outcome, bounds)
            # Nothing is cut from a document that is dropped.
            cuts = outcome.spans.take(outcome.codes[outcome.spans.rows] == 0)
            spans.append(cuts._replace(rows=cell_rows[cuts.rows]))
        rows, starts, ends = (np.concatenate(column) for column in zip(*spans, strict=True))
        lists = span_lists(rows, starts, ends, len(keys)) if len(rows) else None
        arrays = {name: pa.array(values) for name, values in columns.items()}
        context.write_sidecar(keep, arrays, lists)


def _read_cells(
    context: PassContext, file: str, schema: pa.Schema, producers: tuple[int, int]
) -> tuple[pa.Table, Int32s]:
    unit, cell_numbers = context.unit, range(*producers)
    tables = [
        context.read_shuffle(file, unit.low, unit.high, schema, (number, number + 1))
        for number in cell_numbers
    ]
    sizes = [table.num_rows for table in tables]
    cells = np.repeat(np.array(cell_numbers, np.int32), sizes)
    return pa.concat_tables([schema.empty_table(), *tables]).combine_chunks(), cells


def cell_priorities(parts: Sequence[Part], prefer: Sequence[str]) -> Int64s:
    """Return the rank of each cell: by preference for its source, then in reading order."""
    ranks = {name: rank for rank, name in enumerate(prefer)}
    preferences = [ranks.get(part.source, len(ranks)) for part in parts]
    return np.argsort(np.argsort(preferences, kind="stable"))


def _add_ledger(
    context: PassContext,
    view: View,
    rules: Sequence[str],
    outcome: SegmentOutcome,
    bounds: Float64s,
) -> None:
    """Add a row of the ledger for each document that is dropped, or that something is cut from.

    A document that is only cut gets the first rule; `bounds` has the threshold of each rule.
    """
    codes = outcome.codes
    for action, is_chosen in (("cut", (outcome.num_cut > 0) & (codes == 0)), ("drop", codes > 0)):
        rows = np.flatnonzero(is_chosen)
        if len(rows) == 0:
            continue
        rule = np.maximum(codes[rows], 1) - 1
        entries = Entries.of(
            view.batch,
            rows,
            context.label,
            pa.array(rules).take(pa.array(rule)),
            outcome.measured[rule, rows],
            bounds[rule],
            action=action,
            spans=span_lists(*outcome.spans, view.num_docs).take(pa.array(rows)),
        )
        context.add_ledger(entries)

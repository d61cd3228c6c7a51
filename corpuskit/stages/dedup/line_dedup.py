"""Repeated lines and paragraphs, by hash."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import Field

from corpuskit.formats.batch import numbers, span_lists
from corpuskit.formats.ledger import Entries
from corpuskit.kernels.lines import cut_units
from corpuskit.kernels.unionfind import first_of_group
from corpuskit.stage import Cost, GlobalStage, Pass, Unit
from corpuskit.stages import _routing
from corpuskit.stages.dedup import _clusters, _lines
from corpuskit.stages.dedup._scope import check_scope, scope_columns, scope_hashes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from corpuskit.formats.batch import Number
    from corpuskit.formats.manifest import Part
    from corpuskit.stage import Known, PassContext, PassPlan, View, Volume

_UNITS = pa.schema([("hash", pa.uint64()), ("hash_low", pa.uint32()), ("count", pa.uint32())])

_DEALT = pa.schema([*_UNITS, ("cell", pa.int32())])
"""Units of many cells: `cell` is the place among the parts of the run that `hash` has written."""

_REPEATED = pa.schema(
    [
        ("cell", pa.int64()),
        ("hash", pa.uint64()),
        ("hash_low", pa.uint32()),
        ("is_home", pa.bool_()),
    ]
)
"""What goes back: a unit that is repeated, to each cell that has it, and to whom the first."""

_UNCLEAR = "units_with_equal_first_hashes"
"""Counter of different units of one cell: odds of 3e-8 per million units."""

_ROW_BYTES = 120
"""Memory of a row of the pass `count`: 71 where a third are repeated, more where all are."""

_REPEATED_BYTES = 100
"""Memory of a row of _REPEATED while it is routed."""

_UNIT_BYTES = {"line": 120, "paragraph": 300}
"""Bytes of text per different unit of a cell of 64 MB, where units have 20 bytes at least."""


class LineDedup(GlobalStage):
    r"""Cut lines or paragraphs that occur in many documents: menus, notices, headers.

    A line ends with \n or \r\n (and with no other character: U+2028 does not end one); a paragraph
    is a run of lines between blank ones. Units that are shorter than `min_bytes` are never
    repeated: in technical English half of all lines are repeats, most of them a word or a bracket.

    What stays of a text are its other units, joined as they were: where units were cut between two
    that stay, one separator stays, the longer of the first and the last, so no blank lines pile up.
    A text ends with a newline if it did before.

    With the defaults a line goes that is in 6 documents or more, but for the first. With
    `min_count: 2` it is classical line deduplication; CCNet's is that with `normalize: ccnet` and
    `keep: none`, within each of its shards. `scope` can be any column, `id` too: then lines are
    compared within one document (with `count: occurrences`).

    Units are compared by 96 bits of two XXH64: among 1e12 different units one false pair is to be
    expected with odds of 6e-6, with 64 bits it would be 27,000 pairs. Adds `repeated_units`, how
    many units of a document are repeated, those that stay not counted, and `repeated_ratio`, their
    share of the bytes of all its units.

    Source: CCNet (Wenzek et al. 2020), section 3.1; Llama 3 (2024), section 3.1.1, for a threshold
    of 6 (occurrences there); Dolma (Soldaini et al. 2024), its paragraph Bloom filter, keeps the
    first and cuts what a filter takes for known, the result depends on the order of reading.
    """

    rules = ("repeated_line", "mostly_repeated", "too_little_left")
    bounds: ClassVar[Mapping[str, str]] = {
        "mostly_repeated": "max_ratio",
        "too_little_left": "min_document",
    }

    unit: _lines.Unit = "line"
    """What is compared: each line that is not blank, or each run of such lines."""
    normalize: _lines.Normalize = "none"
    """Compare bytes as they are, in lower case without digits and with single spaces, or as CCNet.
    """
    min_bytes: int = Field(20, ge=1)
    """Units with fewer bytes, as they are compared, are never repeated."""
    min_words: int = Field(0, ge=0)
    """Units with fewer words are never repeated; words are what stands between whitespace."""
    min_count: int = Field(6, ge=2, le=1 << 31)
    """A unit is repeated if it is met at least so many times."""
    count: Literal["documents", "occurrences"] = "documents"
    """What counts: a document that has the unit, however often, or each place where it is."""
    keep: Literal["first", "none"] = "first"
    """What stays of a repeated unit: all places in the first document (with `count: occurrences`
    only the first place), or nothing."""
    prefer: tuple[str, ...] = Field((), max_length=250)
    """Sources whose documents count as first, the most preferred one first; then reading order."""
    scope: str = "global"
    """Within which documents units are compared: all, or those with one value of a column."""
    action: Literal["cut", "annotate"] = "cut"
    """Cut what is repeated, or only measure it."""
    min_document: int = Field(200, ge=0)
    """Drop documents of which fewer bytes are left after something was cut."""
    max_ratio: float | None = Field(None, ge=0, le=1)
    """Drop documents with a larger `repeated_ratio` than this; null drops none."""

    def needs(self) -> tuple[str, ...]:
        return scope_columns(self.scope)

    def adds(self) -> Mapping[str, pa.DataType]:
        return {"repeated_units": pa.int32(), "repeated_ratio": pa.float64()}

    def check(self, known: Known) -> None:
        check_scope(known, self.scope)
        for name in self.prefer:
            known.check_source("prefer", name)

    def passes(self) -> tuple[Pass, ...]:
        return (
            Pass("hash", self.hash_cell),
            Pass("deal", self.deal_units, self.cut_deals),
            Pass("count", self.count_range, self.cut_ranges),
            Pass("route", self.route_repeated, self.cut_routes),
            Pass("apply", self.apply_cuts),
        )

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        unit_bytes = _UNIT_BYTES[self.unit]
        units, cell_units = volume.text_bytes // unit_bytes, volume.cell_bytes // unit_bytes
        repeated = units // 4
        cpu = volume.text_bytes / (200e6 if self.normalize == "none" else 120e6)
        if pass_name == "hash":
            held = 80 * min(cell_units + _lines.WAITING_UNITS, 2 * cell_units)
            return Cost(cpu, unit_bytes=held, disk_bytes=16 * units)
        each = min(max(volume.task_memory_bytes // _ROW_BYTES, 1), _clusters.RANGE_ROWS)
        ranges = max(-(-units // each), 1)
        is_dealt = volume.cells * ranges > _routing.MAX_OPENS
        if pass_name == "deal":
            if not is_dealt:
                return Cost(units=0)
            held = min(volume.task_memory_bytes, units * _ROW_BYTES)
            pieces = max(-(-units * _ROW_BYTES // max(held, 1)), 1)
            return Cost(units / 3e6, unit_bytes=held, disk_bytes=20 * units, units=pieces)
        if pass_name == "count":
            held = min(units, each) * _ROW_BYTES
            return Cost(units / 6e6, unit_bytes=held, disk_bytes=21 * repeated, units=ranges)
        if pass_name == "route":
            if not is_dealt:
                return Cost(units=0)
            size = repeated * _REPEATED_BYTES
            held = min(volume.task_memory_bytes, size)
            pieces = max(-(-size // max(held, 1)), 1)
            return Cost(repeated / 2e6, unit_bytes=held, disk_bytes=21 * repeated, units=pieces)
        # A sidecar, and rows of the ledger with spans.
        disk = 60 * volume.documents + 20 * repeated
        return Cost(cpu, unit_bytes=60 * cell_units // 4, disk_bytes=disk)

    def hash_cell(self, context: PassContext) -> None:
        """Write the hashes of a cell's units and how often each is met there."""
        tally = _lines.Tally(self._limits, by_document=self.count == "documents")
        for view in context.read("text", *self.needs()):
            tally.add(self._units(view))
        high, low, counts = tally.totals()
        if unclear := np.count_nonzero(high[1:] == high[:-1]):
            context.count(_UNCLEAR, int(unclear))
        columns = {"hash": high, "hash_low": low, "count": counts}
        context.write_shuffle("units", columns, is_sorted=True)

    def cut_deals(self, plan: PassPlan) -> list[Unit]:
        """Return groups of cells in ranges of hashes where there are very many, else none."""
        parts, ranges = plan.parts("hash/units"), self.cut_ranges(plan)
        rows = -(-sum(part.rows for part in parts) // len(ranges))
        wanted = [dataclasses.replace(one, rows=rows) for one in ranges]
        return _routing.cut_routes(parts, wanted, _ROW_BYTES, plan.memory_bytes)

    def deal_units(self, context: PassContext) -> None:
        """Merge the units that a group of cells has in a range of hashes."""
        context.count(f"{_routing.ROUTED}/units")
        rows, cells = _read_units(context, context.unit.producers or (0, 0))
        columns = {name: rows.column(name) for name in _UNITS.names}
        context.write_shuffle("units", {**columns, "cell": cells})

    def cut_ranges(self, plan: PassPlan) -> list[Unit]:
        """Return hash ranges whose rows a task can hold."""
        return _clusters.hash_units(plan, "hash/units", _ROW_BYTES)

    def count_range(self, context: PassContext) -> None:
        """Find the units of a hash range that are repeated, and the cell that has the first."""
        unit, parts = context.unit, context.parts("hash/units")
        is_dealt = f"{_routing.ROUTED}/units" in context.counters("deal")
        if is_dealt:
            rows = context.read_shuffle("deal/units", unit.low, unit.high, _DEALT).combine_chunks()
            cells = numbers(rows.column("cell"))
        else:
            rows, cells = _read_units(context, (0, len(parts)))
        high, low = numbers(rows.column("hash")), numbers(rows.column("hash_low"))
        places = _frozen(self._places(parts)[cells])
        first = first_of_group(high, _frozen(low.astype(np.uint64)), places)
        totals = np.bincount(first, weights=numbers(rows.column("count")), minlength=len(first))
        repeated = np.flatnonzero(totals[first] >= self.min_count)
        is_first = first[repeated] == repeated
        context.count("repeated_units", int(is_first.sum()))
        columns = {
            "cell": np.array([part.unit for part in parts], np.int64)[cells[repeated]],
            "hash": high[repeated],
            "hash_low": low[repeated],
            "is_home": is_first & (self.keep == "first"),
        }
        context.write_shuffle("repeated", columns, is_sorted=not is_dealt)

    def _places(self, parts: Sequence[Part]) -> NDArray[np.int64]:
        """Return where cells stand in line to keep a unit: by preference, then reading order."""
        order = {name: place for place, name in enumerate(self.prefer)}
        favours = [order.get(part.source, len(order)) for part in parts]
        places = np.empty(len(parts), np.int64)
        places[np.argsort(np.array(favours, np.int64), kind="stable")] = np.arange(len(parts))
        return places

    def cut_routes(self, plan: PassPlan) -> list[Unit]:
        """Return ranges of cells where there are very many, else none."""
        cells = [Unit(c.number, "", c.number, c.number + 1, c.rows) for c in plan.cells()]
        producers = plan.parts("count/repeated")
        return _routing.cut_routes(producers, cells, _REPEATED_BYTES, plan.memory_bytes)

    def route_repeated(self, context: PassContext) -> None:
        """Merge what goes back to a range of cells."""
        _routing.route(context, "count/repeated", "repeated", _REPEATED)

    def apply_cuts(self, context: PassContext) -> None:
        """Write the sidecar and the ledger."""
        keys, _ = context.part_keys()
        keep = np.ones(len(keys), np.bool_)
        units, ratios = np.zeros(len(keys), np.int32), np.zeros(len(keys))
        spans = [_Spans(*(np.empty(0, np.int64) for _ in range(3)))]
        for view, found in self._cuts(context):
            places = np.searchsorted(keys, view.keys)
            units[places], ratios[places] = found.units, found.ratios
            if self.action == "cut":
                codes = self._decide(view, found)
                keep[places] = codes == 0
                self._add_ledger(context, view, found, codes)
                kept = found.spans.of(codes[found.spans.rows] == 0)
                spans.append(kept._replace(rows=places[kept.rows]))
        columns = {"repeated_units": pa.array(units), "repeated_ratio": pa.array(ratios)}
        rows, starts, ends = (np.concatenate(column) for column in zip(*spans, strict=True))
        cuts = span_lists(rows, starts, ends, len(keys)) if len(rows) else None
        context.write_sidecar(keep, columns, cuts)

    def _cuts(self, context: PassContext) -> Iterator[tuple[View, _Found]]:
        """Yield the documents of a cell and what is repeated in them; nothing if nothing is."""
        number = context.unit.number
        run = _routing.routed(context, "count/repeated", "repeated")
        rows = context.read_shuffle(run, number, number + 1, _REPEATED).combine_chunks()
        if rows.num_rows == 0:
            return
        repeated = _lines.Repeated(
            numbers(rows.column("hash")),
            numbers(rows.column("hash_low")),
            numbers(rows.column("is_home")),
            self._limits,
            by_document=self.count == "documents",
            is_clear=not context.counters("hash").get(_UNCLEAR),
        )
        for view in context.read(*dict.fromkeys(["id", "source", "text", *self.needs()])):
            units = self._units(view)
            is_cut = repeated.find(units)
            *spans, sums = cut_units(*view.text, units.docs, units.starts, units.ends, is_cut)
            ratios = sums[:, 1] / np.maximum(sums[:, 2], 1)
            left = view.text.sizes() - sums[:, 3]
            yield view, _Found(_Spans(*spans), sums[:, 0], ratios, left)

    @property
    def _limits(self) -> _lines.Limits:
        return _lines.Limits(self.min_bytes, self.min_words)

    def _units(self, view: View) -> _lines.Units:
        return _lines.find(view, self.unit, self.normalize, scope_hashes(view, self.scope))

    def _decide(self, view: View, found: _Found) -> NDArray[np.uint8]:
        """Return which documents go, (N,): 0, or the number of the rule."""
        codes = np.zeros(view.num_docs, np.uint8)
        has_cuts = found.units > 0
        codes[has_cuts & (found.left < self.min_document)] = 3
        if self.max_ratio is not None:
            codes[found.ratios > self.max_ratio] = 2
        return codes

    def _add_ledger(
        self, context: PassContext, view: View, found: _Found, codes: NDArray[np.uint8]
    ) -> None:
        """Add a row per document that something was cut from, or that is dropped."""
        bounds = np.array([np.nan, self.threshold("mostly_repeated"), float(self.min_document)])
        measured = np.stack([found.units, found.ratios, found.left])
        for action in ("cut", "drop"):
            rows = np.flatnonzero((found.units > 0) & ((codes == 0) == (action == "cut")))
            if len(rows) == 0:
                continue
            rule = np.maximum(codes[rows], 1) - 1
            batch = view.batch.select(["id", "source", "text"]).take(pa.array(rows))
            spans = span_lists(*found.spans, view.num_docs).take(pa.array(rows))
            context.add_ledger(
                Entries(
                    keys=view.keys[rows],
                    ids=batch.column("id"),
                    sources=batch.column("source"),
                    stage=context.label,
                    rules=pa.array(self.rules).take(pa.array(rule)),
                    action=action,
                    values=measured[rule, rows],
                    thresholds=bounds[rule],
                    spans=spans,
                    texts=batch.column("text"),
                )
            )


class _Spans(NamedTuple):
    """Spans of N documents, sorted and disjoint: document, and bytes from its beginning."""

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def of(self, chosen: NDArray[np.bool_]) -> _Spans:
        """Return some of them."""
        return _Spans(*(column[chosen] for column in self))


class _Found(NamedTuple):
    """What is repeated in the N documents of a view.

    Attributes:
        units, ratios: (N,) the columns.
        left: (N,) bytes of the text that are in no span.
    """

    spans: _Spans
    units: NDArray[np.int64]
    ratios: NDArray[np.float64]
    left: NDArray[np.int64]


def _read_units(
    context: PassContext, producers: tuple[int, int]
) -> tuple[pa.Table, NDArray[np.int32]]:
    """Return the units in this range of hashes of some cells, and the cell of each, ascending."""
    unit, numbers_of = context.unit, range(*producers)
    tables = [
        context.read_shuffle("hash/units", unit.low, unit.high, _UNITS, (number, number + 1))
        for number in numbers_of
    ]
    sizes = [table.num_rows for table in tables]
    cells = np.repeat(np.array(numbers_of, np.int32), sizes)
    return pa.concat_tables([_UNITS.empty_table(), *tables]).combine_chunks(), cells


def _frozen(array: NDArray[Number]) -> NDArray[Number]:
    """Make read-only, as columns of Arrow are: each kind of array compiles the kernel once more."""
    array.flags.writeable = False
    return array

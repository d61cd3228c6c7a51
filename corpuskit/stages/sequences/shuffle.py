"""Packed rows in the order in which a run reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from corpuskit.errors import DataError, UsageError
from corpuskit.formats.batch import numbers
from corpuskit.formats.shards import TOKEN_GROUP_ROWS, open_parquet, write_tokens
from corpuskit.kernels.arrays import Int64s
from corpuskit.loader.order import permute
from corpuskit.stage import Cost, GlobalStage, Pass, PassContext, PassPlan, Unit, Volume
from corpuskit.stages import _routing
from corpuskit.stages.sequences._rows import packed_schema, packed_size
from corpuskit.storage import Readable, open_whole

PART_BYTES = 64 << 20
"""Tokens in a part, unless `rows_per_part` says otherwise; also what is sorted at a time."""


ROUTE_COPIES = 4
"""Memory of a row while it is routed, in sizes of its tokens: read, joined, sorted, written."""


class Shuffle(GlobalStage):
    """Permute the packed rows of each source, over all of it, and write the token shards.

    Where a row goes depends on the seed, the source's name, its number of rows and the row's
    position among them: not on cells, tasks or other sources. With rows in random order, training
    reads a source from front to back in its first epoch. `bands` is a curriculum: in the first
    epoch of a source all rows of the first band of `pack` come before those of the second, each
    band in random order; later epochs are in random order over all of it.

    Source: cycle-walking Feistel permutation (Black and Rogaway 2002, Ciphers with Arbitrary Finite
    Domains), as the loader's: docs/formats.md, Order.
    """

    reads = "packed"

    order: Literal["global", "as_read", "bands"] = "global"
    """`global` permutes all rows of a source, `bands` those of each band, `as_read` none."""
    direction: Literal["ascending", "descending"] = "ascending"
    """Which band comes first: that of the lowest values, or of the highest."""
    seed: int | None = Field(None, ge=0)
    """Of the permutation; null takes the seed of the run."""
    rows_per_part: int | None = Field(None, ge=1)
    """Rows in a part; null makes parts of about 64 MiB."""

    def provides(self, provided: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.order == "bands" and "bands" not in provided["packing"]:
            raise UsageError("order: bands needs bands to order. Set pack.bands, or order: global.")
        if self.direction == "descending" and self.order != "bands":
            raise UsageError(f"direction orders bands; order is {self.order}. Set order: bands.")
        return {"shuffle": {"order": self.order}}

    def passes(self) -> tuple[Pass, ...]:
        return (
            Pass("scatter", self._scatter, self._scatter_units),
            Pass("route", self._route, self._route_units),
            Pass(
                "gather",
                self._gather,
                self._gather_units,
                owns=("tokens/",),
                done_with=("scatter/", "route/"),
            ),
        )

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        size = packed_size(volume)
        width = packed_schema(volume.given).field("tokens").type.byte_width
        target = min(self._rows_per_part(volume.given) * width, size)
        num = -(-size // max(target, 1))
        if pass_name == "scatter":
            cell = size * volume.cell_bytes // max(volume.text_bytes, 1)
            memory = 2 * min(cell, PART_BYTES)
            return Cost(cpu_seconds=size / 250e6, unit_bytes=memory, disk_bytes=size + size // 64)
        if pass_name == "route":
            return _routing.cost_of_route(volume, num, ROUTE_COPIES * size, size / 250e6, size)
        disk = size + 48 * volume.documents  # `doc_rows`
        return Cost(cpu_seconds=size / 200e6, unit_bytes=2 * target, disk_bytes=disk, units=num)

    def _scatter_units(self, plan: PassPlan) -> list[Unit]:
        """Return the cells; low and high are the rows of the source, or band, that each holds."""
        ends: dict[tuple[str, int], int] = {}
        units = []
        for number, cell in enumerate(
            sorted(plan.cells(), key=lambda cell: (cell.number, _band(cell)))
        ):
            order = (cell.source, _band(cell) if self.order == "bands" else 0)
            low = ends.get(order, 0)
            high = ends[order] = low + cell.rows
            if "bands" in plan.given["packing"]:  # the bands of a cell have the same number
                cell = dataclasses.replace(cell, number=number)
            units.append(dataclasses.replace(cell, low=low, high=high))
        return units

    def _scatter(self, context: PassContext) -> None:
        """Write the rows of a cell, sorted by where they go: PART_BYTES at a time, a file each."""
        unit = context.unit
        assert unit.part is not None, "a cell of packed rows has a part"
        source, low = unit.source, unit.low
        for table in _read_rows(context.path(unit.part), context.given):
            positions = self._positions(context, np.arange(low, low + len(table)))
            low += len(table)
            order = np.argsort(positions)
            sorted_rows = table.take(pa.array(order)).combine_chunks()
            columns = {name: sorted_rows.column(name).chunk(0) for name in sorted_rows.column_names}
            context.write_shuffle(
                f"rows-{source}", {"place": positions[order], **columns}, is_sorted=True
            )
        if low != unit.high:
            raise DataError(
                f"{unit.part.path}: {low - unit.low} rows, its seal says {unit.rows}. Run again."
            )

    def _positions(self, context: PassContext, rows: Int64s) -> Int64s:
        """Return where rows go in their source; `rows` are numbered in it, or in their band."""
        source, counters = context.unit.source, context.counters("pack")
        seed = context.seed if self.seed is None else self.seed
        if self.order == "as_read":
            return rows
        if self.order == "global":
            return permute(rows, counters[f"rows/{source}"], seed, "shuffle", source)
        band, num_bands = _band(context.unit), context.given["packing"]["bands"]
        sizes = [counters.get(f"band_rows/{number}/{source}", 0) for number in range(num_bands)]
        preceding = sizes[:band] if self.direction == "ascending" else sizes[band + 1 :]
        return sum(preceding) + permute(rows, sizes[band], seed, "shuffle", source, "band", band)

    def _route_units(self, plan: PassPlan) -> list[Unit]:
        """Return ranges of rows of one source each, where there are very many parts to read."""
        units: list[Unit] = []
        parts = self._gather_units(plan)
        for source in dict.fromkeys(part.source for part in parts):
            units += _routing.cut_routes(
                plan.parts(f"scatter/rows-{source}"),
                [part for part in parts if part.source == source],
                ROUTE_COPIES * packed_schema(plan.given).field("tokens").type.byte_width,
                plan.memory_bytes,
            )
        return [dataclasses.replace(unit, number=number) for number, unit in enumerate(units)]

    def _route(self, context: PassContext) -> None:
        """Merge the rows that go to a range of positions."""
        _routing.route(context, *_rows_file(context.unit.source, context.given))

    def _gather_units(self, plan: PassPlan) -> list[Unit]:
        """Return the output parts: ranges of rows, source after source."""
        step = self._rows_per_part(plan.given)
        counters = plan.counters("pack")
        sources = dict.fromkeys(cell.source for cell in plan.cells())
        return [
            Unit(number, source, low, high, high - low)
            for number, (source, low, high) in enumerate(
                (source, low, min(low + step, counters[f"rows/{source}"]))
                for source in sources
                for low in range(0, counters[f"rows/{source}"], step)
            )
        ]

    def _rows_per_part(self, provided: Mapping[str, Any]) -> int:
        if self.rows_per_part is not None:
            return self.rows_per_part
        width = provided["packing"]["seq_len"] + 1
        rows = PART_BYTES // (width * np.dtype(provided["tokenizer"]["dtype"]).itemsize)
        return int(max(rows - rows % TOKEN_GROUP_ROWS, TOKEN_GROUP_ROWS))

    def _gather(self, context: PassContext) -> None:
        """Write one part of the token shards, and in which rows its documents are."""
        unit = context.unit
        shuffled = self.order != "as_read"
        schema = packed_schema(
            context.given, source=unit.source, shuffled=shuffled, first_row=unit.low
        )
        file, stored_schema = _rows_file(unit.source, context.given)
        file = _routing.routed_file(context, file, "route")
        stored = context.read_shuffle(file, unit.low, unit.high, stored_schema)
        stored = stored.take(pa.array(np.argsort(stored.column("place").to_numpy())))
        if not np.array_equal(stored.column("place"), np.arange(unit.low, unit.high)):
            raise DataError(
                f"shuffle: rows {unit.low} to {unit.high} of source {unit.source!r} are not each "
                "there once. Run again."
            )
        columns = [stored.column(name) for name in schema.names]
        table = pa.Table.from_arrays(columns, schema=schema)
        context.write_part(
            "tokens",
            f"tokens/{unit.source}",
            lambda path: write_tokens(path, table),
            source=unit.source,
            rows=len(table),
            first=unit.low,
            last=unit.high - 1,
        )
        context.write_shuffle(
            "doc_rows", _doc_rows(table, unit.low, context.given["packing"]["seq_len"] + 1)
        )


def _band(cell: Unit) -> int:
    """Return the band whose rows a cell of packed rows holds; 0 if there are none."""
    assert cell.part is not None, "a cell of packed rows has a part"
    return cell.part.first


def _rows_file(source: str, provided: Mapping[str, Any]) -> tuple[str, pa.Schema]:
    """Return name and schema of the shuffle file that carries the rows of a source."""
    fields = [("place", pa.int64()), *((f.name, f.type) for f in packed_schema(provided))]
    return f"scatter/rows-{source}", pa.schema(fields)


def _read_rows(path: Readable, provided: Mapping[str, Any]) -> Iterator[pa.Table]:
    """Yield the rows of a packed part, about PART_BYTES at a time, page CRCs checked."""
    width = packed_schema(provided).field("tokens").type.byte_width
    step = max(PART_BYTES // (width * TOKEN_GROUP_ROWS), 1)
    try:
        with open_whole(path) as source, open_parquet(source, path) as file:
            for first in range(0, file.num_row_groups, step):
                groups = range(first, min(first + step, file.num_row_groups))
                yield file.read_row_groups(list(groups), use_threads=False)
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(f"{path}: not a whole part of packed rows: {error}.") from None


def _doc_rows(table: pa.Table, first_row: int, width: int) -> dict[str, NDArray[np.generic]]:
    """Return the columns of `doc_rows`: one entry per document and row that it is in."""
    rows = table.combine_chunks()
    keys, starts = (rows.column(name).chunk(0) for name in ("doc_keys", "doc_starts"))
    bounds = keys.offsets.to_numpy()
    begins = starts.flatten().to_numpy()
    ends = np.append(begins[1:], 0)
    ends[bounds[1:] - bounds[0] - 1] = width
    columns = {
        "key": numbers(keys.flatten()),
        "row": np.repeat(np.arange(first_row, first_row + len(table)), np.diff(bounds)),
        "first_token": begins,
        "num_tokens": (ends - begins).astype(np.int32),
    }
    is_document = columns["key"] >= 0
    return {name: values[is_document] for name, values in columns.items()}

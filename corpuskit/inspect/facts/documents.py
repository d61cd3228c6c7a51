"""Documents by key, and a few of those that are kept."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.formats.shards import open_parquet, read_documents, read_sidecars
from corpuskit.inspect.cells import documents_of
from corpuskit.storage import open_place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import Sealed
    from corpuskit.stage import Unit

PARTS_PER_SOURCE = 4
"""Document shards that kept documents are taken from, one row group of each."""


@dataclasses.dataclass(frozen=True)
class Kept:
    """A document that is kept so far."""

    key: int
    id: str
    source: str
    url: str | None
    text: str


def names_of(run: RunDirectory, phase: Phase, keys: Sequence[int]) -> dict[int, str]:
    """Return the ids of documents that a phase read."""
    return _column(run, phase, keys, "id")


def texts_of(run: RunDirectory, phase: Phase, keys: Sequence[int]) -> dict[int, str]:
    """Return the texts of documents as a phase read them."""
    return _column(run, phase, keys, "text")


def _column(run: RunDirectory, phase: Phase, keys: Sequence[int], name: str) -> dict[int, str]:
    """Return a column of the documents with these keys, as a phase read them."""
    found: dict[int, str] = {}
    for some in documents_of(run, phase, keys, ["key", name]):
        values = some.column(name).to_pylist()
        found |= dict(zip(some.column("key").to_pylist(), values, strict=True))
    return found


def kept_documents(run: RunDirectory, finished: Sealed, num: int, seed: int) -> list[Kept]:
    """Return documents of each source that nothing has dropped so far.

    Args:
        num: of each source, from PARTS_PER_SOURCE shards at most.

    Raises:
        DataError: a shard or a sidecar cannot be read.
    """
    cells, masks = _last_cells(run, finished)
    by_source: defaultdict[str, list[Unit]] = defaultdict(list)
    for cell in cells:
        by_source[cell.source].append(cell)
    rng = np.random.default_rng(seed)
    found: list[Kept] = []
    for _, mine in sorted(by_source.items()):
        chosen = mine[:: max(-(-len(mine) // PARTS_PER_SOURCE), 1)]
        each = max(-(-num // len(chosen)), 1)
        some: list[Kept] = []
        for cell in chosen:
            with contextlib.suppress(FileNotFoundError):  # a run that goes on has replaced it
                some += _some(run, cell, masks, each, rng)
        found += some[:num]
    return found


def _last_cells(run: RunDirectory, finished: Sealed) -> tuple[list[Unit], list[int]]:
    """Return the last document shards as cells, and the phases whose sidecars apply to them."""
    from corpuskit.stage import Unit

    cells: list[Unit] = []
    masks: list[int] = []
    for phase, seal in finished:
        parts = seal.by_role("documents")
        if phase.is_stream and len(parts):
            there = [part for part in parts if run.store.exists(part.path)]
            cells = [Unit(p.unit, p.source, p.first, p.last + 1, p.rows, 0, p) for p in there]
            masks = []
        elif not phase.is_stream and len(seal.by_role("sidecar")):
            masks.append(phase.index)
    return cells, masks


def _some(
    run: RunDirectory, cell: Unit, masks: Sequence[int], num: int, rng: np.random.Generator
) -> Iterator[Kept]:
    """Yield documents of one row group of a shard."""
    assert cell.part is not None, "cells have parts"
    place = run.at(cell.part)
    sidecars = [run.at(p) for index in masks for p in run.sidecars(index, cell.number)]
    keep = read_sidecars(sidecars).keep
    with open_place(place) as source, open_parquet(source, place) as file:
        group = int(rng.integers(file.num_row_groups))
        first = sum(file.metadata.row_group(g).num_rows for g in range(group))
        keys = file.read_row_group(group, columns=["key"], use_threads=False).column("key")
    alive = np.arange(len(keys))
    if keep is not None:
        alive = np.flatnonzero(keep[first : first + len(keys)])
    if len(alive) == 0:
        return
    rows = np.sort(rng.choice(alive, min(num, len(alive)), replace=False))
    wanted = keys.to_numpy()[rows]
    columns = ["key", "id", "source", "origin", "text"]
    for batch in read_documents(place, columns, sidecars=sidecars, keys=wanted):
        mine = batch.filter(pc.is_in(batch.column("key"), pa.array(wanted)))
        for row in mine.to_pylist():
            yield _kept(row)


def _kept(row: dict[str, Any]) -> Kept:
    return Kept(row["key"], row["id"], row["source"], row["origin"]["url"], row["text"])

"""Some documents of a run, as a phase read them: from the cells that have them, and no others."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.engine.context import cell_sidecars
from corpuskit.formats.shards import read_documents

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory


def documents_of(
    run: RunDirectory, phase: Phase, keys: Collection[int], columns: list[str] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the documents with these keys as a phase read them, masks and cuts applied.

    Those of the phase that reads the input, and of parts that somebody has deleted, are left out.

    Args:
        columns: `key` must be among them; None = all.
    """
    if phase.base is None or not keys:
        return
    cells = run.cells(phase)
    lows = np.array([cell.low for cell in cells], np.int64)
    by_cell: defaultdict[int, list[int]] = defaultdict(list)
    for key in keys:
        place = int(np.searchsorted(lows, key, "right")) - 1
        if place >= 0 and key < cells[place].high:
            by_cell[place].append(key)
    for place, mine in sorted(by_cell.items()):
        cell = cells[place]
        assert cell.part is not None, "cells have parts"
        if not run.store.exists(cell.part.path):
            continue
        wanted = np.array(sorted(mine), np.int64)
        sidecars = cell_sidecars(run, phase, cell)
        path = run.at(cell.part)
        for batch in read_documents(path, columns, sidecars=sidecars, keys=wanted):
            some = batch.filter(pc.is_in(batch.column("key"), pa.array(wanted)))
            if len(some):
                yield some

"""Documents nearest to a threshold: what it cuts, and what it just about spares."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.formats.batch import numbers
from corpuskit.formats.ledger import sampled
from corpuskit.inspect.tune.moved import texts_and_fates
from corpuskit.inspect.tune.swept import keeps

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from corpuskit.inspect.tune.measured import Measured
    from corpuskit.inspect.tune.swept import Swept


@dataclasses.dataclass(frozen=True)
class Near:
    """A document near a line, that no other rule drops.

    Attributes:
        line: the threshold.
        is_kept: by that threshold.
        text: its beginning, None where the run does not have it.
        later: `stage: rule` that dropped it afterwards, if this stage kept it in the run.
    """

    line: float
    is_kept: bool
    key: int
    id: str
    source: str
    text_bytes: int
    value: float
    text: str | None = None
    later: str | None = None


def by_source(batch: pa.RecordBatch) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return each source of a batch, and which rows are its own."""
    named = batch.column("source").dictionary_encode()
    places = named.indices.to_numpy(zero_copy_only=False)
    return [(name, places == place) for place, name in enumerate(named.dictionary.to_pylist())]


class Line:
    """The documents nearest to a threshold, on both sides and of each source."""

    def __init__(self, found: Measured, swept: Swept, value: float, wanted: int) -> None:
        self._found, self._swept, self.value, self._wanted = found, swept, value, wanted
        self._rows: dict[tuple[bool, str], list[tuple[float, bool, int, dict[str, Any]]]] = {}

    def add(
        self, batch: pa.RecordBatch, measured: NDArray[np.float64],
        alive: NDArray[np.bool_], kept: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        """Look at documents; of equally near ones those whose text is at hand come first."""
        if not self._wanted:
            return
        keys = numbers(batch.column("key"))
        far_off = ~(kept | sampled(keys, self._found.run.plan.settings.seed))
        with np.errstate(over="ignore"):
            marks = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        far = np.abs(measured - self.value)
        inside = keeps(measured, self.value, self._swept.side)
        for source, rows in by_source(batch):
            for side in (True, False):
                mine = np.flatnonzero(rows & alive & np.isfinite(measured) & (inside == side))
                order = np.lexsort((marks[mine], far_off[mine], far[mine]))[: self._wanted]
                held = self._rows.setdefault((side, source), [])
                for at in mine[order].tolist():
                    row = batch.slice(at, 1).to_pylist()[0]
                    row |= {"value": float(measured[at]), "stays": bool(kept[at])}
                    held.append((float(far[at]), bool(far_off[at]), int(marks[at]), row))
                self._rows[side, source] = sorted(held, key=lambda r: r[:3])[: self._wanted]

    def nearest(self) -> list[Near]:
        """Return the documents, kept ones first; sources take turns, nearest first."""
        chosen: list[tuple[bool, dict[str, Any]]] = []
        for side in (True, False):
            ranked = [
                (rank, far, mark, row)
                for (is_kept, _), rows in self._rows.items()
                if is_kept == side
                for rank, (far, _, mark, row) in enumerate(rows)
            ]
            first = sorted(ranked, key=lambda r: r[:3])[: self._wanted]
            chosen += [(side, row) for *_, row in sorted(first, key=lambda r: r[1:3])]
        stays = [row["key"] for _, row in chosen if row["stays"]]
        gone = [row["key"] for _, row in chosen if not row["stays"]]
        texts, fates = texts_and_fates(self._found, stays, gone)
        return [
            Near(
                self.value, side, row["key"], row["id"], row["source"], row["text_bytes"],
                row["value"], texts.get(row["key"]), fates.get(row["key"]),
            )
            for side, row in chosen
        ]  # fmt: skip

"""The share that a stage keeps as one of its bounds moves, per source, and what lies at the line.

Exact where the stage stored what it measured: one pass over that. A document that another rule
drops is kept nowhere; of the others, the measured value says from where on it is kept. So each
falls between two thresholds, and counting there is all there is to do.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from corpuskit.errors import DataError
from corpuskit.formats.batch import numbers
from corpuskit.inspect.tune.measured import batches, decide, decided, find_measured
from corpuskit.inspect.tune.near import Line, by_source
from corpuskit.inspect.tune.swept import Swept, keeps, thresholds

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.inspect.tune.measured import Measured
    from corpuskit.inspect.tune.near import Near
    from corpuskit.inspect.tune.swept import Side


@dataclasses.dataclass(frozen=True)
class SourceCurve:
    """What is kept of one source.

    Attributes:
        documents, text_bytes: that the stage saw.
        kept_documents, kept_bytes: at each threshold.
        unsure: of the kept documents, those that a rule without measures was never asked about.
    """

    documents: int
    text_bytes: int
    kept_documents: list[int]
    kept_bytes: list[int]
    unsure: list[int]


@dataclasses.dataclass(frozen=True)
class Curve:
    """Kept shares over thresholds.

    Attributes:
        rules: that the parameter bounds.
        side: `min`: values below fail; `max`: values above.
        now: the bound in the run, None = off.
        then: another one that was asked about, or None.
        values: the thresholds, ascending; `now` and `then` are among them.
        how: `exact`; or `bins`: counted by bins, and of this rule alone.
        near: documents just above and below `now` and `then`, the nearest first.
    """

    stage: str
    parameter: str
    rules: list[str]
    side: Side
    now: float | None
    then: float | None
    values: list[float]
    sources: dict[str, SourceCurve]
    how: Literal["exact", "bins"] = "exact"
    near: list[Near] = dataclasses.field(default_factory=list)

    @property
    def total(self) -> SourceCurve:
        """All sources together."""
        rows = list(self.sources.values())
        lists = {
            name: np.sum([getattr(row, name) for row in rows], axis=0).tolist()
            for name in ("kept_documents", "kept_bytes", "unsure")
        }
        return SourceCurve(sum(r.documents for r in rows), sum(r.text_bytes for r in rows), **lists)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**dataclasses.asdict(self), "total": dataclasses.asdict(self.total)}


def curve(
    run: RunDirectory, label: str, changes: Sequence[str], asked: str, *, samples: int = 5
) -> Curve:
    """Return what a stage keeps as one bound moves, exactly, from what it stored.

    Args:
        changes: `parameter=value` of other bounds, or of the same one: a line to look at.
        asked: `parameter[=first:last[:count]]`.
        samples: documents to show on either side of a line.

    Raises:
        UsageError, DataError: as `tune`; or `asked` is of another form.
    """
    return curve_of(find_measured(run, label), changes, asked, samples=samples)


def curve_of(found: Measured, changes: Sequence[str], asked: str, *, samples: int = 0) -> Curve:
    """Return the curve of what was measured; see `curve`."""
    swept = Swept(found, changes, asked)
    values = thresholds(found, swept)
    stages = [swept.at(value) for value in (values[0], values[-1])]
    kept: dict[str, NDArray[np.int64]] = defaultdict(lambda: np.zeros((3, len(values)), np.int64))
    totals: dict[str, NDArray[np.int64]] = defaultdict(lambda: np.zeros(2, np.int64))
    lines = [Line(found, swept, at, samples) for at in (swept.now, swept.then) if at is not None]
    silent = found.silent | set(swept.rules)
    for batch in batches(found):
        made = decided(found, batch)
        others, unsure = decide(stages[0], batch, silent)
        alive, measured = others == 0, swept.values_of(batch)
        for value, stage in zip((values[0], values[-1]), stages, strict=True):
            by_rules = decide(stage, batch, found.silent)[0] == 0
            _check(found, swept, batch, by_rules, alive & keeps(measured, value, swept.side))
        sizes = numbers(batch.column("text_bytes"))
        for source, rows in by_source(batch):
            totals[source] += [int(rows.sum()), int(sizes[rows].sum())]
            mine = rows & alive
            kept[source] += kept_at(
                values, measured[mine], sizes[mine], unsure[mine], side=swept.side
            )
        for line in lines:
            line.add(batch, measured, alive, made == 0)
    sources = {
        name: SourceCurve(*total.tolist(), *kept[name].tolist())
        for name, total in sorted(totals.items())
    }
    near = [one for line in lines for one in line.nearest()]
    return Curve(
        found.label, swept.target, swept.rules, swept.side, swept.now, swept.then, values, sources,
        near=near,
    )  # fmt: skip


def kept_at(
    values: Sequence[float],
    measured: NDArray[np.float64],
    sizes: NDArray[np.int64],
    unsure: NDArray[np.bool_],
    *,
    side: Side,
) -> NDArray[np.int64]:
    """Return documents, bytes of text and unsure documents that each threshold keeps.

    Args:
        values: (T,) thresholds, ascending.
        measured: (N,), of documents that no other rule drops; NaN is kept by all.
        sizes: (N,) bytes of text; their sum is below 2**53.

    Returns:
        (3, T).
    """
    num = len(values)
    if side == "min":  # places: how many thresholds keep it, the first ones
        places = np.searchsorted(values, measured, side="right")
        places = np.where(np.isnan(measured), num, places)
    else:  # how many drop it, the first ones
        places = np.where(np.isnan(measured), 0, np.searchsorted(values, measured, side="left"))
    counts = np.stack(
        [
            np.bincount(places, weights, minlength=num + 1).astype(np.int64)
            for weights in (None, sizes.astype(np.float64), unsure.astype(np.float64))
        ]
    )
    if side == "min":
        return np.cumsum(counts[:, ::-1], axis=1)[:, ::-1][:, 1:]
    return np.cumsum(counts, axis=1)[:, :-1]


def _check(
    found: Measured, swept: Swept, batch: pa.RecordBatch,
    by_rules: NDArray[np.bool_], by_value: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Check that the curve says what the rules of the stage say, at its two ends."""
    wrong = np.flatnonzero(by_rules != by_value)
    if len(wrong):
        identity = batch.column("id")[int(wrong[0])].as_py()
        raise DataError(
            f"{found.label}: {swept.target} does more than bound {', '.join(swept.rules)}, as in "
            f"{identity!r}: there is no curve of it. Use --sweep {swept.target}=first:last:count."
        )

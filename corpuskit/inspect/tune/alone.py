"""What the rules of a stage fail, each alone, from the counts that every run keeps.

For stages that stored no measures. The profile counts measured values by bins, so shares are known
at the edges of bins, and only rule by rule: which documents break two rules is not in it.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from corpuskit.engine.records import PROFILE, bins, edges
from corpuskit.errors import UsageError
from corpuskit.inspect.binned import Bins, failing, takes_whole
from corpuskit.inspect.tune.curve import Curve, SourceCurve
from corpuskit.inspect.tune.measured import Bounded, Measured, find_bounded, without_measures
from corpuskit.inspect.tune.swept import Swept
from corpuskit.storage import open_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from corpuskit.engine.rundir import RunDirectory

MOST_PARTS = 4096
"""Profile parts that are read: of larger runs evenly spaced ones, so shares stay about right."""

COLUMNS = ["what", "field", "source", "bin", "documents", "text_bytes"]


@dataclasses.dataclass(frozen=True)
class Counts:
    """What the profile counted of a stage.

    Attributes:
        seen: source -> (documents, bytes of text).
        measures: rule -> source -> bins.
        parts_read, parts: of the profile.
    """

    seen: Mapping[str, tuple[int, int]]
    measures: Mapping[str, Mapping[str, Bins]]
    parts_read: int
    parts: int


@dataclasses.dataclass(frozen=True)
class RuleAlone:
    """What one rule fails, whatever other rules do.

    Attributes:
        parameter: its bound, `name.entry` for an entry of a mapping; None = it has none.
        bound: None = off.
        at_least, at_most: documents that fail; the bound lies within a bin where they differ.
        documents: that the stage saw.
    """

    rule: str
    parameter: str | None
    bound: float | None
    at_least: int
    at_most: int
    documents: int


@dataclasses.dataclass(frozen=True)
class Alone:
    """What each rule of a stage fails alone, and how to know more."""

    stage: str
    rules: list[RuleAlone]
    parts_read: int
    parts: int
    advice: str


def rules_alone(run: RunDirectory, label: str) -> Alone:
    """Return what each rule of a stage fails alone, by its present bound.

    Raises:
        UsageError: there is no such stage, it has no bounds, or this run counted nothing of it.
    """
    found = find_bounded(run, label)
    counts = _counts(found)
    total = sum(documents for documents, _ in counts.seen.values())
    rules = []
    for rule in (one for one in found.stage.rules if one in counts.measures):
        name = found.stage.bounds.get(rule)
        bound = 0.0 if name is None else found.stage.threshold(rule)
        low = high = 0
        for counted in counts.measures[rule].values():
            is_min = name is not None and name.startswith("min")
            least, most = failing(
                counted.numbers, counted.documents, bound, is_min=is_min,
                is_whole=takes_whole(found.stage, name),
            )  # fmt: skip
            low, high = low + least, high + most
        known = None if np.isnan(bound) else bound
        rules.append(RuleAlone(rule, _parameter(found, rule), known, low, high, total))
    return Alone(label, rules, counts.parts_read, counts.parts, _advice(found))


def curve_alone(run: RunDirectory, label: str, changes: Sequence[str], asked: str) -> Curve:
    """Return the share of documents that pass one rule, whatever other rules do, by bins.

    Args:
        changes, asked: as in `curve`; a range only says which bins are shown.

    Raises:
        UsageError: as `rules_alone`; or the parameter bounds nothing that was measured.
    """
    found = find_bounded(run, label)
    counts = _counts(found)
    names = tuple(rule for rule in found.stage.rules if rule in counts.measures)
    shape = Measured(run, label, found.stage, found.seal.by_role(PROFILE), names, frozenset(), [])
    swept = Swept(shape, changes, asked)
    if len(swept.rules) > 1:
        raise UsageError(
            f"--curve {swept.target} bounds {', '.join(swept.rules)}: their bins cannot be "
            f"added up. {_advice(found)}"
        )
    by_source = counts.measures[swept.rules[0]]
    numbers = np.unique(np.concatenate([one.numbers for one in by_source.values()]))
    values, cuts = _values(numbers, swept)
    sources = {}
    for name, (documents, text_bytes) in sorted(counts.seen.items()):
        mine = by_source.get(name, Bins(*(np.zeros(0, np.int64),) * 3))
        places = np.searchsorted(mine.numbers, cuts, side="right")
        lost = []
        for weights in (mine.documents, mine.text_bytes):
            below = np.append(0, np.cumsum(weights))[places]
            lost.append(below if swept.side == "min" else weights.sum() - below)
        kept = (documents - lost[0]).tolist(), (text_bytes - lost[1]).tolist()
        sources[name] = SourceCurve(documents, text_bytes, *kept, [0] * len(values))
    return Curve(
        label, swept.target, swept.rules, swept.side, swept.now, swept.then, values, sources,
        "bins",
    )  # fmt: skip


def _values(
    numbers: NDArray[np.int64], swept: Swept
) -> tuple[list[float], NDArray[np.int64]]:  # fmt: skip
    """Return thresholds, and for each the last bin that `min` fails, or that `max` keeps.

    At the upper edge of a bin that is all up to it. A parameter that takes whole numbers has the
    next one behind the edge as `min`, and the one before it as `max`.
    """
    lows = np.append(numbers[0] - 1, numbers)
    tops = np.array([edges(int(number))[1] for number in lows])
    order = list(range(len(lows)))
    if swept.is_whole:
        tops = np.floor(tops) + (1 if swept.side == "min" else 0)
        order = order if swept.side == "min" else order[::-1]  # the last one of a number counts
    first, last = swept.range[:2] if swept.range else swept.bounds()
    values = {
        float(f"{tops[at]:.6g}") + 0.0: int(lows[at])  # -0.0 becomes 0.0
        for at in order
        if np.isfinite(tops[at]) and first <= tops[at] <= last
    }
    values |= {line: _cut(line, swept) for line in (swept.now, swept.then) if line is not None}
    if not values:
        raise UsageError(f"--curve {swept.target}: nothing was measured in this range.")
    return sorted(values), np.array([values[value] for value in sorted(values)], np.int64)


def _cut(line: float, swept: Swept) -> int:
    """Return the last bin that `min` fails as a whole, or that `max` keeps as a whole."""
    number = int(bins(np.array([line]))[0])
    top = edges(number)[1]
    is_kept = (np.floor(top) if swept.is_whole else top) <= line
    return number if swept.side == "max" and is_kept else number - 1


def _counts(found: Bounded) -> Counts:
    """Read what the profile counted.

    Raises:
        UsageError: nothing, as the run is of an earlier version.
    """
    parts = list(found.seal.by_role(PROFILE))
    chosen = parts[:: max(-(-len(parts) // MOST_PARTS), 1)]
    tables = []
    for part in chosen:
        with open_whole(found.run.at(part)) as source:
            mine = pc.field("at") == found.label
            tables.append(pq.read_table(source, columns=COLUMNS, filters=mine, partitioning=None))
    if not any(len(table) for table in tables):
        raise UsageError(without_measures(found))
    keys = ["what", "field", "source", "bin"]
    sums = (
        pa.concat_tables(tables)
        .group_by(keys, use_threads=False)
        .aggregate([("documents", "sum"), ("text_bytes", "sum")])
        .sort_by([(key, "ascending") for key in keys])
    )
    seen: dict[str, tuple[int, int]] = {}
    rows: defaultdict[str, defaultdict[str, list[tuple[int, int, int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in sums.to_pylist():
        counted = row["documents_sum"], row["text_bytes_sum"]
        if row["what"] == "seen":
            seen[row["source"]] = counted
        elif row["what"] == "measure" and row["bin"] is not None:
            rows[row["field"]][row["source"]].append((row["bin"], *counted))
    measures = {
        field: {source: Bins(*np.array(some, np.int64).T) for source, some in by.items()}
        for field, by in rows.items()
    }
    return Counts(seen, measures, len(chosen), len(parts))


def _parameter(found: Bounded, rule: str) -> str | None:
    """Return what `--curve` calls the bound of a rule."""
    name = found.stage.bounds.get(rule)
    if name is None or not isinstance(value := getattr(found.stage, name), dict):
        return name
    for key in value:
        other = found.stage.model_copy(update={name: {**value, key: 123.0}})
        if other.threshold(rule) == 123.0:
            return f"{name}.{key}"
    return name


def _advice(found: Bounded) -> str:
    return f"To know what all rules keep together: {without_measures(found)}"

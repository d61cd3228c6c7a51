"""Distributions over all documents: measures and scores, languages, domains, lengths, rewrites."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from corpuskit.engine.records import LEFT, READ, edges
from corpuskit.inspect.counts import Pair, top_names
from corpuskit.stage import StreamingStage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from corpuskit.engine.config import Step
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.inspect.counts import ProfileTotals
    from corpuskit.inspect.report.funnel import Counted
    from corpuskit.stage import Stage


MAX_BINS = 120
"""Bins of a histogram; neighbours are merged, but for the one that holds the threshold."""

MAX_DOMAINS = 200
MAX_VALUES = 100

Edges = tuple[tuple[float | None, float | None], ...]  # (low, high] of each bin, None for infinity


@dataclasses.dataclass(frozen=True)
class Failing:
    """Documents that break a bound.

    Attributes:
        at_least, at_most: by the bins; the bound lies inside of one. None without a bound.
        ledger: dropped by the rule: of documents that break several, the first rule has it.
        sources: source -> (at_least, at_most); empty without a bound.
    """

    at_least: int | None
    at_most: int | None
    ledger: int | None
    sources: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Measure:
    """What a rule measured, or a score that a stage gave, over all documents that it saw.

    Attributes:
        kind: `measure` or `score`.
        fails: the side that is dropped, `below` or `above` the threshold; None without one.
        edges, sources: of bins, and the documents in each by source.
        missing: documents without a value, by source.
        seen: documents that the stage saw.
    """

    stage: str
    name: str
    kind: str
    rule: str | None
    parameter: str | None
    threshold: float | None
    fails: str | None
    edges: Edges
    sources: dict[str, list[int]]
    missing: dict[str, int]
    seen: int
    failing: Failing


def measures(
    run: RunDirectory, counts: ProfileTotals, ledger: Counted, outdated: Collection[str] = ()
) -> list[Measure]:
    """Return the distribution of each measure and score, in plan order.

    Args:
        outdated: labels of stages that ran with other bounds than those of the plan.
    """
    rows = []
    for step in run.plan.file.steps:
        if not isinstance(step.stage, StreamingStage):
            continue
        num_seen = {
            source: pair.documents for source, pair in counts.by_source(step.label, "seen").items()
        }
        names: set[str] = set()
        for kind in ("measure", "score"):
            by_name: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
            for row in counts.rows(step.label, kind):
                by_name[row["field"]].append(row)
            listed = [rule for rule in step.stage.rules if rule in by_name]
            ranked = dict.fromkeys([*listed, *sorted(by_name)])
            rows += [
                _measure(
                    step,
                    kind,
                    name,
                    by_name[name],
                    num_seen,
                    ledger,
                    is_outdated=step.label in outdated,
                )
                for name in ranked
                if name not in names  # a score that a rule bounds is a measure, too
            ]
            names.update(by_name)
    return rows


def _measure(
    step: Step, kind: str, name: str, rows: list[dict[str, Any]], num_seen: Mapping[str, int],
    ledger: Counted, *, is_outdated: bool,
) -> Measure:  # fmt: skip
    rule = name if name in step.stage.rules else None
    threshold, fails = (None, None) if is_outdated else _bound(step, rule)
    sums: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for row in rows:
        sums[row["source"]][row["bin"]] += row["documents"]
    drops = [
        num for (action, label, reason, _), num in ledger.items()
        if (action, label, reason) == ("drop", step.label, rule)
    ]  # fmt: skip
    parameter = step.stage.bounds.get(rule) if rule is not None else None
    by_source: dict[str, tuple[int, int]] = {}
    low = high = None
    if threshold is not None and fails is not None:
        sides = {"is_min": fails == "below", "is_whole": takes_whole(step.stage, parameter)}
        by_source = {name: failing(bins, threshold, **sides) for name, bins in sums.items()}
        low, high = (sum(ends) for ends in zip(*by_source.values(), strict=True))
    bounds, sources = histogram(sums, threshold)
    dropped = sum(drops) if rule is not None else None
    return Measure(
        stage=step.label,
        name=name,
        kind=kind,
        rule=rule,
        parameter=parameter,
        threshold=threshold,
        fails=fails,
        edges=bounds,
        sources=sources,
        missing={source: num - sum(sums[source].values()) for source, num in num_seen.items()},
        seen=sum(num_seen.values()),
        failing=Failing(low, high, dropped, by_source),
    )


def _bound(step: Step, rule: str | None) -> tuple[float | None, str | None]:
    if rule is None:
        return None, None
    threshold = step.stage.threshold(rule) if rule in step.stage.bounds else 0.0
    if math.isnan(threshold):
        return None, None
    reach = max(abs(threshold) * 1e-6, 1e-9)
    sides = step.stage.fails(rule, np.array([threshold - reach, threshold + reach]))
    return threshold, "below" if sides[0] else "above" if sides[1] else None


def failing(
    bins: Mapping[int, int], threshold: float, *, is_min: bool, is_whole: bool = False
) -> tuple[int, int]:
    """Return at least and at most how many documents break a bound, by their bins.

    Args:
        bins: number of a bin -> documents; the threshold may lie within one.
        is_min: what is below fails, else what is above.
        is_whole: only whole numbers were measured.
    """
    if not bins:
        return 0, 0
    numbers = np.array(sorted(bins), np.int64)
    documents = np.array([bins[number] for number in numbers.tolist()], np.int64)
    low, high = _ranges(numbers, is_whole=is_whole)
    if is_min:
        is_certain, is_possible = high < threshold, low < threshold
    else:
        is_certain, is_possible = low > threshold, high > threshold
    return int(documents[is_certain].sum()), int(documents[is_possible].sum())


def _ranges(
    numbers: NDArray[np.int64], *, is_whole: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the least and the greatest value that each bin can hold."""
    ranges = np.array([edges(int(number)) for number in numbers])
    low, high = np.abs(ranges[:, 0]), np.abs(ranges[:, 1])
    inner, outer = np.minimum(low, high), np.maximum(low, high)
    first = np.where(numbers == 0, 0.0, np.nextafter(inner, np.inf))
    if is_whole and (np.floor(inner) + (numbers != 0) <= np.floor(outer)).all():
        first, outer = np.ceil(first), np.floor(outer)
    return np.where(numbers < 0, -outer, first), np.where(numbers < 0, -first, outer)


def takes_whole(stage: Stage, parameter: str | None) -> bool:
    """Return whether a parameter takes whole numbers only, so that whole numbers are measured."""
    field = None if parameter is None else type(stage).model_fields.get(parameter)
    kinds = () if field is None else (field.annotation, *get_args(field.annotation))
    return int in kinds and float not in kinds


def histogram(
    sums: Mapping[str, Mapping[int, int]], threshold: float | None = None
) -> tuple[Edges, dict[str, list[int]]]:
    """Return bins, at most about MAX_BINS, and the documents in each by source."""
    present = sorted({number for counter in sums.values() for number in counter})
    step = max(-(-len(present) // MAX_BINS), 1)
    groups: list[list[int]] = []
    for number in present:
        is_bound = _contains(number, threshold)
        is_full = not groups or len(groups[-1]) >= step
        if is_full or is_bound or _contains(groups[-1][-1], threshold):
            groups.append([])
        groups[-1].append(number)
    bounds = tuple((_finite(edges(g[0])[0]), _finite(edges(g[-1])[1])) for g in groups)
    sources = {
        source: [sum(counter.get(number, 0) for number in group) for group in groups]
        for source, counter in sums.items()
    }
    return bounds, sources


def _contains(number: int, threshold: float | None) -> bool:
    if threshold is None:
        return False
    low, high = edges(number)
    return low < threshold <= high or low == high == threshold


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def lengths(counts: ProfileTotals) -> dict[str, Any]:
    """Return bytes of texts as they were read and as they are left, as JSON values."""
    sums: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for at in (READ, LEFT):
        for row in counts.rows(at, "length"):
            sums[f"{at}/{row['source']}"][row["bin"]] += row["documents"]
    bounds, counts_at = histogram(sums)
    none = [0] * len(bounds)
    names = sorted({name.partition("/")[2] for name in counts_at})
    sources = {
        name: {at: counts_at.get(f"{at}/{name}", none) for at in (READ, LEFT)} for name in names
    }
    return {**vars(counts.coverage), "edges": bounds, "sources": sources}


def domains(counts: ProfileTotals) -> dict[str, Any]:
    """Return the most frequent domains before and after, as JSON values."""
    rows = {stage: list(counts.rows(stage, "domain")) for stage in (READ, LEFT)}
    names, is_cut = top_names(rows[READ] or rows[LEFT], MAX_DOMAINS)
    listed = _by_name(rows, names)
    return {
        **vars(counts.coverage), "names": listed, "distinct_shown": len(names), "cut": is_cut
    }  # fmt: skip


def values(run: RunDirectory, counts: ProfileTotals) -> dict[str, Any]:
    """Return how frequent each value of each column of strings is, as JSON values.

    `at` is where the stage gave it, `left` what is left.
    """
    items = []
    for step in run.plan.file.steps:
        by_field: defaultdict[str, dict[str, list[dict[str, Any]]]] = defaultdict(dict)
        for row in counts.rows(step.label, "value"):
            by_field[row["field"]].setdefault("at", []).append(row)
        for row in counts.rows(LEFT, "value"):
            label, _, field = row["field"].partition(".")
            if label == step.label:
                by_field[field].setdefault("left", []).append(row)
        for field, rows in sorted(by_field.items()):
            names, _ = top_names(rows.get("at") or rows["left"], MAX_VALUES)
            items.append(
                {
                    "field": f"{step.label}.{field}", "stage": step.label, "points": sorted(rows),
                    "names": _by_name(rows, names),
                }
            )  # fmt: skip
    return {**vars(counts.coverage), "items": items}


def _by_name(
    rows: Mapping[str, Iterable[dict[str, Any]]], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return documents and bytes of each name, by source and stage; what has no name comes last."""
    kept_names = set(names)
    sums: defaultdict[str | None, dict[str, dict[str, Pair]]] = defaultdict(dict)
    for stage, stage_rows in rows.items():
        for row in stage_rows:
            name = row["name"] if row["name"] in kept_names else None
            by_stage = sums[name].setdefault(row["source"], {})
            pair = by_stage.get(stage, Pair())
            by_stage[stage] = Pair(
                pair.documents + row["documents"], pair.text_bytes + row["text_bytes"]
            )
    listed = [*names, *([None] if None in sums else [])]
    none = {stage: Pair() for stage in rows}
    return [
        {
            "name": name,
            "sources": {
                source: {stage: dataclasses.asdict(pair) for stage, pair in (none | pairs).items()}
                for source, pairs in sorted(sums[name].items())
            },
        }
        for name in listed
    ]


def rewritten(run: RunDirectory, counts: ProfileTotals) -> dict[str, Any]:
    """Return how many documents each stage rewrote and the bytes they lost, as JSON values."""
    rows = [
        {
            "stage": step.label, "source": source, "documents": pair.documents,
            "removed_bytes": pair.text_bytes,
        }
        for step in run.plan.file.steps
        for source, pair in sorted(counts.by_source(step.label, "rewritten").items())
        if pair.documents
    ]  # fmt: skip
    return {**vars(counts.coverage), "rows": rows}

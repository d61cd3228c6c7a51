"""What a stage dropped or cut: a sample of it, with the texts that are still there."""

from __future__ import annotations

import dataclasses
import heapq
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from corpuskit.batch import numbers
from corpuskit.errors import UsageError, suggest
from corpuskit.exchange import read_run
from corpuskit.ledger import SCHEMA
from corpuskit.run.context import cell_sidecars
from corpuskit.run.status import sealed
from corpuskit.shards import read_documents

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from corpuskit.manifest import Part, Seal
    from corpuskit.plan.compile import Phase
    from corpuskit.run.rundir import RunDirectory

MAX_PARTS = 200
"""Ledger parts that a sample is taken from: as many as fit the patience of a reader."""

DEFAULT_NGRAM = 5
"""Words per shingle where the stage has none of its own."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """A ledger row, and the texts it speaks of.

    Attributes:
        spans: bytes of `text`.
        text: what the stage saw; None if neither ledger nor run directory have it.
        survivor_text: of the document kept instead, if it is one of this run.
        jaccard: of the word n-grams of both texts; None without both.
    """

    key: int
    id: str
    source: str
    rule: str
    action: str
    value: float | None
    threshold: float | None
    spans: tuple[tuple[int, int], ...]
    text: str | None
    survivor_id: str | None
    survivor_text: str | None = None
    jaccard: float | None = None


@dataclasses.dataclass(frozen=True)
class Samples:
    """Samples in key order.

    Attributes:
        rules: ledger rows by rule, of the parts that were read.
        parts_read, parts: of the ledger of this stage.
    """

    stage: str
    rows: tuple[Sample, ...]
    rules: dict[str, int]
    parts_read: int
    parts: int


def find_samples(
    run: RunDirectory, stage: str = "", rule: str = "", num: int = 5, seed: int = 0
) -> Samples:
    """Return a seeded sample of what a stage dropped, cut or replaced.

    Args:
        stage: its label; empty = the last one that did any of it.
        rule: one rule only.
        num: rows.

    Raises:
        UsageError: there is no such stage, or it has no ledger rows of this rule.
    """
    phase, seal, stage = _phase_of(run, stage)
    parts = list(seal.by_role("ledger"))
    chosen = parts[:: max(-(-len(parts) // MAX_PARTS), 1)]
    counts: dict[str, int] = defaultdict(int)
    best: list[tuple[int, int, str, Part]] = []
    for part in chosen:
        rows = _ledger(run, part, stage, ["doc_key", "rule"])
        names = pc.list_element(pc.split_pattern(rows.column("rule"), ": ", max_splits=1), 0)
        for entry in names.value_counts().to_pylist():
            counts[entry["values"]] += entry["counts"]
        keys = (
            numbers(rows.column("doc_key"))[numbers(pc.equal(names, rule))]
            if rule
            else numbers(rows.column("doc_key"))
        )
        order = _shuffled(np.unique(keys), seed)
        some = [(-mark, key, part.path, part) for mark, key in order[:num]]
        best = heapq.nlargest(num, [*best, *some], key=lambda one: one[:3])
    if rule and rule not in counts:
        known = ", ".join(sorted(counts)) or "none"
        raise UsageError(f"{stage}: no ledger rows of rule {rule!r}. There are: {known}.")
    wanted: dict[str, list[int]] = defaultdict(list)
    for _, key, path, _ in best:
        wanted[path].append(key)
    found = [
        row
        for part in chosen
        if part.path in wanted
        for row in _rows(run, part, stage, rule, wanted[part.path])
    ]
    shown = _with_texts(run, phase, stage, found)
    return Samples(stage, tuple(shown), dict(sorted(counts.items())), len(chosen), len(parts))


def _phase_of(run: RunDirectory, stage: str) -> tuple[Phase, Seal, str]:
    """Return the finished phase that wrote ledger rows of a stage."""
    candidates = [
        (phase, seal, label)
        for phase, seal in sealed(run)
        for label in phase.labels
        if any(name.split("/")[1:2] == [label] for name in seal.counters) and seal.by_role("ledger")
    ]
    labels = [label for *_, label in candidates]
    if not candidates:
        raise UsageError(f"{run.store.address}: nothing was dropped, cut or replaced so far.")
    if stage and stage not in labels:
        known = [step.label for step in run.plan.file.steps]
        why = (
            "dropped and cut nothing."
            if stage in known
            else f"is no stage. {suggest(stage, known)}"
        )
        raise UsageError(f"{stage!r} {why} Stages with ledger rows: {', '.join(labels)}.")
    place = len(labels) - 1 - labels[::-1].index(stage) if stage else len(labels) - 1
    return candidates[place]


def _ledger(run: RunDirectory, part: Part, stage: str, columns: list[str] | None) -> pa.Table:
    with run.store.open(part.path) as source:
        return pq.read_table(
            source, columns=columns, filters=pc.field("stage") == stage, partitioning=None
        )


def _shuffled(keys: np.ndarray[Any, Any], seed: int) -> list[tuple[int, int]]:
    """Return (mark, key) in an order that the seed and the keys alone decide."""
    with np.errstate(over="ignore"):
        marks = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(seed)
        marks = (marks ^ (marks >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    marks >>= np.uint64(1)
    return sorted(zip(marks.tolist(), keys.tolist(), strict=True))


def _rows(
    run: RunDirectory, part: Part, stage: str, rule: str, keys: list[int]
) -> list[dict[str, Any]]:
    table = _ledger(run, part, stage, SCHEMA.names)
    table = table.filter(pc.is_in(table.column("doc_key"), pa.array(keys, pa.int64())))
    rows = table.to_pylist()
    return [row for row in rows if not rule or row["rule"].partition(": ")[0] == rule]


def _with_texts(
    run: RunDirectory, phase: Phase, stage: str, rows: list[dict[str, Any]]
) -> list[Sample]:
    """Return samples with texts, from the documents that the stage read."""
    survivors = _survivors(run, phase, stage, {row["doc_key"] for row in rows})
    keys = {row["doc_key"] for row in rows} | set(survivors.values())
    texts = _texts(run, phase, keys)
    ngram = getattr(run.plan.step(stage).stage, "ngram", DEFAULT_NGRAM)
    samples = []
    for row in sorted(rows, key=lambda row: (row["doc_key"], row["rule"])):
        text = texts.get(row["doc_key"], row["text"])
        other = None if row["survivor_id"] is None else texts.get(survivors.get(row["doc_key"], -1))
        samples.append(
            Sample(
                row["doc_key"], row["doc_id"], row["source"], row["rule"], row["action"],
                row["value"], row["threshold"],
                tuple((span["start"], span["end"]) for span in row["spans"] or ()),
                text, row["survivor_id"], other,
                None if text is None or other is None else jaccard(text, other, ngram),
            )
        )  # fmt: skip
    return samples


def _survivors(run: RunDirectory, phase: Phase, stage: str, keys: set[int]) -> dict[int, int]:
    """Return the keys of the documents that were kept instead, where they are of this run."""
    found: dict[int, int] = {}
    found_stage = run.plan.step(stage).stage
    named = found_stage.clustering() if hasattr(found_stage, "clustering") else ""
    for index in phase.earlier:
        if run.plan.phases[index].pass_name != named:
            continue
        for part in run.seal(index).by_role("run:clusters"):
            rows = read_run(run.store.at(part.path))
            mine = rows.filter(pc.is_in(rows.column("key"), pa.array(sorted(keys), pa.int64())))
            pairs = zip(mine.column("key").to_pylist(), mine.column("survivor").to_pylist(),
                        strict=True)  # fmt: skip
            found |= {key: survivor for key, survivor in pairs if survivor >= 0}
    return found


def _texts(run: RunDirectory, phase: Phase, keys: set[int]) -> dict[int, str]:
    """Return the texts of documents as the stage's phase read them."""
    if phase.base is None:
        return {}  # the input files had them; the ledger has a sample
    found: dict[int, str] = {}
    for unit in run.cells(phase):
        wanted = [key for key in keys if unit.low <= key < unit.high]
        if not wanted or unit.part is None:
            continue
        chosen = pa.array(wanted, pa.int64())
        sidecars = cell_sidecars(run, phase, unit)
        path = run.store.at(unit.part.path)
        for batch in read_documents(path, ["key", "text"], sidecars=sidecars):
            some = batch.filter(pc.is_in(batch.column("key"), chosen))
            found |= dict(zip(*(some.column(i).to_pylist() for i in (0, 1)), strict=True))
    return found


def shingles(text: str, ngram: int) -> set[tuple[str, ...]]:
    """Return the word n-grams of a text: runs of letters, digits and underscores, lower case."""
    words = re.findall(r"\w+", text.lower())
    if 0 < len(words) < ngram:
        return {tuple(words)}
    return set(zip(*(words[start:] for start in range(ngram)), strict=False))


def jaccard(one: str, other: str, ngram: int) -> float:
    """Return the Jaccard similarity of two texts, 0 if neither has a word."""
    left, right = shingles(one, ngram), shingles(other, ngram)
    return len(left & right) / max(len(left | right), 1)


def excerpts(
    text: str, spans: Sequence[tuple[int, int]], margin: int
) -> Iterable[tuple[str, str, str]]:
    """Yield (before, span, after) of spans of bytes, with at most `margin` bytes around each."""
    data = text.encode()
    for start, end in spans:
        pieces = (data[max(start - margin, 0) : start], data[start:end], data[end : end + margin])
        before, inside, after = (piece.decode(errors="ignore") for piece in pieces)
        yield before, inside, after

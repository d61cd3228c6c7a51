"""Two runs compared: plans, funnels, and documents whose outcome is not the same."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import json
import math
import os
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.engine.plan import PLAN
from corpuskit.engine.status import accounts, funnel, sealed, stage_states
from corpuskit.errors import UsageError
from corpuskit.formats.batch import POSITION_BITS, numbers, utf8
from corpuskit.inspect.archive import kept_bytes, kept_shards, read_bytes, select
from corpuskit.stage import CellStage, StreamingStage

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from numpy.typing import NDArray

    from corpuskit.engine.config import Step
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import FunnelRow, Sealed
    from corpuskit.stage import InputFile


FORMAT = 3  # of the JSON that `corpuskit diff --json` prints

TEXT_BYTES = 4 << 30
"""Bytes of both runs up to which texts of kept documents are compared without --texts."""

Kind = Literal["dropped", "kept", "rule", "held_out", "survivor", "text", "only_a", "only_b"]

KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclasses.dataclass(frozen=True)
class RunOutcome:
    """What became of documents: `kept`, `dropped`, `held_out` or `absent`."""

    outcome: str
    stage: str = ""
    rule: str = ""


@dataclasses.dataclass(frozen=True)
class OutcomeChange:
    """Documents that changed in the same way.

    Attributes:
        kind: `dropped` (kept in A only), `kept` (in B only), `rule` (dropped by another rule),
            `held_out` (in one run only), `survivor` (another duplicate was kept), `text` (kept in
            both, not the same text), `only_a`, `only_b` (the other run did not read it).
        because: what the plans say about the stages that decided; empty where they are the same:
            then something before them is not.
        sources: source -> documents.
    """

    kind: Kind
    a: RunOutcome
    b: RunOutcome
    because: str
    documents: int
    sources: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two runs.

    Attributes:
        a, b: addresses.
        notes: what is not finished, taken for granted or was not compared.
        texts_compared: whether the texts of documents that both kept were.
        sources: see `source_pairs`.
        changes: kind by kind, those of most documents first.
        totals: source -> documents in either run, kept, changed.
    """

    a: str
    b: str
    notes: tuple[str, ...]
    plan: tuple[PlanChange, ...]
    funnel: tuple[FunnelPair, ...]
    sources: tuple[dict[str, Any], ...]
    texts_compared: bool
    changes: tuple[OutcomeChange, ...]
    totals: dict[str, SourceCount]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"format": FORMAT, **dataclasses.asdict(self)}


class Side(NamedTuple):
    """One of two runs, with its finished phases."""

    run: RunDirectory
    finished: Sealed


class _Scope(NamedTuple):
    """What is compared of two runs: stages whose drops don't count, and texts or not."""

    ignored: frozenset[str]
    with_texts: bool
    notes: list[str]


def compare(run_a: RunDirectory, run_b: RunDirectory, *, texts: bool | None = None) -> Comparison:
    """Compare two runs, as far as their phases are finished.

    Documents are matched by file and position, or by their ids where files are not the same.

    Args:
        texts: compare the texts of documents that both kept; None = if they have TEXT_BYTES or
            fewer.

    Raises:
        UsageError: it is one run, they have no documents in common, or nothing is finished.
    """
    paths = [os.path.realpath(run.store.address) for run in (run_a, run_b)]
    if run_a.store.address == run_b.store.address or paths[0] == paths[1]:
        raise UsageError(f"{run_a.store.address}: is the same run twice. Name two run directories.")
    pairing = pair_files(run_a, run_b)
    if not pairing.pairs and not pairing.by_id:
        raise UsageError(_nothing_in_common(run_a, run_b))
    sides = Side(run_a, sealed(run_a)), Side(run_b, sealed(run_b))
    scope = _scope(sides, texts)
    names = OutcomeNames()
    left, right = (
        OutcomeReader(
            *side, names, ignored=scope.ignored, with_texts=scope.with_texts,
            with_ids=bool(pairing.by_id),
        )
        for side in sides
    )  # fmt: skip
    tallies = find_changes(left, right, pairing)
    if not any(count.in_both for count in tallies.sources.values()):
        raise UsageError(_nothing_in_common(run_a, run_b))
    plan = plan_changes(run_a, run_b)
    plan += library_changes(sides, plan)
    changes = sorted(
        _changes(run_a, run_b, tallies, names, plan),
        key=lambda c: (KINDS.index(c.kind), -c.documents, c.a.rule, c.b.rule),
    )
    return Comparison(
        run_a.store.address,
        run_b.store.address,
        (*scope.notes, *pairing.notes, *_more_notes(tallies, pairing)),
        tuple(plan),
        tuple(funnels(sides)),
        tuple(source_pairs(sides)),
        scope.with_texts,
        tuple(changes),
        dict(sorted(tallies.sources.items())),
    )


def _nothing_in_common(run_a: RunDirectory, run_b: RunDirectory) -> str:
    return (
        f"{run_a.store.address} and {run_b.store.address} have no documents in common: "
        "neither by source and name of input files, nor by the ids of a source that both have."
    )


def _scope(sides: Sequence[Side], texts: bool | None) -> _Scope:
    """Return what can be compared, and notes about the rest.

    Raises:
        UsageError: a run has not read its inputs yet.
    """
    notes: list[str] = []
    ignored: set[str] = set()
    for run, finished in sides:
        if not finished:
            raise UsageError(f"{run.store.address}: nothing is finished yet. Run it first.")
    for run, finished in sides:
        if labels := [step.label for step, state in stage_states(run, finished) if state != "done"]:
            ignored.update(labels)
            notes.append(
                f"{run.store.address} {_unfinished(run, finished)}: {', '.join(labels)}. What "
                "these drop in the other run counts as kept here."
            )
    is_written = all(_has_last_documents(*side) for side in sides)
    shards = [kept_shards(*side) for side in sides]
    size = sum(part.text_bytes for last in shards if last for part in last.parts)
    if not is_written:
        notes.append("Texts are not compared: not all documents are written.")
    elif texts is None and size > TEXT_BYTES:
        notes.append(f"Texts are not compared: {size / 1e9:,.1f} GB. Ask for it with --texts.")
    with_texts = is_written and texts is not False and (texts is True or size <= TEXT_BYTES)
    for (run, _), last in zip(sides, shards, strict=True):
        packed = [
            label
            for label in (last.packed_by if last else ())
            if label != "tokenize" and isinstance(run.plan.step(label).stage, StreamingStage)
        ]
        if packed and with_texts:
            notes.append(
                f"{run.store.address}: texts are those before {', '.join(packed)}: "
                "with `documents: true` the last ones are written."
            )
    return _Scope(frozenset(ignored), with_texts, notes)


def _unfinished(run: RunDirectory, finished: Sealed) -> str:
    if run.plan.until is not None and len(finished) == len(run.plan.phases):
        return f"was run up to {run.plan.until} only (--until), without"
    return "is not finished; to do"


def _has_last_documents(run: RunDirectory, finished: Sealed) -> bool:
    """Return whether all phases that work on documents are finished."""
    names = {phase.name for phase, _ in finished}
    for phase in run.plan.phases:
        is_packing = bool(phase.labels) and isinstance(
            run.plan.step(phase.labels[-1]).stage, CellStage
        )
        if is_packing or phase.role != "documents":
            return True
        if phase.name not in names:
            return False
    return run.plan.until is None


def _changes(
    run_a: RunDirectory, run_b: RunDirectory, tallies: Changes, names: OutcomeNames,
    plan: Sequence[PlanChange],
) -> Iterator[OutcomeChange]:  # fmt: skip
    held_out = {
        step.label
        for run in (run_a, run_b)
        for step in run.plan.file.steps
        if isinstance(step.stage, StreamingStage) and step.stage.diverts
    }
    for key, by_source in tallies.counts.items():
        left, right = (_outcome(code, names, held_out) for code in (key.code_a, key.code_b))
        stages = [outcome.stage for outcome in (left, right) if outcome.stage]
        reason = "; ".join(dict.fromkeys(filter(None, (_because(s, plan) for s in stages))))
        counts = dict(sorted(by_source.items()))
        total = sum(counts.values())
        yield OutcomeChange(_kind(key, left, right), left, right, reason, total, counts)


def _outcome(code: int, names: OutcomeNames, held_out: set[str]) -> RunOutcome:
    if code in (ABSENT, KEPT):
        return RunOutcome("absent" if code == ABSENT else "kept")
    stage, rule = names.names[code]
    return RunOutcome("held_out" if stage in held_out else "dropped", stage, rule)


def _kind(key: Key, left: RunOutcome, right: RunOutcome) -> Kind:
    if key.how != OUTCOME:
        return "text" if key.how == TEXT else "survivor"
    if key.code_a == ABSENT:
        return "only_b"
    if key.code_b == ABSENT:
        return "only_a"
    if (left.outcome == "held_out") != (right.outcome == "held_out"):
        return "held_out"
    if key.code_a == KEPT:
        return "dropped"
    return "kept" if key.code_b == KEPT else "rule"


def _because(stage: str, plan: Sequence[PlanChange]) -> str:
    words = [change.words() for change in plan if change.label == stage]
    return f"{stage}: {', '.join(words)}" if words else ""


def _more_notes(changes: Changes, pairing: Pairing) -> Iterator[str]:
    for files, name in ((pairing.only_a, "A"), (pairing.only_b, "B")):
        if files:
            yield f"{len(files)} input files are in {name} only."
    shared = sum(count.shared_ids for count in changes.sources.values())
    if shared:
        yield f"{shared:,} documents have the id of an earlier one and are not compared."


Name = TypeVar("Name", bound="Hashable")

# ---------------------------------------------------------------- plans and funnels

_SILENT = frozenset({"output", "name", "executor", "documents", "card"})
"""Settings that decide about no document."""

SHOWN_FILES = 5


@dataclasses.dataclass(frozen=True)
class PlanChange:
    """One thing that is not the same in two plans.

    Attributes:
        place: as in `--set`: `gopher_quality.min_words`, `sources.web.paths`, `seed`; of code and
            finished phases what it is about.
        before, after: values as JSON; None = absent.
        label: stage that it is about, or empty.
        kind: `setting`, `source`, `files`, `stage`, `parameter`, `order`, `code` or `libraries`.
    """

    place: str
    before: Any
    after: Any
    label: str
    kind: str

    def words(self) -> str:
        """Return it as a few words."""
        if self.kind == "stage":
            return "added" if self.before is None else "removed"
        if self.kind in ("code", "libraries"):
            return f"other {self.kind}"
        if self.kind == "order":
            return "moved"
        name = self.place.removeprefix(f"{self.label}.")
        return f"{name} {_short(self.before)} -> {_short(self.after)}"


@dataclasses.dataclass(frozen=True)
class FunnelPair:
    """A source or a stage in both runs; None where it is not in a plan, or not finished."""

    stage: str
    kind: str
    a: FunnelRow | None
    b: FunnelRow | None


def plan_changes(run_a: RunDirectory, run_b: RunDirectory) -> list[PlanChange]:
    """Return what differs: settings, sources and their files, stages, parameters, code."""
    changes = list(_settings(run_a, run_b))
    changes += _sources(run_a, run_b)
    changes += stage_changes(run_a.plan.file.steps, run_b.plan.file.steps)
    codes_a, codes_b = (json.loads(run.store.read(PLAN))["code"] for run in (run_a, run_b))
    for name in sorted(codes_a.keys() & codes_b.keys()):
        labels = [step.label for step in run_b.plan.file.steps if step.name == name]
        if codes_a[name] != codes_b[name]:
            changes += [
                PlanChange(label or name, codes_a[name], codes_b[name], label, "code")
                for label in labels or [""]
            ]
    return changes


def library_changes(sides: Sequence[Side], changes: Sequence[PlanChange]) -> list[PlanChange]:
    """Return the reading phase, if its facts differ although nothing that the plans say does.

    What is left are libraries and contents of model files; later phases also hash their inputs.
    """
    kinds = {change.kind for change in changes}
    if kinds & {"setting", "source", "files"}:
        return []
    (phase_a, seal_a), (phase_b, seal_b) = (side.finished[0] for side in sides)
    labels = set(phase_a.labels)
    if phase_a.labels != phase_b.labels or labels & {change.label for change in changes}:
        return []
    # Where documents go and which numbers files have is hashed, too, and decides nothing.
    inputs_a, inputs_b = (side.run.inputs.facts() for side in sides)
    if phase_a.folder != phase_b.folder or inputs_a != inputs_b:
        return []
    before, after = (seal.fingerprint.partition(".")[0] for seal in (seal_a, seal_b))
    if before == after:
        return []
    return [PlanChange(phase_a.name, before, after, "", "libraries")]


def _settings(run_a: RunDirectory, run_b: RunDirectory) -> Iterator[PlanChange]:
    left, right = (
        run.plan.settings.model_dump(mode="json", exclude=set(_SILENT)) for run in (run_a, run_b)
    )
    for key, before, after in _differences(left, right):
        yield PlanChange(key, before, after, "", "setting")


def _sources(run_a: RunDirectory, run_b: RunDirectory) -> Iterator[PlanChange]:
    steps = [{step.label: step for step in run.plan.file.sources} for run in (run_a, run_b)]
    for label in dict.fromkeys([*steps[0], *steps[1]]):
        left, right = (_params(side.get(label)) for side in steps)
        if left is None or right is None:
            yield PlanChange(f"sources.{label}", left, right, "", "source")
            continue
        for key, before, after in _differences(left, right):
            yield PlanChange(f"sources.{label}.{key}", before, after, "", "parameter")
        names = [
            {f.name: (f.size_bytes, f.stamp) for f in run.inputs.files if f.source == label}
            for run in (run_a, run_b)
        ]
        files = {
            "removed": sorted(names[0].keys() - names[1].keys()),
            "added": sorted(names[1].keys() - names[0].keys()),
            "changed": sorted(k for k in names[0].keys() & names[1] if names[0][k] != names[1][k]),
        }
        if any(files.values()):
            changed = {
                kind: {"files": len(paths), "names": paths[:SHOWN_FILES]}
                for kind, paths in files.items()
                if paths
            }
            after = {"files": len(names[1]), **changed}
            yield PlanChange(f"sources.{label}: files", len(names[0]), after, "", "files")


def stage_changes(steps_a: Sequence[Step], steps_b: Sequence[Step]) -> Iterator[PlanChange]:
    """Yield stages of two plans that only one has, that have other parameters, or that moved."""
    steps = [{step.label: step for step in steps} for steps in (steps_a, steps_b)]
    common = [label for label in steps[0] if label in steps[1]]
    order = [label for label in steps[1] if label in steps[0]]
    for label in aligned(list(steps[0]), list(steps[1])):
        left, right = (_params(side.get(label)) for side in steps)
        if left is None or right is None:
            yield PlanChange(label, left, right, label, "stage")
            continue
        for key, before, after in _differences(left, right):
            yield PlanChange(f"{label}.{key}", before, after, label, "parameter")
    if common != order:
        yield PlanChange("order of stages", common, order, "", "order")


def rules_of(step: Step, change: PlanChange) -> list[str]:
    """Return the rules that a changed parameter bounds; of a stage, those that are switched on."""
    stage = step.stage
    if change.kind == "parameter":
        name = change.place.removeprefix(f"{change.label}.").partition(".")[0]
        return [rule for rule in stage.rules if stage.bounds.get(rule) == name]
    return [r for r in stage.rules if r not in stage.bounds or not math.isnan(stage.threshold(r))]


def _params(step: Step | None) -> dict[str, Any] | None:
    if step is None:
        return None
    return {"stage": step.name, **step.stage.model_dump(mode="json"), **step.applies.to_json()}


def _differences(
    before: dict[str, Any], after: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (key, before, after) of values that differ; keys in mappings are joined by dots."""
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name}", old, new


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def aligned(left: list[Name], right: list[Name]) -> list[Name]:
    """Return all names of two lists, each once, in an order that both agree with where they can."""
    merged: list[Name] = []
    for _, begin, end, first, last in difflib.SequenceMatcher(
        None, left, right, autojunk=False
    ).get_opcodes():
        merged += [*left[begin:end], *right[first:last]]
    return list(dict.fromkeys(merged))


def funnels(sides: Sequence[Side]) -> list[FunnelPair]:
    """Return the sources and stages of both runs with what came in and out, where finished."""
    left, right = (
        {(row.kind, row.stage): row for row in funnel(*side) if row.state == "done"}
        for side in sides
    )
    keys = aligned(list(left), list(right))
    keys.sort(key=lambda key: key[0] != "source")  # stable: a source that only B has comes before
    return [FunnelPair(key[1], key[0], left.get(key), right.get(key)) for key in keys]


def source_pairs(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Return `read`, `read_bytes`, `kept` and `kept_bytes` of each source in runs `_a` and `_b`.

    None = no such source; `kept_bytes` also where a later phase masks some of the last shards.
    """
    rows: dict[str, dict[str, Any]] = {}
    names = [f"{name}_{side}" for name in _VOLUMES for side in "ab"]
    for side, (run, finished) in zip("ab", sides, strict=True):
        bytes_read, sizes = read_bytes(finished), kept_bytes(run, finished)
        for row in accounts(run, finished):
            size = None if sizes is None else sizes.get(row.source, 0)
            values = (row.num_read, bytes_read.get(row.source), row.num_kept, size)
            columns = rows.setdefault(row.source, {"source": row.source, **dict.fromkeys(names)})
            columns.update({f"{n}_{side}": v for n, v in zip(_VOLUMES, values, strict=True)})
    return list(rows.values())


_VOLUMES = ("read", "read_bytes", "kept", "kept_bytes")


# ---------------------------------------------------------------- documents of both runs, joined

WINDOW_ROWS = 1 << 20  # documents of either run in memory at a time, about
ID_ROWS = 1 << 23  # the same, where documents are matched by their ids

SAME, OUTCOME, TEXT, SURVIVOR = 0, 1, 2, 3
"""How a document differs: in its outcome; kept with another text; another one was kept instead."""

_CODE_BITS = 20


class Key(NamedTuple):
    """What documents that changed alike have in common: how, and their codes in both runs."""

    how: int
    code_a: int
    code_b: int


@dataclasses.dataclass
class SourceCount:
    """Documents of one source.

    Attributes:
        documents_a, documents_b: that a run read, dropped ones included.
        kept_both: kept in both runs.
        changed: whose outcome, text or survivor is not the same, those of one run only included.
        shared_ids: that have an id which an earlier document of their run has; not compared.
    """

    documents_a: int = 0
    documents_b: int = 0
    kept_a: int = 0
    kept_b: int = 0
    in_both: int = 0
    kept_both: int = 0
    changed: int = 0
    shared_ids: int = 0


class Changes:
    """Counts of documents that changed, by kind of change and source."""

    def __init__(self) -> None:
        self.counts: defaultdict[Key, Counter[str]] = defaultdict(Counter)
        self.sources: defaultdict[str, SourceCount] = defaultdict(SourceCount)

    def add(self, source: str, joined: JoinedDocuments) -> None:
        """Count joined documents of a source."""
        codes_a, codes_b = joined.codes_a, joined.codes_b
        count = self.sources[source]
        count.documents_a += int((codes_a != ABSENT).sum())
        count.documents_b += int((codes_b != ABSENT).sum())
        count.in_both += int(((codes_a != ABSENT) & (codes_b != ABSENT)).sum())
        count.kept_a += int((codes_a == KEPT).sum())
        count.kept_b += int((codes_b == KEPT).sum())
        count.kept_both += int(((codes_a == KEPT) & (codes_b == KEPT)).sum())
        rows = np.flatnonzero(joined.how != SAME)
        count.changed += len(rows)
        if not len(rows):
            return
        codes = joined.how[rows].astype(np.int64) << (2 * _CODE_BITS)
        codes |= codes_a[rows].astype(np.int64) << _CODE_BITS
        codes |= codes_b[rows].astype(np.int64)
        kinds, kind_of_row = np.unique(codes, return_inverse=True)
        mask = (1 << _CODE_BITS) - 1
        for i, kind in enumerate(kinds.tolist()):
            key = Key(kind >> (2 * _CODE_BITS), (kind >> _CODE_BITS) & mask, kind & mask)
            self.counts[key][source] += int((kind_of_row == i).sum())


class JoinedDocuments(NamedTuple):
    """Documents of both runs, (N,) each; a code is ABSENT where a run does not have the document.

    Attributes:
        how: SAME, OUTCOME, TEXT or SURVIVOR.
    """

    codes_a: NDArray[np.int32]
    codes_b: NDArray[np.int32]
    how: NDArray[np.uint8]


def join(
    values_a: NDArray[np.uint64],
    outcomes_a: Outcomes,
    values_b: NDArray[np.uint64],
    outcomes_b: Outcomes,
) -> JoinedDocuments:
    """Match documents by equal values.

    Args:
        values_a, values_b: of each document; no two of a run alike, in any order.
    """
    values = np.union1d(values_a, values_b)
    sides = []
    for values_of, outcomes in ((values_a, outcomes_a), (values_b, outcomes_b)):
        rows = np.searchsorted(values, values_of)
        columns = []
        for column in (outcomes.codes, outcomes.texts, outcomes.survivors):
            spread = np.zeros(len(values), column.dtype)  # a code of 0 is ABSENT
            spread[rows] = column
            columns.append(spread)
        sides.append(columns)
    (codes_a, texts_a, left), (codes_b, texts_b, right) = sides
    relation = np.where(codes_a == codes_b, SAME, OUTCOME).astype(np.uint8)
    has_both = (relation == SAME) & (texts_a != 0) & (texts_b != 0)
    relation[has_both & (texts_a != texts_b)] = TEXT
    relation[(relation == SAME) & (codes_a > KEPT) & (left != right)] = SURVIVOR
    return JoinedDocuments(codes_a, codes_b, relation)


def find_changes(reader_a: OutcomeReader, reader_b: OutcomeReader, pairing: Pairing) -> Changes:
    """Compare all documents of two runs.

    Memory is bounded by WINDOW_ROWS, or ID_ROWS where ids are matched, not by the runs.
    """
    changes = Changes()
    pairs: list[tuple[InputFile | None, InputFile | None]] = [*pairing.pairs]
    pairs += [(file, None) for file in pairing.only_a]
    pairs += [(None, file) for file in pairing.only_b]
    for file_a, file_b in pairs:
        [source, *_] = [file.source for file in (file_a, file_b) if file is not None]
        for low, high in _windows(reader_a, reader_b, file_a, file_b):
            outcomes_a, outcomes_b = (
                _read(reader_a, file_a, low, high),
                _read(reader_b, file_b, low, high),
            )
            values_a, values_b = (
                (outcomes.keys & ((1 << POSITION_BITS) - 1)).astype(np.uint64)
                for outcomes in (outcomes_a, outcomes_b)
            )
            changes.add(source, join(values_a, outcomes_a, values_b, outcomes_b))
    for source, (files_a, files_b) in pairing.by_id.items():
        _by_id(changes, source, (reader_a, files_a), (reader_b, files_b))
    return changes


def _read(reader: OutcomeReader, file: InputFile | None, low: int, high: int) -> Outcomes:
    first = 0 if file is None else file.ordinal << POSITION_BITS
    return reader.read(first, first) if file is None else reader.read(first + low, first + high)


def _windows(
    reader_a: OutcomeReader,
    reader_b: OutcomeReader,
    file_a: InputFile | None,
    file_b: InputFile | None,
) -> Iterator[tuple[int, int]]:
    """Yield ranges of positions that hold about WINDOW_ROWS documents each."""
    starts: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
    rows: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
    end = 1 << POSITION_BITS
    for reader, file in ((reader_a, file_a), (reader_b, file_b)):
        if file is None:
            continue
        begin = file.ordinal << POSITION_BITS
        for first, last, count in reader.rows(begin, begin + end):
            # A file is taken to be even; a large one is read in pieces.
            pieces = -(-count // WINDOW_ROWS) or 1
            spread = np.linspace(first, last, pieces, endpoint=False).astype(np.int64)
            starts.append(np.maximum(spread - begin, 0))
            rows.append(np.full(pieces, count // pieces, np.int64))
    positions, sizes = np.concatenate(starts), np.concatenate(rows)
    order = np.argsort(positions, kind="stable")
    positions, sizes = positions[order], sizes[order]
    windows = (np.cumsum(sizes) - sizes) // WINDOW_ROWS
    firsts = np.unique(windows, return_index=True)[1]
    cuts = [0, *np.unique(positions[firsts[1:]]).tolist(), end]
    for low, high in itertools.pairwise(cuts):
        if low < high:
            yield low, high


def _by_id(
    changes: Changes, source: str, *sides: tuple[OutcomeReader, Sequence[InputFile]]
) -> None:
    """Compare the documents of some files by the hashes of their ids, a share of them at a time."""
    end = 1 << POSITION_BITS
    total = sum(
        rows
        for reader, files in sides
        for file in files
        for _, _, rows in reader.rows(file.ordinal << POSITION_BITS, (file.ordinal + 1) * end)
    )
    shares = -(-total // ID_ROWS) or 1
    for share in range(shares):
        (ids_a, outcomes_a), (ids_b, outcomes_b) = (
            _with_ids(changes.sources[source], reader, files, share, shares)
            for reader, files in sides
        )
        changes.add(source, join(ids_a, outcomes_a, ids_b, outcomes_b))


def _with_ids(
    count: SourceCount, reader: OutcomeReader, files: Sequence[InputFile], share: int, shares: int
) -> tuple[NDArray[np.uint64], Outcomes]:
    """Return the documents of a share of all ids, of each id the first."""
    pieces = [reader.read(0, 0)]
    for file in files:
        for low, high in _windows(reader, reader, file, None):
            outcomes = _read(reader, file, low, high)
            in_share = np.flatnonzero(outcomes.ids % np.uint64(shares) == share)
            pieces.append(outcomes.take(in_share))
    merged = Outcomes(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))
    rows = np.unique(merged.ids, return_index=True)[1]
    count.shared_ids += len(merged.ids) - len(rows)
    return merged.ids[rows], merged.take(rows)


ABSENT, KEPT = 0, 1  # codes of outcomes; from 2 on they name a stage and a rule


# ---------------------------------------------------------------- outcomes of a run

MOST_NAMES = 100_000
"""Rules with a number of their own; other people's code may give each document a reason."""


class OutcomeNames:
    """Numbers stages and rules as they are met."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], int] = {}
        self.names: list[tuple[str, str]] = [("", ""), ("", "")]

    def code(self, stage: str, rule: str) -> int:
        """Return the code of what a rule drops."""
        if (stage, rule) not in self._codes and len(self.names) > MOST_NAMES:
            rule = "(other rules)"
        if (stage, rule) not in self._codes:
            self._codes[stage, rule] = len(self.names)
            self.names.append((stage, rule))
        return self._codes[stage, rule]


class Outcomes(NamedTuple):
    """Documents in the order of their keys.

    Attributes:
        keys: (N,) int64, ascending, no two alike.
        codes: (N,) int32: KEPT, or what dropped the document.
        texts: (N,) uint64: hash of the text as it was kept, 0 where that was not read.
        survivors: (N,) uint64: hash of the id of the document that was kept instead, or 0.
        ids: (N,) uint64: hash of the id, 0 where that was not asked for.
    """

    keys: NDArray[np.int64]
    codes: NDArray[np.int32]
    texts: NDArray[np.uint64]
    survivors: NDArray[np.uint64]
    ids: NDArray[np.uint64]

    def take(self, rows: NDArray[np.intp]) -> Outcomes:
        """Return some of them."""
        return Outcomes(
            self.keys[rows], self.codes[rows], self.texts[rows], self.survivors[rows],
            self.ids[rows],
        )  # fmt: skip


class OutcomeReader:
    """Reads what became of documents from the ledger and the last document shards.

    Args:
        finished: phases to believe.
        names: numbers outcomes; readers that share it can be compared.
        ignored: stages whose drops do not count: such documents were kept so far.
        with_texts: hash the texts of kept documents.
        with_ids: hash ids.
    """

    def __init__(
        self, run: RunDirectory, finished: Sealed, names: OutcomeNames, *,
        ignored: frozenset[str] = frozenset(), with_texts: bool = False, with_ids: bool = False,
    ) -> None:  # fmt: skip
        self.run, self.names, self.ignored = run, names, ignored
        self.with_texts, self.with_ids = with_texts, with_ids
        ledgers = (seal.by_role("ledger") for _, seal in finished)
        self.ledgers = [parts for parts in ledgers if len(parts)]
        self.shards = kept_shards(run, finished)

    def rows(self, low: int, high: int) -> list[tuple[int, int, int]]:
        """Return (first key, last key, rows) of the files that hold documents of a range."""
        every = [*self.ledgers, *([self.shards.parts] if self.shards else [])]
        return [(p.first, p.last, p.rows) for parts in every for p in parts.within(low, high)]

    def read(self, low: int, high: int) -> Outcomes:
        """Return what became of the documents with keys in `[low, high)`."""
        pieces = [*self._dropped(low, high), *self._kept(low, high)]
        if not pieces:
            empty = np.empty(0, np.uint64)
            return Outcomes(np.empty(0, np.int64), np.empty(0, np.int32), empty, empty, empty)
        merged = Outcomes(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))
        # Drops come first: of a document that a phase to be ignored dropped, nothing else is known.
        return merged.take(np.unique(merged.keys, return_index=True)[1])

    def _dropped(self, low: int, high: int) -> Iterator[Outcomes]:
        columns = [
            "doc_key",
            "stage",
            "rule",
            "survivor_id",
            *(["doc_id"] if self.with_ids else []),
        ]
        in_range = (pc.field("doc_key") >= low) & (pc.field("doc_key") < high)
        for parts in self.ledgers:
            for part in parts.within(low, high):
                table = select(
                    self.run.at(part), columns, in_range & (pc.field("action") == "drop"),
                    use_threads=False, read_dictionary=["stage", "rule"],
                )  # fmt: skip
                if table.num_rows:
                    yield self._outcomes(table)

    def _outcomes(self, table: pa.Table) -> Outcomes:
        keys = numbers(table.column("doc_key"))
        none = np.zeros(len(keys), np.uint64)
        survivors = table.column("survivor_id")
        if survivors.null_count < len(survivors):
            hashes = _hashed(survivors.fill_null(""))
            survivors = np.where(numbers(survivors.is_valid()), hashes, np.uint64(0))
        else:
            survivors = none
        ids = _hashed(table.column("doc_id")) if self.with_ids else none
        return Outcomes(keys, self._codes(table), none, survivors, ids)

    def _codes(self, table: pa.Table) -> NDArray[np.int32]:
        columns = [table.column(name).unify_dictionaries() for name in ("stage", "rule")]
        arrays = [column.combine_chunks() for column in columns]
        coded = [
            column.chunk(0) if isinstance(column, pa.ChunkedArray) else column for column in arrays
        ]
        stages, rules = (column.indices.to_numpy().astype(np.int64) for column in coded)
        labels, reasons = (column.dictionary.to_pylist() for column in coded)
        # Reasons may have details after a colon: many of them, and one rule.
        pairs, pair_of_row = np.unique(stages * len(reasons) + rules, return_inverse=True)
        codes = np.empty(len(pairs), np.int32)
        for i, pair in enumerate(pairs.tolist()):
            stage, reason = labels[pair // len(reasons)], reasons[pair % len(reasons)]
            is_ignored = stage in self.ignored
            codes[i] = KEPT if is_ignored else self.names.code(stage, reason.partition(": ")[0])
        return codes[pair_of_row]

    def _kept(self, low: int, high: int) -> Iterator[Outcomes]:
        if self.shards is None:
            return
        columns = [
            "key",
            *(["text"] if self.with_texts else []),
            *(["id"] if self.with_ids else []),
        ]
        for part in self.shards.parts.within(low, high):
            for batch in self.shards.read(part, columns):
                keys = numbers(batch.column("key"))
                in_range = np.flatnonzero((keys >= low) & (keys < high))
                if not len(in_range):
                    continue
                none = np.zeros(len(keys), np.uint64)
                texts = _hashed(batch.column("text")) if self.with_texts else none
                ids = _hashed(batch.column("id")) if self.with_ids else none
                codes = np.full(len(keys), KEPT, np.int32)
                yield Outcomes(keys, codes, texts, none, ids).take(in_range)


def _hashed(column: pa.Array | pa.ChunkedArray) -> NDArray[np.uint64]:
    """Return 64 bits of each string, never 0."""
    from corpuskit.kernels.hashing import hash_texts  # loads numba

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    high, _ = hash_texts(*utf8(column.cast(pa.large_string())))
    hashes: NDArray[np.uint64] = np.maximum(high, np.uint64(1))
    return hashes


# ---------------------------------------------------------------- input files of both runs


@dataclasses.dataclass(frozen=True)
class Pairing:
    """The input files of two runs.

    Attributes:
        pairs: files of the same source and name, read alike: documents are matched by position.
        by_id: source -> its other files in either run, whose documents are matched by their ids.
        only_a, only_b: files that the other run has nothing for.
        notes: what had to be taken for granted.
    """

    pairs: tuple[tuple[InputFile, InputFile], ...]
    by_id: dict[str, tuple[list[InputFile], list[InputFile]]]
    only_a: tuple[InputFile, ...]
    only_b: tuple[InputFile, ...]
    notes: tuple[str, ...]


def pair_files(run_a: RunDirectory, run_b: RunDirectory) -> Pairing:
    """Return the pairing of the input files of two runs."""
    files_a, files_b = ({(f.source, f.name): f for f in run.inputs.files} for run in (run_a, run_b))
    pairs: list[tuple[InputFile, InputFile]] = []
    rest_a: dict[str, list[InputFile]] = {}
    rest_b: dict[str, list[InputFile]] = {}
    changed: dict[str, int] = {}
    for key, file in files_a.items():
        match = files_b.get(key)
        is_same = match is not None and (file.size_bytes, file.stamp) == (
            match.size_bytes, match.stamp
        )  # fmt: skip
        if match is not None and not is_same:
            changed[file.source] = changed.get(file.source, 0) + 1
        if match is None or not (is_same or not _has_ids(run_a, run_b, file.source)):
            rest_a.setdefault(file.source, []).append(file)
            if match is not None:
                rest_b.setdefault(file.source, []).append(match)
        else:
            pairs.append((file, match))
    for key, file in files_b.items():
        if key not in files_a:
            rest_b.setdefault(file.source, []).append(file)
    common = sorted(rest_a.keys() & rest_b.keys())
    by_id = {name: (rest_a.pop(name), rest_b.pop(name))
             for name in common if _has_ids(run_a, run_b, name)}  # fmt: skip
    only_a, only_b = (
        tuple(f for files in files_left.values() for f in files) for files_left in (rest_a, rest_b)
    )
    notes = _notes(run_a, run_b, by_id, changed, sorted({file.source for file, _ in pairs}))
    return Pairing(tuple(pairs), by_id, only_a, only_b, tuple(notes))


def _has_ids(run_a: RunDirectory, run_b: RunDirectory, source: str) -> bool:
    """Return whether the documents of a source have ids of their own in both runs."""
    for run in (run_a, run_b):
        stages = [s.stage for s in run.plan.file.sources if s.label == source]
        if not stages:
            return False
        if not (getattr(stages[0], "id_column", None) or getattr(stages[0], "ids", "") == "record"):
            return False
    return True


def _notes(
    run_a: RunDirectory, run_b: RunDirectory,
    by_id: dict[str, tuple[list[InputFile], list[InputFile]]], changed: dict[str, int],
    paired: Sequence[str],
) -> list[str]:  # fmt: skip
    notes = [
        f"{name}: {len(left)} and {len(right)} files are not the same in both runs; their "
        "documents are matched by their ids."
        for name, (left, right) in by_id.items()
    ]
    notes += [
        f"{name}: {count} files have another size or date than in the other run, and their "
        "documents have no ids: they are matched by their position in the file."
        for name, count in changed.items()
        if name not in by_id
    ]
    for name in paired:
        steps = [
            next(s for s in run.plan.file.sources if s.label == name) for run in (run_a, run_b)
        ]
        params = [(s.name, s.stage.model_dump(exclude={"paths", "columns"})) for s in steps]
        if params[0] != params[1]:
            notes.append(
                f"{name}: the runs read it with other parameters, so documents at the same "
                "position of a file may not be the same."
            )
    return notes

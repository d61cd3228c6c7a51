"""Two runs compared: plans, funnels, and documents whose outcome is not the same."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

from corpuskit.engine.plan import PLAN
from corpuskit.engine.status import accounts, funnel, sealed, stage_states
from corpuskit.errors import UsageError
from corpuskit.inspect.archive import kept_bytes, kept_shards, read_bytes
from corpuskit.inspect.outcomes import (
    ABSENT,
    KEPT,
    OUTCOME,
    TEXT,
    Key,
    OutcomeNames,
    OutcomeReader,
    find_changes,
    pair_files,
)
from corpuskit.stage import CellStage, StreamingStage

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from corpuskit.engine.config import Step
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import FunnelRow, Sealed
    from corpuskit.inspect.outcomes import Changes, Pairing, SourceCount


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
    done: Sealed


class _Scope(NamedTuple):
    """What is compared of two runs: stages whose drops don't count, and texts or not."""

    ignored: frozenset[str]
    with_texts: bool
    notes: list[str]


def compare(run_a: RunDirectory, run_b: RunDirectory, *, texts: bool | None = None) -> Comparison:
    """Compare two runs, as far as their phases are finished.

    Documents are matched by file and place, or by their ids where files are not the same.

    Args:
        texts: compare the texts of documents that both kept; None = if they have TEXT_BYTES or
            fewer.

    Raises:
        UsageError: it is one run, they have no documents in common, or nothing is finished.
    """
    places = [os.path.realpath(run.store.address) for run in (run_a, run_b)]
    if run_a.store.address == run_b.store.address or places[0] == places[1]:
        raise UsageError(f"{run_a.store.address}: is the same run twice. Name two run directories.")
    pairing = pair_files(run_a, run_b)
    if not pairing.pairs and not pairing.by_id:
        raise UsageError(_nothing(run_a, run_b))
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
    counted = find_changes(left, right, pairing)
    if not any(count.in_both for count in counted.sources.values()):
        raise UsageError(_nothing(run_a, run_b))
    plan = plan_changes(run_a, run_b)
    plan += library_changes(sides, plan)
    changes = sorted(
        _changes(run_a, run_b, counted, names, plan),
        key=lambda c: (KINDS.index(c.kind), -c.documents, c.a.rule, c.b.rule),
    )
    return Comparison(
        run_a.store.address,
        run_b.store.address,
        (*scope.notes, *pairing.notes, *_more_notes(counted, pairing)),
        tuple(plan),
        tuple(funnels(sides)),
        tuple(source_pairs(sides)),
        scope.with_texts,
        tuple(changes),
        dict(sorted(counted.sources.items())),
    )


def _nothing(run_a: RunDirectory, run_b: RunDirectory) -> str:
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
    for run, done in sides:
        if not done:
            raise UsageError(f"{run.store.address}: nothing is finished yet. Run it first.")
    for run, done in sides:
        if left := [step.label for step, state in stage_states(run, done) if state != "done"]:
            ignored.update(left)
            notes.append(
                f"{run.store.address} {_unfinished(run, done)}: {', '.join(left)}. What these drop "
                "in the other run counts as kept here."
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


def _unfinished(run: RunDirectory, done: Sealed) -> str:
    if run.plan.until is not None and len(done) == len(run.plan.phases):
        return f"was run up to {run.plan.until} only (--until), without"
    return "is not finished; to do"


def _has_last_documents(run: RunDirectory, done: Sealed) -> bool:
    """Return whether all phases that work on documents are finished."""
    names = {phase.name for phase, _ in done}
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
    run_a: RunDirectory, run_b: RunDirectory, counted_changes: Changes, names: OutcomeNames,
    plan: Sequence[PlanChange],
) -> Iterator[OutcomeChange]:  # fmt: skip
    aside = {
        step.label
        for run in (run_a, run_b)
        for step in run.plan.file.steps
        if isinstance(step.stage, StreamingStage) and step.stage.diverts
    }
    for key, counted in counted_changes.counts.items():
        left, right = (_outcome(code, names, aside) for code in (key.code_a, key.code_b))
        stages = [outcome.stage for outcome in (left, right) if outcome.stage]
        because = "; ".join(dict.fromkeys(filter(None, (_because(s, plan) for s in stages))))
        counts = dict(sorted(counted.items()))
        total = sum(counts.values())
        yield OutcomeChange(_kind(key, left, right), left, right, because, total, counts)


def _outcome(code: int, names: OutcomeNames, aside: set[str]) -> RunOutcome:
    if code in (ABSENT, KEPT):
        return RunOutcome("absent" if code == ABSENT else "kept")
    stage, rule = names.names[code]
    return RunOutcome("held_out" if stage in aside else "dropped", stage, rule)


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
    (phase_a, seal_a), (phase_b, seal_b) = (side.done[0] for side in sides)
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
    for place, before, after in _differences(left, right):
        yield PlanChange(place, before, after, "", "setting")


def _sources(run_a: RunDirectory, run_b: RunDirectory) -> Iterator[PlanChange]:
    steps = [{step.label: step for step in run.plan.file.sources} for run in (run_a, run_b)]
    for label in dict.fromkeys([*steps[0], *steps[1]]):
        left, right = (_params(side.get(label)) for side in steps)
        if left is None or right is None:
            yield PlanChange(f"sources.{label}", left, right, "", "source")
            continue
        for place, before, after in _differences(left, right):
            yield PlanChange(f"sources.{label}.{place}", before, after, "", "parameter")
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
            shown = {
                kind: {"files": len(these), "names": these[:SHOWN_FILES]}
                for kind, these in files.items()
                if these
            }
            place = f"sources.{label}: files"
            yield PlanChange(place, len(names[0]), {"files": len(names[1]), **shown}, "", "files")


def stage_changes(steps_a: Sequence[Step], steps_b: Sequence[Step]) -> Iterator[PlanChange]:
    """Yield stages of two plans that only one has or that have other parameters or places."""
    steps = [{step.label: step for step in these} for these in (steps_a, steps_b)]
    both = [label for label in steps[0] if label in steps[1]]
    order = [label for label in steps[1] if label in steps[0]]
    for label in aligned(list(steps[0]), list(steps[1])):
        left, right = (_params(side.get(label)) for side in steps)
        if left is None or right is None:
            yield PlanChange(label, left, right, label, "stage")
            continue
        for place, before, after in _differences(left, right):
            yield PlanChange(f"{label}.{place}", before, after, label, "parameter")
    if both != order:
        yield PlanChange("order of stages", both, order, "", "order")


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
    """Yield (place, before, after) of values that differ, inside of mappings too."""
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
    for side, (run, done) in zip("ab", sides, strict=True):
        read, kept = read_bytes(done), kept_bytes(run, done)
        for one in accounts(run, done):
            size = None if kept is None else kept.get(one.source, 0)
            values = (one.num_read, read.get(one.source), one.num_kept, size)
            row = rows.setdefault(one.source, {"source": one.source, **dict.fromkeys(names)})
            row.update({f"{n}_{side}": v for n, v in zip(_VOLUMES, values, strict=True)})
    return list(rows.values())


_VOLUMES = ("read", "read_bytes", "kept", "kept_bytes")

"""Two runs compared: plans, funnels, and documents whose fate is not the same."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from corpuskit.engine.status import sealed, stage_states
from corpuskit.errors import UsageError, suggest
from corpuskit.inspect.diff.changes import FATE, TEXT, Key, find_changes
from corpuskit.inspect.diff.fates import ABSENT, KEPT, FateNames, FateReader
from corpuskit.inspect.diff.pairing import pair_files
from corpuskit.inspect.diff.plans import (
    FunnelPair,
    PlanChange,
    SourcePair,
    funnels,
    library_changes,
    plan_changes,
    source_pairs,
)
from corpuskit.inspect.diff.samples import ChangedDocument, changed_documents
from corpuskit.inspect.samples.kept import kept_shards
from corpuskit.stage import CellStage, StreamingStage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import Sealed
    from corpuskit.inspect.diff.changes import Changes, SourceCount
    from corpuskit.inspect.diff.pairing import Pairing

TEXT_BYTES = 4 << 30
"""Texts of kept documents are compared by themselves up to so many bytes of both runs."""

Kind = Literal["dropped", "kept", "rule", "held_out", "survivor", "text", "only_a", "only_b"]

KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclasses.dataclass(frozen=True)
class Fate:
    """What became of documents: `kept`, `dropped`, `held_out` or `absent`."""

    fate: str
    stage: str = ""
    rule: str = ""


@dataclasses.dataclass(frozen=True)
class Change:
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
    a: Fate
    b: Fate
    because: str
    documents: int
    sources: dict[str, int]
    samples: tuple[ChangedDocument, ...]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two runs.

    Attributes:
        a, b: addresses.
        notes: what is not finished, taken for granted or was not compared.
        texts_compared: whether the texts of documents that both kept were.
        changes: kind by kind, those of most documents first.
        totals: source -> documents in either run, kept, changed.
    """

    a: str
    b: str
    notes: tuple[str, ...]
    plan: tuple[PlanChange, ...]
    funnel: tuple[FunnelPair, ...]
    sources: tuple[SourcePair, ...]
    texts_compared: bool
    changes: tuple[Change, ...]
    totals: dict[str, SourceCount]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return dataclasses.asdict(self)


class _Scope(NamedTuple):
    """What is compared of two runs: phases, stages whose drops don't count, and texts or not."""

    done_a: Sealed
    done_b: Sealed
    ignored: frozenset[str]
    with_texts: bool
    notes: list[str]


def compare(
    one: RunDirectory, other: RunDirectory, *, samples: int = 3, seed: int = 0, source: str = "",
    stage: str = "", rule: str = "", texts: bool | None = None,
) -> Comparison:  # fmt: skip
    """Compare two runs, as far as their phases are finished.

    Documents are matched by file and place, or by their ids where files are not the same.

    Args:
        samples: documents to show of each change.
        source: compare the documents of one source only.
        stage, rule: show the changes that one of them decided in either run.
        texts: compare the texts of documents that both kept; None = if they have TEXT_BYTES or
            fewer.

    Raises:
        UsageError: it is one run, they have no documents in common, nothing is finished, or there
            is no such source, stage or rule.
    """
    _check(one, other, source, stage)
    pairing = pair_files(one, other, source)
    if not pairing.pairs and not pairing.by_id:
        raise UsageError(_nothing(one, other, source))
    scope = _scope(one, other, texts)
    names = FateNames()
    left, right = (
        FateReader(
            run, done, names, ignored=scope.ignored, with_texts=scope.with_texts,
            with_ids=bool(pairing.by_id),
        )
        for run, done in ((one, scope.done_a), (other, scope.done_b))
    )  # fmt: skip
    found = find_changes(left, right, pairing, samples=samples, seed=seed)
    if not any(count.in_both for count in found.sources.values()):
        raise UsageError(_nothing(one, other, source))
    plan = plan_changes(one, other)
    plan += library_changes(one, other, scope.done_a, scope.done_b, plan)
    changes = list(_changes(one, other, found, names, plan))
    chosen = _chosen(changes, stage, rule, names)
    documents = changed_documents(left, right, [found.picks[key] for key, _ in chosen])
    shown = [
        dataclasses.replace(change, samples=tuple(some))
        for (_, change), some in zip(chosen, documents, strict=True)
    ]
    shown.sort(key=lambda one: (KINDS.index(one.kind), -one.documents, one.a.rule, one.b.rule))
    return Comparison(
        one.store.address,
        other.store.address,
        (*scope.notes, *pairing.notes, *_more_notes(found, pairing)),
        tuple(plan),
        tuple(funnels(one, other, scope.done_a, scope.done_b, source)),
        tuple(source_pairs(one, other, scope.done_a, scope.done_b, source)),
        scope.with_texts,
        tuple(shown),
        dict(sorted(found.sources.items())),
    )


def _nothing(one: RunDirectory, other: RunDirectory, source: str) -> str:
    where = f" in source {source}" if source else ""
    return (
        f"{one.store.address} and {other.store.address} have no documents in common{where}: "
        "neither by source and name of input files, nor by the ids of a source that both have."
    )


def _check(one: RunDirectory, other: RunDirectory, source: str, stage: str) -> None:
    places = [os.path.realpath(run.store.address) for run in (one, other)]
    if one.store.address == other.store.address or places[0] == places[1]:
        raise UsageError(f"{one.store.address}: is the same run twice. Name two run directories.")
    labels = {step.label for run in (one, other) for step in run.plan.file.sources}
    if source and source not in labels:
        raise UsageError(f"no source {source!r} in either run. {suggest(source, labels)}")
    steps = {step.label for run in (one, other) for step in run.plan.file.steps}
    steps |= {step.name for run in (one, other) for step in run.plan.file.sources}
    if stage and stage not in steps:
        raise UsageError(f"no stage {stage!r} in either run. {suggest(stage, steps)}")


def _scope(one: RunDirectory, other: RunDirectory, texts: bool | None) -> _Scope:
    """Return what can be compared, and notes about the rest.

    Raises:
        UsageError: a run has not read its inputs yet.
    """
    done_a, done_b = sealed(one), sealed(other)
    for run, done in ((one, done_a), (other, done_b)):
        if not done:
            raise UsageError(f"{run.store.address}: nothing is finished yet. Run it first.")
    notes: list[str] = []
    left_a, left_b = (
        [step.label for step, state in stage_states(run, done) if state != "done"]
        for run, done in ((one, done_a), (other, done_b))
    )
    ignored = frozenset(left_a) | frozenset(left_b)
    for run, done, left in ((one, done_a, left_a), (other, done_b, left_b)):
        if left:
            notes.append(
                f"{run.store.address} {_unfinished(run, done)}: {', '.join(left)}. What these drop "
                "in the other run counts as kept here."
            )
    is_written = all(
        _has_last_documents(run, done) for run, done in ((one, done_a), (other, done_b))
    )
    shards = [kept_shards(run, done) for run, done in ((one, done_a), (other, done_b))]
    size = sum(part.text_bytes for found in shards if found for part in found.parts)
    if not is_written:
        notes.append("Texts are not compared: not all documents are written.")
    elif texts is None and size > TEXT_BYTES:
        notes.append(f"Texts are not compared: {size / 1e9:,.1f} GB. Ask for it with --texts.")
    with_texts = is_written and texts is not False and (texts is True or size <= TEXT_BYTES)
    for run, found in zip((one, other), shards, strict=True):
        packed = [label for label in (found.packed_by if found else ()) if _is_stage(run, label)]
        if packed and with_texts:
            notes.append(
                f"{run.store.address}: texts are those before {', '.join(packed)}: "
                "with `documents: true` the last ones are written."
            )
    return _Scope(done_a, done_b, ignored, with_texts, notes)


def _unfinished(run: RunDirectory, done: Sealed) -> str:
    """Return why stages of a run have no figures."""
    if run.plan.until is not None and len(done) == len(run.plan.phases):
        return f"was run up to {run.plan.until} only (--until), without"
    return "is not finished; to do"


def _is_stage(run: RunDirectory, label: str) -> bool:
    return isinstance(run.plan.step(label).stage, StreamingStage) and label != "tokenize"


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
    one: RunDirectory, other: RunDirectory, found: Changes, names: FateNames,
    plan: Sequence[PlanChange],
) -> Iterator[tuple[Key, Change]]:  # fmt: skip
    """Yield what changed, without samples."""
    aside = {
        step.label
        for run in (one, other)
        for step in run.plan.file.steps
        if isinstance(step.stage, StreamingStage) and step.stage.diverts
    }
    for key, counted in found.counts.items():
        left, right = (_fate(code, names, aside) for code in (key.code_a, key.code_b))
        stages = [fate.stage for fate in (left, right) if fate.stage]
        because = "; ".join(dict.fromkeys(filter(None, (_because(s, plan) for s in stages))))
        counts = dict(sorted(counted.items()))
        total = sum(counts.values())
        yield key, Change(_kind(key, left, right), left, right, because, total, counts, ())


def _fate(code: int, names: FateNames, aside: set[str]) -> Fate:
    if code in (ABSENT, KEPT):
        return Fate("absent" if code == ABSENT else "kept")
    stage, rule = names.names[code]
    return Fate("held_out" if stage in aside else "dropped", stage, rule)


def _kind(key: Key, left: Fate, right: Fate) -> Kind:
    if key.how != FATE:
        return "text" if key.how == TEXT else "survivor"
    if key.code_a == ABSENT:
        return "only_b"
    if key.code_b == ABSENT:
        return "only_a"
    if (left.fate == "held_out") != (right.fate == "held_out"):
        return "held_out"
    if key.code_a == KEPT:
        return "dropped"
    return "kept" if key.code_b == KEPT else "rule"


def _because(stage: str, plan: Sequence[PlanChange]) -> str:
    """Return what the plans say differently about a stage."""
    words = [change.words() for change in plan if change.label == stage]
    return f"{stage}: {', '.join(words)}" if words else ""


def _chosen(
    changes: list[tuple[Key, Change]], stage: str, rule: str, names: FateNames
) -> list[tuple[Key, Change]]:
    """Return the changes that a stage and a rule had to do with.

    Raises:
        UsageError: neither run dropped anything by this rule.
    """
    known = {name for at, name in names.names if name and stage in ("", at)}
    if rule and rule not in known:
        where = f" of {stage}" if stage else ""
        hint = suggest(rule, known) if known else ""
        raise UsageError(f"no rule {rule!r}{where} dropped anything in either run. {hint}")
    return [
        (key, change)
        for key, change in changes
        if any(
            stage in ("", fate.stage) and rule in ("", fate.rule)
            for fate in (change.a, change.b)
            if fate.stage or not (stage or rule)
        )
    ]


def _more_notes(found: Changes, pairing: Pairing) -> Iterator[str]:
    for files, name in ((pairing.only_a, "A"), (pairing.only_b, "B")):
        if files:
            yield f"{len(files)} input files are in {name} only."
    shared = sum(count.shared_ids for count in found.sources.values())
    if shared:
        yield f"{shared:,} documents have the id of an earlier one and are not compared."

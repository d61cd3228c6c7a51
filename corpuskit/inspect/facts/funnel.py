"""Funnel, drops and changes by stage, rule and source."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from corpuskit.engine import registry
from corpuskit.engine.status import funnel, stage_states
from corpuskit.inspect.facts.ledger_rows import Group, Tally
from corpuskit.inspect.facts.volumes import Volume, total
from corpuskit.stage import Source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import FunnelRow, Sealed
    from corpuskit.inspect.facts.counts import Counts
    from corpuskit.inspect.facts.ledger_rows import Scan
    from corpuskit.inspect.facts.volumes import Flow, How


@dataclasses.dataclass(frozen=True)
class StageFact:
    """A format or a stage of the plan.

    Attributes:
        state: `done`, `running` (its phase is the one that the run is at), `waiting`, or
            `not run` (it is after `--until`).
        params: those that are not the defaults; of a format those of its first source.
    """

    label: str
    name: str
    kind: str
    summary: str
    phases: tuple[str, ...]
    state: str
    params: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class FunnelVolumes:
    """A row of the funnel, with the text and the tokens that came in and went out, by source."""

    row: FunnelRow
    state: str
    before: Mapping[str, Volume]
    behind: Mapping[str, Volume]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        sources = {
            name: {"in": dataclasses.asdict(one), "out": dataclasses.asdict(self.behind[name])}
            for name, one in self.before.items()
            if one.documents is not None or self.state == "done"
        }
        ends = {"in": total(self.before.values()), "out": total(self.behind.values())}
        return {
            "stage": self.row.stage, "kind": self.row.kind, "name": self.row.name,
            "state": self.state, "sources": sources,
            **{name: dataclasses.asdict(one) for name, one in ends.items()},
        }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Drop:
    """Documents of a source that a rule dropped."""

    stage: str
    rule: str
    source: str
    kind: str
    documents: int
    text_bytes: int | None
    text_bytes_how: How


@dataclasses.dataclass(frozen=True)
class Change:
    """Documents of a source that a rule cut, or replaced something in."""

    stage: str
    rule: str
    action: str
    source: str
    documents: int
    spans: int | None
    span_bytes: int | None
    how: How


def stage_facts(run: RunDirectory, finished: Sealed, current: str | None) -> list[StageFact]:
    """Return the formats and stages in the order of the plan.

    Args:
        current: the phase that the run is at.
    """
    formats: set[str] = set()
    facts = []
    for step, state in stage_states(run, finished):
        is_source = isinstance(step.stage, Source)
        if is_source and step.name in formats:
            continue
        formats.update({step.name} if is_source else ())
        label = step.name if is_source else step.label
        phases = tuple(
            phase.name
            for phase in run.plan.phases
            if (phase.base is None if is_source else label in phase.labels)
        )
        word = "running" if state == "waiting" and current in phases else state
        params, summary = changed_params(step.stage), registry.summary(step.name)
        facts.append(StageFact(label, step.name, step.kind, summary, phases, word, params))
    return facts


def changed_params(stage: Any) -> dict[str, Any]:
    """Return the parameters of a stage that are not the defaults, as JSON values."""
    given: dict[str, Any] = stage.model_dump(mode="json", exclude_defaults=True)
    return {name: value for name, value in given.items() if name != "paths"}


def funnel_rows(
    run: RunDirectory, known: Sealed, flow: Flow, stages: list[StageFact]
) -> list[FunnelVolumes]:
    """Return a row for every source and every stage.

    Args:
        known: finished phases, or what the first one has done so far.
        stages: which say how far they are.
    """
    states = {(one.kind == "source", one.label): one.state for one in stages}
    rows = []
    for row in funnel(run, known):
        label = row.name if row.is_source else row.stage
        before, behind = (
            {row.stage: sides[row.stage]} if row.is_source else sides
            for sides in (flow.before(label), flow.behind(label))
        )
        rows.append(FunnelVolumes(row, states[row.is_source, label], before, behind))
    return rows


def drops(flow: Flow, counts: Counts, stages: list[StageFact]) -> list[Drop]:
    """Return what every rule dropped of every source, in plan order, most documents first."""
    kinds = {one.label: one.kind for one in stages}
    order = {one.label: place for place, one in enumerate(stages)}
    found = []
    for (action, label, rule, source), documents in flow.counted.items():
        if action == "dropped" and label in kinds:
            group, is_source = Group(label, rule, "drop", source), kinds[label] == "source"
            size, how = _dropped_bytes(flow, counts, group, documents, counts_nothing=is_source)
            found.append(Drop(label, rule, source, kinds[label], documents, size, how))
    return sorted(found, key=lambda one: (order[one.stage], -one.documents, one.rule, one.source))


def _dropped_bytes(
    flow: Flow, counts: Counts, group: Group, documents: int, *, counts_nothing: bool
) -> tuple[int | None, How]:
    """Return the bytes of dropped documents: as counted, as what is missing, or by mean size."""
    if counts.is_whole and counts.has(group.stage):
        rows = counts.rows(group.stage, "dropped")
        mine = [r for r in rows if (r["field"], r["source"]) == (group.rule, group.source)]
        return sum(row["text_bytes"] for row in mine), "exact"
    if counts_nothing:
        return None, "unknown"  # what a source rejects was never text
    some = [
        (row["documents"], row["text_bytes"])
        for row in counts.rows(group.stage, "dropped")
        if (row["field"], row["source"]) == (group.rule, group.source)
    ]
    num = sum(one for one, _ in some)
    if num:  # of the parts that were read
        return round(sum(size for _, size in some) * documents / num), "estimated"
    before = flow.before(group.stage)[group.source]
    behind = flow.behind(group.stage)[group.source]
    others = [key for key in flow.counted if (key[1], key[3]) == (group.stage, group.source)]
    is_exact = before.text_bytes_how == behind.text_bytes_how == "exact"
    if len(others) == 1 and is_exact and before.documents == (behind.documents or 0) + documents:
        return (before.text_bytes or 0) - (behind.text_bytes or 0), "exact"
    if before.text_bytes is None or not before.documents:
        return None, "unknown"
    return round(before.text_bytes * documents / before.documents), "estimated"


def changes(flow: Flow, scan: Scan, stages: list[StageFact]) -> list[Change]:
    """Return what was cut and replaced; spans are estimates where not all of the ledger is read."""
    order = {one.label: place for place, one in enumerate(stages)}
    found = []
    for (action, label, rule, source), documents in flow.counted.items():
        if action == "dropped" or label not in order:
            continue
        tally = scan.tallies.get(Group(label, rule, action, source), Tally())
        spans, size, how = _scaled(tally, documents)
        found.append(Change(label, rule, action, source, documents, spans, size, how))
    return sorted(found, key=lambda one: (order[one.stage], -one.documents, one.rule, one.source))


def _scaled(tally: Tally, documents: int) -> tuple[int | None, int | None, How]:
    if tally.rows == documents:
        return tally.spans, tally.span_bytes, "exact"
    if tally.rows == 0:
        return None, None, "unknown"
    scale = documents / tally.rows
    return round(tally.spans * scale), round(tally.span_bytes * scale), "estimated"


def changed_documents(flow: Flow, counts: Counts) -> int | None:
    """Return how often a stage changed a document; None where nobody has counted that."""
    labels = {label for action, label, *_ in flow.counted if action != "dropped"}
    num = 0
    for label in flow.labels:
        if counts.has(label):
            num += sum(one.documents for one in counts.by_source(label, "rewritten").values())
        elif label in labels:
            mine = [(key, value) for key, value in flow.counted.items() if key[1] == label]
            rules = {key[2] for key, _ in mine if key[0] != "dropped"}
            if len(rules) > 1:
                return None
            num += sum(value for key, value in mine if key[0] != "dropped")
    return num if counts.is_whole or not labels else None

"""Funnel, drops and changes by stage and source, with documents, bytes and tokens in between."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from corpuskit.engine import registry
from corpuskit.engine.mixture import PACK
from corpuskit.engine.status import funnel, stage_states
from corpuskit.inspect.archive import with_prefix
from corpuskit.inspect.counts import ledger_counts
from corpuskit.inspect.report.ledger import Group, SpanTally
from corpuskit.stage import CellStage, GlobalStage, Source
from corpuskit.stages.sequences._rows import TOKENS_PER_BYTE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from corpuskit.engine.config import Step
    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import Sealed
    from corpuskit.inspect.counts import ProfileTotals
    from corpuskit.inspect.report.ledger import Scan


How = Literal["exact", "estimated", "unknown"]

_ORDER: tuple[How, ...] = ("exact", "estimated", "unknown")

Counted = Counter[tuple[str, str, str, str]]
"""(drop, cut or replace; stage; rule; source) -> documents."""


@dataclasses.dataclass(frozen=True)
class TextVolume:
    """Documents and what is in them; None = not known."""

    documents: int | None = None
    text_bytes: int | None = None
    text_bytes_how: How = "unknown"
    tokens: int | None = None
    tokens_how: How = "unknown"


def total(volumes: Iterable[TextVolume]) -> TextVolume:
    """Return the sum of volumes, as exact as the least exact one that has documents."""
    present = [volume for volume in volumes if volume.documents != 0]
    if any(volume.documents is None for volume in present):
        return TextVolume()
    documents = sum(volume.documents or 0 for volume in present)
    text, text_how = _sum([(volume.text_bytes, volume.text_bytes_how) for volume in present])
    tokens, tokens_how = _sum([(volume.tokens, volume.tokens_how) for volume in present])
    return TextVolume(documents, text, text_how, tokens, tokens_how)


def _sum(values: list[tuple[int | None, How]]) -> tuple[int | None, How]:
    if any(value is None for value, _ in values):
        return None, "unknown"
    how: How = max((how for _, how in values), key=_ORDER.index, default="exact")
    return sum(value or 0 for value, _ in values), how


@dataclasses.dataclass(frozen=True)
class Flow:
    """What went through the stages.

    Attributes:
        labels: of formats and stages, in the order of the plan.
        volumes: label -> source -> before it; of "" after the last one.
        ledger: documents by action, stage, rule and source.
        notes: what figures rest on.
    """

    labels: tuple[str, ...]
    volumes: Mapping[str, Mapping[str, TextVolume]]
    ledger: Counted
    notes: tuple[str, ...]

    def after(self, label: str) -> Mapping[str, TextVolume]:
        """Return what a stage left, by source."""
        position = self.labels.index(label) + 1
        return self.volumes[self.labels[position] if position < len(self.labels) else ""]


def flow(run: RunDirectory, finished: Sealed, counts: ProfileTotals) -> Flow:
    """Return documents, bytes and tokens before each stage, as far as they are known."""
    formats = list(dict.fromkeys(step.name for step in run.plan.file.sources))
    steps = {step.label: step for step in run.plan.file.steps}
    labels = (*formats, *steps)
    counter = _ledger_totals(finished)
    dropped: Counter[tuple[str, str]] = Counter()
    for (kind, label, _, source), num in counter.items():
        dropped[label, source] += num if kind == "drop" else 0
    positions = {label: position for position, label in enumerate(labels)}
    observed = _observed(run, finished, counts, positions)
    tokens = _Tokens(run, finished)
    sealed_indices = {phase.index for phase, _ in finished}
    reached = _reached(run, sealed_indices, labels, len(formats))
    volumes: dict[str, dict[str, TextVolume]] = {label: {} for label in (*labels, "")}
    for source in (step.label for step in run.plan.file.sources):
        documents = sum(s.counters.get(f"read/{source}", 0) for p, s in finished if p.base is None)
        size: int | None = None
        how: How = "exact"
        mean = 0.0
        for position, label in enumerate((*labels, "")):
            if position > reached:
                volumes[label][source] = TextVolume()
                continue
            size, how = _size(observed, position, source, documents, size, how, mean)
            mean = size / documents if size is not None and documents else mean
            is_packed = position > positions.get("tokenize", len(labels))
            volume = TextVolume(documents, size, how)
            volumes[label][source] = tokens.added(volume, source, is_packed=is_packed)
            documents -= dropped[label, source]
            if dropped[label, source] or _changes(steps.get(label), source, counter, counts):
                how = "estimated"
    return Flow(labels, volumes, counter, tuple(tokens.notes))


def _size(
    observed: Mapping[tuple[int, str], int], position: int, source: str, documents: int,
    size: int | None, how: How, mean: float,
) -> tuple[int | None, How]:  # fmt: skip
    """Return bytes before a stage: as observed, as before, or from the mean size."""
    if documents == 0:
        return 0, "exact"
    if (position, source) in observed:
        return observed[position, source], "exact"
    if size is None:
        return None, "unknown"
    return (size, how) if how == "exact" else (round(documents * mean), "estimated")


def _ledger_totals(finished: Sealed) -> Counted:
    counts: Counted = Counter()
    for _, seal in finished:
        for key, value in ledger_counts(seal):
            counts[key] += value
    return counts


def _observed(
    run: RunDirectory, finished: Sealed, counts: ProfileTotals, positions: Mapping[str, int]
) -> dict[tuple[int, str], int]:
    """Return (position, source) -> bytes of text, where somebody has counted all of them."""
    observed: dict[tuple[int, str], int] = {}
    cursor = len({step.name for step in run.plan.file.sources})
    for phase, seal in finished:
        stages = [positions[label] for label in phase.labels if label in positions]
        if phase.is_stream:
            stages = [] if phase.refers else stages  # what the stage drops is known passes later
            first = stages[0] if stages else cursor
            begin = 0 if phase.base is None else first  # what a source rejects has no bytes
            for position in range(begin, first + 1):
                _note(observed, position, with_prefix(seal.counters, "read_bytes/"))
            cursor = stages[-1] + 1 if stages else cursor
            _note(observed, cursor, with_prefix(seal.counters, "kept_bytes/"))
            if counts.is_whole:
                _note(observed, cursor, _sizes(counts.left_of(phase.name)))
                for label in () if phase.refers else phase.labels:
                    if run.plan.step(label).applies.where:
                        continue  # it has seen some of the documents only
                    _note(observed, positions[label], _sizes(counts.by_source(label, "seen")))
        # The first pass of a stage on documents reads all of them.
        elif (
            stages
            and _has_documents(run, phase)
            and not phase.earlier
            and not run.plan.applies(phase).where
        ):
            timing = {name: round(value) for name, value in seal.timing.items()}
            _note(observed, stages[0], with_prefix(timing, "source_bytes/"))
            cursor = max(cursor, stages[0] + 1)
        elif stages and _has_documents(run, phase):
            cursor = max(cursor, stages[0] + 1)
    return observed


def _note(observed: dict[tuple[int, str], int], position: int, sizes: Mapping[str, int]) -> None:
    for source, size in sizes.items():
        observed.setdefault((position, source), size)


def _sizes(pairs: Mapping[str, Any]) -> dict[str, int]:
    return {source: pair.text_bytes for source, pair in pairs.items()}


def _has_documents(run: RunDirectory, phase: Phase) -> bool:
    stage = run.plan.step(phase.labels[0]).stage
    return isinstance(stage, GlobalStage) and stage.reads == "documents"


def _changes(step: Step | None, source: str, counter: Counted, counts: ProfileTotals) -> bool:
    """Return whether a stage changed texts of a source, or may have."""
    if step is None:
        return False
    if any(k != "drop" and (a, c) == (step.label, source) for k, a, _, c in counter):
        return True
    if isinstance(step.stage, GlobalStage | CellStage):
        return False  # those that cut say so in the ledger
    if counts.is_whole and counts.has(step.label):
        return source in counts.by_source(step.label, "rewritten")
    return registry.kind_of(step.name) not in ("annotators", "filters", "sequences")


def _reached(run: RunDirectory, sealed_indices: set[int], labels: Sequence[str], num: int) -> int:
    """Return the last position that is known: before the first stage with an open phase."""
    if 0 not in sealed_indices:
        return -1
    for position, label in enumerate(labels):
        phases = [phase for phase in run.plan.phases if label in phase.labels]
        is_open = any(phase.index not in sealed_indices for phase in phases)
        if position >= num and (is_open or not phases):  # `until` leaves the last stages out
            return position
    return len(labels)


class _Tokens:
    """Tokens of texts, by what packing counted of each source."""

    def __init__(self, run: RunDirectory, finished: Sealed) -> None:
        self._counters = next((s.counters for p, s in finished if p.name == PACK), None)
        self._is_planned = any(step.name == "tokenize" for step in run.plan.file.steps)
        self._ratios = {
            step.label: ratio
            for step in run.plan.file.sources
            if (
                ratio := self._num("tokens", step.label)
                / max(self._num("text_bytes", step.label), 1)
            )
        }
        self.notes = [self._note()] if self._is_planned else []

    def added(self, volume: TextVolume, source: str, *, is_packed: bool) -> TextVolume:
        """Return a volume with its tokens."""
        if not self._is_planned or volume.text_bytes is None:
            return volume
        if volume.documents == 0:
            return dataclasses.replace(volume, tokens=0, tokens_how="exact")
        is_once = self._num("copies", source) == self._num("documents", source) > 0
        if is_packed and is_once:
            num = self._num("tokens", source)
            return dataclasses.replace(volume, tokens=num, tokens_how="exact")
        num = round(volume.text_bytes * self._ratio(source))
        return dataclasses.replace(volume, tokens=num, tokens_how="estimated")

    def _num(self, name: str, source: str) -> int:
        return 0 if self._counters is None else self._counters.get(f"{name}/{source}", 0)

    def _ratio(self, source: str) -> float:
        if source in self._ratios:
            return self._ratios[source]
        ratios = list(self._ratios.values())
        return sum(ratios) / len(ratios) if ratios else TOKENS_PER_BYTE

    def _note(self) -> str:
        if not self._ratios:
            return f"Tokens are estimated: {TOKENS_PER_BYTE} per byte of text assumed."
        ratios = ", ".join(f"{name} {ratio:.3f}" for name, ratio in self._ratios.items())
        return (
            f"Tokens before packing are estimated: bytes of text times the tokens per byte that "
            f"packing counted ({ratios})."
        )


# ---------------------------------------------------------------- rows that the report shows


def stage_facts(run: RunDirectory, finished: Sealed, current: str | None) -> list[dict[str, Any]]:
    """Return the formats and stages in the order of the plan, as JSON values.

    `state` is `done`, `running`, `waiting` or `not run` (after `--until`); `params` are those that
    are not the defaults, of a format those of its first source.

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
        phases = [
            phase.name
            for phase in run.plan.phases
            if (phase.base is None if is_source else label in phase.labels)
        ]
        facts.append(
            {
                "label": label, "name": step.name, "kind": step.kind,
                "summary": registry.summary(step.name), "phases": phases,
                "state": "running" if state == "waiting" and current in phases else state,
                "params": changed_params(step.stage) | step.applies.to_json(),
            }
        )  # fmt: skip
    return facts


def changed_params(stage: Any) -> dict[str, Any]:
    """Return the parameters of a stage that are not the defaults, as JSON values."""
    params: dict[str, Any] = stage.model_dump(mode="json", exclude_defaults=True)
    return {name: value for name, value in params.items() if name != "paths"}


def funnel_rows(
    run: RunDirectory, finished: Sealed, flow: Flow, stages: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return a row for every source and every stage: what came in and went out, by source.

    Args:
        finished: finished phases, or what the first one has done so far.
        stages: which say how far they are.
    """
    states = {(stage["kind"] == "source", stage["label"]): stage["state"] for stage in stages}
    rows = []
    for row in funnel(run, finished):
        label = row.name if row.is_source else row.stage
        state = states[row.is_source, label]
        before, after = (
            {row.stage: sides[row.stage]} if row.is_source else sides
            for sides in (flow.volumes[label], flow.after(label))
        )
        sources = {
            name: {"in": volume, "out": after[name]}
            for name, volume in before.items()
            if volume.documents is not None or state == "done"
        }
        rows.append(
            {
                "stage": row.stage, "kind": row.kind, "name": row.name, "state": state,
                "sources": sources, "not_applied": row.not_applied,
                "in": total(before.values()), "out": total(after.values()),
            }
        )  # fmt: skip
    return rows


def drops(flow: Flow, counts: ProfileTotals, stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what every rule dropped of every source, in plan order, most documents first."""
    kinds = {stage["label"]: stage["kind"] for stage in stages}
    rows = []
    for (action, label, rule, source), documents in flow.ledger.items():
        if action == "drop" and label in kinds:
            group, is_source = Group(label, rule, "drop", source), kinds[label] == "source"
            size, how = _dropped_bytes(flow, counts, group, documents, counts_nothing=is_source)
            rows.append(
                {
                    "stage": label, "rule": rule, "source": source, "kind": kinds[label],
                    "documents": documents, "text_bytes": size, "text_bytes_how": how,
                }
            )  # fmt: skip
    return _in_order(rows, stages)


def _in_order(rows: list[dict[str, Any]], stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    order = {stage["label"]: position for position, stage in enumerate(stages)}
    return sorted(rows, key=lambda r: (order[r["stage"]], -r["documents"], r["rule"], r["source"]))


def _dropped_bytes(
    flow: Flow, counts: ProfileTotals, group: Group, documents: int, *, counts_nothing: bool
) -> tuple[int | None, How]:
    """Return the bytes of dropped documents: as counted, as what is missing, or by mean size."""
    rows = counts.rows(group.stage, "dropped")
    group_rows = [r for r in rows if (r["field"], r["source"]) == (group.rule, group.source)]
    num, size = (sum(row[name] for row in group_rows) for name in ("documents", "text_bytes"))
    if counts.is_whole and counts.has(group.stage):
        return size, "exact"
    if counts_nothing:
        return None, "unknown"  # what a source rejects was never text
    if num:  # of the parts that were read
        return round(size * documents / num), "estimated"
    before = flow.volumes[group.stage][group.source]
    after = flow.after(group.stage)[group.source]
    same_group = [key for key in flow.ledger if (key[1], key[3]) == (group.stage, group.source)]
    is_exact = before.text_bytes_how == after.text_bytes_how == "exact"
    if len(same_group) == 1 and is_exact and before.documents == (after.documents or 0) + documents:
        return (before.text_bytes or 0) - (after.text_bytes or 0), "exact"
    if before.text_bytes is None or not before.documents:
        return None, "unknown"
    return round(before.text_bytes * documents / before.documents), "estimated"


def changes(flow: Flow, scan: Scan, stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what was cut and replaced; spans are estimates where not all of the ledger is read."""
    labels = {stage["label"] for stage in stages}
    rows = []
    for (action, label, rule, source), documents in flow.ledger.items():
        if action == "drop" or label not in labels:
            continue
        tally = scan.tallies.get(Group(label, rule, action, source), SpanTally())
        spans, size, how = _scaled(tally, documents)
        rows.append(
            {
                "stage": label, "rule": rule, "action": action, "source": source,
                "documents": documents, "spans": spans, "span_bytes": size, "how": how,
            }
        )  # fmt: skip
    return _in_order(rows, stages)


def _scaled(tally: SpanTally, documents: int) -> tuple[int | None, int | None, How]:
    if tally.rows == documents:
        return tally.spans, tally.span_bytes, "exact"
    if tally.rows == 0:
        return None, None, "unknown"
    scale = documents / tally.rows
    return round(tally.spans * scale), round(tally.span_bytes * scale), "estimated"


def changed_documents(flow: Flow, counts: ProfileTotals) -> int | None:
    """Return how often a stage changed a document; None where nobody has counted that."""
    labels = {label for action, label, *_ in flow.ledger if action != "drop"}
    num = 0
    for label in flow.labels:
        if counts.has(label):
            num += sum(row.documents for row in counts.by_source(label, "rewritten").values())
        elif label in labels:
            label_counts = [(key, value) for key, value in flow.ledger.items() if key[1] == label]
            rules = {key[2] for key, _ in label_counts if key[0] != "drop"}
            if len(rules) > 1:
                return None
            num += sum(value for key, value in label_counts if key[0] != "drop")
    return num if counts.is_whole or not labels else None

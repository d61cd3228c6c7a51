"""The history of one document: where it came from, what every stage did with it, where it went.

Of each phase one part is opened, and of that one row group: parts are sorted by key. So a history
costs the same in a corpus of any size.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from corpuskit.engine import registry
from corpuskit.engine.applies import view_after
from corpuskit.engine.records import FIXED, ID, MEASURES, measuring
from corpuskit.engine.reuse import CELLS_PER_UNIT
from corpuskit.engine.status import outdated
from corpuskit.errors import CorpuskitError, TaskError
from corpuskit.formats.shards import TEXT_HASH
from corpuskit.formats.shuffle_files import read_shuffle
from corpuskit.inspect.archive import (
    ROW,
    InputReader,
    as_json,
    cluster_parts,
    document_rows,
    documents_of,
    folder_of,
    rows_of,
    sidecar_row,
)
from corpuskit.inspect.samples import excerpts as around
from corpuskit.stage import StreamingStage, View

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from corpuskit.engine.config import Step
    from corpuskit.engine.plan import Phase
    from corpuskit.formats.manifest import Part, Seal
    from corpuskit.inspect.lookup import RunDocuments
    from corpuskit.inspect.occurrences import Training
    from corpuskit.stage import Outcome, Stage

FORMAT = 2  # of the JSON that `corpuskit why --json` prints

StageOutcome = Literal[
    "kept", "dropped", "held out", "cut", "replaced", "not applied", "not reached", "not finished",
    "not run",
]  # fmt: skip
"""What a stage did with a document. `not applied`: its sources or conditions leave it out;
`not finished`: its phase is not; `not run`: the stage is not
in the plan of this run (`--until`)."""

SHOWN_CHARS = 600  # characters of the present text of a document in its history
MARGIN = 60  # bytes shown on both sides of a span

MAX_EXCERPTS = 5
MAX_SPAN = 300

MEMBERS = 10  # other documents of a cluster that are named; the rest are counted

MAX_CLUSTER_FILES = 64
"""Files with clusters that are searched; if there are more, members are not listed."""

_DIVERTED = "aside:"


def history_of(
    documents: RunDocuments,
    key: int,
    *,
    recompute: bool = False,
    global_batch_rows: int | Sequence[tuple[int, int]] | None = None,
    training: Training | None = None,
) -> dict[str, Any]:
    """Return the history of a document as JSON values.

    Args:
        recompute: apply the streaming stages to it again, for the values of all their rules.
        global_batch_rows: list the steps of this many rows that take it.
        training: list the steps of this training instead.

    Returns:
        `key`, `id`, `source`, `origin`, `outcome` (kept, dropped, held out, or unfinished),
        `kept`, `stages` in the order of the plan, `now` (where the document is), `text` (the
        beginning of it), `tokens` (see `occurrences.token_facts`), and `ledger`, its rows there.
    """
    return _DocumentHistory(documents, key).facts(recompute, global_batch_rows, training)


class _DocumentHistory:
    """Collects what the finished phases say about one document."""

    def __init__(self, documents: RunDocuments, key: int) -> None:
        self.documents, self.run, self.key = documents, documents.run, key
        self.identity = documents.identify(key)
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self._stored: dict[int, dict[str, Any] | None] = {}
        # The document as the last finished streaming phase before its end left it.
        self.last: dict[str, Any] | None = None

    def facts(
        self,
        recompute: bool,
        global_batch_rows: int | Sequence[tuple[int, int]] | None,
        training: Training | None,
    ) -> dict[str, Any]:
        plan = self.run.plan
        self.rows = [
            row for phase, seal in self.documents.finished for row in self._ledger(phase, seal)
        ]
        drop = next((row for row in self.rows if row["action"] == "drop"), None)
        stages = self._stages(drop)
        if recompute:
            recomputed = self._recomputed(drop)
            for entry in stages:
                entry.update(recomputed.get(entry["stage"], {}))
        outcome = "kept" if len(self.documents.finished) == len(plan.phases) else "unfinished"
        if drop is not None:
            outcome = "held out" if self._diverted(drop) else "dropped"
        file = self.identity.file
        facts = {
            "key": self.key,
            "id": self.identity.id,
            "source": self.identity.source,
            "origin": {
                "file": file.path if file else None, "name": file.name if file else None,
                "position": self.identity.position, "url": self.identity.url,
                "date": self.identity.date,
            },
            "outcome": outcome,
            "kept": drop is None,
            "stages": stages,
            "now": self._now(drop),
            **self._text(drop),
            "extra": None if self.last is None else self._columns(self.last),
            "tokens": None,
            "ledger": [{k: as_json(v) for k, v in row.items() if k != "text"} for row in self.rows],
            "notes": self.notes,
        }  # fmt: skip
        if drop is None and any(phase.role == "tokens" for phase in plan.phases):
            from corpuskit.inspect.occurrences import token_facts

            address, shift = self.documents.packed
            facts["tokens"] = token_facts(
                address, self.key + shift, global_batch_rows=global_batch_rows, training=training
            )
        return facts

    # ------------------------------------------------------------ what is stored

    def _ledger(self, phase: Phase, seal: Seal) -> list[dict[str, Any]]:
        return [
            {"phase": phase.name, "part": part.path, **row}
            for part in seal.by_role("ledger").within(self.key, self.key + 1)
            for row in self._read(part, "doc_key", without={"text"})
        ]

    def _read(
        self, part: Part, column: str = "key", without: Collection[str] = ()
    ) -> list[dict[str, Any]]:
        """Return the rows of this document in a part; a missing file is noted."""
        try:
            return rows_of(self.run.at(part), self.key, column, without)
        except FileNotFoundError:
            self._note_missing(part)
            return []

    def _sidecar_row(self, part: Part, row: int) -> dict[str, Any]:
        try:
            return sidecar_row(self.run.at(part), row)
        except FileNotFoundError:
            self._note_missing(part)
            return {}

    def _note_missing(self, part: Part) -> None:
        self.notes.append(f"{part.path} is gone, so what it says is missing here.")

    def _document(self, index: int | None) -> dict[str, Any] | None:
        if index is None:
            return None
        if index not in self._stored:
            part = self.documents.part(index, "documents", self.key)
            rows = [] if part is None else self._read(part)
            if part is not None and rows and TEXT_HASH in rows[0]:
                try:
                    rows = document_rows(self.run, part, self.key)
                except (CorpuskitError, OSError) as error:
                    self.notes.append(f"the text is not stored, but read from the input: {error}")
            self._stored[index] = rows[0] if rows else None
        return self._stored[index]

    def _last_document(self, drop: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the document as the last streaming phase that kept it wrote it."""
        if drop is not None and (diverted := self._diverted(drop)) is not None:
            return next(iter(self._read(diverted)), None)
        end = len(self.run.plan.phases) if drop is None else self._phase(drop).index
        for phase in reversed(self.run.plan.phases[:end]):
            if phase.is_stream and (document := self._document(phase.index)):
                return document
        return None

    def _phase(self, row: dict[str, Any]) -> Phase:
        return next(phase for phase in self.run.plan.phases if phase.name == row["phase"])

    def _diverted(self, drop: dict[str, Any]) -> Part | None:
        """Return the part of held-out documents that has this one; None if it was dropped."""
        step = next((s for s in self.run.plan.file.steps if s.label == drop["stage"]), None)
        folder = step.stage.diverts if step and isinstance(step.stage, StreamingStage) else ""
        if not folder:
            return None
        return self.documents.part(self._phase(drop).index, _DIVERTED + folder, self.key)

    def _now(self, drop: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return part and row of the document where it is now; None if it is nowhere."""
        if drop is not None:
            part = self._diverted(drop)
            row = None if part is None or self.last is None else self.last[ROW]
            return None if part is None else {"part": part.path, ROW: row}
        for phase in reversed(self.run.plan.phases):
            if phase.is_stream and (document := self._document(phase.index)):
                part = self.documents.part(phase.index, "documents", self.key)
                return {"part": part.path if part else None, ROW: document[ROW]}
        return None

    def _text(self, drop: dict[str, Any] | None) -> dict[str, Any]:
        """Return the beginning of the text: as it was last stored, else what the ledger kept."""
        text, text_from = None, None
        if self.last is not None:
            text = self.last["text"]
            text_from = None if text is None else "documents"
        elif drop is not None:
            rows = rows_of(self.run.store.at(drop["part"]), self.key, "doc_key")
            text = next((row["text"] for row in rows if row["text"] is not None), None)
            text_from = None if text is None else "ledger"
        size = None if text is None else len(text.encode())
        beginning = None if text is None else text[:SHOWN_CHARS]
        return {"text": beginning, "text_bytes": size, "text_from": text_from}

    def _columns(self, document: Mapping[str, Any]) -> dict[str, Any]:
        fixed = {"key", "id", "text", TEXT_HASH, "source", "origin", ROW}
        columns = {k: as_json(v) for k, v in document.items() if k not in fixed and "." not in k}
        return {name: value for name, value in columns.items() if value is not None}

    # ------------------------------------------------------------ what the stages did

    def _stages(self, drop: dict[str, Any] | None) -> list[dict[str, Any]]:
        self.last = self._last_document(drop)
        sources = [s for s in self.run.plan.file.sources if s.label == self.identity.source][:1]
        steps = [(step, step.name, True) for step in sources]
        steps += [(step, step.label, False) for step in self.run.plan.file.steps]
        entries = []
        is_over = False
        for step, label, is_source in steps:
            entry = self._stage(step, label, is_source=is_source)
            if is_over:
                entry["outcome"] = "not reached"
            elif entry["outcome"] == "kept" and not self._applies(step):
                entry["outcome"] = "not applied"
            is_over = is_over or (drop is not None and label == drop["stage"])
            if entry["outcome"] not in ("not applied", "not reached", "not finished", "not run"):
                self._add_values(entry, step)
            entries.append(entry)
        return entries

    def _stage(self, step: Step, label: str, *, is_source: bool) -> dict[str, Any]:
        plan = self.run.plan
        phases = [plan.phases[0]] if is_source else [p for p in plan.phases if label in p.labels]
        rows = [row for row in self.rows if row["stage"] == label]
        outcome: StageOutcome = "kept"
        if not phases:
            outcome = "not run"
        elif any(phase.index not in self.documents.seals for phase in phases):
            outcome = "not finished"
        actions = {row["action"] for row in rows}
        if "drop" in actions:
            outcome = "held out" if getattr(step.stage, "diverts", "") else "dropped"
        elif actions:
            outcome = "cut" if "cut" in actions else "replaced"
        return {
            "stage": label,
            "kind": registry.kind_of(step.name),
            "phase": phases[-1].name if phases else None,
            "outcome": outcome,
            "applies": step.applies.describe() or None,
            "rows": [self._ledger_entry(step, row) for row in rows],
        }

    def _applies(self, step: Step) -> bool:
        """Return whether a stage that has no ledger row of the document applies to it."""
        if not step.applies.to_source(self.identity.source or ""):
            return False
        for condition in step.applies.where:
            if self.last is None or condition.column not in self.last:
                self.notes.append(
                    f"whether {step.label} applies is not stored: {condition.describe()}; "
                    "--recompute tells."
                )
                return True
            value = self.last[condition.column]
            if value is None or not condition.holds(pa.array([value]))[0]:
                return False
        return True

    def _ledger_entry(self, step: Step, row: dict[str, Any]) -> dict[str, Any]:
        spans = [(span["start"], span["end"]) for span in row["spans"] or ()]
        text = self._text_seen(step, row) if spans else None
        return {
            **{name: row[name] for name in ("rule", "action", "survivor_id")},
            # Ledgers of older versions have no column `lost`.
            **{name: as_json(row.get(name)) for name in ("value", "threshold", "lost")},
            **meaning_of(step.stage, row["rule"]),
            "num_spans": len(spans),
            "spans": spans,
            "excerpts": [] if text is None else excerpts(text, spans),
        }

    def _add_values(self, entry: dict[str, Any], step: Step) -> None:
        """Add the stored measures and columns of the stage, and duplicates."""
        label = entry["stage"]
        phases = [phase for phase in self.run.plan.phases if label in phase.labels]
        for phase in phases:
            part = self.documents.part(phase.index, MEASURES + label, self.key)
            for row in [] if part is None else self._read(part):
                values = {k: v for k, v in row.items() if k not in FIXED and k != ROW}
                entry["measures"] = measures_of(step.stage, values)
        added = _fields(self.last or {}, label)
        if phases and not phases[-1].is_stream:
            added = self._sidecar(phases[-1]) or added
            survivor = next((row["survivor_id"] for row in entry["rows"]), None)
            entry["cluster"] = cluster_facts(self.documents, phases[-1], self.key, added, survivor)
        entry["annotations"] = added

    def _sidecar(self, phase: Phase) -> dict[str, Any]:
        """Return the columns that a global stage added to the document."""
        document = self._document(phase.base)
        part = (
            None if phase.base is None else self.documents.part(phase.base, "documents", self.key)
        )
        seal = self.documents.seals.get(phase.index)
        if document is None or part is None or seal is None:
            return {}
        columns: dict[str, Any] = {}
        for sidecar in seal.by_role("sidecar").of_unit(part.unit):
            columns |= _fields(self._sidecar_row(sidecar, document[ROW]), phase.labels[0])
        return columns

    def _text_seen(self, step: Step, row: dict[str, Any]) -> str | None:
        """Return the text that a stage saw, for the spans of a ledger row, if it is stored."""
        phase = self._phase(row)
        if self.run.plan.settings.ledger.keep_text:
            path = self.run.store.at(row["part"])
            for ledger_row in rows_of(path, self.key, "doc_key"):
                if ledger_row["stage"] == row["stage"] and ledger_row["text"] is not None:
                    return str(ledger_row["text"])
        if phase.base is None or (phase.is_stream and self._may_rewrite_before(phase, step)):
            return None
        document = self._document(phase.base)
        part = self.documents.part(phase.base, "documents", self.key)
        if document is None or part is None or document["text"] is None:
            return None
        data: bytes = document["text"].encode()
        for index in phase.sidecars:
            seal = self.documents.seals.get(index)
            for sidecar in [] if seal is None else seal.by_role("sidecar").of_unit(part.unit):
                for span in reversed(self._sidecar_row(sidecar, document[ROW]).get("cuts") or []):
                    data = data[: span["start"]] + data[span["end"] :]
        return data.decode("utf-8", "replace")

    def _may_rewrite_before(self, phase: Phase, step: Step) -> bool:
        """Return whether a stage before this one in its phase may have changed texts."""
        seal = self.documents.seals.get(phase.index)
        counters = {} if seal is None else seal.counters
        for label in phase.labels[: phase.labels.index(step.label)]:
            name = self.run.plan.step(label).name
            changes = (f"cut/{label}/", f"replace/{label}/")
            if (
                registry.kind_of(name) in ("rewriters", registry.THIRD_PARTY)
                or name == "datatrove"
                or any(counter.startswith(changes) for counter in counters)
            ):
                return True
        return False

    # ------------------------------------------------------------ what the stages do now

    def _recomputed(self, drop: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
        """Return what the streaming stages do when they are applied again, by label.

        Stages decide about a document alone, so their decisions are those of the run, if code and
        files are the same.
        """
        for phase in outdated(self.run, self.documents.finished):
            self.notes.append(
                f"phase {phase.name} was made with other parameters, files or inputs than the plan "
                "now has: recomputed values are those of the new ones."
            )
        end = len(self.run.plan.phases) if drop is None else self._phase(drop).index + 1
        entries: dict[str, dict[str, Any]] = {}
        for phase in self.run.plan.phases[:end]:
            entries |= self._recomputed_phase(phase) if phase.is_stream else {}
        try:
            self.run.check_code()
        except CorpuskitError:
            self.notes.append("recomputed by other code than the run was made with")
        return entries

    def _recomputed_phase(self, phase: Phase) -> dict[str, dict[str, Any]]:
        """Return what each stage of a phase does, up to one that drops the document."""
        source = self.identity.source or ""
        steps = [
            step
            for step in self.run.plan.steps_of(phase, source)
            if registry.kind_of(step.name) != "sequences"
            or bool(getattr(step.stage, "diverts", ""))
        ]
        if not steps:
            return {}
        try:
            view = View(self._batch(phase))
        except (CorpuskitError, OSError) as error:
            return {step.label: {"recomputed": {"error": str(error)}} for step in steps}
        entries: dict[str, dict[str, Any]] = {}
        for step in steps:
            if not isinstance(step.stage, StreamingStage):
                break
            if step.applies.select(view)[0].num_docs == 0:
                entries[step.label] = {"recomputed": {"outcome": "not applied"}}
                view = view_after(step.label, step.stage, view, None, None)
                continue
            try:
                with folder_of(self.run):
                    outcome = measuring(step.stage).apply(view)
            except CorpuskitError as error:  # a model or a list is gone
                entries[step.label] = {"recomputed": {"error": str(error)}}
                break
            entries[step.label] = _recomputed_entry(step.stage, view, outcome)
            if outcome.codes is not None and outcome.codes[0]:
                break
            view = view_after(step.label, step.stage, view, outcome, None)
        return entries

    def _batch(self, phase: Phase) -> pa.RecordBatch:
        """Return the document as a phase read it.

        Raises:
            TaskError: it cannot be read, or is not stored.
        """
        if phase.base is not None:
            if any(index not in self.documents.seals for index in phase.waits):
                raise TaskError("the phases before it are not finished.")
            for batch in documents_of(self.run, phase, [self.key], None):
                return batch
            raise TaskError("the document is not stored.")
        if self.identity.file is None:
            raise TaskError("its input file is not one of this run.")
        reader = InputReader(self.run)
        for unit in self._input_units() or self.run.inputs.units:
            for batch in reader.read(unit, [self.key]):
                return batch
        rejected = "the source rejects it, so no stage sees it"
        raise TaskError(reader.problems.get(self.key, rejected))

    def _input_units(self) -> set[int]:
        parts = [self.documents.part(0, role, self.key) for role in ("documents", "ledger")]
        return {part.unit // CELLS_PER_UNIT for part in parts if part is not None}


def _recomputed_entry(stage: StreamingStage, view: View, outcome: Outcome) -> dict[str, Any]:
    code = 0 if outcome.codes is None else int(outcome.codes[0])
    recomputed: dict[str, Any] = {"outcome": "kept"}
    if code:
        rule = str(outcome.reasons_of(np.zeros(1, np.int64), stage.rules)[0].as_py())
        threshold = stage.threshold(stage.rules[code - 1])
        if outcome.bounds is not None:
            threshold = float(outcome.bounds[0])
        value = float("nan") if outcome.values is None else float(outcome.values[0])
        recomputed = {
            "outcome": "dropped", "rule": rule,
            "value": _number(value), "threshold": _number(threshold),
            **meaning_of(stage, rule),
        }  # fmt: skip
    entry: dict[str, Any] = {"recomputed": recomputed | _changes(stage, view, outcome)}
    if outcome.measures:
        values = {name: float(column[0]) for name, column in outcome.measures.items()}
        entry["measures"] = measures_of(stage, values)
    if outcome.columns:
        entry["annotations"] = {k: as_json(v[0].as_py()) for k, v in outcome.columns.items()}
    return entry


def _changes(stage: StreamingStage, view: View, outcome: Outcome) -> dict[str, Any]:
    """Return what a stage does to the text: sizes, and the spans it cuts or replaces, by rule."""
    changes: dict[str, Any] = {}
    before = view.text.row(0)
    if outcome.text is not None and (after := outcome.text.row(0)) != before:
        changes = {"bytes_before": len(before), "bytes_after": len(after)}
    if outcome.spans is not None and len(outcome.spans.rows):
        spans = outcome.spans
        text = before.decode("utf-8", "replace")
        rows = list(zip(spans.starts.tolist(), spans.ends.tolist(), spans.codes, strict=True))
        changes["spans"] = [
            {
                "rule": rule, "action": spans.action, "num_spans": len(pairs),
                "excerpts": excerpts(text, pairs),
            }
            for code, rule in enumerate(stage.rules, 1)
            if (pairs := [(start, end) for start, end, row_code in rows if row_code == code])
        ]  # fmt: skip
    return changes


def _fields(row: Mapping[str, Any], label: str) -> dict[str, Any]:
    prefix = f"{label}."
    return {k.removeprefix(prefix): as_json(v) for k, v in row.items() if k.startswith(prefix)}


# ---------------------------------------------------------------- what values mean


def meaning_of(stage: Stage, reason: str) -> dict[str, Any]:
    """Return the parameter that is the threshold of a rule, and its description.

    Args:
        reason: a rule, and after a colon details, as the ledger has it.
    """
    parameter = stage.bounds.get(reason.partition(": ")[0])
    if parameter is None:
        return {"parameter": None, "meaning": None}
    return {"parameter": parameter, "meaning": _descriptions(type(stage)).get(parameter)}


@functools.cache
def _descriptions(stage: type[Stage]) -> dict[str, str]:
    """Return the description of each parameter of a stage, on one line."""
    properties = stage.model_json_schema().get("properties", {})
    lines = {name: " ".join(str(schema.get("description", "")).split())
             for name, schema in properties.items()}  # fmt: skip
    return {name: line for name, line in lines.items() if line}


def measures_of(stage: Stage, values: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """Return measured values with the thresholds of their rules, in the order of the rules.

    `fails` says whether the value breaks its threshold; later rules were not asked where one does.
    """
    order = {rule: index for index, rule in enumerate(stage.rules)}
    rows = []
    for rule in sorted(values, key=lambda name: order.get(name, len(order))):
        value = values[rule]
        number = float("nan") if value is None else float(value)
        fails = rule in order and bool(stage.fails(rule, np.array([number]))[0])
        rows.append(
            {
                "rule": rule, "value": _number(number), "threshold": _number(stage.threshold(rule)),
                **meaning_of(stage, rule), "fails": fails,
            }
        )  # fmt: skip
    return rows


def _number(value: float) -> Any:
    """Return a number as JSON has it: NaN is None, infinity a string."""
    return None if value != value else as_json(value)


def excerpts(text: str, spans: Sequence[tuple[int, int]]) -> list[dict[str, str]]:
    """Return the first spans of a text, with the text around them."""
    rows = []
    for before, span, after in around(text, spans[:MAX_EXCERPTS], MARGIN):
        if len(span) > MAX_SPAN:
            span = f"{span[: MAX_SPAN // 2]} ... {span[-MAX_SPAN // 2 :]}"
        rows.append({"before": before, "span": span, "after": after})
    return rows


# ---------------------------------------------------------------- duplicates


def cluster_facts(
    documents: RunDocuments,
    phase: Phase,
    key: int,
    decision: Mapping[str, Any],
    survivor_id: str | None,
) -> dict[str, Any] | None:
    """Return the cluster of a document as JSON values, None if it has no duplicate.

    Args:
        phase: the last pass of the stage that clusters documents.
        decision: what the stage says of the document: `cluster_id`, `cluster_size`, `cluster_rank`.
        survivor_id: id of the document that was kept instead; None if this is it.

    Returns:
        `id`, `size`, `rank`, `survivor` (its key, None if it is not of this run), `members` (key,
        id, rank, similarity to the survivor; at most MEMBERS others), or `unknown`: why there are
        none.
    """
    size = decision.get("cluster_size")
    if not size or size < 2:
        return None
    facts: dict[str, Any] = {
        "id": decision["cluster_id"], "size": size, "rank": decision["cluster_rank"], "members": [],
    }  # fmt: skip
    files = cluster_parts(documents.run, phase)
    if len(files) > MAX_CLUSTER_FILES:
        return {**facts, "unknown": f"clusters are in {len(files):,} files"}
    try:
        # Without a survivor this is it; or all went (`keep: none`), and the first names them.
        survivors = [key, decision["cluster_id"]]
        if survivor_id is not None:
            derived = documents.derived_key(survivor_id)
            survivors = documents.keys_of_hash(survivor_id, ID)
            survivors = survivors if derived is None else [derived, *survivors]
        rows = _cluster_rows(documents, files, key, survivors)
        if not rows:
            return {**facts, "unknown": "the document kept instead is not one of this run"}
        members = [row for row in rows if row["key"] != key][:MEMBERS]
        facts["survivor"] = rows[0]["survivor"]
        facts["members"] = [_member(documents, phase, row, survivor_id) for row in members]
    except CorpuskitError as error:
        return {**facts, "unknown": str(error)}
    except OSError:
        return {**facts, "unknown": f"the files of {phase.labels[0]} in work/ are gone"}
    return facts


def _cluster_rows(
    documents: RunDocuments, files: Sequence[Part], key: int, survivors: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the rows of the cluster of a document, by its survivor; none if it is another's.

    Args:
        survivors: keys that may be that of the survivor: ids can repeat.
    """
    for survivor in survivors:
        rows = [
            row
            for part in files
            if part.first <= survivor <= part.last
            for row in read_shuffle(documents.run.at(part), survivor, survivor + 1).to_pylist()
        ]
        if any(row["key"] == key for row in rows):
            return rows
    return []


def _member(
    documents: RunDocuments, phase: Phase, row: Mapping[str, Any], survivor_id: str | None
) -> dict[str, Any]:
    key, name = row["key"], survivor_id if row["rank"] == 0 else None
    if name is None and (part := documents.part(phase.index, "ledger", key)):
        for ledger in rows_of(documents.run.at(part), key, "doc_key", without={"text", "spans"}):
            name = ledger["doc_id"]
    similarity = row["similarity"]
    return {
        "key": key,
        "id": documents.identify(key).id if name is None else name,
        "rank": row["rank"],
        "similarity": similarity if similarity == similarity else None,
    }

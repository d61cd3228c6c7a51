"""Applies the streaming stages of a plan to one document anew: the values of all their rules.

The document is read from its input file, or from the parts that a later phase reads. Stages decide
about a document alone, so the decisions are those of the run, if code and files are the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from corpuskit.engine import registry
from corpuskit.engine.context import cell_sidecars
from corpuskit.engine.inputs import check_unchanged
from corpuskit.engine.records import measuring
from corpuskit.engine.rundir import CELLS_PER_UNIT
from corpuskit.errors import CorpuskitError, TaskError
from corpuskit.formats.batch import numbers
from corpuskit.formats.shards import read_documents
from corpuskit.inspect.why.keyed import plain
from corpuskit.inspect.why.wording import bounds_of, excerpts, meaning_of
from corpuskit.stage import StreamingStage, Unit, View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.inspect.why.history import Histories
    from corpuskit.inspect.why.lookup import Identity
    from corpuskit.stage import Outcome, SourceBatch


@contextlib.contextmanager
def folder_of(run: RunDirectory) -> Iterator[None]:
    """Work where the run was planned: paths of its inputs, models and lists are relative to it."""
    with contextlib.chdir(run.folder if os.path.isdir(run.folder) else "."):
        yield


class Afresh:
    """Measures one document.

    Args:
        who: the document.
    """

    def __init__(self, histories: Histories, who: Identity) -> None:
        self._all, self._run, self._who = histories, histories.run, who
        steps = self._run.plan.file.steps
        kinds = [(step, getattr(step.stage, "diverts", "")) for step in steps]
        self._sequences = {
            step.label for step, diverts in kinds
            if registry.kind_of(step.name) == "sequences" and not diverts
        }  # fmt: skip

    def caution(self) -> str | None:
        """Return what to think of before all else, if there is anything."""
        try:
            self._run.check_code()
        except CorpuskitError:
            return "measured anew by other code than the run was made with"
        return None

    def phase(self, phase: Phase) -> dict[str, dict[str, Any]]:
        """Return what each streaming stage of a phase says: label -> values; `anew`: how it went.

        Stages behind one that drops the document are left out.
        """
        labels = [label for label in phase.labels if label not in self._sequences]
        if not labels:
            return {}
        try:
            if phase.base is None:
                with folder_of(self._run):
                    batch = self._read_input()
            else:
                batch = self._read_cell(phase)
        except (CorpuskitError, OSError) as error:
            return {label: {"anew": {"impossible": str(error)}} for label in labels}
        found: dict[str, dict[str, Any]] = {}
        view = View(batch)
        for label in labels:
            stage = self._run.plan.step(label).stage
            if not isinstance(stage, StreamingStage):
                break
            try:
                with folder_of(self._run):
                    outcome = measuring(stage).apply(view)
            except CorpuskitError as error:  # a model or a list that is gone
                found[label] = {"anew": {"impossible": str(error)}}
                break
            told, view_after = _told(label, stage, view, outcome)
            found[label] = told
            if view_after is None:
                break
            view = view_after
        return found

    def _read_input(self) -> pa.RecordBatch:
        """Return the document as its source reads it from the input file.

        Raises:
            TaskError: it cannot be read.
            DataError: the file is not what it was.
        """
        file, position = self._who.file, self._who.position
        if file is None:
            raise TaskError("its input file is not one of this run.")
        check_unchanged(dataclasses.replace(file, state=file.state or file.stamp))
        seal, key = self._all.seal(0), self._who.key
        roles = () if seal is None else (seal.by_role("documents"), seal.by_role("ledger"))
        units = {p.unit // CELLS_PER_UNIT for parts in roles for p in parts.within(key, key + 1)}
        most = self._run.plan.settings.max_document_bytes
        every = self._run.inputs.units
        pieces = [pair for number in units or range(len(every)) for pair in every[number]]
        for piece in (piece for one, piece in pieces if one.ordinal == file.ordinal):
            for found in self._run.plan.source(file.source).read(file, piece, most):
                places = np.flatnonzero(found.positions == position)
                if len(places):
                    return _one(self._who, found, int(places[0]))
                if any(reject.position == position for reject in found.rejects):
                    raise TaskError("the source rejects it, so no stage sees it.")
        raise TaskError(f"{file.path}: no document at {position} any more.")

    def _read_cell(self, phase: Phase) -> pa.RecordBatch:
        """Return the document as a later phase reads it, sidecars applied.

        Raises:
            TaskError: it is not stored.
        """
        part = None
        if phase.base is not None:
            part = self._all.part(phase.base, phase.role, self._who.key)
        if part is None or any(self._all.seal(index) is None for index in phase.waits):
            raise TaskError("the phases before it are not finished.")
        unit = Unit(
            part.unit, part.source, part.first, part.last + 1, part.rows, part.text_bytes, part
        )
        sidecars = cell_sidecars(self._run, phase, unit)
        keys = np.array([self._who.key], np.int64)
        path = self._run.at(part)
        for batch in read_documents(path, sidecars=sidecars, keys=keys):
            places = np.flatnonzero(numbers(batch.column("key")) == self._who.key)
            if len(places):
                return batch.take(pa.array(places[:1]))
        raise TaskError(f"{part.path}: the document is not there.")


def _told(
    label: str, stage: StreamingStage, view: View, outcome: Outcome
) -> tuple[dict[str, Any], View | None]:
    """Return what a stage says of a document, and the document behind it, None if it is gone."""
    code = 0 if outcome.codes is None else int(outcome.codes[0])
    anew: dict[str, Any] = {"says": "keeps it"}
    if code:
        rule = str(outcome.reasons_of(np.zeros(1, np.int64), stage.rules)[0].as_py())
        bound = stage.threshold(stage.rules[code - 1])
        value = None if outcome.values is None else float(outcome.values[0])
        anew = {
            "says": "drops it",
            "rule": rule,
            "value": plain(None if value is None or value != value else value),
            "threshold": plain(
                float(outcome.bounds[0])
                if outcome.bounds is not None
                else None if bound != bound else bound
            ),
            **meaning_of(stage, rule),
        }  # fmt: skip
    anew |= _changes(stage, view, outcome)
    told: dict[str, Any] = {"anew": anew}
    if outcome.measures:
        values = {name: float(column[0]) for name, column in outcome.measures.items()}
        told["measures"] = bounds_of(stage, values)
    changed = view if outcome.text is None else view.with_text(outcome.text, outcome.facts)
    if outcome.columns:
        told["annotations"] = {k: plain(v[0].as_py()) for k, v in outcome.columns.items()}
        named = {f"{label}.{name}": values for name, values in outcome.columns.items()}
        changed = changed.with_columns(named)
    return told, None if code else changed


def _changes(stage: StreamingStage, view: View, outcome: Outcome) -> dict[str, Any]:
    """Return what a stage does to the text: sizes, and the spans it cuts or replaces, by rule."""
    changes: dict[str, Any] = {}
    before = view.text.row(0)
    if outcome.text is not None and (after := outcome.text.row(0)) != before:
        changes = {"bytes_before": len(before), "bytes_after": len(after)}
    if outcome.spans is not None and len(outcome.spans.rows):
        spans = outcome.spans
        text = before.decode("utf-8", "replace")
        changes["spans"] = [
            {
                "rule": rule, "action": spans.action, "num_spans": len(pairs),
                "excerpts": excerpts(text, pairs),
            }
            for code, rule in enumerate(stage.rules, 1)
            if (pairs := [
                (int(start), int(end))
                for start, end, mine in zip(spans.starts, spans.ends, spans.codes, strict=True)
                if mine == code
            ])
        ]  # fmt: skip
    return changes


def _one(who: Identity, found: SourceBatch, row: int) -> pa.RecordBatch:
    """Return one document of a batch of a source, as a phase of the input has it."""
    place = pa.array([row])
    null = pa.nulls(1, pa.string())
    assert who.file is not None, "it was read from there"
    origin = pa.StructArray.from_arrays(
        [
            pa.array([who.file.name]),
            pa.array([who.position]),
            null if found.urls is None else found.urls.take(place),
            null if found.dates is None else found.dates.take(place),
        ],
        names=["file", "position", "url", "date"],
    )
    return pa.record_batch(
        {
            "key": pa.array([who.key], pa.int64()),
            "id": pa.array([who.id], pa.string()),
            "text": found.texts.take(place),
            "source": pa.array([who.file.source]),
            "origin": origin,
            **{name: column.take(place) for name, column in found.columns.items()},
            "extra": null if found.extra is None else found.extra.take(place),
        }
    )

"""Runs fused streaming stages over one unit: a slice of an input file, or a cell of documents."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.engine.applies import view_after
from corpuskit.engine.context import PassWork, Stopwatch, UnitWork, cell_sidecars
from corpuskit.engine.documents import read_part, referring_schema, without_texts
from corpuskit.engine.expect import counted_labels
from corpuskit.engine.inputs import read_pieces
from corpuskit.engine.records import LEFT, READ, derived_ids, measuring
from corpuskit.engine.reuse import CELLS_PER_UNIT
from corpuskit.errors import DataError, noting
from corpuskit.formats.batch import MAX_POSITION, POSITION_BITS, span_lists, utf8
from corpuskit.formats.ledger import Entries
from corpuskit.formats.manifest import NO_VALUE, NOT_APPLIED
from corpuskit.formats.shards import DocumentWriter
from corpuskit.stage import CellStage, Source, StreamingStage, View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from corpuskit.engine.config import Step
    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.stage import InputFile, Outcome, Slice, SourceBatch, Stage, Unit


BATCH_ROWS = 4096
BATCH_BYTES = 4 << 20
"""Small batches of a source are joined up to these sizes; bytes are those of all columns."""


class StreamWork:
    """A fused phase at work on one unit.

    Args:
        progress: called with (documents, bytes of text) as they are read.
    """

    def __init__(
        self, run: RunDirectory, phase: Phase, unit: Unit, scratch: Path,
        progress: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        self.run, self.phase, self.unit = run, phase, unit
        self.scratch, self.progress = scratch, progress
        steps = run.plan.steps_of(phase, unit.source)
        stages = [(step, step.stage) for step in steps]
        self.steps = [
            (step, measuring(stage) if run.plan.settings.measure_rules else stage)
            for step, stage in stages
            if isinstance(stage, StreamingStage)
        ]
        self.labelled = {step.label for step, stage in self.steps if counted_labels(stage)}
        self.last = next((s.stage for s in steps if isinstance(s.stage, CellStage)), None)
        self.last_label = phase.labels[-1] if self.last or phase.refers else ""
        self.schema = run.plan.schema(phase, unit.source)
        self._watch = Stopwatch(defaultdict(float))
        """Started here, so that reading ahead of the first cell is counted, too."""

    def cells(self) -> Iterator[UnitWork]:
        """Work through the unit and yield what came of each of its cells."""
        if self.phase.base is not None:
            work = self._work(self.unit)
            self._cell(work, self._documents(work))
            yield work
            return
        for index, group in enumerate(_to_cells(self._read(), self.run.plan.settings.cell_bytes)):
            if index >= CELLS_PER_UNIT:
                limit = f"more than {CELLS_PER_UNIT} cells in one file that cannot be split"
                path = self.run.inputs.units[self.unit.number][0][0].path
                raise DataError(f"{path}: {limit}. Raise cell_bytes or split the file.")
            number = self.unit.number * CELLS_PER_UNIT + index
            work = self._work(dataclasses.replace(self.unit, number=number))
            self._cell(work, _merge_small(self._ingest(work, group)))
            yield work

    def _work(self, unit: Unit) -> UnitWork:
        kind = PassWork if self.phase.refers else UnitWork
        return kind(self.run, self.phase, unit, self.scratch)

    def _cell(self, work: UnitWork, batches: Iterator[pa.RecordBatch]) -> None:
        """Run all stages over the batches of one cell and write its parts."""
        watch = self._watch
        watch.timing = work.timing
        with work.measures:
            views = self._staged(work, batches, watch)
            if self.last is not None:
                self.last.collect(views, work)
                watch.lap(self.last_label)
            elif isinstance(work, PassWork):
                self._pass(work, views, watch)
            else:
                self._write(work, views, watch)
        for label in self.phase.labels:
            if size := int(work.timing.get(f"text_bytes/{label}", 0)):
                work.count(f"seen_bytes/{label}/{work.unit.source}", size)
        for label in sorted({s.diverts for _, s in self.steps if s.diverts}):
            self._write_diverted(work, label)
        work.write_ledger()
        work.write_measures()
        work.write_profile()
        watch.lap("write")

    def _staged(
        self, work: UnitWork, batches: Iterator[pa.RecordBatch], watch: Stopwatch
    ) -> Iterator[View]:
        self._diverted: dict[str, list[pa.RecordBatch]] = {}
        for batch in batches:
            view = View(batch)
            if self.phase.base is None:
                work.profile.count_documents(READ, view)
                work.ids.add(batch)
                self._count_values(work, view)
            watch.lap("read")
            for step, stage in self.steps:
                view = self._apply(work, step, stage, view)
                watch.lap(step.label)
                if view.num_docs == 0:
                    break
            if view.num_docs:
                work.profile.count_documents(LEFT, view)
                yield view
                watch.lap(self.last_label or "write")

    def _count_values(self, work: UnitWork, view: View) -> None:
        """Count documents without what their source reads for stages."""
        source = self.run.plan.source(work.unit.source)
        columns = {name: view.column(name) for name in source.declared()}
        for name in source.origins():
            columns[f"origin.{name}"] = view.column("origin").field(name)
        for name, column in columns.items():
            if column.null_count:
                work.count(f"{NO_VALUE}{name}/{work.unit.source}", column.null_count)

    def _apply(self, work: UnitWork, step: Step, stage: StreamingStage, view: View) -> View:
        """Apply one stage: ledger rows for what it did, and the view for the next stage."""
        input_view, rows = step.applies.select(view)
        if rows is not None:
            work.count(f"{NOT_APPLIED}{step.label}/{work.unit.source}", view.num_docs - len(rows))
            if len(rows) == 0:
                return view_after(step.label, stage, view, None, rows)
        work.timing[f"text_bytes/{step.label}"] += int(input_view.text.sizes().sum())
        ids = input_view.column("id")
        with noting(f"stage {step.label}, documents {ids[0]} to {ids[-1]}"):
            outcome = stage.apply(input_view)
        work.profile.applied(step.label, stage, input_view, outcome)
        if step.label in self.labelled:
            _count_labels(work, step.label, outcome)
        if outcome.measures and getattr(step.stage, "measures", False):
            work.measures.add(step.label, input_view, outcome)
        if outcome.spans is not None and len(outcome.spans.rows):
            work.add_ledger(_span_entries(step, stage, input_view, outcome))
        changed = view_after(step.label, stage, view, outcome, rows)
        if outcome.codes is None or not outcome.codes.any():
            return changed
        dropped = np.flatnonzero(outcome.codes)
        work.add_ledger(_drop_entries(step, stage, input_view, outcome, dropped))
        dropped_rows = dropped if rows is None else rows[dropped]
        if stage.diverts:
            diverted = changed.select(dropped_rows).batch
            self._diverted.setdefault(stage.diverts, []).append(diverted)
        stays = np.ones(view.num_docs, np.bool_)
        stays[dropped_rows] = False
        return changed.select(np.flatnonzero(stays))

    def _pass(self, work: PassWork, views: Iterator[View], watch: Stopwatch) -> None:
        """Run the first pass of a global stage; texts stay where they can be read again."""
        path = self.scratch / f"documents-{work.unit.number}.parquet"
        is_large = work.unit.text_bytes > self.run.plan.settings.cell_bytes

        def passing() -> Iterator[View]:
            for view in views:
                work.timing[f"text_bytes/{self.last_label}"] += int(view.text.sizes().sum())
                batch = _conform(view.batch, self.schema)
                # To read the last cell of a unit is to read those before it. Texts that the ledger
                # would keep are kept, so that a drop need not read the input.
                keep = work.keeps_text(view.keys) | is_large
                writer.write(without_texts(batch, view, keep), view.text.sizes())
                watch.lap("write")
                yield view

        with DocumentWriter(path, referring_schema(self.schema)) as writer:
            work.passing = documents = passing()
            self.run.plan.current_pass(self.phase).run(work)
            for _ in documents:  # those that the pass did not read
                pass
            watch.lap(self.last_label)
        self._finish(work, writer, watch)

    def _write(self, work: UnitWork, views: Iterator[View], watch: Stopwatch) -> None:
        path = self.scratch / f"documents-{work.unit.number}.parquet"
        with DocumentWriter(path, self.schema) as writer:
            for view in views:
                writer.write(_conform(view.batch, self.schema))
                watch.lap("write")
        self._finish(work, writer, watch)

    def _finish(self, work: UnitWork, writer: DocumentWriter, watch: Stopwatch) -> None:
        work.publish_documents(writer, "documents", self.phase.folder)
        watch.lap("write")
        work.count(f"kept/{work.unit.source}", writer.rows)
        work.count(f"kept_bytes/{work.unit.source}", writer.text_bytes)

    def _write_diverted(self, work: UnitWork, folder: str) -> None:
        path = self.scratch / f"{folder}-{work.unit.number}.parquet"
        with DocumentWriter(path, self.schema) as writer:
            for batch in self._diverted.get(folder, ()):
                writer.write(_conform(batch, self.schema))
        work.publish_documents(writer, f"aside:{folder}", folder)

    def _documents(self, work: UnitWork) -> Iterator[pa.RecordBatch]:
        """Yield the documents of a cell, masks applied."""
        assert self.unit.part is not None, "only cells have a part"
        sidecars = cell_sidecars(self.run, self.phase, self.unit)
        for batch in read_part(self.run, self.unit.part, sidecars=sidecars):
            size = int(View(batch).text.sizes().sum())
            work.count(f"read/{self.unit.source}", len(batch))
            work.count(f"read_bytes/{self.unit.source}", size)
            self.progress(len(batch), size)
            yield batch

    def _read(self) -> Iterator[SourceBatch]:
        plan, pieces = self.run.plan, self.run.inputs.units[self.unit.number]
        source = plan.source(self.unit.source)
        return read_pieces(source, pieces, plan.settings.max_document_bytes)

    def _ingest(self, work: UnitWork, batches: Iterator[SourceBatch]) -> Iterator[pa.RecordBatch]:
        """Give documents their ids; rejected ones go to the ledger."""
        source = self.run.plan.source(work.unit.source)
        names = FileNames(self.run.inputs.units[self.unit.number])
        for read in batches:
            num, rejected = len(read.positions), len(read.rejects)
            size = _text_bytes(read)
            work.count(f"read/{work.unit.source}", num + rejected)
            work.count(f"read_bytes/{work.unit.source}", size)
            batch = identified(work.unit.source, names, read, self.run.plan.declared)
            _note_rejects(work, source, names, read, batch)
            self.progress(num + rejected, size)
            if num:
                yield batch


def _count_labels(work: UnitWork, label: str, outcome: Outcome) -> None:
    """Count the labels of documents that stay."""
    labels = outcome.columns["label"]
    if outcome.codes is not None:
        labels = labels.filter(pa.array(outcome.codes == 0))
    for row in pc.value_counts(labels.drop_null()).to_pylist():
        work.count(f"labels/{label}/{row['values']}/{work.unit.source}", row["counts"])


class FileNames:
    """The names of the input files of a unit, by the ordinals in keys."""

    def __init__(self, pieces: Iterable[tuple[InputFile, Slice]]) -> None:
        files = {file.ordinal: file.name for file, _ in pieces}
        self._ordinals = np.array(list(files), np.int64)
        self._names = pa.array(list(files.values()), pa.string())

    def files_of(self, keys: NDArray[np.int64]) -> pa.StringArray:
        """Return the file of each key, (N,)."""
        indices = np.searchsorted(self._ordinals, keys >> POSITION_BITS)
        return self._names.take(pa.array(indices))


def identified(
    source: str, names: FileNames, read: SourceBatch, declared: Mapping[str, pa.DataType]
) -> pa.RecordBatch:
    """Return documents as a phase of the input has them.

    Args:
        declared: columns of any source; those that this one lacks are null.
    """
    num = len(read.positions)
    nulls = pa.nulls(num, pa.string())
    files = names.files_of(read.positions)
    positions = read.positions & MAX_POSITION
    origin = pa.StructArray.from_arrays(
        [
            files,
            pa.array(positions),
            nulls if read.urls is None else read.urls,
            nulls if read.dates is None else read.dates,
        ],
        names=["file", "position", "url", "date"],
    )
    ids = read.ids
    if ids is None or ids.null_count:
        derived = derived_ids(source, files, pa.array(positions))
        ids = derived if ids is None else pc.coalesce(ids, derived)
    columns: dict[str, pa.Array] = {
        "key": pa.array(read.positions),
        "id": ids,
        "text": read.texts,
        "source": pa.repeat(source, num),
        "origin": origin,
        **{
            name: read.columns[name] if name in read.columns else pa.nulls(num, kind)
            for name, kind in declared.items()
        },
        "extra": nulls if read.extra is None else read.extra,
    }
    return pa.record_batch(columns)


def _merge_small(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches up to BATCH_BYTES and BATCH_ROWS: stages have a cost per batch, too."""
    buffered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        rows, size = rows + len(batch), size + batch.nbytes
        is_full = rows > BATCH_ROWS or size > BATCH_BYTES
        if buffered and (is_full or batch.schema != buffered[0].schema):
            yield pa.concat_batches(buffered)
            buffered, rows, size = [], len(batch), batch.nbytes
        buffered.append(batch)
    if buffered:
        yield pa.concat_batches(buffered)


def _to_cells(batches: Iterator[SourceBatch], cell_bytes: int) -> Iterator[Iterator[SourceBatch]]:
    """Group batches into cells of about `cell_bytes` of text as it was read.

    The cut depends on the input alone. Each group must be consumed before the next one is taken.
    """
    waiting = next(batches, None)

    def group() -> Iterator[SourceBatch]:
        nonlocal waiting
        size = 0
        while waiting is not None:
            current = waiting
            size += max(_text_bytes(current), 1)
            waiting = next(batches, None)
            yield current
            if size >= cell_bytes:
                return

    while waiting is not None:
        yield group()


def _text_bytes(batch: SourceBatch) -> int:
    return int(utf8(batch.texts).sizes().sum())


def _note_rejects(
    work: UnitWork, source: Source, names: FileNames, read: SourceBatch, batch: pa.RecordBatch
) -> None:
    """Add what a source rejected or repaired to the ledger."""
    stage, rejects = source.stage_name(), read.rejects
    if rejects:
        keys = np.array([reject.position for reject in rejects], np.int64)
        derived = derived_ids(work.unit.source, names.files_of(keys), pa.array(keys & MAX_POSITION))
        ids = pc.coalesce(pa.array([reject.id for reject in rejects], pa.string()), derived)
        work.ids.add_ids(ids, derived, keys)
        work.add_ledger(
            Entries(
                keys, ids, pa.repeat(work.unit.source, len(ids)), stage,
                pa.array([reject.rule for reject in rejects]), "drop",
                np.array([reject.value for reject in rejects], np.float64),
                np.array([reject.threshold for reject in rejects], np.float64),
                texts=pa.array([reject.text for reject in rejects], pa.large_string()),
            )
        )  # fmt: skip
    for rule, rows in {"lone_surrogate": read.replaced, **read.noted}.items():
        if not rows:
            continue
        replaced = np.array(rows, np.int64)
        work.add_ledger(Entries.of(batch, replaced, stage, rule, action="replace", texts=None))


def _drop_entries(
    step: Step, stage: Stage, view: View, outcome: Outcome, rows: NDArray[np.int64]
) -> Entries:
    assert outcome.codes is not None, "only called when something was dropped"
    codes = outcome.codes[rows].astype(np.int64) - 1
    bounds = np.array([stage.threshold(rule) for rule in stage.rules])[codes]
    if outcome.bounds is not None:
        bounds = outcome.bounds[rows]
    values = None if outcome.values is None else outcome.values[rows]
    return Entries.of(
        view.batch, rows, step.label, outcome.reasons_of(rows, stage.rules), values, bounds,
        spans=_dropped_spans(outcome, rows),
    )  # fmt: skip


def _dropped_spans(outcome: Outcome, rows: NDArray[np.int64]) -> pa.Array | None:
    """Return the spans for which each dropped document was dropped, null where there are none."""
    spans = outcome.spans
    if spans is None or outcome.codes is None:
        return None
    order = np.flatnonzero(spans.codes == outcome.codes[spans.rows])
    order = order[np.lexsort((spans.starts[order], spans.rows[order]))]
    counts = np.bincount(spans.rows[order], minlength=len(outcome.codes))[rows]
    offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
    pairs = pa.StructArray.from_arrays(
        [pa.array(spans.starts[order]), pa.array(spans.ends[order])], names=["start", "end"]
    )
    bounds = pa.array(offsets, mask=np.append(counts == 0, False))
    return pa.ListArray.from_arrays(bounds, pairs)


def _span_entries(step: Step, stage: Stage, view: View, outcome: Outcome) -> Entries:
    """One ledger row per document that stays and rule, with its spans."""
    spans = outcome.spans
    assert spans is not None, "only called when there are spans"
    order = np.lexsort((spans.starts, spans.codes, spans.rows))
    if outcome.codes is not None:
        order = order[outcome.codes[spans.rows[order]] == 0]
    rows, codes = spans.rows[order], spans.codes[order]
    new = np.ones(len(rows), np.bool_)
    new[1:] = (rows[1:] != rows[:-1]) | (codes[1:] != codes[:-1])
    firsts = np.flatnonzero(new)
    lists = span_lists(np.cumsum(new) - 1, spans.starts[order], spans.ends[order], len(firsts))
    names = pa.array(stage.rules).take(pa.array(codes[firsts].astype(np.int64) - 1))
    counts = np.diff(np.append(firsts, len(rows))).astype(np.float64)
    return Entries.of(
        view.batch, rows[firsts], step.label, names, counts, action=spans.action, spans=lists
    )


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Bring a batch to the schema of the shard: its order, nulls for columns of other sources."""
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.nulls(len(batch), field.type))
        else:
            column = batch.column(index)
            columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)

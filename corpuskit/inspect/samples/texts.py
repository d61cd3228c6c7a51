"""Texts of documents as a stage saw them: from the run directory, or from the input files."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections import defaultdict
from collections.abc import Generator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from corpuskit.engine.inputs import check_unchanged
from corpuskit.engine.records import PROFILE
from corpuskit.engine.rundir import CELLS_PER_UNIT
from corpuskit.errors import CorpuskitError, DataError, describe
from corpuskit.formats.batch import make_keys, split_key
from corpuskit.inspect.cells import documents_of
from corpuskit.stage import StreamingStage, View
from corpuskit.storage import is_remote, open_whole

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from corpuskit.engine.config import Step
    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Seal
    from corpuskit.stage import InputFile, Slice, SourceBatch

INPUT_BYTES = 256 << 20
"""Text and files of the input that are read to find texts, at most."""

INPUT_SECONDS = 10.0
"""CPU time for it: sources that extract text out of HTML are slow."""

_READABLE = ("s3://", "file://")


class Text(NamedTuple):
    """A text and where it was found.

    Attributes:
        place: `documents`, `input`, `ledger`, or `sample`: what the ledger keeps of some documents,
            personal data masked and cut at 20,000 bytes, so that spans may not fit it.
    """

    text: str
    place: str


@dataclasses.dataclass
class Found:
    """Texts by key, and why others could not be had."""

    texts: dict[int, Text] = dataclasses.field(default_factory=dict)
    problems: dict[int, str] = dataclasses.field(default_factory=dict)


def texts_seen(
    run: RunDirectory, phase: Phase, label: str, units: Mapping[int, int], *, read_inputs: bool
) -> Found:
    """Return texts as a stage saw them.

    What stages in front of it in the same phase did to a text is done again. Input files are read
    only where size and time of change are those of the run, and within INPUT_BYTES and
    INPUT_SECONDS; each slice is read from its beginning to the document.

    Args:
        phase: a finished one that ran the stage.
        label: of the stage, or the name of a source's format.
        units: key -> number of the unit that its ledger row is of.
        read_inputs: open the input files, for what the phase that reads them saw.
    """
    found = Found()
    if phase.base is not None:
        steps = _before(run, phase, label, set(units.values()))
        for batch in documents_of(run, phase, units.keys(), None if steps else ["key", "text"]):
            _replay(batch, steps, "documents", found)
    elif read_inputs:
        _from_inputs(run, phase, label, units, found)
    else:
        found.problems = dict.fromkeys(units, "the input was not read")
    for key in units:
        if key not in found.texts:
            found.problems.setdefault(key, "the document is not where the run read it")
    return found


def ledger_text(run: RunDirectory, text: str) -> Text:
    """Return a text that the ledger has, with the word for how whole it is."""
    return Text(text, "ledger" if run.plan.settings.ledger.keep_text else "sample")


def _before(
    run: RunDirectory, phase: Phase, label: str, units: Collection[int]
) -> list[tuple[Step, StreamingStage]]:
    """Return the streaming stages in front of one, if any of them may have changed a text."""
    if label not in phase.labels:
        return []
    labels = phase.labels[: phase.labels.index(label)]
    steps = [(step, step.stage) for step in map(run.plan.step, labels)]
    streaming = [(step, one) for step, one in steps if isinstance(one, StreamingStage)]
    return streaming if _rewrites(run, run.seal(phase.index), labels, units) else []


def _rewrites(run: RunDirectory, seal: Seal, labels: Sequence[str], units: Collection[int]) -> bool:
    """Return whether stages changed texts in some units, as far as the run has counted that."""
    if not labels:
        return False
    for unit in units:
        parts = seal.by_role(PROFILE).of_unit(unit)
        if not len(parts):
            return True
        for part in parts:
            chosen = (pc.field("what") == "rewritten") & pc.field("at").isin(list(labels))
            with open_whole(run.at(part)) as source:
                table = pq.read_table(source, columns=["at"], filters=chosen, partitioning=None)
            if table.num_rows:
                return True
    return False


def _replay(
    batch: pa.RecordBatch, steps: Sequence[tuple[Step, StreamingStage]], place: str, found: Found
) -> None:
    """Note the texts of a batch after some stages."""
    view = View(batch)
    try:
        for step, stage in steps:
            outcome = stage.apply(view)
            view = view if outcome.text is None else view.with_text(outcome.text, outcome.facts)
            if outcome.columns:
                view = view.with_columns(
                    {f"{step.label}.{name}": values for name, values in outcome.columns.items()}
                )
            if outcome.codes is not None and outcome.codes.any():
                gone = view.keys[outcome.codes != 0].tolist()
                why = f"{step.label} does not let it pass any more"
                found.problems.update(dict.fromkeys(gone, why))
                view = view.select(np.flatnonzero(outcome.codes == 0))
            if view.num_docs == 0:
                return
    except (CorpuskitError, OSError) as error:  # a model that is not there any more
        why = str(error) if isinstance(error, CorpuskitError) else describe(error)
        found.problems.update(dict.fromkeys(view.keys.tolist(), why))
        return
    texts = view.batch.column("text").to_pylist()
    for key, text in zip(view.keys.tolist(), texts, strict=True):
        found.texts[key] = Text(text, place)


def _from_inputs(
    run: RunDirectory, phase: Phase, label: str, units: Mapping[int, int], found: Found
) -> None:
    """Note texts out of the input files, one file of a unit after the other."""
    by_file: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for key, unit in units.items():
        by_file[unit // CELLS_PER_UNIT, split_key(key)[0]].append(key)
    budget = _Budget()
    for (number, ordinal), keys in sorted(by_file.items()):
        steps = _before(run, phase, label, {units[key] for key in keys})
        pieces = [pair for pair in run.inputs.units[number] if pair[0].ordinal == ordinal]
        reason = ""
        try:
            for file, piece in pieces:
                if left := sorted(key for key in keys if key not in found.texts):
                    reason = _from_slice(run, file, piece, left, steps, budget, found)
        except (CorpuskitError, OSError) as error:
            reason = str(error) if isinstance(error, CorpuskitError) else describe(error)
        for key in keys:
            if key not in found.texts:
                found.problems.setdefault(key, reason or "the input file does not have it there")


class _Budget:
    """What may still be read."""

    def __init__(self) -> None:
        self._bytes = 0
        self._end = time.process_time() + INPUT_SECONDS

    @property
    def is_spent(self) -> bool:
        return self._bytes >= INPUT_BYTES or time.process_time() > self._end

    def spend(self, found: SourceBatch) -> None:
        self._bytes += max(found.size_bytes, found.texts.nbytes)


def _from_slice(
    run: RunDirectory, file: InputFile, piece: Slice, keys: list[int],
    steps: Sequence[tuple[Step, StreamingStage]], budget: _Budget, found: Found,
) -> str:  # fmt: skip
    """Read a slice up to the last wanted document; return why some were not reached."""
    here, reason = _unchanged(run, file)
    if here is None:
        return reason
    wanted = np.array([split_key(key)[1] for key in keys], np.int64)
    left = len(keys)
    most = run.plan.settings.max_document_bytes
    batches = run.plan.source(file.source).read(here, piece, most)
    with contextlib.ExitStack() as stack:
        if isinstance(batches, Generator):
            stack.callback(batches.close)  # the rest of the slice is not read
        while left:
            if budget.is_spent:
                size = f"{INPUT_BYTES >> 20} MiB or {INPUT_SECONDS:.0f} CPU seconds"
                return f"the input holds it, behind more than {size} of other documents"
            batch = next(batches, None)
            if batch is None:
                return ""
            budget.spend(batch)
            for reject in batch.rejects:
                if reject.position in wanted and reject.text is not None:
                    key = int(make_keys(file.ordinal, np.array([reject.position]))[0])
                    found.texts[key] = Text(reject.text, "input")
                    left -= 1
            rows = np.flatnonzero(np.isin(batch.positions, wanted))
            if len(rows):
                left -= len(rows)
                _replay(_keyed(here, batch, rows), steps, "input", found)
    return ""


def _unchanged(run: RunDirectory, file: InputFile) -> tuple[InputFile | None, str]:
    """Return a file as it is to be opened here; None, and why, if it is not what the run read."""
    if "://" in file.path and not file.path.startswith(_READABLE):
        return None, f"{file.path}: is not fetched again"
    path = file.path
    if not is_remote(path):
        path = os.path.join(run.folder, path.removeprefix("file://"))
    here = dataclasses.replace(file, path=path, state=file.state or file.stamp)
    try:
        check_unchanged(here)
    except (DataError, OSError) as error:
        return None, str(error) if isinstance(error, DataError) else describe(error)
    return here, ""


def _keyed(file: InputFile, found: SourceBatch, rows: NDArray[np.int64]) -> pa.RecordBatch:
    """Return some of the documents of a source as the reading phase hands them to its stages."""
    chosen, num = pa.array(rows), len(rows)
    positions = found.positions[rows]
    nulls = pa.nulls(num, pa.string())

    def taken(column: pa.Array | None) -> pa.Array:
        return nulls if column is None else column.take(chosen)

    names = pa.repeat(pa.scalar(file.name, pa.string()), num)
    origin = pa.StructArray.from_arrays(
        [names, pa.array(positions), taken(found.urls), taken(found.dates)],
        names=["file", "position", "url", "date"],
    )
    derived = pa.array([f"{file.source}/{file.name}#{place}" for place in positions.tolist()])
    columns: dict[str, pa.Array] = {
        "key": pa.array(make_keys(file.ordinal, positions)),
        "id": pc.coalesce(taken(found.ids), derived),
        "text": found.texts.take(chosen),
        "source": pa.repeat(pa.scalar(file.source, pa.string()), num),
        "origin": origin,
        **{name: column.take(chosen) for name, column in found.columns.items()},
        "extra": taken(found.extra),
    }
    return pa.record_batch(columns)

"""A finished run read by key: documents, ledger rows, sidecars, and texts as a stage saw them.

Parts of a role have disjoint ranges of keys, which the seal names, and statistics name those of row
groups. So a document is found in a corpus of any size by reading one row group of each file that
can hold it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections import defaultdict
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from corpuskit.engine.applies import view_after
from corpuskit.engine.context import cell_sidecars
from corpuskit.engine.documents import read_part
from corpuskit.engine.inputs import check_unchanged
from corpuskit.engine.records import PROFILE
from corpuskit.engine.reuse import CELLS_PER_UNIT
from corpuskit.engine.status import sealed
from corpuskit.errors import CorpuskitError, DataError, describe
from corpuskit.formats.batch import make_keys, numbers, split_key
from corpuskit.formats.shards import TEXT_HASH, open_parquet
from corpuskit.stage import StreamingStage, View
from corpuskit.storage import is_remote, open_ranged, open_whole

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from corpuskit.engine.config import Step
    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import Sealed
    from corpuskit.formats.manifest import Part, RoleParts, Seal
    from corpuskit.stage import InputFile, Slice, SourceBatch
    from corpuskit.storage import Readable

CLUSTERS = "run:clusters"  # role of the shuffle files that name every clustered document
ROW = "row"  # name under which `rows_of` returns the index of a row in its part
INPUT_BYTES = 256 << 20  # text and files of the input that are read to find texts, at most
INPUT_SECONDS = 10.0  # CPU time for it: sources that extract text out of HTML are slow

_READABLE = ("s3://", "gs://", "az://", "file://")


@contextlib.contextmanager
def open_part(path: Readable) -> Iterator[pq.ParquetFile]:
    """Open a Parquet part.

    Raises:
        DataError: the file is not a Parquet file, or lacks a column that the caller reads.
    """
    try:
        with open_ranged(path) as source, open_parquet(source, path) as file:
            yield file
    except (pa.ArrowException, KeyError) as error:
        raise DataError(f"{path}: cannot be read: {error}. Run again.") from None


def select(
    path: Readable, columns: Sequence[str] | None, condition: pc.Expression | None, **options: Any
) -> pa.Table:
    """Return the rows of a Parquet part that an expression chooses.

    Args:
        columns, condition: None = all.
        options: of `pyarrow.parquet.read_table`.
    """
    with open_whole(path) as file:
        return pq.read_table(file, columns=columns, filters=condition, partitioning=None, **options)


# ---------------------------------------------------------------- one document, file by file


def rows_of(
    path: Readable, key: int, column: str = "key", without: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return the rows of a part whose key is `key`, each with its index in the part as `row`.

    Args:
        path: Parquet, sorted by `column`.
        without: columns that are left out.

    Raises:
        DataError: the file is not a Parquet file, or has no such column.
    """
    with open_part(path) as file:
        names = [name for name in file.schema_arrow.names if name not in without]
        return [
            {ROW: first + index, **_row(file, group, index, names)}
            for group, first, keys in _groups(file, column, key)
            for index in np.flatnonzero(keys == key).tolist()
        ]


def document_rows(run: RunDirectory, part: Part, key: int) -> list[dict[str, Any]]:
    """Return the rows of a document part whose key is `key`, with text, as `rows_of` does.

    Raises:
        DataError: the part is damaged, or the input file that has the text is not as it was.
    """
    rows = rows_of(run.at(part), key)
    for row in rows:
        if row.pop(TEXT_HASH, None) is not None and row["text"] is None:
            for batch in read_part(run, part, ["key", "text"], keys=np.array([key])):
                matches = batch.filter(pc.equal(batch.column("key"), key))
                for text in matches.column("text").to_pylist():
                    row["text"] = text
    return rows


def first_values(path: Readable, column: str, num: int) -> list[Any]:
    """Return a column of the first row group of a part, at most `num` values."""
    with open_part(path) as file:
        if not file.num_row_groups:
            return []
        table = file.read_row_group(0, columns=[column], use_threads=False)
        return table.column(column).slice(0, num).to_pylist()  # type: ignore[no-any-return]


def sidecar_row(path: Readable, row: int) -> dict[str, Any]:
    """Return what a sidecar says about a row of its part.

    Raises:
        DataError: it is not a sidecar, or has no such row.
    """
    try:
        with open_ranged(path) as source:
            reader = pa.ipc.open_file(source)
            begin = 0
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                if row < begin + len(batch):
                    return batch.slice(row - begin, 1).to_pylist()[0]  # type: ignore[no-any-return]
                begin += len(batch)
    except pa.ArrowException as error:
        raise DataError(f"{path}: not a sidecar: {error}. Run again.") from None
    raise DataError(f"{path}: has no row {row}. Run again.")


def as_json(value: Any) -> Any:
    """Return a value of a row as JSON has it."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return str(value)
    return value


def _groups(
    file: pq.ParquetFile, column: str, key: int
) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """Yield (number, first row, keys) of the row groups that may hold a key."""
    metadata, first = file.metadata, 0
    index = file.schema_arrow.names.index(column)  # no nested column comes before keys
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        bounds = row_group.column(index).statistics
        is_known = bounds is not None and bounds.has_min_max
        if not is_known or bounds.min <= key <= bounds.max:
            table = file.read_row_group(group, columns=[column], use_threads=False)
            yield group, first, numbers(table.column(column))
        first += row_group.num_rows


def _row(file: pq.ParquetFile, group: int, index: int, names: list[str]) -> dict[str, Any]:
    rows_before = 0
    # Texts are read in small steps, up to this row: a row group may hold 64 MB.
    step = 256 if "text" in names else 1 << 16
    for batch in file.iter_batches(
        batch_size=step, row_groups=[group], columns=names, use_threads=False
    ):
        if index < rows_before + len(batch):
            return batch.slice(index - rows_before, 1).to_pylist()[0]  # type: ignore[no-any-return]
        rows_before += len(batch)
    raise DataError(f"row group {group} has no row {index}.")


# ---------------------------------------------------------------- documents that were kept


class Shards(NamedTuple):
    """The last document shards of a run, and what finished phases say about them.

    Attributes:
        phase: that wrote them.
        masks: seals whose sidecars apply to them, oldest first.
        packing: seal of the phase that packed them, or None; its ledger names what it dropped.
        packed_by: stages of that phase; what they rewrote is not in the shards.
    """

    run: RunDirectory
    phase: Phase
    parts: RoleParts
    masks: tuple[Seal, ...]
    packing: Seal | None
    packed_by: tuple[str, ...]

    def sidecars(self, part: Part) -> list[Readable]:
        """Return the sidecars of a part."""
        by_seal = (seal.by_role("sidecar").of_unit(part.unit) for seal in self.masks)
        return [self.run.at(sidecar) for sidecars in by_seal for sidecar in sidecars]

    def read(
        self, part: Part, columns: Sequence[str], keys: NDArray[np.int64] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the documents of a part that were kept.

        Args:
            columns: `key` must be one of them.
            keys: as in `read_documents`.
        """
        dropped = self._dropped_keys(part)
        sidecars = self.sidecars(part)
        for batch in read_part(self.run, part, columns, sidecars=sidecars, keys=keys):
            if len(dropped):
                batch = batch.filter(pc.invert(pc.is_in(batch.column("key"), dropped)))
            if len(batch):
                yield batch

    def texts(self, keys: Iterable[int]) -> dict[int, tuple[str, str]]:
        """Return key -> (id, text) of documents that were kept, as they were kept."""
        sorted_keys = np.array(sorted(keys), np.int64)
        texts: dict[int, tuple[str, str]] = {}
        if not len(sorted_keys):
            return texts
        for part in self.parts.within(int(sorted_keys[0]), int(sorted_keys[-1]) + 1):
            in_part = sorted_keys[(sorted_keys >= part.first) & (sorted_keys <= part.last)]
            for batch in self.read(part, ["key", "id", "text"], in_part) if len(in_part) else ():
                matches = batch.filter(pc.is_in(batch.column("key"), pa.array(in_part)))
                for row in matches.to_pylist():
                    texts[row["key"]] = (row["id"], row["text"])
        return texts

    def _dropped_keys(self, part: Part) -> pa.Array:
        keys = [pa.array([], pa.int64())]
        for ledger in self.packing.by_role("ledger").of_unit(part.unit) if self.packing else ():
            rows = select(self.run.at(ledger), ["doc_key"], pc.field("action") == "drop")
            keys += rows.column("doc_key").chunks
        return pa.concat_arrays(keys)


def kept_shards(run: RunDirectory, finished: Sealed | None = None) -> Shards | None:
    """Return the last document shards of the finished phases; None if there are none.

    Args:
        finished: what `sealed` returned, where it is at hand.
    """
    finished = sealed(run) if finished is None else finished
    shards: Shards | None = None
    for phase, seal in finished:
        if phase.is_stream and len(seal.by_role("documents")):
            shards = Shards(run, phase, seal.by_role("documents"), (), None, ())
        elif shards is None or phase.base != shards.phase.index:
            continue
        elif phase.is_stream:
            shards = shards._replace(packing=seal, packed_by=phase.labels[:-1])
        elif len(seal.by_role("sidecar")):
            shards = shards._replace(masks=(*shards.masks, seal))
    return shards


def with_prefix(counters: Mapping[str, int], prefix: str) -> dict[str, int]:
    """Return the counters whose names begin with a prefix; their names are without it."""
    return {k.removeprefix(prefix): v for k, v in counters.items() if k.startswith(prefix)}


def read_bytes(finished: Sealed) -> dict[str, int]:
    """Return source -> bytes of text that the phase that reads the input has read."""
    seals = [seal for phase, seal in finished if phase.base is None]
    return with_prefix(seals[0].counters, "read_bytes/") if seals else {}


def kept_bytes(run: RunDirectory, finished: Sealed) -> dict[str, int] | None:
    """Return source -> bytes of text of what is kept; None while masks wait to be applied."""
    sizes: dict[str, int] | None = None
    for phase, seal in finished:
        if phase.is_stream:
            parts = seal.by_role("documents")
            sizes = {}
            for part in parts:
                sizes[part.source] = sizes.get(part.source, 0) + part.text_bytes
            if not len(parts):  # packed
                names = [step.label for step in run.plan.file.sources]
                sizes = {name: seal.counters.get(f"text_bytes/{name}", 0) for name in names}
        elif any(name.startswith("dropped/") for name in seal.counters):
            sizes = None
    return sizes


def cluster_parts(run: RunDirectory, phase: Phase) -> list[Part]:
    """Return the files with the clusters that earlier passes of a phase's stage have written."""
    stage: Any = run.plan.step(phase.labels[0]).stage if phase.earlier else None
    if not hasattr(stage, "clustering"):
        return []
    return [
        part
        for index in phase.earlier
        if run.plan.phases[index].pass_name == stage.clustering()
        for part in run.seal(index).by_role(CLUSTERS)
    ]


# ---------------------------------------------------------------- documents as a phase read them


def documents_of(
    run: RunDirectory, phase: Phase, keys: Collection[int], columns: list[str] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the documents with these keys as a phase read them, masks and cuts applied.

    Those of the phase that reads the input, and of deleted parts, are left out;
    so are texts that lie in input files which changed since.

    Args:
        columns: `key` must be among them; None = all.
    """
    if phase.base is None or not keys:
        return
    cells = run.cells(phase)
    lows = np.array([cell.low for cell in cells], np.int64)
    by_cell: defaultdict[int, list[int]] = defaultdict(list)
    for key in keys:
        index = int(np.searchsorted(lows, key, "right")) - 1
        if index >= 0 and key < cells[index].high:
            by_cell[index].append(key)
    for index, cell_keys in sorted(by_cell.items()):
        cell = cells[index]
        assert cell.part is not None, "cells have parts"
        if not run.store.exists(cell.part.path):
            continue
        sorted_keys = np.array(sorted(cell_keys), np.int64)
        sidecars = cell_sidecars(run, phase, cell)
        try:
            for batch in read_part(run, cell.part, columns, sidecars=sidecars, keys=sorted_keys):
                matches = batch.filter(pc.is_in(batch.column("key"), pa.array(sorted_keys)))
                if len(matches):
                    yield matches
        except DataError:
            if not run.plan.phases[phase.base].refers:
                raise


def column_of(run: RunDirectory, phase: Phase, keys: Sequence[int], name: str) -> dict[int, str]:
    """Return key -> value of a column (`id`, `text`) of documents as a phase read them."""
    values: dict[int, str] = {}
    for batch in documents_of(run, phase, keys, ["key", name]):
        pairs = (batch.column("key").to_pylist(), batch.column(name).to_pylist())
        values |= dict(zip(*pairs, strict=True))
    return values


class SeenText(NamedTuple):
    """A text and where it was read from.

    Attributes:
        text_from: `documents`, `input`, `ledger`, or `sample`: what the ledger keeps of some
            documents, personal data masked and cut at 20,000 bytes, so that spans may not fit it.
    """

    text: str
    text_from: str


@dataclasses.dataclass
class Texts:
    """Texts by key, and why others could not be had."""

    texts: dict[int, SeenText] = dataclasses.field(default_factory=dict)
    problems: dict[int, str] = dataclasses.field(default_factory=dict)


def ledger_text(run: RunDirectory, text: str) -> SeenText:
    """Return a text that the ledger has, with the word for how complete it is."""
    return SeenText(text, "ledger" if run.plan.settings.ledger.keep_text else "sample")


def texts_seen(
    run: RunDirectory, phase: Phase, label: str, units: Mapping[int, int], *, read_inputs: bool
) -> Texts:
    """Return texts as a stage saw them.

    The stages before it in the same phase are applied to a text again. Input files are read only
    where size and modification time are those of the run, and within INPUT_BYTES and INPUT_SECONDS;
    each slice is read from its beginning to the document.

    Args:
        phase: a finished one that ran the stage.
        label: of the stage, or the name of a source's format.
        units: key -> number of the unit that its ledger row is of.
        read_inputs: open the input files, for what the phase that reads them saw.
    """
    result = Texts()
    if phase.base is not None:
        steps = _steps_before(run, phase, label, set(units.values()))
        for batch in documents_of(run, phase, units.keys(), None if steps else ["key", "text"]):
            _replay(run, batch, steps, "documents", result)
    elif read_inputs:
        reader = InputReader(run)
        by_file: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for key, unit in units.items():
            by_file[unit // CELLS_PER_UNIT, split_key(key)[0]].append(key)
        for (number, _), keys in sorted(by_file.items()):
            steps = _steps_before(run, phase, label, {units[key] for key in keys})
            for batch in reader.read(number, keys):
                _replay(run, batch, steps, "input", result)
        result.texts |= {key: SeenText(text, "input") for key, text in reader.rejected.items()}
        result.problems |= {k: why for k, why in reader.problems.items() if k not in result.texts}
    else:
        result.problems = dict.fromkeys(units, "the input was not read")
    for key in units:
        if key not in result.texts:
            result.problems.setdefault(key, "the document is not where the run read it")
    return result


@contextlib.contextmanager
def folder_of(run: RunDirectory) -> Iterator[None]:
    """Work where the run was planned: paths of its inputs, models and lists are relative to it."""
    with contextlib.chdir(run.folder if os.path.isdir(run.folder) else "."):
        yield


def _steps_before(
    run: RunDirectory, phase: Phase, label: str, units: Collection[int]
) -> list[tuple[Step, StreamingStage]]:
    """Return the streaming stages before one, if any of them may have changed a text."""
    if label not in phase.labels:
        return []
    labels = phase.labels[: phase.labels.index(label)]
    steps = [(step, step.stage) for step in map(run.plan.step, labels)]
    streaming = [(step, stage) for step, stage in steps if isinstance(stage, StreamingStage)]
    return streaming if _rewrites(run, run.seal(phase.index), labels, units) else []


def _rewrites(run: RunDirectory, seal: Seal, labels: Sequence[str], units: Collection[int]) -> bool:
    """Return whether stages changed texts in some units, as far as the profile counted that."""
    condition = (pc.field("what") == "rewritten") & pc.field("at").isin(list(labels))
    for unit in units if labels else ():
        parts = seal.by_role(PROFILE).of_unit(unit)
        if not len(parts) or any(select(run.at(p), ["at"], condition).num_rows for p in parts):
            return True
    return False


def _replay(
    run: RunDirectory, batch: pa.RecordBatch, steps: Sequence[tuple[Step, StreamingStage]],
    text_from: str, result: Texts,
) -> None:  # fmt: skip
    """Note the texts of a batch, all of one source, after some stages."""
    view = View(batch)
    try:
        for step, stage in steps:
            if not step.applies.to_source(view.column("source")[0].as_py()):
                continue
            part, rows = step.applies.select(view)
            with folder_of(run):
                outcome = stage.apply(part) if part.num_docs else None
            view = view_after(step.label, stage, view, outcome, rows)
            if outcome is not None and outcome.codes is not None and outcome.codes.any():
                dropped = part.keys[outcome.codes != 0]
                why = f"{step.label} does not let it pass any more"
                result.problems.update(dict.fromkeys(dropped.tolist(), why))
                view = view.select(np.flatnonzero(~np.isin(view.keys, dropped)))
            if view.num_docs == 0:
                return
    except (CorpuskitError, OSError) as error:  # a model is gone
        result.problems.update(dict.fromkeys(view.keys.tolist(), _reason(error)))
        return
    texts = view.batch.column("text").to_pylist()
    for key, text in zip(view.keys.tolist(), texts, strict=True):
        result.texts[key] = SeenText(text, text_from)


def _reason(error: CorpuskitError | OSError) -> str:
    return str(error) if isinstance(error, CorpuskitError) else describe(error)


class InputReader:
    """Reads documents from the input files of a run, as its first phase read them.

    All calls together read at most INPUT_BYTES in INPUT_SECONDS.

    Attributes:
        rejected: key -> text of what the source rejects.
        problems: key -> why the document cannot be read.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.rejected: dict[int, str] = {}
        self.problems: dict[int, str] = {}
        self._left_bytes = INPUT_BYTES
        self._end = time.process_time() + INPUT_SECONDS

    def read(self, unit: int, keys: Sequence[int]) -> list[pa.RecordBatch]:
        """Return documents of one file in a unit; those that cannot be read get a problem.

        Args:
            unit: number of the unit of input slices.
            keys: of one input file.
        """
        ordinal = split_key(keys[0])[0]
        pieces = [pair for pair in self.run.inputs.units[unit] if pair[0].ordinal == ordinal]
        missing_keys, batches, reason = set(keys), list[pa.RecordBatch](), ""
        try:
            for file, piece in pieces:
                if missing_keys:
                    reason = self._from_slice(unit, file, piece, missing_keys, batches)
        except (CorpuskitError, OSError) as error:
            reason = _reason(error)
        missing = reason or "the input file does not have it there"
        self.problems |= dict.fromkeys(missing_keys, missing)
        return batches

    def _from_slice(
        self, unit: int, file: InputFile, piece: Slice, missing_keys: set[int],
        batches: list[pa.RecordBatch],
    ) -> str:  # fmt: skip
        """Read a slice up to the last of the documents; return why some were not reached."""
        if "://" in file.path and not file.path.startswith(_READABLE):
            return f"{file.path}: is not fetched again"
        path = file.path if is_remote(file.path) else file.path.removeprefix("file://")
        local_file = dataclasses.replace(file, path=path, state=file.state or file.stamp)
        max_bytes = self.run.plan.settings.max_document_bytes
        with folder_of(self.run), contextlib.ExitStack() as stack:
            check_unchanged(local_file)
            source = self.run.plan.source(file.source).read(local_file, piece, max_bytes)
            if isinstance(source, Generator):
                stack.callback(source.close)  # the rest of the slice is not read
            while missing_keys:
                if self._left_bytes <= 0 or time.process_time() > self._end:
                    size = f"{INPUT_BYTES >> 20} MiB or {INPUT_SECONDS:.0f} CPU seconds"
                    return f"the input holds it, after more than {size} of other documents"
                batch = next(source, None)
                if batch is None:
                    return ""
                self._take(unit, batch.keyed(file.ordinal), file, missing_keys, batches)
        return ""

    def _take(
        self, unit: int, batch: SourceBatch, file: InputFile, missing_keys: set[int],
        batches: list[pa.RecordBatch],
    ) -> None:  # fmt: skip
        from corpuskit.engine.stream import FileNames, identified  # loads what runs stages

        self._left_bytes -= max(batch.size_bytes, batch.texts.nbytes)
        for reject in batch.rejects:
            if reject.position in missing_keys:
                missing_keys.discard(reject.position)
                if reject.text is None:
                    self.problems[reject.position] = "the source rejects it, so no stage sees it"
                else:
                    self.rejected[reject.position] = reject.text
        rows = np.flatnonzero(np.isin(batch.positions, np.array(sorted(missing_keys), np.int64)))
        if len(rows):
            missing_keys.difference_update(batch.positions[rows].tolist())
            names = FileNames(self.run.inputs.units[unit])
            documents = identified(file.source, names, batch, self.run.plan.declared)
            batches.append(documents.take(pa.array(rows)))


def key_at(ordinal: int, position: int) -> int:
    """Return the key of the document at a position of an input file."""
    return int(make_keys(ordinal, np.array([position]))[0])

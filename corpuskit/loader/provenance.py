"""Finds the documents of a step, and the steps of a document, without reading tokens.

From a step to documents: the order gives the rows, and side columns of their row groups give the
documents. From a document to steps: the lookups of the plan (sorted files of ids, keys and rows)
give the rows, and the order is inverted.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError, UsageError
from corpuskit.loader.files import FORMAT, RunFiles, get, inside, one_line, read_json, read_table
from corpuskit.loader.parts import PADDING, READ_ERRORS, OpenParts
from corpuskit.loader.steps import as_whole

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from corpuskit.loader.index import AddedRun, MixPlan

CONTINUES, GOES_ON = 1, 4  # bits of a segment's flags, beside PADDING
KEY_BITS = 40  # of a document key, the position in its file
_SIDE_COLUMNS = ("doc_starts", "doc_keys", "flags")


@dataclass(frozen=True, slots=True)
class DocumentSpan:
    """A span of a row that belongs to one document.

    Attributes:
        key: the document's key.
        id: its id.
        file: its input file, relative to the root of its source.
        position: row or byte offset in that file.
        first_token: where the span begins in the row.
        num_tokens: its length in the stored row of seq_len + 1 tokens.
        continues: the document began in another row.
        goes_on: the document continues in another row.
        masked: the document was taken down before this row: its tokens are neither inputs nor
            labels.
    """

    key: int
    id: str
    file: str
    position: int
    first_token: int
    num_tokens: int
    continues: bool
    goes_on: bool
    masked: bool = False


@dataclass(frozen=True, slots=True)
class StepRow:
    """A row of a step: number `row` in the global batch, `run_row` in the run."""

    step: int
    row: int
    run_row: int
    source: str
    source_row: int
    epoch: int
    documents: tuple[DocumentSpan, ...]


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of a document in the run: in row `row` of the step's global batch."""

    step: int
    row: int
    source_row: int
    epoch: int
    masked: bool = False


class DocumentRow(NamedTuple):
    """A row of the run that holds a document, and the stored positions of the document in it."""

    row_index: int
    row: int
    epoch: int
    first_token: int
    last_token: int
    masked: bool


class Segment(NamedTuple):
    """A document's span in a row."""

    key: int
    first_token: int
    num_tokens: int
    flags: int


class Provenance:
    """Finds the documents of rows and the rows of documents; opens files on first use."""

    def __init__(self, plan: MixPlan, deadline_seconds: float) -> None:
        self._plan, self._deadline = plan, deadline_seconds
        self.lookups = Lookups(plan)
        shifts = (run.first_ordinal << KEY_BITS for run in plan.added for _ in run.names)
        self._shifts = [0] * (len(plan.sources) - sum(len(run.names) for run in plan.added))
        self._shifts += shifts

    def rows_of(
        self,
        step: int,
        rows: NDArray[np.int64],
        row_indices: NDArray[np.int64],
        cuts: NDArray[np.int64] | None,
        length: int,
    ) -> list[StepRow]:
        """Return the rows at these row indices.

        Args:
            step: that takes them.
            rows: numbers of the rows in its global batch.
            row_indices: of the same rows, in the run.
            cuts: first token of each in its stored row, if rows are chunks of stored ones.
            length: tokens of a row; one more is stored.
        """
        sources, source_rows, epochs = self._plan.order.rows_at(row_indices)
        segments = self._segments(sources, source_rows)
        if cuts is not None:
            segments = [
                _cut(row, cut, length + 1) for row, cut in zip(segments, cuts.tolist(), strict=True)
            ]
        spans = self._spans(segments, row_indices.tolist())
        columns = (rows.tolist(), row_indices.tolist(), source_rows.tolist(), epochs.tolist())
        names = [self._plan.sources[k].name for k in sources.tolist()]
        return [
            StepRow(step, row, row_index, name, source_row, epoch, documents)
            for row, row_index, source_row, epoch, name, documents in zip(
                *columns, names, spans, strict=True
            )
        ]

    def rows_with(self, document: str | int) -> list[DocumentRow]:
        """Return every consumed row that holds a document, in the order of the run.

        Raises:
            UsageError: no packed row holds it.
        """
        if isinstance(document, str):
            keys = self.lookups.keys_of([document])[document]
        elif (key := as_whole(document)) is not None:
            keys = {key}
        else:
            raise UsageError(f"occurrences: document must be an id or a key, got {document!r}.")
        names = [source.name for source in self._plan.sources]
        spans: dict[tuple[int, int], tuple[int, int, int]] = {}
        for source, key, row, first, count in self.lookups.spans_of(keys):
            source_row = (names.index(source), row)
            old = spans.get(source_row, (first, first + count - 1, key))
            spans[source_row] = (min(first, old[0]), max(first + count - 1, old[1]), key)
        if not spans:
            raise UsageError(
                f"occurrences: no packed row holds document {document!r}."
                " `corpuskit why` tells whether and where it was dropped."
            )
        return sorted(
            DocumentRow(
                row_index, row, epoch, first, last, self._plan.takedowns.names(key, row_index)
            )
            for (source, row), (first, last, key) in spans.items()
            for row_index, epoch in self._plan.order.row_indices_of(source, row)
            if not self._plan.skips.covers(row_index)
        )

    def text_bytes_of(
        self, spans: Sequence[tuple[str, int, int, int, int]], sources: NDArray[np.int32]
    ) -> list[int]:
        """Return the bytes of text of spans, which `Lookups.spans_of` returns.

        Args:
            spans: (source, key, row, first token, number of tokens) of each.
            sources: (M,) numbers of their sources.

        Raises:
            DataError: a row has no such span, so the lookups are wrong.
        """
        rows = np.array([row for _, _, row, _, _ in spans], np.int64)
        names = ("doc_starts", "doc_keys", "text_bytes")
        names_of = [source.name for source in self._plan.sources]
        text_bytes = []
        for span, columns in zip(spans, self._columns(sources, rows, names), strict=True):
            source, key, row, first, count = span
            starts, keys, sizes = columns
            ends = [*starts[1:], self._plan.seq_len + 1]
            shift = self._shifts[names_of.index(source)]
            keys = [key + shift for key in keys]
            in_row = list(zip(starts, ends, keys, strict=True))
            if (first, first + count, key) not in in_row:
                raise DataError(
                    f"{self.lookups.where}: its files say that document key {key} has {count}"
                    f" tokens from {first} on of row {row} of source {source!r}, but the row does"
                    " not. Run the mix again."
                )
            text_bytes.append(sizes[in_row.index((first, first + count, key))])
        return text_bytes

    def _segments(self, sources: NDArray[np.int32], rows: NDArray[np.int64]) -> list[list[Segment]]:
        """Return the documents of each row."""
        width = self._plan.seq_len + 1
        return [
            [
                Segment(key + self._shifts[source], start, end - start, bits)
                for start, end, key, bits in zip(
                    starts, [*starts[1:], width], keys, flags, strict=True
                )
                if not bits & PADDING
            ]
            for source, (starts, keys, flags) in zip(
                sources.tolist(), self._columns(sources, rows, _SIDE_COLUMNS), strict=True
            )
        ]

    def _columns(
        self, sources: NDArray[np.int32], rows: NDArray[np.int64], columns: Sequence[str]
    ) -> list[tuple[list[int], ...]]:
        """Return the values of side columns of each row; each row group is read once."""
        located = self._plan.parts.locate(sources, rows)
        parts = OpenParts(self._plan, max_open=1)
        values: list[tuple[list[int], ...]] = [()] * len(rows)
        by_group: dict[tuple[int, int], list[int]] = {}
        groups = zip(located.parts.tolist(), located.groups.tolist(), strict=True)
        for i, part_and_group in enumerate(groups):
            by_group.setdefault(part_and_group, []).append(i)
        try:
            for (part, group), numbers in sorted(by_group.items()):
                table = self._read(parts, part, group, columns)
                for i in numbers:
                    row = int(located.rows[i])
                    values[i] = tuple(column[row].as_py() for column in table.columns)
        finally:
            parts.close()
        return values

    def _read(self, parts: OpenParts, part: int, group: int, columns: Sequence[str]) -> pa.Table:
        """Return the side columns of a row group, or raise when its read is past the deadline."""
        outcome: list[pa.Table | DataError] = []

        def read() -> None:
            try:
                try:
                    outcome.append(parts.read(part, [group], columns))
                except READ_ERRORS:
                    outcome.append(parts.read_again(part, group, columns))
            except DataError as error:
                outcome.append(error)

        # In a thread: a read that hangs can't be interrupted, only abandoned.
        thread = threading.Thread(target=read, name="corpuskit-which", daemon=True)
        thread.start()
        thread.join(self._deadline)
        if not outcome:
            raise DataError(
                f"{parts.where(part, [group])} was not read within {self._deadline:g} seconds."
                " Check the storage, or raise read_deadline_seconds."
            )
        if isinstance(outcome[0], DataError):
            raise outcome[0]
        return outcome[0]

    def _spans(
        self, segments: list[list[Segment]], row_indices: list[int]
    ) -> list[tuple[DocumentSpan, ...]]:
        """Add ids and origins to the segments of each row."""
        keys = np.unique([segment.key for row in segments for segment in row]).astype(np.int64)
        ids = self.lookups.ids(keys)
        takedowns = self._plan.takedowns
        for key in keys.tolist():
            if key not in ids or key >> KEY_BITS not in self.lookups.origins:
                raise DataError(
                    f"{self.lookups.where}: document key {key} has no id or no file."
                    " Run the mix again."
                )
        return [
            tuple(
                DocumentSpan(
                    key=key,
                    id=ids[key],
                    file=self.lookups.origins[key >> KEY_BITS],
                    position=key & ((1 << KEY_BITS) - 1),
                    first_token=first,
                    num_tokens=count,
                    continues=bool(flags & CONTINUES),
                    goes_on=bool(flags & GOES_ON),
                    masked=takedowns.names(key, row_index),
                )
                for key, first, count, flags in row
            )
            for row, row_index in zip(segments, row_indices, strict=True)
        ]


def _cut(row: list[Segment], cut: int, width: int) -> list[Segment]:
    """Return the segments in a chunk of a row: `width` tokens from `cut` on."""
    segments = []
    for key, start, count, flags in row:
        first, end = max(start, cut), min(start + count, cut + width)
        if first < end:
            bits = flags | CONTINUES * (first > start) | GOES_ON * (end < start + count)
            segments.append(Segment(key, first - cut, end - first, bits))
    return segments


class LookupFile:
    """A sorted shuffle file; only the batches that can hold the requested keys are read."""

    def __init__(self, files: RunFiles, name: str) -> None:
        self._path = path = files.where(name)
        try:
            self._file = pa.ipc.open_file(files.open(name))
            facts = json.loads((self._file.schema.metadata or {})[b"corpuskit"])
            self._firsts = [int(first) for first in facts["first"]]
            self._checksums = [int(checksum) for checksum in facts["crc32"]]
            num_batches = self._file.num_record_batches
            is_valid = len(self._firsts) <= num_batches == len(self._checksums)
            is_valid &= facts["format"] == FORMAT
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            if isinstance(error, FileNotFoundError):
                raise DataError(
                    f"{path}: missing: the folder work/ of a run is needed to find documents."
                    " Restore it, or run the mix again."
                ) from error
            raise DataError(f"{path}: not a shuffle file: {error!r}. Run the mix again.") from error
        if not is_valid:
            raise DataError(f"{path}: not a shuffle file of format {FORMAT}. Update corpuskit.")

    def among(self, values: NDArray[np.generic]) -> Iterator[pa.RecordBatch]:
        """Yield the rows whose first column is one of the ascending `values`."""
        firsts = np.array(self._firsts, values.dtype)
        # Batch i may hold values from its first to the first of the next one, both included.
        lows = np.searchsorted(values, firsts)
        highs = np.append(np.searchsorted(values, firsts[1:], side="right"), len(values))
        for number in np.flatnonzero(highs > lows).tolist():
            batch = self._batch(number)
            column = batch.column(0).to_numpy()
            window = values[lows[number] : highs[number]]
            nearest = np.minimum(np.searchsorted(window, column), len(window) - 1)
            matches = window[nearest] == column
            if matches.any():
                yield batch.filter(pa.array(matches))

    def _batch(self, number: int) -> pa.RecordBatch:
        try:
            batch = self._file.get_batch(number)
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"{self._path}: batch {number} can't be read: {one_line(error)}. Run the mix again."
            ) from error
        # `serialize` returns the bytes of the file.
        if crc32(batch.serialize()) != self._checksums[number]:
            raise DataError(f"{self._path}: batch {number} is damaged. Delete it and run again.")
        return batch


class Lookups:
    """The lookups of a plan and of the runs whose sources its edits added."""

    def __init__(self, plan: MixPlan) -> None:
        lookups = _RunLookups(plan.files, plan.base.fields)
        self._runs = [lookups, *(_RunLookups(plan.files, a.base.fields, a) for a in plan.added)]
        self.where = lookups.where

    def spans_of(self, keys: set[int]) -> list[tuple[str, int, int, int, int]]:
        """Return (source, key, row, first token, number of tokens) of all spans of documents."""
        return sorted(itertools.chain(*(run.spans_of(keys) for run in self._runs)))

    def keys_of(self, documents: Iterable[str]) -> dict[str, set[int]]:
        """Return the keys of the documents with each id: one, unless the user's ids repeat."""
        names = list(documents)
        by_run = [run.keys_of(names) for run in self._runs]
        return {name: set().union(*(keys[name] for keys in by_run)) for name in names}

    def ids(self, keys: NDArray[np.int64]) -> dict[int, str]:
        """Return the ids of documents, by key; unknown keys are left out."""
        return {key: name for run in self._runs for key, name in run.ids(keys).items()}

    def files_of(self, sources: Container[str]) -> list[str]:
        """Return the names of the lookups of some sources of the run itself."""
        entries = self._runs[0].entries
        return [e["path"] for e in entries if not e["source"] or e["source"] in sources]

    @functools.cached_property
    def origins(self) -> dict[int, str]:
        """The path of every input file by its ordinal."""
        return {ordinal: path for run in self._runs for ordinal, path in run.origins().items()}


class _RunLookups:
    """The lookups of one run, opened when they are needed.

    Keys and names of sources are those of the whole plan.
    """

    def __init__(
        self, files: RunFiles, fields: Mapping[str, Any], added: AddedRun | None = None
    ) -> None:
        self._files, self._names = files, None if added is None else added.names
        self._prefix = "" if added is None else added.prefix
        self._first_ordinal = 0 if added is None else added.first_ordinal
        plan = files.where(f"{self._prefix}mix/plan.json")
        self._name, self._origins = (
            self._prefix + inside(fields.get(key), plan) for key in ("lookups", "files")
        )
        digests = get(plan, fields, "digests", dict)
        self._digests = {key: get(plan, digests, key, str) for key in ("lookups", "files")}
        self.where = files.where(self._name)
        self._shift = self._first_ordinal << KEY_BITS

    def spans_of(self, keys: set[int]) -> list[tuple[str, int, int, int, int]]:
        """Return (source, key, row, first token, number of tokens) of all spans of documents."""
        shift = self._shift
        ascending = np.array(
            sorted(key - shift for key in keys if shift <= key < 1 << 63), np.int64
        )
        spans: list[tuple[str, int, int, int, int]] = []
        if not len(ascending):
            return spans
        for source, run in self._runs("doc_rows", int(ascending[0]), int(ascending[-1])):
            for batch in run.among(ascending):
                columns = [
                    batch.column(name).to_pylist()
                    for name in ("key", "row", "first_token", "num_tokens")
                ]
                spans += [(source, key + shift, *row) for key, *row in zip(*columns, strict=True)]
        return spans

    def keys_of(self, documents: Iterable[str]) -> dict[str, set[int]]:
        """Return the keys of the documents with each id: one, unless the user's ids repeat."""
        keys: dict[str, set[int]] = {document: set() for document in documents}
        hashes = {
            int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
            for content in (document.encode("utf-8", "surrogatepass") for document in keys)
        }
        if not hashes:
            return keys
        ascending = np.array(sorted(hashes), np.uint64)
        candidates = {
            key
            for _, run in self._runs("id_hashes", int(ascending[0]), int(ascending[-1]))
            for batch in run.among(ascending)
            for key in batch.column("key").to_pylist()
        }
        # Hashes of 8 bytes can collide: the ids themselves decide.
        for key, name in self.ids(np.array(sorted(candidates), np.int64) + self._shift).items():
            if name in keys:
                keys[name].add(key)
        return keys

    def ids(self, keys: NDArray[np.int64]) -> dict[int, str]:
        """Return the ids of documents, by key; unknown keys are left out."""
        ids: dict[int, str] = {}
        keys = keys[keys >= self._shift] - self._shift
        if keys.size:
            for _, run in self._runs("ids", int(keys[0]), int(keys[-1])):
                for batch in run.among(keys):
                    keys_read, names = (column.to_pylist() for column in batch.columns[:2])
                    ids.update(zip((key + self._shift for key in keys_read), names, strict=True))
        return ids

    def _runs(self, role: str, first: int, last: int) -> Iterator[tuple[str, LookupFile]]:
        """Yield (source, file) of the files that may have something in [first, last]."""
        for entry in self.entries:
            source = entry["source"]
            if source and self._names is not None:
                source = self._names.get(source)  # None: it was not added
            overlaps = entry["first"] <= last and first <= entry["last"]
            if source is not None and entry["role"] == role and overlaps:
                name = self._prefix + inside(entry["path"], self.where)
                yield source, LookupFile(self._files, name)

    @functools.cached_property
    def entries(self) -> list[dict[str, Any]]:
        columns = ("role", "path", "first", "last", "source")
        table = read_table(self._files, self._name, columns, self._digests["lookups"])
        entries: list[dict[str, Any]] = table.to_pylist()
        if any(None in entry.values() for entry in entries):
            raise DataError(f"{self.where}: has an entry without a value. Run the mix again.")
        return entries

    def origins(self) -> dict[int, str]:
        """Return the path of every input file by its ordinal."""
        fields = read_json(self._files, self._origins, digest=self._digests["files"])
        path = self._files.where(self._origins)
        return {
            get(path, entry, "ordinal", int) + self._first_ordinal: get(path, entry, "path", str)
            for entry in get(path, fields, "files", list)
        }

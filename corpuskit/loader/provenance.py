"""Which documents were in a step, and in which steps a document was: both without reading tokens.

Forwards, the order names the rows, and the side columns of their row groups name the documents.
Backwards, the lookups of the plan name the rows of a document, and the order is inverted.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError, UsageError
from corpuskit.loader.index import FORMAT, inside, read_json, read_table
from corpuskit.loader.parts import PADDING, READ_ERRORS, Parts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from corpuskit.loader.index import MixPlan

CONTINUES, GOES_ON = 1, 4  # bits of a segment's flags, beside PADDING
_KEY_BITS = 40  # of a document key, the position in its file
_SIDE_COLUMNS = ("doc_starts", "doc_keys", "flags")


@dataclass(frozen=True, slots=True)
class DocumentSpan:
    """A stretch of a row that belongs to one document.

    Attributes:
        key: the document's key.
        id: its id.
        file: where it came from, relative to the root of its source.
        position: row or byte offset in that file.
        first_token: where the stretch begins in the row.
        num_tokens: its length in the stored row of seq_len + 1 tokens.
        continues: the document began in another row.
        goes_on: the document goes on in another row.
    """

    key: int
    id: str
    file: str
    position: int
    first_token: int
    num_tokens: int
    continues: bool
    goes_on: bool


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
class Sighting:
    """One time that the run sees a document: in number `row` of the step's global batch."""

    step: int
    row: int
    source_row: int
    epoch: int


class ExchangeRun:
    """A sorted Arrow file, of which only the batches that can hold a range of keys are read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = pa.ipc.open_file(pa.OSFile(str(path)))
            facts = json.loads((self._file.schema.metadata or {})[b"corpuskit"])
            self._firsts = [int(first) for first in facts["first"]]
            known = facts["format"] == FORMAT and len(self._firsts) <= self._file.num_record_batches
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}: not an exchange run: {error!r}. Run the mix again."
            ) from error
        if not known:
            raise DataError(f"{path}: not an exchange run of format {FORMAT}. Update corpuskit.")

    def select(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows whose first column is in [first, last]."""
        begin = max(0, bisect.bisect_left(self._firsts, first) - 1)
        for number in range(begin, bisect.bisect_right(self._firsts, last)):
            batch = self._batch(number)
            values = batch.column(0).to_numpy()
            low, high = np.searchsorted(values, np.array([first, last], values.dtype))
            high += np.searchsorted(values[high:], values.dtype.type(last), side="right")
            if low < high:
                yield batch.slice(low, high - low)

    def find(self, keys: NDArray[np.int64]) -> Iterator[tuple[int, str]]:
        """Yield (key, value of the second column) of those ascending `keys` that the run has."""
        numbers = np.searchsorted(np.array(self._firsts), keys, side="right") - 1
        for number in np.unique(numbers[numbers >= 0]).tolist():
            batch = self._batch(number)
            values = batch.column(0).to_numpy()
            wanted = keys[numbers == number]
            places = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
            found = values[places] == wanted
            column = batch.column(1).take(pa.array(places[found])).to_pylist()
            yield from zip(wanted[found].tolist(), column, strict=True)

    def _batch(self, number: int) -> pa.RecordBatch:
        try:
            return self._file.get_batch(number)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self._path}: batch {number} can't be read: {error}.") from error


class Provenance:
    """Answers which documents rows hold and when the run sees one; opens files when asked."""

    def __init__(self, plan: MixPlan, deadline_seconds: float) -> None:
        self._plan, self._deadline = plan, deadline_seconds

    def rows_of(
        self, step: int, rows: NDArray[np.int64], counters: NDArray[np.int64]
    ) -> list[StepRow]:
        """Return the rows at these counters; `rows` are their places in the global batch."""
        sources, source_rows, epochs = self._plan.order.rows_at(counters)
        segments = self._segments(sources, source_rows)
        spans = self._spans(segments)
        columns = (rows.tolist(), counters.tolist(), source_rows.tolist(), epochs.tolist())
        names = [self._plan.sources[k].name for k in sources.tolist()]
        return [
            StepRow(step, row, counter, name, source_row, epoch, documents)
            for row, counter, source_row, epoch, name, documents in zip(
                *columns, names, spans, strict=True
            )
        ]

    def counters_of(self, document: str | int) -> list[tuple[int, int, int]]:
        """Return (counter, row in the source, epoch) of every delivered row that holds a document.

        Raises:
            UsageError: no packed row holds it.
        """
        keys = [document] if isinstance(document, int) else self._keys_of(document)
        names = [source.name for source in self._plan.sources]
        rows = set()
        for key in keys:
            for source, run in self._runs("doc_rows", key, key):
                for batch in run.select(key, key):
                    rows |= {(names.index(source), row) for row in batch.column("row").to_pylist()}
        if not rows:
            raise UsageError(
                f"when: no packed row holds document {document!r}."
                " `corpuskit why` tells whether and where it was dropped."
            )
        return sorted(
            (counter, row, epoch)
            for source, row in rows
            for counter, epoch in self._plan.order.counters_of(source, row)
            if not self._plan.skips.covers(counter)
        )

    def _segments(
        self, sources: NDArray[np.int32], rows: NDArray[np.int64]
    ) -> list[list[tuple[int, int, int, int]]]:
        """Return, for each row, (key, first token, number of tokens, flags) of its documents."""
        place = self._plan.parts.locate(sources, rows)
        parts = Parts(self._plan, max_open=1)
        segments: list[list[tuple[int, int, int, int]]] = [[] for _ in range(len(rows))]
        try:
            wanted = list(zip(place.parts.tolist(), place.groups.tolist(), strict=True))
            for part, group in sorted(set(wanted)):
                table = self._read(parts, part, group)
                starts, keys, flags = (column.to_pylist() for column in table.columns)
                for i in (i for i, at in enumerate(wanted) if at == (part, group)):
                    row = int(place.rows[i])
                    ends = [*starts[row][1:], self._plan.seq_len + 1]
                    segments[i] = [
                        (key, start, end - start, marks)
                        for start, end, key, marks in zip(
                            starts[row], ends, keys[row], flags[row], strict=True
                        )
                        if not marks & PADDING
                    ]
        finally:
            parts.close()
        return segments

    def _read(self, parts: Parts, part: int, group: int) -> pa.Table:
        """Return the side columns of a row group, or raise when its read is past the deadline."""
        outcome: list[pa.Table | DataError] = []

        def read() -> None:
            try:
                try:
                    outcome.append(parts.read(part, [group], _SIDE_COLUMNS))
                except READ_ERRORS:
                    outcome.append(parts.read_again(part, group, _SIDE_COLUMNS))
            except DataError as error:
                outcome.append(error)

        # A thread, because a read that hangs can't be interrupted, only left behind.
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
        self, segments: list[list[tuple[int, int, int, int]]]
    ) -> list[tuple[DocumentSpan, ...]]:
        """Add ids and origins to the segments of each row."""
        keys = np.unique([key for row in segments for key, *_ in row]).astype(np.int64)
        ids: dict[int, str] = {}
        if keys.size:
            for _, run in self._runs("ids", int(keys[0]), int(keys[-1])):
                ids |= run.find(keys)
        for key in keys.tolist():
            if key not in ids or key >> _KEY_BITS not in self._files:
                raise DataError(
                    f"{self._plan.lookups}: document key {key} has no id or no file."
                    " Run the mix again."
                )
        return [
            tuple(
                DocumentSpan(
                    key=key,
                    id=ids[key],
                    file=self._files[key >> _KEY_BITS],
                    position=key & ((1 << _KEY_BITS) - 1),
                    first_token=first,
                    num_tokens=count,
                    continues=bool(flags & CONTINUES),
                    goes_on=bool(flags & GOES_ON),
                )
                for key, first, count, flags in row
            )
            for row in segments
        ]

    def _keys_of(self, document: str) -> list[int]:
        """Return the keys of the documents with this id: one, unless the user's ids repeat."""
        digest = hashlib.blake2b(document.encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "little")
        keys = {
            key
            for _, run in self._runs("id_hashes", number, number)
            for batch in run.select(number, number)
            for key in batch.column("key").to_pylist()
        }
        # A hash of 8 bytes can be shared: the ids themselves decide.
        return [
            key
            for key in sorted(keys)
            for _, run in self._runs("ids", key, key)
            for _, found in run.find(np.array([key]))
            if found == document
        ]

    def _runs(self, role: str, first: int, last: int) -> Iterator[tuple[str, ExchangeRun]]:
        """Yield (source, run) of the runs that may have something in [first, last]."""
        for entry in self._lookups:
            if entry["role"] == role and entry["first"] <= last and first <= entry["last"]:
                path = inside(self._plan.run_dir, entry["path"], self._plan.lookups)
                yield entry["source"], ExchangeRun(path)

    @functools.cached_property
    def _lookups(self) -> list[dict[str, Any]]:
        columns = ("role", "path", "first", "last", "source")
        entries: list[dict[str, Any]] = read_table(self._plan.lookups, columns).to_pylist()
        return entries

    @functools.cached_property
    def _files(self) -> dict[int, str]:
        """The path of every input file by its ordinal."""
        fields = read_json(self._plan.files)
        return {entry["ordinal"]: entry["path"] for entry in fields["files"]}

"""Which documents were in a step, and in which steps a document was: both without reading tokens.

Forwards, the order names the rows, and the side columns of their row groups name the documents.
Backwards, the lookups of the plan name the rows of a document, and the order is inverted.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from corpuskit.errors import DataError, UsageError
from corpuskit.loader.lookups import Lookups
from corpuskit.loader.parts import PADDING, READ_ERRORS, Parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
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
        masked: the document was taken down before this row; its tokens are no inputs nor labels.
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
class Sighting:
    """One time that the run sees a document: in number `row` of the step's global batch."""

    step: int
    row: int
    source_row: int
    epoch: int
    masked: bool = False


class Found(NamedTuple):
    """One time that the run takes a row with a document: stored positions of the document in it."""

    counter: int
    row: int
    epoch: int
    first_token: int
    last_token: int
    masked: bool


class Segment(NamedTuple):
    """A document's stretch of a row."""

    key: int
    first_token: int
    num_tokens: int
    flags: int


class Provenance:
    """Answers which documents rows hold and when the run sees one; opens files when asked."""

    def __init__(self, plan: MixPlan, deadline_seconds: float) -> None:
        self._plan, self._deadline = plan, deadline_seconds
        self.lookups = Lookups(plan)

    def rows_of(
        self,
        step: int,
        rows: NDArray[np.int64],
        counters: NDArray[np.int64],
        cuts: NDArray[np.int64] | None,
        length: int,
    ) -> list[StepRow]:
        """Return the rows at these counters.

        Args:
            step: the step.
            rows: their places in its global batch.
            counters: their counters.
            cuts: first token of each in its stored row, if a row is a piece of one.
            length: tokens of a row; one more is stored.
        """
        sources, source_rows, epochs = self._plan.order.rows_at(counters)
        segments = self._segments(sources, source_rows)
        if cuts is not None:
            segments = [
                _cut(row, cut, length + 1) for row, cut in zip(segments, cuts.tolist(), strict=True)
            ]
        spans = self._spans(segments, counters.tolist())
        columns = (rows.tolist(), counters.tolist(), source_rows.tolist(), epochs.tolist())
        names = [self._plan.sources[k].name for k in sources.tolist()]
        return [
            StepRow(step, row, counter, name, source_row, epoch, documents)
            for row, counter, source_row, epoch, name, documents in zip(
                *columns, names, spans, strict=True
            )
        ]

    def counters_of(self, document: str | int) -> list[Found]:
        """Return every delivered row that holds a document, in the order of the run.

        Raises:
            UsageError: no packed row holds it.
        """
        keys = (
            {document} if isinstance(document, int) else self.lookups.keys_of([document])[document]
        )
        names = [source.name for source in self._plan.sources]
        stretches: dict[tuple[int, int], tuple[int, int, int]] = {}
        for source, key, row, first, count in self.lookups.stretches_of(keys):
            at = (names.index(source), row)
            old = stretches.get(at, (first, first + count - 1, key))
            stretches[at] = (min(first, old[0]), max(first + count - 1, old[1]), key)
        if not stretches:
            raise UsageError(
                f"when: no packed row holds document {document!r}."
                " `corpuskit why` tells whether and where it was dropped."
            )
        return sorted(
            Found(counter, row, epoch, first, last, self._plan.takedowns.names(key, counter))
            for (source, row), (first, last, key) in stretches.items()
            for counter, epoch in self._plan.order.counters_of(source, row)
            if not self._plan.skips.covers(counter)
        )

    def text_bytes_of(
        self, stretches: Sequence[tuple[str, int, int, int, int]], sources: NDArray[np.int32]
    ) -> list[int]:
        """Return the bytes of text of stretches as `Lookups.stretches_of` gives them.

        Args:
            stretches: (source, key, row, first token, number of tokens) of each.
            sources: (M,) numbers of their sources.

        Raises:
            DataError: a row has no such stretch; what the lookups say is not so.
        """
        rows = np.array([row for _, _, row, _, _ in stretches], np.int64)
        names = ("doc_starts", "doc_keys", "text_bytes")
        found = []
        for stretch, columns in zip(stretches, self._columns(sources, rows, names), strict=True):
            source, key, row, first, count = stretch
            starts, keys, sizes = columns
            ends = [*starts[1:], self._plan.seq_len + 1]
            stored = list(zip(starts, ends, keys, strict=True))
            if (first, first + count, key) not in stored:
                raise DataError(
                    f"{self.lookups.where}: its files say that document key {key} has {count}"
                    f" tokens from {first} on of row {row} of source {source!r}, and the row says"
                    " otherwise. Run the mix again."
                )
            found.append(sizes[stored.index((first, first + count, key))])
        return found

    def _segments(self, sources: NDArray[np.int32], rows: NDArray[np.int64]) -> list[list[Segment]]:
        """Return the documents of each row."""
        width = self._plan.seq_len + 1
        return [
            [
                Segment(key, start, end - start, marks)
                for start, end, key, marks in zip(
                    starts, [*starts[1:], width], keys, flags, strict=True
                )
                if not marks & PADDING
            ]
            for starts, keys, flags in self._columns(sources, rows, _SIDE_COLUMNS)
        ]

    def _columns(
        self, sources: NDArray[np.int32], rows: NDArray[np.int64], columns: Sequence[str]
    ) -> list[tuple[list[int], ...]]:
        """Return the values of side columns of each row; each row group is read once."""
        place = self._plan.parts.locate(sources, rows)
        parts = Parts(self._plan, max_open=1)
        found: list[tuple[list[int], ...]] = [()] * len(rows)
        wanted: dict[tuple[int, int], list[int]] = {}
        for i, at in enumerate(zip(place.parts.tolist(), place.groups.tolist(), strict=True)):
            wanted.setdefault(at, []).append(i)
        try:
            for (part, group), numbers in sorted(wanted.items()):
                table = self._read(parts, part, group, columns)
                for i in numbers:
                    row = int(place.rows[i])
                    found[i] = tuple(column[row].as_py() for column in table.columns)
        finally:
            parts.close()
        return found

    def _read(self, parts: Parts, part: int, group: int, columns: Sequence[str]) -> pa.Table:
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
        self, segments: list[list[Segment]], counters: list[int]
    ) -> list[tuple[DocumentSpan, ...]]:
        """Add ids and origins to the segments of each row."""
        keys = np.unique([segment.key for row in segments for segment in row]).astype(np.int64)
        ids = self.lookups.ids(keys)
        takedowns = self._plan.takedowns
        for key in keys.tolist():
            if key not in ids or key >> _KEY_BITS not in self.lookups.origins:
                raise DataError(
                    f"{self.lookups.where}: document key {key} has no id or no file."
                    " Run the mix again."
                )
        return [
            tuple(
                DocumentSpan(
                    key=key,
                    id=ids[key],
                    file=self.lookups.origins[key >> _KEY_BITS],
                    position=key & ((1 << _KEY_BITS) - 1),
                    first_token=first,
                    num_tokens=count,
                    continues=bool(flags & CONTINUES),
                    goes_on=bool(flags & GOES_ON),
                    masked=takedowns.names(key, counter),
                )
                for key, first, count, flags in row
            )
            for row, counter in zip(segments, counters, strict=True)
        ]


def _cut(row: list[Segment], cut: int, width: int) -> list[Segment]:
    """Return what of a row lies in a piece of it: `width` tokens from `cut` on."""
    pieces = []
    for key, start, count, flags in row:
        first, end = max(start, cut), min(start + count, cut + width)
        if first < end:
            marks = flags | CONTINUES * (first > start) | GOES_ON * (end < start + count)
            pieces.append(Segment(key, first - cut, end - first, marks))
    return pieces

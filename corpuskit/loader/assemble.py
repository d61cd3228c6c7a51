"""Turns stored rows into what a model takes: inputs, labels, positions and segment boundaries.

`choose_fields` decides which of them a batch has, and which stored columns these need.

Rows of several steps are assembled together, and batches are views: a NumPy call takes as long as
thousands of tokens. Letters: S rows, L = seq_len.
"""

from __future__ import annotations

import functools
import itertools
import math
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from corpuskit.errors import UsageError, suggest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Column = NDArray[np.int32] | NDArray[np.int64]
    Batch = dict[str, NDArray[np.int32] | NDArray[np.int64] | int]

T = TypeVar("T", bound=np.generic)

IGNORED = -100  # the label that torch's cross entropy leaves out by default
SLAB_TOKENS = 1 << 16  # positions are made in slabs whose temporaries stay in the L2 cache
_MAX_SPARE = 2  # arrays whose memory a pool keeps

LARGE_FIELDS = ("tokens", "labels", "position_ids")
SEGMENT_FIELDS = frozenset({"labels", "position_ids", "cu_seqlens", "max_seqlen"})
# Stored column -> the fields that are computed from it.
_COLUMNS = {
    "tokens": {"tokens", "labels"},
    "doc_starts": SEGMENT_FIELDS,
    "text_bytes": {"text_bytes"},
    "flags": {"labels"},
}

FIELDS = (
    "tokens",
    "labels",
    "position_ids",
    "cu_seqlens",
    "max_seqlen",
    "step",
    "source_ids",
    "row_ids",
    "run_rows",
    "text_bytes",
    "row_parts",
)


class BatchFields(NamedTuple):
    """The fields of a batch.

    Attributes:
        delivered: the requested fields and `step`, in the order of `FIELDS`.
        selected: these, and the fields that they are computed from.
        large: those selected that have a number for each token.
        columns: the stored columns to read for them.
    """

    delivered: tuple[str, ...]
    selected: frozenset[str]
    large: tuple[str, ...]
    columns: tuple[str, ...]


def choose_fields(names: Iterable[str] | None, row_chunks: int) -> BatchFields:
    """Return the fields with these names; all for None.

    Args:
        names: some of `FIELDS`. `step` comes with every batch.
        row_chunks: rows that a stored row is cut into.

    Raises:
        UsageError: there is no such field; suggests a similar one.
    """
    if isinstance(names, str):
        raise UsageError(f"loader: fields must be several names, got {names!r}. Write [{names!r}].")
    if names is None:
        names = [name for name in FIELDS if name != "row_parts" or row_chunks > 1]
    try:
        selected = frozenset(names) | {"step"}
        is_named = all(isinstance(name, str) for name in selected)
    except TypeError:
        is_named = False
    if not is_named:
        raise UsageError(f"loader: fields must be names, such as 'tokens', got {names!r}.")
    for name in sorted(selected.difference(FIELDS)):
        raise UsageError(f"loader: a batch has no field {name!r}. {suggest(name, FIELDS)}")
    delivered = tuple(name for name in FIELDS if name in selected)
    if row_chunks > 1 and "text_bytes" in selected:
        selected |= {"labels"}  # the bytes of a row are divided among its chunks by their labels
    columns = tuple(column for column, fields in _COLUMNS.items() if selected & fields)
    large = tuple(name for name in LARGE_FIELDS if name in selected)
    return BatchFields(delivered, selected, large, columns)


class BufferPool:
    """Returns arrays, and reuses the memory of arrays that are no longer referenced.

    New pages of memory take longer than all that is written to them: 3 ns per token, against 1.
    """

    def __init__(self) -> None:
        self._spare: list[memoryview] = []

    def take(self, shape: tuple[int, ...], dtype: np.dtype[T]) -> NDArray[T]:
        """Return an array with undefined values."""
        size_bytes = dtype.itemsize * math.prod(shape)
        spare = self._spare.pop() if self._spare else None
        if spare is None or len(spare) < size_bytes:
            spare = np.empty(size_bytes, np.uint8).data
        # Views of this array refer to it, not to its base: a memoryview ends the chain of bases.
        array = np.frombuffer(spare, dtype, math.prod(shape))
        weakref.finalize(array, self._give_back, spare).atexit = False
        return array.reshape(shape)

    def _give_back(self, memory: memoryview) -> None:
        if len(self._spare) < _MAX_SPARE:
            self._spare.append(memory)


class PlainRows(NamedTuple):
    """S stored rows and their segments.

    Attributes:
        tokens: (S, L + 1) tokens; (S, 0) where no field needs them.
        starts: first token of each segment of each row, ascending from 0 in each.
        counts: (S,) segments of each row; 0 where no field needs them.
        pads: (S,) first token of the padded tail; L + 1 without one.
        text_bytes: (S,) bytes of text in the row.
    """

    tokens: NDArray[np.unsignedinteger]
    starts: NDArray[np.int32]
    counts: NDArray[np.int32]
    pads: NDArray[np.int32]
    text_bytes: NDArray[np.int64]


class Assembled:
    """Rows as arrays; `batches` yields them batch by batch.

    A label is the next stored token, or -100 where that belongs to another segment, is padding or
    is masked. A padded tail is a segment of its own. With `row_chunks` > 1, each stored row is cut
    into that many rows of equal length l; a segment that crosses a cut becomes two. Only what the
    fields need is computed.

    Args:
        pool: of the large arrays.
        fields: of a batch.
        rows: to assemble.
        length: L of the stored rows.
        side_columns: (S,) arrays to cut like the rows.
        batch_rows: rows of a batch, after the cut.
        row_chunks: rows that a stored row is cut into; divides L.
        masked: rows, first tokens and ends of the spans without labels.
    """

    def __init__(
        self,
        pool: BufferPool,
        fields: BatchFields,
        rows: PlainRows,
        length: int,
        side_columns: Mapping[str, Column],
        *,
        batch_rows: int,
        row_chunks: int = 1,
        masked: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None = None,
    ) -> None:
        selected, num_rows = fields.selected, len(rows.tokens)
        memory = pool.take((len(fields.large), num_rows, length), np.dtype(np.int32))
        arrays: dict[str, NDArray[np.int32]] = dict(zip(fields.large, memory, strict=True))
        shape = (num_rows * row_chunks, length // row_chunks)
        if "tokens" in selected:
            arrays["tokens"][:] = rows.tokens[:, :-1]
        if selected & SEGMENT_FIELDS:
            starts = rows.starts + np.repeat(np.arange(num_rows) * length, rows.counts)
        if "labels" in selected:
            _label(arrays["labels"], rows, starts, masked)
        if selected & SEGMENT_FIELDS - {"labels"}:
            # A segment that starts at token L has no input, only a label, which is ignored.
            bounds = np.append(starts[rows.starts < length], num_rows * length).astype(np.int32)
            self._cut(bounds, shape, batch_rows, row_chunks)
        if "position_ids" in selected:
            _number(arrays["position_ids"].reshape(shape), self._bounds, np.diff(self._bounds))
        by_row = {name: values for name, values in side_columns.items() if name in selected}
        if row_chunks > 1:
            row_of = np.repeat(np.arange(num_rows), row_chunks)
            by_row = {name: values[row_of] for name, values in by_row.items()}
        if "row_parts" in selected:
            by_row["row_parts"] = np.tile(np.arange(row_chunks, dtype=np.int32), num_rows)
        if "text_bytes" in selected:
            by_row["text_bytes"] = rows.text_bytes
            if row_chunks > 1:
                labels = arrays["labels"].reshape(num_rows, row_chunks, -1)
                by_row["text_bytes"] = _spread(rows.text_bytes, labels)
        # Shaped by batch: iterating over an array takes a third of the time of slicing it.
        self._arrays: dict[str, Iterable[Any]] = {
            name: array.reshape(-1, batch_rows, shape[1]) for name, array in arrays.items()
        } | {name: values.reshape(-1, batch_rows) for name, values in by_row.items()}
        self._fields = fields.delivered

    def _cut(
        self, bounds: NDArray[np.int32], shape: tuple[int, int], batch_rows: int, row_chunks: int
    ) -> None:
        """Cut segments where rows end; `shape` is (S * row_chunks, l)."""
        if row_chunks > 1:
            bounds = np.union1d(bounds, np.arange(0, bounds[-1], shape[1], dtype=np.int32))
        edges = np.searchsorted(bounds, np.arange(0, shape[0] + 1, batch_rows) * shape[1])
        self._bounds, self._edges = bounds, edges.tolist()
        self._longest = np.maximum.reduceat(np.diff(bounds), edges[:-1]).tolist()

    def batches(self, steps: Sequence[int]) -> Iterator[Batch]:
        """Yield the batches as views.

        Args:
            steps: the step of each batch.
        """
        columns = self._arrays | {"step": steps}
        if "cu_seqlens" in self._fields:
            columns["cu_seqlens"] = (
                self._bounds[first : last + 1] - self._bounds[first]
                for first, last in itertools.pairwise(self._edges)
            )
        if "max_seqlen" in self._fields:
            columns["max_seqlen"] = self._longest
        names = self._fields
        for values in zip(*(columns[name] for name in names), strict=True):
            yield dict(zip(names, values, strict=True))


def _label(
    labels: NDArray[np.int32],
    rows: PlainRows,
    starts: NDArray[np.integer],
    masked: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None,
) -> None:
    """Write the label of each input.

    Args:
        labels: (S, L), overwritten.
        rows: the stored rows.
        starts: offsets of their segments, counted over all rows.
        masked: rows, first tokens and ends of the spans without labels.
    """
    length = labels.shape[1]
    labels[:] = rows.tokens[:, 1:]
    labels.reshape(-1)[starts[rows.starts > 0] - 1] = IGNORED
    for row in np.flatnonzero(rows.pads < length).tolist():
        labels[row, rows.pads[row] :] = IGNORED
    if masked is not None:
        for row, first, end in zip(*(column.tolist() for column in masked), strict=True):
            labels[row, max(first - 1, 0) : min(end - 1, length)] = IGNORED


def _number(
    positions: NDArray[np.int32], bounds: NDArray[np.int32], lengths: NDArray[np.int32]
) -> None:
    """Write the position of each input within its segment.

    Args:
        positions: (S, l), overwritten.
        bounds: offsets of segments, and the end of the last one, counted over all rows.
        lengths: of the segments.
    """
    num_rows, length = positions.shape
    kind = np.dtype(np.uint16 if length <= 1 << 16 else np.int32)  # half the bytes to be moved
    starts, ramp = (bounds[:-1] % length).astype(kind), _ramp(length, kind)
    step = max(1, SLAB_TOKENS // length)
    firsts = np.searchsorted(bounds, np.arange(0, num_rows, step) * length).tolist()
    for slab, (first, last) in enumerate(itertools.pairwise([*firsts, len(starts)])):
        slab_positions = starts[first:last].repeat(lengths[first:last]).reshape(-1, length)
        np.subtract(ramp, slab_positions, out=slab_positions)
        positions[slab * step : (slab + 1) * step] = slab_positions


def _spread(text_bytes: NDArray[np.int64], labels: NDArray[np.int32]) -> NDArray[np.int64]:
    """Divide the bytes of each row among its chunks by their labels, (S * row_chunks,).

    Args:
        text_bytes: (S,).
        labels: (S, row_chunks, l).
    """
    counts = (labels != IGNORED).sum(axis=2, dtype=np.int64)
    ends = np.cumsum(counts, axis=1)
    shares = text_bytes[:, None] * ends // np.maximum(ends[:, -1:], 1)
    spread: NDArray[np.int64] = np.diff(shares, axis=1, prepend=0)
    return spread.reshape(-1)


@functools.lru_cache(maxsize=4)
def _ramp(length: int, kind: np.dtype[np.uint16 | np.int32]) -> NDArray[np.uint16 | np.int32]:
    return np.arange(length, dtype=kind)

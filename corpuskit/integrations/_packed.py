"""Packed rows of a finished run, as stored or in the order of the run, in bounded memory.

Every page is verified, as in training. Letters: R rows, L = seq_len, G segments.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from corpuskit.loader import read_mix
from corpuskit.loader.index import ROWS_PER_GROUP
from corpuskit.loader.parts import PADDING, READ_ERRORS, TOKEN_COLUMNS, OpenParts
from corpuskit.loader.reader import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from corpuskit.loader import MixPlan
    from corpuskit.loader.parts import SegmentColumns

READ_BYTES = 4 << 20  # read of a part at a time

WINDOW_BYTES = 64 << 20
"""Rows of a run that are put in order at a time; each row group that they need is read once."""

_CONTINUES = 1  # bit of a segment's flags
_AT_LAST = np.int64(1) << 62  # after every row: a takedown counts for copies, whenever it was made


class RowBatch(NamedTuple):
    """Some packed rows and their segments, in order.

    Attributes:
        tokens: (R, L + 1) unsigned; may be read-only.
        row: (G,) the row of each segment.
        starts: (G,) its first token in the row.
        ends: (G,) the token after its last.
        is_padding: (G,) it is the padded tail of its row.
        is_down: (G,) its document was taken down.
        continues: (G,) its document began in another row.
    """

    tokens: NDArray[np.unsignedinteger]
    row: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    is_padding: NDArray[np.bool_]
    is_down: NDArray[np.bool_]
    continues: NDArray[np.bool_]


class PackedRows:
    """The packed rows of a run directory.

    Raises:
        UsageError: there is no mix plan.
        DataError: the plan or its index breaks the format.
    """

    def __init__(self, run_dir: str | Path) -> None:
        self.plan: MixPlan = read_mix(run_dir)
        self.width = self.plan.seq_len + 1
        self.row_bytes = self.width * self.plan.dtype.itemsize

    def of_source(self, source: int, num_rows: int) -> Iterator[RowBatch]:
        """Yield the first rows of a source, as they are stored.

        Raises:
            DataError: a row group can't be read, also not a second time; names it.
        """
        index = self.plan.parts
        at_once = max(1, READ_BYTES // (ROWS_PER_GROUP * self.row_bytes))
        done = 0
        with contextlib.closing(OpenParts(self.plan, max_open=1)) as parts:
            for part in np.flatnonzero(index.sources == source).tolist():
                num_groups = -(-int(index.rows[part]) // ROWS_PER_GROUP)
                for first in range(0, num_groups, at_once):
                    if done >= num_rows:
                        return
                    groups = list(range(first, min(first + at_once, num_groups)))
                    stored, segments, flags = _read(parts, part, groups)
                    most = min(num_rows - done, len(stored))
                    bounds = segments.bounds[: most + 1]
                    some = slice(int(bounds[0]), int(bounds[-1]))
                    places = index.begin(source) + done + np.arange(most)
                    tokens = stored[:most].view(self.plan.dtype)
                    yield self._rows(tokens, bounds, segments.starts[some], flags[some], places)
                    done += most

    def of_run(self, num_rows: int) -> Iterator[RowBatch]:
        """Yield the first rows that a run delivers, in its order, in the same memory.

        Raises:
            DataError: a row group can't be read, also not a second time; names it.
        """
        plan = self.plan
        at_once = max(1, min(WINDOW_BYTES // self.row_bytes, num_rows))
        # Fresh memory for each window would cost as much as putting its rows in order.
        memory = np.empty((at_once, self.width), plan.dtype)
        with contextlib.closing(OpenParts(plan, max_open=16)) as parts:
            for begin in range(0, num_rows, at_once):
                delivered = np.arange(begin, min(begin + at_once, num_rows))
                source_rows = plan.order.rows_at(plan.skips.row_indices(delivered))
                tokens = memory[: len(delivered)]
                yield self._gather(parts, source_rows.sources, source_rows.rows, tokens)

    def _gather(
        self,
        parts: OpenParts,
        sources: NDArray[np.int32],
        rows: NDArray[np.int64],
        tokens: NDArray[np.unsignedinteger],
    ) -> RowBatch:
        """Put rows of sources into `tokens` in this order; each row group is read once."""
        place = self.plan.parts.locate(sources, rows)
        num_rows = len(rows)
        item = np.dtype((np.void, self.row_bytes))  # a row is copied as one thing
        counts = np.zeros(num_rows, np.int64)
        held = []
        for part, groups, into, taken in self._reads(place.parts, place.groups, place.rows):
            stored, segments, flags = _read(parts, part, groups)
            tokens.view(item)[into] = np.ascontiguousarray(stored).view(item)[taken]
            sizes = np.diff(segments.bounds)[taken]
            chosen = ranges(segments.bounds[taken], sizes)
            counts[into] = sizes
            held.append((into, sizes, segments.starts[chosen], flags[chosen]))
        bounds = np.append(0, np.cumsum(counts))
        starts = np.empty(bounds[-1], np.int64)
        flags = np.empty(bounds[-1], np.uint8)
        for into, sizes, some_starts, some_flags in held:
            at = ranges(bounds[into], sizes)
            starts[at], flags[at] = some_starts, some_flags
        places = self.plan.parts.row_numbers(sources, rows)
        return self._rows(tokens, bounds, starts, flags, places)

    def _reads(
        self, parts: NDArray[np.int64], groups: NDArray[np.int64], within: NDArray[np.int64]
    ) -> Iterator[tuple[int, list[int], NDArray[np.int64], NDArray[np.int64]]]:
        """Yield (part, row groups, rows of the window, rows of those groups), READ_BYTES each."""
        at_once = max(1, READ_BYTES // (ROWS_PER_GROUP * self.row_bytes))
        order = np.lexsort((within, groups, parts))
        keys = parts[order] << 32 | groups[order]  # row groups of a part are far fewer than 2**32
        distinct, which = np.unique(keys, return_inverse=True)
        begin = 0
        while begin < len(distinct):
            part = int(distinct[begin] >> 32)
            end = min(begin + at_once, int(np.searchsorted(distinct, (part + 1) << 32)))
            some = slice(*np.searchsorted(which, [begin, end]))
            taken = (which[some] - begin) * ROWS_PER_GROUP + within[order[some]]
            yield part, (distinct[begin:end] & 0xFFFFFFFF).tolist(), order[some], taken
            begin = end

    def _rows(
        self,
        tokens: NDArray[np.unsignedinteger],
        bounds: NDArray[np.integer],
        starts: NDArray[np.integer],
        flags: NDArray[np.uint8],
        places: NDArray[np.int64],
    ) -> RowBatch:
        """Describe the segments of rows; `places` are the rows' numbers over all sources."""
        row = np.repeat(np.arange(len(tokens)), np.diff(bounds))
        begins = starts.astype(np.int64)
        ends = np.append(begins[1:], self.width)
        ends[np.flatnonzero(np.diff(row, append=-1))] = self.width
        is_down = np.zeros(len(row), np.bool_)
        masks = self.plan.takedowns.masks(places, np.full(len(places), _AT_LAST))
        if masks is not None:
            at = row * self.width + begins
            lows = np.searchsorted(at, masks.into * self.width + masks.firsts, "right") - 1
            highs = np.searchsorted(at, masks.into * self.width + masks.ends)
            is_down[ranges(lows, highs - lows)] = True
        return RowBatch(
            tokens, row, begins, ends, flags & PADDING > 0, is_down, flags & _CONTINUES > 0
        )


def sequences(
    rows: RowBatch, pad: int, *, unit: str
) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
    """Return ids, and how many of them each sequence has.

    Documents come without padding, rows with it; what was taken down is left out of the former and
    padding in the latter.

    Args:
        rows: packed rows.
        pad: id of padding.
        unit: `document` or `row`.
    """
    lengths = rows.ends - rows.starts
    width = rows.tokens.shape[1]
    if unit == "row":
        tokens = rows.tokens
        if rows.is_down.any():
            tokens = tokens.copy()
            for i in np.flatnonzero(rows.is_down).tolist():
                tokens[rows.row[i], rows.starts[i] : rows.ends[i]] = pad
        return tokens.reshape(-1), np.full(len(tokens), width)
    ids = rows.tokens.reshape(-1)
    kept = ~(rows.is_padding | rows.is_down)
    begins, ends = rows.row * width + rows.starts, rows.row * width + rows.ends
    firsts, stops = np.append(0, ends[~kept]), np.append(begins[~kept], len(ids))
    if len(firsts) > 1:
        places = zip(firsts.tolist(), stops.tolist(), strict=True)
        ids = np.concatenate([ids[first:stop] for first, stop in places])
    return ids, lengths[kept]


def _read(
    parts: OpenParts, part: int, groups: list[int]
) -> tuple[NDArray[np.uint8], SegmentColumns, NDArray[np.uint8]]:
    """Return rows of a part as bytes, their segments and flags; what fails is read once more."""
    try:
        table = parts.read(part, groups, TOKEN_COLUMNS)
    except READ_ERRORS:
        tables = [parts.read_again(part, group, TOKEN_COLUMNS) for group in groups]
        table = pa.concat_tables(tables).combine_chunks()
    segments = parts.segments_of(part, groups, table)
    return parts.tokens_of(table), segments, table.column("flags").chunk(0).values.to_numpy()

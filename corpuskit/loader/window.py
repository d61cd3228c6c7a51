"""Windows: the rows of some steps of one rank, and the reads that fetch them.

Letters: M rows of a window, L = seq_len, b rows of this rank in a step.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.loader.assemble import Memory
from corpuskit.loader.index import ROWS_PER_GROUP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corpuskit.loader.edits import Masks
    from corpuskit.loader.index import MixPlan
    from corpuskit.loader.order import SourceRows
    from corpuskit.loader.steps import Slicing

WINDOW_ROWS, SOURCE_ROWS = 8192, 512
"""Rows of the run that a window covers: for each source so many, or one read, up to a bound.

At the ends of a window each source has a row group that the next window reads again; a window of
more bytes is in no cache. Rows that share permuted row groups have longer windows, and so has
object storage, for more requests at a time.
"""

READ_BYTES = 8 << 20


class Segments:
    """First tokens of the segments of M rows, which come in any order."""

    def __init__(self, num_rows: int) -> None:
        self.counts = np.zeros(num_rows, np.int32)
        self._begins = np.zeros(num_rows, np.int64)
        self._starts = np.empty(4 * num_rows, np.int32)
        self._size = 0

    def put(
        self, rows: NDArray[np.int64], starts: NDArray[np.int32], counts: NDArray[np.int32]
    ) -> None:
        """Add rows; `starts` holds the first tokens of one row after the other."""
        end = self._size + len(starts)
        if end > len(self._starts):
            self._starts = np.concatenate([self._starts, np.empty(end, np.int32)])
        self._starts[self._size : end] = starts
        self._begins[rows] = self._size + np.cumsum(counts) - counts
        self.counts[rows] = counts
        self._size = end

    def of(self, rows: slice) -> NDArray[np.int32]:
        """Return the first tokens of some rows, one row after the other."""
        return self._starts[ranges(self._begins[rows], self.counts[rows])]


def ranges(begins: NDArray[np.integer], sizes: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the numbers of some ranges, one after the other."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    numbers: NDArray[np.int64] = np.repeat(begins - ends + sizes, sizes) + np.arange(total)
    return numbers


@dataclass(slots=True, eq=False)
class Window:
    """The rows of some steps, being read.

    Attributes:
        first_step: its first step.
        num_steps: how many it has.
        counters: (M,) the run's counter of each row.
        rows: source, row and epoch of each.
        stored: (M, L + 1) tokens.
        segments: the first token of each segment.
        pads: (M,) first token of the padded tail.
        text_bytes: (M,) bytes of text.
        missing: (num_steps,) rows that are not there yet.
        masks: stretches of its rows that are masked, in the order of rows.
        errors: by step, why its rows will never be there.
    """

    first_step: int
    num_steps: int
    counters: NDArray[np.int64]
    rows: SourceRows
    stored: NDArray[np.unsignedinteger]
    segments: Segments
    pads: NDArray[np.int32]
    text_bytes: NDArray[np.int64]
    missing: NDArray[np.int64]
    masks: Masks | None = None
    errors: dict[int, Exception] = field(default_factory=dict)

    @property
    def rank_rows(self) -> int:
        """How many rows each of its steps has (b)."""
        return len(self.counters) // self.num_steps

    @property
    def end_step(self) -> int:
        """The step behind its last."""
        return self.first_step + self.num_steps

    def num_ready(self, step: int, most: int) -> int:
        """Return how many steps from `step` on are there, up to `most`."""
        waits = self.missing[step - self.first_step :][:most] > 0
        return int(waits.argmax()) if waits.any() else len(waits)


@dataclass(eq=False)
class Read:
    """Row groups of one part, and which of their rows go where in a window."""

    window: Window
    part: int
    groups: list[int]  # ascending; read in one go
    taken: NDArray[np.int64]  # (n,) rows, counted over `groups`, ascending
    into: NDArray[np.int64]  # (n,) rows of the window
    is_retry: bool = False
    started: float = 0.0

    def steps(self) -> NDArray[np.int64]:
        """Return the (n,) steps that its rows are for."""
        return self.window.first_step + self.into // self.window.rank_rows

    def memory(self, number: int) -> NDArray[np.uint8] | None:
        """Return the rows of the window that a whole row group goes to, if they are together."""
        first, end = self.cuts[number], self.cuts[number + 1]
        if end - first < ROWS_PER_GROUP or self.breaks[first] != self.breaks[end - 1]:
            return None
        into = int(self.into[first])
        return self.window.stored[into : into + ROWS_PER_GROUP].view(np.uint8)

    def place(self, number: int, tokens: NDArray[np.uint8]) -> None:
        """Put the rows that are taken from one of the row groups into the window.

        Args:
            number: which of `groups`.
            tokens: (R, row bytes) of all its rows.
        """
        first, end = self.cuts[number], self.cuts[number + 1]
        # As one opaque item per row: NumPy then copies a row with one memcpy.
        row = np.dtype((np.void, tokens.shape[1]))
        stored, rows = self.window.stored.view(row)[:, 0], tokens.view(row)[:, 0]
        if self.breaks[first] == self.breaks[end - 1]:
            into, taken = int(self.into[first]), int(self.taken[first]) % ROWS_PER_GROUP
            stored[into : into + end - first] = rows[taken : taken + end - first]
        else:
            stored[self.into[first:end]] = rows[self.taken[first:end] % ROWS_PER_GROUP]

    @functools.cached_property
    def cuts(self) -> list[int]:
        """Where the rows of each row group begin in `taken`, and the last end."""
        edges = np.arange(len(self.groups) + 1) * ROWS_PER_GROUP
        cuts: list[int] = np.searchsorted(self.taken, edges).tolist()
        return cuts

    @functools.cached_property
    def breaks(self) -> list[int]:
        """For each row, how many before it don't stand in front of the next, there and here."""
        steps = (np.diff(self.taken) != 1) | (np.diff(self.into) != 1)
        return [0, *np.cumsum(steps).tolist()]

    def one_by_one(self) -> list[Read]:
        """Return second reads of the same rows, one for each row group."""
        numbers, within = np.divmod(self.taken, ROWS_PER_GROUP)
        return [
            Read(
                self.window, self.part, [group], within[numbers == i], self.into[numbers == i], True
            )
            for i, group in enumerate(self.groups)
        ]


class Planner:
    """Lays the steps up to `end_step` out in windows of at most `most_bytes` of stored rows.

    The steps of a window all have the same number of rows.
    """

    def __init__(self, plan: MixPlan, slicing: Slicing, end_step: int, most_bytes: int) -> None:
        self._plan, self._slicing, self._end_step = plan, slicing, end_step
        row_bytes = (plan.seq_len + 1) * plan.dtype.itemsize
        self._most_rows = most_bytes // row_bytes
        self._read_groups = max(1, round(READ_BYTES / (ROWS_PER_GROUP * row_bytes)))
        reads = plan.files.reader_threads // 2
        some = max(SOURCE_ROWS, reads * self._read_groups * ROWS_PER_GROUP)
        self._window_rows = min(WINDOW_ROWS, some * len(plan.sources))
        self._memory = Memory()

    def window(self, first_step: int) -> Window:
        """Return the window that begins with a step, with no rows in it yet."""
        slicing = self._slicing
        most = max(1, self._most_rows // slicing.rank_rows(first_step))
        end = min(self._end_step, slicing.batch.piece_end(first_step) or self._end_step)
        step_rows = slicing.batch.at(first_step)
        short = max(1, self._window_rows // step_rows)
        num_steps = min(end - first_step, short, most)
        window = self._lay_out(first_step, num_steps)
        longer = min(most, end - first_step)
        if longer > num_steps and self._gains(window, longer):
            window = self._lay_out(first_step, longer)
        return window

    def reads(self, window: Window) -> list[Read]:
        """Return reads that fetch each row group of the window once, in the order of first need.

        A read takes up to 8 MiB of a part: what is done once for it costs as much as 200 kB.
        """
        place = self._plan.parts.locate(window.rows.sources, window.rows.rows)
        most = int(place.groups.max()) + 1
        keys, numbers = np.unique(place.parts * most + place.groups, return_inverse=True)
        parts, groups = np.divmod(keys, most)
        rank = np.arange(len(keys)) - np.searchsorted(parts, parts)  # among the groups of its part
        bundles = np.cumsum(rank % self._read_groups == 0) - 1
        firsts = np.searchsorted(bundles, np.arange(bundles[-1] + 1))
        of_row = bundles[numbers]
        taken = (numbers - firsts[of_row]) * ROWS_PER_GROUP + place.rows
        order = np.lexsort((taken, of_row))
        edges = np.searchsorted(of_row[order], np.arange(1, len(firsts)))
        reads = [
            Read(window, int(parts[first]), groups[first:end].tolist(), taken[into], into)
            for first, end, into in zip(
                firsts, [*firsts[1:], len(keys)], np.split(order, edges), strict=True
            )
        ]
        return sorted(reads, key=lambda read: int(read.into.min()))

    def _lay_out(self, first_step: int, num_steps: int) -> Window:
        delivered = self._slicing.rows(first_step, num_steps)
        counters = self._plan.skips.counters(delivered)
        rows = self._plan.order.rows_at(counters)
        places = self._plan.parts.places(rows.sources, rows.rows)
        num_rows, width = len(counters), self._plan.seq_len + 1
        return Window(
            first_step=first_step,
            num_steps=num_steps,
            counters=counters,
            rows=rows,
            stored=self._memory.take((num_rows, width), self._plan.dtype),
            segments=Segments(num_rows),
            pads=np.empty(num_rows, np.int32),
            text_bytes=np.empty(num_rows, np.int64),
            missing=np.full(num_steps, num_rows // num_steps),
            masks=self._plan.takedowns.masks(places, counters),
        )

    def _gains(self, window: Window, num_steps: int) -> bool:
        """Say whether a longer window would take two rows or more from a permuted row group.

        Rows in stored order gain nothing, and reading far ahead is a burst at the start of a run.
        """
        sources = window.rows.sources[self._plan.order.is_permuted(window.rows)]
        counts = np.bincount(sources, minlength=len(self._plan.sources))
        stored = np.maximum(1, self._plan.parts.source_rows)
        return bool((ROWS_PER_GROUP * counts * num_steps >= 2 * window.num_steps * stored).any())

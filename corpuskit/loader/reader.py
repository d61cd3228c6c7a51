"""Reads rows ahead of their use: threads, a bounded window, and a deadline for every read.

The order is known, so rows are read a window of steps at a time: each row group that the window
needs is read once, in the order of first need, and its rows are put where the window wants them.
Two windows are alive, one in use and one being filled. Threads, not processes: nothing has to be
shared or cleaned up. Letters: M rows of a window, L = seq_len, b rows of this rank in a step.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.errors import DataError, UsageError
from corpuskit.loader.index import ROWS_PER_GROUP
from corpuskit.loader.parts import READ_ERRORS, TOKEN_COLUMNS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corpuskit.loader.index import MixPlan
    from corpuskit.loader.order import SourceRows
    from corpuskit.loader.parts import Parts

WINDOW_BLOCKS = 8
READ_BYTES = 4 << 20
_JOIN_SECONDS = 5.0  # a read takes milliseconds, or hangs
_NO_STARTS = np.zeros(0, np.int32)
_RUNNING: weakref.WeakSet[Reader] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Stop the threads before the interpreter goes: one inside PyArrow would abort the process."""
    for reader in list(_RUNNING):
        reader.close()


@dataclass(frozen=True, slots=True)
class Slicing:
    """Which rows of the run this rank takes in which step.

    Attributes:
        first_step: the step that `first_row` belongs to.
        first_row: delivered rows before `first_step`.
        step_rows: rows of the global batch.
        rank_offset: first of this rank's rows in the global batch.
        rank_rows: how many it takes (b).
    """

    first_step: int
    first_row: int
    step_rows: int
    rank_offset: int
    rank_rows: int

    def delivered(self, step: int, num_steps: int) -> NDArray[np.int64]:
        """Return the (num_steps * b,) numbers of delivered rows of the steps from `step` on."""
        steps = np.arange(step - self.first_step, step - self.first_step + num_steps)
        begins = self.first_row + steps * self.step_rows + self.rank_offset
        return (begins[:, None] + np.arange(self.rank_rows)).reshape(-1)


@dataclass(frozen=True, slots=True)
class ReadCounts:
    """What a loader has read so far; amplification is `rows_read / rows_used`.

    Attributes:
        rows_used: rows put into batches or waiting for them.
        rows_read: rows of the row groups that were read for them.
        row_groups: row groups read.
        wait_seconds: how long batches were waited for.
    """

    rows_used: int = 0
    rows_read: int = 0
    row_groups: int = 0
    wait_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Window:
    """The rows of some steps, being read.

    Attributes:
        first_step: its first step.
        num_steps: how many it has.
        counters: (M,) the run's counter of each row.
        rows: source, row and epoch of each.
        stored: (M, L + 1) tokens.
        starts: per row, the first token of each segment.
        pads: (M,) first token of the padded tail.
        text_bytes: (M,) bytes of text.
        missing: (num_steps,) rows that are not there yet.
        errors: by step, why its rows will never be there.
    """

    first_step: int
    num_steps: int
    counters: NDArray[np.int64]
    rows: SourceRows
    stored: NDArray[np.unsignedinteger]
    starts: list[NDArray[np.int32]]
    pads: NDArray[np.int32]
    text_bytes: NDArray[np.int64]
    missing: NDArray[np.int64]
    errors: dict[int, Exception] = field(default_factory=dict)

    def num_ready(self, step: int, most: int) -> int:
        """Return how many steps from `step` on are there, up to `most`."""
        waits = self.missing[step - self.first_step :][:most] > 0
        return int(waits.argmax()) if waits.any() else len(waits)


@dataclass(slots=True, eq=False)
class _Read:
    window: Window
    part: int
    groups: list[int]  # ascending; read in one go
    taken: NDArray[np.int64]  # (n,) rows, counted over `groups`
    into: NDArray[np.int64]  # (n,) rows of the window
    is_retry: bool = False
    started: float = 0.0

    def steps(self, rank_rows: int) -> NDArray[np.int64]:
        """Return the step of each row."""
        return self.window.first_step + self.into // rank_rows


class Reader:
    """Threads that read the steps [slicing.first_step, end_step) in order, ahead of `window_of`."""

    def __init__(
        self,
        plan: MixPlan,
        parts: Parts,
        slicing: Slicing,
        end_step: int,
        *,
        num_threads: int,
        read_ahead_bytes: int,
        deadline_seconds: float,
    ) -> None:
        self._plan, self._parts, self._slicing = plan, parts, slicing
        self._end_step, self._deadline = end_step, deadline_seconds
        row_bytes = (plan.seq_len + 1) * plan.dtype.itemsize
        self._most_steps = max(1, read_ahead_bytes // 2 // (row_bytes * slicing.rank_rows))
        lock = threading.RLock()  # `close` may be called by a garbage collection inside of it
        self._work = threading.Condition(lock)  # something to read or to plan, or closed
        self._done = threading.Condition(lock)  # rows or an error have come
        self._planned_step = slicing.first_step
        self._is_planning = self._is_closed = False
        self._windows: deque[Window] = deque()
        self._queue: deque[_Read] = deque()
        self._under_way: list[_Read] = []
        self._spare: list[NDArray[np.unsignedinteger]] = []
        self._failure: BaseException | None = None
        self.counts = ReadCounts()
        self._threads = [
            threading.Thread(target=self._run, name=f"corpuskit-reader-{i}", daemon=True)
            for i in range(num_threads)
        ]
        self._pid = os.getpid()
        _RUNNING.add(self)
        for thread in self._threads:
            thread.start()

    def window_of(self, step: int) -> Window:
        """Wait until all rows of a step are there, and return its window; steps in order only.

        Raises:
            DataError: a row can't be read, or its read is past the deadline.
        """
        began = time.monotonic()
        with self._done:
            while self._windows and step >= self._end_of(self._windows[0]):
                self._spare.append(self._windows.popleft().stored)
                self._work.notify_all()
            while True:
                window = self._windows[0] if self._windows else None
                if self._failure:
                    raise self._failure
                self.require_open()
                if window and step in window.errors:
                    raise window.errors[step]
                if window and not window.missing[step - window.first_step]:
                    self._count(wait_seconds=time.monotonic() - began)
                    return window
                self._done.wait(self._check_deadlines(step))

    def require_open(self) -> None:
        """Refuse to go on with a reader that somebody has closed.

        Raises:
            UsageError: it is closed.
        """
        if self._is_closed:
            raise UsageError(
                "loader: it was closed or moved while this iterator was in use."
                " Take a new one with iter(loader)."
            )

    def close(self) -> None:
        """Stop the threads; one that hangs in a read is left behind and ends when the read does."""
        if os.getpid() != self._pid:
            return  # a fork: the threads are not here, and one may have held the lock
        with self._work:
            self._is_closed = True
            self._queue.clear()
            self._work.notify_all()
            hangs = any(self._age(read) >= self._deadline for read in self._under_way)
        end = time.monotonic() + (0.0 if hangs else _JOIN_SECONDS)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))

    def _end_of(self, window: Window) -> int:
        return window.first_step + window.num_steps

    def _age(self, read: _Read) -> float:
        return time.monotonic() - read.started

    def _check_deadlines(self, step: int) -> float:
        """Return in how many seconds to look again; raise if the step's read is past its time."""
        late = [read for read in self._under_way if self._age(read) >= self._deadline]
        for read in late:
            if step in read.steps(self._slicing.rank_rows) or len(late) == len(self._threads):
                raise DataError(
                    f"{self._parts.where(read.part, read.groups)} was not read within"
                    f" {self._deadline:g} seconds. Check the storage or raise"
                    " read_deadline_seconds."
                )
        ages = [self._age(read) for read in self._under_way if read not in late]
        return max(0.001, self._deadline - max(ages, default=0.0))

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # noqa: BLE001 the end of a thread: whoever waits raises it
            with self._done:
                self._failure = error
                self._done.notify_all()

    def _turn(self) -> bool:
        """Plan a window or read a row group, whichever is due; False when closed."""
        with self._work:
            while True:
                if self._is_closed:
                    return False
                if self._can_plan():
                    self._is_planning = True
                    read = None
                    break
                if self._queue:
                    read = self._queue.popleft()
                    read.started = time.monotonic()
                    self._under_way.append(read)
                    break
                self._work.wait()
        if read is None:
            self._plan_window()
        else:
            self._read(read)
        return True

    def _can_plan(self) -> bool:
        more = self._planned_step < self._end_step
        return more and len(self._windows) < 2 and not self._is_planning

    def _plan_window(self) -> None:
        first = self._planned_step
        short = max(1, WINDOW_BLOCKS * self._plan.block_rows // self._slicing.step_rows)
        num_steps = self._fit(first, min(short, self._most_steps))
        window = self._build_window(first, num_steps)
        longer = min(self._most_steps, self._end_step - first)
        if longer > num_steps and self._gains(window, longer):
            window = self._build_window(first, longer)
        reads = _reads_of(self._plan, window)
        with self._work:
            self._windows.append(window)
            self._queue.extend(reads)
            self._planned_step = self._end_of(window)
            self._is_planning = False
            self._work.notify_all()
            self._done.notify_all()

    def _fit(self, first: int, most: int) -> int:
        """Return how many steps up to `most` a window may have, so that it ends with a block.

        A window that ends inside a block leaves a part of each row group of the block unread.
        """
        left = self._end_step - first
        if left <= most:
            return left
        slicing, skips = self._slicing, self._plan.skips
        rows = slicing.first_row + (first - slicing.first_step) * slicing.step_rows
        end = int(skips.counters(np.array([rows + most * slicing.step_rows]))[0])
        block = skips.delivered_before(self._plan.order.block_start(end))
        return (block - rows) // slicing.step_rows if block >= rows + slicing.step_rows else most

    def _gains(self, window: Window, num_steps: int) -> bool:
        """Say whether a longer window would take two rows or more from a permuted row group.

        Rows in stored order gain nothing, and reading far ahead is a burst at the start of a run.
        """
        sources = window.rows.sources[self._plan.order.is_permuted(window.rows)]
        counts = np.bincount(sources, minlength=len(self._plan.sources))
        stored = np.maximum(1, self._plan.parts.source_rows)
        return bool((ROWS_PER_GROUP * counts * num_steps >= 2 * window.num_steps * stored).any())

    def _build_window(self, first_step: int, num_steps: int) -> Window:
        delivered = self._slicing.delivered(first_step, num_steps)
        counters = self._plan.skips.counters(delivered)
        num_rows, width = len(counters), self._plan.seq_len + 1
        stored = None
        with self._work:
            while self._spare and stored is None:
                spare = self._spare.pop()
                stored = spare[:num_rows] if len(spare) >= num_rows else None
        return Window(
            first_step=first_step,
            num_steps=num_steps,
            counters=counters,
            rows=self._plan.order.rows_at(counters),
            stored=np.empty((num_rows, width), self._plan.dtype) if stored is None else stored,
            starts=[_NO_STARTS] * num_rows,
            pads=np.empty(num_rows, np.int32),
            text_bytes=np.empty(num_rows, np.int64),
            missing=np.full(num_steps, self._slicing.rank_rows),
        )

    def _read(self, read: _Read) -> None:
        error: Exception | None = None
        again, num_rows = [], 0
        try:
            num_rows = self._fill(read)
        except READ_ERRORS as reason:
            if not read.is_retry:
                again = _one_by_one(read)
            else:
                error = reason  # raised when a step that needs these rows is asked for, not before
        window, steps = read.window, read.steps(self._slicing.rank_rows)
        with self._done:
            self._under_way.remove(read)
            if again:
                self._queue.extendleft(reversed(again))
                self._work.notify_all()
            elif error:
                window.errors |= dict.fromkeys(steps.tolist(), error)
            else:
                np.subtract.at(window.missing, steps - window.first_step, 1)
                self._count(rows_used=len(steps), rows_read=num_rows, row_groups=len(read.groups))
            self._done.notify_all()

    def _fill(self, read: _Read) -> int:
        """Put the rows of a read where the window wants them; return how many were read."""
        window, parts = read.window, self._parts
        if read.is_retry:
            table = parts.read_again(read.part, read.groups[0], TOKEN_COLUMNS)
        else:
            table = parts.read(read.part, read.groups, TOKEN_COLUMNS)
        stored = parts.decode(read.part, read.groups, table)
        # As one opaque item per row: NumPy then copies a row with one memcpy, twice as fast.
        row = np.dtype((np.void, window.stored.strides[0]))
        window.stored.view(row)[:, 0][read.into] = stored.tokens.view(row)[:, 0][read.taken]
        window.pads[read.into] = stored.pads[read.taken]
        window.text_bytes[read.into] = stored.text_bytes[read.taken]
        bounds = stored.bounds.tolist()
        for into, taken in zip(read.into.tolist(), read.taken.tolist(), strict=True):
            window.starts[into] = stored.starts[bounds[taken] : bounds[taken + 1]]
        return len(stored.tokens)

    def _count(
        self,
        rows_used: int = 0,
        rows_read: int = 0,
        row_groups: int = 0,
        wait_seconds: float = 0.0,
    ) -> None:
        old = self.counts
        self.counts = ReadCounts(
            old.rows_used + rows_used,
            old.rows_read + rows_read,
            old.row_groups + row_groups,
            old.wait_seconds + wait_seconds,
        )


def _reads_of(plan: MixPlan, window: Window) -> list[_Read]:
    """Return reads that fetch every row group of the window once, in the order of first need.

    A read takes up to 4 MiB of a part: what the interpreter does for it costs as much as 200 kB.
    """
    place = plan.parts.locate(window.rows.sources, window.rows.rows)
    group_bytes = ROWS_PER_GROUP * window.stored.strides[0]
    most = int(place.groups.max()) + 1
    keys, numbers = np.unique(place.parts * most + place.groups, return_inverse=True)
    parts, groups = np.divmod(keys, most)
    # Groups of a part, in runs of so many.
    rank = np.arange(len(keys)) - np.searchsorted(parts, parts)
    bundles = np.cumsum(rank % max(1, READ_BYTES // group_bytes) == 0) - 1
    firsts = np.searchsorted(bundles, np.arange(bundles[-1] + 1))
    of_row = bundles[numbers]
    taken = (numbers - firsts[of_row]) * ROWS_PER_GROUP + place.rows
    order = np.argsort(of_row, kind="stable")
    edges = np.searchsorted(of_row[order], np.arange(1, len(firsts)))
    reads = [
        _Read(window, int(parts[first]), groups[first:end].tolist(), taken[into], into)
        for first, end, into in zip(
            firsts, [*firsts[1:], len(keys)], np.split(order, edges), strict=True
        )
    ]
    return sorted(reads, key=lambda read: int(read.into[0]))


def _one_by_one(read: _Read) -> list[_Read]:
    """Return a second read of each row group of one that failed."""
    numbers, within = np.divmod(read.taken, ROWS_PER_GROUP)
    return [
        _Read(read.window, read.part, [group], within[numbers == i], read.into[numbers == i], True)
        for i, group in enumerate(read.groups)
    ]

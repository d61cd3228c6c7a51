"""Reads rows ahead of their use: threads, a bounded window, and a deadline for every read.

The order is known, so rows are read a window of steps at a time: each row group that the window
needs is read once, in the order of first need, and its rows are copied into the window. Two windows
exist, one in use and one being filled. Threads, not processes: nothing has to be shared or cleaned
up. Letters: M rows of a window, L = seq_len, b rows of this rank in a step.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.errors import DataError, UsageError
from corpuskit.loader.assemble import BufferPool
from corpuskit.loader.index import ROWS_PER_GROUP
from corpuskit.loader.parts import READ_ERRORS, TokenPages
from corpuskit.logs import LOG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from corpuskit.loader.cache import RangeCache
    from corpuskit.loader.edits import Masks
    from corpuskit.loader.index import MixPlan
    from corpuskit.loader.order import SourceRows
    from corpuskit.loader.parts import OpenParts
    from corpuskit.loader.steps import BatchSchedule

# Rows of the run in a window: SOURCE_ROWS for each source, or one read, up to WINDOW_ROWS. At the
# ends of a window each source has a row group that the next window reads again; a larger window
# does not stay in the CPU's cache. Windows are longer where rows share permuted row groups, and for
# object storage, for more requests in parallel.
WINDOW_ROWS, SOURCE_ROWS = 8192, 512

READ_BYTES = 8 << 20  # of a part in one read, whose fixed cost equals that of 200 kB


class Segments:
    """First tokens of the segments of M rows, which are added in any order."""

    def __init__(self, num_rows: int) -> None:
        self.counts = np.zeros(num_rows, np.int32)
        self._begins = np.zeros(num_rows, np.int64)
        self._starts = np.empty(4 * num_rows, np.int32)
        self._size = 0

    def add(
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

    def starts_of(self, rows: slice) -> NDArray[np.int32]:
        """Return the first tokens of a range of rows, one row after the other."""
        if not self._size:
            return self._starts[:0]
        return self._starts[ranges(self._begins[rows], self.counts[rows])]


def ranges(firsts: NDArray[np.integer], sizes: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the numbers in [first, first + size) of each range, one range after the other."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    numbers: NDArray[np.int64] = np.repeat(firsts - ends + sizes, sizes) + np.arange(total)
    return numbers


@dataclass(slots=True, eq=False)
class Window:
    """The rows of some steps, being read.

    Attributes:
        first_step: its first step.
        num_steps: how many it has.
        row_indices: (M,) the run's row index of each row.
        rows: source, row and epoch of each row.
        tokens: (M, L + 1) tokens; (M, 0) where they are not read.
        segments: the first token of each segment.
        pads: (M,) first token of the padded tail.
        text_bytes: (M,) bytes of text.
        missing: (num_steps,) rows of each step that are not read yet.
        masks: masked spans of its rows, in the order of rows.
        errors: step -> why its rows can't be read.
    """

    first_step: int
    num_steps: int
    row_indices: NDArray[np.int64]
    rows: SourceRows
    tokens: NDArray[np.unsignedinteger]
    segments: Segments
    pads: NDArray[np.int32]
    text_bytes: NDArray[np.int64]
    missing: NDArray[np.int64]
    masks: Masks | None = None
    errors: dict[int, Exception] = field(default_factory=dict)

    @property
    def rank_rows(self) -> int:
        """How many rows each of its steps has (b)."""
        return len(self.row_indices) // self.num_steps

    @property
    def end_step(self) -> int:
        """The step after its last."""
        return self.first_step + self.num_steps

    def num_ready(self, step: int, limit: int) -> int:
        """Return how many steps from `step` on are complete, up to `limit`."""
        waits = self.missing[step - self.first_step :][:limit] > 0
        return int(waits.argmax()) if waits.any() else len(waits)


@dataclass(eq=False)
class Read:
    """A read of row groups of one part, and where their rows go in a window."""

    window: Window
    part: int
    groups: list[int]  # ascending
    taken: NDArray[np.int64]  # (n,) rows to copy, counted over `groups`, ascending
    into: NDArray[np.int64]  # (n,) rows of the window that they become
    is_retry: bool = False
    started: float = 0.0

    def steps(self) -> NDArray[np.int64]:
        """Return the step of each row: (n,)."""
        return self.window.first_step + self.into // self.window.rank_rows

    def destination(self, number: int) -> NDArray[np.uint8] | None:
        """Return the rows of the window that a row group becomes, if it does so as one piece."""
        first, end = self.cuts[number], self.cuts[number + 1]
        if end - first < ROWS_PER_GROUP or self.breaks[first] != self.breaks[end - 1]:
            return None
        into = int(self.into[first])
        return self.window.tokens[into : into + ROWS_PER_GROUP].view(np.uint8)

    def put(self, number: int, tokens: NDArray[np.uint8]) -> None:
        """Copy rows of a row group into the window.

        Args:
            number: which of `groups`.
            tokens: (R, row bytes) of all its rows.
        """
        first, end = self.cuts[number], self.cuts[number + 1]
        # With one opaque item per row, NumPy copies a row by one memcpy.
        row = np.dtype((np.void, tokens.shape[1]))
        tokens_of, rows = self.window.tokens.view(row)[:, 0], tokens.view(row)[:, 0]
        if self.breaks[first] == self.breaks[end - 1]:
            target, source = int(self.into[first]), int(self.taken[first]) % ROWS_PER_GROUP
            tokens_of[target : target + end - first] = rows[source : source + end - first]
        else:
            tokens_of[self.into[first:end]] = rows[self.taken[first:end] % ROWS_PER_GROUP]

    @functools.cached_property
    def cuts(self) -> list[int]:
        """Where the rows of each row group begin in `taken`, and the last end."""
        edges = np.arange(len(self.groups) + 1) * ROWS_PER_GROUP
        cuts: list[int] = np.searchsorted(self.taken, edges).tolist()
        return cuts

    @functools.cached_property
    def breaks(self) -> list[int]:
        """For each row, how often contiguity broke before it, in the part or in the window."""
        rows, targets = self.taken, self.into
        steps = (rows[1:] != rows[:-1] + 1) | (targets[1:] != targets[:-1] + 1)
        return [0, *np.cumsum(steps).tolist()]

    def retries(self) -> list[Read]:
        """Return reads that repeat this one, one for each row group."""
        numbers, rows = np.divmod(self.taken, ROWS_PER_GROUP)
        return [
            Read(self.window, self.part, [group], rows[numbers == i], self.into[numbers == i], True)
            for i, group in enumerate(self.groups)
        ]


class Planner:
    """Divides the steps up to `end_step` into windows of at most `max_bytes` of stored rows.

    All steps of a window have the same number of rows. `columns` are the columns to read.
    """

    def __init__(
        self,
        plan: MixPlan,
        schedule: BatchSchedule,
        end_step: int,
        columns: Sequence[str],
        max_bytes: int,
    ) -> None:
        self._plan, self._schedule, self.end_step = plan, schedule, end_step
        self._columns = columns
        row_bytes = (plan.seq_len + 1) * plan.dtype.itemsize
        self._max_rows = max_bytes // row_bytes
        self._read_groups = max(1, round(READ_BYTES / (ROWS_PER_GROUP * row_bytes)))
        reads = plan.files.reader_threads // 2
        source_rows = max(SOURCE_ROWS, reads * self._read_groups * ROWS_PER_GROUP)
        self._window_rows = min(WINDOW_ROWS, source_rows * len(plan.sources))
        self._pool = BufferPool()

    def window(self, first_step: int) -> Window:
        """Return the window that begins with a step; none of its rows is read."""
        schedule = self._schedule
        max_steps = max(1, self._max_rows // schedule.rank_rows(first_step))
        end = min(self.end_step, schedule.batch.section_end(first_step) or self.end_step)
        step_rows = schedule.batch.at(first_step)
        num_planned = max(1, self._window_rows // step_rows)
        num_steps = min(end - first_step, num_planned, max_steps)
        window = self._lay_out(first_step, num_steps)
        num_longer = min(max_steps, end - first_step)
        if num_longer > num_steps and self._gains(window, num_longer):
            window = self._lay_out(first_step, num_longer)
        return window

    def reads(self, window: Window) -> list[Read]:
        """Return reads that fetch each row group of the window once, in the order of first need.

        A read takes up to `READ_BYTES` of a part.
        """
        if not self._columns:
            return []
        located = self._plan.parts.locate(window.rows.sources, window.rows.rows)
        num_groups = int(located.groups.max()) + 1
        keys, numbers = np.unique(located.parts * num_groups + located.groups, return_inverse=True)
        parts, groups = np.divmod(keys, num_groups)
        rank = np.arange(len(keys)) - np.searchsorted(parts, parts)  # among the groups of its part
        bundles = np.cumsum(rank % self._read_groups == 0) - 1
        firsts = np.searchsorted(bundles, np.arange(bundles[-1] + 1))
        bundle_of = bundles[numbers]
        rows_in_read = (numbers - firsts[bundle_of]) * ROWS_PER_GROUP + located.rows
        order = np.lexsort((rows_in_read, bundle_of))
        edges = np.searchsorted(bundle_of[order], np.arange(1, len(firsts)))
        reads = [
            Read(window, int(parts[first]), groups[first:end].tolist(), rows_in_read[into], into)
            for first, end, into in zip(
                firsts, [*firsts[1:], len(keys)], np.split(order, edges), strict=True
            )
        ]
        return sorted(reads, key=lambda read: int(read.into.min()))

    def reserve(self, cache: RangeCache, first_step: int) -> None:
        """Have a cache keep the row groups of the next two windows.

        Raises:
            UsageError: its limit is too low for them.
        """
        sizes = self._plan.parts.sizes // -(-self._plan.parts.rows // ROWS_PER_GROUP)  # of a group
        sizes_needed: list[int] = []
        for _ in range(2):
            if first_step >= self.end_step:
                break
            window = self.window(first_step)
            located = self._plan.parts.locate(window.rows.sources, window.rows.rows)
            parts = np.unique(np.stack([located.parts, located.groups]), axis=1)[0]
            sizes_needed += sizes[parts].tolist()
            first_step = window.end_step
        cache.reserve(sizes_needed)

    def _lay_out(self, first_step: int, num_steps: int) -> Window:
        consumed = self._schedule.rows(first_step, num_steps)
        row_indices = self._plan.skips.row_indices(consumed)
        rows = self._plan.order.rows_at(row_indices)
        row_numbers = self._plan.parts.row_numbers(rows.sources, rows.rows)
        num_rows = len(row_indices)
        width = self._plan.seq_len + 1 if "tokens" in self._columns else 0
        missing = num_rows // num_steps if self._columns else 0
        return Window(
            first_step=first_step,
            num_steps=num_steps,
            row_indices=row_indices,
            rows=rows,
            tokens=self._pool.take((num_rows, width), self._plan.dtype),
            segments=Segments(num_rows),
            pads=np.empty(num_rows, np.int32),
            text_bytes=np.empty(num_rows, np.int64),
            missing=np.full(num_steps, missing),
            masks=self._plan.takedowns.masks(row_numbers, row_indices),
        )

    def _gains(self, window: Window, num_steps: int) -> bool:
        """Return whether a longer window would take two rows or more from a permuted row group.

        Rows in stored order gain nothing, and reading far ahead is a burst at the start of a run.
        """
        sources = window.rows.sources[self._plan.order.is_permuted(window.rows)]
        counts = np.bincount(sources, minlength=len(self._plan.sources))
        totals = np.maximum(1, self._plan.parts.source_rows)
        return bool((ROWS_PER_GROUP * counts * num_steps >= 2 * window.num_steps * totals).any())


_JOIN_SECONDS = 5.0  # for threads to end: a read takes milliseconds, or hangs
_RUNNING: weakref.WeakSet[WindowReader] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Stop the threads before the interpreter freezes them with the locks that they hold.

    An iterator that lives until then would wait forever for such a lock.
    """
    for reader in list(_RUNNING):
        reader.close()


def _disown_all() -> None:
    for reader in list(_RUNNING):
        reader.is_open = False


os.register_at_fork(after_in_child=_disown_all)  # the threads stay in the parent


@dataclass(frozen=True, slots=True)
class ReadCounts:
    """What a loader has read so far; `rows_read / rows_used` is the read amplification.

    Attributes:
        rows_used: rows of batches, and rows that are ready for batches.
        rows_read: rows of the row groups that were read for these.
        row_groups: row groups read.
        wait_seconds: time spent waiting for rows.
        fetched_bytes: bytes of parts that came from object storage.
        requests: requests for parts, footers included; a repeated request counts once.
        cache_hits: row groups that came from the cache.
    """

    rows_used: int = 0
    rows_read: int = 0
    row_groups: int = 0
    wait_seconds: float = 0.0
    fetched_bytes: int = 0
    requests: int = 0
    cache_hits: int = 0


class WindowReader:
    """Threads that read the steps [first_step, end_step) in order, ahead of `window_of`.

    Attributes:
        is_open: not closed, and in the process that created it.
    """

    def __init__(
        self,
        plan: MixPlan,
        parts: OpenParts,
        schedule: BatchSchedule,
        first_step: int,
        end_step: int,
        *,
        columns: Sequence[str],
        num_threads: int,
        read_ahead_bytes: int,
        deadline_seconds: float,
    ) -> None:
        self._parts, self._columns = parts, columns
        self._deadline = deadline_seconds
        self._planner = Planner(plan, schedule, end_step, columns, read_ahead_bytes // 2)
        lock = threading.RLock()  # a garbage collection may call `close` while it is held
        self._work = threading.Condition(lock)  # something to read or to plan, or closed
        self._done = threading.Condition(lock)  # rows were read, or an error occurred
        self._planned_step = first_step
        self._is_planning, self.is_open = False, True
        self._windows: deque[Window] = deque()
        self._queue: deque[Read] = deque()
        self._under_way: list[Read] = []
        self._failure: BaseException | None = None
        self._rows_used = self._rows_read = self._row_groups = 0
        self._wait_seconds = 0.0
        self._threads = [
            threading.Thread(target=self._run, name=f"corpuskit-reader-{i}", daemon=True)
            for i in range(num_threads)
        ]
        self._pid = os.getpid()
        _RUNNING.add(self)
        for thread in self._threads:
            thread.start()

    @property
    def counts(self) -> ReadCounts:
        """Counts of what was read so far."""
        transfers = self._parts.transfers
        return ReadCounts(
            self._rows_used,
            self._rows_read,
            self._row_groups,
            self._wait_seconds,
            transfers.fetched_bytes,
            transfers.requests,
            transfers.cache_hits,
        )

    def window_of(self, step: int) -> Window:
        """Wait until all rows of a step are read, and return its window; steps in order only.

        Raises:
            DataError: a row can't be read, or its read is past the deadline.
        """
        began = time.monotonic()
        self.require_open()  # before a lock that a thread of the parent may hold
        with self._done:
            while self._windows and step >= self._windows[0].end_step:
                self._windows.popleft()
                self._work.notify_all()
            while True:
                window = self._windows[0] if self._windows else None
                if self._failure:
                    raise self._failure
                self.require_open()
                if window and step in window.errors:
                    raise window.errors[step]
                if window and not window.missing[step - window.first_step]:
                    self._wait_seconds += time.monotonic() - began
                    return window
                self._done.wait(self._check_deadlines(step))

    def turn_to(self, step: int) -> None:
        """Read only this step next; drop all other rows, read or planned."""
        self.require_open()  # before a lock that a thread of the parent may hold
        with self._work:
            self._windows.clear()
            self._queue.clear()
            self._planned_step, self._planner.end_step = step, step + 1
            self._work.notify_all()

    def require_open(self) -> None:
        """Refuse to continue with a reader that was closed.

        Raises:
            UsageError: it is closed.
        """
        if os.getpid() != self._pid:
            raise UsageError(
                "loader: this iterator was begun before a fork, and its threads are in the other"
                " process. Take a new one with iter(loader)."
            )
        if not self.is_open:
            raise UsageError(
                "loader: it was closed or moved while this iterator was in use."
                " Take a new one with iter(loader)."
            )

    def close(self) -> None:
        """Stop the threads and close the parts; a thread that hangs in a read is abandoned."""
        if not self.is_open or os.getpid() != self._pid:
            return  # in a fork the threads are not there, and one may have held the lock
        with self._work:
            self.is_open = False
            self._queue.clear()
            self._work.notify_all()
            hangs = any(self._age(read) >= self._deadline for read in self._under_way)
        end = time.monotonic() + (0.0 if hangs else _JOIN_SECONDS)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))
        self._parts.close()

    def _age(self, read: Read) -> float:
        return time.monotonic() - read.started

    def _check_deadlines(self, step: int) -> float:
        """Return in how many seconds to check again; raise if the step's read is overdue."""
        late = [read for read in self._under_way if self._age(read) >= self._deadline]
        for read in late:
            if step in read.steps() or len(late) == len(self._threads):
                raise DataError(
                    f"{self._parts.where(read.part, read.groups)} was not read within"
                    f" {self._deadline:g} seconds. Check the storage or raise"
                    " read_deadline_seconds."
                )
        ages = [self._age(read) for read in self._under_way if read not in late]
        return max(0.001, self._deadline - max(ages, default=0.0))

    def _run(self) -> None:
        try:
            pages = TokenPages()
            while self._turn(pages):
                pass
        except BaseException as error:  # noqa: BLE001 of this thread: `window_of` raises it
            with self._done:
                self._failure = error
                self._done.notify_all()

    def _turn(self, pages: TokenPages) -> bool:
        """Plan a window, or do the next read; return False when closed."""
        with self._work:
            while True:
                if not self.is_open:
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
            self._read(read, pages)
        return True

    def _can_plan(self) -> bool:
        has_more = self._planned_step < self._planner.end_step
        return has_more and len(self._windows) < 2 and not self._is_planning

    def _plan_window(self) -> None:
        window = self._planner.window(self._planned_step)
        reads = self._planner.reads(window)
        with self._work:
            self._windows.append(window)
            self._queue.extend(reads)
            self._planned_step = window.end_step
            self._is_planning = False
            self._work.notify_all()
            if not reads:
                self._done.notify_all()

    def _read(self, read: Read, pages: TokenPages) -> None:
        error: Exception | None = None
        retries, num_rows = [], 0
        try:
            num_rows = self._fill(read, pages)
        except READ_ERRORS as reason:
            if not read.is_retry:
                retries = read.retries()
                LOG.warning("a read of token rows failed and is tried again: %s", reason)
            else:
                error = reason  # `window_of` raises it for a step that needs these rows
        window, steps = read.window, read.steps()
        with self._done:
            self._under_way.remove(read)
            if retries:
                self._queue.extendleft(reversed(retries))
                self._work.notify_all()
            elif error:
                window.errors |= dict.fromkeys(steps.tolist(), error)
            else:
                window.missing -= np.bincount(steps - window.first_step, minlength=window.num_steps)
                self._rows_used += len(steps)
                self._rows_read += num_rows
                self._row_groups += len(read.groups)
            self._done.notify_all()

    def _fill(self, read: Read, pages: TokenPages) -> int:
        """Copy the rows of a read into the window; return how many were read."""
        window, parts = read.window, self._parts
        if read.is_retry:
            table = parts.read_again(read.part, read.groups[0], self._columns)
            segments = parts.segments_of(read.part, read.groups, table)
            if "tokens" in self._columns:
                read.put(0, parts.tokens_of(table))
        else:
            segments = parts.read_rows(read.part, read.groups, self._columns, pages, read)
        rows, into = read.taken, read.into
        window.pads[into] = segments.pads[rows]
        window.text_bytes[into] = segments.text_bytes[rows]
        if not len(segments.starts):
            return len(segments.pads)
        firsts, counts = segments.bounds[:-1][rows], np.diff(segments.bounds)[rows]
        starts = segments.starts[ranges(firsts, counts)]
        with self._work:
            window.segments.add(into, starts, counts)
        return len(segments.pads)

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
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.errors import DataError, UsageError
from corpuskit.loader.pages import TokenPages
from corpuskit.loader.parts import READ_ERRORS, TOKEN_COLUMNS
from corpuskit.loader.window import Planner, Read, Window, ranges
from corpuskit.logs import LOG

if TYPE_CHECKING:
    from corpuskit.loader.index import MixPlan
    from corpuskit.loader.parts import Parts, SegmentColumns, StoredRows
    from corpuskit.loader.steps import Slicing

_JOIN_SECONDS = 5.0  # a read takes milliseconds, or hangs
_RUNNING: weakref.WeakSet[Reader] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Stop the threads before the interpreter does, which freezes them whatever they hold.

    An iterator that is alive until then would wait for ever for a lock that a frozen thread has.
    """
    for reader in list(_RUNNING):
        reader.close()


@dataclass(frozen=True, slots=True)
class ReadCounts:
    """What a loader has read so far; amplification is `rows_read / rows_used`.

    Attributes:
        rows_used: rows put into batches or waiting for them.
        rows_read: rows of the row groups that were read for them.
        row_groups: row groups read.
        wait_seconds: how long batches were waited for.
        fetched_bytes: bytes of parts that came from object storage.
        requests: requests for them, footers included; those that the client repeats count once.
        cache_hits: row groups that came from the cache.
    """

    rows_used: int = 0
    rows_read: int = 0
    row_groups: int = 0
    wait_seconds: float = 0.0
    fetched_bytes: int = 0
    requests: int = 0
    cache_hits: int = 0


class Reader:
    """Threads that read the steps [first_step, end_step) in order, ahead of `window_of`."""

    def __init__(
        self,
        plan: MixPlan,
        parts: Parts,
        slicing: Slicing,
        first_step: int,
        end_step: int,
        *,
        num_threads: int,
        read_ahead_bytes: int,
        deadline_seconds: float,
    ) -> None:
        self._parts = parts
        self._end_step, self._deadline = end_step, deadline_seconds
        self._planner = Planner(plan, slicing, end_step, read_ahead_bytes // 2)
        lock = threading.RLock()  # `close` may be called by a garbage collection inside of it
        self._work = threading.Condition(lock)  # something to read or to plan, or closed
        self._done = threading.Condition(lock)  # rows or an error have come
        self._planned_step = first_step
        self._is_planning = self._is_closed = False
        self._windows: deque[Window] = deque()
        self._queue: deque[Read] = deque()
        self._under_way: list[Read] = []
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
                    self._count(wait_seconds=time.monotonic() - began)
                    return window
                self._done.wait(self._check_deadlines(step))

    def require_open(self) -> None:
        """Refuse to go on with a reader that somebody has closed.

        Raises:
            UsageError: it is closed.
        """
        if os.getpid() != self._pid:
            raise UsageError(
                "loader: this iterator was begun before a fork, and its threads are in the other"
                " process. Take a new one with iter(loader)."
            )
        if self._is_closed:
            raise UsageError(
                "loader: it was closed or moved while this iterator was in use."
                " Take a new one with iter(loader)."
            )

    def close(self) -> None:
        """Stop the threads and close the parts; a thread that hangs in a read is left behind."""
        if self._is_closed or os.getpid() != self._pid:
            return  # in a fork the threads are not there, and one may have held the lock
        with self._work:
            self._is_closed = True
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
        """Return in how many seconds to look again; raise if the step's read is past its time."""
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
        except BaseException as error:  # noqa: BLE001 the end of a thread: whoever waits raises it
            with self._done:
                self._failure = error
                self._done.notify_all()

    def _turn(self, pages: TokenPages) -> bool:
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
            self._read(read, pages)
        return True

    def _can_plan(self) -> bool:
        more = self._planned_step < self._end_step
        return more and len(self._windows) < 2 and not self._is_planning

    def _plan_window(self) -> None:
        window = self._planner.window(self._planned_step)
        reads = self._planner.reads(window)
        with self._work:
            self._windows.append(window)
            self._queue.extend(reads)
            self._planned_step = window.end_step
            self._is_planning = False
            self._work.notify_all()
            self._done.notify_all()

    def _read(self, read: Read, pages: TokenPages) -> None:
        error: Exception | None = None
        again, num_rows = [], 0
        try:
            num_rows = self._fill(read, pages)
        except READ_ERRORS as reason:
            if not read.is_retry:
                again = read.one_by_one()
                LOG.warning("a read of token rows failed and is tried again: %s", reason)
            else:
                error = reason  # raised when a step that needs these rows is asked for, not before
        window, steps = read.window, read.steps()
        with self._done:
            self._under_way.remove(read)
            if again:
                self._queue.extendleft(reversed(again))
                self._work.notify_all()
            elif error:
                window.errors |= dict.fromkeys(steps.tolist(), error)
            else:
                window.missing -= np.bincount(steps - window.first_step, minlength=window.num_steps)
                self._count(rows_used=len(steps), rows_read=num_rows, row_groups=len(read.groups))
            self._done.notify_all()

    def _fill(self, read: Read, pages: TokenPages) -> int:
        """Put the rows of a read where the window wants them; return how many were read."""
        window, parts = read.window, self._parts
        if read.is_retry:
            table = parts.read_again(read.part, read.groups[0], TOKEN_COLUMNS)
            rows = parts.decode(read.part, read.groups, table)
            read.place(0, rows.tokens.view(np.uint8))
            found: SegmentColumns | StoredRows = rows
        else:
            found = parts.read_rows(read.part, read.groups, pages, read)
        taken, into = read.taken, read.into
        window.pads[into] = found.pads[taken]
        window.text_bytes[into] = found.text_bytes[taken]
        begins, counts = found.bounds[:-1][taken], np.diff(found.bounds)[taken]
        starts = found.starts[ranges(begins, counts)]
        with self._work:
            window.segments.put(into, starts, counts)
        return len(found.pads)

    def _count(
        self,
        rows_used: int = 0,
        rows_read: int = 0,
        row_groups: int = 0,
        wait_seconds: float = 0.0,
    ) -> None:
        old, transfers = self.counts, self._parts.transfers
        self.counts = ReadCounts(
            old.rows_used + rows_used,
            old.rows_read + rows_read,
            old.row_groups + row_groups,
            old.wait_seconds + wait_seconds,
            transfers.fetched_bytes,
            transfers.requests,
            transfers.cache_hits,
        )

"""Looks on while somebody else runs a run: another shell, Slurm, Ray, another machine.

All is known from the run directory: seals, manifests, failures; and whether anybody is at work from
the lock, from the jobs of Slurm, and from the log files of workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import socket
import time
from typing import TYPE_CHECKING

from corpuskit.engine.executors.slurm import JOBS, first_alive, job_states, read_jobs
from corpuskit.engine.failures import read_failures, span
from corpuskit.engine.plan.compile import PLAN
from corpuskit.engine.plan.fingerprint import same_but_code
from corpuskit.engine.progress import Tracker
from corpuskit.engine.rundir import RunDirectory
from corpuskit.errors import DataError, TaskError, UsageError
from corpuskit.storage import LocalStore
from corpuskit.storage.lease import is_free

if TYPE_CHECKING:
    from collections.abc import Callable

    from corpuskit.engine.failures import FailureNote
    from corpuskit.engine.plan.compile import Phase
    from corpuskit.engine.progress import Progress
    from corpuskit.formats.manifest import Seal
    from corpuskit.storage import Store

ASK_SECONDS = 10.0
"""How often Slurm is asked about the jobs, and the lease looked at."""

LEASE_SECONDS = 60.0
"""A lease in object storage that was not renewed for so long is nobody's."""

GONE_SECONDS = 6.0
"""So long nobody may seem to be at work before it is believed: a run that starts takes seconds."""

PLAN_SECONDS = 30.0
"""How often it is looked whether the run was started again with another plan."""

QUIET_SECONDS, QUIET_TASKS = 600.0, 3.0
"""Without a finished task for so long, and for so many times the longest task, it is said."""


@dataclasses.dataclass(frozen=True)
class Pulse:
    """Whether somebody works on a run: None = it cannot be told from here; and what shows it.

    Attributes:
        needs_help: it goes on only when a person does something, which `said` names.
    """

    is_alive: bool | None
    said: str
    needs_help: bool = False


class Watcher:
    """Follows a run from the outside.

    Args:
        address: of the run directory.

    Raises:
        UsageError: there is no run there.
    """

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.address, self._clock = address, clock
        self._heart = _Heart(clock)
        self._open()

    def _open(self) -> None:
        self.run = RunDirectory.open(self.address)
        self._plan, self._planned = _digest(self.run.store), self._clock()
        self.tracker = Tracker(self.run, self._clock, _seconds_since_plan(self.run.store))
        self._next = 0
        self._told: set[FailureNote] = set()
        self.news: list[str] = []
        self._is_foreign = False
        try:
            self.run.check_code()
        except TaskError:  # then fingerprints differ here in their last part
            self._is_foreign = True

    def look(self) -> Progress:
        """Return how far the run is now."""
        if self._clock() - self._planned > PLAN_SECONDS:
            self._planned = self._clock()
            if _digest(self.run.store) != self._plan:
                self._open()
        while self._next < len(self.run.plan.phases) and self._is_behind():
            self._next += 1
        pulse = self._heart.look(self.run.store)
        if self._next == len(self.run.plan.phases):
            is_closed = not self.run.store.exists(JOBS) or pulse.is_alive is False
            return self.tracker.progress("finished" if is_closed else "running")
        notes = self._failures()
        self.tracker.failed = len(notes)
        if pulse.is_alive is not False and not (notes and pulse.is_alive is None):
            return self.tracker.progress("running", self._quiet(pulse))
        if notes:
            return self.tracker.progress("failed")
        command = "Run the same command again to continue."
        return self.tracker.progress("stopped", f"{pulse.said} {command}")

    def exit_code(self, progress: Progress) -> int:
        """Return the exit code that the run has, or had, for what came of it."""
        if progress.state in {"running", "finished"}:
            return 0
        codes = {note.code for note in self._failures()}
        return DataError.exit_code if codes == {DataError.exit_code} else TaskError.exit_code

    def _is_behind(self) -> bool:
        """Look at the next phase; return whether it is finished."""
        phase, count = self.run.plan.phases[self._next], self.tracker.count
        if count is None:
            mark = self._mark(phase)
            seal = self._sealed(phase, mark)
            if seal is None:
                self.tracker.begin(phase, mark)
                return False
        else:
            self.tracker.look()
            seal = self._sealed(phase, count.mark) if count.is_whole else None
            if seal is None:
                return False
        self.run.set_seal(phase, seal)
        self.tracker.end(phase, seal)
        return True

    def _sealed(self, phase: Phase, mark: str) -> Seal | None:
        """Return the seal of a phase if it is that of this plan."""
        seal = self.run.usable_seal(phase)
        if seal is None or seal.inputs != self.run.input_contents(phase):
            return None
        is_same = same_but_code if self._is_foreign else str.__eq__
        return seal if is_same(seal.fingerprint, mark) else None

    def _mark(self, phase: Phase) -> str:
        """Return the fingerprint under which the phase is run."""
        mark = self.run.fingerprint(phase)
        if self._is_foreign:
            for name in self.run.store.list(f"manifests/{phase.name}"):
                found = name.split("/")[2]
                if same_but_code(found, mark):
                    return found
        return mark

    def _failures(self) -> list[FailureNote]:
        """Return what is remembered of failed tasks of the current phase; new ones are news."""
        count = self.tracker.count
        if count is None or not count.failed:
            return []
        notes = read_failures(self.run, count.phase)
        for note in notes:
            if note not in self._told:
                self._told.add(note)
                self.news.append(f"failed: {note.phase}, {span(note.units)}: {note.error}")
        return notes

    def _quiet(self, pulse: Pulse) -> str:
        """Return what there is to say when nothing changes."""
        if pulse.needs_help:
            return pulse.said
        count = self.tracker.count
        if count is None:
            return ""
        quiet = self.tracker.quiet_seconds()
        if quiet < max(QUIET_SECONDS, QUIET_TASKS * count.longest_seconds):
            return ""
        return f"no task finished for {quiet / 60:.0f} min; workers alive? {pulse.said}"


class _Heart:
    """Finds out whether somebody works on a run, not too often where asking costs something."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._asked: float | None = None
        self._last = Pulse(None, "")
        self._gone: float | None = None
        self._lease, self._changed = b"", clock()

    def look(self, store: Store) -> Pulse:
        """Return whether somebody works on a run; that nobody does is believed after a while."""
        now = self._clock()
        is_cheap = isinstance(store, LocalStore) and not store.exists(JOBS)
        if is_cheap or self._asked is None or now - self._asked >= ASK_SECONDS or self._gone:
            self._asked = now
            self._last = self._ask(store)
        if self._last.is_alive is not False:
            self._gone = None
            return self._last
        self._gone = self._gone or now
        is_sure = now - self._gone >= GONE_SECONDS
        return self._last if is_sure else Pulse(True, "")

    def _ask(self, store: Store) -> Pulse:
        jobs = read_jobs(store)
        if jobs:
            try:
                states = job_states(jobs)
            except UsageError as error:
                return Pulse(None, f"Slurm cannot be asked: {error}")
            current = first_alive(states)
            if current is None:
                return Pulse(False, "No jobs are left in Slurm.")
            said = f"Job {current.job.number} ({current.job.phase}): {current.words}"
            return Pulse(not current.is_hopeless, said, needs_help=current.is_held)
        if isinstance(store, LocalStore):
            return _lock(store)
        return self._ask_lease(store)

    def _ask_lease(self, store: Store) -> Pulse:
        [content] = store.read_each(["lock"])
        if content is None or is_free(content):
            return Pulse(False, "Nobody holds the lease of the run.")
        if content != self._lease:
            self._lease, self._changed = content, self._clock()
        quiet = self._clock() - self._changed
        if quiet > LEASE_SECONDS:
            return Pulse(False, f"The lease of the run was not renewed for {quiet:.0f} s.")
        return Pulse(True, "The lease of the run is held.")


def _lock(store: LocalStore) -> Pulse:
    """Return whether a process here holds the lock; of other machines that cannot be seen."""
    logs = _worker_logs(store)
    host, parent = logs[0] if logs else (socket.gethostname(), 0)
    rows: list[list[str]] = []
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as file:
        rows = [line.split() for line in file]
    number = "0"
    with contextlib.suppress(OSError):
        number = str(os.stat(store.path("lock")).st_ino)
    # <n>: FLOCK ADVISORY WRITE <process> <major>:<minor>:<inode> ...; "->" stands for who waits.
    holders = [row[4] for row in rows if row[5].rpartition(":")[2] == number and row[1] == "FLOCK"]
    if holders:
        return Pulse(True, f"Process {holders[0]} holds the lock of the run.")
    if host != socket.gethostname() or (not rows and _is_alive(parent)):
        return Pulse(None, f"The run was last seen in process {parent} on {host}.")
    return Pulse(False, "No process works on this run.")


def _worker_logs(store: LocalStore) -> list[tuple[str, int]]:
    """Return host and process of whoever started workers, by their logs, the latest first."""
    found: list[tuple[float, str, int]] = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(store.path("logs")):
            named = re.fullmatch(r"worker-(.+)-(\d+)-\d+\.log", entry.name)
            if named:
                found.append((entry.stat().st_mtime, named[1], int(named[2])))
    return [(host, process) for _, host, process in sorted(found, reverse=True)]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return process > 0


def _digest(store: Store) -> str:
    [content] = store.read_each([PLAN])
    return hashlib.blake2b(content or b"", digest_size=16).hexdigest()


def _seconds_since_plan(store: Store) -> float:
    """Return for how long the run has been going, by the time of its plan; 0 if there is none."""
    if not isinstance(store, LocalStore):
        return 0.0
    with contextlib.suppress(OSError):
        return max(time.time() - os.stat(store.path(PLAN)).st_mtime, 0.0)
    return 0.0

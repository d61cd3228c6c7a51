"""Watches a run from outside the process that runs it.

`RunMonitor` watches a run of another shell, of Slurm, Ray or another machine. `SlurmFollower` waits
for the jobs that this process has submitted. Both read seals, manifests and failures from the run
directory. Whether the run is alive they learn from its lock, from the jobs in Slurm, and from the
log files of workers (`Liveness`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import socket
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from corpuskit.engine.executors.slurm import (
    CLOSING,
    ENDED,
    JOBS,
    JobState,
    first_alive,
    job_states,
    log_of,
    read_jobs,
)
from corpuskit.engine.fingerprint import same_but_code
from corpuskit.engine.phase import PhaseWork, describe_units, failure_error, read_failures
from corpuskit.engine.plan import PLAN
from corpuskit.engine.progress import PhaseCount, Tracker
from corpuskit.engine.rundir import RunDirectory
from corpuskit.errors import CorpuskitError, DataError, TaskError, UsageError
from corpuskit.formats.manifest import digest_bytes
from corpuskit.storage import LocalStore
from corpuskit.storage.lease import is_free, is_running

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corpuskit.engine.callbacks import RunCallbacks
    from corpuskit.engine.executors.slurm import Job
    from corpuskit.engine.phase import FailureRecord
    from corpuskit.engine.plan import Phase
    from corpuskit.engine.progress import RunProgress
    from corpuskit.formats.manifest import Seal
    from corpuskit.storage import Store

ASK_SECONDS = 10.0
"""How often Slurm is queried for the jobs (its controller serves many) and the lease is read."""

LEASE_SECONDS = 60.0
"""A lease in object storage that was not renewed for this long has no holder."""

GONE_SECONDS = 6.0
"""A run counts as abandoned after this long without a sign of life: starting takes seconds."""

PLAN_SECONDS = 30.0
"""How often to check whether the run was started again with another plan."""

QUIET_SECONDS, QUIET_TASKS = 600.0, 3.0
"""A run is reported as quiet after this long, and this many times the longest task, without a
finished task."""

POLL_SECONDS = 2.0
TASKS_PER_SECOND = 1000
"""With more tasks the folder is listed less often: a listing of 100,000 takes a second."""

SEAL_SECONDS = 30.0
"""How long a network file system may take to show a seal after the last job has ended."""


@dataclasses.dataclass(frozen=True)
class Heartbeat:
    """Whether somebody works on a run; None = that cannot be seen from here.

    Attributes:
        evidence: what shows it.
        needs_help: it goes on only after a person has done what `evidence` asks for.
    """

    is_alive: bool | None
    evidence: str
    needs_help: bool = False


class RunMonitor:
    """Follows a run from the outside.

    Args:
        address: of the run directory.

    Raises:
        UsageError: it is not a run directory.
    """

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.address, self._clock = address, clock
        self._liveness = Liveness(clock)
        self._open()

    def _open(self) -> None:
        self.run = RunDirectory.open(self.address)
        self._plan, self._planned = _digest(self.run.store), self._clock()
        self.tracker = Tracker(self.run, self._clock, _seconds_since_plan(self.run.store))
        self._next = 0
        self._reported: set[FailureRecord] = set()
        self.news: list[str] = []
        self._is_foreign = False
        try:
            self.run.check_code()
        except TaskError:  # then fingerprints differ here in their last part
            self._is_foreign = True

    def look(self) -> RunProgress:
        if self._clock() - self._planned > PLAN_SECONDS:
            self._planned = self._clock()
            if _digest(self.run.store) != self._plan:
                self._open()
        while self._next < len(self.run.plan.phases) and self._is_finished():
            self._next += 1
        heartbeat = self._liveness.look(self.run.store)
        if self._next == len(self.run.plan.phases):
            is_closed = not self.run.store.exists(JOBS) or heartbeat.is_alive is False
            return self.tracker.progress("finished" if is_closed else "running")
        failures = self._failures()
        self.tracker.failed = len(failures)
        if heartbeat.is_alive is not False and not (failures and heartbeat.is_alive is None):
            return self.tracker.progress("running", self._quiet(heartbeat))
        if failures:
            return self.tracker.progress("failed")
        command = "Run the same command again to continue."
        return self.tracker.progress("stopped", f"{heartbeat.evidence} {command}")

    def exit_code(self, progress: RunProgress) -> int:
        """Return the exit code that the run has, or had, for what came of it."""
        if progress.state in {"running", "finished"}:
            return 0
        codes = {failure.code for failure in self._failures()}
        return DataError.exit_code if codes == {DataError.exit_code} else TaskError.exit_code

    def _is_finished(self) -> bool:
        """Look at the next phase; return whether it is finished."""
        phase, count = self.run.plan.phases[self._next], self.tracker.count
        if count is None:
            fingerprint = self._fingerprint(phase)
            seal = self._sealed(phase, fingerprint)
            if seal is None:
                self.tracker.begin(phase, fingerprint)
                return False
        else:
            self.tracker.look()
            seal = self._sealed(phase, count.fingerprint) if count.is_complete else None
            if seal is None:
                return False
        self.run.set_seal(phase, seal)
        self.tracker.end(phase, seal)
        return True

    def _sealed(self, phase: Phase, fingerprint: str) -> Seal | None:
        """Return the seal of a phase if it is that of this plan."""
        seal = self.run.usable_seal(phase)
        if seal is None or seal.inputs != self.run.input_contents(phase):
            return None
        is_same = same_but_code if self._is_foreign else str.__eq__
        return seal if is_same(seal.fingerprint, fingerprint) else None

    def _fingerprint(self, phase: Phase) -> str:
        expected = self.run.fingerprint(phase)
        if self._is_foreign:
            for name in self.run.store.list(f"manifests/{phase.name}"):
                actual = name.split("/")[2]
                if same_but_code(actual, expected):
                    return actual
        return expected

    def _failures(self) -> list[FailureRecord]:
        """Return what is remembered of failed tasks of the current phase; new ones are news."""
        count = self.tracker.count
        if count is None or not count.failed:
            return []
        failures = read_failures(self.run, count.phase)
        for failure in failures:
            if failure not in self._reported:
                self._reported.add(failure)
                units = describe_units(failure.units)
                self.news.append(f"failed: {failure.phase}, {units}: {failure.error}")
        return failures

    def _quiet(self, heartbeat: Heartbeat) -> str:
        """Return a note for a run in which nothing changes, or ""."""
        if heartbeat.needs_help:
            return heartbeat.evidence
        count = self.tracker.count
        if count is None:
            return ""
        quiet = self.tracker.quiet_seconds()
        if quiet < max(QUIET_SECONDS, QUIET_TASKS * count.longest_seconds):
            return ""
        return f"no task finished for {quiet / 60:.0f} min; workers alive? {heartbeat.evidence}"


class Liveness:
    """Finds out whether somebody works on a run; asks Slurm and object stores only now and then."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._asked: float | None = None
        self._last = Heartbeat(None, "")
        self._gone_since: float | None = None
        self._lease, self._changed = b"", clock()

    def look(self, store: Store) -> Heartbeat:
        """Return whether somebody works on a run; only GONE_SECONDS of silence count as no."""
        now = self._clock()
        is_cheap = isinstance(store, LocalStore) and not store.exists(JOBS)
        is_due = self._asked is None or now - self._asked >= ASK_SECONDS
        if is_cheap or is_due or self._gone_since:
            self._asked = now
            self._last = self.ask(store)
        if self._last.is_alive is not False:
            self._gone_since = None
            return self._last
        self._gone_since = self._gone_since or now
        is_sure = now - self._gone_since >= GONE_SECONDS
        return self._last if is_sure else Heartbeat(True, "")

    def ask(self, store: Store) -> Heartbeat:
        """Return what one look shows, without waiting for GONE_SECONDS."""
        jobs = read_jobs(store)
        if jobs:
            try:
                states = job_states(jobs)
            except UsageError as error:
                return Heartbeat(None, f"Slurm cannot be asked: {error}")
            current = first_alive(states)
            if current is None:
                return Heartbeat(False, "No jobs are left in Slurm.")
            evidence = f"Job {current.job.number} ({current.job.phase}): {current.description}"
            return Heartbeat(not current.is_hopeless, evidence, needs_help=current.is_held)
        if isinstance(store, LocalStore):
            return _lock(store)
        return self._ask_lease(store)

    def _ask_lease(self, store: Store) -> Heartbeat:
        [content] = store.read_each(["lock"])
        if content is None or is_free(content):
            return Heartbeat(False, "Nobody holds the lease of the run.")
        if content != self._lease:
            self._lease, self._changed = content, self._clock()
        quiet = self._clock() - self._changed
        if quiet > LEASE_SECONDS:
            return Heartbeat(False, f"The lease of the run was not renewed for {quiet:.0f} s.")
        return Heartbeat(True, "The lease of the run is held.")


def heartbeat(store: Store) -> Heartbeat:
    """Return whether somebody works on a run, as far as one look tells.

    In object storage the lease of a killed holder stays until another holder takes it.
    """
    return Liveness(time.monotonic).ask(store)


def _lock(store: LocalStore) -> Heartbeat:
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
        return Heartbeat(True, f"Process {holders[0]} holds the lock of the run.")
    if host != socket.gethostname() or (not rows and is_running(parent)):
        return Heartbeat(None, f"The run was last seen in process {parent} on {host}.")
    return Heartbeat(False, "No process works on this run.")


def _worker_logs(store: LocalStore) -> list[tuple[str, int]]:
    """Return host and process of the drivers that started workers, by their logs, latest first."""
    logs: list[tuple[float, str, int]] = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(store.path("logs")):
            name = re.fullmatch(r"worker-(.+)-(\d+)-\d+\.log", entry.name)
            if name:
                logs.append((entry.stat().st_mtime, name[1], int(name[2])))
    return [(host, process) for _, host, process in sorted(logs, reverse=True)]


def _digest(store: Store) -> str:
    [content] = store.read_each([PLAN])
    return digest_bytes(content or b"")


def _seconds_since_plan(store: Store) -> float:
    """Return for how long the run has been going, by the time of its plan; 0 if there is none."""
    if not isinstance(store, LocalStore):
        return 0.0
    with contextlib.suppress(OSError):
        return max(time.time() - os.stat(store.path(PLAN)).st_mtime, 0.0)
    return 0.0


class SlurmFollower:
    """Waits for the jobs of a submitted run, and reports what manifests and seals show.

    Args:
        phases: those that were submitted, in order.
    """

    def __init__(
        self,
        run: RunDirectory,
        jobs: Sequence[Job],
        phases: Sequence[Phase],
        callbacks: RunCallbacks,
    ) -> None:
        self.run, self.jobs, self.phases, self.callbacks = run, jobs, phases, callbacks
        self._asked = time.monotonic()
        self._gone_since: float | None = None
        self._queued: tuple[Job, tuple[str, ...]] | None = None
        self._noted: set[tuple[Job, tuple[str, ...]]] = set()
        self._ended: defaultdict[Job, Counter[str]] = defaultdict(Counter)
        """How elements ended, as far as seen: Slurm forgets ended jobs after minutes."""

    def follow(self) -> list[Seal]:
        """Wait for every phase to be sealed, and for the run to be closed.

        Raises:
            TaskError: tasks failed, or the jobs are gone.
            DataError: all failed tasks failed for broken data.
        """
        seals = [self._phase(phase) for phase in self.phases]
        while self.run.store.exists(JOBS):
            self._pause(None)
        return seals

    def _phase(self, phase: Phase) -> Seal:
        work = PhaseWork(self.run, phase)
        self.callbacks.phase_starts(work.status())
        count = PhaseCount(self.run, phase, work.fingerprint)
        count.look()
        while True:
            seal = self.run.usable_seal(phase)
            self._report(count)
            if (
                seal is not None
                and seal.fingerprint == work.fingerprint
                and self._is_new(seal, work)
            ):
                self.run.set_seal(phase, seal)
                self.callbacks.phase_ends(phase, seal)
                return seal
            self._pause(phase, count.tasks_done / TASKS_PER_SECOND)

    def _is_new(self, seal: Seal, work: PhaseWork) -> bool:
        """Return whether a seal is of these jobs, not an old one whose files they make again."""
        return seal != work.before or (not seal.deleted and self.run.has_parts(seal))

    def _report(self, count: PhaseCount) -> None:
        """Report the tasks whose manifests are new, and what they read."""
        tasks, documents, size = count.tasks_done, count.documents, count.text_bytes
        if count.look():
            self.callbacks.progress(count.documents - documents, count.text_bytes - size)
        for _ in range(count.tasks_done - tasks):
            self.callbacks.task_ends("done", {})

    def _pause(self, phase: Phase | None, seconds: float = 0.0) -> None:
        """Sleep until the next look; raise if no job works on the run any more."""
        time.sleep(max(POLL_SECONDS, seconds))
        if time.monotonic() - self._asked < ASK_SECONDS and self._gone_since is None:
            return
        self._asked = time.monotonic()
        try:
            states = job_states(self.jobs)
        except UsageError:
            return  # the controller is away: jobs go on, and manifests show progress
        for state in states:
            finished = {name: num for name, num in state.elements.items() if name in ENDED}
            self._ended[state.job] |= Counter(finished)
        current = first_alive(states)
        if current is not None and not current.is_hopeless:
            self._gone_since = None
            self._note_queued(current)
            return
        self._gone_since = self._gone_since or time.monotonic()
        if time.monotonic() - self._gone_since > SEAL_SECONDS or self._has_failed(phase):
            raise self._stopped(phase, states)

    def _note_queued(self, state: JobState) -> None:
        """Report once what the current job waits for, when it has waited since the last look."""
        is_queued = state.reasons and (state.is_held or not state.is_working)
        queued = (state.job, state.reasons) if is_queued else None
        if queued is not None and queued == self._queued and queued not in self._noted:
            self._noted.add(queued)
            self.callbacks.notes(f"job {state.job.number} ({state.job.phase}): {state.description}")
        self._queued = queued

    def _has_failed(self, phase: Phase | None) -> bool:
        return phase is not None and bool(read_failures(self.run, phase))

    def _stopped(self, phase: Phase | None, states: Sequence[JobState]) -> CorpuskitError:
        failures = [] if phase is None else read_failures(self.run, phase)
        if phase is not None and failures:
            return failure_error(phase, failures)
        if blocked := first_alive(states):
            reasons = ", ".join(blocked.reasons)
            alive = " ".join(state.job.number for state in states if state.is_alive)
            return TaskError(
                f"{self.run.store.address}: job {blocked.job.number} ({blocked.job.phase}) "
                f"waits for ever: {reasons}. scancel {alive}, then run the same command again."
            )
        name = CLOSING if phase is None else phase.name
        [last] = [job for job in self.jobs if job.phase == name]
        description = JobState(last, dict(self._ended[last]), ()).description
        goal = "close the run" if phase is None else f"finish phase {name}"
        return TaskError(
            f"{self.run.store.address}: no job is left in Slurm to {goal}. Job {last.number}: "
            f"{description.rstrip('.')}. Logs: {log_of(self.run, last)}. Run the same command "
            "again to continue."
        )

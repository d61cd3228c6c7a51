"""Follows a run whose tasks somebody else drives: progress from manifests, its end from seals."""

from __future__ import annotations

import contextlib
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
)
from corpuskit.engine.failures import failure_error, read_failures
from corpuskit.engine.phase import PhaseWork
from corpuskit.errors import CorpuskitError, DataError, TaskError, UsageError
from corpuskit.formats.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.engine.executors.slurm import Job
    from corpuskit.engine.pipeline import Observer
    from corpuskit.engine.plan.compile import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Seal

POLL_SECONDS = 2.0
TASKS_PER_SECOND = 1000
"""With more tasks the folder is listed less often: a listing of 100,000 takes a second."""

ASK_SECONDS = 10.0
"""How often Slurm is asked whether the jobs are still there; a controller serves many."""

PATIENCE_SECONDS = 30.0
"""How long a seal may take to show here after the last job has ended (network file systems)."""


class Follower:
    """Watches the jobs of a submitted run.

    Args:
        phases: those that were submitted, in order.
    """

    def __init__(
        self, run: RunDirectory, jobs: Sequence[Job], phases: Sequence[Phase], observer: Observer
    ) -> None:
        self.run, self.jobs, self.phases, self.observer = run, jobs, phases, observer
        self._asked = time.monotonic()
        self._gone: float | None = None
        self._queued: tuple[Job, tuple[str, ...]] | None = None
        self._told: set[tuple[Job, tuple[str, ...]]] = set()
        self._ended: defaultdict[Job, Counter[str]] = defaultdict(Counter)
        """How elements ended, as far as it was seen: Slurm forgets them after minutes."""

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
        self.observer.phase_starts(work.prospect())
        seen = set(self._manifests(work)) if work.reused is None else set()
        while True:
            seal = self.run.usable_seal(phase)
            for name in self._manifests(work):
                if name not in seen:
                    seen.add(name)
                    self._tell(name)
            if seal is not None and seal.fingerprint == work.mark and self._is_new(seal, work):
                self.run.set_seal(phase, seal)
                self.observer.phase_ends(phase, seal)
                return seal
            self._pause(phase, len(seen) / TASKS_PER_SECOND)

    def _is_new(self, seal: Seal, work: PhaseWork) -> bool:
        """Return whether a seal is no old one whose files are gone and made again now."""
        return seal != work.before or self.run.has_parts(seal.parts)

    def _manifests(self, work: PhaseWork) -> list[str]:
        listed = self.run.store.list(f"manifests/{work.phase.name}/{work.mark}")
        return [name for name in listed if "/task-" in name]

    def _tell(self, name: str) -> None:
        """Pass on what a new manifest says."""
        with contextlib.suppress(DataError):  # gone or not whole yet: the seal will tell
            counters = Manifest.from_json(self.run.store.read(name), name).counters
            documents = sum(n for key, n in counters.items() if key.startswith("read/"))
            size = sum(n for key, n in counters.items() if key.startswith("read_bytes/"))
            self.observer.progress(documents, size)
        self.observer.task_ends("done", {})

    def _pause(self, phase: Phase | None, seconds: float = 0.0) -> None:
        """Wait a little; raise when nobody works on the run any more.

        Raises:
            CorpuskitError: the jobs are gone, with the failures that they left.
        """
        time.sleep(max(POLL_SECONDS, seconds))
        if time.monotonic() - self._asked < ASK_SECONDS and self._gone is None:
            return
        self._asked = time.monotonic()
        try:
            states = job_states(self.jobs)
        except UsageError:
            return  # the controller is away: jobs go on, and manifests still tell
        for state in states:
            ended = {name: num for name, num in state.elements.items() if name in ENDED}
            self._ended[state.job] |= Counter(ended)
        current = first_alive(states)
        if current is not None and not current.is_hopeless:
            self._gone = None
            self._tell_queued(current)
            return
        self._gone = self._gone or time.monotonic()
        if time.monotonic() - self._gone > PATIENCE_SECONDS or self._has_failed(phase):
            raise self._stopped(phase, states)

    def _tell_queued(self, state: JobState) -> None:
        """Say what the current job waits for, once, when it has waited since the last look."""
        is_queued = state.reasons and (state.is_held or not state.is_working)
        queued = (state.job, state.reasons) if is_queued else None
        if queued is not None and queued == self._queued and queued not in self._told:
            self._told.add(queued)
            self.observer.notes(f"job {state.job.number} ({state.job.phase}): {state.words}")
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
        words = JobState(last, dict(self._ended[last]), ()).words
        what = "close the run" if phase is None else f"finish phase {name}"
        return TaskError(
            f"{self.run.store.address}: no job is left in Slurm to {what}. Job {last.number}: "
            f"{words.rstrip('.')}. Logs: {log_of(self.run, last)}. Run the same command again to "
            "continue."
        )

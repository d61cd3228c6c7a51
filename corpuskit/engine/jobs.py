"""What `status` says beyond manifests: jobs in Slurm, and tasks that failed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from corpuskit.engine.executors.slurm import JobState, job_states, read_jobs
from corpuskit.engine.failures import read_failures
from corpuskit.errors import UsageError

if TYPE_CHECKING:
    from corpuskit.engine.failures import FailureNote
    from corpuskit.engine.rundir import RunDirectory


@dataclasses.dataclass(frozen=True)
class Jobs:
    """The jobs of a run in Slurm, and why they could not be asked about, if so."""

    states: tuple[JobState, ...]
    problem: str = ""

    def words(self, state: JobState) -> str:
        """Return the state of a job in words."""
        return "unknown" if self.problem else state.words

    def facts(self) -> dict[str, Any]:
        """Return the same as JSON values."""
        jobs = [
            {
                **dataclasses.asdict(one.job), "elements": one.elements, "reasons": one.reasons,
                "is_alive": None if self.problem else one.is_alive,
                "is_blocked": one.is_hopeless, "words": self.words(one),
            }
            for one in self.states
        ]  # fmt: skip
        return {"jobs": jobs, "jobs_problem": self.problem}


def jobs_of(run: RunDirectory) -> Jobs:
    """Return what Slurm knows of a run's jobs; without Slurm, what is known here."""
    jobs = read_jobs(run.store)
    try:
        return Jobs(tuple(job_states(jobs)))
    except UsageError as error:
        return Jobs(tuple(JobState(job, {}, ()) for job in jobs), str(error))


def failures_of(run: RunDirectory) -> list[FailureNote]:
    """Return the tasks that failed and have not succeeded since."""
    return [note for phase in run.plan.phases for note in read_failures(run, phase)]

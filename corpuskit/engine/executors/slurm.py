"""The Slurm executor: one job array per phase, all submitted up front, each after the one before.

An array has as many elements as there are slots to work in, whatever the number of tasks, so
MaxArraySize does not matter. Manifests tell which tasks are done; Slurm is queried only for the
jobs that are alive (squeue). `sacct` is never needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from corpuskit.engine.executors import python_path
from corpuskit.errors import DataError, TaskError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.storage import Store

JOBS = "jobs.json"
CLOSING = "closing"
"""Name of the last job, which seals the run and deletes what no seal names."""

HOPELESS = ("DependencyNeverSatisfied", "BadConstraints", "launch_failed_requeued_held")
"""Reasons for which a pending job waits for ever."""

HELD = ("JobHeldAdmin", "JobHeldUser", "JobHoldMaxRequeue")
"""Reasons for which a pending job waits for a person."""

ENDED = frozenset({
    "CANCELLED", "COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL",
    "DEADLINE", "PREEMPTED", "REVOKED",
})  # fmt: skip

ASK_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Job:
    """A submitted array: the phase it works on (or CLOSING), its id, its slots."""

    phase: str
    number: str
    slots: int


@dataclasses.dataclass(frozen=True)
class JobState:
    """The elements of a job by state; Slurm forgets those that ended some minutes ago.

    Attributes:
        reasons: why elements are pending.
    """

    job: Job
    elements: dict[str, int]
    reasons: tuple[str, ...]

    @property
    def is_alive(self) -> bool:
        """Whether some element waits or works."""
        return not ENDED.issuperset(self.elements)

    @property
    def is_working(self) -> bool:
        """Whether some element is at work, or about to end."""
        return not ENDED.union({"PENDING"}).issuperset(self.elements)

    @property
    def is_hopeless(self) -> bool:
        """Whether all that is left of it waits for something that will not come by itself."""
        is_waiting = self.is_alive and not self.is_working
        return is_waiting and any(reason in HOPELESS for reason in self.reasons)

    @property
    def is_held(self) -> bool:
        """Whether some element waits for a person to release it."""
        return any(reason in HELD for reason in self.reasons)

    @property
    def description(self) -> str:
        """What its elements do, and what to do about it."""
        parts = [f"{num} {name.lower()}" for name, num in sorted(self.elements.items())]
        states = ", ".join(parts) or "ended"
        reasons = ", ".join(self.reasons)
        if self.is_hopeless:
            return f"{states}: blocked ({reasons}). scancel {self.job.number}, then run again."
        if self.is_held:
            return f"{states} ({reasons}). Held until: scontrol release {self.job.number}"
        if self.elements.get("OUT_OF_MEMORY"):
            return f"{states}. Raise executor.slurm.mem, or lower executor.workers."
        return f"{states} ({reasons})" if self.is_alive and reasons else states


def log_of(run: RunDirectory, job: Job) -> str:
    """Return the pattern of the log files of a job's slots."""
    return f"{run.store.logs()}/slurm-{job.phase}-{job.number}_*.log"


def seconds_left(element: str) -> float:
    """Return the seconds that are left to a running element (`4711_3`); inf without a limit.

    Raises:
        UsageError: Slurm cannot be asked from here.
    """
    answer = _ask(["squeue", "-h", "-j", element, "-o", "%L"])
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", answer.stdout.strip())
    if match is None:
        return math.inf if answer.stdout.strip() == "UNLIMITED" else 0.0
    days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def first_alive(states: Sequence[JobState]) -> JobState | None:
    """Return the first job that has not ended: each waits for the one before."""
    return next((state for state in states if state.is_alive), None)


def submit(
    run: RunDirectory, phases: Sequence[Phase], *, accept_code: bool = False, force: bool = False
) -> list[Job]:
    """Submit the jobs of a run that is planned, saved and locked.

    Args:
        phases: those to run, in order; what can be reused is left out by the caller.

    Raises:
        TaskError: Slurm refused a job; those before it were cancelled.
    """
    settings = run.plan.settings.executor.slurm
    slots = min(settings.slots, max_array_size())
    steps = [(phase.name, phase.index, slots) for phase in phases]
    steps.append((CLOSING, len(run.plan.phases), 1))
    jobs: list[Job] = []
    try:
        for name, index, num in steps:
            options = _options(run, name, num, after=jobs[-1].number if jobs else None)
            answer = _ask(["sbatch", *options], _script(run, index, accept_code, force))
            if answer.returncode:
                raise TaskError(
                    f"sbatch refused phase {name}: {_last_line(answer.stderr)} Correct "
                    "executor.slurm and run again."
                )
            jobs.append(Job(name, answer.stdout.strip().partition(";")[0], num))
            _save(run.store, jobs)  # a kill here leaves a record of what is in the queue
    except BaseException:
        _withdraw(run.store, jobs)
        raise
    return jobs


def _save(store: Store, jobs: Sequence[Job]) -> None:
    content = {"format": 1, "jobs": [dataclasses.astuple(job) for job in jobs]}
    store.put(JOBS, json.dumps(content).encode())


def _withdraw(store: Store, jobs: Sequence[Job]) -> None:
    """Cancel what was submitted; if that fails, the record of the jobs stays."""
    if not jobs:
        return
    with contextlib.suppress(UsageError, OSError):
        # The last one first: none may start because another one ended.
        answer = _ask(["scancel", *(job.number for job in reversed(jobs))])
        if answer.returncode == 0:
            store.delete([JOBS])


def read_jobs(store: Store) -> list[Job]:
    """Return the jobs of the run as they were submitted; none if it was not, or is finished.

    Raises:
        DataError: the file is damaged.
    """
    if not store.exists(JOBS):
        return []
    try:
        content = json.loads(store.read(JOBS))
        jobs = [Job(str(phase), str(number), int(n)) for phase, number, n in content["jobs"]]
        if content["format"] != 1 or not all(job.number.isdigit() for job in jobs):
            raise ValueError("not of format 1")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{store.where(JOBS)}: cannot be read: {error!r}. Delete it.") from None
    return jobs


def leave_out(store: Store, phases: Sequence[str]) -> bool:
    """Cancel the jobs of phases that have nothing to do; return whether that was done.

    The job that waits for them then waits for this slot's own job. Where a site does not allow
    that, or not all jobs are submitted yet, they stay, and end as soon as they have started.

    Args:
        phases: those that follow the phase of this slot, sealed.
    """
    jobs = read_jobs(store)
    idle = [job for job in jobs if job.phase in phases]
    if not idle or jobs[-1].phase != CLOSING:
        return False
    heir = jobs[jobs.index(idle[-1]) + 1]
    after = f"Dependency=afterok:{os.environ['SLURM_ARRAY_JOB_ID']}"
    with contextlib.suppress(UsageError):
        # Before the jobs are cancelled: what depends on a cancelled job is cancelled, too.
        if _ask(["scontrol", "update", f"JobId={heir.number}", after]).returncode:
            return False
        if _ask(["scancel", *(job.number for job in idle)]).returncode == 0:
            _save(store, [job for job in jobs if job not in idle])
            return True
    return False


def job_states(jobs: Sequence[Job]) -> list[JobState]:
    """Ask Slurm about jobs.

    Raises:
        UsageError: it cannot be asked from here.
    """
    if not jobs:
        return []
    numbers = ",".join(job.number for job in jobs)
    answer = _ask(["squeue", "-a", "-h", "-r", "-t", "all", "-j", numbers, "-o", "%F|%T|%r"])
    if answer.returncode and "Invalid job id" not in answer.stderr:
        raise UsageError(f"squeue: {_last_line(answer.stderr)} Ask on a node that reaches Slurm.")
    elements: dict[str, Counter[str]] = {}
    reasons: dict[str, set[str]] = {}
    for line in answer.stdout.splitlines():
        number, state, reason = line.split("|", 2)
        elements.setdefault(number, Counter())[state] += 1
        if state == "PENDING" and reason != "None":  # not looked at by the scheduler yet
            reasons.setdefault(number, set()).add(reason.replace(" ", "_"))
    return [
        JobState(
            job, dict(elements.get(job.number, {})), tuple(sorted(reasons.get(job.number, ())))
        )
        for job in jobs
    ]


def refuse_live_jobs(store: Store) -> None:
    """Refuse to touch a run directory that jobs are working in; forget jobs that have ended.

    Raises:
        UsageError: some are alive, or it cannot be found out.
    """
    jobs = read_jobs(store)
    if not jobs:
        return
    try:
        alive = [state.job.number for state in job_states(jobs) if state.is_alive]
    except UsageError as error:
        raise UsageError(
            f"{store.address}: jobs {', '.join(job.number for job in jobs)} of this run may still "
            f"be in Slurm. {error} If they are gone, delete {store.where(JOBS)}."
        ) from None
    if alive:
        raise UsageError(
            f"{store.address}: this run is in Slurm already. Wait for it "
            f"(corpuskit status {store.address}), or: scancel {' '.join(alive)}"
        )
    store.delete([JOBS])


def max_array_size() -> int:
    """Return how many elements an array may have here."""
    answer = _ask(["scontrol", "show", "config"])
    for line in answer.stdout.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "MaxArraySize" and value.strip().isdigit():
            return max(int(value), 1)
    if answer.returncode:
        raise UsageError(
            f"scontrol: {_last_line(answer.stderr)} Submit from a node that reaches Slurm."
        )
    return 1001  # Slurm's own default


def _options(run: RunDirectory, name: str, slots: int, *, after: str | None) -> list[str]:
    settings = run.plan.settings.executor.slurm
    log = run.store.logs().absolute() / f"slurm-{name}-%A_%a.log"
    options = [
        "--parsable", f"--job-name=corpuskit-{run.plan.settings.name}-{name}",
        f"--array=0-{slots - 1}", "--requeue", "--open-mode=append",
        f"--signal=B:USR1@{settings.grace_seconds}", "--kill-on-invalid-dep=yes",
        f"--output={log}", "--nodes=1", "--ntasks=1",
    ]  # fmt: skip
    cpus = settings.cpus or run.plan.settings.executor.processes
    options.append(f"--cpus-per-task={1 if name == CLOSING else cpus}")
    if after is not None:
        options.append(f"--dependency=afterok:{after}")
    for option in ("partition", "account", "qos", "time", "mem", "constraint"):
        value = getattr(settings, option)
        if value is not None:
            options.append(f"--{option}={value}")
    return [*options, *settings.flags]


def _script(run: RunDirectory, index: int, accept_code: bool, force: bool) -> str:
    """Return the batch script: `exec`, so that Slurm's signals reach Python itself."""
    slot = "corpuskit.engine.executors.slurm_slot"
    command = [sys.executable, "-m", slot, _absolute(run.store), str(index)]
    command += ["--accept-code-change"] if accept_code else []
    command += ["--force"] if force else []
    return (
        "#!/bin/bash\n"
        f"export PYTHONPATH={shlex.quote(python_path())}\n"
        "trap '' USR1  # until Python has a handler: a warning while it starts must not end it\n"
        f"exec {shlex.join(command)}\n"
    )


def _absolute(store: Store) -> str:
    return store.address if store.is_remote else os.path.abspath(store.address)


def _ask(command: Sequence[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    if shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]} is not installed here. Submit from a login node of Slurm.")
    try:
        return subprocess.run(
            command, input=text, text=True, capture_output=True, check=False, timeout=ASK_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"{command[0]} has not answered for {ASK_SECONDS} s. Look at squeue (jobs are called "
            "corpuskit-NAME-PHASE), and try again."
        ) from None


def _last_line(text: str) -> str:
    lines: list[Any] = text.strip().splitlines() or ["no reason given"]
    return str(lines[-1]).rstrip(".") + "."

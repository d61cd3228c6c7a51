"""Runs a plan, phase by phase: one library call for `corpuskit run` and `corpuskit plan`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.cache import cache_dir
from corpuskit.engine.executors import slurm
from corpuskit.engine.executors.local import Pool
from corpuskit.engine.failures import failure_error, forget_failures, note_failures
from corpuskit.engine.following import Follower
from corpuskit.engine.phase import PhaseWork, Prospect, sweep
from corpuskit.engine.plan.compile import DOCUMENTS_BELOW_BYTES, PLAN, Plan
from corpuskit.engine.plan.fingerprint import code_digest
from corpuskit.engine.plan.inputs import INPUTS, find_inputs, save_inputs
from corpuskit.engine.preflight import check
from corpuskit.engine.rundir import RunDirectory
from corpuskit.engine.status import prospects_of
from corpuskit.errors import UsageError
from corpuskit.logs import LOG
from corpuskit.storage import SCRATCH, Store, is_remote, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpuskit.engine.executors.contract import Launcher
    from corpuskit.engine.executors.slurm import Job
    from corpuskit.engine.needs import PastPhases
    from corpuskit.engine.plan.compile import Phase
    from corpuskit.formats.manifest import Seal


class Observer:
    """What a run tells whoever watches; every method does nothing."""

    def reading_inputs(self, done: int, total: int) -> None:
        """Files whose footers are read."""

    def opened(self, run: RunDirectory) -> None:
        """The run directory is locked, and its first phase comes next."""

    def phase_starts(self, prospect: Prospect) -> None:
        """A phase is about to run, or to be reused."""

    def progress(self, documents: int, size_bytes: int) -> None:
        """Documents were read in the current phase."""

    def compiling(self) -> None:
        """A worker compiles a kernel that is not in the cache of this machine."""

    def task_ends(self, event: str, fields: dict[str, Any]) -> None:
        """A task ended: `done`, `retry` or `failed`."""

    def phase_ends(self, phase: Phase, seal: Seal) -> None:
        """A phase is sealed."""

    def notes(self, text: str) -> None:
        """Something that whoever started the run should know."""


class LogObserver(Observer):
    """Writes to the logger `corpuskit`: what a run does that a program starts without observer."""

    def opened(self, run: RunDirectory) -> None:
        LOG.info("run %s: phases: %d", run.store.address, len(run.plan.phases))

    def phase_starts(self, prospect: Prospect) -> None:
        self._began = time.monotonic()
        if prospect.state == "reuse":
            LOG.info("phase %s: reused", prospect.phase.name)
        else:
            LOG.info("phase %s: started, tasks: %d", prospect.phase.name, prospect.tasks or 0)

    def compiling(self) -> None:
        LOG.debug("a worker compiles kernels")

    def task_ends(self, event: str, fields: dict[str, Any]) -> None:
        if event == "done":
            LOG.debug("task done: %.1f CPU s", fields.get("cpu", 0.0))
        elif event == "retry":
            LOG.warning("task failed and is tried again: %s", fields.get("error", ""))
        else:
            LOG.error("task failed: %s", fields.get("error", ""))

    def phase_ends(self, phase: Phase, seal: Seal) -> None:
        LOG.info("phase %s: finished in %.1f s", phase.name, time.monotonic() - self._began)

    def notes(self, text: str) -> None:
        LOG.warning("%s", text)


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What a finished run left: the seals of its phases, and which of them were reused."""

    run: RunDirectory
    seals: tuple[Seal, ...]
    reused: tuple[bool, ...]


def open_run(
    plan: Plan, observer: Observer | None = None, store: Store | None = None
) -> RunDirectory:
    """Find the inputs of a plan; nothing is written.

    Args:
        store: the run directory, where its lock is held.

    Raises:
        UsageError: a pattern matches nothing.
        DataError: a footer cannot be read.
    """
    observer = observer or LogObserver()
    settings = plan.settings
    store = store or open_store(settings.output)
    inputs = find_inputs(
        store, plan.file.sources, settings.cell_bytes, on_file=observer.reading_inputs
    )
    if settings.documents is None:
        is_small = inputs.size_bytes() < DOCUMENTS_BELOW_BYTES
        plan = plan.with_documents(is_small)
    return RunDirectory(plan, inputs, store)


def prospects(plan: Plan, *, accept_code: bool = False) -> tuple[RunDirectory, list[Prospect]]:
    """Return what a run would do now, phase by phase; nothing is run or written.

    A phase that waits for one that must run is `later`: whether it can be reused depends on what
    comes out.
    """
    _refuse_foreign(open_store(plan.settings.output))
    run = open_run(plan)
    _refuse_inputs_inside(run)
    return run, prospects_of(run, accept_code=accept_code)


def run(
    plan: Plan,
    observer: Observer | None = None,
    *,
    accept_code: bool = False,
    force: bool = False,
    launcher: Launcher | None = None,
) -> RunResult:
    """Run a plan, or continue where an earlier run stopped.

    Phases whose inputs, parameters, files and code are those of their seal are reused.

    Args:
        observer: is told what happens; when absent, the logger `corpuskit` is.
        accept_code: reuse results that differ in nothing but corpuskit's code.
        force: run although memory or disk seem too small.
        launcher: runs the tasks; that of the plan's executor when absent.

    Raises:
        UsageError: nothing was run: a request is wrong, or memory or disk are too small.
        TaskError: tasks failed for good; the others finished.
        DataError: all failed tasks failed for broken data.
    """
    observer = observer or LogObserver()
    if launcher is None and plan.settings.executor.kind == "slurm":
        return submit(plan, observer, accept_code=accept_code, force=force).follow(observer)
    with prepared(plan, observer) as directory:
        launcher = launcher or open_launcher(directory)
        result = _run_phases(directory, launcher, observer, accept_code, force)
        if plan.until is None:
            sweep(directory)
        directory.store.clear_scratch()
    return result


@dataclasses.dataclass(frozen=True)
class Submission:
    """A run that was handed to Slurm.

    Attributes:
        reused: seals of the phases that need not run.
        phases: those that were submitted, in order.
        jobs: one for each of them, and the closing one; none when there was nothing to do.
    """

    run: RunDirectory
    reused: tuple[Seal, ...]
    phases: tuple[Phase, ...]
    jobs: tuple[Job, ...]

    def follow(self, observer: Observer) -> RunResult:
        """Wait until the run is finished.

        Raises:
            TaskError: tasks failed, or the jobs are gone.
            DataError: all failed tasks failed for broken data.
        """
        seals = Follower(self.run, self.jobs, self.phases, observer).follow()
        is_reused = [True] * len(self.reused) + [False] * len(seals)
        return RunResult(self.run, (*self.reused, *seals), tuple(is_reused))


def submit(
    plan: Plan,
    observer: Observer | None = None,
    *,
    accept_code: bool = False,
    force: bool = False,
) -> Submission:
    """Submit a plan to Slurm and return; the jobs need nobody to watch them.

    Args:
        force: run although memory or disk seem too small.

    Raises:
        UsageError: nothing was submitted.
        TaskError: Slurm refused a job; nothing is left in the queue.
    """
    observer = observer or LogObserver()
    reused: list[Seal] = []
    with prepared(plan, observer) as directory:
        for phase in directory.plan.phases:
            work = PhaseWork(directory, phase, accept_code=accept_code)
            if work.reused is None:
                if note := check(work, force=force):
                    observer.notes(note)
                work.discard_broken()
                break
            observer.phase_starts(work.prospect())
            reused.append(work.finish())
            observer.phase_ends(phase, reused[-1])
        phases = directory.plan.phases[len(reused) :]
        for phase in phases:
            forget_failures(directory, phase)
        jobs: list[Job] = []
        if phases:
            jobs = slurm.submit(directory, phases, accept_code=accept_code, force=force)
        if not phases and plan.until is None:
            sweep(directory)
    return Submission(directory, tuple(reused), tuple(phases), tuple(jobs))


@contextlib.contextmanager
def prepared(plan: Plan, observer: Observer) -> Iterator[RunDirectory]:
    """Yield the run directory of a plan, locked and ready for its tasks.

    Raises:
        UsageError: nothing may be run there.
    """
    if plan.settings.executor.kind == "local":
        cache_dir()  # or every task fails for want of it
    _pin_code(plan)
    store = open_store(plan.settings.output)
    _refuse_foreign(store)
    with store.lock():
        slurm.refuse_live_jobs(store)
        directory = open_run(plan, observer, store)
        _refuse_inputs_inside(directory)
        directory.store.clear_scratch()
        directory.save()
        settings, sources = directory.plan.settings, directory.plan.file.sources
        save_inputs(directory.store, directory.inputs, sources, settings.cell_bytes)
        observer.opened(directory)
        yield directory


def _run_phases(
    directory: RunDirectory, launcher: Launcher, observer: Observer, accept_code: bool, force: bool
) -> RunResult:
    seals: list[Seal] = []
    reused: list[bool] = []
    past: PastPhases = {}
    with launcher:
        for phase in directory.plan.phases:
            work = PhaseWork(directory, phase, accept_code=accept_code)
            if work.reused is None:
                note = check(work, force=force, is_started=not all(reused), past=past)
                if note:
                    observer.notes(note)
            work.discard_broken()
            observer.phase_starts(work.prospect())
            failures = [] if work.reused else launcher.run(work.tasks(), _forward(observer))
            if failures:
                note_failures(directory, phase, failures)
                raise failure_error(phase, failures)
            seals.append(work.finish())
            reused.append(work.reused is not None)
            observer.phase_ends(phase, seals[-1])
    return RunResult(directory, tuple(seals), tuple(reused))


def _pin_code(plan: Plan) -> None:
    """Hash the code before workers import it: an edit during the run must not sign old results."""
    for step in (*plan.file.sources, *plan.file.steps):
        code_digest(step.name)


def open_launcher(directory: RunDirectory) -> Launcher:
    """Return the launcher that the plan asks for."""
    executor = directory.plan.settings.executor
    if executor.kind == "ray":
        from corpuskit.engine.executors.ray import RayLauncher

        return RayLauncher(
            directory.store,
            address=executor.ray.address,
            workers=executor.workers,
            cpus_per_task=executor.ray.cpus_per_task,
            memory=executor.ray.memory,
            retries=executor.retries,
        )
    return Pool(directory.store, executor.workers, executor.retries)


def _refuse_foreign(store: Store) -> None:
    """Refuse a folder that holds something, but no run: a run deletes what is not its own."""
    found = store.top()
    if PLAN not in found and (strange := sorted(found - {"lock", "logs", SCRATCH, INPUTS})):
        raise UsageError(
            f"{store.address}: not a run directory (no {PLAN}), but it holds {strange[0]!r}. A run "
            "deletes what is not its own: set another output, or empty it."
        )


def _refuse_inputs_inside(directory: RunDirectory) -> None:
    """Refuse inputs inside the run directory: what no seal names is deleted there."""
    root = directory.store.address
    folders: dict[str, bool] = {}
    for file in directory.inputs.files:
        folder = file.path if os.path.islink(file.path) else file.path.rpartition("/")[0]
        if folder not in folders:
            folders[folder] = _is_inside(folder or ".", root)
        if folders[folder]:
            raise UsageError(
                f"{file.path}: source {file.source!r} reads a file inside the output {root}, where "
                "a run deletes what is not its own. Set another output."
            )


def _is_inside(place: str, root: str) -> bool:
    if is_remote(place) or is_remote(root):
        return f"{place}/".startswith(root.rstrip("/") + "/")
    return Path(place).resolve().is_relative_to(Path(root).resolve())


def _forward(observer: Observer) -> Any:
    def on_event(kind: str, fields: dict[str, Any]) -> None:
        if kind == "progress":
            observer.progress(fields["documents"], fields["bytes"])
        elif kind == "compiling":
            observer.compiling()
        elif kind == "waits":
            observer.notes(fields["reason"])
        else:
            observer.task_ends(kind, fields)

    return on_event
